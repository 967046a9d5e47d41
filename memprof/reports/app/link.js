// The page's address keeps what is looked at: a link leads there again, and so do Back
// and Forward.

function stateText() {
  const device = current();
  const parts = new URLSearchParams();
  parts.set("d", String(view.d));
  if (device) {
    parts.set("t", view.cursor === device.meta.peak.event ? "peak" : String(device.number(view.cursor)));
    if (view.b !== null) parts.set("b", String(device.number(view.b)));
    const whole = wholeView(device);
    if (view.v0 > whole[0] || view.v1 < whole[1]) parts.set("v", `${view.v0.toFixed(1)}~${view.v1.toFixed(1)}`);
  }
  if (view.axis !== "time") parts.set("axis", view.axis);
  parts.set("tab", view.tab);
  if (view.q) parts.set("q", view.q);
  if (view.group !== "blame") parts.set("group", view.group);
  if (view.blame !== "allocated") parts.set("blame", view.blame);
  if (view.theme) parts.set("theme", view.theme);
  if (view.marked) parts.set("patterns", "1");
  return `#${parts}`;
}

/** @param {boolean} push */
function saveState(push) {
  clearTimeout(saveSoon.timer);
  saveSoon.push = false;
  const text = stateText();
  if (text === location.hash) return;
  try { // a notebook's frame has no address of its own
    if (push) history.pushState(null, "", text);
    else history.replaceState(null, "", text);
  } catch (error) { /* then the state is not kept */ }
}

/** A key held down moves through many states: the last one is kept. @param {boolean} [push] */
function saveSoon(push) {
  clearTimeout(saveSoon.timer);
  saveSoon.push = saveSoon.push || Boolean(push);
  saveSoon.timer = setTimeout(() => saveState(saveSoon.push), 300);
}
/** @type {any} */ saveSoon.timer = 0;
saveSoon.push = false;

async function loadState() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const d = Number(parts.get("d") ?? meta.opened);
  view.d = Number.isInteger(d) && meta.devices[d] ? d : meta.opened;
  await loadDevice(view.d);
  const device = current();
  if (!device) return;
  const axis = parts.get("axis") || "time";
  view.axis = shownAxes().includes(axis) ? axis : "time";
  const t = parts.get("t");
  const event = (/** @type {string | null} */ text) => (text === null || text === "" || Number.isNaN(Number(text)) ? null : device.ofRecording(Number(text)));
  view.cursor = event(t === "peak" ? null : t) ?? device.meta.peak.event;
  view.b = event(parts.get("b"));
  const tab = parts.get("tab") || "cursor";
  view.tab = shownTabs().includes(tab) ? tab : "cursor";
  view.q = parts.get("q") || "";
  const group = parts.get("group") || "blame";
  view.group = GROUPS.includes(group) ? group : "blame";
  const blame = parts.get("blame") || "allocated";
  view.blame = Object.hasOwn(BLAME, blame) && (blame !== "saved" || device.fate) ? blame : "allocated";
  view.theme = parts.get("theme") === "dark" ? "dark" : parts.get("theme") === "light" ? "light" : "";
  view.marked = parts.get("patterns") === "1" || matchMedia("(forced-colors: active)").matches;
  [view.v0, view.v1] = wholeView(device);
  const range = (parts.get("v") || "").split("~").map(Number);
  if (range.length === 2 && range[1] > range[0]) setView(range[0], range[1]);
  paintTheme();
  search();
  showTab();
  showHeadline();
  syncControls();
  later("overview");
  later("tab");
}
