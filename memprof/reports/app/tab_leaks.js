// Leaks: what outlives the step that made it.

const MATRIX = 20; // steps shown in the matrix

class LeaksTab {
  constructor() {
    this.element = h("div.leaks");
    this.births = new Figure({ label: "bytes by time of birth: solid is alive at the end, hatched was freed",
      test: "births", height: 170, draw: (g, w, t, put) => this._births(g, w, t, put) });
    this.warmup = 1;
    this.sorted = 1;
    this.down = true;
  }

  /** Bytes of each pair of the last steps: born in one, alive at the end of another.
   * Row 0 is of all that is older.
   * @param {Device} device @param {number} from the first of these steps */
  _matrix(device, from) {
    const { number, end } = device.meta.steps, n = number.length, wide = n - from;
    const found = new Float64Array((wide + 1) * wide);
    const steps = device.stepOf(), mask = view.hits && view.hits.mask;
    for (let a = 0; a < device.nA; a++) {
      if (mask && !mask[a]) continue;
      const born = device.birth[a] - 1, died = device.death[a], s = device.bytes(a);
      // Births outside of steps count for the row before.
      const row = Math.max(steps[a] - from, 0);
      if (died <= end[from]) continue;
      for (let k = Math.max(lastBefore(end, born) + 1, from); k < n && died > end[k]; k++) found[row * wide + k - from] += s;
    }
    return found;
  }

  render() {
    const device = /** @type {Device} */ (current());
    const { number, end } = device.meta.steps, n = number.length;
    const last = n ? end[n - 1] : device.nE - 1;
    const mask = view.hits && view.hits.mask;
    const steps = device.stepOf();
    // Survivors: born in a step after warm-up, alive when the last step ends.
    const lives = [];
    for (let a = device.old; a < device.nA; a++) {
      if (device.death[a] > last && device.birth[a] - 1 <= last && (!n || steps[a] > this.warmup) && !(mask && !mask[a])) lives.push(a);
    }
    const keys = ["category", "module", "op", "line"];
    const perStep = new Map();
    const groups = device.grouped(Uint32Array.from(lives), [...keys]);
    for (const a of lives) {
      const name = keys.map((key) => device.text(key, a)).join("\u0000");
      let seen = perStep.get(name);
      if (!seen) perStep.set(name, seen = new Set());
      seen.add(steps[a]);
    }
    const looked = Math.max(n - this.warmup, 1);
    const rows = groups.map((group) => ({ ...group, steps: (perStep.get(group.words.join("\u0000")) || new Set()).size,
      per: Math.round(group.bytes / looked) }));
    const orders = ["bytes", "per", "steps", "count"];
    const by = orders[this.sorted] || "per";
    rows.sort((a, b) => (a[by] - b[by]) * (this.down ? -1 : 1) || b.bytes - a.bytes);
    const sum = rows.reduce((total, row) => total + row.bytes, 0);
    const columns = [
      { title: "alive at the end", number: true, cell: (i) => size(rows[i].bytes, 4), text: (i) => String(rows[i].bytes) },
      { title: "per step", number: true, cell: (i) => size(rows[i].per), text: (i) => String(rows[i].per) },
      { title: "steps", number: true, cell: (i) => `${rows[i].steps}/${looked}`, text: (i) => `${rows[i].steps}/${looked}` },
      { title: "blocks", number: true, cell: (i) => count(rows[i].count), text: (i) => String(rows[i].count) },
      { title: "category", sort: false, cell: (i) => swatch(rows[i].words[0]), text: (i) => rows[i].words[0] },
      ...["module", "op", "where"].map((title, k) => ({ title, sort: false, wide: true,
        cell: (i) => rows[i].words[k + 1] || "–", text: (i) => rows[i].words[k + 1] })),
    ];
    const table = new Table({ label: "survivors by call site", test: "leaks-table", columns, rows: rows.length,
      sorted: this.sorted, down: this.down, onsort: (i, down) => { this.sorted = i; this.down = down; later("tab"); },
      onpick: (i) => showDetail(device, rows[i].first, rows[i]),
      foot: [size(sum, 4), "", "", count(lives.length), "", `= ${count(sum)} bytes`, "", ""] });
    this.element.replaceChildren(
      h("div.head", {}, h("h2", {}, "Leaks ", h("span.muted", {}, "what outlives the step that made it")),
        n > 1 ? h("label", {}, "warm-up steps ", h("input", { type: "number", min: 0, max: n - 1, value: this.warmup, test: "warmup",
          onchange: (/** @type {any} */ e) => { this.warmup = clamp(0, Number(e.target.value) || 0, n - 1); later("tab"); } })) : null),
      this.births.element,
      n ? h("div", {}, h("h3", {}, "Born in a step, alive at the end of a step"), this._matrixTable(device)) : h("p.note", {}, "Without steps (prof.step()) survivors cannot be told by step."),
      h("div.head", {}, h("h3", {}, `Survivors by call site${n ? `, steps ${number[Math.min(this.warmup, n - 1)]} to ${number[n - 1]}` : ""}`), table.buttons()),
      table.box);
    this.births.draw();
  }

