// Where the rows come from: the server of this page, or the page itself where it is one file.

const KEPT = "neuron-dra-token";
const CHANNEL = "neuron-dra-ui";
const SILENCE = 15_000; // milliseconds without a line: the server sends one every five seconds
const AGAIN = 2_000;
const ANSWER = 500;
const UNSEEN = 5_000; // milliseconds between two looks of a tab that is not seen

let token = "";
let version = 0; // of the last line

const element = document.getElementById("embedded");
const data = element ? JSON.parse(element.textContent) : null;

/** Return what is embedded in the page, or null. */
export function embedded() {
  return data;
}

/** Take the token out of the address, for the ticket in it, or from another tab of this page; return if there is one. */
export async function takeToken() {
  const match = /^#(token|ticket)=([\w-]+)$/.exec(location.hash);
  if (match) {
    history.replaceState(null, "", `${location.pathname}#fleet`);
    const newToken = match[1] === "token" ? match[2] : await exchanged(match[2]);
    if (newToken) sessionStorage.setItem(KEPT, newToken);
  }
  token = sessionStorage.getItem(KEPT) ?? (await fromAnotherTab());
  if (token) sessionStorage.setItem(KEPT, token);
  const channel = new BroadcastChannel(CHANNEL); // reaches pages of this address only
  channel.onmessage = (event) => event.data.wanted && channel.postMessage({ token });
  return Boolean(token);
}

/** Return the token for a ticket; empty if it has been used: the history of a browser keeps the address with it. */
async function exchanged(ticket) {
  try {
    const response = await fetch("api/token", { headers: { Authorization: `Bearer ${ticket}` }, cache: "no-store" });
    return response.ok ? await response.text() : "";
  } catch {
    return "";
  }
}

function fromAnotherTab() {
  const channel = new BroadcastChannel(CHANNEL);
  return new Promise((resolve) => {
    channel.onmessage = (event) => event.data.token && resolve(event.data.token);
    channel.postMessage({ wanted: true });
    setTimeout(() => resolve(""), ANSWER);
  }).finally(() => channel.close());
}

function ask(path, signal) {
  return fetch(path, { headers: { Authorization: `Bearer ${token}` }, signal, cache: "no-store" });
}

/** Return what is to be said about an object, or null if there is none. Throws when the server does not answer. */
export async function about(kind, namespace, name) {
  if (data) return data.about[`${kind}/${namespace}/${name}`] ?? { subject: name, state: "", causes: [], notes: ["this file has no answer about it"] };
  const words = new URLSearchParams({ kind, namespace, name });
  const response = await ask(`api/about?${words}`);
  if (!response.ok) return { subject: name, state: "", causes: [], notes: [await response.text()] };
  return response.json();
}

/** Call `onLine` with each line of the server for as long as the page is open, and `onState` with what is wrong. */
export async function follow(onLine, onState) {
  for (;;) {
    try {
      await oneStream(onLine, onState);
      await seenAgain();
      continue;
    } catch (error) {
      if (error instanceof Refused) {
        onState("refused", error.message);
        return;
      }
      onState("ended", "neuron-dra ui does not answer: it has ended, or the machine slept");
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN));
  }
}

class Refused extends Error {}

/** Wait until this tab is seen, but no longer than it may be old. */
async function seenAgain() {
  if (!document.hidden) return;
  await new Promise((resolve) => {
    document.addEventListener("visibilitychange", resolve, { once: true });
    setTimeout(resolve, UNSEEN);
  });
}

// Follow the server while this tab is seen. A browser has six connections to one address: a tab that is not seen keeps
// none, and only looks now and then.
async function oneStream(onLine, onState) {
  const silence = new AbortController();
  const leave = () => document.hidden && silence.abort();
  document.addEventListener("visibilitychange", leave);
  let timer = setTimeout(() => silence.abort(), SILENCE);
  try {
    const response = await ask(`api/stream?version=${version}${document.hidden ? "&once" : ""}`, silence.signal);
    if (response.status === 401) throw new Refused("this page has no key: open it again with `neuron-dra ui`");
    if (!response.ok) throw new Error(await response.text());
    onState("", "");
    for await (const line of lines(response.body)) {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE);
      const told = JSON.parse(line);
      onLine(told);
      version = told.version;
    }
  } catch (error) {
    if (!(document.hidden && error.name === "AbortError")) throw error;
  } finally {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", leave);
  }
  if (!document.hidden) throw new Error("the stream has ended");
}

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const pieces = value.split("\n");
    while (pieces.length > 1) {
      yield parts.join("") + pieces.shift();
      parts = [];
    }
    parts.push(pieces[0]);
  }
}
