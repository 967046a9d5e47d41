// What is said first: the sentence, the figures, the largest holders, findings, notes.

function showHeadline() {
  const device = /** @type {Device} */ (current()), peak = device.meta.peak, d = device.meta;
  const figure = (title, text, note, go, test) => h("div.figure", {}, h("span.title", {}, title),
    go ? h("button.big", { onclick: go, test, title: "show in the overview" }, text) : h("span.big", { test }, text), h("span.muted", {}, note));
  const toPeak = () => setCursor(peak.event, true);
  const alive = device.totals(device.nE - 1).total;
  const usedFigure = () => {
    const near = nearestSample(device, peak.event), used = /** @type {Used} */ (device.used);
    if (!near) return figure("in use on the device", "not known", used.why, null, "figure-used");
    const outside = near.reserved === null ? "" : `${size(near.bytes - near.reserved)} outside torch, `;
    return figure(used.title === "process" ? "held by the process" : "used by all processes", size(near.bytes, 4),
      `${outside}${sampled(near.late)}`, toPeak, "figure-used");
  };
  const parts = [
    figure("peak allocated", size(peak.bytes, 4), `${count(peak.bytes)} bytes`, toPeak, "figure-peak"),
    peak.reserved === null ? null : !device.segmentsSeen ? figure("reserved then", "not known", "no segments were seen", null, "figure-reserved") : figure("reserved then", size(peak.reserved, 4), `${size(peak.reserved - peak.bytes)} rounding and cache`,
      () => { change({ tab: device.addr ? "frag" : "cursor" }); toPeak(); }, "figure-reserved"),
    figure("at the end", size(alive, 4), "still allocated", () => setCursor(device.nE - 1, true), "figure-end"),
    figure("steps", d.steps.number.length ? count(d.steps.number.length) : "none", d.steps.number.length ? `numbers ${d.steps.number[0]} to ${d.steps.number[d.steps.number.length - 1]}` : "not marked", null, "figure-steps"),
    figure("out of memory", d.notes.some((/** @type {string} */ n) => n.startsWith("out of memory")) ? `${device.oom.length}×` : "no", "", device.oom.length ? () => setCursor(device.oom[0], true) : null, "figure-oom"),
    device.used ? usedFigure() : peak.reserved === null ? null : figure("in use on the device", "not sampled", "what is outside of torch is not known", null, "figure-used"),
    d.total_bytes ? figure("device", size(d.total_bytes), `peak is ${peak.bytes / d.total_bytes < 0.001 ? "less than 0.1" : percent(peak.bytes, d.total_bytes)} %`, null, "figure-device") : null,
  ];
  const opened = view.d === meta.opened;
  const holders = opened ? meta.holders.filter((/** @type {any} */ row) => !row.rest) : [];
  const quoted = (/** @type {string} */ key, /** @type {string} */ text) => (text ? ` ${key}:"${text}"` : "");
  byId("headline").replaceChildren(
    h("h1", { test: "sentence" }, opened ? meta.sentence : `Peak ${size(peak.bytes, 4)} on ${d.name}`),
    h("div.figures", {}, parts),
    holders.length ? h("div.holders", {}, h("h2", {}, "Largest at the peak"), h("ol", {}, holders.map((/** @type {any} */ row) => h("li", {},
      h("button.link", { onclick: () => { setCursor(peak.event, true); change({ tab: "cursor", q: `cat:${row.category}${quoted("module", row.module)}${quoted("op", row.op)}${quoted("line", row.line)} alive:peak` }); } },
        `${size(row.bytes)} ${words(row.category)}`), " ", h("bdi", {}, [row.module, row.op, row.line || row.owner].filter(Boolean).join(" · ")), " ",
      h("span.muted", {}, `${percent(row.bytes, peak.bytes)} %, ${counted(row.count, "block")}`))))) : "");
  const found = meta.findings;
  byId("findings").replaceChildren(found && found.length ? h("ol", {}, found.map((/** @type {any} */ one) => h("li", {},
    one.tab || one.q ? h("button.link", { onclick: () => change({ tab: one.tab || view.tab, q: one.q || "" }) }, one.text) : one.text)))
    : h("p.note", {}, found ? "Findings: none." : "Findings: this version looks for none by itself; the tabs show what is there."));
  const all = [...meta.notes, ...d.notes];
  const serious = /dropped|cut|damaged|behind the last|out of memory|left out/;
  const loud = all.filter((note) => serious.test(note)), quiet = all.filter((note) => !serious.test(note));
  byId("notes").replaceChildren(
    loud.length ? h("ul.loud", { test: "warnings" }, loud.map((note) => h("li", {}, note))) : "",
    quiet.length ? h("details", { test: "notes" }, h("summary", {}, `${counted(quiet.length, "thing")} to know about this recording`), h("ul", {}, quiet.map((note) => h("li", {}, note)))) : "");
}
