// One device's lives and events, and what is asked of them.  Every number that a
// view shows comes from here; every answer is exact.

const BLOCK = 256; // events in a block of the pyramid
const EXACT = 150000; // so many events are replayed rather than looked up in blocks
const ALIVE = 0xffffffff;
const FOLDED = "(folded: small, short-lived)";

/** Texts, frames and stacks that all devices share. */
class Names {
  /** @param {Block} block */
  constructor(block) {
    /** @type {string[]} */
    this.strings = block.meta.strings;
    /** @type {string[] | undefined} */
    this.source = block.meta.source;
    this.block = block;
    /** @type {string[] | null} */
    this.lower = null;
  }

  /** Texts in lower case. @returns {string[]} */
  lowered() {
    if (!this.lower) this.lower = this.strings.map((text) => text.toLowerCase());
    return this.lower;
  }

  /** Frames of a trie node, innermost first.
   * @param {number} node @returns {{fn: string, file: string, line: number, library: boolean,
   *   source: string}[]} */
  stack(node) {
    const frames = [];
    const b = this.block;
    for (; node; node = b.n_parent[node]) {
      const f = b.n_frame[node];
      frames.push({
        fn: this.strings[b.f_function[f]],
        file: this.strings[b.f_file[f]],
        line: b.f_line[f],
        library: Boolean(b.f_library[f]),
        source: this.source ? this.source[f] : "",
      });
    }
    return frames;
  }
}

class Device {
  /**
   * @param {any} meta @param {Block} allocs @param {Block} events @param {Block | null} addr
   * @param {Block | null} fold @param {Names} names @param {string[]} categories
   */
  constructor(meta, allocs, events, addr, fold, names, categories) {
    this.meta = meta;
    this.names = names;
    this.categories = categories;
    this.K = categories.length;
    this.nA = allocs.birth.length;
    this.nE = events.gap.length;
    /** @type {Uint32Array} birth event + 1; 0: older than the recording */
    this.birth = allocs.birth;
    /** @type {Wholes} events from birth to death */
    const life = allocs.life;
    /** @type {Uint32Array} death event; nE: alive at the end */
    this.death = life instanceof Uint32Array ? life : new Uint32Array(this.nA);
    for (let a = 0; a < this.nA; a++) {
      this.death[a] = life[a] === ALIVE ? this.nE : this.birth[a] - 1 + life[a];
    }
    allocs.life = null; // it may be overwritten, and is not needed
    /** @type {Wholes} */
    this.si = allocs.size;
    /** @type {Float64Array} */
    this.sizes = allocs.sizes;
    /** @type {Uint8Array} */
    this.cat = allocs.cat;
    /** @type {Wholes} */
    this.site = allocs.site;
    /** @type {Wholes | undefined} */
    this.fate = allocs.fate;
    this.sites = allocs;
    this.nSites = allocs.s_module.length;
    this.event = new Ascending(events.gap); // of the recording
    this.t = timesOf(events.dt);
    this.oom = events.oom;
    this.resEvent = events.res_event;
    this.resBytes = events.res_bytes;
    this.used = usedOf(meta.used, events);
    this.waitAlloc = allocs.wait_alloc;
    this.waitUntil = allocs.wait_until;
    this.addr = addr;
    // What blocks that are folded add at an event: in order of events.
    /** @type {Uint32Array} */
    this.foldEvent = fold ? fold.fold_event : new Uint32Array(0);
    this.foldCat = fold ? fold.fold_cat : new Uint8Array(0);
    this.foldBytes = fold ? fold.fold_bytes : new Float64Array(0);
    this.foldCount = fold ? fold.fold_count : new Float64Array(0);
    this.nF = this.foldEvent.length;
    /** @type {Wholes | null} */
    this._stepOf = null;
    /** @type {Float64Array | null} */
    this._stepPlaces = null;
    /** @type {Map<string, Classes>} */
    this._classes = new Map();
    /** @type {Tree | null} */
    this._tree = null;
    /** @type {Map<string, boolean>} */
    this._texts = new Map();
    const blocks = this.blocks = Math.ceil(this.nE / BLOCK), K = this.K;
    this.deaths = new Uint32Array(this.nA); // lives in the order of their deaths
    this.old = 0; // lives older than the recording
    this.topTotal = new Float64Array(blocks);
    this.topEvent = new Uint32Array(blocks);
    this.topParts = new Float64Array(blocks * K);
    this.lowTotal = new Float64Array(blocks);
    this.endParts = new Float64Array(blocks * K);
    this.endTotal = new Float64Array(blocks);
    this.nextBirth = new Uint32Array(blocks + 1); // first life and death after a block
    this.nextDeath = new Uint32Array(blocks + 1);
    this.nextFold = new Uint32Array(blocks + 1);
    this.startParts = new Float64Array(K);
    this.startTotal = 0;
    this.peakTotal = 0;
    this.peakEvent = -1;
    this._order();
    this._pyramid();
    // Blocks without their segments, as other tools record them: then what is reserved
    // is less than what lies in it, and no figure at all.
    this.segmentsSeen = Boolean(this.resBytes) && Number(this.reserved(this.peakEvent)) >= this.peakTotal;
  }

