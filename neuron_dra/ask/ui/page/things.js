// Views of single things: a node, an UltraServer, a workload, a pod.

import { answer } from "./answers.js";
import { count, make, name, show, shown } from "./dom.js";
import { table } from "./list.js";
import { styleOf, torus } from "./pictures.js";
import { age, report } from "./reports.js";
import { link } from "./routes.js";
import { STATES } from "./states.js";

const PODS = 6; // of one claim that are named

class ThingView {
  constructor(store, parts) {
    this.store = store;
    this.parts = parts;
    this.title = parts.at(-1);
  }

  open(main) {
    this.main = main;
    main.replaceChildren();
    this.update();
  }

  answered(kind, namespace, thing) {
    return answer(kind, namespace, thing, this.store.version, () => this.main.isConnected && this.isOpen() && this.update());
  }

  isOpen() {
    return this.main.dataset.view === this.parts.join("/");
  }
}

function heading(kind, thing) {
  return make("h1", {}, `${kind} `, name(thing));
}

function gone(kind, thing) {
  return [heading(kind, thing), make("p", { class: "empty" }, "It is not there, or not any more.")];
}

/** Return the letter of a node with its state. */
function stateOf(row) {
  return [make("span", { class: `key ${STATES[row.letter][0]}` }, row.letter), name(row.state)];
}

export class NodeView extends ThingView {
  update() {
    const node = this.parts[1];
    const row = this.store.get("nodes", node);
    if (!row) return show(this.main, gone("Node", node));
    const answerOfNode = this.answered("Node", "", node);
    const server = row.server ? make("p", {}, "node ", String(row.position), " of UltraServer ", make("a", { href: link("server", row.server) }, name(row.server))) : null;
    return show(
      this.main,
      heading("Node", node), make("p", {}, stateOf(row)), server,
      make("div", { class: "side" }, picture(answerOfNode), make("div", { class: "report" }, report(answerOfNode), held(this.store, node), nodeFacts(answerOfNode?.node))),
    );
  }
}

function picture(answerOfNode) {
  if (!answerOfNode?.picture) return null;
  const { shape, cells, summary, groups } = answerOfNode.picture;
  const legend = new Map();
  for (const [letter, mark, title] of cells) {
    const key = `${letter} ${title}`;
    legend.set(key, [letter, mark, title, (legend.get(key)?.[3] ?? 0) + 1]);
  }
  const marks = [...legend.values()].map(([letter, mark, title, number]) => make("li", {}, make("span", { class: `key ${styleOf(letter, mark)}` }, letter), name(title), `, ${number}`));
  const devices = cells.map(([, , title], number) => make("li", {}, `device ${number}: `, name(title)));
  return make(
    "div", {},
    torus(shape, cells, summary), make("p", {}, name(summary)), groups.map((group) => make("p", { class: "quiet" }, name(group))),
    make("ul", { class: "faults", "aria-label": "Marks of the picture" }, marks),
    make("details", {}, make("summary", {}, "each device in words"), make("ol", { start: "0", class: "faults" }, devices)),
  );
}

/** Return the programs of a node, its taints and its conditions. */
function nodeFacts(about) {
  if (!about) return null;
  const lines = [["age", age(about.since) || "unknown"], ...about.versions, ["taints", about.taints.join(", ") || "none"]];
  return [make("h2", {}, "The Node"), make("dl", {}, lines.map(([what, text]) => [make("dt", {}, what), make("dd", {}, name(text))])), conditions(about.conditions)];
}

function held(store, node) {
  const rows = [...store.all("holders").values()].filter((holder) => holder.node === node);
  if (!rows.length) return null;
  return [make("h2", {}, "Who holds its devices"), table(["Pod", "Devices"], rows.map((row) => [who(row), name(row.devices)]))];
}

/** Return the pods of a holder as links, or its claim. */
export function who(row) {
  if (!row.pods.length) return ["claim ", name(`${row.namespace}/${row.claim}`)];
  const links = row.pods.slice(0, PODS).map((pod, at) => [at ? ", " : "", make("a", { href: link("pod", row.namespace, pod) }, name(`${row.namespace}/${pod}`))]);
  return row.pods.length > PODS ? [links, ` and ${shown(row.pods.length - PODS)} more`] : links;
}

/** Return the groups that a workload requests. */
export function groups(row) {
  return `${count(row.wanted, "group")} of ${count(row.each, "node")}`;
}

