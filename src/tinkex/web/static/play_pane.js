// One pane of the playground: a model, and what it answered.

import { send } from "./api.js";
import { announce, failure, h, put } from "./dom.js";
import { measured } from "./format.js";
import { eventsOf } from "./live.js";
import { requestOf, textOf, tokensOf } from "./play_request.js";
import { session } from "./session.js";
import { TokenText } from "./tokens.js";

export class Pane {
  #running = null;

  constructor(letter, signal) {
    this.letter = letter;
    this.signal = signal;
    this.turns = []; // of a chat, as messages
    this.select = h("select", { "aria-label": `Model ${letter}` });
    this.log = h("div", { class: "log", role: "log", "aria-label": `Answers of ${letter}`, tabindex: "0" });
    this.foot = h("div", { class: "muted small foot num" });
    this.element = h("section", { class: "panel pane", "aria-label": `Pane ${letter}` },
      h("div", { class: "pane-head" }, h("span", { class: "letter", "aria-hidden": "true" }, letter), this.select), this.log, this.foot);
    signal.addEventListener("abort", () => this.stop());
    this.clear();
  }

  get model() { return this.select.value; }

  /** `saved` has the label of each checkpoint by its path. */
  setModels(names, saved, chosen) {
    put(this.select,
      h("optgroup", { label: "Base models" }, names.map((name) => h("option", { value: name }, name))),
      saved.size ? h("optgroup", { label: "Checkpoints" }, [...saved].map(([path, label]) => h("option", { value: path, title: path }, label))) : null);
    if (!names.includes(chosen) && !saved.has(chosen) && chosen) this.select.append(h("option", { value: chosen }, chosen));
    this.select.value = chosen;
  }

  clear() {
    this.stop();
    this.turns = [];
    this.isFresh = true;
    put(this.log, h("p", { class: "muted" }, "Answers appear here, each token coloured by how likely the model found it."));
    put(this.foot);
  }

  stop() {
    this.#running?.abort();
  }

  /** Sends one prompt and shows what comes; never throws. */
  async run(mode, { text, system, params }) {
    if (this.isFresh) put(this.log);
    this.isFresh = false;
    if (mode !== "chat") put(this.log);
    const { isChat, body } = requestOf(mode, this.model, { turns: this.turns, text, system, params });
    const shown = new TokenText(mode === "score" ? "Scores" : `Answer of ${this.letter}`);
    if (isChat) this.log.append(h("div", { class: "turn user" }, text));
    if (mode === "completion") this.log.append(h("div", { class: "given" }, text));
    this.log.append(h("div", { class: "turn answer" }, shown.element));
    this.#running = new AbortController();
    this.said = "";
    const began = performance.now();
    try {
      const first = await this.#receive(isChat, body, shown);
      const took = (performance.now() - began) / 1000;
      if (isChat) this.turns.push({ role: "user", content: text }, { role: "assistant", content: this.said });
      put(this.foot, summary(shown, took, first === null ? null : (first - began) / 1000, mode));
      announce(`${this.letter} answered.`);
    } catch (error) {
      if (error.name === "AbortError") put(this.foot, "Stopped.");
      else this.log.append(failure(error.isMissingRoute ? new Error("This server has no OpenAI endpoint.") : error));
    } finally {
      this.#running = null;
      this.log.scrollTop = this.log.scrollHeight;
    }
  }

  /** When the first token came; null if none did. */
  async #receive(isChat, body, shown) {
    const response = await send("POST", isChat ? "/v1/chat/completions" : "/v1/completions", {
      body: JSON.stringify(body), signal: this.#running.signal, headers: { Authorization: `Bearer ${session.key}` },
    });
    if (!response.headers.get("content-type")?.startsWith("text/event-stream")) {
      const { choices } = await response.json();
      this.said = textOf(choices[0], isChat);
      shown.add(tokensOf(choices[0], isChat));
      return null;
    }
    let first = null;
    for await (const { data } of eventsOf(response)) {
      if (data === "[DONE]") break;
      const part = JSON.parse(data);
      if (part.error) throw new Error(part.error.message);
      if (!part.choices?.length) continue;
      const tokens = tokensOf(part.choices[0], isChat);
      this.said += textOf(part.choices[0], isChat);
      if (tokens.length) first ??= performance.now();
      const isAtEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
      shown.add(tokens);
      if (isAtEnd) this.log.scrollTop = this.log.scrollHeight;
    }
    return first;
  }
}

function summary(shown, took, first, mode) {
  const known = shown.tokens.map(({ logprob }) => logprob).filter((value) => Number.isFinite(value));
  const mean = known.length ? known.reduce((sum, each) => sum + each, 0) / known.length : NaN;
  return [
    `${shown.tokens.length} tokens`,
    mode === "score" ? null : `${measured(took)} s`,
    first === null ? null : `first after ${measured(first)} s`,
    known.length ? `mean logprob ${measured(mean)}, perplexity ${measured(Math.exp(-mean))}` : null,
  ].filter(Boolean).join(" · ");
}
