// Compare: this run and the one before, aligned by step, module and line.

class CompareTab {
  constructor() {
    this.element = h("div.compare");
    this.figure = new Figure({ label: "highest bytes of each step, now, before and the difference", test: "compare-steps",
      height: 210, draw: (g, w, t, put) => this._draw(g, w, t, put) });
    this.sorted = 0;
    this.down = true;
    this.only = "all";
  }

  render() {
    const { now, before, rows } = meta.compare;
    const kind = (row) => (row[7] === 0 && row[8] === 0 ? "new" : row[5] === 0 && row[6] === 0 ? "gone"
      : row[5] > row[7] ? "grown" : row[5] < row[7] ? "shrunk" : "same");
    const shown = rows.filter((row) => this.only === "all" || kind(row) === this.only);
    const orders = [(r) => Math.abs(r[5] - r[7]), (r) => r[7], (r) => r[5]];
    const order = orders[this.sorted] || orders[0];
    shown.sort((a, b) => (order(a) - order(b)) * (this.down ? -1 : 1));
    const sum = (/** @type {number} */ i) => shown.reduce((total, row) => total + row[i], 0);
    const columns = [
      { title: "change", number: true, cell: (i) => signed(shown[i][5] - shown[i][7]), text: (i) => String(shown[i][5] - shown[i][7]) },
      { title: "before", number: true, cell: (i) => size(shown[i][7], 4), text: (i) => String(shown[i][7]) },
      { title: "now", number: true, cell: (i) => size(shown[i][5], 4), text: (i) => String(shown[i][5]) },
      { title: "blocks", number: true, sort: false, cell: (i) => `${shown[i][8]} › ${shown[i][6]}`, text: (i) => `${shown[i][8]}>${shown[i][6]}` },
      { title: "how", sort: false, cell: (i) => kind(shown[i]), text: (i) => kind(shown[i]) },
      { title: "category", sort: false, cell: (i) => (meta.categories.includes(shown[i][0]) ? swatch(shown[i][0]) : shown[i][0]), text: (i) => shown[i][0] },
      ...["module", "op", "where", "shape"].map((title, k) => ({ title, sort: false, wide: true, cell: (i) => shown[i][k + 1] || "–", text: (i) => shown[i][k + 1] })),
    ];
    const table = new Table({ label: "what changed between the peaks", test: "compare-table", columns, rows: shown.length,
      sorted: this.sorted, down: this.down, onsort: (i, down) => { this.sorted = i; this.down = down; later("tab"); },
      foot: [signed(sum(5) - sum(7)), size(sum(7), 4), size(sum(5), 4), "", "", ...[0, 1, 2, 3, 4].map((k) => (k ? "" : `= ${count(sum(5) - sum(7))} bytes`))] });
    const a = now.peak.requested_bytes, b = before.peak.requested_bytes;
    this.element.replaceChildren(
      h("div.head", {}, h("h2", {}, "Compare ", h("span.muted", {}, `before: ${before.run || "a run"} on ${before.device}; now: ${now.run || "this run"} on ${now.device}`)),
        h("label", {}, "show ", h("select", { test: "compare-only", onchange: (e) => { this.only = e.target.value; later("tab"); } },
          ["all", "new", "gone", "grown", "shrunk", "same"].map((name) => h("option", { value: name, selected: name === this.only }, name)))), table.buttons()),
      h("p.note", {}, `Peak ${size(b, 4)} before, ${size(a, 4)} now: ${signed(a - b)}${b ? ` (${a >= b ? "+" : ""}${((100 * (a - b)) / b).toFixed(1)} %)` : ""}.`),
      this._fall(now, before), this.figure.element, this._stepTable(now, before), table.box);
    this.figure.draw();
  }

  /** The lanes by step as a table. */
  _stepTable(now, before) {
    const n = Math.max(now.steps.length, before.steps.length);
    const part = (/** @type {any} */ side, /** @type {number} */ k, /** @type {number} */ i) => (side.steps[k] ? side.steps[k][i] : null);
    const bytes = (/** @type {number | null} */ amount) => (amount === null ? "–" : size(amount, 4));
    const change_ = (/** @type {number} */ k) => (now.steps[k] && before.steps[k] ? now.steps[k][1] - before.steps[k][1] : null);
    const columns = [["step before", before, 0], ["highest before", before, 1], ["step now", now, 0], ["highest now", now, 1]].map(([title, side, i]) => ({
      title, number: true, cell: (k) => (i ? bytes(part(side, k, 1)) : part(side, k, 0) ?? "–"), text: (k) => String(part(side, k, i) ?? "") }));
    columns.push({ title: "change", number: true, cell: (k) => (change_(k) === null ? "–" : signed(Number(change_(k)))), text: (k) => String(change_(k) ?? "") });
    const table = new Table({ label: "highest bytes of each step, before and now", test: "compare-step-table", columns, rows: n, height: 260 });
    return h("details", {}, h("summary", {}, "Steps as a table"), table.buttons(), table.box);
  }

