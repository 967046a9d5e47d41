// Columns of pixels: of each the state that was highest in it, so that its bands always
// sum to a total that existed; and how their bands are drawn and named.

/** @typedef {{n: number, event: Int32Array, total: Float64Array, low: Float64Array,
 *   parts: Float64Array, exact: boolean}} Columns */

/**
 * Of each of N columns of the view the state that was highest.
 * @param {Device} device @param {number} v0 @param {number} v1 view, in the axis' units
 * @param {number} n @param {string} axis @param {Columns | null} [old] filled again, if
 * it is as long, rather than made anew for each picture
 * @returns {Columns}
 */
function columnsOf(device, v0, v1, n, axis, old) {
  const { K, nE } = device, t = device.places(axis);
  const again = old && old.n === n && old.parts.length === n * K ? old : null;
  const out = again || { n, event: new Int32Array(n), total: new Float64Array(n),
    low: new Float64Array(n), parts: new Float64Array(n * K), exact: true };
  out.exact = true;
  out.event.fill(-2);
  const scale = n / (v1 - v0);
  const of = t ? (/** @type {number} */ e) => Math.floor((t[e] - v0) * scale)
    : (/** @type {number} */ e) => Math.floor((e - v0) * scale);
  const first = t ? lastBefore(t, v0) + 1 : Math.max(0, Math.ceil(v0));
  const last = t ? lastAtMost(t, v1) : Math.min(nE - 1, Math.floor(v1));
  const start = device.totals(first - 1);
  let column = 0;
  // What was there when the view begins is the first column's first state.
  out.event[0] = first - 1;
  out.total[0] = out.low[0] = start.total;
  out.parts.set(start.parts, 0);
  const carry = start.parts.slice();
  let carried = start.total, carriedEvent = first - 1;
  const enter = (/** @type {number} */ c) => {
    while (column < c) {
      column += 1;
      out.event[column] = carriedEvent;
      out.total[column] = out.low[column] = carried;
      out.parts.set(carry, column * K);
    }
  };
  if (last - first <= EXACT) {
    // As Device.replay, but for what only the first event of a column needs.
    const { nA, nF, birth, death, deaths, si, sizes, cat, foldEvent, foldCat, foldBytes } = device;
    let b = first > 0 ? lastAtMost(birth, first) + 1 : device.old;
    let d = device.nextDeath[Math.floor(first / BLOCK)];
    while (d < nA && death[deaths[d]] < first) d++;
    let f = device.nextFold[Math.floor(first / BLOCK)];
    while (f < nF && foldEvent[f] < first) f++;
    let total = carried;
    const { total: tops, low: lows, parts, event: events } = out;
    for (let e = first; e <= last; e++) {
      let c = of(e);
      if (c > column) {
        if (c >= n) c = n - 1;
        carried = total;
        carriedEvent = e - 1;
        enter(c);
      } else c = column;
      for (; d < nA && death[deaths[d]] === e; d++) {
        const a = deaths[d], s = sizes[si[a]];
        carry[cat[a]] -= s;
        total -= s;
      }
      for (; b < nA && birth[b] === e + 1; b++) {
        const s = sizes[si[b]];
        carry[cat[b]] += s;
        total += s;
      }
      for (; f < nF && foldEvent[f] === e; f++) {
        carry[foldCat[f]] += foldBytes[f];
        total += foldBytes[f];
      }
      if (total > tops[c]) {
        tops[c] = total;
        events[c] = e;
        for (let k = 0, at = c * K; k < K; k++) parts[at + k] = carry[k];
      }
      if (total < lows[c]) lows[c] = total;
    }
    carried = total;
    carriedEvent = Math.max(last, first - 1);
  } else {
    out.exact = false;
    const { topTotal, topEvent, topParts, endParts, endTotal, lowTotal } = device;
    for (let b = Math.floor(first / BLOCK), end = Math.floor(last / BLOCK); b <= end; b++) {
      const c = clamp(column, of(topEvent[b]), n - 1);
      if (c > column) enter(c);
      if (topTotal[b] > out.total[c]) {
        out.total[c] = topTotal[b];
        out.event[c] = topEvent[b];
        for (let k = 0, at = c * K, from = b * K; k < K; k++) out.parts[at + k] = topParts[from + k];
      }
      if (lowTotal[b] < out.low[c]) out.low[c] = lowTotal[b];
      for (let k = 0, from = b * K; k < K; k++) carry[k] = endParts[from + k];
      carried = endTotal[b];
      carriedEvent = Math.min((b + 1) * BLOCK, device.nE) - 1;
    }
  }
  enter(n - 1);
  return out;
}

