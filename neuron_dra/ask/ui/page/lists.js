// Views of many things: who holds what, what waits, faults, workloads, and what a search found.

import { answer } from "./answers.js";
import { count, make, name, show } from "./dom.js";
import { faultLines } from "./fleet.js";
import { sorted } from "./layout.js";
import { LongTable } from "./list.js";
import { ago, change } from "./reports.js";
import { link } from "./routes.js";
import { who } from "./things.js";

const PAGE = 50; // entries of a list that are shown at a time

export class HoldersView {
  constructor(store) {
    this.store = store;
    this.title = "Holders";
    this.heading = make("p", { class: "quiet" });
    this.table = new LongTable("Who holds devices", "holds", ["Pod", "Node", "Devices", "Count"], (row) => [
      who(row), make("a", { href: link("node", row.node) }, name(row.node)), name(row.devices), String(row.count),
    ]);
  }

  open(main) {
    main.replaceChildren(make("h1", {}, "Who holds devices"), this.heading, this.table.element);
    this.update();
  }

  update() {
    const rows = [...this.store.all("holders").values()].sort((one, other) => other.count - one.count);
    const total = rows.reduce((sum, row) => sum + row.count, 0);
    show(this.heading, rows.length ? `${count(rows.length, "claim")} with ${count(total, "device")}, those with the most first` : "No claim holds Neuron devices.");
    this.table.put(rows);
  }
}

export class WaitingView {
  constructor(store) {
    this.store = store;
    this.title = "Waiting";
    this.most = PAGE;
    this.list = make("ol", { class: "waiting" });
    this.seen = new Set();
    this.more = make("button", { type: "button", click: () => this.showMore() }, "show more");
    this.none = make("p", { class: "empty" });
    this.eye = new IntersectionObserver((entries) => this.look(entries));
  }

  open(main) {
    main.replaceChildren(make("h1", {}, "What waits"), this.none, this.list, this.more);
    this.main = main;
    this.update();
  }

  showMore() {
    this.most += PAGE;
    this.update();
  }

  /** Ask why only for what is in sight. */
  look(entries) {
    for (const entry of entries) {
      if (entry.isIntersecting) this.seen.add(entry.target.dataset.key);
      else this.seen.delete(entry.target.dataset.key);
    }
    this.update();
  }

  update() {
    if (!this.main?.isConnected || this.main.dataset.view !== "waiting") return;
    const items = this.items();
    show(this.none, items.length ? "" : "No pod and no workload waits for Neuron devices.");
    const before = [...this.list.children].map((each) => each.dataset.key).join("\n");
    if (show(this.list, items.slice(0, this.most).map((item) => this.entry(item)))) {
      const after = [...this.list.children].map((each) => each.dataset.key).join("\n");
      if (before !== after) this.eye.disconnect();
      for (const each of this.list.children) this.eye.observe(each);
    }
    this.more.hidden = items.length <= this.most;
  }

  items() {
    const workloads = [...this.store.all("workloads").values()].filter((row) => row.waits);
    const pods = [...this.store.all("waiting").values()];
    workloads.sort((one, other) => (one.since < other.since ? -1 : 1));
    pods.sort((one, other) => one.order - other.order);
    return [
      ...workloads.map((row) => ({ kind: "NeuronUltraServerWorkload", view: "workload", namespace: row.namespace, first: row.name, others: [], since: row.since })),
      ...pods.map((row) => ({ kind: "Pod", view: "pod", namespace: row.namespace, first: row.pods[0], others: row.pods.slice(1), since: row.since })),
    ];
  }

  entry({ kind, view, namespace, first, others, since }) {
    const key = link(view, namespace, first);
    const found = this.seen.has(key) ? answer(kind, namespace, first, this.store.version, () => this.update()) : undefined;
    const noun = view === "pod" ? "pod" : "workload";
    const more = others.length ? [` and ${count(others.length, "other pod")} like it`] : "";
    return make(
      "li", { "data-key": key },
      make("p", {}, `${noun} `, make("a", { href: link(view, namespace, first) }, name(`${namespace}/${first}`)), more, make("span", { class: "quiet" }, since ? `, waits ${ago(since)}` : "")),
      found === undefined ? make("p", { class: "quiet" }, "asking why …") : firstLine(found),
    );
  }
}