  /** Put the deaths in order: a counting sort. */
  _order() {
    const { nE, nA, death } = this;
    const starts = new Uint32Array(nE + 2);
    for (let a = 0; a < nA; a++) starts[death[a] + 1]++;
    for (let e = 0; e <= nE; e++) starts[e + 1] += starts[e];
    for (let a = 0; a < nA; a++) this.deaths[starts[death[a]]++] = a;
    while (this.old < nA && this.birth[this.old] === 0) this.old++;
  }

  /** Walk all events once: for each block the greatest total, what it was made of
   * and when, the least total, and the state at the block's end. */
  _pyramid() {
    const { nE, nA, nF, K, blocks, birth, death, deaths, si, sizes, cat, foldEvent, foldCat, foldBytes } = this;
    const now = new Float64Array(K);
    let b = 0, d = 0, f = 0, total = 0;
    for (; b < this.old; b++) {
      now[cat[b]] += sizes[si[b]];
      total += sizes[si[b]];
    }
    this.startParts.set(now);
    this.startTotal = total;
    let peak = total, peakEvent = -1;
    for (let k = 0, e = 0; k < blocks; k++) {
      this.nextBirth[k] = b;
      this.nextDeath[k] = d;
      this.nextFold[k] = f;
      const end = Math.min(e + BLOCK, nE);
      let top = -1, low = Infinity;
      for (; e < end; e++) {
        for (; d < nA && death[deaths[d]] === e; d++) {
          const a = deaths[d], s = sizes[si[a]];
          now[cat[a]] -= s;
          total -= s;
        }
        for (; b < nA && birth[b] === e + 1; b++) {
          const s = sizes[si[b]];
          now[cat[b]] += s;
          total += s;
        }
        for (; f < nF && foldEvent[f] === e; f++) {
          now[foldCat[f]] += foldBytes[f];
          total += foldBytes[f];
        }
        if (total > top) {
          top = total;
          this.topEvent[k] = e;
          for (let c = 0, at = k * K; c < K; c++) this.topParts[at + c] = now[c];
        }
        if (total < low) low = total;
      }
      this.topTotal[k] = top;
      this.lowTotal[k] = low;
      this.endParts.set(now, k * K);
      this.endTotal[k] = total;
      if (top > peak) {
        peak = top;
        peakEvent = this.topEvent[k];
      }
    }
    this.nextBirth[blocks] = b;
    this.nextDeath[blocks] = d;
    this.nextFold[blocks] = f;
    this.peakTotal = peak;
    this.peakEvent = peakEvent;
  }

