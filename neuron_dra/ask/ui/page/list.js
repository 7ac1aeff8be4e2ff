// Tables: each is stacked on a narrow screen, and a list can be sorted and filtered.

import { compare, count, make, name, show } from "./dom.js";

const PAGE = 100; // rows that are shown at a time
export const UNSORTED = -1; // a list in the order of its items, until one sorts it

/** Return a table; `rows` are lists of cells, and the first cell of each is its heading. */
export function table(heads, rows) {
  const cells = (row) => row.map((cell, at) => make(at ? "td" : "th", { scope: at ? false : "row", "data-head": plainHead(heads[at]) }, cell));
  return make("table", {}, make("thead", {}, make("tr", {}, heads.map(head))), make("tbody", {}, rows.map((row) => make("tr", {}, cells(row)))));
}

function head(heading) {
  return heading instanceof Element ? heading : make("th", { scope: "col" }, heading);
}

function plainHead(heading) {
  return heading instanceof Element ? heading.dataset.head : heading;
}

/** A field that filters what is below it while one types. */
export function filterField(label, onInput, placeholder = "Filter") {
  return make("input", { type: "search", class: "filter", "aria-label": label, placeholder, autocomplete: "off", spellcheck: "false", dir: "auto", input: onInput });
}

/** A button that sorts what is below it, with an arrow if that is its order. */
export function sortButton(title, isSorted, isDown, onClick, attributes = {}) {
  return make("button", { type: "button", "data-key": title, click: onClick, ...attributes }, title, isSorted ? (isDown ? " ↓" : " ↑") : "");
}

/** Return the items in the order of their values: texts as a person counts, numbers by size. */
export function sortedBy(items, value, isDown = false) {
  return items.toSorted((first, second) => (isDown ? -1 : 1) * compare(value(first), value(second)));
}

/** Return an age that can be compared. Without a time, nobody can say that it is old. */
export function ageOf(since) {
  return -Date.parse(since) || -Infinity;
}

export class List {
  /** `columns` are [title, value, cell]: the value, a text or a number, sorts and filters; without a cell it is shown. */
  constructor(label, noun, columns, by = 0, isDown = false) {
    this.noun = noun;
    this.columns = columns;
    this.by = by;
    this.isDown = isDown;
    this.most = PAGE;
    this.items = [];
    this.filter = filterField(`Filter: ${label}`, () => this.draw());
    this.told = make("p", { class: "quiet", role: "status" });
    this.body = make("div", {});
    this.more = make("button", { type: "button", click: () => this.showMore() }, "show more");
    this.element = make("section", { class: "list", "aria-label": label }, make("div", { class: "bar" }, this.filter, this.told), this.body, this.more);
  }

  showMore() {
    this.most += PAGE;
    this.draw();
  }

  /** Show these items. */
  put(items) {
    this.items = items;
    this.draw();
  }

  sort(at) {
    this.isDown = at === this.by && !this.isDown;
    this.by = at;
    this.draw();
  }

  draw() {
    const words = this.filter.value.trim().toLowerCase();
    const isFound = (item) => this.columns.some(([, value]) => String(value(item)).toLowerCase().includes(words));
    const matching = this.items.filter((item) => !words || isFound(item));
    const shown = this.sorted(matching).slice(0, this.most);
    const all = words ? `${count(matching.length, this.noun)} of ${this.items.length.toLocaleString("en")}` : count(matching.length, this.noun);
    show(this.told, shown.length < matching.length ? `the first ${shown.length.toLocaleString("en")} of ${all}` : all);
    this.more.hidden = shown.length === matching.length;
    const cells = (item) => this.columns.map(([, text, cell]) => (cell ? cell(item) : name(text(item) || "-")));
    show(this.body, table(this.columns.map(([title], at) => this.head(title, at)), shown.map(cells)));
  }

  sorted(items) {
    if (this.by === UNSORTED) return items;
    const [, value] = this.columns[this.by];
    return sortedBy(sortedBy(items, this.columns[0][1]), value, this.isDown);
  }

  head(title, at) {
    const order = this.isDown ? "descending" : "ascending";
    const isSorted = at === this.by;
    const button = sortButton(title, isSorted, this.isDown, () => this.sort(at), { class: "sort" });
    return make("th", { scope: "col", "data-head": title, "aria-sort": isSorted ? order : false }, button);
  }
}
