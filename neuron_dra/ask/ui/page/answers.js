// Answers of `why`, asked for one after the other, and again when the fleet has changed.

import { about } from "./source.js";

const HELD_BACK = 2_000; // milliseconds between two questions about the same object

const answers = new Map();
const questions = new Map();
let asking = false;

/** Return the last answer about an object, undefined before the first; `onAnswer` is called after a new one. */
export function answer(kind, namespace, name, version, onAnswer) {
  const key = `${kind}/${namespace}/${name}`;
  const lastAnswer = answers.get(key);
  const isOld = lastAnswer === undefined || (lastAnswer.version !== version && Date.now() - lastAnswer.at > HELD_BACK);
  if (isOld && !questions.has(key)) {
    questions.set(key, { kind, namespace, name, version, onAnswer });
    work();
  }
  return lastAnswer?.value;
}

async function work() {
  if (asking) return;
  asking = true;
  while (questions.size > 0) {
    const [key, { kind, namespace, name, version, onAnswer }] = questions.entries().next().value;
    let value;
    try {
      value = await about(kind, namespace, name);
    } catch {
      value = answers.get(key)?.value; // the state of the connection says why
    }
    questions.delete(key);
    answers.set(key, { value, version, at: Date.now() });
    onAnswer();
  }
  asking = false;
}
