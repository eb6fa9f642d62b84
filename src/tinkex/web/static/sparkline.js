// A small line without axes: the shape of a run at a glance.

import { svg } from "./dom.js";
import { measured } from "./format.js";

const WIDTH = 120;
const HEIGHT = 28;

/** The line through the values; what is not a number is left out. */
export function sparkline(values, name = "loss") {
  const known = (values ?? []).filter((value) => Number.isFinite(value));
  if (known.length < 2) return svg("svg", { class: "spark", "aria-hidden": "true", viewBox: `0 0 ${WIDTH} ${HEIGHT}` });
  const low = Math.min(...known);
  const high = Math.max(...known);
  const points = known.map((value, place) => {
    const x = 1 + (place / (known.length - 1)) * (WIDTH - 2);
    const y = HEIGHT - 2 - ((value - low) / (high - low || 1)) * (HEIGHT - 4);
    return `${x.toFixed(1)},${y.toFixed(1)}`;
  });
  const label = `${name} from ${measured(known[0])} to ${measured(known.at(-1))}`;
  return svg("svg", { class: "spark", role: "img", "aria-label": label, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none" },
    svg("polyline", { points: points.join(" ") }));
}
