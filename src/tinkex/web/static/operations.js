// The operations of a run as they pass, newest first.

import { h, put, throttled } from "./dom.js";
import { duration, measured } from "./format.js";

const MOST_KEPT = 50;
const KINDS = {
  forward_backward: "Forward and backward", forward: "Forward", optim_step: "Optimizer step",
  save_weights: "Save state", save_weights_for_sampler: "Save for sampling", load_weights: "Load state",
  save_weights_external: "Export", create_model: "Create", unload_model: "Unload",
};

export class Operations {
  #byId = new Map(); // insertion order is arrival
  #draw = throttled(250, () => this.#show());

  constructor() {
    this.list = h("ol", { class: "operations", "aria-label": "Operations, newest first" });
    this.none = h("p", { class: "muted" }, "Operations appear here as they pass.");
    this.element = h("div", {}, this.none, this.list);
  }

  /** Takes an event of the live feed; the same operation's later state replaces its earlier one. */
  add(operation) {
    const id = operation.request_id ?? operation.operation_id ?? operation.seq_id ?? this.#byId.size;
    this.#byId.set(id, { ...this.#byId.get(id), ...operation, at: new Date() });
    while (this.#byId.size > MOST_KEPT) this.#byId.delete(this.#byId.keys().next().value);
    this.#draw();
  }

  #show() {
    this.none.hidden = this.#byId.size > 0;
    put(this.list, [...this.#byId.values()].reverse().map((each) => {
      const kind = each.kind ?? each.type ?? "";
      const state = each.state ?? "";
      const took = each.seconds ?? each.engine_s ?? each.duration_s;
      return h("li", {},
        h("span", { class: "num muted small" }, each.at.toLocaleTimeString()),
        h("span", { class: "grow" }, KINDS[kind] ?? kind, each.seq_id ? h("span", { class: "muted" }, ` #${each.seq_id}`) : null),
        Number.isFinite(took) ? h("span", { class: "num muted small" }, took < 10 ? `${measured(took)} s` : duration(took)) : null,
        state ? h("span", { class: `badge ${{ done: "good", finished: "good", failed: "bad", running: "warn" }[state] ?? ""}` }, state) : null);
    }));
  }
}