function firstLine(found) {
  const cause = found?.causes[0];
  if (!cause) return make("p", {}, found ? name(found.state) : "it is not there any more");
  return [make("p", {}, make("strong", {}, name(cause.text))), cause.changes.slice(0, 1).map(change)];
}

export class FaultsView {
  constructor(store) {
    this.store = store;
    this.title = "Faults";
    this.list = make("ul", { class: "faults" });
    this.none = make("p", { class: "empty" });
  }

  open(main) {
    main.replaceChildren(make("h1", {}, "Faults"), this.none, this.list);
    this.update();
  }

  update() {
    const lines = faultLines(this.store);
    show(this.none, lines.length ? "" : "Nothing is wrong with nodes and UltraServers.");
    show(this.list, lines);
  }
}

export class WorkloadsView {
  constructor(store) {
    this.store = store;
    this.title = "Workloads";
    this.none = make("p", { class: "empty" });
    this.table = new LongTable("UltraServer workloads", "found", ["State", "Workload", "Nodes"], ([key, row]) => [
      name(row.state), make("a", { href: link("workload", row.namespace, row.name) }, name(key)), [`${row.size} of `, name(row.type || "any type")],
    ]);
  }

  open(main) {
    main.replaceChildren(make("h1", {}, "UltraServer workloads"), this.none, this.table.element);
    this.update();
  }

  update() {
    const rows = this.store.all("workloads");
    show(this.none, rows.size ? "" : "There is no NeuronUltraServerWorkload.");
    this.table.element.hidden = rows.size === 0;
    this.table.put(sorted(rows.keys()).map((key) => [key, rows.get(key)]));
  }
}

export class SearchView {
  constructor(store, parts) {
    this.store = store;
    this.words = parts[1] ?? "";
    this.title = `Search ${this.words}`;
    this.heading = make("p", { class: "quiet", role: "status" });
    this.table = new LongTable("Found", "found", ["Kind", "Name", "State"], ([kind, href, text, state]) => [kind, make("a", { href }, name(text)), name(state)]);
  }

  open(main) {
    main.replaceChildren(make("h1", {}, "Search: ", name(this.words)), this.heading, this.table.element);
    this.update();
  }

  update() {
    const found = [...search(this.store, this.words.toLowerCase())];
    show(this.heading, found.length ? `${count(found.length, "thing")} found` : "Nothing is called so: nodes, UltraServers, pods that hold or wait for devices, claims and workloads are searched.");
    this.table.put(found);
  }
}

function* search(store, words) {
  if (!words) return;
  const has = (...texts) => texts.some((text) => text.toLowerCase().includes(words));
  for (const server of sorted(store.all("servers").keys())) {
    if (has(server)) yield ["UltraServer", link("server", server), server, store.get("servers", server).type];
  }
  for (const node of sorted(store.all("nodes").keys())) {
    const row = store.get("nodes", node);
    if (has(node, row.state, row.type)) yield ["node", link("node", node), node, row.state];
  }
  for (const [key, row] of store.all("workloads")) {
    if (has(key)) yield ["workload", link("workload", row.namespace, row.name), key, row.state];
  }
  for (const row of store.all("holders").values()) {
    for (const pod of row.pods) {
      if (has(`${row.namespace}/${pod}`, row.claim)) yield ["pod", link("pod", row.namespace, pod), `${row.namespace}/${pod}`, `${row.devices} of ${row.node}`];
    }
  }
  for (const row of store.all("waiting").values()) {
    for (const pod of row.pods) {
      if (has(`${row.namespace}/${pod}`)) yield ["pod", link("pod", row.namespace, pod), `${row.namespace}/${pod}`, "waits"];
    }
  }
}
