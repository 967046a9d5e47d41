// Small things that every part needs: elements, numbers as text, colours.

/** Messages of everything that went wrong. @type {string[]} */
const errors = [];
addEventListener("error", (event) => errors.push(String(event.message)));
addEventListener("unhandledrejection", (event) => errors.push(String(event.reason)));

/**
 * Make an element.  Texts become text nodes: a name is never read as markup.
 * @param {string} tag name, with classes behind dots
 * @param {Record<string, any>} [props] attributes; `on...` are listeners
 * @param {...any} children elements, texts, or null for nothing
 * @returns {any}
 */
function h(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(props || {})) {
    if (value === null || value === undefined) continue;
    if (key.startsWith("aria-")) element.setAttribute(key, String(value));
    else if (value === false) continue;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "width%") element.style.width = `${value}%`;
    else if (key === "left%") element.style.left = `${value}%`;
    else if (key === "paint") element.style.background = value;
    else if (key === "test") element.setAttribute("data-testid", value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** @param {string} id @returns {any} */
const byId = (id) => document.getElementById(id);

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/**
 * Write bytes in IEC units; as memprof.reports.units.size_text does.
 * @param {number} amount @param {number} [digits]
 */
function size(amount, digits = 3) {
  let value = Math.abs(amount);
  let unit = 0;
  const places = (/** @type {number} */ v) =>
    Math.max(digits - String(Math.trunc(v)).length, 0);
  while (unit + 1 < UNITS.length) {
    if (Number(value.toFixed(unit ? places(value) : 0)) < 1024) break;
    value /= 1024;
    unit += 1;
  }
  if (unit === 0) return `${amount} B`;
  const rounded = Number(value.toFixed(digits));
  return `${amount < 0 ? "-" : ""}${value.toFixed(places(rounded))} ${UNITS[unit]}`;
}

/** @param {number} amount */
const signed = (amount) => (amount > 0 ? `+${size(amount)}` : amount < 0 ? size(amount) : "0 B");

/** Write a count in groups of three digits. @param {number} number */
const count = (number) => String(number).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");

/** @param {number} number @param {string} what */
const counted = (number, what) => `${count(number)} ${what}${number === 1 ? "" : "s"}`;

/** Write a time. @param {number} us microseconds */
function time(us) {
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${(us / 1000).toPrecision(us < 1e5 ? 4 : 6)} ms`;
  return `${(us / 1e6).toFixed(us < 1e8 ? 3 : 1)} s`;
}

/** Write a place of a time axis whose marks are STEP apart. @param {number} us @param {number} step */
function timeMark(us, step) {
  const [unit, name] = step >= 1e5 ? [1e6, "s"] : step >= 100 ? [1e3, "ms"] : [1, "µs"];
  const places = clamp(0, Math.ceil(-Math.log10(step / unit) - 1e-9), 3);
  return us ? `${(us / unit).toFixed(places)} ${name}` : "0";
}

/** The greatest number; 0 if there is none.  Of any length, as Math.max(...values) is not.
 * @param {Iterable<number>} values */
function greatest(values) {
  let most = 0;
  for (const value of values) if (value > most) most = value;
  return most;
}

/** @param {number} part @param {number} whole */
const percent = (part, whole) => (whole > 0 ? ((100 * part) / whole).toFixed(1) : "0.0");

/** @param {number} low @param {number} value @param {number} high */
const clamp = (low, value, high) => Math.min(Math.max(value, low), high);

/** Turn an id of Python's into words. @param {string} id */
const words = (id) => id.replace(/_/g, " ");

// Colours are those of the style sheet, read again when the theme changes.
/** @type {Record<string, string>} */
let colours = {};
/** @type {Record<string, CanvasPattern | null>} */
let patterns = {};

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["page", "panel", "text", "muted", "axis", "grid", "focus", "limit",
    "warning", "good", ...CATEGORY_NAMES.flatMap((name) => [name, `on-${name}`])];
  colours = Object.fromEntries(names.map((name) =>
    [name, style.getPropertyValue(`--${name}`).trim()]));
  patterns = {};
}

const CATEGORY_NAMES = ["parameter", "optimizer_state", "gradient", "workspace", "temporary",
  "activation", "input", "autograd_detail", "unknown", "overhead"];

// Drawn from the bottom in this order, whatever the file's numbers are.
const STACKING = ["parameter", "optimizer_state", "gradient", "workspace", "temporary",
  "activation", "input", "autograd_detail", "unknown"];

// Categories told apart by more than colour when patterns are on.
const MARKS = ["", "lines", "back", "dots", "grid", "wide", "rings", "steep", "dash"];

/**
 * The fill of a category: its colour, with a pattern if these are on.
 * @param {CanvasRenderingContext2D} g @param {string} name @param {boolean} marked
 * @returns {string | CanvasPattern}
 */
function fill(g, name, marked) {
  const always = name === "workspace" || name === "overhead";
  if (!marked && !always) return colours[name];
  const mark = name === "overhead" ? "cross" : name === "workspace" ? "dots"
    : MARKS[STACKING.indexOf(name)] || "";
  const key = name + mark;
  if (!(key in patterns)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const p = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
    p.fillStyle = colours[name];
    p.fillRect(0, 0, 8, 8);
    p.strokeStyle = p.fillStyle = colours[`on-${name}`];
    p.globalAlpha = 0.35;
    p.beginPath();
    if (mark === "dots") p.fillRect(1, 1, 2, 2), p.fillRect(5, 5, 2, 2);
    if (mark === "rings") p.arc(4, 4, 2.5, 0, 7);
    if (mark === "lines" || mark === "cross") p.moveTo(0, 8), p.lineTo(8, 0);
    if (mark === "back" || mark === "cross") p.moveTo(0, 0), p.lineTo(8, 8);
    if (mark === "grid") p.moveTo(4, 0), p.lineTo(4, 8), p.moveTo(0, 4), p.lineTo(8, 4);
    if (mark === "wide") p.moveTo(0, 4), p.lineTo(8, 4);
    if (mark === "steep") p.moveTo(4, 0), p.lineTo(4, 8);
    if (mark === "dash") p.moveTo(0, 2), p.lineTo(4, 2), p.moveTo(4, 6), p.lineTo(8, 6);
    p.stroke();
    patterns[key] = g.createPattern(tile, "repeat");
  }
  return patterns[key] || colours[name];
}

/**
 * A canvas of the size of its box in device pixels, scaled to CSS pixels.
 * @param {HTMLCanvasElement} canvas @param {number} width @param {number} height
 * @returns {CanvasRenderingContext2D}
 */
function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const w = Math.max(1, Math.round(width * ratio));
  const t = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== w || canvas.height !== t) {
    canvas.width = w;
    canvas.height = t;
    canvas.style.height = `${height}px`;
  }
  const g = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  g.font = FONT;
  return g;
}

const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif";

/** Cut a text to a width. @param {CanvasRenderingContext2D} g @param {string} text
 * @param {number} width */
function cut(g, text, width) {
  if (width < 14) return "";
  if (text.length * 12 < width || g.measureText(text).width <= width) return text;
  let low = 0, high = Math.min(text.length, Math.ceil(width / 2));
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (g.measureText(text.slice(0, middle) + "…").width <= width) low = middle;
    else high = middle - 1;
  }
  return low > 1 ? text.slice(0, low) + "…" : "";
}

/** Steps of an axis in bytes: powers of two times 1, 2 or 4 ... at most N.
 * @param {number} top @param {number} wanted @returns {number[]} */
function byteTicks(top, wanted) {
  if (top <= 0) return [0];
  let step = 2 ** Math.ceil(Math.log2(top / wanted));
  if (step < 1) step = 1;
  const ticks = [];
  for (let at = 0; at <= top; at += step) ticks.push(at);
  return ticks;
}

/** @param {number} low @param {number} high @param {number} wanted @returns {number[]} */
function ticks(low, high, wanted) {
  const raw = (high - low) / Math.max(wanted, 1);
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((m) => m * power >= raw) || 10);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  return found;
}
