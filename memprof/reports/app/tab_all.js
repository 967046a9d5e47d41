// All allocations: every life in one table, sorted by counting, never by comparing rows.

const ALL_COLUMNS = [["bytes", "size"], ["born", "birth"], ["lived", "life"], ["step", "step"], ["category", "category"],
  ["module", "module"], ["op", "op"], ["where", "line"], ["owner", "owner"], ["shape", "shape"]];

class AllTab {
  constructor() {
    this.element = h("div.all");
    this.sorted = 0;
    this.down = true;
    this.chosen = -1;
  }

  /** Lives that the filter lets pass, in order. @param {Device} device @returns {Uint32Array} */
  _rows(device) {
    const key = ALL_COLUMNS[this.sorted][1], mask = view.hits && view.hits.mask;
    const rank = ranks(device, key);
    let top = 0;
    for (let a = 0; a < device.nA; a++) if (rank[a] > top) top = rank[a];
    const starts = new Uint32Array(top + 2);
    let n = 0;
    for (let a = 0; a < device.nA; a++) {
      if (mask && !mask[a]) continue;
      starts[rank[a] + 1]++;
      n++;
    }
    for (let r = 0; r <= top; r++) starts[r + 1] += starts[r];
    const rows = new Uint32Array(n);
    for (let a = 0; a < device.nA; a++) {
      if (mask && !mask[a]) continue;
      rows[starts[rank[a]]++] = a;
    }
    return this.down ? rows.reverse() : rows;
  }

  /** While it is not shown it holds no rows. */
  rest() {
    this.rows = this.table = null;
    this.element.replaceChildren();
  }

  render() {
    const device = /** @type {Device} */ (current());
    const rows = this._rows(device);
    this.rows = rows;
    let sum = 0, alive = 0, aliveCount = 0;
    for (let i = 0; i < rows.length; i++) {
      const a = rows[i], s = device.bytes(a);
      sum += s;
      if (device.birth[a] <= view.cursor + 1 && device.death[a] > view.cursor) {
        alive += s;
        aliveCount += 1;
      }
    }
    const life = (/** @type {number} */ a) => (device.death[a] >= device.nE ? "to the end"
      : time(device.at(device.death[a]) - device.at(device.birth[a] - 1)));
    const columns = ALL_COLUMNS.map(([title, key]) => {
      const text = (/** @type {number} */ i) => {
        const a = rows[i];
        if (key === "size") return String(device.bytes(a));
        if (key === "birth") return device.birth[a] ? time(device.at(device.birth[a] - 1)) : "before";
        if (key === "life") return life(a);
        return device.text(key, a);
      };
      const number = key === "size" || key === "birth" || key === "life" || key === "step";
      return { title, number, down: key === "size" || key === "life", wide: !number && key !== "category", text,
        cell: (i) => (key === "size" ? size(device.bytes(rows[i])) : key === "category" ? swatch(text(i)) : text(i) || "–") };
    }).filter((column, i) => !["owner", "shape"].includes(ALL_COLUMNS[i][1]) || device.hasText(ALL_COLUMNS[i][1]));
    const table = this.table = new Table({ label: "all allocations", test: "all-table", columns, rows: rows.length, height: 560,
      sorted: this.sorted, down: this.down, onsort: (i, down) => { this.sorted = i; this.down = down; later("tab"); },
      selected: (i) => rows[i] === this.chosen,
      onpick: (i) => { this.chosen = rows[i]; showDetail(device, rows[i]); } });
    this.element.replaceChildren(
      h("div.head", {}, h("h2", {}, "All allocations ", h("span.muted", {}, view.q ? `that match “${view.q}”` : "")), table.buttons()),
      h("p.note", { test: "all-sum" }, `${counted(rows.length, "allocation")}, ${size(sum, 4)} in all; ${size(alive, 4)} of ${counted(aliveCount, "block")} alive at the cursor`),
      table.box, device.meta.folded ? this._folded(device) : "");
  }

  /** What is folded, by call site: with the rows above it is all that was allocated.
   * @param {Device} device */
  _folded(device) {
    const { count: n, bytes, size: most, events, rows } = device.meta.folded;
    const columns = [
      { title: "bytes", number: true, cell: (i) => size(rows[i][0], 4), text: (i) => String(rows[i][0]) },
      { title: "blocks", number: true, cell: (i) => count(rows[i][1]), text: (i) => String(rows[i][1]) },
      { title: "category", cell: (i) => (meta.categories.includes(rows[i][2]) ? swatch(rows[i][2]) : rows[i][2]), text: (i) => rows[i][2] },
      ...["module", "op", "where"].map((title, k) => ({ title, wide: true, cell: (i) => rows[i][k + 3] || "–", text: (i) => rows[i][k + 3] })),
    ];
    const table = new Table({ label: "folded allocations by call site", test: "folded-table", columns, rows: rows.length,
      foot: [size(bytes, 4), count(n), `= ${count(bytes)} bytes`, "", "", ""] });
    return h("div", {}, h("div.head", {}, h("h3", {}, "Folded, by call site"), table.buttons()),
      h("p.note", {}, `${counted(n, "allocation")} of at most ${size(most)}, each gone within ${counted(events, "event")}, are not among the rows above; every total over time has them.`),
      table.box);
  }
}

/** A small whole number for each life, in the order of a key.
 * @param {Device} device @param {string} key @returns {Wholes} */
function ranks(device, key) {
  switch (key) {
    case "size": return device.si; // sizes are in order
    case "birth": return device.birth;
    case "life": {
      const found = new Uint32Array(device.nA);
      for (let a = 0; a < device.nA; a++) found[a] = device.death[a] - Math.max(device.birth[a] - 1, 0);
      return found;
    }
    case "step": return device.stepOf();
    case "category": return device.cat.map((k) => STACKING.indexOf(device.categories[k]) + 1);
    default: {
      const column = device.sites[`s_${key}`], texts = device.names.strings;
      const used = [...new Set(column)].sort((a, b) => (texts[a] < texts[b] ? -1 : 1));
      const order = new Map(used.map((id, i) => [id, i]));
      const site = Uint32Array.from(column, (id) => order.get(id) || 0);
      const found = new Uint32Array(device.nA);
      for (let a = 0; a < device.nA; a++) found[a] = site[device.site[a]];
      return found;
    }
  }
}
