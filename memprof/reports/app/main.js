// The state of the page, what changes it, and how its parts are put together.

/** @type {any} */ let meta = null;
/** @type {any} */ let core = null;
/** @type {Names | null} */ let names = null;
/** @type {(Device | null)[]} */ const devices = [];
/** Frame times, the last 120. @type {number[]} */ const frameTimes = [];
/** Views to go back to, each with its axis. @type {[number, number, string][]} */ const undo = [];
let ready = false;

/** @type {any} */
const view = {
  d: 0, cursor: -1, /** @type {number | null} */ b: null, v0: 0, v1: 1, axis: "time", tab: "cursor", q: "",
  /** @type {{mask: Uint8Array, count: number, level?: HitLevels} | null} */ hits: null,
  problem: "", group: "blame", blame: "allocated", depth: 2, marked: false, theme: "",
};

/** @type {Overview} */ let overview;
/** @type {Record<string, any>} */ const tabs = {};
const TAB_NAMES = { cursor: "At cursor", stairs: "Staircase", leaks: "Leaks", compare: "Compare", lanes: "Lanes",
  frag: "Fragmentation", all: "All allocations" };

const current = () => devices[view.d] || null;

/** @param {Device} device @returns {[number, number]} */
function wholeView(device) {
  const places = device.places(view.axis);
  if (!places) return [0, Math.max(device.nE, 1)];
  const last = device.nE ? places[device.nE - 1] : 1;
  return [0, Math.max(view.axis === "step" ? Math.ceil(last) : last, 1)];
}

// ---- drawing, only ever in a frame -------------------------------------------------

/** @type {Set<any>} */ const waiting = new Set();
let asked = 0;

/** @param {any} what "overview", "over", "tab", "status", or a table */
function later(what) {
  waiting.add(what);
  if (!asked) asked = requestAnimationFrame(frame);
}

function frame() {
  asked = 0;
  const began = performance.now();
  const work = [...waiting];
  waiting.clear();
  try {
    if (work.includes("overview")) overview.draw();
    else if (work.includes("over")) overview.drawOver();
    if (work.includes("tab") && current()) tabs[view.tab].render();
    else if (work.includes("overview") && view.tab === "lanes" && current()) tabs.lanes.draw();
    for (const table of work) if (table instanceof Table && table.box.isConnected) table.draw();
    if (work.includes("overview") || work.includes("tab") || work.includes("status")) showStatus();
  } catch (error) {
    problem(error);
  }
  frameTimes.push(performance.now() - began);
  if (frameTimes.length > 120) frameTimes.shift();
}

/** Tell those who listen, not too often. @param {string} text */
function say(text) {
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { byId("live").textContent = text; }, 150);
}
/** @type {any} */ say.timer = 0;

// ---- what changes the state --------------------------------------------------------

/** @param {number} v0 @param {number} v1 @param {boolean} [save] */
function setView(v0, v1, save) {
  const device = current();
  if (!device || !(v1 > v0)) return;
  const [low, high] = wholeView(device);
  const least = Math.max((high - low) / 1e7, { time: 1, event: 4, step: 1e-5 }[/** @type {"time"} */ (view.axis)]);
  const span = clamp(Math.min(least, high - low), v1 - v0, high - low);
  const middle = (v0 + v1) / 2;
  view.v0 = clamp(low, middle - span / 2, high - span);
  view.v1 = view.v0 + span;
  later("overview");
  if (save) saveState(true);
  else saveSoon();
}

/** @param {number} v0 @param {number} v1 */
function pushView(v0, v1) {
  undo.push([v0, v1, view.axis]);
  if (undo.length > 100) undo.shift();
}

function undoView() {
  const last = undo.pop();
  const device = current();
  if (!device) return;
  if (last && last[2] === view.axis) setView(last[0], last[1], true);
  else setView(...wholeView(device), true);
}

let zooming = 0;
/** @param {number} at @param {number} factor */
function zoom(at, factor) {
  const now = performance.now();
  if (now - zooming > 600) pushView(view.v0, view.v1);
  zooming = now;
  setView(at - (at - view.v0) * factor, at + (view.v1 - at) * factor);
}

/** @param {number} by */
const pan = (by) => setView(view.v0 + by, view.v1 + by);

