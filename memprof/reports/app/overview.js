// The overview: bytes by category over the whole run or a part of it, exact at every
// zoom (bands.js), with what lies beside them: steps, phases, modules, reserved, cursor.

/** Where the overview's canvas has what. */
const MARGIN = { left: 68, right: 12, top: 6, bottom: 20 };
const BAND = 17; // height of the bands of steps, phases and modules

class Overview {
  constructor() {
    this.canvas = h("canvas", { role: "img", tabindex: 0, test: "overview",
      "aria-label": "memory by category over time" });
    this.over = h("canvas.over", { "aria-hidden": "true" });
    this.mini = h("canvas.mini", { role: "img", test: "minimap", tabindex: -1,
      "aria-label": "the whole run, with the part that is shown" });
    this.element = h("div.overview", {}, h("div.stack", {}, this.canvas, this.over), this.mini);
    /** @type {Columns | null} */
    this.columns = null;
    /** @type {HTMLCanvasElement} */
    this.miniSheet = h("canvas");
    this.miniKey = "";
    this.namesKey = "";
    /** @type {any} */
    this.moduleNames = null;
    this.top = 1;
    /** @type {number[] | undefined} the range that is being marked */
    this.range = undefined;
    /** @type {number | undefined} */
    this.hover = undefined;
    this.width = 800;
    this.height = 300;
    this._listen();
  }

  /** @returns {{x: number, y: number, w: number, h: number, top: number}} */
  box() {
    const bands = this.bands();
    const y = MARGIN.top + bands.length * BAND + 4;
    return { x: MARGIN.left, y, w: Math.max(this.width - MARGIN.left - MARGIN.right, 10),
      h: Math.max(this.height - y - MARGIN.bottom, 20), top: this.top || 1 };
  }

  bands() {
    const device = current();
    const found = [];
    if (!device) return found;
    if (device.meta.steps.number.length) found.push("steps");
    if (device.meta.phases.name.length) found.push("phases");
    if (device.segmentsSeen) found.push("free");
    if (device.hasText("module")) found.push("modules");
    return found;
  }

  /** @param {number} event @returns {number} */
  xOf(event) {
    const box = this.box(), at = /** @type {Device} */ (current()).place(view.axis, event);
    return box.x + ((at - view.v0) / (view.v1 - view.v0)) * box.w;
  }

  /** The event under a place: of its column the one that is shown. @param {number} x */
  eventAt(x) {
    const box = this.box(), cols = this.columns;
    if (!cols) return -1;
    const c = clamp(0, Math.floor(((x - box.x) / box.w) * cols.n), cols.n - 1);
    return cols.event[c];
  }

