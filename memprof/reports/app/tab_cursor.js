// At cursor: what is in memory at one instant, three ways, all with one sum.

const BLAME = {
  allocated: ["category", "module", "op", "line"],
  owned: ["category", "owner", "module"],
  saved: ["category", "saved", "module"],
};
const BLAME_NAMES = { allocated: "allocated by", owned: "owned by", saved: "kept until" };
const GROUPS = ["blame", "category", "module", "op", "line", "function", "owner", "shape", "size",
  "step", "stream", "pool", "phase", "region", "reason", "thread", "label"];
const TITLES = { line: "where", saved: "kept until", step: "birth step" };

/** What is alive at the cursor, and what of it the filter lets pass.
 * @param {Device} device */
function liveNow(device) {
  if (!liveNow.cache || liveNow.device !== device || liveNow.event !== view.cursor) {
    liveNow.device = device;
    liveNow.event = view.cursor;
    liveNow.cache = device.live(view.cursor);
  }
  const all = /** @type {Uint32Array} */ (liveNow.cache);
  if (!view.hits) return all;
  return all.filter((a) => view.hits && view.hits.mask[a]);
}
/** @type {Uint32Array | null} */ liveNow.cache = null;
/** @type {Device | null} */ liveNow.device = null;
liveNow.event = -2;

class CursorTab {
  constructor() {
    this.element = h("div.cursor");
    this.zoomed = /** @type {string[]} */ ([]);
    this.icicle = new Figure({ label: "icicle: module, op and line of what is alive at the cursor; "
      + "its numbers are in the table", test: "icicle", height: 200,
      draw: (g, w, t, put) => this._icicle(g, w, t, put) });
  }

  render() {
    const device = /** @type {Device} */ (current());
    const { total, parts } = device.totals(view.cursor);
    const live = this.live = liveNow(device);
    const keys = view.group === "blame" ? BLAME[/** @type {"owned"} */ (view.blame)] : [view.group];
    const groups = view.hits ? device.grouped(live, keys) : device.groupedWhole(live, keys, view.cursor);
    const sum = groups.reduce((s, group) => s + group.bytes, 0);
    const n = groups.reduce((s, group) => s + group.count, 0);
    /** @type {TableColumn[]} */
    const columns = [
      { title: "bytes", number: true, cell: (i) => size(groups[i].bytes), text: (i) => String(groups[i].bytes) },
      { title: "%", number: true, cell: (i) => percent(groups[i].bytes, total), text: (i) => percent(groups[i].bytes, total) },
      { title: "blocks", number: true, cell: (i) => count(groups[i].count), text: (i) => String(groups[i].count) },
      ...keys.map((key, k) => ({ title: TITLES[key] || key, wide: true,
        cell: (i) => (key === "category" ? swatch(groups[i].words[k]) : groups[i].words[k] || "–"),
        text: (i) => groups[i].words[k] })),
    ];
    if (!keys.includes("category")) {
      columns.push({ title: "of what", cell: (i) => bar(groups[i].cats, groups[i].bytes),
        text: (i) => device.categories.filter((_, c) => groups[i].cats[c]).join(" ") });
    }
    this.table = new Table({
      label: `live set ${this._when(device)}`, test: "live-table", columns, rows: groups.length,
      onpick: (i) => groups[i].first >= 0 && showDetail(device, groups[i].first, groups[i]),
      foot: [size(sum, 4), percent(sum, total), count(n), ...keys.map((_, k) =>
        (k ? "" : `= ${count(sum)} bytes${view.hits ? ` of ${count(total)} that match` : " allocated"}`)),
        ...(keys.includes("category") ? [] : [""])].slice(0, columns.length),
    });
    const blame = h("span.choice", { role: "group", "aria-label": "whose bytes" },
      Object.entries(BLAME_NAMES).map(([name, text]) =>
        name === "saved" && !device.fate ? null : h("button", {
          "aria-pressed": view.blame === name && view.group === "blame", test: `blame-${name}`,
          onclick: () => change({ blame: name, group: "blame" }),
        }, text)));
    const group = h("select", { test: "group", onchange: (/** @type {any} */ e) => change({ group: e.target.value }) },
      GROUPS.filter((name) => this._useful(device, name)).map((name) => h("option", { value: name, selected: name === view.group },
        name === "blame" ? "as chosen left" : TITLES[name] || name)));
    this.element.replaceChildren(
      h("div.head", {}, h("h2", {}, "In memory ", h("span.muted", {}, this._when(device))), this._steps(device)),
      h("div.columns", {},
        h("div", {}, h("h3", {}, "Where it adds up"), this._waterfall(device, total, parts), driverTable(device)),
        h("div", {}, h("h3", {}, "module › op › line", this.zoomed.length
          ? h("button", { onclick: () => { this.zoomed.pop(); later("tab"); }, test: "icicle-up" }, "‹ back") : null),
        this.icicle.element)),
      h("div.head", {}, h("h3", {}, "Live set"), blame, h("label", {}, "group by ", group), this.table.buttons()),
      this.table.box, booksTable(device) || "");
    this.icicle.draw();
  }

