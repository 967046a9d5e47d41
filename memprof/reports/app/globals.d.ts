// What the checker must know of browsers newer than it; not part of the page.
declare class DecompressionStream {
  constructor(format: string);
  readonly readable: ReadableStream<Uint8Array>;
  readonly writable: WritableStream<Uint8Array>;
}
interface Window { memprof: unknown }
/** Whole numbers, in arrays no wider than they need. */
type Wholes = Uint8Array | Uint16Array | Uint32Array;