  draw() {
    const device = current();
    this.width = this.element.clientWidth || 800;
    const g = sized(this.canvas, this.width, this.height);
    if (!device) return this._first(g);
    const box = this.box();
    const n = Math.min(Math.floor(box.w), 2000);
    const cols = this.columns = columnsOf(device, view.v0, view.v1, n, view.axis, this.columns);
    const held = greatest(cols.total), reserved = new Float64Array(n);
    if (device.segmentsSeen) for (let c = 0; c < n; c++) reserved[c] = device.reserved(cols.event[c]) || 0;
    // Lines far above the bands are told, not drawn: else the bands were flat.
    const room = held * 4 || Infinity, above = [];
    let top = held;
    const fit = (/** @type {string} */ name, /** @type {number} */ bytes) => {
      if (bytes <= room) top = Math.max(top, bytes);
      else above.push(`${name} up to ${size(bytes)}`);
    };
    if (device.segmentsSeen) fit("reserved", greatest(reserved));
    const used = device.used, shown = used ? this._used(device, used) : [];
    if (used && shown.length) fit(used.title, greatest(shown.map((p) => p[1])));
    const limit = device.meta.total_bytes;
    if (limit && limit < top * 1.6) top = Math.max(top, limit);
    this.top = box.top = top * 1.05 || 1;
    this._grid(g, box);
    drawBands(g, cols, box, device.categories, view.marked);
    labelBands(g, cols, box, device.categories);
    const y = (/** @type {number} */ bytes) => box.y + box.h - (bytes / box.top) * box.h;
    const line = (/** @type {(c: number) => number} */ value, colour, dash, wide) => {
      g.beginPath();
      let high = NaN; // only where it changes: a line through each pixel costs a frame
      for (let c = 0; c < n; c++) {
        const next = y(value(c)), x = box.x + (c * box.w) / n;
        if (next === high) continue;
        if (c) g.lineTo(x, high);
        g.lineTo(x, next);
        high = next;
      }
      g.lineTo(box.x + box.w, high);
      g.setLineDash(dash);
      g.strokeStyle = colour;
      g.lineWidth = wide;
      g.stroke();
      g.setLineDash([]);
    };
    if (cols.exact === false || device.nE > n * 2) line((c) => cols.low[c], colours.text, [], 0.5);
    // What is above the top does not run into the bands.
    g.save();
    g.beginPath();
    g.rect(box.x, box.y - 1, box.w, box.h + 2);
    g.clip();
    if (device.segmentsSeen) line((c) => reserved[c], colours.text, [], 1.5);
    if (shown.length) this._drawUsed(g, box, shown, y);
    g.restore();
    g.fillStyle = colours.text;
    g.textBaseline = "bottom";
    if (device.segmentsSeen && reserved[0] <= top * 1.05) g.fillText("reserved", box.x + 6, Math.max(y(reserved[0]) - 3, box.y + 12));
    if (used && shown.length && shown[0][1] <= top * 1.05) g.fillText(used.title, clamp(box.x + 6, shown[0][0] + 6, box.x + box.w - 90), Math.max(y(shown[0][1]) - 5, box.y + 12));
    if (above.length) {
      g.textBaseline = "top";
      g.fillText(`above the top: ${above.join(", ")}`, box.x + 6, box.y + 3);
    }
    if (limit && limit <= top) {
      line(() => limit, colours.limit, [6, 4], 1.5);
      g.fillStyle = colours.limit;
      g.textBaseline = "top";
      g.fillText(`the device's memory, ${size(limit)}`, box.x + 90, y(limit) + 3);
    }
    if (view.hits) this._hits(g, device, cols, box, line);
    this._bands(g, device, cols, box, reserved);
    for (const e of device.oom) {
      const x = this.xOf(e);
      if (x < box.x || x > box.x + box.w) continue;
      g.fillStyle = colours.limit;
      g.fillRect(x - 1, box.y, 2, box.h);
      g.fillText("out of memory", x + 4, box.y + 12);
    }
    this.drawMini(device);
    this.drawOver();
    return undefined;
  }

  /** The first picture: from the core block, before all else is unpacked.
   * @param {CanvasRenderingContext2D} g */
  _first(g) {
    const K = meta.categories.length, n = core.c_us.length;
    const box = this.box();
    const cols = { n: Math.floor(box.w), event: new Int32Array(0), total: new Float64Array(0),
      low: new Float64Array(0), parts: new Float64Array(Math.floor(box.w) * K), exact: true };
    const span = Math.max(core.c_us[n - 1], 1);
    let top = 0;
    for (let c = 0, i = 0; c < cols.n; c++) {
      while (i + 1 < n && (core.c_us[i + 1] / span) * cols.n <= c) i++;
      let total = 0;
      for (let k = 0; k < K; k++) total += cols.parts[c * K + k] = core[`c_${k}`][i];
      top = Math.max(top, total);
    }
    box.top = this.top = top * 1.05 || 1;
    this._grid(g, box);
    drawBands(g, cols, box, meta.categories, view.marked);
  }

