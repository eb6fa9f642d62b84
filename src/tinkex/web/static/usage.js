// What was used: tokens, engine time and bytes, by day, key or run.

import { get } from "./api.js";
import { failure, h, put, throttled } from "./dom.js";
import { bytes, compact, count, duration } from "./format.js";
import { simpleTable } from "./simple_table.js";

const COLUMNS = [
  ["tokens_trained", "Trained", compact], ["tokens_sampled", "Sampled", compact], ["tokens_scored", "Scored", compact],
  ["tokens_cached", "Cached", compact], ["engine_seconds", "Engine", duration], ["bytes_kept", "Kept", bytes],
];
const MOST_ROWS = 14;
const RUN_EVERY_MS = 2_000;

export class UsagePanel {
  constructor(signal) {
    this.signal = signal;
    this.by = h("select", { "aria-label": "Usage by", on: { change: () => this.#read() } },
      [["day", "by day"], ["key", "by key"], ["run", "by run"], ["total", "in all"]].map(([value, label]) => h("option", { value }, label)));
    this.content = h("div", {}, h("p", { class: "muted" }, "Loading usage …"));
    this.element = h("section", { class: "panel" },
      h("div", { class: "panel-head" }, h("h2", {}, "Your usage"), this.by), this.content);
    this.#read();
  }

  async #read() {
    try {
      const answer = await get("/usage", { by: this.by.value }, { signal: this.signal });
      this.#draw(answer.rows);
    } catch (error) {
      if (this.signal.aborted || error.status === 401) return;
      put(this.content, error.isMissingRoute ? h("p", { class: "muted" }, "This server keeps no usage.") : failure(error, () => this.#read()));
    }
  }

  #draw(rows) {
    const by = this.by.value;
    if (rows.length === 0) {
      put(this.content, h("p", { class: "muted" }, "Nothing was used yet."));
      return;
    }
    const columns = COLUMNS.filter(([name]) => rows.some((row) => row[name]));
    put(this.content, simpleTable(`Usage ${by}`, [by === "total" ? "" : by[0].toUpperCase() + by.slice(1), ...columns.map(([, label]) => label)],
      rows.slice(0, MOST_ROWS).map((row) => [labelOf(row, by), ...columns.map(([name, , shown]) => shown(row[name] ?? 0))])));
  }
}

/** What one run used in all. */
export class RunUsage {
  constructor(runId, signal) {
    Object.assign(this, { runId, signal });
    this.element = h("div", {}, h("p", { class: "muted" }, "Loading usage …"));
    this.refresh = throttled(RUN_EVERY_MS, () => this.#read());
    this.refresh();
  }

  async #read() {
    if (this.signal.aborted) return;
    try {
      const { rows: [found = {}] } = await get("/usage", { by: "total", run: this.runId }, { signal: this.signal });
      const shown = COLUMNS.map(([name, label, form]) => [`${label}${name.startsWith("tokens") ? " tokens" : ""}`, (form === compact ? count : form)(found[name] ?? 0)]);
      put(this.element, h("dl", { class: "facts" }, shown.map(([label, value]) => [h("dt", {}, label), h("dd", { class: "num" }, value)])));
    } catch (error) {
      if (this.signal.aborted || error.status === 401) return;
      put(this.element, error.isMissingRoute ? h("p", { class: "muted" }, "This server keeps no usage.") : failure(error, () => this.#read()));
    }
  }
}

function labelOf(row, by) {
  if (by === "total") return "Since the beginning";
  if (by === "run" && row.run) return h("a", { href: `#/runs/${encodeURIComponent(row.run)}`, class: "mono small break" }, row.run);
  return String(row[by] ?? "other");
}