/** @param {number} k place of a step */
function zoomToStep(k) {
  const device = /** @type {Device} */ (current()), s = device.meta.steps;
  pushView(view.v0, view.v1);
  const [from, to] = view.axis === "event" ? [s.begin[k], s.end[k] + 1] : [s.us[k], s.end_us[k]].map((us) => device.timePlace(view.axis, us));
  const edge = (to - from) * 0.03;
  setView(from - edge, to + edge, true);
}

/** @param {number} event @param {boolean} [show] bring it into view */
function setCursor(event, show) {
  const device = current();
  if (!device) return;
  change({ cursor: clamp(-1, event, device.nE - 1) });
  const at = device.place(view.axis, view.cursor);
  if (show && (at < view.v0 || at > view.v1)) {
    const half = (view.v1 - view.v0) / 2;
    setView(at - half, at + half);
  }
}

/** Change the state and draw what depends on it. @param {any} patch */
function change(patch) {
  const device = current();
  const axis = "axis" in patch && patch.axis !== view.axis;
  const shown = device && axis ? [view.v0, view.v1].map((at) => device.eventAt(view.axis, at)) : null;
  Object.assign(view, patch);
  if (device && shown) { // keep what is in view
    const [from, until] = shown.map((event) => device.place(view.axis, event));
    undo.length = 0;
    setView(from, until > from ? until : from + 1);
  }
  if ("q" in patch || "d" in patch || ("cursor" in patch && /alive:cursor/.test(view.q))) search();
  if ("theme" in patch || "marked" in patch) paintTheme();
  if ("tab" in patch) showTab();
  if ("cursor" in patch && device) {
    const { total } = device.totals(view.cursor);
    say(`cursor at ${time(device.at(view.cursor))}, ${size(total, 4)} allocated`);
  }
  syncControls();
  const onlyCursor = Object.keys(patch).length === 1 && ("cursor" in patch || "b" in patch) && !/alive:cursor/.test(view.q);
  later(onlyCursor ? "over" : "overview");
  // What does not depend on the cursor is not drawn anew for it.
  if (!("cursor" in patch && onlyCursor) || ["cursor", "frag", "all", "lanes"].includes(view.tab)) later("tab");
  else later("status"); // it tells of the cursor whatever tab is shown
  if ("tab" in patch || "q" in patch || "d" in patch) saveState(true);
  else saveSoon("cursor" in patch);
}

function search() {
  const device = current();
  view.hits = null;
  view.problem = "";
  if (!device || !view.q.trim()) return;
  try {
    view.hits = filtered(device, view.q, view.cursor);
  } catch (error) {
    if (!(error instanceof FilterError)) throw error;
    view.problem = error.message;
  }
}

/** Bytes of the hits after events. @param {Device} device @returns {HitLevels} */
function hitLevels(device) {
  const hits = /** @type {NonNullable<typeof view.hits>} */ (view.hits);
  if (!hits.level) hits.level = new HitLevels(device, hits.mask);
  return hits.level;
}

/** @param {boolean} back */
function nextHit(back) {
  const device = /** @type {Device} */ (current());
  if (!view.hits) return say("no search");
  const mask = view.hits.mask, n = device.nA;
  let a = back ? lastBefore(device.birth, view.cursor + 1) : lastAtMost(device.birth, view.cursor + 1) + 1;
  for (let i = 0; i < n; i++, a += back ? -1 : 1) {
    a = (a + n) % n;
    if (mask[a] && device.birth[a]) {
      setCursor(device.birth[a] - 1, true);
      showDetail(device, a, null);
      return undefined;
    }
  }
  return say("no hits");
}

/** The highest event of events FROM to TO. @param {Device} device */
function highest(device, from, to) {
  let best = -1, event = from;
  const see = (/** @type {number} */ e, /** @type {number} */ total) => {
    if (total > best) {
      best = total;
      event = e;
    }
  };
  const first = Math.ceil(from / BLOCK), last = Math.floor((to + 1) / BLOCK);
  if (first >= last) device.replay(from, to, see);
  else {
    if (from < first * BLOCK) device.replay(from, first * BLOCK - 1, see);
    for (let b = first; b < last; b++) see(device.topEvent[b], device.topTotal[b]);
    if (last * BLOCK <= to) device.replay(last * BLOCK, to, see);
  }
  return event;
}

