// Custom elements as browsers had them when the trace viewer was built, as far as
// its bundle needs them to load: document.registerElement, upgrades, callbacks.
(() => {
  Object.defineProperty(document, "_currentScript", { get() { return document.currentScript; } });
  const kinds = new Map();
  const create = document.createElement.bind(document);
  const upgrade = (element, kind) => {
    if (element.__upgraded__) return element;
    element.__upgraded__ = true;
    Object.setPrototypeOf(element, kind.prototype);
    if (element.createdCallback) element.createdCallback();
    return element;
  };
  const keyOf = (element) => (element.getAttribute && element.getAttribute('is')) || element.localName;
  const visit = (root, attached) => {
    if (root.nodeType !== 1 && root.nodeType !== 11 && root.nodeType !== 9) return;
    const all = [root, ...root.querySelectorAll('*')];
    for (const e of all) {
      if (e.nodeType !== 1) continue;
      const kind = kinds.get(keyOf(e));
      if (kind) upgrade(e, kind);
      if (attached && e.__upgraded__ && e.attachedCallback && !e.__attached__ && e.isConnected) { e.__attached__ = true; e.attachedCallback(); }
    }
  };
  document.createElement = function (name, is) {
    const element = create(name);
    if (typeof is === 'string') element.setAttribute('is', is);
    const kind = kinds.get(typeof is === 'string' ? is : String(name).toLowerCase());
    return kind ? upgrade(element, kind) : element;
  };
  const importNode = document.importNode.bind(document);
  document.importNode = function (node, deep) { const c = importNode(node, deep); visit(c, false); return c; };
  const setAttribute = Element.prototype.setAttribute;
  Element.prototype.setAttribute = function (n, v) { const old = this.getAttribute(n); setAttribute.call(this, n, v); if (this.__upgraded__ && this.attributeChangedCallback) this.attributeChangedCallback(n, old, String(v)); };
  document.registerElement = function (name, options) {
    const prototype = (options && options.prototype) || Object.create(HTMLElement.prototype);
    const tag = (options && options.extends) || name;
    const kind = { prototype };
    kinds.set(name, kind);
    const make = function () { const e = create(tag); if (tag !== name) e.setAttribute('is', name); return upgrade(e, kind); };
    make.prototype = prototype;
    Object.defineProperty(prototype, 'constructor', { value: make, configurable: true, writable: true });
    for (const e of document.querySelectorAll(tag === name ? name : tag + '[is="' + name + '"]')) { upgrade(e, kind); if (e.attachedCallback && !e.__attached__) { e.__attached__ = true; e.attachedCallback(); } }
    return make;
  };
  new MutationObserver((records) => { for (const r of records) for (const n of r.addedNodes) visit(n, true); }).observe(document, { childList: true, subtree: true });
  window.CustomElements = { ready: true, takeRecords() {}, upgradeAll: (n) => visit(n, true), upgrade: (n) => visit(n, true), flags: {} , useNative: false, hasNative: false};
  window.WebComponents = { flags: {} };
  window.HTMLImports = { useNative: true, whenReady: (f) => setTimeout(f) };
  document.addEventListener('DOMContentLoaded', () => setTimeout(() => document.dispatchEvent(new CustomEvent('WebComponentsReady', { bubbles: true }))));
})();
