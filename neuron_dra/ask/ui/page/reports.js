// Answers of `why`, as the command prints them.

import { joined, make, name } from "./dom.js";

/** Return the answer about an object, or that it is being looked for. */
export function report(answer) {
  if (answer === undefined) return make("p", { class: "quiet" }, "asking why …");
  if (answer === null) return make("p", { class: "quiet" }, "it is not there, or not any more");
  const causes = answer.causes.map((cause, number) => [
    make("p", {}, make("strong", {}, number ? "also: " : "", name(cause.text))),
    facts(cause.facts),
    cause.changes.map(change),
  ]);
  const notes = answer.notes.map((note) => make("p", { class: "quiet" }, "note: ", name(note)));
  return [make("p", {}, name(`${answer.subject} ${answer.state}`)), causes, notes];
}

function facts(causeFacts) {
  if (!causeFacts.length) return null;
  // Facts with one label follow each other; those without a label belong to the one before.
  const isLabelled = (fact, number) => number === 0 || (fact.name && fact.name !== causeFacts[number - 1].name);
  return make("dl", {}, causeFacts.map((fact, number) => [
    isLabelled(fact, number) ? make("dt", {}, name(fact.name)) : null,
    make("dd", {}, name(fact.text)),
  ]));
}

/** Return a change that helps. */
export function change(suggestion) {
  return make("p", { class: "change" }, "to change: ", make("code", {}, name(suggestion.text)), make("br"), suggestion.steps ? [name(suggestion.steps), make("br")] : null, make("span", { class: "quiet" }, name(suggestion.outcome)));
}

/** Return how long ago a time was, in words; empty if it is no time. */
export function age(text) {
  const seconds = Math.max(0, (Date.now() - Date.parse(text)) / 1000);
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 90) return joined("a minute");
  if (seconds < 5400) return joined(`${Math.round(seconds / 60)} minutes`);
  if (seconds < 129_600) return joined(`${Math.round(seconds / 3600)} hours`);
  return joined(`${Math.round(seconds / 86_400)} days`);
}
