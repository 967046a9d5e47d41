// Fragmentation and Lanes: where in the address space things lie.

/** Segments that are there after an event, and what of each is used.
 * @param {Device} device @param {number} event */
function segmentsAt(device, event) {
  const addr = /** @type {Block} */ (device.addr), unit = addr.meta.unit;
  /** @type {any[]} */
  const found = [];
  for (let i = 0; i < addr.seg_off.length; i++) {
    if (addr.seg_birth[i] > event + 1 || (addr.seg_death[i] !== ALIVE && addr.seg_death[i] <= event + 1)) continue;
    found.push({ from: addr.seg_off[i] * unit, size: addr.seg_size[i], used: 0, blocks: [],
      stream: device.names.strings[addr.seg_stream[i]], mapped: Boolean(addr.seg_mapped[i]), gap: 0 });
  }
  found.sort((a, b) => a.from - b.from);
  // Pages of one expandable segment lie side by side: they are one strip.
  /** @type {any[]} */
  const strips = [];
  for (const one of found) {
    const before = strips[strips.length - 1];
    const split = addr.stretch.includes(one.from / unit);
    if (before && !split && one.mapped && before.mapped && before.stream === one.stream
      && before.from + before.size === one.from) before.size += one.size;
    else strips.push({ ...one, used: 0, blocks: [], gap: 0 });
  }
  const froms = strips.map((strip) => strip.from);
  let outside = 0;
  for (const a of device.live(event)) {
    if (addr.off[a] === ALIVE) {
      outside += device.bytes(a);
      continue;
    }
    const at = addr.off[a] * unit, strip = strips[lastAtMost(froms, at)];
    if (!strip || at >= strip.from + strip.size) {
      outside += device.bytes(a);
      continue;
    }
    strip.used += device.bytes(a);
    strip.blocks.push({ a, at: at - strip.from, size: device.bytes(a) });
  }
  for (const strip of strips) {
    strip.blocks.sort((x, y) => x.at - y.at);
    let end = 0;
    for (const block of strip.blocks) {
      strip.gap = Math.max(strip.gap, block.at - end);
      end = Math.max(end, block.at + Math.ceil(block.size / 512) * 512);
    }
    strip.gap = Math.max(strip.gap, strip.size - end);
  }
  return { strips, outside };
}

class FragTab {
  constructor() {
    this.element = h("div.frag");
    this.figure = new Figure({ label: "segments: used and free parts; numbers in the table", test: "segments",
      height: 260, draw: (g, w, t, put) => this._draw(g, w, t, put) });
    this.sorted = 2;
    this.down = true;
  }

  render() {
    const device = /** @type {Device} */ (current());
    const { strips, outside } = segmentsAt(device, view.cursor);
    const reserved = strips.reduce((sum, strip) => sum + strip.size, 0);
    const used = strips.reduce((sum, strip) => sum + strip.used, 0);
    const gap = greatest(strips.map((strip) => strip.gap));
    const waste = reserved - used;
    const keys = ["size", "used", "waste", "gap", "n"];
    const rows = strips.map((strip, i) => ({ ...strip, waste: strip.size - strip.used, n: strip.blocks.length, i }));
    rows.sort((a, b) => (a[keys[this.sorted]] - b[keys[this.sorted]]) * (this.down ? -1 : 1));
    this.rows = rows;
    /** @type {TableColumn[]} */
    const columns = [["segment", "size"], ["used", "used"], ["not used", "waste"], ["largest gap", "gap"]].map(([title, key]) => ({
      title, number: true, cell: (i) => size(rows[i][key], 4), text: (i) => String(rows[i][key]) }));
    columns.push({ title: "blocks", number: true, cell: (i) => count(rows[i].n), text: (i) => String(rows[i].n) });
    columns.push({ title: "used %", number: true, sort: false, cell: (i) => percent(rows[i].used, rows[i].size), text: (i) => percent(rows[i].used, rows[i].size) });
    columns.push({ title: "stream", number: true, sort: false, cell: (i) => rows[i].stream, text: (i) => rows[i].stream });
    // A few small blocks keep a large segment from being given back.
    const pins = (row) => row.n > 0 && row.n <= 3 && row.used < row.size / 10;
    columns.push({ title: "pinned by", sort: false, wide: true, text: (i) => (pins(rows[i]) ? rows[i].blocks.map((b) => device.text("line", b.a) || device.text("owner", b.a) || device.text("op", b.a)).join("; ") : ""),
      cell: (i) => (pins(rows[i]) ? h("span", {}, rows[i].blocks.map((b) => h("button.link", { onclick: (e) => { e.stopPropagation(); showDetail(device, b.a); } },
        device.text("line", b.a) || device.text("owner", b.a) || device.text("op", b.a) || "a block"))) : "–") });
    const table = new Table({ label: "segments at the cursor", test: "frag-table", columns, rows: rows.length, sorted: this.sorted,
      down: this.down, onsort: (i, down) => { this.sorted = i; this.down = down; later("tab"); },
      onpick: (i) => rows[i].blocks.length && showDetail(device, rows[i].blocks[0].a),
      foot: [size(reserved, 4), size(used, 4), size(waste, 4), size(gap, 4), count(rows.reduce((s, r) => s + r.n, 0)), percent(used, reserved), "", ""] });
    this.element.replaceChildren(
      h("div.head", {}, h("h2", {}, "Fragmentation ", h("span.muted", {}, `at ${time(device.at(view.cursor))}`)), table.buttons()),
      h("p.note", {}, `${counted(strips.length, "segment")} reserved, ${size(reserved, 4)}; ${size(used, 4)} used. `
        + `A defragmenter could give at most ${size(waste, 4)}; the largest gap is ${size(gap, 4)}`
        + `${waste > 0 ? `, ${percent(gap, waste)} % of it` : ""}. Gaps are counted behind each block's end rounded to 512 bytes; torch may round more.`
        + (device.meta.folded ? ` ${size(device.foldedAt(view.cursor).reduce((sum, part) => sum + part.bytes, 0), 4)} of folded blocks lie somewhere in what is not used here.` : "")
        + (outside ? ` ${size(outside, 4)} lie in no segment that was seen.` : "")),
      this.figure.element, table.box);
    this.figure.o.height = Math.min(60 + rows.length * 16, 420);
    this.figure.draw();
  }

