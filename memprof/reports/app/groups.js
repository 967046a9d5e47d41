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
    /** @type {Wholes} of each site its class + 1; 0: not looked at */
    this.of = new Uint16Array(device.nSites);
    this.catOf = new Uint8Array(this.byCategory ? device.nSites : 0);
    /** @type {Map<number, number>} */
    this.others = new Map();
    /** @type {string[][]} */
    this.words = [];
    /** @type {string[]} */
    this.names = [];
    /** @type {Map<string, number>} */
    this.known = new Map();
    // The sums of those classes that are there, side by side; of all classes, where + 1.
    this.where = new Uint32Array(0);
    this.bytes = new Float64Array(0);
    this.count = this.first = new Uint32Array(0);
    this.cats = new Float64Array(0);
  }

  /** @param {number} n classes */
  room(n) {
    if (n <= this.bytes.length) return;
    this.bytes = new Float64Array(2 * n);
    this.count = new Uint32Array(2 * n);
    this.first = new Uint32Array(2 * n);
    this.cats = new Float64Array(2 * n * this.device.K);
  }

  /** @param {number} a a life @returns {number} its class */
  classOf(a) {
    const { cat, site, nSites } = this.device, s = site[a], k = this.of[s] - 1;
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
      if (found === 0xffff && this.of instanceof Uint16Array) this.of = Uint32Array.from(this.of);
      this.of[s] = found + 1;
      if (this.byCategory) this.catOf[s] = cat[a];
    }
    return found;
  }

  /** The sums of LIVES, class by class: those of the I-th that is there lie at I; those
   * of the last call are gone.
   * @param {Uint32Array} lives @returns {number[]} the classes that are there */
  sum(lives) {
    const { cat, si, sizes, K } = this.device;
    /** @type {number[]} */
    const there = [];
    for (let i = 0; i < lives.length; i++) {
      const k = this.classOf(lives[i]);
      if (k >= this.where.length) this._longer(k);
      if (!this.where[k]) this.where[k] = there.push(k);
    }
    this.room(there.length);
    const { where, bytes, count, first, cats } = this;
    bytes.fill(0, 0, there.length);
    count.fill(0, 0, there.length);
    cats.fill(0, 0, there.length * K);
    for (let i = 0; i < lives.length; i++) {
      const a = lives[i], at = where[this.classOf(a)] - 1, s = sizes[si[a]];
      if (!count[at]++) first[at] = a;
      bytes[at] += s;
      cats[at * K + cat[a]] += s;
    }
    for (const k of there) where[k] = 0;
    return there;
  }

  /** @param {number} k a class that WHERE has no room for */
  _longer(k) {
    const longer = new Uint32Array(2 * k + 64);
    longer.set(this.where);
    this.where = longer;
  }

  /** @param {Uint32Array} lives @returns {Group[]} the largest first */
  groups(lives) {
    const { words, names } = this, there = this.sum(lives), { bytes, count, first, cats } = this, K = this.device.K;
    const order = [...there.keys()].sort((x, y) => bytes[y] - bytes[x] || count[y] - count[x]
      || (names[there[x]] < names[there[y]] ? -1 : 1));
    return order.map((i) => ({ bytes: bytes[i], count: count[i], first: first[i], words: words[there[i]], cats: cats.slice(i * K, i * K + K) }));
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
    /** @type {(Map<string, number> | null)[]} */
    this.kids = [null]; // most nodes are leaves
    /** @type {number[]} */
    this.leaf = []; // of each class
    this.bytes = new Float64Array(0);
    this.cats = new Float64Array(0);
  }

  /** @param {number} node @param {string} name @param {boolean} marked @returns {number} */
  kid(node, name, marked) {
    const mark = marked ? `\u0001${name}` : name, kids = this.kids[node] || (this.kids[node] = new Map());
    const found = kids.get(mark);
    if (found !== undefined) return found;
    const kid = this.names.length;
    kids.set(mark, kid);
    this.names.push(name);
    this.marks.push(mark);
    this.parent.push(node);
    this.kids.push(null);
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
    there.forEach((k, i) => {
      const node = this.leaf[k];
      this.bytes[node] += bytes[i];
      for (let c = 0; c < K; c++) add(node, c, cats[i * K + c]);
    });
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
    return [...(this.kids[node] || new Map()).values()].filter((kid) => this.bytes[kid]).sort((a, b) => this.bytes[b] - this.bytes[a]);
  }

  /** The way to a node, without the root. @param {number} node @returns {number[]} */
  path(node) {
    const found = [];
    for (; node > 0; node = this.parent[node]) found.unshift(node);
    return found;
  }
}
