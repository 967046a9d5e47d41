// What the driver says beside torch: samples, the nearest to a moment, and the books.

/** @typedef {{title: string, method: string, device_method: string, why: string,
 *   us: Float64Array, event: Uint32Array, process: Float64Array, device: Float64Array,
 *   bytes: Float64Array}} Used */

/** The samples of a device; null: there are none. @param {any} said @param {Block} events
 * @returns {Used | null} */
function usedOf(said, events) {
  if (!events.use_us) return null;
  const own = said.title === "process";
  return { ...said, us: events.use_us, event: events.use_event, process: events.use_process,
    device: events.use_device, bytes: own ? events.use_process : events.use_device };
}

/** The sample that is nearest to an event, with what torch had reserved then.
 * @param {Device} device @param {number} event */
function nearestSample(device, event) {
  const used = device.used;
  if (!used) return null;
  const at = device.at(event);
  let i = lastAtMost(used.us, at);
  if (i < 0 || (i + 1 < used.us.length && used.us[i + 1] - at < at - used.us[i])) i += 1;
  if (used.bytes[i] < 0) return null;
  return { i, bytes: used.bytes[i], late: used.us[i] - at, device: used.device[i],
    reserved: device.reserved(used.event[i] - 1) };
}

/** @param {number} late microseconds */
const sampled = (late) => (late === 0 ? "sampled then" : `sampled ${time(Math.abs(late))} ${late > 0 ? "later" : "before"}`);

/** The table under the waterfall: what the driver says nearest to the cursor.
 * @param {Device} device */
function driverTable(device) {
  const used = device.used, gpu = device.meta.peak.reserved !== null;
  if (!used) {
    if (!gpu) return null;
    const why = device.meta.used && device.meta.used.why;
    return h("p.note", { test: "driver-none" }, `What else the device holds is not known: it was not sampled${why ? ` (${why})` : ""}.`);
  }
  const near = nearestSample(device, view.cursor);
  if (!near) return h("p.note", { test: "driver-none" }, "The sample nearest to the cursor has no figure.");
  const own = used.title === "process";
  const row = (/** @type {string} */ name, /** @type {number} */ bytes, sum = false, cls = "") => h(`tr${sum ? ".sum" : ""}`, {},
    h("th", { scope: "row" }, h("span.cat", {}, cls ? h(`i.${cls}`) : null, name)), h("td.n", { title: `${count(bytes)} bytes` }, size(bytes, 4)),
    h("td.n", {}, percent(bytes, near.bytes)));
  const rows = [];
  if (near.reserved !== null) {
    rows.push(row("torch reserved then", near.reserved));
    rows.push(row(own ? "outside torch" : "outside torch, and other processes", near.bytes - near.reserved, false, "c-outside"));
  }
  rows.push(row(gpu ? own ? "this process on the device" : "in use by all processes" : "resident, all of the process", near.bytes, true));
  return h("div", {}, h("h3", {}, "What the driver says ", h("span.muted", { test: "sample" }, `${sampled(near.late)}, ${own ? used.method : used.device_method}`)),
    h("div.scroll", {}, h("table.fall", { test: "driver" }, h("caption.quiet", {}, "the sample nearest to the cursor"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "part"), h("th.n", { scope: "col" }, "size"), h("th.n", { scope: "col" }, "%"))),
      h("tbody", {}, rows))),
    own && gpu && near.device >= 0 ? h("p.note", {}, `All processes use ${size(near.device, 4)} of the device (${used.device_method}).`) : null);
}

/** The books of the peak: by library, rows that sum to the driver's figure.
 * @param {Device} device */
function booksTable(device) {
  const books = device.meta.books;
  if (!books) return null;
  const table = (/** @type {string} */ name, /** @type {any[]} */ rows, /** @type {string} */ test) => {
    const whole = rows.reduce((sum, row) => sum + row[1], 0);
    return h("table.fall", { test }, h("caption.quiet", {}, name),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "owner"), h("th.n", { scope: "col" }, "size"), h("th.n", { scope: "col" }, "%"), h("th", { scope: "col" }, "note"))),
      h("tbody", {}, rows.map((row) => h("tr", {}, h("th", { scope: "row" }, row[0]), h("td.n", { title: `${count(row[1])} bytes` }, size(row[1], 4)),
        h("td.n", {}, percent(row[1], whole)), h("td.note", {}, row[2]))),
      h("tr.sum", {}, h("th", { scope: "row" }, name), h("td.n", { title: `${count(whole)} bytes` }, size(whole, 4)), h("td.n", {}, "100.0"), h("td", {}, `${count(whole)} bytes`))));
  };
  const age = Math.round(books.age_ns / 1000);
  return h("details", { test: "books", open: true }, h("summary", {}, "The books of the peak: who holds what of the device"),
    h("div.scroll", { tabindex: 0, role: "region", "aria-label": "books" },
      table(books.own ? "process total" : "all processes", books.rows, "books-table"),
      books.device_rows.length ? table("device in use", books.device_rows, "books-device") : null),
    h("p.note", {}, `${sampled(age)}${books.method ? ` by ${books.method}` : ""}. Level ${books.level}: ${books.level_text}${books.why ? `: ${books.why}` : ""}.`),
    books.notes.map((/** @type {string} */ note) => h("p.note", {}, note)));
}
