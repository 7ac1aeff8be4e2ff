// The first view: a headline, what waits, what is wrong, the types, and the map.

import { compare, count, joined, make, name, show, shown } from "./dom.js";
import { SIZES, short } from "./layout.js";
import { sortedBy, table } from "./list.js";
import { FleetMap } from "./map.js";
import { link } from "./routes.js";
import { STATES } from "./states.js";
import { WaitingList, waitingItems, waitingNumbers } from "./waiting.js";

const ITEMS = 3; // that wait and are listed above the map
const FAULTS = 4;
const NAMED = 4; // with one fault
const LARGE = 1500; // nodes from which on each begins as one square

export class FleetView {
  constructor(store) {
    this.store = store;
    this.title = "Fleet";
    this.heading = make("h1", {});
    this.when = make("p", { class: "quiet" });
    this.figures = make("ul", { class: "figures", "aria-label": "The fleet in numbers" });
    this.waiting = new WaitingList(store, ITEMS, true);
    this.noneWaits = make("p", { class: "quiet" });
    this.faults = make("ul", { class: "faults" });
    this.types = make("div", {});
    this.map = new FleetMap(store);
    this.legend = make("ul", { class: "legend", "aria-label": "Letters of the map: press one to see only its nodes" });
    this.sizes = make("fieldset", {}, make("legend", { class: "hidden" }, "Size of a node"), Object.keys(SIZES).map((size) => this.button(size)));
    this.bar = make("div", { class: "bar" }, this.legend, this.sizes);
    this.empty = make("p", { class: "empty" });
    this.columns = make(
      "div", { class: "columns" },
      make("section", {}, make("h2", {}, "Waiting"), this.waiting.element, this.noneWaits),
      make("section", {}, make("h2", {}, "Faults"), this.faults),
    );
    this.chosen = false;
  }

  button(size) {
    const choose = () => {
      this.chosen = true;
      this.choose(size);
    };
    return make("button", { type: "button", "data-size": size, "aria-pressed": "false", click: choose }, size);
  }

  choose(size) {
    for (const button of this.sizes.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.size === size));
    this.map.resize(size);
  }

  open(main) {
    main.replaceChildren(make("div", { class: "headline" }, this.heading, this.when), this.figures, this.empty, this.columns, this.types, this.bar, this.map.element);
    this.update();
    this.map.reveal();
  }

  /** Show the time of the data, which goes on although nothing changes. */
  tick() {
    const { seen } = this.store;
    show(this.when, seen ? ["data of ", make("time", { datetime: seen.toISOString() }, timeOf(seen))] : "the time of the data is unknown");
  }

  update() {
    this.tick();
    const nodes = this.store.all("nodes");
    const isEmpty = nodes.size === 0;
    show(this.heading, name(this.store.get("source", "name") ?? "Fleet"));
    this.empty.hidden = !isEmpty;
    show(this.empty, this.store.get("facts", "empty") ?? "");
    for (const element of [this.types, this.bar, this.map.element]) element.hidden = isEmpty;
    show(this.figures, figures(this.store));
    this.showWaiting();
    const faults = faultLines(this.store);
    show(this.faults, faults.length ? faults : make("li", { class: "quiet" }, "nothing is wrong with what was read"));
    show(this.types, table(HEADS, [...this.store.all("types").values()].map(typeRow)));
    this.showLetters(nodes);
    if (!this.chosen && nodes.size) this.choose(nodes.size > LARGE ? "small" : nodes.size > 40 ? "medium" : "large");
    this.map.update();
  }

  /** Show how many nodes each letter has, as buttons that leave out the others. */
  showLetters(nodes) {
    const numbers = new Map();
    for (const row of nodes.values()) numbers.set(row.letter, (numbers.get(row.letter) ?? 0) + 1);
    if (!numbers.has(this.map.only)) this.map.only = "";
    show(this.legend, Object.entries(STATES).filter(([letter]) => numbers.has(letter)).map(([letter, [style, text]]) => {
      const isOnly = letter === this.map.only;
      const choose = () => {
        this.map.show(isOnly ? "" : letter);
        this.showLetters(this.store.all("nodes"));
      };
      const words = [make("span", { class: `key ${style}` }, letter), `${text}: ${shown(numbers.get(letter))}`];
      return make("li", {}, make("button", { type: "button", "data-key": `only-${letter}`, "aria-pressed": String(isOnly), click: choose }, words));
    }));
  }

  showWaiting() {
    const items = waitingItems(this.store);
    const more = items.length - ITEMS;
    this.waiting.put(items);
    const none = waitingNumbers(this.store).pods === null ? "unknown whether pods wait" : "no pod and no workload waits";
    show(this.noneWaits, items.length ? (more > 0 ? make("a", { href: link("waiting") }, `and ${shown(more)} more`) : "") : none);
  }
}

