// Views of many things: what waits, faults, workloads, nodes, who holds what, and what a search found.

import { count, make, name, show, shown, sorted } from "./dom.js";
import { faultsInOrder, linkOf } from "./fleet.js";
import { List, UNSORTED, ageOf, filterField, sortButton, sortedBy } from "./list.js";
import { age } from "./reports.js";
import { link } from "./routes.js";
import { STATES } from "./states.js";
import { groups, who } from "./things.js";
import { WaitingList, waitingItems, waitingNumbers } from "./waiting.js";

const PAGE_OF_WAITING = 50;

/** A view with one list; `rows` returns what it lists, `none` what is to be said without any. */
class ListView {
  constructor(store, title, none, list, rows) {
    this.store = store;
    this.title = title;
    this.none = make("p", { class: "empty" });
    this.noneText = none;
    this.list = list;
    this.rows = rows;
  }

  open(main) {
    main.replaceChildren(make("h1", {}, this.title), this.none, this.list.element);
    this.update();
  }

  update() {
    const rows = this.rows();
    show(this.none, rows.length ? "" : this.noneText);
    this.list.element.hidden = rows.length === 0;
    this.list.put(rows);
  }
}

const nodeLink = (node) => make("a", { href: link("node", node) }, name(node));

export class HoldersView extends ListView {
  constructor(store) {
    const list = new List("who holds devices", "claim", [
      ["Pod", (row) => row.pods.map((pod) => `${row.namespace}/${pod}`).join(", ") || `claim ${row.namespace}/${row.claim}`, who],
      ["Node", (row) => row.node, (row) => nodeLink(row.node)],
      ["Devices", (row) => row.devices],
      ["Number", (row) => row.count, (row) => shown(row.count)],
    ], 3, true);
    super(store, "Who holds devices", "No claim holds Neuron devices.", list, () => [...store.all("holders").values()]);
  }
}

export class FaultsView extends ListView {
  constructor(store) {
    const list = new List("faults", "fault", [
      ["Fault", (row) => row.what, (row) => [make("span", { class: "key faulty" }, "!"), make("strong", {}, name(row.what))]],
      ["Kind", (row) => row.kind],
      ["Name", (row) => row.name, (row) => linkOf(row)],
      ["Detail", (row) => row.detail],
    ], UNSORTED);
    super(store, "Faults", "Nothing is wrong with nodes, UltraServers and pods.", list, () => faultsInOrder(store));
  }
}

export class NodesView extends ListView {
  constructor(store) {
    const list = new List("nodes", "node", [
      ["Node", ([node]) => node, ([node]) => nodeLink(node)],
      ["State", ([, row]) => `${row.letter} ${row.state}`, ([, row]) => [make("span", { class: `key ${STATES[row.letter][0]}` }, row.letter), name(row.state)]],
      ["Type", ([, row]) => row.type || "unknown type"],
      ["UltraServer", ([, row]) => row.server, ([, row]) => (row.server ? make("a", { href: link("server", row.server) }, name(row.server)) : "-")],
      ["Free", ([, row]) => row.free, ([, row]) => shown(row.free)],
      ["Held", ([, row]) => row.held, ([, row]) => shown(row.held)],
      ["Unhealthy", ([, row]) => row.faulty, ([, row]) => shown(row.faulty)],
    ]);
    super(store, "Nodes", "There is no node with Neuron devices.", list, () => [...store.all("nodes")]);
  }
}

export class WorkloadsView extends ListView {
  constructor(store) {
    const list = new List("UltraServer workloads", "workload", [
      ["Workload", ([key]) => key, ([key, row]) => make("a", { href: link("workload", row.namespace, row.name) }, name(key))],
      ["State", ([, row]) => row.state],
      ["Groups", ([, row]) => row.groups, ([, row]) => `${shown(row.groups)} of ${groups(row)}`],
      ["UltraServers", ([, row]) => row.servers.join(", "), ([, row]) => fewLinks("server", row.servers)],
      ["Type", ([, row]) => row.type || "any type"],
      ["Reason", ([, row]) => row.reason || "-"],
      ["Age", ([, row]) => ageOf(row.since), ([, row]) => age(row.since) || "unknown"],
    ]);
    super(store, "UltraServer workloads", "There is no NeuronUltraServerWorkload.", list, () => [...store.all("workloads")]);
  }
}

const LINKS = 6;

/** Return links to some things, and how many more there are. */
function fewLinks(view, names) {
  if (!names.length) return "-";
  const links = sorted(names).slice(0, LINKS).map((thing, at) => [at ? ", " : "", make("a", { href: link(view, thing) }, name(thing))]);
  return names.length > LINKS ? [links, ` and ${shown(names.length - LINKS)} more`] : links;
}

