// A table of any number of rows, of which only those in sight exist.

import { make } from "./dom.js";

const HEIGHT = 32;
const MORE = 10; // rows beyond each end, so that Tab and slow frames find them

export class LongTable {
  /** `heads` are titles of columns; `cells` returns the cells of an item. */
  constructor(label, style, heads, cells) {
    this.style = style;
    this.cells = cells;
    this.items = [];
    this.drawn = "";
    this.rest = make("div", { class: "height" });
    this.body = make("div", { role: "rowgroup" });
    const head = make("div", { class: `row head ${style}`, role: "row", "aria-rowindex": "1" }, heads.map((each) => make("span", { role: "columnheader" }, each)));
    this.element = make(
      "div",
      { class: "rows", role: "table", tabindex: "0", "aria-label": label, scroll: () => this.draw() },
      this.rest, make("div", { role: "rowgroup", class: "heads" }, head), this.body,
    );
    new ResizeObserver(() => this.draw(true)).observe(this.element);
  }

  /** Show these items. */
  put(items) {
    this.items = items;
    this.element.setAttribute("aria-rowcount", String(items.length + 1));
    this.rest.style.height = `${(items.length + 1) * HEIGHT}px`;
    this.draw(true);
  }

  draw(again = false) {
    const first = Math.max(0, Math.floor(this.element.scrollTop / HEIGHT) - MORE);
    const last = Math.min(this.items.length, first + Math.ceil(this.element.clientHeight / HEIGHT) + 2 * MORE);
    const range = `${first}-${last}`;
    if (!again && range === this.drawn) return;
    this.drawn = range;
    const focused = this.body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const rows = [];
    for (let at = first; at < last; at += 1) rows.push(this.row(at));
    this.body.replaceChildren(...rows);
    if (focused) [...this.body.querySelectorAll("a")].find((each) => each.getAttribute("href") === focused)?.focus({ preventScroll: true });
  }

  row(at) {
    const cells = this.cells(this.items[at]).map((each) => make("span", { role: "cell" }, each));
    const row = make("div", { class: `row ${this.style}`, role: "row", "aria-rowindex": String(at + 2) }, cells);
    row.style.top = `${(at + 1) * HEIGHT}px`;
    row.style.height = `${HEIGHT}px`;
    return row;
  }
}
