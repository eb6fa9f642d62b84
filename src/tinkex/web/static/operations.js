// The operations of a run as they pass, newest first.

import { h, put, throttled } from "./dom.js";
import { duration, measured } from "./format.js";

const MOST_KEPT = 50;
const KINDS = {
  forward_backward: "Forward and backward", forward: "Forward", optim_step: "Optimizer step",
  save_weights: "Save state", save_weights_for_sampler: "Save for sampling", load_weights: "Load state",
  save_weights_external: "Export", create_model: "Create", unload_model: "Unload",
};
const COLOURS = { done: "good", failed: "bad", running: "warn" };

export class Operations {
  #byId = new Map(); // insertion order is arrival
  #draw = throttled(250, () => this.#show());

  constructor() {
    this.list = h("ol", { class: "operations", "aria-label": "Operations, newest first" });
    this.none = h("p", { class: "muted" }, "Operations appear here as they run.");
    this.element = h("div", {}, this.none, this.list);
  }

  /** Takes an event of the live feed; the same operation's later state replaces its earlier one. */
  add(operation) {
    const id = `${operation.run} ${operation.seq_id}`;
    const known = this.#byId.get(id);
    const began = operation.state === "running" ? operation.time : known?.began;
    this.#byId.set(id, { ...operation, began });
    while (this.#byId.size > MOST_KEPT) this.#byId.delete(this.#byId.keys().next().value);
    this.#draw();
  }

  #show() {
    this.none.hidden = this.#byId.size > 0;
    put(this.list, [...this.#byId.values()].reverse().map((each) => {
      const isOver = each.state === "done" || each.state === "failed";
      const took = isOver && each.began ? each.time - each.began : NaN;
      return h("li", {},
        h("span", { class: "num muted small" }, new Date(each.time * 1000).toLocaleTimeString()),
        h("span", { class: "grow" }, KINDS[each.kind] ?? each.kind, each.seq_id > 0 ? h("span", { class: "muted" }, ` #${each.seq_id}`) : null),
        Number.isFinite(took) ? h("span", { class: "num muted small" }, took < 10 ? `${measured(took)} s` : duration(took)) : null,
        h("span", { class: `badge ${COLOURS[each.state] ?? ""}` }, each.state));
    }));
  }
}
