// What was used: tokens, engine time and bytes, by day, key or run.

import { get } from "./api.js";
import { failure, h, put } from "./dom.js";
import { bytes, compact, duration } from "./format.js";
import { simpleTable } from "./simple_table.js";

const COLUMNS = [
  ["tokens_trained", "Trained", compact], ["tokens_sampled", "Sampled", compact], ["tokens_scored", "Scored", compact],
  ["tokens_cached", "Cached", compact], ["engine_seconds", "Engine", duration], ["bytes_kept", "Kept", bytes],
];
const MOST_ROWS = 14;

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

function labelOf(row, by) {
  if (by === "total") return "Since the beginning";
  if (by === "run" && row.run) return h("a", { href: `#/runs/${encodeURIComponent(row.run)}`, class: "mono small break" }, row.run);
  return String(row[by] ?? "other");
}
