// One chart of several curves: uPlot, with the page's colours, and keys to zoom and move.

import { curvePath } from "./curve_path.js";
import { h, put } from "./dom.js";
import { clock, compact, duration, measured, when } from "./format.js";

const HEIGHT_REM = 21;
const WHOLE_STEPS = [1, 2, 5].flatMap((first) => Array.from({ length: 12 }, (_, power) => first * 10 ** power)).sort((a, b) => a - b);
const SPANS = [1, 60, 3600].flatMap((unit) => [1, 2, 5, 10, 20, 30].map((each) => each * unit)).concat([1, 2, 7, 30].map((days) => days * 86_400));
const NUM_COLOURS = 6;
const DENSE = 5_000; // points: thin lines are drawn much faster

/** The size of the page's text, by which the chart grows on large screens. */
function rem() {
  return parseFloat(getComputedStyle(document.documentElement).fontSize);
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** The colour of the curve at this place, as a custom property of the style sheet. */
export function colourOf(place) {
  return `--c${(place % NUM_COLOURS) + 1}`;
}

export class Chart {
  #plot = null;
  #shape = "";
  #data = null;
  #options = null;

  constructor(label) {
    this.box = h("div", { class: "chart", tabindex: "0", role: "img", "aria-label": label });
    this.readout = h("div", { class: "readout num", "aria-hidden": "true" });
    this.element = h("div", {}, this.box, this.readout);
    this.box.addEventListener("keydown", (event) => this.#onKey(event));
    this.observer = new ResizeObserver(() => this.#resize());
    this.observer.observe(this.box);
    this.redraw = () => { this.#shape = ""; if (this.#options) this.show(this.#data, this.#options); };
    window.addEventListener("tinkex:theme", this.redraw);
    this.dark = window.matchMedia("(prefers-color-scheme: dark)");
    this.dark.addEventListener("change", this.redraw);
  }

  stop() {
    this.observer.disconnect();
    window.removeEventListener("tinkex:theme", this.redraw);
    this.dark.removeEventListener("change", this.redraw);
    this.#plot?.destroy();
  }

  /**
   * `curves`: [{ name, colour, x, y, isFaint }]; the zoom stays as it is while their number and the
   * axes do.
   */
  show(curves, options) {
    this.#data = curves;
    this.#options = options;
    const shape = JSON.stringify([options, curves.map(({ name, colour, isFaint }) => [name, colour, isFaint])]);
    const data = joined(curves);
    if (this.#plot && shape === this.#shape) {
      const { min, max } = this.#plot.scales.x;
      const isZoomed = this.isZoomed;
      this.#plot.setData(data, !isZoomed);
      if (isZoomed) this.#plot.setScale("x", { min, max });
      return;
    }
    this.#plot?.destroy();
    this.#shape = shape;
    this.isZoomed = false;
    put(this.box);
    this.#plot = new window.uPlot(this.#plotOptions(curves, options), data, this.box);
  }

  get plot() { return this.#plot; }

  #plotOptions(curves, { isLog, isTime, isSpan, yLabel }) {
    const muted = css("--muted");
    const grid = { stroke: css("--line"), width: 1 };
    const font = `${Math.round(0.78 * rem())}px system-ui, sans-serif`;
    const axis = { stroke: muted, grid, ticks: { ...grid, size: 5 }, font };
    return {
      width: this.#width(), height: HEIGHT_REM * rem(), legend: { show: false }, padding: [10, 12, 0, 0],
      cursor: { drag: { x: true, y: false, setScale: true }, points: { size: 7 }, focus: { prox: 24 } },
      focus: { alpha: 1 },
      scales: { x: { time: Boolean(isTime) }, y: { distr: isLog ? 3 : 1 } },
      axes: [
        { ...axis, size: 2.3 * rem(), ...xAxis(isTime, isSpan) },
        { ...axis, size: 4 * rem(), values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : measured(tick))) },
      ],
      series: [{}, ...curves.map(({ name, colour, isFaint, x }) => ({
        label: name, stroke: withAlpha(css(colour), isFaint ? 0.28 : 1), width: isFaint || x.length > DENSE ? 1 : 1.8,
        spanGaps: true, paths: curvePath, points: { show: false },
      }))],
      hooks: {
        setCursor: [(plot) => this.#read(plot, curves, isTime ? (at) => when(at, true) : isSpan ? duration : (at) => `${compact(at)} · ${yLabel}`)],
        setSelect: [() => { this.isZoomed = true; }],
        ready: [(plot) => plot.over.addEventListener("dblclick", () => { this.isZoomed = false; })],
      },
    };
  }

  #read(plot, curves, nameOfX) {
    const at = plot.cursor.idx;
    if (at === null || at === undefined) {
      put(this.readout);
      return;
    }
    const x = plot.data[0][at];
    put(this.readout,
      h("span", { class: "muted" }, nameOfX(x)),
      curves.map(({ name, colour, isFaint }, place) => {
        const value = plot.data[place + 1][at];
        if (isFaint || value === null || value === undefined) return null;
        return h("span", {}, swatch(colour), `${name} `, h("b", {}, measured(value)));
      }));
  }

  #onKey(event) {
    const plot = this.#plot;
    const all = plot?.data[0];
    if (!all?.length) return;
    const { min, max } = plot.scales.x;
    const span = max - min;
    const moves = {
      "+": [min + span / 4, max - span / 4], "=": [min + span / 4, max - span / 4],
      "-": [min - span / 2, max + span / 2],
      ArrowLeft: [min - span / 5, max - span / 5], ArrowRight: [min + span / 5, max + span / 5],
      0: [all[0], all.at(-1)], Home: [all[0], all.at(-1)],
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.isZoomed = event.key !== "0" && event.key !== "Home";
    const [from, to] = moves[event.key];
    plot.setScale("x", { min: Math.max(all[0], from), max: Math.min(all.at(-1), to) });
  }

  #width() { return Math.max(260, Math.floor(this.box.clientWidth)); }

  #resize() {
    if (this.#plot && this.box.clientWidth) this.#plot.setSize({ width: this.#width(), height: HEIGHT_REM * rem() });
  }
}

/** Where the ticks of the horizontal axis are, and their names. */
function xAxis(isTime, isSpan) {
  if (isTime) return { values: (_plot, ticks, _axis, _space, step) => ticks.map((tick) => clock(tick, step)) };
  if (isSpan) return { incrs: SPANS, values: (_, ticks) => ticks.map(duration) };
  return { incrs: WHOLE_STEPS, values: (_, ticks) => ticks.map(compact) };
}

/** A small square in the colour of a curve. */
export function swatch(colour) {
  return h("i", { class: `swatch ${colour.slice(2)}` });
}

function joined(curves) {
  if (curves.length === 0) return [[]];
  const [first, ...others] = curves;
  if (others.every(({ x }) => x === first.x)) return [first.x, ...curves.map(({ y }) => y)];
  return window.uPlot.join(curves.map(({ x, y }) => [x, y]));
}

function withAlpha(colour, alpha) {
  if (alpha === 1) return colour;
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return `rgba(${r}, ${g}, ${b}, ${alpha})`;
}
