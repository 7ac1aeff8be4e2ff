// Starts the page: takes the token, follows the server, and shows the view that the address names.

import { make, name, plain, show } from "./dom.js";
import { FleetView } from "./fleet.js";
import { FaultsView, HoldersView, NodesView, SearchView, WaitingView, WorkloadsView } from "./lists.js";
import { link, route } from "./routes.js";
import { embedded, follow, takeToken } from "./source.js";
import { Store } from "./store.js";
import { NodeView, PodView, ServerView, WorkloadView } from "./things.js";
import { waitingNumbers } from "./waiting.js";

const VIEWS = {
  fleet: FleetView, waiting: WaitingView, faults: FaultsView, workloads: WorkloadsView, nodes: NodesView, holders: HoldersView,
  search: SearchView, node: NodeView, server: ServerView, workload: WorkloadView, pod: PodView,
};
const SECTIONS = { fleet: "", waiting: "", faults: "wrong", workloads: "workloads", nodes: "nodes", holders: "holders" };
const STATES_OF_CONNECTION = {
  reading: "reading the cluster …", live: "live", file: "a snapshot from a file, which does not change",
  lost: "lost connection: what you see is old. ", expired: "expired credentials: what you see is old. ", denied: "no rights: ",
  failed: "the page stands still, start neuron-dra ui again: ",
};

const store = new Store();
const main = document.getElementById("main");
const kept = new Map();
let view = null;
let trouble = ["", ""];

function openView() {
  const parts = route();
  const isView = Object.hasOwn(VIEWS, parts[0]);
  const kind = isView ? parts[0] : "fleet";
  const key = isView ? parts.join("/") : "fleet";
  if (view && main.dataset.view === key) return;
  document.getElementById("tip").hidden = true;
  main.dataset.view = key;
  if (!kept.has(kind) || parts.length > 1) kept.set(kind, new VIEWS[kind](store, parts));
  const wasOpen = view !== null;
  view = kept.get(kind);
  view.open(main);
  if (wasOpen && kind !== "search") main.focus({ preventScroll: true });
  main.scrollTop = 0;
  update();
}

function update() {
  document.title = plain(`${view.title} · neuron-dra`);
  show(document.getElementById("source"), name(store.get("source", "name") ?? ""));
  navigation();
  connection();
  const note = store.get("facts", "note") ?? "";
  document.getElementById("note").hidden = !note;
  show(document.getElementById("note"), note ? name(note) : "");
}

function navigation() {
  const current = main.dataset.view.split("/")[0];
  const { pods, workloads, stuck } = waitingNumbers(store);
  const links = Object.entries(SECTIONS).map(([each, section]) => {
    const number = each === "waiting" ? pods + workloads + stuck : store.all(section).size;
    const text = each[0].toUpperCase() + each.slice(1);
    const label = each === "fleet" || !number ? text : `${text} ${number.toLocaleString("en")}`;
    return make("a", { href: link(each), "aria-current": each === current ? "page" : false }, label);
  });
  show(document.getElementById("views"), links);
}

function connection() {
  const { state, text } = store.get("connection", "") ?? { state: "reading", text: "" };
  const [problem, words] = trouble;
  const element = document.getElementById("connection");
  const isBad = Boolean(problem) || ["lost", "expired", "denied", "failed"].includes(state);
  element.classList.toggle("bad", isBad);
  const told = problem ? words : `${STATES_OF_CONNECTION[state] ?? state}${text ? ` ${text}` : ""}`;
  show(element, name(told));
}

function received(line) {
  if (!store.apply(line)) {
    view.tick?.();
    return;
  }
  view.update();
  update();
}

function searchFor(event) {
  event.preventDefault();
  const words = document.getElementById("words").value.trim();
  if (words) location.hash = link("search", words);
}

async function start() {
  addEventListener("hashchange", openView);
  document.getElementById("search").addEventListener("submit", searchFor);
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault(); // its fragment is no view
    main.focus();
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.matches("input")) return;
    event.preventDefault();
    document.getElementById("words").focus();
  });
  const whole = embedded();
  if (!whole) await takeToken();
  if (whole?.start && !location.hash) history.replaceState(null, "", whole.start);
  openView();
  if (whole) received(whole.rows);
  else follow(received, (...told) => {
    trouble = told;
    update();
  });
}

start();
