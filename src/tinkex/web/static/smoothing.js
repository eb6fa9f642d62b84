// Curves from points: what is plotted, over what, and how much it is smoothed. Plain numbers only.

export const X_AXES = {
  step: { label: "Step" },
  tokens: { label: "Tokens" },
  elapsed: { label: "Elapsed time", isSpan: true },
  time: { label: "Time", isTime: true },
};

/** An exponential moving average without bias at its start; `weight` is 0 for none, below 1. */
export function smoothed(values, weight) {
  if (weight <= 0) return values;
  const out = new Array(values.length);
  let sum = 0;
  let norm = 0;
  for (let i = 0; i < values.length; i += 1) {
    const value = values[i];
    if (value === null || value === undefined || !Number.isFinite(value)) {
      out[i] = null;
      continue;
    }
    sum = sum * weight + (1 - weight) * value;
    norm = norm * weight + (1 - weight);
    out[i] = sum / norm;
  }
  return out;
}

/** Seconds since the first point, by which runs of different days lie over each other. */
function elapsed(times) {
  return times.map((time) => time - times[0]);
}

/** The x and y of one curve: points that have both, in order of x, one for each x. */
export function curve(columns, xName, yName) {
  const xs = xName === "elapsed" ? elapsed(columns.time ?? []) : columns[xName] ?? columns.index ?? [];
  const ys = columns[yName] ?? [];
  const x = [];
  const y = [];
  for (let i = 0; i < ys.length; i += 1) {
    const at = xs[i];
    const value = ys[i];
    if (!Number.isFinite(at) || !Number.isFinite(value)) continue;
    if (x.length && at < x.at(-1)) continue; // a run that was taken back: its later points stand
    if (x.length && at === x.at(-1)) y[y.length - 1] = value;
    else {
      x.push(at);
      y.push(value);
    }
  }
  return [x, y];
}

/** On a log scale only what is above 0 can stand. */
export function positive(values) {
  return values.map((value) => (value !== null && value > 0 ? value : null));
}
