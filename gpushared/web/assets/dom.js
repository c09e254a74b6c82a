// Make DOM from descriptions, and change it in place: focus, selection, scroll and open details stay.

const SVG = "http://www.w3.org/2000/svg";
const HIDDEN = /(?![\n\t])[\p{C}\p{Zl}\p{Zp}]/gu;
const PROPERTIES = new Set(["value", "checked"]);

/** @typedef {{tag: string, key?: string, attributes: Record<string, any>, children: (Tree | string)[]}} Tree */
/** @typedef {Tree | string | number | null | undefined | false | any[]} Child */

/**
 * Return the text with escapes in place of characters that nobody sees or that turn the text around,
 * as the command line writes it.
 * @param {string} text
 */
export function printable(text) {
  return text.replace(HIDDEN, (character) => {
    const code = character.codePointAt(0) ?? 0;
    const [mark, places] = code > 0xffff ? ["U", 8] : code > 0xff ? ["u", 4] : ["x", 2];
    return `\\${mark}${code.toString(16).padStart(Number(places), "0")}`;
  });
}

/**
 * Describe an element. Attributes: `on...` takes a function, `style` an object, true and false set or leave out;
 * `key` names it among its siblings; `own(element)` fills it by itself, and `gone(element)` hears of its end.
 * @param {string} tag
 * @param {Record<string, any> | null} [attributes]
 * @param {...Child} children
 * @returns {Tree}
 */
export function h(tag, attributes, ...children) {
  const { key, ...rest } = attributes ?? {};
  return { tag, key, attributes: rest, children: flat(children) };
}

/**
 * Show a name that somebody else chose: isolated, and cut where it does not fit.
 * @param {string | undefined} text
 * @param {string} [extra]
 */
export function name(text, extra = "") {
  return h("bdi", { class: `name ${extra}`.trim(), title: printable(text ?? "") }, text ?? "");
}

/** Show terms with their words; those without words are left out. @param {[string, Child][]} rows */
export function facts(rows) {
  return h("dl", { class: "facts" }, rows.filter(([, words]) => words).map(([term, words]) => [h("dt", null, term), h("dd", null, words)]));
}

/** @param {Child[]} children @returns {(Tree | string)[]} */
function flat(children) {
  return children.flatMap((child) => {
    if (Array.isArray(child)) return flat(child);
    if (child === null || child === undefined || child === false || child === "") return [];
    return [typeof child === "object" ? child : String(child)];
  });
}

/** @type {WeakMap<Node, Tree>} */
const trees = new WeakMap();

/**
 * Make the parent's children look like this.
 * @param {Element} parent
 * @param {...Child} children
 */
export function patch(parent, ...children) {
  patchChildren(parent, flat(children));
}

/** @param {Element} parent @param {(Tree | string)[]} children */
function patchChildren(parent, children) {
  const keys = new Set(children.map(keyOf).filter(Boolean));
  /** @type {Map<string, Node>} */
  const old = new Map();
  for (const node of [...parent.childNodes]) {
    const key = trees.get(node)?.key;
    if (key && keys.has(key)) old.set(key, node);
    else if (key) remove(node);
  }
  let at = parent.firstChild;
  for (const child of children) {
    const key = keyOf(child);
    const found = key ? old.get(key) : at && !trees.get(at)?.key ? at : null;
    if (found && fits(found, child)) {
      if (found === at) at = at.nextSibling;
      else move(parent, found, at);
      update(found, child);
    } else {
      parent.insertBefore(make(child, parent), at);
      if (found && found === at && !key) {
        at = at.nextSibling;
        remove(found);
      }
    }
  }
  while (at) {
    const next = at.nextSibling;
    remove(at);
    at = next;
  }
}

/** @param {Tree | string} child */
function keyOf(child) {
  return typeof child === "string" ? undefined : child.key;
}

/** @param {Element} parent @param {Node} node @param {Node | null} before */
function move(parent, node, before) {
  // insertBefore takes the focus away from what it moves.
  if ("moveBefore" in parent) /** @type {any} */ (parent).moveBefore(node, before);
  else /** @type {Element} */ (parent).insertBefore(node, before);
}

/** @param {Node} node @param {Tree | string} child */
function fits(node, child) {
  const tree = trees.get(node);
  return typeof child === "string" ? node.nodeType === Node.TEXT_NODE : tree?.tag === child.tag && tree.key === child.key;
}

/** @param {Tree | string} child @param {Element} parent @returns {Node} */
function make(child, parent) {
  if (typeof child === "string") return document.createTextNode(printable(child));
  const svg = child.tag === "svg" || (parent.namespaceURI === SVG && parent.tagName !== "foreignObject");
  const node = svg ? document.createElementNS(SVG, child.tag) : document.createElement(child.tag);
  update(node, child);
  return node;
}

/** @param {Node} node @param {Tree | string} child */
function update(node, child) {
  if (typeof child === "string") {
    const text = printable(child);
    if (node.nodeValue !== text) node.nodeValue = text;
    return;
  }
  const element = /** @type {HTMLElement} */ (node);
  const before = trees.get(node)?.attributes ?? {};
  trees.set(node, child);
  if (!child.attributes.own) patchChildren(element, child.children);
  for (const name of Object.keys({ ...before, ...child.attributes })) {
    const value = child.attributes[name];
    if (name === "style") setStyle(element, before.style ?? {}, value ?? {});
    else if (name !== "own" && name !== "gone" && before[name] !== value) setAttribute(element, name, value);
  }
  child.attributes.own?.(element);
}

/** @param {HTMLElement} element @param {string} name @param {any} value */
function setAttribute(element, name, value) {
  if (name.startsWith("on") || PROPERTIES.has(name)) /** @type {any} */ (element)[name] = value ?? null;
  else if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else element.setAttribute(name, value === true ? "" : printable(String(value)));
}

/** @param {HTMLElement} element @param {Record<string, string>} before @param {Record<string, string>} style */
function setStyle(element, before, style) {
  for (const name of Object.keys({ ...before, ...style })) {
    if (before[name] !== style[name]) element.style.setProperty(name, style[name] ?? "");
  }
}

/** @param {Node} node */
function remove(node) {
  end(node);
  node.parentNode?.removeChild(node);
}

/** @param {Node} node */
function end(node) {
  trees.get(node)?.attributes.gone?.(node);
  node.childNodes.forEach(end);
}
