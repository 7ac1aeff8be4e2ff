// Makes elements. All text of a cluster is put in as text nodes, never as markup, and names are isolated, so that
// right-to-left letters in them do not reorder what is around.

const SVG = "http://www.w3.org/2000/svg";
const LONGEST = 1000; // characters of a text of the cluster: a tenant can write 32,000 into one
const SHORT = 20; // characters of a name that stays in one line
const WHOLE = 24; // characters of a word with hyphens that stays in one line, such as --kubernetes
const CONTROLS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Return a text with its invisible marks of direction written out: one that is not closed would end an isolation. */
export function plain(text) {
  return String(text).replace(CONTROLS, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(name, value === true ? "" : plain(value));
  }
  element.append(...shownOf(children));
  return element;
}

function shownOf(children) {
  const all = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== "");
  return all.map((child) => (typeof child === "string" ? plain(child) : child));
}

/** Return an element; functions among the attributes are listeners. */
export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Return an element of a picture. */
export function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** Return a name of a cluster, or another text of it, isolated from what is around; a long one is cut, and says so. */
export function name(text) {
  const whole = String(text);
  const left = whole.length - LONGEST;
  const style = whole.length > SHORT ? {} : { class: "short" };
  return make("bdi", style, wholeWords(left > 0 ? `${whole.slice(0, LONGEST)} … ${count(left, "more character")}` : whole));
}

/** Return a text whose short words do not break after a hyphen. */
function wholeWords(text) {
  const isWhole = (word) => word.includes("-") && word.length <= WHOLE;
  return text.split(/(\s+)/).map((word) => (isWhole(word) ? make("span", { class: "whole" }, word) : word));
}

/** Return a text of a cluster, isolated from what is around, where there are no elements. */
export function isolated(text) {
  return `\u2068${plain(text)}\u2069`;
}

/** Put these children in place of all others, unless they look the same. The focus stays where it was. */
export function show(parent, ...children) {
  const next = document.createElement("div");
  next.append(...shownOf(children));
  if (sameMarkup(next, parent)) return false;
  const focused = parent.contains(document.activeElement) ? keyOf(document.activeElement) : "";
  parent.replaceChildren(...next.childNodes);
  if (focused) byKey(parent, focused)?.focus({ preventScroll: true });
  return true;
}

/** Return what stands for an element that has the focus, in another view of the same things: its link or its key. */
export function keyOf(element) {
  return element.getAttribute("href") ?? element.dataset.key ?? "";
}

/** Return the element with such a key, or undefined. */
export function byKey(parent, key) {
  return [...parent.querySelectorAll("a, button, [tabindex]")].find((element) => keyOf(element) === key);
}

function sameMarkup(first, second) {
  if (first.childNodes.length !== second.childNodes.length) return false;
  for (let at = 0; at < first.childNodes.length; at += 1) {
    if (!first.childNodes[at].isEqualNode(second.childNodes[at])) return false;
  }
  return true;
}

const collator = new Intl.Collator("en", { numeric: true });

/** Compare numbers, or names as a person counts: node-2 before node-10. */
export function compare(first, second) {
  if (typeof first === "number" && typeof second === "number") return first - second;
  return collator.compare(first, second);
}

/** Return names in this order. */
export function sorted(names) {
  return [...names].sort(compare);
}

/** Return a text that stays in one line. */
export function joined(text) {
  return text.replaceAll(" ", "\u00a0");
}

/** Return a number, or "?" if it is unknown. */
export function shown(number) {
  return number === null || number === undefined ? "?" : number.toLocaleString("en");
}

/** Return "1 node" or "2 nodes". */
export function count(number, noun) {
  const shown = number.toLocaleString("en");
  return number === 1 ? `${shown} ${noun}` : `${shown} ${noun}s`;
}