  _draw(g, width, height, put) {
    const device = /** @type {Device} */ (current());
    const rows = /** @type {any[]} */ (this.rows).slice(0, 24);
    const most = greatest(rows.map((row) => row.size)) || 1;
    const w = width - MARGIN.left - MARGIN.right, high = Math.min((height - 26) / Math.max(rows.length, 1), 22);
    const mask = view.hits && view.hits.mask;
    rows.forEach((row, i) => {
      const y = 4 + i * high, wide = Math.max((row.size / most) * w, 3), t = Math.max(high - 3, 2);
      g.fillStyle = colours.muted;
      g.textAlign = "right";
      g.textBaseline = "middle";
      if (high > 11) g.fillText(size(row.size), MARGIN.left - 8, y + t / 2);
      g.textAlign = "left";
      g.fillStyle = colours.panel;
      g.fillRect(MARGIN.left, y, wide, t);
      g.strokeStyle = colours.axis;
      g.lineWidth = 1;
      g.strokeRect(MARGIN.left + 0.5, y + 0.5, wide - 1, t - 1);
      put(MARGIN.left, y, wide, t, `${size(row.size, 4)}, used ${percent(row.used, row.size)} %`);
      for (const block of row.blocks) {
        const x = MARGIN.left + (block.at / row.size) * wide, bw = Math.max((block.size / row.size) * wide, 0.7);
        g.globalAlpha = mask && !mask[block.a] ? 0.2 : 1;
        g.fillStyle = fill(g, device.text("category", block.a), view.marked);
        g.fillRect(x, y + 1, bw, t - 2);
        if (bw > 2) put(x, y, bw, t, `${size(block.size, 4)} ${words(device.text("category", block.a))}\n${device.text("line", block.a) || device.text("owner", block.a)}`, () => showDetail(device, block.a));
      }
      g.globalAlpha = 1;
    });
    g.fillStyle = colours.muted;
    g.textBaseline = "bottom";
    g.fillText(`${counted(/** @type {any[]} */ (this.rows).length, "segment")} in the table's order${/** @type {any[]} */ (this.rows).length > 24 ? ", the first 24 drawn" : ""}; empty = free or rounding`, MARGIN.left, height - 2);
  }
}