  /**
   * Replay events FROM to TO; SEE is told each event, its total and parts.
   * @param {number} from @param {number} to last one, included
   * @param {(event: number, total: number, parts: Float64Array) => void} see
   */
  replay(from, to, see) {
    const { nA, nF, birth, death, deaths, si, sizes, cat, K, foldEvent, foldCat, foldBytes } = this;
    const k = Math.floor(Math.max(from, 0) / BLOCK);
    const now = k ? this.endParts.slice((k - 1) * K, k * K) : this.startParts.slice();
    let total = k ? this.endTotal[k - 1] : this.startTotal;
    if (from < 0) see(-1, total, now);
    let b = k < this.blocks ? this.nextBirth[k] : this.old;
    let d = k < this.blocks ? this.nextDeath[k] : 0;
    let f = k < this.blocks ? this.nextFold[k] : 0;
    for (let e = k * BLOCK; e <= to; e++) {
      for (; d < nA && death[deaths[d]] === e; d++) {
        const a = deaths[d], s = sizes[si[a]];
        now[cat[a]] -= s;
        total -= s;
      }
      for (; b < nA && birth[b] === e + 1; b++) {
        const s = sizes[si[b]];
        now[cat[b]] += s;
        total += s;
      }
      for (; f < nF && foldEvent[f] === e; f++) {
        now[foldCat[f]] += foldBytes[f];
        total += foldBytes[f];
      }
      if (e >= from) see(e, total, now);
    }
  }

  /** Bytes after an event. @param {number} event
   * @returns {{total: number, parts: Float64Array}} */
  totals(event) {
    event = clamp(-1, event, this.nE - 1);
    let total = this.startTotal, parts = this.startParts;
    if (event >= 0) {
      this.replay(event, event, (_, t, now) => {
        total = t;
        parts = now;
      });
    }
    return { total, parts: parts.slice() };
  }

  /** Lives that are there after an event. @param {number} event @returns {Uint32Array} */
  live(event) {
    const { death } = this, born = lastAtMost(this.birth, event + 1) + 1;
    // Twice through the deaths, rather than an array that all lives fit into.
    let n = 0;
    for (let a = 0; a < born; a++) if (death[a] > event) n++;
    const found = new Uint32Array(n);
    for (let a = 0, at = 0; at < n; a++) if (death[a] > event) found[at++] = a;
    return found;
  }

  /** What is there of folded blocks after an event. @param {number} event
   * @returns {{cat: number, bytes: number, count: number}[]} a row a category */
  foldedAt(event) {
    const bytes = new Float64Array(this.K), counts = new Float64Array(this.K);
    for (let f = 0; f < this.nF && this.foldEvent[f] <= event; f++) {
      bytes[this.foldCat[f]] += this.foldBytes[f];
      counts[this.foldCat[f]] += this.foldCount[f];
    }
    return [...bytes.keys()].filter((cat) => counts[cat]).map((cat) => ({ cat, bytes: bytes[cat], count: counts[cat] }));
  }

  /** What is alive after an event, divided by keys: blocks, and what is folded.
   * @param {Uint32Array} lives @param {string[]} keys @param {number} event */
  groupedWhole(lives, keys, event) {
    const groups = this.grouped(lives, keys);
    if (!this.nF) return groups;
    for (const { cat, bytes, count } of this.foldedAt(event)) {
      const cats = new Float64Array(this.K);
      cats[cat] = bytes;
      groups.push({ bytes, count, first: -1, cats,
        words: keys.map((key) => (key === "category" ? this.categories[cat] : FOLDED)) });
    }
    return groups.sort((a, b) => b.bytes - a.bytes);
  }

  /** Bytes freed by the program whose free is not completed. @param {number} event */
  waiting(event) {
    let sum = 0;
    for (let i = 0; i < this.waitAlloc.length; i++) {
      const a = this.waitAlloc[i];
      if (this.death[a] <= event && this.waitUntil[i] > event) sum += this.sizes[this.si[a]];
    }
    return sum;
  }

