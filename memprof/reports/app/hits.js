// Bytes of what the filter found, over time.

class HitLevels {
  /** @param {Device} device @param {Uint8Array} mask the lives that count */
  constructor(device, mask) {
    this.device = device;
    this.mask = mask;
    const { nA, nE, birth, death } = device;
    // Before each block of events, as the pyramid has them; what is within is replayed.
    const before = this.before = new Float64Array(device.blocks + 1);
    for (let a = 0; a < nA; a++) {
      if (!mask[a]) continue;
      const s = device.bytes(a);
      before[birth[a] ? Math.floor((birth[a] - 1) / BLOCK) + 1 : 0] += s;
      if (death[a] < nE) before[Math.floor(death[a] / BLOCK) + 1] -= s;
    }
    for (let k = 1; k < before.length; k++) before[k] += before[k - 1];
    // At each block's highest event, which is what is drawn zoomed out; NaN: not asked.
    this.tops = new Float64Array(device.blocks).fill(NaN);
  }

  /** Bytes after an event. @param {number} event @returns {number} */
  at(event) {
    if (event < 0) return this.before[0];
    const k = Math.floor(event / BLOCK);
    if (event !== this.device.topEvent[k]) return this._replayed(k, event);
    if (Number.isNaN(this.tops[k])) this.tops[k] = this._replayed(k, event);
    return this.tops[k];
  }

  /** @param {number} k its block @param {number} event @returns {number} */
  _replayed(k, event) {
    const { device, mask } = this, { nA, birth, death, deaths } = device;
    let level = this.before[k];
    for (let b = device.nextBirth[k]; b < nA && birth[b] <= event + 1; b++) {
      if (mask[b]) level += device.bytes(b);
    }
    for (let d = device.nextDeath[k]; d < nA && death[deaths[d]] <= event; d++) {
      if (mask[deaths[d]]) level -= device.bytes(deaths[d]);
    }
    return level;
  }
}
