// The report as a notebook's widget: the page in a frame, which gets its data from the
// kernel as bytes.  Not part of the page: whoever shows the widget imports this.

/** @param {{ model: any, el: HTMLElement }} widget */
function render({ model, el }) {
  const frame = document.createElement("iframe");
  // Scripts and nothing else: no reach into the notebook.
  frame.setAttribute("sandbox", "allow-scripts");
  frame.title = "memprof report";
  frame.style.cssText = `width: 100%; height: ${Number(model.get("height"))}px; border: 0`;
  const answer = (/** @type {MessageEvent} */ event) => {
    const page = frame.contentWindow;
    if (!page || event.source !== page || event.data !== "memprof: blocks") return;
    page.postMessage({ memprof: model.get("blocks") }, "*"); // the frame has no origin to name
  };
  addEventListener("message", answer);
  frame.srcdoc = model.get("page");
  el.append(frame);
  return () => removeEventListener("message", answer);
}

export default { render };