/** Return a time of today, or with its date. */
function timeOf(time) {
  const isToday = time.toDateString() === new Date().toDateString();
  return isToday ? time.toLocaleTimeString("en-GB") : time.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

/** Return the figures of the headline: free devices, free nodes of UltraServers, what waits, and faults. */
function figures(store) {
  const types = [...store.all("types").values()];
  const freeFigures = [["device", "devices free"], ["node", "UltraServer nodes free"]].map(([unit, label]) => {
    const rows = types.filter((row) => row.unit === unit);
    const number = (key) => rows.reduce((sum, row) => (sum === null || row[key] === null ? null : sum + row[key]), 0);
    const others = ["held", "unhealthy"].filter((key) => number(key) !== 0).map((key) => joined(`${shown(number(key))} ${key}`));
    if (number("reserved")) others.push(joined(`${count(number("reserved"), "node")} reserved`));
    return rows.length ? figure(`${shown(number("free"))} of ${shown(number("devices"))}`, label, [serversText(rows), others.join(", ")]) : null;
  });
  const { pods, workloads, stuck } = waitingNumbers(store);
  const all = pods === null || workloads === null ? null : pods + workloads + stuck;
  const parts = [[pods, "pod"], [workloads, "workload"]].filter(([number]) => number).map(([number, noun]) => count(number, noun));
  if (stuck) parts.push(`${count(stuck, "pod")} not started`);
  const faults = store.all("wrong").size;
  return [...freeFigures, figure(shown(all), make("a", { href: link("waiting") }, "waiting"), [parts.join(", ")]), figure(shown(faults), make("a", { href: link("faults") }, faults === 1 ? "fault" : "faults"), [], faults > 0)];
}

function figure(number, label, details, isBad = false) {
  return make("li", { class: isBad ? "bad" : "" }, make("strong", {}, number), " ", label, details.filter(Boolean).map((text) => make("p", { class: "quiet" }, text)));
}

/** Return how many UltraServers, pairs and nodes of the others are free. */
function serversText(rows) {
  const free = rows.filter((row) => row.freeServers.length).map((row) => row.freeServers);
  if (!free.length) return "";
  const [whole, pairs, single] = [0, 1, 2].map((at) => free.reduce((sum, freeOfType) => sum + freeOfType[at], 0));
  const parts = [[whole, "UltraServer"], [pairs, "pair"], [single, "other node"]].filter(([number]) => number).map(([number, noun]) => joined(count(number, noun)));
  return parts.length ? parts.join(", ") : "no UltraServer, pair or node";
}

const HEADS = ["Type", "Nodes", "Free", "Free groups", "Held", "Unhealthy", "Reserved nodes", "Problems"];

function typeRow(row) {
  const problems = [[row.notReady, "not Ready"], [row.cordoned, "cordoned"], [row.silent, "silent"]];
  const groups = [4, 8, 16].filter((size) => row[`freeGroupsOf${size}`] !== null).map((size) => joined(`${shown(row[`freeGroupsOf${size}`])} of ${size}`));
  const free = row.free === null ? "?" : `${shown(row.free)} of ${count(row.devices, row.unit)}`;
  const text = problems.filter(([number]) => number).map(([number, what]) => joined(`${shown(number)} ${what}`)).join(", ");
  return [name(row.type || "unknown type"), shown(row.nodes), free, row.free === null ? "?" : serversText([row]) || groups.join(", ") || "-", shown(row.held), shown(row.unhealthy), shown(row.reserved), text || "none"];
}

const KINDS = ["UltraServer", "node", "pod"]; // whose faults come first

/** Return the faults in the order of `status`: by kind, then by name. */
export function faultsInOrder(store) {
  const byName = sortedBy([...store.all("wrong").values()], (fault) => fault.name);
  return sortedBy(byName, (fault) => KINDS.indexOf(fault.kind));
}

/** Return a line for each kind of fault, and a link to the others. */
function faultLines(store) {
  const groups = new Map();
  for (const fault of faultsInOrder(store)) {
    const key = JSON.stringify([fault.what, fault.kind]);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(fault);
  }
  const kinds = [...groups.values()];
  const lines = kinds.slice(0, FAULTS).map(faultLine);
  const more = kinds.length - FAULTS;
  if (more > 0) lines.push(make("li", {}, make("a", { href: link("faults") }, `and ${count(more, "more kind")} of fault`)));
  return lines;
}

function faultLine(faults) {
  const [{ kind, what, detail }] = faults;
  const inOrder = faults.toSorted((first, second) => compare(first.name, second.name));
  const names = inOrder.slice(0, NAMED).map((fault, at) => [at ? ", " : "", linkOf(fault, kind === "node" ? short(fault.name) : fault.name)]);
  const more = faults.length > NAMED ? [" ", make("a", { href: link("faults") }, joined(`and ${shown(faults.length - NAMED)} more`))] : "";
  const details = faults.length === 1 && detail ? [" (", name(detail), ")"] : "";
  return make("li", {}, make("span", { class: "key faulty" }, "!"), make("strong", {}, name(what)), `: ${kind}${faults.length === 1 ? "" : "s"} `, names, more, details);
}

/** Return the link of what has a fault. */
export function linkOf({ kind, name: thing }, text = thing) {
  const parts = { node: ["node", thing], pod: ["pod", ...thing.split("/")] }[kind] ?? ["server", thing];
  return make("a", { href: link(...parts) }, name(text));
}
