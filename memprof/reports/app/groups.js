// Dividing blocks by keys.  What a block's keys say depends on its category and site
// alone, so each pair is looked at once and then is a small number, its class.

/** Keys that a block itself decides, not its site. */
const OF_LIVES = ["step", "saved", "size"];

/** @typedef {{bytes: number, count: number, first: number, words: string[], cats: Float64Array}} Group */

const MOST = 60000; // classes remembered: with more a list or tree begins anew

/** The classes of one list of keys. */
class Classes {
  /** @param {Device} device @param {string[]} keys */
  constructor(device, keys) {
    this.device = device;
    this.keys = keys;
    this.byCategory = keys.includes("category");
    // Mostly all blocks of a site are of one category; other pairs are looked up.
    this.of = new Int32Array(device.nSites).fill(-1);
    this.catOf = new Uint8Array(this.byCategory ? device.nSites : 0);
    /** @type {Map<number, number>} */
    this.others = new Map();
    /** @type {string[][]} */
    this.words = [];
    /** @type {string[]} */
    this.names = [];
    /** @type {Map<string, number>} */
    this.known = new Map();
    this.bytes = new Float64Array(0);
    this.count = this.first = new Uint32Array(0);
    this.cats = new Float64Array(0);
  }

  /** @param {number} n */
  room(n) {
    this.bytes = new Float64Array(n);
    this.count = new Uint32Array(n);
    this.first = new Uint32Array(n);
    this.cats = new Float64Array(n * this.device.K);
  }

  /** @param {number} a a life @returns {number} its class */
  classOf(a) {
    const { cat, site, nSites } = this.device, s = site[a], k = this.of[s];
    if (k >= 0 && (!this.byCategory || this.catOf[s] === cat[a])) return k;
    const pair = cat[a] * nSites + s, other = k < 0 ? undefined : this.others.get(pair);
    if (other !== undefined) return other;
    const words = this.keys.map((key) => this.device.text(key, a)), name = words.join("\u0000");
    let found = this.known.get(name);
    if (found === undefined) {
      this.known.set(name, found = this.words.length);
      this.words.push(words);
      this.names.push(name);
    }
    if (k >= 0) this.others.set(pair, found);
    else {
      this.of[s] = found;
      if (this.byCategory) this.catOf[s] = cat[a];
    }
    return found;
  }

  /** Classes of all of LIVES are known, and there is room for their sums.
   * @param {Uint32Array} lives */
  prepare(lives) {
    for (let i = 0; i < lives.length; i++) this.classOf(lives[i]);
    if (this.words.length > this.bytes.length) this.room(this.words.length * 2);
  }

  /** The sums of LIVES, class by class; those of the last call are gone.
   * @param {Uint32Array} lives @returns {number[]} the classes that are there */
  sum(lives) {
    this.prepare(lives);
    const { bytes, count, first, cats } = this, { cat, si, sizes, K } = this.device;
    bytes.fill(0);
    count.fill(0);
    cats.fill(0);
    const there = [];
    for (let i = 0; i < lives.length; i++) {
      const a = lives[i], k = this.classOf(a), s = sizes[si[a]];
      if (!count[k]++) {
        first[k] = a;
        there.push(k);
      }
      bytes[k] += s;
      cats[k * K + cat[a]] += s;
    }
    return there;
  }

  /** @param {Uint32Array} lives @returns {Group[]} the largest first */
  groups(lives) {
    const there = this.sum(lives), { bytes, count, first, cats, words, names } = this, K = this.device.K;
    there.sort((x, y) => bytes[y] - bytes[x] || count[y] - count[x] || (names[x] < names[y] ? -1 : 1));
    return there.map((k) => ({ bytes: bytes[k], count: count[k], first: first[k], words: words[k], cats: cats.slice(k * K, k * K + K) }));
  }
}

/** Modules, ops and lines as a tree, made once; what is alive fills it. */
class Tree {
  /** @param {Device} device */
  constructor(device) {
    this.device = device;
    this.classes = new Classes(device, ["module", "op", "line"]);
    this.names = ["all"];
    this.marks = ["all"]; // in its parent; ops and lines are marked: a module may be called so
    this.parent = [-1];
    /** @type {Map<string, number>[]} */
    this.kids = [new Map()];
    /** @type {number[]} */
    this.leaf = []; // of each class
    this.bytes = new Float64Array(0);
    this.cats = new Float64Array(0);
  }

  /** @param {number} node @param {string} name @param {boolean} marked @returns {number} */
  kid(node, name, marked) {
    const mark = marked ? `\u0001${name}` : name, found = this.kids[node].get(mark);
    if (found !== undefined) return found;
    const kid = this.names.length;
    this.kids[node].set(mark, kid);
    this.names.push(name);
    this.marks.push(mark);
    this.parent.push(node);
    this.kids.push(new Map());
    return kid;
  }

  /** @param {Uint32Array} lives @param {{cat: number, bytes: number}[]} folded */
  fill(lives, folded) {
    const there = this.classes.sum(lives), { words, bytes, cats } = this.classes, K = this.device.K;
    for (const k of there) {
      if (this.leaf[k] !== undefined) continue;
      const [module, op, line] = words[k];
      let node = 0;
      for (const part of module ? module.split(".", 100) : ["no module"]) node = this.kid(node, part, false);
      this.leaf[k] = this.kid(this.kid(node, op || "no op", true), line || "no line", true);
    }
    const rest = folded.length ? this.kid(0, FOLDED, true) : 0, n = this.names.length;
    if (this.bytes.length < n) {
      this.bytes = new Float64Array(n * 2);
      this.cats = new Float64Array(n * 2 * K);
    } else {
      this.bytes.fill(0);
      this.cats.fill(0);
    }
    const add = (/** @type {number} */ node, /** @type {number} */ cat, /** @type {number} */ amount) => { this.cats[node * K + cat] += amount; };
    for (const k of there) {
      const node = this.leaf[k];
      this.bytes[node] += bytes[k];
      for (let c = 0; c < K; c++) add(node, c, cats[k * K + c]);
    }
    for (const part of folded) {
      this.bytes[rest] += part.bytes;
      add(rest, part.cat, part.bytes);
    }
    // Kids have higher numbers than their parents.
    for (let node = n - 1; node > 0; node--) {
      if (!this.bytes[node]) continue;
      this.bytes[this.parent[node]] += this.bytes[node];
      for (let c = 0; c < K; c++) add(this.parent[node], c, this.cats[node * K + c]);
    }
  }

  /** The kids of a node that hold something, the largest first. @param {number} node */
  held(node) {
    return [...this.kids[node].values()].filter((kid) => this.bytes[kid]).sort((a, b) => this.bytes[b] - this.bytes[a]);
  }

  /** The way to a node, without the root. @param {number} node @returns {number[]} */
  path(node) {
    const found = [];
    for (; node > 0; node = this.parent[node]) found.unshift(node);
    return found;
  }
}
