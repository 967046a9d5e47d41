// Staircase: what each layer keeps when forward has passed it, in execution order.

/** @param {string} name layers.3.attn -> layers.*.attn */
const foldedName = (name) => name.replace(/(^|\.)\d+(?=\.|$)/g, "$1*");

class StairsTab {
  constructor() {
    this.element = h("div.stairs");
    this.depth = 0;
    this.folded = false;
    this.figure = new Figure({ label: "staircase: retained bytes module by module; numbers in the table",
      test: "stairs", height: 300, draw: (g, w, t, put) => this._draw(g, w, t, put) });
    this.sorted = -1;
    this.down = true;
  }

  /** The modules that are steps of the stair: a cut through the tree at a depth.  What a module
   * itself keeps beside its parts is a step of its own, so the steps sum up.
   * @param {any} s */
  _steps(s) {
    const n = s.name.length, kids = new Uint32Array(n);
    for (let i = 0; i < n; i++) if (s.parent[i] >= 0) kids[s.parent[i]] += 1;
    const found = [];
    for (let i = 0; i < n; i++) {
      if (s.depth[i] > this.depth) continue;
      const whole = s.depth[i] === this.depth || !kids[i];
      const kept = whole ? s.retained_bytes[i] : s.retained_bytes_self[i];
      const born = whole ? s.forward_bytes[i] : s.forward_bytes_self[i];
      if (!whole && !kept && !born) continue;
      found.push({ i, whole, kept, born, spike: whole ? s.transient_bytes[i] : 0,
        back: whole ? s.backward_peak_bytes[i] : 0, backBorn: whole ? s.backward_bytes[i] : 0,
        name: s.name[i] + (whole ? "" : " (itself)"), parameters: whole ? s.parameter_bytes[i] : 0,
        calls: s.calls[i] });
    }
    return found;
  }

  render() {
    const device = /** @type {Device} */ (current());
    const s = device.meta.stairs;
    const deepest = greatest(s.depth);
    if (this.device !== device) {
      // The depth at which most bytes are told apart in at most some 60 steps.
      this.device = device;
      this.depth = 0;
      for (let d = 1; d <= deepest; d++) {
        this.depth = d;
        if (this._steps(s).length > 60) {
          this.depth = Math.max(d - 1, 1);
          break;
        }
      }
    }
    const steps = this.steps = this._steps(s);
    const kept = steps.reduce((sum, step) => sum + step.kept, 0);
    const rows = this.folded ? foldSteps(steps) : steps.map((step) => ({ ...step, n: 1, least: step.kept, most: step.kept, odd: 0 }));
    const keys = ["name", "kept", "spike", "born", "back", "backBorn", "parameters"];
    const by = this.sorted;
    if (by >= 0) {
      const key = keys[by];
      rows.sort((a, b) => (key === "name" ? (a.name < b.name ? -1 : 1) : a[key] - b[key]) * (this.down ? -1 : 1));
    }
    const numbers = [["retained", "kept"], ["transient", "spike"], ["born forward", "born"],
      ["backward peak", "back"], ["born backward", "backBorn"], ["parameters", "parameters"]];
    const columns = [{ title: "module", wide: true, text: (i) => rows[i].name,
      cell: (i) => (rows[i].n > 1 ? `${rows[i].name}  ×${rows[i].n}` : rows[i].name) },
    ...numbers.map(([title, key]) => ({ title, number: true, cell: (i) => size(rows[i][key]), text: (i) => String(rows[i][key]) }))];
    if (this.folded) {
      columns.push({ title: "each keeps", number: true, text: (i) => `${rows[i].least}-${rows[i].most}`,
        cell: (i) => (rows[i].least === rows[i].most ? size(rows[i].most) : `${size(rows[i].least)} – ${size(rows[i].most)}`) });
      columns.push({ title: "stand out", number: true, text: (i) => String(rows[i].odd), cell: (i) => (rows[i].odd ? `⚠ ${rows[i].odd}` : "–") });
    }
    const table = new Table({ label: "modules in execution order", test: "stairs-table", columns, rows: rows.length,
      sorted: by, down: this.down, onsort: (i, down) => {
        if (i < keys.length) {
          this.sorted = i;
          this.down = down;
          later("tab");
        }
      },
      foot: [`${counted(rows.length, "row")}`, size(kept, 4), ...columns.slice(2).map(() => "")] });
    const event = s.retained_event[0];
    this.element.replaceChildren(
      h("div.head", {}, h("h2", {}, "Staircase ", h("span.muted", {}, s.step === null ? "all that was recorded" : `step ${s.step}`)),
        h("label", {}, "depth ", h("input", { type: "range", min: 0, max: deepest, value: this.depth, test: "stairs-depth",
          oninput: (/** @type {any} */ e) => { this.depth = Number(e.target.value); later("tab"); } }), ` ${this.depth}`),
        h("button", { "aria-pressed": this.folded, test: "stairs-fold", onclick: () => { this.folded = !this.folded; later("tab"); } }, "Join repeated layers"),
        table.buttons()),
      h("p.note", {}, `Forward leaves ${size(kept, 4)} behind`, event >= 0 ? h("span", {}, " ",
        h("button.link", { onclick: () => setCursor(event, true), test: "stairs-proof" }, "at its end")) : "",
      ". A riser is what a module keeps for backward, a spike what it needs for a moment, "
        + "below the line is the most that backward needed because of it."),
      this.figure.element, table.box);
    this.figure.draw();
  }