export class ServerView extends ThingView {
  update() {
    const server = this.parts[1];
    const row = this.store.get("servers", server);
    if (!row) return show(this.main, gone("UltraServer", server));
    const links = row.links.map((nodeLink) => make("li", {}, nodeLink.up === false ? make("span", { class: "key faulty" }, "!") : null, `${nodeLink.way}: `, name(nodeLink.ends[0]), " – ", name(nodeLink.ends[1]), ", ", { true: "up", false: "down", null: "unknown" }[nodeLink.up]));
    const answerOfServer = this.answered("NeuronUltraServer", "", server);
    const lacks = row.nodes.filter((node) => node.missing).length;
    return show(
      this.main,
      heading("UltraServer", server), make("p", {}, name(row.type || "unknown type"), `, ${lacks ? `${row.nodes.length - lacks} of ` : ""}${count(row.nodes.length, "node")}`, row.links.length ? "" : ", connected by switches"),
      this.ring(row),
      links.length ? [make("h2", {}, "Links between nodes"), make("ul", { class: "faults" }, links)] : null,
      make("div", { class: "report" }, answerOfServer === null ? make("p", { class: "quiet" }, "The cluster has no NeuronUltraServer object of it.") : report(answerOfServer)),
    );
  }

  /** Return the nodes at their places, with the links between them. */
  ring({ nodes, links }) {
    const placed = (element, x, y) => {
      element.style.gridColumn = String(x);
      element.style.gridRow = String(y);
      return element;
    };
    const places = new Map(nodes.map((node) => [node.name, node]));
    const members = nodes.map((node) => placed(node.missing ? missing(node) : this.member(node.name), 2 * node.x + 1, 2 * node.y + 1));
    const wires = links.map(({ way, ends, up }) => {
      const [first, second] = ends.map((end) => places.get(end));
      const state = { true: "up", false: "down", null: "unclear" }[up];
      return placed(make("div", { class: `wire ${way} ${state}`, "aria-hidden": "true" }, { down: "×", unclear: "?", up: "" }[state]), first.x + second.x + 1, first.y + second.y + 1);
    });
    return make("div", { class: "ring" }, members, wires);
  }

  member(node) {
    const row = this.store.get("nodes", node);
    if (!row) return make("div", {});
    const shape = this.store.get("shapes", row.shape);
    const cells = [...row.marks].map((mark) => ["A", mark, ""]);
    const label = `${node}: ${row.state}`;
    return make("div", {}, make("p", {}, make("a", { href: link("node", node) }, name(node)), ` (node ${row.position})`), torus(shape, cells, label, 22, 30), make("p", {}, stateOf(row)));
  }
}

function missing(node) {
  return make("div", { class: "gap" }, make("p", {}, name(node.name), ` (node ${node.position})`), make("p", {}, "missing"));
}

export class WorkloadView extends ThingView {
  update() {
    const [, namespace, thing] = this.parts;
    const key = `${namespace}/${thing}`;
    const row = this.store.get("workloads", key);
    const past = happened(this.store.history.get(key));
    if (!row) return show(this.main, gone("Workload", key), past);
    return show(
      this.main,
      heading("Workload", key), make("p", {}, make("strong", {}, name(row.state)), `, ${groups(row)} of `, name(row.type || "any type"), age(row.since) ? `, for ${age(row.since)}` : ""),
      make("div", { class: "report" }, report(this.answered("NeuronUltraServerWorkload", namespace, thing))),
      ranks(row.ranks), conditions(row.conditions), past,
    );
  }
}

function ranks(list) {
  if (!list.length) return [make("h2", {}, "Ranks"), make("p", { class: "quiet" }, "It has no nodes yet.")];
  return [make("h2", {}, "Ranks"), table(["Rank", "Node", "Phase"], list.map(([rank, node, phase]) => [String(rank), make("a", { href: link("node", node) }, name(node)), phase]))];
}

function conditions(conditionRows) {
  if (!conditionRows.length) return null;
  return [make("h2", {}, "Conditions"), table(["Type", "Status", "Reason", "Message"], conditionRows.map((condition) => [condition.type, condition.status, condition.reason, condition.message].map((text) => name(text || "-"))))];
}

function happened(list) {
  const lines = (list ?? []).map(({ at, text }) => make("li", {}, make("time", { datetime: at.toISOString() }, at.toLocaleTimeString()), " ", name(text)));
  const none = make("p", { class: "quiet" }, "Nothing has changed.");
  return [make("h2", {}, "Since this page is open"), lines.length ? make("ol", { class: "faults" }, lines) : none];
}

export class PodView extends ThingView {
  update() {
    const [, namespace, thing] = this.parts;
    const rows = [...this.store.all("holders").values()].filter((row) => row.namespace === namespace && row.pods.includes(thing));
    const lines = rows.map((row) => make("li", {}, name(row.devices), " of ", make("a", { href: link("node", row.node) }, name(row.node)), ", by claim ", name(row.claim)));
    return show(
      this.main,
      heading("Pod", `${namespace}/${thing}`), make("div", { class: "report" }, report(this.answered("Pod", namespace, thing))),
      lines.length ? [make("h2", {}, "Devices that it holds"), make("ul", { class: "faults" }, lines)] : null,
    );
  }
}