// What waits is sorted by these values. Causes cannot sort it, because they are asked only for what is in sight.
const ORDERS = {
  Age: ({ since }) => ageOf(since),
  Name: ({ namespace, first }) => `${namespace}/${first}`,
  Kind: ({ view, told }) => `${view} ${told}`,
  Pods: ({ view, others }) => (view === "pod" ? 1 + others.length : 0),
};

export class WaitingView {
  constructor(store) {
    this.store = store;
    this.title = "Waiting";
    this.by = "Age";
    this.isDown = true;
    this.filter = filterField("Filter: what waits", () => this.update(), "Filter by name");
    this.orders = make("div", { class: "orders", role: "group", "aria-label": "Sort what waits" });
    this.list = new WaitingList(store, PAGE_OF_WAITING);
    this.told = make("p", { class: "quiet", role: "status" });
    this.more = make("button", { type: "button", click: () => this.showMore() }, "show more");
  }

  open(main) {
    main.replaceChildren(make("h1", {}, "What waits"), make("div", { class: "bar" }, this.filter, this.orders, this.told), this.list.element, this.more);
    this.update();
  }

  showMore() {
    this.list.most += PAGE_OF_WAITING;
    this.update();
  }

  sort(by) {
    this.isDown = by === this.by ? !this.isDown : by === "Pods" || by === "Age";
    this.by = by;
    this.update();
  }

  showOrders() {
    const buttons = Object.keys(ORDERS).map((title) => sortButton(title, title === this.by, this.isDown, () => this.sort(title), { "aria-pressed": String(title === this.by) }));
    show(this.orders, "sort by", buttons);
  }

  update() {
    const words = this.filter.value.trim().toLowerCase();
    const items = waitingItems(this.store);
    const has = ({ view, namespace, first, others, told }) => [`${view} ${namespace}/${first}`, ...others, told].some((text) => text.toLowerCase().includes(words));
    const matching = words ? items.filter(has) : items;
    const none = waitingNumbers(this.store).pods === null ? "Whether pods wait is unknown." : "No pod and no workload waits for Neuron devices.";
    const shownItems = Math.min(matching.length, this.list.most);
    show(this.told, items.length ? `${shown(shownItems)} of ${shown(items.length)}; equal pods are together` : none);
    for (const element of [this.filter, this.orders]) element.hidden = items.length === 0;
    this.showOrders();
    this.more.hidden = matching.length <= this.list.most;
    this.list.put(sortedBy(matching, ORDERS[this.by], this.isDown));
  }
}

export class SearchView {
  constructor(store, parts) {
    this.store = store;
    this.words = parts[1] ?? "";
    this.title = `Search ${this.words}`;
    this.heading = make("p", { class: "quiet", role: "status" });
    this.list = new List("found", "thing", [
      ["Name", ([, , text]) => text, ([, href, text]) => make("a", { href }, name(text))],
      ["Kind", ([kind]) => kind],
      ["State", ([, , , state]) => state],
    ]);
  }

  open(main) {
    main.replaceChildren(make("h1", {}, "Search: ", name(this.words)), this.heading, this.list.element);
    this.update();
  }

  update() {
    const things = [...search(this.store, this.words.toLowerCase())];
    show(this.heading, things.length ? `${count(things.length, "thing")} found` : "Nothing is called so: nodes, UltraServers, pods that hold or wait for devices, claims and workloads are searched.");
    this.list.element.hidden = things.length === 0;
    this.list.put(things);
  }
}

function* search(store, words) {
  if (!words) return;
  const has = (...texts) => texts.some((text) => text.toLowerCase().includes(words));
  for (const [server, row] of store.all("servers")) {
    if (has(server)) yield ["UltraServer", link("server", server), server, row.type];
  }
  for (const [node, row] of store.all("nodes")) {
    if (has(node, row.state, row.type)) yield ["node", link("node", node), node, row.state];
  }
  for (const [key, row] of store.all("workloads")) {
    if (has(key)) yield ["workload", link("workload", row.namespace, row.name), key, row.state];
  }
  const pods = new Map(); // a pod can hold devices of several claims
  for (const row of store.all("holders").values()) {
    for (const pod of row.pods) if (has(`${row.namespace}/${pod}`, row.claim)) pods.set(`${row.namespace}/${pod}`, `${row.devices} of ${row.node}`);
  }
  for (const row of store.all("waiting").values()) {
    for (const pod of row.pods) if (has(`${row.namespace}/${pod}`)) pods.set(`${row.namespace}/${pod}`, "waits");
  }
  for (const [key, row] of store.all("stuck")) if (has(key)) pods.set(key, `has not started on ${row.node}`);
  for (const [key, state] of pods) yield ["pod", link("pod", ...key.split("/")), key, state];
}
