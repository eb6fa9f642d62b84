// The curves of a run and of those it is compared with: which metric, over what, how smooth.

import { get, path } from "./api.js";
import { Chart, colourOf, swatch } from "./chart.js";
import { failure, h, put, throttled } from "./dom.js";
import { counted, measured } from "./format.js";
import { nameOf } from "./run_model.js";
import { Series } from "./series.js";
import { X_AXES, curve, positive, smoothed } from "./smoothing.js";

const FIRST_METRICS = ["loss_per_token", "loss:sum", "grad_norm", "learning_rate"];
const DRAW_EVERY_MS = 200;
const TABLE_ROWS = 20;

export class Curves {
  #stopped = new AbortController();
  #others = []; // { run, series }
  #draw = throttled(DRAW_EVERY_MS, () => this.#show());

  /** `onOthers(ids)` gets the ids of the runs that are compared with this one. */
  constructor(run, otherIds, onOthers) {
    this.run = run;
    this.series = new Series(run.training_run_id);
    this.onOthers = onOthers;
    this.metric = h("select", { "aria-label": "Metric", on: { change: () => this.#show() } });
    this.axis = h("select", { "aria-label": "Horizontal axis", on: { change: () => this.#show() } },
      Object.entries(X_AXES).map(([value, { label }]) => h("option", { value }, `by ${label.toLowerCase()}`)));
    this.log = h("input", { type: "checkbox", on: { change: () => this.#show() } });
    this.weight = h("input", {
      type: "range", min: "0", max: "0.99", step: "0.01", value: "0", "aria-label": "Smoothing",
      on: { input: () => this.#draw() },
    });
    this.chart = new Chart("Curves of the run");
    this.legend = h("div", { class: "row legend" });
    this.message = h("div", { class: "muted" });
    this.hint = h("p", { class: "muted small" }, "Drag to zoom, double-click for all. With the keyboard: + and −, ← and →, 0.");
    this.values = h("details", {}, h("summary", {}, "Values as a table"));
    this.values.addEventListener("toggle", () => this.#fillTable());
    this.element = h("section", { class: "panel", "aria-label": "Curves" },
      h("div", { class: "panel-head" },
        h("div", { class: "row" }, h("h2", {}, "Curves"), this.metric, this.axis),
        this.options = h("div", { class: "row" },
          h("label", { class: "check" }, this.log, "Log scale"),
          h("label", { class: "check" }, "Smoothing", this.weight),
          h("button", { type: "button", on: { click: () => this.#choose() } }, "Compare …"))),
      this.message, this.chart.element, this.legend,
      this.hint,
      this.values);
    for (const id of otherIds) this.#add(id);
    this.read();
  }

  stop() {
    this.#stopped.abort();
    this.chart.stop();
  }

  /** All that is new since the last read, of every run shown. */
  async read() {
    try {
      await Promise.all([this.series, ...this.#others.map(({ series }) => series)].map((series) => series.read(this.#stopped.signal)));
      this.#draw();
    } catch (error) {
      if (!this.#stopped.signal.aborted && error.status !== 401) put(this.message, failure(error, () => this.read()));
    }
  }

  /** Reads all anew: points may have been taken back. */
  reset() {
    for (const series of [this.series, ...this.#others.map((each) => each.series)]) series.reset();
    return this.read();
  }

  get runIds() {
    return [this.run.training_run_id, ...this.#others.map(({ run }) => run.training_run_id)];
  }

  async #add(id) {
    try {
      const run = await get(path("training_runs", id), {}, { signal: this.#stopped.signal });
      if (this.runIds.includes(id)) return;
      this.#others.push({ run, series: new Series(id) });
      this.onOthers(this.runIds.slice(1));
      await this.read();
    } catch (error) {
      if (!this.#stopped.signal.aborted) put(this.message, failure(error));
    }
  }

  #remove(id) {
    this.#others = this.#others.filter(({ run }) => run.training_run_id !== id);
    this.onOthers(this.runIds.slice(1));
    this.#show();
  }

  async #choose() {
    const { chooseRun } = await import("./run_chooser.js");
    const id = await chooseRun(new Set(this.runIds));
    if (id) await this.#add(id);
  }

  #names() {
    const known = new Set([this.series, ...this.#others.map(({ series }) => series)].flatMap(({ names }) => names));
    const first = FIRST_METRICS.filter((name) => known.delete(name));
    return [...first, ...[...known].sort()];
  }

  #fillMetrics() {
    const names = this.#names();
    if ([...this.metric.options].map(({ value }) => value).join("\n") === names.join("\n")) return;
    const before = this.metric.value;
    put(this.metric, names.map((name) => h("option", { value: name }, name)));
    if (names.includes(before)) this.metric.value = before;
  }

  #show() {
    if (this.#stopped.signal.aborted) return;
    this.#fillMetrics();
    const y = this.metric.value;
    const hasPoints = Boolean(y);
    put(this.message, hasPoints ? null : this.#why());
    for (const part of [this.chart.element, this.values, this.hint, this.metric, this.axis, this.options]) part.hidden = !hasPoints;
    if (!hasPoints) return;
    const weight = Number(this.weight.value);
    const drawn = [];
    const faint = [];
    [{ run: this.run, series: this.series }, ...this.#others].forEach(({ run, series }, place) => {
      const [xs, ys] = curve(series.columns, this.axis.value, y);
      const shownYs = this.log.checked ? positive(ys) : ys;
      const colour = colourOf(place);
      const name = nameOf(run);
      if (weight > 0) faint.push({ name, colour, x: xs, y: shownYs, isFaint: true });
      drawn.push({ name, colour, x: xs, y: smoothed(shownYs, weight), isFaint: false });
    });
    const { isTime = false, isSpan = false } = X_AXES[this.axis.value];
    this.chart.show([...faint, ...drawn], { isLog: this.log.checked, isTime, isSpan, yLabel: y });
    this.#describe(drawn, y);
    this.#drawLegend(drawn);
    this.#fillTable();
  }

  #why() {
    if (this.series.isMissing) return "This server keeps no metrics of runs.";
    return "No points yet. Each optimizer step adds one.";
  }

  #describe(drawn, y) {
    const lines = drawn.map(({ name, y: ys }) => ys.length
      ? `${name}: ${counted(ys.length, "point")}, from ${measured(ys[0])} to ${measured(ys.at(-1))}` : `${name}: no points`);
    this.chart.box.setAttribute("aria-label", `${y} by ${this.axis.value}. ${lines.join(". ")}`);
  }

  #drawLegend(drawn) {
    const isAlone = this.#others.length === 0;
    const seal = drawn.map(({ name }) => name).join("\n");
    if (this.legendSeal === seal) return;
    this.legendSeal = seal;
    put(this.legend, isAlone ? null : this.runIds.map((id, place) => h("span", { class: "entry" },
      swatch(colourOf(place)), h("a", { href: `#/runs/${encodeURIComponent(id)}`, class: "break" }, drawn[place].name),
      place === 0 ? null : h("button", { type: "button", class: "quiet", "aria-label": `Remove ${drawn[place].name}`, on: { click: () => this.#remove(id) } }, "✕"))));
  }

  #fillTable() {
    if (!this.values.open) return;
    const { columns } = this.series;
    const y = this.metric.value;
    const last = Math.max(0, this.series.length - TABLE_ROWS);
    const rows = [];
    for (let i = this.series.length - 1; i >= last; i -= 1) rows.push([columns.step[i], columns.tokens?.[i], columns[y]?.[i]]);
    put(this.values, h("summary", {}, "Values as a table"),
      h("div", { class: "scroll" }, h("table", {},
        h("caption", { class: "unseen" }, `The last values of ${y}`),
        h("thead", {}, h("tr", {}, ["Step", "Tokens", y].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, rows.map((row) => h("tr", {}, row.map((value) => h("td", { class: "num" }, measured(value)))))))));
  }
}
