// Starts the page: takes the token, follows the server, and shows the view that the address names.

import { byKey, keyOf, make, name, plain, show } from "./dom.js";
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
const field = document.getElementById("words");
const help = document.getElementById("help");
const kept = new Map();
const left = new Map(); // by view: what had the focus, and how far it was scrolled
let view = null;
let beforeSearch = link("fleet");
let trouble = ["", ""];
let hasRows = false;
let isLocked = false;

function openView() {
  if (isLocked) return;
  const parts = route();
  const isView = Object.hasOwn(VIEWS, parts[0]);
  const kind = isView ? parts[0] : "fleet";
  const key = isView ? parts.join("/") : "fleet";
  if (view && main.dataset.view === key) return;
  document.getElementById("tip").hidden = true;
  if (view) left.set(main.dataset.view, { focus: main.contains(document.activeElement) ? keyOf(document.activeElement) : "", top: main.scrollTop });
  main.dataset.view = key;
  // An entry of the history that was seen before is one that Back, or Forward, leads to.
  const isBack = Boolean(history.state?.seen);
  const back = isBack ? left.get(key) : undefined;
  history.replaceState({ seen: true }, "");
  if (!kept.has(kind) || parts.length > 1) kept.set(kind, new VIEWS[kind](store, parts));
  const wasOpen = view !== null;
  view = kept.get(kind);
  view.open(main);
  update();
  const isTyping = document.activeElement === field && (kind === "search" || !isBack);
  if (!isTyping) field.value = kind === "search" ? parts[1] : "";
  if (wasOpen && !isTyping) ((back?.focus && byKey(main, back.focus)) || main).focus({ preventScroll: true });
  main.scrollTop = back?.top ?? 0;
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
  const links = Object.entries(SECTIONS).map(([view, section]) => {
    const number = view === "waiting" ? pods + workloads + stuck : store.all(section).size;
    const text = view[0].toUpperCase() + view.slice(1);
    const label = view === "fleet" || !number ? text : `${text} ${number.toLocaleString("en")}`;
    return make("a", { href: link(view), "aria-current": view === current ? "page" : false }, label);
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

/** Show that the page has no key, and where it is: the figures of a cluster that was not read would all be zero. */
function lock() {
  isLocked = true;
  document.title = "No key · neuron-dra";
  for (const id of ["views", "connection", "source"]) show(document.getElementById(id), null);
  document.getElementById("search").hidden = true;
  show(main, [
    make("h1", {}, "This page has no key"),
    make("p", {}, "Open the whole address that ", make("code", {}, "neuron-dra ui"), " or ", make("code", {}, "neuron-dra demo --keep"),
      " printed. It ends with the key: ", make("code", {}, "#ticket=…"), " or ", make("code", {}, "#token=…"), "."),
    make("p", {}, "The key in an address with ", make("code", {}, "#ticket="), " opens the page once. If it was used, start ",
      make("code", {}, "neuron-dra ui"), " again, or copy the page's address from a tab that shows it."),
  ]);
}

function received(line) {
  hasRows = true;
  if (!store.apply(line)) {
    view.tick?.();
    return;
  }
  view.update();
  update();
}

// The view follows its address only after the event `hashchange`, and the next key may come before that.
const isSearching = () => location.hash.startsWith(link("search"));

/** Show what the field has, as one entry of the history. */
function searchFor() {
  const words = field.value.trim();
  const isSearch = isSearching();
  if (!isSearch) beforeSearch = location.hash || link("fleet");
  if (words && !isSearch) location.hash = link("search", words);
  else if (isSearch) location.replace(words ? link("search", words) : beforeSearch);
}

function onKey(event) {
  if (event.key === "Escape" && !help.open) return onEscape(event);
  if (event.target.matches("input") || event.ctrlKey || event.metaKey || event.altKey) return undefined;
  if (event.key === "?" && !help.open) help.showModal();
  if (event.key !== "/" || help.open) return undefined;
  event.preventDefault();
  field.select();
  return field.focus();
}

/** End a search; outside of a field, return to the fleet. */
function onEscape(event) {
  if (event.target === field) {
    field.value = "";
    searchFor();
    main.focus();
  } else if (isSearching()) {
    location.replace(beforeSearch);
  } else if (!event.target.matches("input") && main.dataset.view !== "fleet") {
    location.hash = link("fleet");
  }
}

async function start() {
  addEventListener("hashchange", openView);
  field.addEventListener("input", searchFor);
  document.getElementById("search").addEventListener("submit", (event) => {
    event.preventDefault();
    main.querySelector("tbody a")?.focus();
  });
  document.getElementById("keys").addEventListener("click", () => help.showModal());
  document.getElementById("close").addEventListener("click", () => help.close());
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault(); // its fragment is no view
    main.focus();
  });
  addEventListener("keydown", onKey);
  const whole = embedded();
  if (!whole && !(await takeToken())) return lock();
  if (whole?.start && !location.hash) history.replaceState(null, "", whole.start);
  openView();
  if (whole) received(whole.rows);
  else follow(received, (...told) => {
    trouble = told;
    if (told[0] === "refused" && !hasRows) lock();
    else update();
  });
  return undefined;
}

start();
