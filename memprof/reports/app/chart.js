// Figures of the tabs: boxes on a canvas that can be pointed at, with a table beside.

class Figure {
  /**
   * @param {{label: string, test: string, height: number,
   *   draw: (g: CanvasRenderingContext2D, width: number, height: number, put: Put) => void}} options
   */
  constructor(options) {
    this.o = options;
    this.canvas = h("canvas", { role: "img", "aria-label": options.label, test: options.test });
    this.tip = h("div.tip", { hidden: true, "aria-hidden": "true" });
    this.element = h("figure", {}, this.canvas, this.tip);
    /** @type {{x: number, y: number, w: number, h: number, tip: string, go?: () => void}[]} */
    this.boxes = [];
    const find = (/** @type {MouseEvent} */ event) => {
      const rect = this.canvas.getBoundingClientRect();
      const x = event.clientX - rect.left, y = event.clientY - rect.top;
      for (let i = this.boxes.length - 1; i >= 0; i--) {
        const b = this.boxes[i];
        if (x >= b.x && x <= b.x + b.w && y >= b.y && y <= b.y + b.h) return { b, x, y };
      }
      return null;
    };
    this.canvas.addEventListener("pointermove", (event) => {
      const hit = find(event);
      this.tip.hidden = !hit;
      this.canvas.style.cursor = hit && hit.b.go ? "pointer" : "default";
      if (!hit) return;
      this.tip.textContent = hit.b.tip;
      const wide = this.canvas.clientWidth;
      this.tip.style.left = `${Math.min(hit.x + 12, Math.max(wide - 330, 0))}px`;
      this.tip.style.top = `${hit.y + 16}px`;
    });
    this.canvas.addEventListener("pointerleave", () => {
      this.tip.hidden = true;
    });
    this.canvas.addEventListener("click", (event) => {
      const hit = find(event);
      if (hit && hit.b.go) hit.b.go();
    });
  }

  draw() {
    const width = this.element.clientWidth;
    if (!width) return;
    const g = sized(this.canvas, width, this.o.height);
    this.boxes = [];
    this.o.draw(g, width, this.o.height, (x, y, w, t, tip, go) => {
      this.boxes.push({ x, y, w: Math.max(w, 2), h: Math.max(t, 2), tip, go });
    });
  }
}

/** @typedef {(x: number, y: number, w: number, h: number, tip: string, go?: () => void) => void} Put */

/** Lines and texts of an axis of bytes at the left.
 * @param {CanvasRenderingContext2D} g @param {{x: number, y: number, w: number, h: number}} box
 * @param {number} top @param {(at: number) => number} y */
function byteAxis(g, box, top, y) {
  g.textBaseline = "middle";
  g.textAlign = "right";
  for (const at of byteTicks(top, Math.max(2, box.h / 40))) {
    const line = Math.round(y(at)) + 0.5;
    g.strokeStyle = at ? colours.grid : colours.axis;
    g.lineWidth = 1;
    g.beginPath();
    g.moveTo(box.x, line);
    g.lineTo(box.x + box.w, line);
    g.stroke();
    g.fillStyle = colours.muted;
    g.fillText(at ? size(at) : "0", box.x - 8, line);
  }
  g.textAlign = "left";
}

/** A slanting hatch: what is freed, or outside.
 * @param {CanvasRenderingContext2D} g @param {number} x @param {number} y
 * @param {number} w @param {number} t @param {string} colour */
function hatch(g, x, y, w, t, colour) {
  g.save();
  g.beginPath();
  g.rect(x, y, w, t);
  g.clip();
  g.strokeStyle = colour;
  g.lineWidth = 1;
  g.beginPath();
  for (let at = x - t; at < x + w; at += 6) {
    g.moveTo(at, y + t);
    g.lineTo(at + t, y);
  }
  g.stroke();
  g.restore();
}
