// Server-sent events with a key. EventSource sends no headers, so the stream is read by fetch and
// parsed here; it is opened again, ever more slowly, for as long as its view is shown.

import { send } from "./api.js";
import { session } from "./session.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;

/** Events out of pieces of text, by the rules of the event-stream format. */
export class EventParser {
  #rest = "";
  #name = "";
  #data = [];

  /** The events that are complete with this piece. */
  push(piece) {
    const found = [];
    const lines = (this.#rest + piece).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (this.#data.length) found.push({ name: this.#name || "message", data: this.#data.join("\n") });
        this.#name = "";
        this.#data = [];
        continue;
      }
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "event") this.#name = value;
      else if (field === "data") this.#data.push(value);
    }
    return found;
  }
}

/** The events of a response's body. */
export async function* eventsOf(response) {
  const parser = new EventParser();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.push(value);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/**
 * The live feed: records of all runs, points and operations of those in `runs`. `onEvent(name,
 * value)` gets what happens; `onState` gets "live", "waiting" or "missing"; `onOpen` is called
 * whenever it is open, to read what came before, and `onGap` instead if events may have been lost.
 */
export class LiveFeed {
  #stopped = new AbortController();
  #wait = FIRST_WAIT_MS;
  #isFirst = true;

  constructor({ runs = [], onEvent, onState = () => {}, onOpen = () => {}, onGap }) {
    Object.assign(this, { runs, onEvent, onState, onOpen, onGap });
  }

  start() {
    this.#run();
    return this;
  }

  stop() {
    this.#stopped.abort();
  }

  async #run() {
    const { signal } = this.#stopped;
    while (!signal.aborted && session.key) {
      try {
        await this.#read(signal);
      } catch (error) {
        if (signal.aborted || error.status === 401) return;
        if (error.isMissingRoute) {
          this.onState("missing");
          return;
        }
      }
      if (signal.aborted) return;
      this.onState("waiting");
      await pause(this.#wait * (0.75 + Math.random() / 2), signal);
      this.#wait = Math.min(this.#wait * 2, LONGEST_WAIT_MS);
    }
  }

  async #read(signal) {
    const query = this.runs.length ? `?${new URLSearchParams({ runs: this.runs.join(",") })}` : "";
    const headers = { "X-Api-Key": session.key, Accept: "text/event-stream" };
    const response = await send("GET", `/api/v1/live${query}`, { headers, signal });
    this.onState("live");
    if (this.#isFirst) this.onOpen();
    else this.onGap();
    this.#isFirst = false;
    for await (const { name, data } of eventsOf(response)) {
      this.#wait = FIRST_WAIT_MS; // only a stream that works makes the next wait short
      if (name === "reset") this.onGap();
      else this.onEvent(name, JSON.parse(data));
    }
  }
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}

/** The sign that says whether a view is live. */
export function stateLabel(state) {
  return { live: ["good", "Live"], waiting: ["warn", "Reconnecting"], missing: ["", "Not live"] }[state];
}