  /** Bytes that torch took from the driver; null: not known. @param {number} event */
  reserved(event) {
    if (!this.resBytes) return null;
    return this.resBytes[lastAtMost(this.resEvent, event + 1)];
  }

  /** The page's event of a recording's event: the last not after it. @param {number} number */
  ofRecording(number) {
    return this.event.lastAtMost(number);
  }

  /** The recording's number of an event. @param {number} event */
  number(event) {
    return event < 0 ? -1 : this.event.at(event);
  }

  /** @param {number} event microseconds since the start */
  at(event) {
    return event < 0 ? 0 : this.t[event];
  }

  /** Where a time lies if every step is equally wide: whole numbers are steps' begins.
   * What is before the first step, and behind the last, is a step's width too.
   * @param {number} us */
  stepPlace(us) {
    const { us: begin, end_us: end } = this.meta.steps, n = begin.length;
    const lead = Number(n > 0 && begin[0] > 0), k = lastAtMost(begin, us);
    const part = (/** @type {number} */ from, /** @type {number} */ to) => (to > from ? clamp(0, (us - from) / (to - from), 1) : 0);
    if (k < 0) return lead ? part(0, begin[0]) : 0;
    if (us <= end[k]) return lead + k + part(begin[k], end[k]);
    return k + 1 < n ? lead + k + 1 : lead + n + part(end[k], this.nE ? this.t[this.nE - 1] : 0);
  }

  /** Where the events lie on an axis; null: at their numbers.
   * @param {string} axis @returns {Float64Array | Uint32Array | null} */
  places(axis) {
    if (axis === "event") return null;
    if (axis === "time") return this.t;
    if (!this._stepPlaces) {
      const found = this._stepPlaces = new Float64Array(this.nE);
      for (let e = 0; e < this.nE; e++) found[e] = this.stepPlace(this.t[e]);
    }
    return this._stepPlaces;
  }

  /** @param {string} axis @param {number} event its place on an axis */
  place(axis, event) {
    const places = this.places(axis);
    return places ? (event < 0 ? 0 : places[event]) : event;
  }

  /** The last event at or before a place. @param {string} axis @param {number} place */
  eventAt(axis, place) {
    const places = this.places(axis);
    return places ? lastAtMost(places, place) : clamp(-1, Math.floor(place), this.nE - 1);
  }

  /** Where a time lies. @param {string} axis @param {number} us */
  timePlace(axis, us) {
    if (axis === "time") return us;
    return axis === "step" ? this.stepPlace(us) : lastBefore(this.t, us) + 1;
  }

  /** The step, as its place in meta.steps, that an event falls in; -1: none.
   * @param {number} event */
  step(event) {
    const { begin, end } = this.meta.steps;
    const k = lastAtMost(begin, event);
    return k >= 0 && event <= end[k] ? k : -1;
  }

  /** Of each life the place of its step of birth + 1; 0: before or outside.
   * @returns {Wholes} */
  stepOf() {
    if (!this._stepOf) {
      const { begin, end } = this.meta.steps;
      /** @type {Wholes} */
      const found = new (wholesOf(begin.length))(this.nA);
      let k = 0;
      for (let a = this.old; a < this.nA; a++) {
        const e = this.birth[a] - 1;
        while (k + 1 < begin.length && begin[k + 1] <= e) k++;
        if (begin.length && begin[k] <= e && e <= end[k]) found[a] = k + 1;
      }
      this._stepOf = found;
    }
    return this._stepOf;
  }

  /** @param {number} a @returns {number} bytes of a life */
  bytes(a) {
    return this.sizes[this.si[a]];
  }