  /** From peak to peak, category by category. */
  _fall(now, before) {
    const a = now.peak.requested_bytes, b = before.peak.requested_bytes;
    let least = b, most = Math.max(b, a), base = b;
    const parts = STACKING.map((name) => [name, (now.categories[name] || 0) - (before.categories[name] || 0)]).filter(([, by]) => by);
    for (const [, by] of parts) {
      base += Number(by);
      least = Math.min(least, base);
      most = Math.max(most, base);
    }
    base = b;
    const whole = Math.max(most, 1);
    const row = (name, text, from, to, cls) => h(`tr${cls === "whole" ? ".sum" : ""}`, {}, h("th", { scope: "row" }, name), h("td.n", {}, text),
      h("td.fall", { "aria-hidden": "true" }, h("span", {}, h(`i.${cls}`, { "left%": (100 * Math.min(from, to)) / whole, "width%": Math.max((100 * Math.abs(to - from)) / whole, 0.2) }))));
    const rows = [row("peak before", size(b, 4), 0, b, "whole")];
    for (const [name, by] of parts) {
      rows.push(row(swatch(String(name)), signed(Number(by)), base, base + Number(by), `c-${name}`));
      base += Number(by);
    }
    rows.push(row("peak now", size(a, 4), 0, a, "whole"));
    return h("div.scroll", {}, h("table.fall", { test: "compare-fall" }, h("caption.quiet", {}, "from the peak before to the peak now"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "part"), h("th.n", { scope: "col" }, "size"), h("th", { scope: "col" }, h("span.quiet", {}, "bar")))),
      h("tbody", {}, rows)));
  }

  /** Lanes by step: now, before, difference. */
  _draw(g, width, height, put) {
    const { now, before } = meta.compare;
    const n = Math.max(now.steps.length, before.steps.length);
    const top = greatest([...now.steps, ...before.steps].map((s) => s[1])) || 1;
    const lane = (height - 30) / 3, w = width - MARGIN.left - MARGIN.right, dx = Math.min(w / Math.max(n, 1), 90);
    const differ = Array.from({ length: n }, (_, k) => (now.steps[k] && before.steps[k] ? now.steps[k][1] - before.steps[k][1] : null));
    const most = greatest(differ.map((by) => Math.abs(by || 0))) || 1;
    ["before", "now", "change"].forEach((name, row) => {
      const y0 = 6 + row * (lane + 6);
      g.fillStyle = colours.muted;
      g.textAlign = "right";
      g.textBaseline = "middle";
      g.fillText(name, MARGIN.left - 8, y0 + lane / 2);
      g.textAlign = "left";
      g.strokeStyle = colours.axis;
      g.lineWidth = 1;
      const zero = row < 2 ? y0 + lane : y0 + lane / 2;
      g.beginPath();
      g.moveTo(MARGIN.left, zero + 0.5);
      g.lineTo(MARGIN.left + w, zero + 0.5);
      g.stroke();
      if (row < 2) {
        g.fillStyle = colours.muted;
        g.textBaseline = "top";
        g.textAlign = "right";
        g.fillText(size(top), MARGIN.left - 8, y0);
        g.textAlign = "left";
      }
      for (let k = 0; k < n; k++) {
        const step = (row ? now : before).steps[k], x = MARGIN.left + k * dx, wide = Math.max(dx - 2, 1);
        if (row < 2 && step) {
          g.fillStyle = row ? colours.focus : colours.muted;
          const t = (step[1] / top) * lane;
          g.fillRect(x, y0 + lane - t, wide, t);
          put(x, y0, wide, lane, `${name}, step ${step[0]}: highest ${size(step[1], 4)}, at its end ${size(step[2], 4)}`);
        } else if (row === 2 && differ[k] !== null) {
          const by = Number(differ[k]), t = (Math.abs(by) / most) * (lane / 2);
          g.fillStyle = by > 0 ? colours.limit : colours.good;
          g.fillRect(x, by > 0 ? zero - t : zero, wide, t);
          put(x, y0, wide, lane, `step ${now.steps[k][0]} now against step ${before.steps[k][0]} before: ${signed(by)}`);
        }
      }
    });
  }
}
