// The filter language: words that must all hold.
//   attn                 somewhere in module, op, line, function, owner, region or shape
//   cat:activation module:layers.*.attn op: line: owner: function: region: shape: stack:
//   saved: label: phase: stream: pool: step:3 step:3-5 size>64MiB size<=4096
//   alive:peak alive:cursor alive:end        a minus before a word: not

const TEXT_KEYS = ["module", "op", "line", "function", "owner", "region", "shape", "label",
  "stream"];
const KEY_NAMES = { cat: "category", category: "category", module: "module", op: "op",
  line: "line", file: "line", function: "function", owner: "owner", region: "region",
  shape: "shape", label: "label", stream: "stream", phase: "phase", pool: "pool",
  stack: "stack", step: "step", saved: "saved", alive: "alive", reason: "reason" };

class FilterError extends Error {}

/** @param {string} text @returns {string[]} words; quotes keep spaces together */
function filterWords(text) {
  return (text.match(/(?:[^\s"]|"[^"]*"?)+/g) || []).map((word) => word.replace(/"/g, ""));
}

/** A test of a text: with * a pattern for the whole, else a part. @param {string} pattern */
function matcher(pattern) {
  const low = pattern.toLowerCase();
  if (!low.includes("*")) return (/** @type {string} */ text) => text.includes(low);
  const source = low.split("*").map((part) => part.replace(/[.+?^${}()|[\]\\]/g, "\\$&"));
  const regex = new RegExp(`^${source.join(".*")}$`, "s");
  return (/** @type {string} */ text) => regex.test(text);
}

/** @param {string} text @returns {number} bytes */
function parseSize(text) {
  const found = /^([\d.]+)\s*([kmgt]?)(i?)(b?)$/i.exec(text);
  if (!found || Number.isNaN(Number(found[1]))) {
    throw new FilterError(`“${text}” is no size; write 64MiB, 1.5GiB, 4096`);
  }
  const power = found[2] ? "kmgt".indexOf(found[2].toLowerCase()) + 1 : 0;
  return Number(found[1]) * (found[3] || !found[4] || !power ? 1024 : 1000) ** power;
}

/**
 * Find the lives of DEVICE that QUERY is true of.
 * @param {Device} device @param {string} query @param {number} cursor event
 * @returns {{mask: Uint8Array, count: number}}
 */
function filtered(device, query, cursor) {
  const mask = new Uint8Array(device.nA).fill(1);
  for (let word of filterWords(query)) {
    const not = word.length > 1 && word.startsWith("-");
    if (not) word = word.slice(1);
    const one = oneWord(device, word, cursor);
    for (let a = 0; a < mask.length; a++) if (Boolean(one(a)) === not) mask[a] = 0;
  }
  let found = 0;
  for (let a = 0; a < mask.length; a++) found += mask[a];
  return { mask, count: found };
}

/** @param {Device} device @param {string} word @param {number} cursor
 * @returns {(a: number) => any} */
function oneWord(device, word, cursor) {
  const { site, sites, nSites, cat, si, sizes, names } = device;
  const compared = /^size(>=|<=|>|<|=|:)(.+)$/i.exec(word);
  if (compared) {
    const limit = parseSize(compared[2]);
    /** @type {Record<string, (s: number) => boolean>} */
    const tests = { ">": (s) => s > limit, "<": (s) => s < limit, ">=": (s) => s >= limit,
      "<=": (s) => s <= limit, "=": (s) => s === limit, ":": (s) => s === limit };
    const good = Uint8Array.from(sizes, (s) => Number(tests[compared[1]](s)));
    return (a) => good[si[a]];
  }
  const colon = word.indexOf(":");
  const head = colon > 0 ? word.slice(0, colon).toLowerCase() : "";
  const key = Object.hasOwn(KEY_NAMES, head) ? KEY_NAMES[/** @type {"cat"} */ (head)] : "";
  if (!key) {
    // aten::mul and model.py:12 have colons too; a misspelt key is told.
    if (/^[a-z]+$/.test(head) && !word.includes("::") && colon < word.length - 1
      && !/[.\d]/.test(head) && !names.lowered().some((text) => text.includes(word.toLowerCase()))) {
      throw new FilterError(`there is no key “${head}:”; keys: ${Object.keys(KEY_NAMES).join(" ")} size`);
    }
    const good = textHits(device, matcher(word));
    const siteGood = new Uint8Array(nSites);
    for (const name of TEXT_KEYS) {
      const column = sites[`s_${name}`];
      for (let s = 0; s < nSites; s++) siteGood[s] |= good[column[s]];
    }
    const catGood = Uint8Array.from(device.categories, (c) => Number(matcher(word)(words(c)) || matcher(word)(c)));
    return (a) => siteGood[site[a]] || catGood[cat[a]];
  }
  const value = word.slice(colon + 1);
  if (key === "alive") {
    const places = { peak: device.meta.peak.event, cursor, end: device.nE - 1 };
    if (!Object.hasOwn(places, value)) throw new FilterError("alive: is peak, cursor or end");
    const event = places[/** @type {"peak"} */ (value)];
    return (a) => device.birth[a] <= event + 1 && device.death[a] > event;
  }
  if (key === "step") {
    const range = /^(-?\d+)(?:-(\d+))?$/.exec(value);
    if (!range) throw new FilterError("step: is a number or a range, step:3 or step:3-5");
    const low = Number(range[1]), high = Number(range[2] ?? range[1]);
    const numbers = device.meta.steps.number;
    const good = Uint8Array.from([0, ...numbers], (n, k) => Number(k > 0 && n >= low && n <= high));
    const steps = device.stepOf();
    return (a) => good[steps[a]];
  }
  const test = matcher(value);
  if (key === "category") {
    const good = Uint8Array.from(device.categories, (c) => Number(test(c) || test(words(c))));
    return (a) => good[cat[a]];
  }
  if (key === "saved") {
    if (!device.fate) throw new FilterError("what blocks were saved for is not in this report");
    const fate = device.fate, good = textHits(device, test);
    return (a) => good[fate[a]];
  }
  let siteGood;
  if (key === "phase" || key === "reason") {
    const texts = key === "phase" ? meta.phases : meta.reasons;
    const column = sites[`s_${key}`];
    siteGood = Uint8Array.from(column, (i) => Number(test(texts[i])));
  } else if (key === "pool") {
    siteGood = Uint8Array.from(sites.s_pool, (i) => Number(String(i) === value));
  } else if (key === "stack") {
    const good = stackHits(device, test);
    siteGood = Uint8Array.from(sites.s_stack, (node, s) =>
      good[node] || good[sites.s_forward_stack[s]]);
  } else {
    const good = textHits(device, test);
    siteGood = Uint8Array.from(sites[`s_${key}`], (i) => good[i]);
  }
  return (a) => siteGood[site[a]];
}

/** @param {Device} device @param {(text: string) => boolean} test @returns {Uint8Array} */
function textHits(device, test) {
  const texts = device.names.lowered();
  const good = new Uint8Array(texts.length);
  for (let i = 0; i < texts.length; i++) good[i] = Number(test(texts[i]));
  return good;
}

/** Trie nodes with a frame, themselves or below, that a test is true of.
 * @param {Device} device @param {(text: string) => boolean} test */
function stackHits(device, test) {
  const b = device.names.block, texts = device.names.lowered();
  const frame = new Uint8Array(b.f_line.length);
  for (let f = 0; f < frame.length; f++) {
    frame[f] = Number(test(`${texts[b.f_function[f]]} ${texts[b.f_file[f]]}:${b.f_line[f]}`));
  }
  const node = new Uint8Array(b.n_parent.length);
  for (let n = 1; n < node.length; n++) node[n] = node[b.n_parent[n]] | frame[b.n_frame[n]];
  return node;
}