function nextPeak() {
  const device = /** @type {Device} */ (current());
  const { begin, end } = device.meta.steps;
  if (begin.length) {
    const peaks = begin.map((/** @type {number} */ b, /** @type {number} */ k) => highest(device, Math.max(b, 0), end[k]));
    const next = peaks.find((/** @type {number} */ e) => e > view.cursor);
    return setCursor(next === undefined ? peaks[0] : next, true);
  }
  // Without steps: a block that is higher than all within some way of it.
  const way = Math.max(1, Math.floor(device.blocks / 50)), tops = device.topTotal;
  const isPeak = (/** @type {number} */ b) => {
    for (let i = Math.max(0, b - way); i <= Math.min(device.blocks - 1, b + way); i++) if (tops[i] > tops[b]) return false;
    return true;
  };
  for (let i = 0, b = Math.floor(Math.max(view.cursor, 0) / BLOCK); i <= device.blocks; i++, b++) {
    const k = b % device.blocks;
    if (isPeak(k) && device.topEvent[k] !== view.cursor && (i > 0 || device.topEvent[k] > view.cursor)) return setCursor(device.topEvent[k], true);
  }
  return undefined;
}

function nextGroup() {
  const select = document.querySelector("[data-testid=group]");
  const known = select instanceof HTMLSelectElement ? [...select.options].map((o) => o.value) : ["blame"];
  change({ tab: "cursor", group: known[(known.indexOf(view.group) + 1) % known.length] });
  say(`grouped by ${view.group}`);
}

// ---- parts -------------------------------------------------------------------------

function paintTheme() {
  if (view.theme) document.documentElement.setAttribute("data-theme", view.theme);
  else document.documentElement.removeAttribute("data-theme");
  readColours();
  document.documentElement.classList.toggle("patterns", view.marked);
  if (overview) overview.miniKey = "";
}

