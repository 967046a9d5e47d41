// From a block's text to typed arrays.

/** @typedef {Record<string, any> & {meta: any}} Block */

/** The browser has read all of the file. @type {Promise<undefined>} */
const whole = new Promise((done) => {
  if (document.readyState !== "loading") done(undefined);
  else document.addEventListener("DOMContentLoaded", () => done(undefined));
});

/**
 * What the page's parent sends, where this page stands in a frame that has no data
 * of its own: blocks by name, as gzip.  Asked for once, when the first is wanted.
 * @type {Promise<Record<string, any>> | null}
 */
let sent = null;

function askParent() {
  return sent || (sent = new Promise((done) => {
    addEventListener("message", (event) => {
      if (event.source === parent && event.data && event.data.memprof) done(event.data.memprof);
    });
    parent.postMessage("memprof: blocks", "*");
  }));
}

/** What a reader is told if a block is not whole. */
class BlockError extends Error {}

/**
 * Read the block NAME of the page; null: the page has none.
 * @param {string} name @returns {Promise<Block | null>}
 */
async function readBlock(name) {
  if (name !== "core") await whole; // the others stand behind this script
  const element = byId(`mp-${name}`);
  if (!element) return null;
  const how = element.getAttribute("data-enc") || "";
  let bytes;
  if (how === "message") {
    const block = (await askParent())[name]; // a view of bytes
    if (!ArrayBuffer.isView(block)) throw new BlockError(`the data block “${name}” was not sent`);
    bytes = new Uint8Array(block.buffer, block.byteOffset, block.byteLength);
  } else {
    try {
      bytes = unarmoured(element.textContent || "");
    } catch (error) {
      throw new BlockError(`the data block “${name}” is damaged: its text is not base64`);
    }
  }
  if (how !== "base64") {
    if (typeof DecompressionStream === "undefined") {
      throw new BlockError("this browser cannot unpack the data (no DecompressionStream; "
        + "Chrome 80, Firefox 113 and Safari 16.4 can); write the report with compress=False");
    }
    try {
      const stream = new Blob([bytes]).stream()
        .pipeThrough(/** @type {any} */ (new DecompressionStream("gzip")));
      bytes = new Uint8Array(await new Response(stream).arrayBuffer());
    } catch (error) {
      throw new BlockError(`the data block “${name}” is damaged or cut: `
        + "it cannot be unpacked. Was the file copied whole?");
    }
  }
  return parsed(bytes, name);
}

/** @param {string} text @returns {Uint8Array} */
function unarmoured(text) {
  if (text.length % 4) throw new Error("cut");
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** @param {Uint8Array} bytes @param {string} name @returns {Block} */
function parsed(bytes, name) {
  const magic = [109, 112, 99, 111, 108, 115, 0];
  if (bytes.length < 12 || magic.some((byte, i) => bytes[i] !== byte)) {
    throw new BlockError(`the data block “${name}” is no block of memprof's`);
  }
  if (bytes[7] !== 1) {
    throw new BlockError(`the data block “${name}” has version ${bytes[7]}, this page reads 1`);
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  const length = view.getUint32(8, true);
  const base = 12 + length;
  let header;
  try {
    header = JSON.parse(new TextDecoder().decode(bytes.subarray(12, base)));
  } catch (error) {
    throw new BlockError(`the data block “${name}” is damaged: its header cannot be read`);
  }
  /** @type {Block} */
  const block = { meta: header.meta };
  for (const col of header.cols) {
    if (base + col.off + col.len > bytes.length) {
      throw new BlockError(`the data block “${name}” is cut: its column ${col.name} is missing`);
    }
    block[col.name] = columnOf(bytes, base + col.off, col);
  }
  return block;
}

/** @param {Uint8Array} bytes @param {number} at @param {any} col */
function columnOf(bytes, at, col) {
  const n = col.n;
  if (col.dtype === "u8") return bytes.slice(at, at + n);
  const wide = col.dtype === "f64" ? 8 : 4;
  if (!col.enc.includes("p")) {
    const copy = bytes.slice(at, at + n * wide).buffer;
    return col.dtype === "f64" ? new Float64Array(copy) : summed(new Uint32Array(copy), col);
  }
  if (wide === 8) {
    const out = new Uint8Array(n * 8);
    for (let plane = 0; plane < 8; plane++) {
      for (let i = 0, from = at + plane * n; i < n; i++) out[i * 8 + plane] = bytes[from + i];
    }
    return new Float64Array(out.buffer);
  }
  const out = new Uint32Array(n);
  const b = at + n, c = b + n, d = c + n;
  for (let i = 0; i < n; i++) {
    out[i] = bytes[at + i] | (bytes[b + i] << 8) | (bytes[c + i] << 16) | (bytes[d + i] << 24);
  }
  return summed(out, col);
}

/** @param {Uint32Array} values @param {any} col */
function summed(values, col) {
  if (col.enc.includes("d")) {
    for (let i = 1; i < values.length; i++) values[i] += values[i - 1];
  }
  return values;
}
