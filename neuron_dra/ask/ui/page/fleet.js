// The first view: types, what is wrong, and the map.

import { count, make, name, show } from "./dom.js";
import { SIZES } from "./layout.js";
import { FleetMap } from "./map.js";
import { link } from "./routes.js";
import { STATES } from "./states.js";

const FAULTS = 4; // that are listed above the map

const LARGE = 1500; // nodes from which on each begins as one square

export class FleetView {
  constructor(store) {
    this.store = store;
    this.map = new FleetMap(store);
    this.types = make("div", { class: "scrolls types" });
    this.faults = make("ul", { class: "faults" });
    this.legend = make("ul", { class: "legend", "aria-label": "Letters of the map" });
    this.sizes = make("fieldset", {}, make("legend", { class: "hidden" }, "Size of a node"), Object.keys(SIZES).map((size) => this.button(size)));
    this.bar = make("div", { class: "bar" }, this.legend, this.sizes);
    this.empty = make("p", { class: "empty" });
    this.chosen = false;
    this.title = "Fleet";
  }

  button(size) {
    const choose = () => {
      this.chosen = true;
      this.choose(size);
    };
    return make("button", { type: "button", "data-size": size, "aria-pressed": "false", click: choose }, size);
  }

  choose(size) {
    for (const each of this.sizes.querySelectorAll("button")) each.setAttribute("aria-pressed", String(each.dataset.size === size));
    this.map.resize(size);
  }

  open(main) {
    main.replaceChildren(make("h1", { class: "hidden" }, "Fleet"), this.types, this.faults, this.empty, this.bar, this.map.element);
    this.update();
  }

  update() {
    const nodes = this.store.all("nodes");
    const isEmpty = nodes.size === 0;
    this.empty.hidden = !isEmpty;
    show(this.empty, this.store.get("facts", "empty") ?? "");
    for (const each of [this.types, this.bar, this.map.element]) each.hidden = isEmpty;
    show(this.types, typesTable(this.store));
    show(this.faults, faultLines(this.store, FAULTS));
    show(this.legend, letters(nodes));
    if (!this.chosen && nodes.size) this.choose(nodes.size > LARGE ? "small" : nodes.size > 24 ? "medium" : "large");
    this.map.update();
  }
}

function letters(nodes) {
  const numbers = new Map();
  for (const row of nodes.values()) numbers.set(row.letter, (numbers.get(row.letter) ?? 0) + 1);
  return Object.entries(STATES)
    .filter(([letter]) => numbers.has(letter))
    .map(([letter, [style, text]]) => make("li", {}, make("span", { class: `key ${style}` }, letter), `${text}: ${numbers.get(letter).toLocaleString("en")}`));
}

function typesTable(store) {
  const heads = ["Type", "Nodes", "Devices free", "Free groups of 4", "of 8", "of 16", "Held", "Unhealthy", "Reserved nodes", "Problems"];
  const rows = [...store.all("types").values()].map((row) => {
    const problems = [[row.notReady, "not Ready"], [row.cordoned, "cordoned"], [row.silent, "silent"]];
    const numbers = [shown(row.nodes), `${shown(row.free)} of ${shown(row.devices)}`, ...[4, 8, 16].map((size) => shown(row[`freeGroupsOf${size}`], row.free)), shown(row.held), shown(row.unhealthy), shown(row.reserved)];
    const text = problems.filter(([number]) => number).map(([number, what]) => `${number} ${what}`).join(", ");
    return make("tr", {}, make("th", { scope: "row" }, name(row.type || "unknown type")), numbers.map((each) => make("td", { class: "number" }, String(each))), make("td", {}, text));
  });
  return make("table", {}, make("thead", {}, make("tr", {}, heads.map((each, at) => make("th", { scope: "col", class: at && at < 9 ? "number" : "" }, each)))), make("tbody", {}, rows));
}

/** Return a number; "?" if it is unknown, "-" where there are no such groups. */
function shown(number, free = number) {
  if (number === null || number === undefined) return free === null || free === undefined ? "?" : "-";
  return number.toLocaleString("en");
}

/** Return a line for each fault; with `most`, a link to the others. */
export function faultLines(store, most = Infinity) {
  const groups = new Map();
  for (const each of store.all("wrong").values()) {
    const key = JSON.stringify([each.what, each.kind]);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(each);
  }
  const found = [...groups.values()];
  const lines = found.slice(0, most).map((same) => faultLine(same, most === Infinity ? same.length : 6));
  const more = found.length - most;
  if (more > 0) lines.push(make("li", {}, make("a", { href: link("faults") }, `and ${count(more, "more fault")}`)));
  return lines;
}

function faultLine(same, most) {
  const [{ kind, what, detail }] = same;
  const view = kind === "node" ? "node" : "server";
  const names = same.slice(0, most).map((each, at) => [at ? ", " : "", make("a", { href: link(view, each.name) }, name(each.name))]);
  const more = same.length > most ? ` and ${same.length - most} more` : "";
  const details = same.length === 1 && detail ? [" (", name(detail), ")"] : "";
  return make("li", {}, make("span", { class: "key faulty" }, "!"), make("strong", {}, name(what)), `: ${kind}${same.length === 1 ? "" : "s"} `, names, more, details);
}