class LanesTab {
  constructor() {
    this.element = h("div.lanes");
    this.canvas = h("canvas", { role: "img", test: "lanes", "aria-label": "address over time; the blocks are in the table of all allocations" });
    this.wrap = h("figure", {}, this.canvas);
    this.canvas.addEventListener("click", (event) => {
      const rect = this.canvas.getBoundingClientRect();
      const a = this._hit(event.clientX - rect.left, event.clientY - rect.top);
      if (a >= 0) showDetail(/** @type {Device} */ (current()), a);
    });
    this.canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const rect = this.canvas.getBoundingClientRect(), w = rect.width - MARGIN.left - MARGIN.right;
      zoom(view.v0 + ((event.clientX - rect.left - MARGIN.left) / w) * (view.v1 - view.v0), 1.0015 ** event.deltaY);
    }, { passive: false });
  }

  render() {
    const device = /** @type {Device} */ (current()), addr = /** @type {Block} */ (device.addr);
    this.element.replaceChildren(
      h("div.head", {}, h("h2", {}, "Lanes ", h("span.muted", {}, "address over time, in the overview's range")),
        h("button", { onclick: () => change({ tab: "all", q: view.q }) }, "Table of all allocations")),
      h("p.note", {}, `${size(addr.meta.total, 4)} of address space that torch took, what it never took left out. A block is a box from birth to death; empty is free${device.meta.folded ? ", or held by blocks that are folded" : ""}.`),
      this.wrap);
    this.draw();
  }

  /** Boxes as pixels: small ones are single pixels, so a million take one pass. */
  draw() {
    const device = /** @type {Device} */ (current()), addr = /** @type {Block} */ (device.addr);
    const width = this.wrap.clientWidth, height = 380;
    if (!width) return;
    const g = sized(this.canvas, width, height);
    const w = Math.floor(width - MARGIN.left - MARGIN.right), t = height - 12;
    const unit = addr.meta.unit, total = addr.meta.total;
    const image = g.createImageData(w, t), pixels = new Uint32Array(image.data.buffer);
    const paint = device.categories.map((name) => rgba(colours[name] || colours.unknown));
    const dim = device.categories.map((name) => (rgba(colours[name]) & 0x00ffffff) | 0x40000000);
    const free = rgba(colours.grid);
    const scale = w / (view.v1 - view.v0), rise = t / total;
    const places = device.places(view.axis);
    const x = (/** @type {number} */ e) => ((places ? (e < 0 ? 0 : e >= device.nE ? Infinity : places[e]) : e) - view.v0) * scale;
    const rect = (x0, x1, y0, y1, colour) => {
      const a = clamp(0, Math.floor(x0), w - 1), b = clamp(a + 1, Math.ceil(Math.min(x1, w)), w);
      const c = clamp(0, Math.floor(t - y1), t - 1), d = clamp(c + 1, Math.ceil(t - y0), t);
      for (let row = c; row < d; row++) pixels.fill(colour, row * w + a, row * w + b);
    };
    for (let i = 0; i < addr.seg_off.length; i++) {
      const x0 = x(addr.seg_birth[i] - 1), x1 = addr.seg_death[i] === ALIVE ? w : x(addr.seg_death[i] - 1);
      if (x1 < 0 || x0 > w) continue;
      rect(Math.max(x0, 0), x1, addr.seg_off[i] * unit * rise, (addr.seg_off[i] * unit + addr.seg_size[i]) * rise, free);
    }
    const mask = view.hits && view.hits.mask;
    this.drawn = 0;
    for (let a = 0; a < device.nA; a++) {
      const off = addr.off[a];
      if (off === ALIVE) continue;
      const x0 = x(device.birth[a] - 1);
      if (x0 > w) break;
      const x1 = device.death[a] >= device.nE ? w : x(device.death[a]);
      if (x1 < 0) continue;
      const k = device.cat[a];
      rect(Math.max(x0, 0), x1, off * unit * rise, (off * unit + device.bytes(a)) * rise, mask && !mask[a] ? dim[k] : paint[k]);
      this.drawn += 1;
    }
    // Through a bitmap: putImageData knows nothing of the device's pixels.
    const sheet = document.createElement("canvas");
    sheet.width = w;
    sheet.height = t;
    /** @type {CanvasRenderingContext2D} */ (sheet.getContext("2d")).putImageData(image, 0, 0);
    g.imageSmoothingEnabled = false;
    g.drawImage(sheet, MARGIN.left, 4);
    g.strokeStyle = colours.axis;
    g.lineWidth = 1;
    g.strokeRect(MARGIN.left - 0.5, 3.5, w + 1, t + 1);
    g.strokeStyle = colours.page;
    for (const at of addr.stretch) {
      const y = 4 + t - at * unit * rise;
      g.beginPath();
      g.moveTo(MARGIN.left, y);
      g.lineTo(MARGIN.left + w, y);
      g.stroke();
    }
    g.fillStyle = colours.muted;
    g.textAlign = "right";
    g.textBaseline = "middle";
    g.fillText(size(total), MARGIN.left - 8, 10);
    g.fillText("0", MARGIN.left - 8, height - 12);
    g.textAlign = "left";
    const cursor = MARGIN.left + x(view.cursor);
    if (cursor >= MARGIN.left && cursor <= MARGIN.left + w) {
      g.fillStyle = colours.focus;
      g.fillRect(cursor - 1, 4, 2, t);
    }
  }

  /** The life at a place of the canvas; -1: none. @param {number} px @param {number} py */
  _hit(px, py) {
    const device = /** @type {Device} */ (current()), addr = /** @type {Block} */ (device.addr);
    const w = this.wrap.clientWidth - MARGIN.left - MARGIN.right, t = 368;
    const at = ((t + 4 - py) / t) * addr.meta.total;
    const value = view.v0 + ((px - MARGIN.left) / w) * (view.v1 - view.v0);
    const event = device.eventAt(view.axis, value);
    for (const a of device.live(event)) {
      const from = addr.off[a] * addr.meta.unit;
      if (addr.off[a] !== ALIVE && from <= at && at < from + device.bytes(a)) return a;
    }
    return -1;
  }
}

/** @param {string} hex @returns {number} a little-endian pixel */
function rgba(hex) {
  const n = parseInt(hex.slice(1), 16);
  return (0xff000000 | ((n & 255) << 16) | (n & 0xff00) | (n >> 16)) >>> 0;
}