/** @param {ArrayLike<number>} values @param {number} value */
function lastBefore(values, value) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/**
 * Draw the bands of the categories: one path each.
 * @param {CanvasRenderingContext2D} g @param {Columns} cols
 * @param {{x: number, y: number, w: number, h: number, top: number}} box
 * @param {string[]} categories @param {boolean} marked @param {boolean} [separated]
 */
function drawBands(g, cols, box, categories, marked, separated = true) {
  const K = categories.length, n = cols.n;
  const base = new Float64Array(n);
  const dx = box.w / n, dy = box.h / (box.top || 1), floor = box.y + box.h;
  for (const name of STACKING) {
    const k = categories.indexOf(name);
    if (k < 0) continue;
    let any = false;
    for (let c = 0; c < n && !any; c++) any = cols.parts[c * K + k] > 0;
    if (!any) continue;
    const area = new Path2D(), edge = new Path2D(); // the separator is the upper edge alone
    let y = 0;
    for (let c = 0; c < n; c++) {
      const next = floor - (base[c] + cols.parts[c * K + k]) * dy;
      const x = box.x + c * dx;
      if (c === 0) {
        area.moveTo(x, next);
        edge.moveTo(x, next);
      } else if (next !== y) {
        area.lineTo(x, y);
        area.lineTo(x, next);
        edge.lineTo(x, y);
        edge.lineTo(x, next);
      }
      y = next;
    }
    area.lineTo(box.x + box.w, y);
    edge.lineTo(box.x + box.w, y);
    for (let c = n - 1; c >= 0; c--) {
      const low = floor - base[c] * dy;
      if (c === n - 1 || low !== y) {
        area.lineTo(box.x + (c + 1) * dx, c === n - 1 ? low : y);
        area.lineTo(box.x + (c + 1) * dx, low);
      }
      y = low;
      base[c] += cols.parts[c * K + k];
    }
    area.lineTo(box.x, y);
    area.closePath();
    g.fillStyle = fill(g, name, marked);
    g.fill(area);
    if (separated) {
      g.strokeStyle = colours.page;
      g.lineWidth = 1;
      g.stroke(edge);
    }
  }
}

/** Write the names of bands where they are high enough for it.
 * @param {CanvasRenderingContext2D} g @param {Columns} cols @param {any} box
 * @param {string[]} categories */
function labelBands(g, cols, box, categories) {
  const K = categories.length, n = cols.n, dx = box.w / n;
  const dy = box.h / (box.top || 1), floor = box.y + box.h;
  g.textBaseline = "middle";
  const base = new Float64Array(n);
  for (const name of STACKING) {
    const k = categories.indexOf(name);
    if (k < 0) continue;
    const text = words(name), wide = g.measureText(text).width + 12;
    const need = Math.ceil(wide / dx);
    // The longest run of columns in which one line of text lies inside of the band.
    let best = -1, bestHigh = 0, bestMiddle = 0;
    for (let c = 0; c + need <= n; c += Math.max(1, need >> 2)) {
      let up = Infinity, down = -Infinity;
      for (let i = c; i < c + need; i++) {
        up = Math.min(up, base[i] + cols.parts[i * K + k]);
        down = Math.max(down, base[i]);
      }
      if ((up - down) * dy > bestHigh) {
        bestHigh = (up - down) * dy;
        best = c;
        bestMiddle = floor - ((up + down) / 2) * dy;
      }
    }
    if (best >= 0 && bestHigh >= 15) {
      g.fillStyle = colours[`on-${name}`];
      g.textAlign = "center";
      g.fillText(text, box.x + (best + need / 2) * dx, bestMiddle);
    }
    for (let c = 0; c < n; c++) base[c] += cols.parts[c * K + k];
  }
  g.textAlign = "left";
}

/** A mark of the axis of steps. @param {number} at */
function stepMark(at) {
  const device = /** @type {Device} */ (current()), { number, us } = device.meta.steps;
  const k = Math.floor(at + 1e-9) - Number(us[0] > 0), part = Math.round((at - Math.floor(at + 1e-9)) * 100);
  const name = number[k] === undefined ? (k < 0 ? "before" : "end") : String(number[k]);
  return part ? `${name} + ${part} %` : name;
}
