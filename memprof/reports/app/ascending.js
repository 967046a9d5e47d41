// Ascending whole numbers, kept as what each is above the one before: mostly a byte.

class Ascending {
  /** @param {Wholes} gaps the first counts from 0 */
  constructor(gaps) {
    this.gaps = gaps;
    this.length = gaps.length;
    this.firsts = new Uint32Array(Math.ceil(gaps.length / BLOCK)); // of each block of numbers
    for (let i = 0, value = 0; i < gaps.length; i++) {
      value += gaps[i];
      if (i % BLOCK === 0) this.firsts[i / BLOCK] = value;
    }
  }

  /** The number at a place. @param {number} i @returns {number} */
  at(i) {
    const k = Math.floor(i / BLOCK);
    let value = this.firsts[k];
    for (let j = k * BLOCK + 1; j <= i; j++) value += this.gaps[j];
    return value;
  }

  /** The last place whose number is at most VALUE; -1: none.
   * @param {number} value @returns {number} */
  lastAtMost(value) {
    const k = lastAtMost(this.firsts, value);
    if (k < 0) return -1;
    let i = k * BLOCK;
    for (let now = this.firsts[k]; i + 1 < this.length; i++) {
      now += this.gaps[i + 1];
      if (now > value) break;
    }
    return i;
  }
}