const isDark = () => (view.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

const AXES = { time: "Time", event: "Events", step: "Steps" };

/** A run without steps has no axis of them. */
function shownAxes() {
  const device = current();
  return Object.keys(AXES).filter((axis) => axis !== "step" || (device && device.meta.steps.number.length > 1));
}

function nextAxis() {
  const known = shownAxes(), axis = known[(known.indexOf(view.axis) + 1) % known.length];
  change({ axis });
  say(`axis: ${AXES[/** @type {"time"} */ (axis)]}`);
}

function shownTabs() {
  const device = current();
  return Object.keys(TAB_NAMES).filter((name) => {
    if (name === "stairs") return device && device.meta.stairs;
    if (name === "compare") return Boolean(meta.compare);
    if (name === "lanes" || name === "frag") return device && device.addr;
    return true;
  });
}

function showTab() {
  if (!shownTabs().includes(view.tab)) view.tab = "cursor";
  for (const [name, tab] of Object.entries(tabs)) if (name !== view.tab && tab.rest) tab.rest();
  byId("tabs").replaceChildren(...shownTabs().map((name) => h("button", {
    role: "tab", id: `tab-${name}`, test: `tab-${name}`, "aria-selected": name === view.tab, "aria-controls": "panel",
    tabindex: name === view.tab ? 0 : -1, onclick: () => change({ tab: name }),
  }, TAB_NAMES[/** @type {"all"} */ (name)])));
  byId("panel").setAttribute("aria-labelledby", `tab-${view.tab}`);
  // What a later look says of this tab, before its data.
  const device = current(), verdict = device && device.meta.verdicts && device.meta.verdicts[view.tab];
  byId("panel").replaceChildren(verdict ? h("p.verdict", { test: "verdict" }, verdict) : "", tabs[view.tab].element);
}

/** @param {KeyboardEvent} event */
function tabKeys(event) {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  const known = shownTabs();
  change({ tab: known[(known.indexOf(view.tab) + by + known.length) % known.length] });
  byId(`tab-${view.tab}`).focus();
}

function syncControls() {
  const set = (/** @type {string} */ id, /** @type {boolean} */ on) => byId(id)?.setAttribute("aria-pressed", String(on));
  for (const axis of Object.keys(AXES)) set(`axis-${axis}`, view.axis === axis);
  const steps = byId("axis-step");
  if (steps) steps.hidden = !shownAxes().includes("step");
  set("marked", view.marked);
  const query = byId("query");
  if (query && document.activeElement !== query) query.value = view.q;
  const select = byId("device");
  if (select) select.value = String(view.d);
  const theme = byId("theme");
  if (theme) theme.textContent = isDark() ? "Light" : "Dark";
}

function showStatus() {
  const device = current();
  if (!device) return;
  const shown = view.axis === "event" ? `events ${count(Math.round(view.v0))} – ${count(Math.round(view.v1))}`
    : `${[view.v0, view.v1].map((at) => time(view.axis === "time" ? at : device.at(device.eventAt(view.axis, at)))).join(" – ")}`;
  const how = overview.columns && !overview.columns.exact ? "each column = the highest of its events" : "each event looked at";
  const folded = device.meta.folded;
  byId("status").replaceChildren(
    h("span", {}, counted(device.meta.allocations, "allocation")), h("span", { test: "folded" }, folded
      ? `${count(folded.count)} of them folded: at most ${size(folded.size)} each, gone within ${counted(folded.events, "event")}; ${counted(device.nE, "event")} shown`
      : `${counted(device.nE, "event")}, nothing folded`),
    h("span", { test: "range" }, `${shown} (${how})`));
  let text = view.problem;
  if (view.hits) {
    const level = hitLevels(device).at(view.cursor);
    text = `${counted(view.hits.count, "hit")}, ${size(level)} at cursor${device.meta.folded ? " (folded ones are not searched)" : ""}`;
  }
  const out = byId("found");
  if (out.textContent !== text) out.textContent = text;
  out.classList.toggle("wrong", Boolean(view.problem));
  overview.canvas.setAttribute("aria-label", `memory by category over ${words(view.axis)}s, ${shown}; peak ${size(device.meta.peak.bytes, 4)}; `
    + `cursor at ${time(device.at(view.cursor))}, ${size(device.totals(view.cursor).total, 4)} allocated`);
  const twin = byId("twin");
  if (twin.open) fillTwin(twin);
}

/** The overview as a table. @param {HTMLElement} twin */
function fillTwin(twin) {
  const device = /** @type {Device} */ (current());
  const n = 24, cols = columnsOf(device, view.v0, view.v1, n, view.axis), K = device.K;
  const used = STACKING.filter((name) => { const k = device.categories.indexOf(name); return cols.parts.some((bytes, i) => i % K === k && bytes > 0); });
  const part = (i, name) => cols.parts[i * K + device.categories.indexOf(name)];
  const columns = [{ title: "highest at", number: true, cell: (i) => time(device.at(cols.event[i])), text: (i) => String(device.number(cols.event[i])) },
    { title: "allocated", number: true, cell: (i) => size(cols.total[i], 4), text: (i) => String(cols.total[i]) },
    ...(device.segmentsSeen ? [{ title: "reserved", number: true, cell: (i) => size(device.reserved(cols.event[i]) || 0, 4), text: (i) => String(device.reserved(cols.event[i])) }] : []),
    ...used.map((name) => ({ title: words(name), number: true, cell: (i) => size(part(i, name)), text: (i) => String(part(i, name)) }))];
  const table = new Table({ label: "the overview's range in 24 parts, the highest state of each", test: "twin-table", columns, rows: n });
  twin.replaceChildren(twin.firstElementChild || "", table.buttons(), table.box);
}

function savePicture() {
  const { canvas, over } = overview, sheet = document.createElement("canvas");
  sheet.width = canvas.width;
  sheet.height = canvas.height;
  const g = /** @type {CanvasRenderingContext2D} */ (sheet.getContext("2d"));
  g.fillStyle = colours.page;
  g.fillRect(0, 0, sheet.width, sheet.height);
  g.drawImage(canvas, 0, 0);
  g.drawImage(over, 0, 0);
  sheet.toBlob((blob) => {
    if (!blob) return;
    const url = URL.createObjectURL(blob);
    h("a", { href: url, download: "memprof-overview.png" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  });
}

function build() {
  overview = new Overview();
  Object.assign(tabs, { cursor: new CursorTab(), stairs: new StairsTab(), leaks: new LeaksTab(), compare: new CompareTab(),
    lanes: new LanesTab(), frag: new FragTab(), all: new AllTab() });
  const facts = [meta.run, meta.torch && `torch ${meta.torch}`, meta.devices[meta.opened].gpu].filter(Boolean).join(" · ");
  let typing = 0;
  byId("app").replaceChildren(
    h("a.skip", { href: "#panel", onclick: (/** @type {Event} */ e) => { e.preventDefault(); byId("panel").focus(); } }, "Skip to the tabs"),
    h("header", {}, h("strong", {}, "memprof"), h("span.muted", {}, facts),
      h("span.gap"),
      meta.devices.length > 1 ? h("label", {}, "device ", h("select", { id: "device", test: "device", onchange: (/** @type {any} */ e) => switchDevice(Number(e.target.value)) },
        meta.devices.map((/** @type {any} */ d, /** @type {number} */ i) => h("option", { value: i }, d.name)))) : h("span", {}, meta.devices[0].name),
      h("button", { id: "marked", test: "patterns", onclick: () => change({ marked: !view.marked }) }, "Patterns"),
      h("button", { id: "theme", test: "theme", onclick: () => change({ theme: isDark() ? "light" : "dark" }) }, "Dark"),
      h("button", { test: "open-help", "aria-label": "help", onclick: () => byId("help").showModal() }, "?")),
    h("main", {},
      h("div", { id: "alert", role: "alert" }), h("section", { id: "headline" }), h("section", { id: "findings", "aria-label": "findings", test: "findings" }), h("section", { id: "notes" }),
      h("section", { "aria-label": "overview" },
        h("div.toolbar", {},
          h("span.choice", { role: "group", "aria-label": "axis" },
            Object.entries(AXES).map(([axis, text]) => h("button", { id: `axis-${axis}`, test: `axis-${axis}`, onclick: () => change({ axis }) }, text))),
          h("button", { test: "whole", onclick: () => { const d = current(); if (d) { pushView(view.v0, view.v1); setView(...wholeView(d), true); } } }, "Whole run"),
          h("button", { test: "undo", onclick: undoView }, "Undo zoom"),
          h("label", {}, "module depth ", h("input", { type: "range", min: 1, max: 8, value: view.depth, test: "depth",
            oninput: (/** @type {any} */ e) => { view.depth = Number(e.target.value); later("overview"); } })),
          h("button", { test: "png", onclick: savePicture }, "PNG"),
          h("span.gap"),
          h("label.search", {}, h("span.quiet", {}, "filter"), h("input", { id: "query", type: "search", test: "query", spellcheck: "false", autocomplete: "off",
            placeholder: "filter: cat:activation size>64MiB line:model.py", oninput: (/** @type {any} */ e) => {
              clearTimeout(typing);
              typing = setTimeout(() => change({ q: e.target.value }), 120);
            } })), h("output", { id: "found", test: "found", for: "query" })),
        overview.element, h("div.legend", { "aria-hidden": "true" }, STACKING.map((name) => swatch(name))),
        h("details", { id: "twin", test: "twin", ontoggle: () => later("overview") }, h("summary", {}, "Overview as a table"))),
      h("section", {},
        h("div", { id: "tabs", role: "tablist", "aria-label": "views", onkeydown: tabKeys }),
        h("div", { id: "panel", role: "tabpanel", tabindex: -1 }),
        h("aside", { id: "detail", hidden: true, "aria-label": "details", test: "detail" })),
      h("div.status", { id: "status", test: "status" }),
      h("button", { test: "link", onclick: () => { saveState(false); copyText(location.href); } }, "Copy link")),
    h("div.quiet", { id: "live", "aria-live": "polite" }), helpDialog());
  document.addEventListener("keydown", onKey);
  addEventListener("popstate", () => loadState().catch(problem));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => change({ theme: view.theme }));
  new ResizeObserver(() => {
    if (overview) overview.miniKey = "";
    later("overview");
    if (ready) later("tab");
  }).observe(overview.element);
}

/** @param {number} d */
async function switchDevice(d) {
  try {
    await loadDevice(d);
    const device = /** @type {Device} */ (devices[d]);
    undo.length = 0;
    Object.assign(view, { d, b: null });
    if (!shownAxes().includes(view.axis)) view.axis = "time";
    [view.v0, view.v1] = wholeView(device);
    overview.miniKey = "";
    change({ d, cursor: device.meta.peak.event, tab: view.tab });
    showHeadline();
  } catch (error) {
    problem(error);
  }
}

/** @param {number} d */
async function loadDevice(d) {
  if (devices[d]) return;
  if (!names) {
    const stacks = await readBlock("stacks");
    if (!stacks) throw new BlockError("the data block “stacks” is missing. Was the file copied whole?");
    names = new Names(stacks);
  }
  const [allocs, events, addr, fold] = [await readBlock(`allocs-${d}`), await readBlock(`events-${d}`), await readBlock(`addr-${d}`), await readBlock(`fold-${d}`)];
  if (!allocs || !events) throw new BlockError(`the data of ${meta.devices[d].name} are missing. Was the file copied whole?`);
  await new Promise((done) => { setTimeout(done, 0); });
  devices[d] = new Device(meta.devices[d], allocs, events, addr, fold, names, meta.categories);
  const now = devices[d];
  if (now && now.peakTotal !== now.meta.peak.bytes) {
    throw new BlockError(`the data do not add up: the peak is ${now.peakTotal} bytes here and ${now.meta.peak.bytes} in the recording`);
  }
}

/** Say what went wrong, in words. @param {any} error */
function problem(error) {
  const text = error instanceof BlockError ? error.message : `memprof's page failed: ${error && error.message}`;
  errors.push(text);
  const where = byId("alert") || byId("app");
  where.replaceChildren(h("p.problem", { test: "problem" }, text, " The table of the peak below needs none of it."));
  byId("mp-static").classList.remove("done");
}

async function start() {
  readColours();
  core = await readBlock("core");
  if (!core) throw new BlockError("the data block “core” is missing: the page is not whole");
  meta = core.meta;
  view.v1 = Math.max(core.c_us[core.c_us.length - 1] || 1, 1);
  view.d = meta.opened;
  build();
  paintTheme();
  overview.draw();
  performance.mark("mp:first-paint");
  await new Promise((done) => { requestAnimationFrame(() => setTimeout(done, 0)); });
  await loadState();
  performance.mark("mp:decoded");
  byId("mp-static").classList.add("done");
  later("overview");
  requestAnimationFrame(() => setTimeout(() => { ready = true; }, 0));
}

/** @param {any} options */
const keysOf = (options) => [options && options.groupBy].flat().filter(Boolean);

window.memprof = Object.freeze({
  get ready() { return ready; },
  get version() { return meta && meta.memprof; },
  meta: () => meta,
  peak: () => ({ ...meta.devices[view.d].peak, event: current()?.number(meta.devices[view.d].peak.event) }),
  /** @param {number} number an event of the recording */
  totalsAt(number) {
    const device = /** @type {Device} */ (current()), e = device.ofRecording(number), { total, parts } = device.totals(e);
    return { event: e, allocated: total, waiting: device.waiting(e), reserved: device.reserved(e),
      categories: Object.fromEntries(device.categories.map((name, k) => [name, parts[k]])) };
  },
  /** @param {number} number @param {any} [options] */
  liveSet(number, options) {
    const device = /** @type {Device} */ (current()), keys = keysOf(options);
    const event = device.ofRecording(number);
    return device.groupedWhole(device.live(event), keys.length ? keys : BLAME.allocated, event)
      .map((group) => ({ bytes: group.bytes, count: group.count, keys: group.words }));
  },
  /** @param {{t0: number, t1: number}} range microseconds, or events */
  setView: ({ t0, t1 }) => setView(t0, t1),
  /** @param {any} x a state's parts to change */
  select: (x) => change(x),
  hit: (/** @type {number} */ x, /** @type {number} */ y) => overview.hit(x, y),
  columns: () => { const c = overview.columns; return c && { n: c.n, exact: c.exact, event: [...c.event].map((e) => current()?.number(e)), total: [...c.total], parts: [...c.parts] }; },
  search(/** @type {string} */ q) { change({ q }); return { count: view.hits ? view.hits.count : 0, problem: view.problem }; },
  /** The recording's number of an event of the page. @param {number} event */
  eventNumber: (event) => /** @type {Device} */ (current()).number(event),
  segments() { const device = current(); return device && device.addr ? segmentsAt(device, view.cursor).strips.map(({ from, size: bytes, used, gap }) => ({ from, bytes, used, gap })) : null; },
  state: () => ({ ...view, hits: view.hits && view.hits.count, hash: location.hash }),
  switchDevice,
  draw: () => { const began = performance.now(); overview.draw(); return performance.now() - began; },
  perf: () => [...frameTimes],
  errors: () => [...errors],
});

start().catch(problem);