  /** @param {CanvasRenderingContext2D} g @param {any} box */
  _grid(g, box) {
    g.textBaseline = "middle";
    g.textAlign = "right";
    g.lineWidth = 1;
    for (const at of byteTicks(box.top, Math.max(2, box.h / 40))) {
      const y = Math.round(box.y + box.h - (at / box.top) * box.h) + 0.5;
      g.strokeStyle = at ? colours.grid : colours.axis;
      g.beginPath();
      g.moveTo(box.x, y);
      g.lineTo(box.x + box.w, y);
      g.stroke();
      g.fillStyle = colours.muted;
      g.fillText(at ? size(at) : "0", box.x - 8, y);
    }
    g.textAlign = "center";
    g.textBaseline = "top";
    const wanted = Math.max(2, Math.floor(box.w / 110));
    const marks = ticks(view.v0, view.v1, wanted).filter((at) => view.axis !== "step" || view.v1 - view.v0 < 2 || at === Math.round(at));
    for (const at of marks) {
      const x = box.x + ((at - view.v0) / (view.v1 - view.v0)) * box.w;
      g.strokeStyle = colours.axis;
      g.beginPath();
      g.moveTo(x, box.y + box.h);
      g.lineTo(x, box.y + box.h + 4);
      g.stroke();
      const text = view.axis === "time" ? timeMark(at, marks.length > 1 ? marks[1] - marks[0] : 1)
        : view.axis === "event" ? count(Math.round(at)) : stepMark(at);
      g.fillStyle = colours.muted;
      const wide = g.measureText(text).width / 2;
      g.fillText(text, clamp(box.x + wide, x, box.x + box.w - wide), box.y + box.h + 6);
    }
    g.textAlign = "left";
  }

  /** Samples of what the driver says, in view and one to each side: x and bytes.
   * @param {Device} device @param {any} used @returns {number[][]} */
  _used(device, used) {
    const box = this.box(), scale = box.w / (view.v1 - view.v0);
    const at = used.us.map((/** @type {number} */ us) => device.timePlace(view.axis, us));
    const first = Math.max(lastBefore(at, view.v0), 0), last = Math.min(lastAtMost(at, view.v1) + 1, at.length - 1);
    const found = [];
    for (let i = first; i <= last; i++) {
      if (used.bytes[i] >= 0) found.push([box.x + (at[i] - view.v0) * scale, used.bytes[i]]);
    }
    return found;
  }

  /** Dots where it was measured; the dashes between them are no measurement. */
  _drawUsed(g, box, shown, y) {
    g.strokeStyle = g.fillStyle = colours.text;
    g.lineWidth = 1;
    g.setLineDash([2, 4]);
    g.beginPath();
    for (const [x, bytes] of shown) g.lineTo(x, y(bytes));
    g.stroke();
    g.setLineDash([]);
    if (shown.length > box.w / 3) return; // denser than dots can be told apart
    g.beginPath();
    for (const [x, bytes] of shown) {
      g.moveTo(x + 3, y(bytes));
      g.arc(x, y(bytes), 3, 0, 7);
    }
    g.fill();
  }

  /** Bytes of what the filter found, as a line. */
  _hits(g, device, cols, box, line) {
    const level = hitLevels(device);
    const at = new Float64Array(cols.n);
    for (let c = 0; c < cols.n; c++) at[c] = level.at(cols.event[c]);
    line((c) => at[c], colours.page, [], 4);
    line((c) => at[c], colours.focus, [], 2);
  }

