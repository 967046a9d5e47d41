// From a block's text to typed arrays.

/** @typedef {Record<string, any> & {meta: any}} Block */

const SLICE = 1 << 16; // letters of base64 that are read at once

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
      const packed = new Blob([bytes]);
      giveBack(bytes);
      const stream = packed.stream().pipeThrough(/** @type {any} */ (new DecompressionStream("gzip")));
      bytes = new Uint8Array(await new Response(stream).arrayBuffer());
    } catch (error) {
      throw new BlockError(`the data block “${name}” is damaged or cut: `
        + "it cannot be unpacked. Was the file copied whole?");
    }
  }
  const block = parsed(bytes, name);
  giveBack(bytes); // its columns are copies
  return block;
}

/** Free what is not needed any more now, not at some later collection: tens of megabytes
 * that are read once.  Older browsers cannot; and where blocks were sent as views of one
 * buffer, the others still need it. @param {Uint8Array} bytes */
function giveBack(bytes) {
  const buffer = /** @type {any} */ (bytes.buffer);
  if (buffer.transfer && buffer.byteLength === bytes.byteLength) buffer.transfer(0);
}

/** A slice at a time: one string of all bytes would be as large as the block.
 * @param {string} text @returns {Uint8Array} */
function unarmoured(text) {
  const padding = text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0;
  if (text.length % 4) throw new Error("cut");
  const bytes = new Uint8Array((text.length / 4) * 3 - padding);
  let at = 0;
  for (let from = 0; from < text.length; from += SLICE) {
    const binary = atob(text.slice(from, from + SLICE));
    for (let i = 0; i < binary.length; i++) bytes[at++] = binary.charCodeAt(i);
  }
  if (at !== bytes.length) throw new Error("not base64");
  return bytes;
}

/** @param {Uint8Array} bytes @param {string} name @returns {Block} */
function parsed(bytes, name) {
  const magic = [109, 112, 99, 111, 108, 115, 0];
  if (bytes.length < 12 || magic.some((byte, i) => bytes[i] !== byte)) {
    throw new BlockError(`the data block “${name}” is no block of memprof's`);
  }
  if (bytes[7] !== 2) {
    throw new BlockError(`the data block “${name}” has version ${bytes[7]}, this page reads 2`);
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

/** @type {Record<string, any>} */
const ARRAYS = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, f64: Float64Array };

/** The narrowest array type that holds whole numbers up to TOP.
 * @param {number} top @returns {any} */
const wholesOf = (top) => (top < 1 << 8 ? Uint8Array : top < 1 << 16 ? Uint16Array : Uint32Array);

/** @param {Uint8Array} bytes @param {number} at @param {any} col */
function columnOf(bytes, at, col) {
  const n = col.n, out = new ARRAYS[col.dtype](n), wide = out.BYTES_PER_ELEMENT;
  if (!col.enc.includes("p")) {
    new Uint8Array(out.buffer).set(bytes.subarray(at, at + n * wide));
  } else if (wide === 8) {
    const raw = new Uint8Array(out.buffer);
    for (let plane = 0; plane < 8; plane++) {
      for (let i = 0, from = at + plane * n; i < n; i++) raw[i * 8 + plane] = bytes[from + i];
    }
  } else {
    out.set(bytes.subarray(at, at + n));
    for (let plane = 1, from = at + n; from < at + col.len; plane++, from += n) {
      raise(out, bytes, from, 8 * plane);
    }
  }
  if (col.enc.includes("d")) {
    for (let i = 1; i < n; i++) out[i] += out[i - 1];
  }
  return out;
}

/** Put a plane of bytes above those that are there.
 * @param {Wholes} out @param {Uint8Array} bytes @param {number} from @param {number} by bits */
function raise(out, bytes, from, by) {
  for (let i = 0; i < out.length; i++) out[i] |= bytes[from + i] << by;
}
