// Real tables: of any length, with few rows in the document; sorted by their heads.

const ROW = 26; // CSS pixels
const IN_DOCUMENT = 40;
const TALLEST = 6e6; // browsers cap how far a box can scroll

/**
 * @typedef {{title: string, number?: boolean, sort?: boolean, down?: boolean, wide?: boolean,
 *   cell: (row: number) => any, text: (row: number) => string}} TableColumn
 */

class Table {
  /**
   * @param {{label: string, test: string, columns: TableColumn[], rows: number,
   *   height?: number, sorted?: number, down?: boolean, selected?: (row: number) => boolean,
   *   onsort?: (column: number, down: boolean) => void, onpick?: (row: number) => void,
   *   foot?: any[]}} options
   */
  constructor(options) {
    this.o = options;
    this.first = -1;
    this.active = -1;
    this.body = h("tbody");
    this.table = h("table", { "aria-rowcount": options.rows + 1 },
      h("caption.quiet", {}, options.label),
      h("thead", {}, h("tr", { "aria-rowindex": 1 }, options.columns.map((column, i) => this._head(column, i)))),
      this.body,
      options.foot ? h("tfoot", {}, h("tr", {}, options.foot.map((cell, i) =>
        h(options.columns[i].number ? "td.n" : "td", {}, cell)))) : null);
    this.box = h("div.table", { tabindex: 0, role: "region", "aria-label": options.label,
      test: options.test, onscroll: () => later(this), onkeydown: (/** @type {KeyboardEvent} */ e) => this._key(e) },
      this.table);
    const tall = Math.min(Math.max(options.rows, 1), IN_DOCUMENT) * ROW + 70;
    this.box.style.maxHeight = `${Math.min(options.height || 420, tall)}px`;
    this.draw();
  }

  /** @param {TableColumn} column @param {number} i */
  _head(column, i) {
    const { sorted, down, onsort } = this.o;
    const is = sorted === i;
    const props = { scope: "col", "aria-sort": is ? (down ? "descending" : "ascending") : null };
    if (!onsort || column.sort === false) return h(column.number ? "th.n" : "th", props, column.title);
    return h(column.number ? "th.n" : "th", props, h("button.sort", {
      onclick: () => onsort(i, is ? !down : column.down ?? Boolean(column.number)),
    }, column.title, h("span", { "aria-hidden": "true" }, is ? (down ? " ▾" : " ▴") : "")));
  }

  draw() {
    const rows = this.o.rows;
    const whole = rows * ROW;
    const tall = Math.min(whole, TALLEST);
    const room = Math.max(tall - this.box.clientHeight, 1);
    // Far down in a long table a pixel is many rows: the position is mapped.
    const share = whole > TALLEST ? clamp(0, this.box.scrollTop / room, 1) : 0;
    const first = whole > TALLEST
      ? Math.round(share * Math.max(rows - IN_DOCUMENT, 0))
      : clamp(0, Math.floor(this.box.scrollTop / ROW) - 9, Math.max(rows - IN_DOCUMENT, 0));
    if (first === this.first) return;
    this.first = first;
    const last = Math.min(first + IN_DOCUMENT, rows);
    const above = whole > TALLEST ? clamp(0, this.box.scrollTop - share * IN_DOCUMENT * ROW * 0.5, tall) : first * ROW;
    const spacer = (/** @type {number} */ height) => {
      const cell = h("td", { colspan: this.o.columns.length });
      cell.style.height = `${Math.max(height, 0)}px`;
      cell.style.padding = "0";
      return h("tr.space", { "aria-hidden": "true" }, cell);
    };
    const parts = [];
    if (above > 0) parts.push(spacer(above));
    for (let row = first; row < last; row++) parts.push(this._row(row));
    const below = tall - above - (last - first) * ROW;
    if (below > 0) parts.push(spacer(below));
    if (!rows) parts.push(h("tr", {}, h("td.none", { colspan: this.o.columns.length }, "nothing")));
    this.body.replaceChildren(...parts);
  }