  /** @param {Device} device @param {string} name */
  _useful(device, name) {
    if (["owner", "region", "shape", "label", "function", "line", "op", "module"].includes(name)) {
      return device.hasText(name) || name === view.group;
    }
    return name !== "step" || device.meta.steps.number.length > 0;
  }

  /** @param {Device} device */
  _when(device) {
    const k = device.step(view.cursor);
    const step = k >= 0 ? `step ${device.meta.steps.number[k]}, ` : "";
    const at = view.cursor < 0 ? "when the recording began"
      : `${step}${time(device.at(view.cursor))}, event ${count(device.number(view.cursor))}`;
    return view.cursor === device.meta.peak.event ? `at the peak (${at})` : `at ${at}`;
  }

  /** @param {Device} device */
  _steps(device) {
    return h("span.buttons", {},
      h("button", { onclick: () => setCursor(device.meta.peak.event), test: "to-peak" }, "Peak"),
      h("button", { onclick: () => nextPeak(), test: "next-peak" }, "Next local peak"),
      h("button", { onclick: () => change({ b: view.b === null ? view.cursor : null }), test: "second" },
        view.b === null ? "Set B here" : "Clear B"));
  }

  /** The table of categories that adds up to what torch reserved. */
  _waterfall(device, total, parts) {
    const told = device.reserved(view.cursor), reserved = device.segmentsSeen ? told : null, waiting = device.waiting(view.cursor);
    const whole = reserved === null ? total + waiting : Math.max(reserved, total);
    const other = view.b === null ? null : device.totals(view.b);
    let base = 0;
    const row = (name, bytes, category, kind) => {
      const start = kind === "sum" ? 0 : base;
      if (kind !== "sum") base += bytes;
      const then = other ? kind === "sum" ? name === "allocated" ? other.total : null
        : other.parts[device.categories.indexOf(category)] ?? null : null;
      return h(`tr${kind === "sum" ? ".sum" : ""}`, {},
        h("th", { scope: "row" }, category ? swatch(category) : name),
        h("td.n", { title: `${count(bytes)} bytes` }, size(bytes, 4)),
        h("td.n", {}, percent(bytes, whole)),
        other ? h("td.n", {}, then === null ? "" : signed(bytes - then)) : null,
        h("td.fall", { "aria-hidden": "true" }, h("span", {}, h(`i.${kind === "sum" ? "whole" : `c-${category || "overhead"}`}`,
          { "left%": whole ? (100 * start) / whole : 0, "width%": whole ? (100 * bytes) / whole : 0 }))));
    };
    const shown = STACKING.map((name) => [name, parts[device.categories.indexOf(name)]])
      .filter(([name, bytes]) => bytes > 0 || (other && other.parts[device.categories.indexOf(name)] > 0));
    const rows = shown.map(([name, bytes]) => row(name, bytes, name, ""));
    rows.push(row("allocated", total, "", "sum"));
    if (waiting) rows.push(row("freed, a stream may still use it", waiting, "", ""));
    if (reserved !== null) {
      rows.push(row("rounding and cached free", reserved - total - waiting, "", ""));
      rows.push(row("reserved", reserved, "", "sum"));
    }
    const unseen = told !== null && !device.segmentsSeen
      ? h("p.note", { test: "unseen" }, "What torch reserved is not known: the segments that these blocks lie in were not seen.") : null;
    return h("div.scroll", {}, h("table.fall", { test: "waterfall" },
      h("caption.quiet", {}, "categories add up to what is allocated, that and the cache to what is reserved"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "part"), h("th.n", { scope: "col" }, "size"),
        h("th.n", { scope: "col" }, "%"), other ? h("th.n", { scope: "col" }, "A − B") : null,
        h("th", { scope: "col" }, h("span.quiet", {}, "bar")))),
      h("tbody", {}, rows)), unseen);
  }

  /** A tree of modules, then ops, then lines; the width is bytes. */
  _icicle(g, width, height, put) {
    const device = /** @type {Device} */ (current()), tree = device.tree(), K = device.K;
    tree.fill(/** @type {Uint32Array} */ (this.live), view.hits ? [] : device.foldedAt(view.cursor));
    let top = 0;
    for (const name of this.zoomed[this.zoomed.length - 1]?.split("\u0002") || []) top = tree.kids[top]?.get(name) ?? top;
    const most = 8; // deeper ones come with a click
    const depth = (/** @type {number} */ node, left = most) => 1 + (left > 1 ? greatest(tree.held(node).slice(0, 50).map((kid) => depth(kid, left - 1))) : 0);
    const levels = depth(top), high = Math.min(Math.floor(height / levels), 44);
    const walk = (/** @type {number} */ node, x, w, level) => {
      if (w < 1 || level >= levels) return;
      const y = level * high, bytes = tree.bytes[node];
      g.fillStyle = colours.panel;
      g.fillRect(x, y, w - (w > 3 ? 1 : 0), high - 2);
      let at = x;
      for (const name of STACKING) {
        const part = bytes ? (tree.cats[node * K + device.categories.indexOf(name)] / bytes) * (w - (w > 3 ? 1 : 0)) : 0;
        if (part > 0) {
          g.fillStyle = colours[name];
          g.fillRect(at, y + high - 7, part, 5);
          at += part;
        }
      }
      const shown = w > 24 ? cut(g, `${tree.names[node]}  ${size(bytes)}`, w - 8) : "";
      if (shown) {
        g.fillStyle = colours.text;
        g.textBaseline = "middle";
        g.fillText(shown, x + 4, y + (high - 7) / 2);
      }
      const path = tree.path(node);
      put(x, y, w, high - 2, `${path.map((p) => tree.names[p]).join(" › ") || "all"}\n${size(bytes, 4)} = ${percent(bytes, tree.bytes[0])} %`,
        node && node !== top ? () => {
          this.zoomed.push(path.map((p) => tree.marks[p]).join("\u0002"));
          later("tab");
        } : undefined);
      let from = x;
      for (const kid of tree.held(node)) {
        const part = (tree.bytes[kid] / (bytes || 1)) * w;
        if (part < 1) break; // the largest come first
        walk(kid, from, part, level + 1);
        from += part;
      }
    };
    walk(top, 0, width, 0);
  }
}

