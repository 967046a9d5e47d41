// The keyboard: everything that the pointer does, and the list of it.

const KEYS = [
  ["W S", "zoom in, out"], ["A D", "pan"], ["← →", "previous, next event (Shift: 100)"],
  ["[ ]", "previous, next step"], ["P", "peak (Shift: next local peak)"], ["/", "search"],
  ["N", "next hit (Shift: previous)"], ["G", "group by"], ["T", "axis: time, events, steps of equal width"],
  ["C", "second cursor"], ["Z", "undo zoom"], ["0", "whole run"], ["Esc", "clear"], ["?", "this help"],
];

/** @param {KeyboardEvent} event */
function onKey(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    clearAll(target);
    return;
  }
  const typing = /^(input|select|textarea)$/i.test(target.tagName);
  const device = current();
  if (typing || !device || byId("help").open) return;
  const span = view.v1 - view.v0;
  const at = device.place(view.axis, view.cursor);
  const middle = at >= view.v0 && at <= view.v1 ? at : (view.v0 + view.v1) / 2;
  const { begin, end } = device.meta.steps;
  /** @type {Record<string, () => void>} */
  const actions = {
    w: () => zoom(middle, 0.7),
    s: () => zoom(middle, 1 / 0.7),
    a: () => pan(-0.2 * span),
    d: () => pan(0.2 * span),
    arrowleft: () => setCursor(view.cursor - (event.shiftKey ? 100 : 1), true),
    arrowright: () => setCursor(view.cursor + (event.shiftKey ? 100 : 1), true),
    "[": () => setCursor(end[lastBefore(end, view.cursor)] ?? begin[0] ?? view.cursor, true),
    "]": () => setCursor(end[clamp(0, lastAtMost(end, view.cursor) + 1, begin.length - 1)] ?? view.cursor, true),
    p: () => (event.shiftKey ? nextPeak() : setCursor(device.meta.peak.event, true)),
    "/": () => byId("query").focus(),
    n: () => nextHit(event.shiftKey),
    g: () => nextGroup(),
    t: () => nextAxis(),
    c: () => change({ b: view.b === null ? view.cursor : null }),
    z: () => undoView(),
    0: () => {
      pushView(view.v0, view.v1);
      setView(...wholeView(device), true);
    },
    "?": () => byId("help").showModal(),
  };
  const key = event.key.toLowerCase();
  // Arrows belong to tabs and tables while these have the focus.
  if (key.startsWith("arrow") && target.closest("[role=tablist], .table")) return;
  const action = actions[/** @type {"w"} */ (key)];
  if (action) {
    event.preventDefault();
    action();
  }
}

/** @param {HTMLElement} target */
function clearAll(target) {
  if (target.id === "query") target.blur();
  byId("detail").hidden = true;
  const cursor = tabs.cursor;
  if (cursor instanceof CursorTab) cursor.zoomed = [];
  if (view.q || view.b !== null) change({ q: "", b: null });
  else later("tab");
}

function helpDialog() {
  const words_ = [
    ["allocated", "bytes the program asked for and has not freed; torch rounds each block up"],
    ["reserved", "bytes that torch took from the driver: what is allocated, rounding and its cache"],
    ["device", "bytes in use on the device by anyone, as the driver tells"],
    ["event", "an allocation, a free, or a change of what is reserved"],
  ];
  const examples = ["attn", "cat:activation size>64MiB", "step:3 module:layers.*.attn", "line:model.py:120 alive:peak",
    "stack:train_step -op:aten::mul", "saved:softmax", "owner:weight"];
  return h("dialog", { id: "help", "aria-labelledby": "help-title", test: "help" },
    h("div.head", {}, h("h2", { id: "help-title" }, "Help"), h("button", { onclick: () => byId("help").close(), test: "help-close" }, "Close")),
    h("h3", {}, "Keys"), h("dl.keys", {}, KEYS.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])),
    h("p", {}, "Wheel zooms, drag pans, Shift-drag selects a range, click sets the cursor, double-click zooms to a step."),
    h("h3", {}, "Filter"), h("p", {}, "Words must all hold; a minus before a word means not; * stands for anything."),
    h("ul", {}, examples.map((text) => h("li", {}, h("button.link", { onclick: () => { byId("help").close(); change({ q: text }); } }, h("code", {}, text))))),
    h("p", {}, `Keys: ${Object.keys(KEY_NAMES).join(", ")}, size.`),
    h("h3", {}, "The three peaks, and other words"), h("dl", {}, words_.map(([word, text]) => [h("dt", {}, word), h("dd", {}, text)])));
}