  /** The bands above: steps, phases, modules. */
  _bands(g, device, cols, box, reserved) {
    const { steps, phases } = device.meta;
    const x = (/** @type {number} */ at) => box.x + ((at - view.v0) / (view.v1 - view.v0)) * box.w;
    const cell = (from, to, row, text, shade) => {
      const x0 = Math.max(x(from), box.x), x1 = Math.min(x(to), box.x + box.w);
      if (x1 - x0 < 0.5) return;
      const y = MARGIN.top + row * BAND;
      g.fillStyle = shade ? colours.grid : colours.panel;
      g.fillRect(x0, y, Math.max(x1 - x0 - (x1 - x0 > 3 ? 1 : 0), 0.5), BAND - 2);
      const shown = cut(g, text, x1 - x0 - 6);
      if (shown) {
        g.fillStyle = colours.text;
        g.fillText(shown, x0 + 3, y + BAND / 2 - 0.5);
      }
    };
    g.textBaseline = "middle";
    this.bands().forEach((name, row) => {
      g.fillStyle = colours.muted;
      g.textAlign = "right";
      g.fillText(name === "phases" ? "phase" : name === "free" ? "unused" : name, box.x - 8, MARGIN.top + row * BAND + BAND / 2);
      g.textAlign = "left";
      if (name === "steps") {
        steps.number.forEach((number, k) => {
          if (view.axis === "event") cell(steps.begin[k], steps.end[k] + 1, row, String(number), k % 2);
          else cell(device.timePlace(view.axis, steps.us[k]), device.timePlace(view.axis, steps.end_us[k]), row, String(number), k % 2);
        });
      } else if (name === "phases") {
        for (let i = 0; i < phases.name.length; i++) {
          const a = device.timePlace(view.axis, phases.us[i]), b = device.timePlace(view.axis, phases.end_us[i]);
          if (b < view.v0 || a > view.v1) continue;
          cell(a, b, row, meta.phases[phases.name[i]], phases.name[i] % 2);
        }
      } else if (name === "free") {
        // The share of what is reserved that holds nothing, column by column.
        const y = MARGIN.top + row * BAND, high = BAND - 2;
        g.fillStyle = colours.panel;
        g.fillRect(box.x, y, box.w, high);
        g.fillStyle = colours.overhead;
        g.beginPath();
        g.moveTo(box.x, y + high);
        let last = NaN;
        for (let c = 0; c < cols.n; c++) {
          const share = reserved[c] ? clamp(0, 1 - cols.total[c] / reserved[c], 1) : 0;
          const up = Math.round((y + high * (1 - share)) * 4) / 4, x = box.x + (c * box.w) / cols.n;
          if (up === last) continue;
          if (c) g.lineTo(x, last);
          g.lineTo(x, up);
          last = up;
        }
        g.lineTo(box.x + box.w, last);
        g.lineTo(box.x + box.w, y + high);
        g.fill();
      } else {
        this._modules(g, device, cols, box, row, cell);
      }
    });
  }

  /** Of each column the module that the last block before it was born in. */
  _modules(g, device, cols, box, row, cell) {
    const { site, birth, nA } = device, { names, of } = this._moduleNames(device);
    const unit = (view.v1 - view.v0) / cols.n;
    let run = 0, from = 0, shade = 0, a = lastAtMost(birth, cols.event[0] + 1);
    for (let c = 0; c <= cols.n; c++) {
      let name = 0;
      if (c < cols.n) {
        const until = cols.event[c] + 1;
        // Columns go forward: mostly the next births are near.
        for (let i = 0; i < 16 && a + 1 < nA && birth[a + 1] <= until; i++) a++;
        if (a + 1 < nA && birth[a + 1] <= until) a = lastAtMost(birth, until);
        name = a >= device.old && a < nA ? of[site[a]] : 0;
      }
      if (name !== run || c === cols.n) {
        if (run) cell(view.v0 + from * unit, view.v0 + c * unit, row, names[run], shade++ % 2);
        run = name;
        from = c;
      }
    }
  }

  /** Of each site its module, cut at the chosen depth, as a number; 0: none.
   * @param {Device} device */
  _moduleNames(device) {
    const key = `${view.depth} ${device.meta.name}`;
    if (this.namesKey !== key) {
      const texts = device.names.strings, names = [""], known = new Map([["", 0]]);
      const of = wholesOf(texts.length).from(device.sites.s_module, (id) => {
        const name = texts[id].split(".", view.depth).join(".");
        let number = known.get(name);
        if (number === undefined) {
          known.set(name, number = names.length);
          names.push(name);
        }
        return number;
      });
      this.namesKey = key;
      this.moduleNames = { names, of };
    }
    return this.moduleNames;
  }