  _draw(g, width, height, put) {
    const steps = this.steps || [];
    let level = 0, top = 1, low = 0;
    for (const step of steps) {
      top = Math.max(top, level + step.kept + step.spike);
      level += step.kept;
      low = Math.max(low, step.back);
    }
    const box = { x: MARGIN.left, y: 8, w: width - MARGIN.left - MARGIN.right, h: height - 16 };
    // Below the forward's floor: the names, then what backward needed.
    const named = 18, share = Math.min(low / (top + low), 0.4), zero = box.y + (box.h - named) * (1 - share);
    const floor = zero + named, up = (zero - box.y) / (top * 1.03), down = low ? (box.y + box.h - 16 - floor) / low : 0;
    byteAxis(g, { ...box, h: zero - box.y }, top, (at) => zero - at * up);
    const dx = box.w / Math.max(steps.length, 1);
    level = 0;
    for (let i = 0; i < steps.length; i++) {
      const step = steps[i], x = box.x + i * dx, w = Math.max(dx - (dx > 4 ? 1.5 : 0), 0.7);
      const y = zero - (level + step.kept) * up;
      g.fillStyle = colours.activation;
      g.globalAlpha = 0.28;
      g.fillRect(x, zero - level * up, w, level * up);
      g.globalAlpha = 1;
      g.fillRect(x, y, w, step.kept * up);
      if (step.spike) {
        g.fillStyle = colours.temporary;
        const thin = Math.max(Math.min(w * 0.4, 10), 0.7);
        g.fillRect(x + (w - thin) / 2, y - step.spike * up, thin, step.spike * up);
      }
      if (step.back) {
        g.fillStyle = colours.muted;
        g.fillRect(x, floor, w, step.back * down);
      }
      put(x, box.y, dx, box.h, `${step.name}\nretained ${size(step.kept, 4)}\ntransient ${size(step.spike)}\n`
        + `after it ${size(level + step.kept, 4)}\nbackward peak ${size(step.back)}`, () => change({ q: `module:${step.name.replace(" (itself)", "")}*` }));
      level += step.kept;
    }
    g.fillStyle = colours.muted;
    g.textBaseline = "top";
    const each = Math.max(1, Math.ceil(64 / dx));
    for (let i = 0; i < steps.length; i += each) {
      const text = cut(g, steps[i].name.split(".").slice(-2).join("."), dx * each - 6);
      g.fillText(text, box.x + i * dx + 1, zero + 4);
    }
    g.fillText("forward ↑", box.x + 4, box.y);
    if (low) {
      g.textBaseline = "bottom";
      g.fillText(`backward ↓ up to ${size(low)}`, box.x + 4, box.y + box.h + 4);
    }
  }
}

/** Join steps of layers that repeat.  @param {any[]} steps */
function foldSteps(steps) {
  const groups = new Map();
  for (const step of steps) {
    const name = foldedName(step.name);
    let group = groups.get(name);
    if (!group) groups.set(name, group = []);
    group.push(step);
  }
  return [...groups.entries()].map(([name, group]) => {
    const sum = (/** @type {string} */ key) => group.reduce((total, step) => total + step[key], 0);
    const most = (/** @type {string} */ key) => greatest(group.map((step) => step[key]));
    const sorted = group.map((step) => step.kept).sort((a, b) => a - b);
    const middle = sorted[sorted.length >> 1];
    return { name: group.length > 1 ? name : group[0].name, n: group.length, kept: sum("kept"), born: sum("born"),
      spike: most("spike"), back: most("back"), backBorn: sum("backBorn"), parameters: sum("parameters"),
      least: sorted[0], most: sorted[sorted.length - 1],
      odd: sorted.length > 2 ? sorted.filter((kept) => Math.abs(kept - middle) > 0.1 * Math.max(middle, 1)).length : 0 };
  });
}
