// Checkpoints in a table, with what can be done to each.

import { checkpointActions } from "./checkpoint_actions.js";
import { nameOf, runOf } from "./checkpoint_model.js";
import { failure, h, put, throttled } from "./dom.js";
import { ago, bytes, when } from "./format.js";
import { Table } from "./table.js";

const KINDS = { training: "Training state", sampler: "For sampling", external: "Export", external_weights: "Export" };

function columns(ofOneRun, refresh, runNameOf) {
  return [
    {
      label: "Name", lead: true, sort: nameOf,
      cell: (each) => h("div", { class: "run-name" },
        h("span", { class: "strong break" }, nameOf(each), ofOneRun && each.public ? [" ", badge(each)] : null),
        ofOneRun ? null : h("a", { href: `#/runs/${encodeURIComponent(runOf(each))}`, class: "run-of small break", title: runOf(each) }, runNameOf(each))),
    },
    { label: "Kind", sort: (each) => each.checkpoint_type,
      cell: (each) => h("span", { class: "nowrap" }, KINDS[each.checkpoint_type] ?? each.checkpoint_type) },
    ofOneRun ? null : { label: "Shared", sort: (each) => Number(each.public), cell: badge },
    { label: "Size", right: true, sort: (each) => each.size_bytes, cell: (each) => bytes(each.size_bytes ?? NaN) },
    { label: "Made", right: true, sort: (each) => Date.parse(each.time), cell: (each) => time(each.time) },
    {
      label: "Expires", right: true, sort: (each) => Date.parse(each.expires_at ?? ""),
      cell: (each) => (each.expires_at ? time(each.expires_at) : h("span", { class: "muted" }, "never")),
    },
    { label: "", cell: (each) => checkpointActions(each, refresh) },
  ].filter(Boolean);
}

function badge(checkpoint) {
  return h("span", { class: `badge ${checkpoint.public ? "good" : ""}` }, checkpoint.public ? "Public" : "Private");
}

function time(iso) {
  return h("time", { datetime: iso, title: when(iso) }, ago(iso));
}

export class CheckpointList {
  /** `load()` gives the checkpoints; `onChange` is called whenever they are known anew. */
  constructor({ load, caption, ofOneRun = false }) {
    this.load = load;
    this.items = [];
    this.onChange = () => {};
    this.runNameOf = runOf;
    this.filter = () => true;
    this.element = h("div", {}, h("p", { class: "loading" }, "Loading checkpoints …"));
    this.table = new Table({
      caption, columns: columns(ofOneRun, () => this.#read(), (each) => this.runNameOf(each)), idOf: (each) => each.tinker_path,
      seal: (each) => JSON.stringify([each, this.runNameOf(each), Math.floor(Date.now() / 60_000)]),
      sortBy: "Made", descending: true, pageSize: ofOneRun ? 10 : 50,
    });
    this.refresh = throttled(500, () => this.#read());
  }

  async #read() {
    try {
      this.items = await this.load();
      this.draw();
      this.onChange(this.items);
    } catch (error) {
      if (error.name === "AbortError" || error.status === 401) return;
      put(this.element, failure(error, () => this.#read()));
    }
  }

  draw() {
    const shown = this.items.filter((each) => this.filter(each));
    if (this.items.length === 0) put(this.element, h("p", { class: "muted" }, "No checkpoints yet."));
    else {
      this.table.show(shown);
      if (this.table.element.parentElement !== this.element) put(this.element, this.table.element);
    }
  }
}