  /** @param {Device} device */
  drawMini(device) {
    const high = 34;
    const g = sized(this.mini, this.width, high);
    const w = Math.max(this.width - MARGIN.left - MARGIN.right, 10);
    const whole = wholeView(device);
    const n = Math.min(Math.floor(w), 1000);
    const key = `${n} ${view.axis} ${device.meta.name}`;
    if (this.miniKey !== key) { // drawn once, kept as a picture
      const cols = columnsOf(device, whole[0], whole[1], n, view.axis);
      let top = 1;
      for (let c = 0; c < n; c++) top = Math.max(top, cols.total[c]);
      const sheet = sized(this.miniSheet, w, high);
      drawBands(sheet, cols, { x: 0, y: 2, w, h: high - 4, top }, device.categories, false, false);
      this.miniKey = key;
    }
    g.drawImage(this.miniSheet, MARGIN.left, 0, w, high);
    const x = (/** @type {number} */ at) => MARGIN.left + ((at - whole[0]) / (whole[1] - whole[0])) * w;
    const x0 = x(view.v0), x1 = Math.max(x(view.v1), x0 + 3);
    g.fillStyle = colours.page;
    g.globalAlpha = 0.65;
    g.fillRect(MARGIN.left, 0, x0 - MARGIN.left, high);
    g.fillRect(x1, 0, MARGIN.left + w - x1, high);
    g.globalAlpha = 1;
    g.strokeStyle = colours.focus;
    g.lineWidth = 1.5;
    g.strokeRect(x0, 1, x1 - x0, high - 2);
    g.fillStyle = colours.muted;
    g.textAlign = "right";
    g.textBaseline = "middle";
    g.fillText("whole", MARGIN.left - 8, high / 2);
    g.textAlign = "left";
  }

  /** What moves: cursors, the peak, the range that is being marked. */
  drawOver() {
    const device = current();
    const g = sized(this.over, this.width, this.height);
    if (!device) return;
    const box = this.box();
    const inside = (/** @type {number} */ x) => x >= box.x - 0.5 && x <= box.x + box.w + 0.5;
    const mark = (/** @type {number} */ event, /** @type {string} */ name) => {
      const x = Math.round(this.xOf(event)) + 0.5;
      if (!inside(x)) return;
      // Above the bands a line, inside of them dashes: a state that lasts one pixel,
      // as peaks do, must not vanish behind its own mark.
      const head = clamp(box.y, box.y + box.h - (device.totals(event).total / box.top) * box.h - 5, box.y + box.h);
      g.strokeStyle = colours.page;
      g.lineWidth = 3.5;
      g.beginPath();
      g.moveTo(x, box.y);
      g.lineTo(x, head);
      g.stroke();
      g.strokeStyle = colours.focus;
      g.lineWidth = 1.5;
      g.stroke();
      g.beginPath();
      g.moveTo(x, head + 8);
      g.lineTo(x, box.y + box.h);
      g.setLineDash([3, 9]);
      g.stroke();
      g.setLineDash([]);
      g.fillStyle = colours.focus;
      g.fillRect(x - 7, box.y + box.h - 1, 14, 15);
      g.fillStyle = colours.page;
      g.textAlign = "center";
      g.textBaseline = "middle";
      g.fillText(name, x, box.y + box.h + 7);
      g.textAlign = "left";
    };
    if (view.b !== null) mark(view.b, "B");
    mark(view.cursor, "A");
    const peak = this.xOf(device.meta.peak.event);
    if (inside(peak)) {
      const y = Math.max(box.y + box.h - (device.meta.peak.bytes / box.top) * box.h - 4, box.y);
      g.strokeStyle = colours.page;
      g.fillStyle = colours.text;
      g.lineWidth = 1.5;
      g.beginPath(); // a mark that points at the peak and leaves it free
      g.moveTo(peak, y + 2);
      g.lineTo(peak - 5, y - 7);
      g.lineTo(peak + 5, y - 7);
      g.closePath();
      g.fill();
      g.stroke();
    }
    if (this.range) {
      const [from, to] = this.range;
      g.globalAlpha = 0.2;
      g.fillStyle = colours.focus;
      g.fillRect(Math.min(from, to), box.y, Math.abs(to - from), box.h);
      g.globalAlpha = 1;
    }
    if (this.hover !== undefined && this.columns) {
      const x = this.hover, event = this.eventAt(x);
      g.fillStyle = colours.axis;
      g.fillRect(x, box.y, 1, box.h);
      const { total } = device.totals(event);
      const text = `${size(total, 4)} at ${time(device.at(event))}`;
      const wide = g.measureText(text).width + 12;
      const at = x + wide + 8 > this.width ? x - wide - 4 : x + 4;
      g.fillStyle = colours.panel;
      g.strokeStyle = colours.axis;
      g.lineWidth = 1;
      g.fillRect(at, box.y + 4, wide, 20);
      g.strokeRect(at + 0.5, box.y + 4.5, wide, 20);
      g.fillStyle = colours.text;
      g.textBaseline = "middle";
      g.fillText(text, at + 6, box.y + 14.5);
    }
  }