  /** @param {Device} device */
  _matrixTable(device) {
    const { number } = device.meta.steps, n = number.length, from = Math.max(0, n - MATRIX);
    const m = this._matrix(device, from), wide = n - from;
    const shown = Array.from({ length: wide }, (_, i) => i + from);
    // What is older than the steps shown is one row, so that columns sum up.
    const older = shown.map((_, k) => m[k]);
    const later_ = shown.map((_, row) => shown.map((__, k) => m[(row + 1) * wide + k]));
    const most = greatest(later_.filter((_, row) => shown[row] >= this.warmup).flat()) || 1;
    const cell = (bytes, k, heat) => {
      const td = h("td.n", { title: `${count(bytes)} bytes` }, bytes ? size(bytes) : "·");
      if (heat && bytes) {
        td.style.setProperty("--heat", String(Math.round(12 + 40 * Math.sqrt(Math.min(bytes / most, 1)))));
        td.classList.add("heat");
      }
      return td;
    };
    return h("div.scroll", { tabindex: 0, role: "region", "aria-label": "matrix of survivors" }, h("table.matrix", { test: "matrix" },
      h("caption.quiet", {}, "rows: step of birth; columns: at the end of which step. A clean run has numbers on the diagonal only"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "born in"), shown.map((k) => h("th.n", { scope: "col" }, `end of ${number[k]}`)))),
      h("tbody", {},
        h("tr", {}, h("th", { scope: "row" }, from ? `before ${number[from]}` : "before"), older.map((bytes, k) => cell(bytes, k, false))),
        shown.map((b, row) => h(`tr${b < this.warmup ? ".muted" : ""}`, {}, h("th", { scope: "row" }, b < this.warmup ? `${number[b]} warm-up` : String(number[b])),
          later_[row].map((bytes, k) => (shown[k] < b ? h("td", {}) : cell(bytes, k, b >= this.warmup)))))),
      h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "allocated"), shown.map((k, i) => h("td.n", {},
        size(older[i] + later_.reduce((sum, row) => sum + row[i], 0), 4)))))));
  }

  _births(g, width, height, put) {
    const device = /** @type {Device} */ (current());
    const box = { x: MARGIN.left, y: 8, w: width - MARGIN.left - MARGIN.right, h: height - 30 };
    const n = Math.max(10, Math.min(Math.floor(box.w / 6), 240));
    const kept = new Float64Array(n), gone = new Float64Array(n);
    const mask = view.hits && view.hits.mask;
    const whole = wholeView(device), span = whole[1] - whole[0], places = device.places(view.axis);
    for (let a = device.old; a < device.nA; a++) {
      if (mask && !mask[a]) continue;
      const at = places ? places[device.birth[a] - 1] : device.birth[a] - 1;
      const c = clamp(0, Math.floor(((at - whole[0]) / span) * n), n - 1);
      if (device.death[a] >= device.nE) kept[c] += device.bytes(a);
      else gone[c] += device.bytes(a);
    }
    let top = 1;
    for (let c = 0; c < n; c++) top = Math.max(top, kept[c] + gone[c]);
    const y = (/** @type {number} */ at) => box.y + box.h - (at / (top * 1.02)) * box.h;
    byteAxis(g, box, top, y);
    const dx = box.w / n;
    for (let c = 0; c < n; c++) {
      const x = box.x + c * dx, w = Math.max(dx - 1, 1);
      if (gone[c]) {
        const t = y(kept[c]) - y(kept[c] + gone[c]);
        hatch(g, x, y(kept[c] + gone[c]), w, t, colours.axis);
        g.strokeStyle = colours.axis;
        g.lineWidth = 1;
        g.strokeRect(x + 0.5, y(kept[c] + gone[c]) + 0.5, w - 1, Math.max(t - 1, 0.5));
      }
      g.fillStyle = colours.text;
      g.fillRect(x, y(kept[c]), w, y(0) - y(kept[c]));
      const from = whole[0] + (c * span) / n;
      put(x, box.y, dx, box.h, `born ${view.axis === "event" ? `at event ${count(Math.round(from))}` : view.axis === "step" ? `in step ${stepMark(from)}` : `at ${time(from)}`}\nalive at the end ${size(kept[c], 4)}\nfreed ${size(gone[c], 4)}`);
    }
    g.fillStyle = colours.muted;
    g.textBaseline = "top";
    g.fillText(`by time of birth: solid = alive at the end, hatched = freed${device.meta.folded ? "; folded ones, all freed, are left out" : ""}`, box.x, box.y + box.h + 8);
  }
}