/** Show one life, or the group that it is of. @param {Device} device @param {number} a
 * @param {{bytes: number, count: number} | null} [group] */
function showDetail(device, a, group) {
  const s = device.site[a];
  const born = device.birth[a] - 1, died = device.death[a];
  const step = (/** @type {number} */ e) => {
    const k = device.step(e);
    return k >= 0 ? `, step ${device.meta.steps.number[k]}` : "";
  };
  const facts = [
    ["size", `${size(device.bytes(a), 4)} (${count(device.bytes(a))} bytes)`],
    ["category", `${words(device.text("category", a))}: ${device.text("reason", a)}`],
    ["module", device.text("module", a)], ["op", device.text("op", a)],
    ["owner", device.text("owner", a)], ["shape", device.text("shape", a)],
    ["region", device.text("region", a)],
    ["born", born < 0 ? "before the recording" : `${time(device.at(born))}${step(born)}, ${device.text("phase", a)}, event ${count(device.number(born))}`],
    ["freed", died >= device.nE ? "not in the recording" : `${time(device.at(died))}${step(died)}, event ${count(device.number(died))}`],
    ["kept until", device.text("saved", a)],
    ["stream, pool", `${device.text("stream", a)}, ${device.text("pool", a)}`],
    ["thread", device.text("thread", a)],
  ].filter(([, text]) => text);
  const stack = (/** @type {number} */ node, /** @type {string} */ title) => {
    const frames = device.names.stack(node);
    if (!frames.length) return null;
    const item = (/** @type {any} */ f) => h(`li${f.library ? ".muted" : ""}`, {},
      h("code", {}, `${f.file}:${f.line}`), ` ${f.fn}`, f.source ? h("pre", {}, f.source) : null);
    const own = frames.filter((f) => !f.library);
    return h("div", {}, h("h4", {}, title), own.length ? h("ol", {}, own.map(item)) : null,
      own.length < frames.length ? h("details", {}, h("summary", {}, `whole stack, ${counted(frames.length, "frame")}`),
        h("ol", {}, frames.map(item))) : null);
  };
  const panel = byId("detail");
  panel.hidden = false;
  panel.replaceChildren(
    h("div.head", {}, h("h3", {}, group && group.count > 1
      ? `The first of ${counted(group.count, "block")}, together ${size(group.bytes, 4)}` : "One block"),
    h("button", { onclick: () => { panel.hidden = true; }, test: "detail-close" }, "Close")),
    h("dl", {}, facts.map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)])),
    stack(device.sites.s_stack[s], "Python stack, own frames first"),
    stack(device.sites.s_forward_stack[s], "Stack of the forward that caused it") || "");
}