  /** @param {number} row */
  _row(row) {
    const { columns, selected, onpick } = this.o;
    const is = selected ? selected(row) : false;
    return h(`tr${is || row === this.active ? ".on" : ""}${onpick ? ".pick" : ""}`, {
      "aria-rowindex": row + 2, "data-row": row,
      onclick: onpick ? () => {
        this.active = row;
        onpick(row);
        this._mark();
      } : null,
    }, columns.map((column) => {
      const cell = column.cell(row);
      return h(column.number ? "td.n" : column.wide ? "td.wide" : "td",
        { title: typeof cell === "string" && cell.length > 24 ? cell : null }, cell);
    }));
  }

  _mark() {
    for (const tr of this.body.children) {
      tr.classList.toggle("on", Number(tr.getAttribute("data-row")) === this.active && tr.hasAttribute("data-row"));
    }
  }

  /** @param {KeyboardEvent} event */
  _key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12 }[event.key];
    const { rows, onpick } = this.o;
    if (event.target !== this.box || !onpick || !rows) return;
    if (by || event.key === "Home" || event.key === "End") {
      event.preventDefault();
      event.stopPropagation();
      this.active = event.key === "Home" ? 0 : event.key === "End" ? rows - 1
        : clamp(0, this.active + (by || 0), rows - 1);
      const whole = rows * ROW;
      if (whole > TALLEST) this.box.scrollTop = (this.active / rows) * TALLEST;
      else {
        const at = this.active * ROW, low = this.box.scrollTop, high = low + this.box.clientHeight - 3 * ROW;
        if (at < low) this.box.scrollTop = at;
        else if (at > high) this.box.scrollTop = at - this.box.clientHeight + 3 * ROW;
      }
      this.draw();
      this._mark();
      onpick(this.active);
      say(this.o.columns.map((column) => `${column.title} ${column.text(this.active)}`).join(", "));
    }
  }

  /** The whole table as text. @param {boolean} markdown */
  copy(markdown) {
    const { columns, rows } = this.o;
    const clean = (/** @type {string} */ text) => markdown ? text.replace(/\|/g, "\\|").replace(/\s+/g, " ")
      : text.replace(/[\t\r\n]+/g, " ");
    const line = (/** @type {string[]} */ cells) =>
      markdown ? `| ${cells.map(clean).join(" | ")} |` : cells.map(clean).join("\t");
    const out = [line(columns.map((column) => column.title))];
    if (markdown) out.push(`|${columns.map((column) => (column.number ? "--:" : "---")).join("|")}|`);
    const most = Math.min(rows, 100000);
    for (let row = 0; row < most; row++) out.push(line(columns.map((column) => column.text(row))));
    return out.join("\n") + "\n";
  }

  /** Buttons that copy the table. */
  buttons() {
    const put = (/** @type {boolean} */ markdown) => copyText(this.copy(markdown));
    return h("span.buttons", {},
      h("button", { onclick: () => put(false), test: `${this.o.test}-tsv` }, "Copy TSV"),
      h("button", { onclick: () => put(true), test: `${this.o.test}-md` }, "Copy Markdown"));
  }
}

/** @param {string} text */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch (error) { // no permission, as in a notebook's frame
    const area = h("textarea", { "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say("copied");
}

/** A cell with a bar of category colours and the bytes in it.
 * @param {ArrayLike<number>} cats @param {number} whole */
function bar(cats, whole) {
  const parts = STACKING.map((name) => {
    const k = meta.categories.indexOf(name);
    return k >= 0 && cats[k] > 0 && whole > 0
      ? h("i", { class: `c-${name}`, "width%": (100 * cats[k]) / whole }) : null;
  });
  return h("span.bar", { "aria-hidden": "true" }, parts);
}

/** A swatch and the name of a category. @param {string} name */
function swatch(name) {
  return h("span.cat", {}, h("i", { class: `c-${name}`, "aria-hidden": "true" }), words(name));
}
