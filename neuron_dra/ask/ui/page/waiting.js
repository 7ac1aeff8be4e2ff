// What waits: workloads and pods, the oldest first, each with its cause and its age.

import { answer } from "./answers.js";
import { count, make, name, show } from "./dom.js";
import { ageOf, sortedBy } from "./list.js";
import { age, change } from "./reports.js";
import { link } from "./routes.js";

/** Return how many pods and workloads wait, and how many pods have a node and do not start; null if it is unknown. */
export function waitingNumbers(store) {
  const isUnknown = (kind) => (store.get("facts", "missing") ?? []).includes(kind);
  const pods = [...store.all("waiting").values()].reduce((sum, row) => sum + row.pods.length, 0);
  const workloads = [...store.all("workloads").values()].filter((row) => row.waits).length;
  return {
    pods: isUnknown("Pod") ? null : pods,
    workloads: isUnknown("NeuronUltraServerWorkload") ? null : workloads,
    stuck: isUnknown("Pod") ? null : store.all("stuck").size,
  };
}

/** Return what waits, the oldest first; equal pods are one item. */
export function waitingItems(store) {
  const workloads = [...store.all("workloads").values()].filter((row) => row.waits);
  const items = [
    ...workloads.map((row) => ({ kind: "NeuronUltraServerWorkload", view: "workload", namespace: row.namespace, first: row.name, others: [], since: row.since, told: "" })),
    ...[...store.all("waiting").values()].map((row) => ({ kind: "Pod", view: "pod", namespace: row.namespace, first: row.pods[0], others: row.pods.slice(1), since: row.since, told: "" })),
    ...[...store.all("stuck").values()].map((row) => ({ kind: "Pod", view: "pod", namespace: row.namespace, first: row.pod, others: [], since: row.since, told: `on node ${row.node}: ${row.text}` })),
  ];
  const byName = sortedBy(items, ({ namespace, first }) => `${namespace}/${first}`);
  return sortedBy(byName, ({ since }) => ageOf(since), true);
}

export class WaitingList {
  /** Show `most` items, with changes that help unless `isShort`. */
  constructor(store, most, isShort = false) {
    this.store = store;
    this.most = most;
    this.isShort = isShort;
    this.items = [];
    this.seen = new Set();
    this.element = make("ol", { class: "waiting" });
    this.eye = new IntersectionObserver((entries) => this.look(entries));
  }

  /** Ask why only for what is in sight. */
  look(entries) {
    for (const entry of entries) {
      if (entry.isIntersecting) this.seen.add(entry.target.dataset.item);
      else this.seen.delete(entry.target.dataset.item);
    }
    this.draw();
  }

  put(items) {
    this.items = items;
    this.draw();
  }

  draw() {
    if (!this.element.isConnected) return;
    const shownKeys = () => [...this.element.children].map((line) => line.dataset.item).join("\n");
    const before = shownKeys();
    if (!show(this.element, this.items.slice(0, this.most).map((item) => this.entry(item)))) return;
    if (before !== shownKeys()) this.eye.disconnect();
    for (const line of this.element.children) this.eye.observe(line);
  }

  entry({ kind, view, namespace, first, others, since, told }) {
    const href = link(view, namespace, first);
    const more = others.length ? [` and ${count(others.length, "other pod")} like it`] : "";
    const waits = make("span", { class: "quiet" }, age(since) ? `, for ${age(since)}` : "");
    return make("li", { "data-item": href }, make("p", {}, `${view} `, make("a", { href }, name(`${namespace}/${first}`)), more, waits), told ? make("p", {}, name(told)) : this.cause(kind, namespace, first, href));
  }

  cause(kind, namespace, first, href) {
    const report = this.seen.has(href) ? answer(kind, namespace, first, this.store.version, () => this.draw()) : undefined;
    if (report === undefined) return make("p", { class: "quiet" }, "asking why …");
    const cause = report?.causes[0];
    if (!cause) return make("p", {}, report ? name([report.state, ...report.notes].filter(Boolean).join("; ")) : "it is not there any more");
    return [make("p", {}, make("strong", {}, name(cause.text))), this.isShort ? null : cause.changes.slice(0, 1).map(change)];
  }
}
