// The first generation of custom elements, which Catapult's page is written for and browsers have dropped.
// An element is upgraded where it stands: its prototype is changed and its callbacks are called. That is
// all that the page's Polymer needs of it, so this stands in for the polyfill that the page asks for.
"use strict";
(() => {
  const definitions = new Map(); // name -> { prototype, tag }
  const upgraded = new WeakSet();
  const attached = new WeakSet();

  const upgrade = (node) => {
    if (node.nodeType !== Node.ELEMENT_NODE || upgraded.has(node)) return;
    const found = definitions.get(node.getAttribute("is") ?? node.localName);
    if (found?.tag !== node.localName) return;
    upgraded.add(node);
    Object.setPrototypeOf(node, found.prototype);
    node.createdCallback?.();
  };
  const attach = (node) => {
    upgrade(node);
    if (!upgraded.has(node) || attached.has(node) || !node.isConnected) return;
    attached.add(node);
    node.attachedCallback?.();
  };
  const detach = (node) => {
    if (attached.delete(node)) node.detachedCallback?.();
  };
  const each = (root, visit) => {
    visit(root);
    for (const node of root.querySelectorAll?.("*") ?? []) visit(node);
    return root;
  };
  new MutationObserver((changes) => {
    for (const { addedNodes, removedNodes } of changes) {
      addedNodes.forEach((node) => each(node, attach));
      removedNodes.forEach((node) => node.isConnected || each(node, detach));
    }
  }).observe(document, { childList: true, subtree: true });

  const { createElement, importNode } = document;
  const { cloneNode } = Node.prototype;
  Document.prototype.createElement = function (name, is) {
    const node = createElement.call(this, name);
    if (typeof is === "string") node.setAttribute("is", is);
    upgrade(node);
    return node;
  };
  Document.prototype.importNode = function (node, deep) {
    return each(importNode.call(this, node, deep), upgrade);
  };
  Node.prototype.cloneNode = function (deep) {
    const copy = cloneNode.call(this, deep);
    return copy.ownerDocument === document ? each(copy, upgrade) : copy; // a template's content sleeps
  };
  document.registerElement = (name, { prototype, extends: base }) => {
    const tag = base ?? name;
    definitions.set(name, { prototype, tag });
    document.querySelectorAll(base ? `${base}[is="${name}"]` : name).forEach(attach);
    const made = function () {
      return document.createElement(tag, base && name);
    };
    made.prototype = prototype;
    return made;
  };
  Element.prototype.createShadowRoot = function () {
    return this.appendChild(document.createElement("div"));
  };
  Object.defineProperty(document, "_currentScript", { get: () => document.currentScript });
  window.wrap = window.unwrap = (node) => node;
  window.CustomElements = { hasNative: false, useNative: false, ready: true, upgrade: (node) => each(node, attach), takeRecords() {} };
  window.__hideTraceViewerPolyfillWarning = true;
})();