  /** The category and event at a place of the canvas. @param {number} x @param {number} y */
  hit(x, y) {
    const device = current(), box = this.box(), cols = this.columns;
    if (!device || !cols || x < box.x || x > box.x + box.w || y < box.y || y > box.y + box.h) return null;
    const c = clamp(0, Math.floor(((x - box.x) / box.w) * cols.n), cols.n - 1);
    const bytes = ((box.y + box.h - y) / box.h) * box.top;
    let sum = 0, category = null;
    for (const name of STACKING) {
      sum += cols.parts[c * device.K + device.categories.indexOf(name)];
      if (bytes < sum) {
        category = name;
        break;
      }
    }
    return { event: cols.event[c], category };
  }

  _listen() {
    const canvas = this.canvas;
    const place = (/** @type {PointerEvent | WheelEvent | MouseEvent} */ event) => {
      const rect = canvas.getBoundingClientRect();
      return { x: event.clientX - rect.left, y: event.clientY - rect.top };
    };
    const toView = (/** @type {number} */ x) => {
      const box = this.box();
      return view.v0 + ((x - box.x) / box.w) * (view.v1 - view.v0);
    };
    canvas.addEventListener("wheel", (event) => {
      if (!current()) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        pan(((event.deltaX / this.box().w) * (view.v1 - view.v0)));
      } else zoom(toView(place(event).x), 1.0015 ** event.deltaY);
    }, { passive: false });
    /** @type {any} */
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button || !current()) return;
      const { x, y } = place(event);
      drag = { x, y, v0: view.v0, v1: view.v1, moved: false, marking: event.shiftKey };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const { x } = place(event);
      if (!drag) {
        const box = this.box();
        this.hover = x >= box.x && x <= box.x + box.w ? x : undefined;
        later("over");
        return;
      }
      if (Math.abs(x - drag.x) > 3) drag.moved = true;
      if (!drag.moved) return;
      if (drag.marking) {
        this.range = [drag.x, x];
        later("over");
      } else {
        const by = ((x - drag.x) / this.box().w) * (drag.v1 - drag.v0);
        setView(drag.v0 - by, drag.v1 - by, false);
      }
    });
    const done = (/** @type {PointerEvent} */ event) => {
      if (!drag) return;
      const was = drag;
      drag = null;
      if (this.range) {
        const [from, to] = this.range.map(toView);
        this.range = undefined;
        pushView(was.v0, was.v1);
        setView(Math.min(from, to), Math.max(from, to), true);
      } else if (!was.moved && event.type === "pointerup") setCursor(this.eventAt(place(event).x));
      else if (was.moved) {
        pushView(was.v0, was.v1);
        saveState(true);
      }
    };
    canvas.addEventListener("pointerup", done);
    canvas.addEventListener("pointercancel", done);
    canvas.addEventListener("pointerleave", () => {
      this.hover = undefined;
      later("over");
    });
    canvas.addEventListener("dblclick", (event) => {
      const device = current();
      if (!device) return;
      const k = device.step(this.eventAt(place(event).x));
      if (k >= 0) zoomToStep(k);
    });
    const brush = (/** @type {PointerEvent} */ event) => {
      const device = current();
      if (!device || !(event.buttons & 1)) return;
      const rect = this.mini.getBoundingClientRect();
      const w = Math.max(this.width - MARGIN.left - MARGIN.right, 10);
      const whole = wholeView(device);
      const at = whole[0] + ((event.clientX - rect.left - MARGIN.left) / w) * (whole[1] - whole[0]);
      const half = (view.v1 - view.v0) / 2;
      setView(at - half, at + half, false);
    };
    this.mini.addEventListener("pointerdown", brush);
    this.mini.addEventListener("pointermove", brush);
  }
}