  /** The text of a key of a life. @param {string} key @param {number} a @returns {string} */
  text(key, a) {
    const s = this.site[a];
    switch (key) {
      case "category": return this.categories[this.cat[a]];
      case "step": {
        const k = this.stepOf()[a];
        return k ? String(this.meta.steps.number[k - 1]) : a < this.old ? "before" : "none";
      }
      case "saved": return this.fate ? this.names.strings[this.fate[a]] : "";
      case "phase": return meta.phases[this.sites.s_phase[s]];
      case "reason": return meta.reasons[this.sites.s_reason[s]];
      case "pool": return String(this.sites.s_pool[s]);
      case "thread": return String(this.sites.s_thread[s]);
      case "size": return size(this.bytes(a));
      default: return this.names.strings[this.sites[`s_${key}`][s]];
    }
  }

  /**
   * Divide some lives by keys, the largest part first; the parts sum up.
   * @param {Uint32Array} lives @param {string[]} keys
   * @returns {Group[]}
   */
  grouped(lives, keys) {
    if (!keys.some((key) => OF_LIVES.includes(key))) return this.classesOf(keys).groups(lives);
    // By what their site says, then by what each life does.
    const { site, cat, si, sizes, nSites, K } = this;
    /** @type {Map<string, Group>} */
    const raw = new Map();
    const steps = keys.includes("step") ? this.stepOf() : null;
    const fates = keys.includes("saved") ? this.fate : null;
    const bySize = keys.includes("size");
    for (let i = 0; i < lives.length; i++) {
      const a = lives[i];
      const key = `${cat[a] * nSites + site[a]},${steps ? steps[a] + (a < this.old ? 0.5 : 0) : 0},`
        + `${fates ? fates[a] : 0},${bySize ? si[a] : 0}`;
      let group = raw.get(key);
      if (!group) raw.set(key, group = { bytes: 0, count: 0, first: a, words: [], cats: new Float64Array(K) });
      const s = sizes[si[a]];
      group.bytes += s;
      group.count += 1;
      group.cats[cat[a]] += s;
    }
    /** @type {Map<string, Group>} */
    const found = new Map();
    for (const part of raw.values()) {
      const words = keys.map((key) => this.text(key, part.first));
      const name = words.join("\u0000");
      const group = found.get(name);
      if (!group) {
        found.set(name, { ...part, words });
      } else {
        group.bytes += part.bytes;
        group.count += part.count;
        for (let c = 0; c < K; c++) group.cats[c] += part.cats[c];
      }
    }
    return [...found.values()].sort((a, b) => b.bytes - a.bytes || b.count - a.count
      || (a.words.join("\u0000") < b.words.join("\u0000") ? -1 : 1));
  }

  /** @param {string[]} keys @returns {Classes} */
  classesOf(keys) {
    const name = keys.join(" ");
    let found = this._classes.get(name);
    if (!found || found.words.length > MOST) this._classes.set(name, found = new Classes(this, keys));
    return found;
  }

  /** @returns {Tree} */
  tree() {
    if (!this._tree || this._tree.names.length > 2 * MOST) this._tree = new Tree(this);
    return this._tree;
  }

  /** Whether some block has a text for a key. @param {string} key @returns {boolean} */
  hasText(key) {
    if (!this._texts.has(key)) this._texts.set(key, this.sites[`s_${key}`].some((/** @type {number} */ id) => id));
    return Boolean(this._texts.get(key));
  }
}

/** Times of events, microseconds. @param {Wholes | Float64Array} gaps from one to the next
 * @returns {Uint32Array | Float64Array} */
function timesOf(gaps) {
  let last = 0;
  for (let i = 0; i < gaps.length; i++) last += gaps[i];
  // Half as wide, if all is within the 71 minutes that fit.
  const found = last <= 0xffffffff ? new Uint32Array(gaps.length) : new Float64Array(gaps.length);
  for (let i = 0, at = 0; i < gaps.length; i++) found[i] = at += gaps[i];
  return found;
}

/** The last place in ascending VALUES that is at most VALUE; -1: none.
 * @param {ArrayLike<number>} values @param {number} value */
function lastAtMost(values, value) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
