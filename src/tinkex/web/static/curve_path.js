// The path of a curve with many more points than pixels: of each few pixels only the lowest and the
// highest value, in their order. What is seen stays the same, and drawing costs by pixels.

const BUCKET_PX = 2;

/** A path builder for uPlot: `plot.data[series]` from index `from` to `to`. */
export function curvePath(plot, series, from, to) {
  const xs = plot.data[0];
  const ys = plot.data[series];
  const stroke = new Path2D();
  const first = Math.max(0, from - 1); // a point beyond each edge, so that the line goes on
  const last = Math.min(xs.length - 1, to + 1);
  const { min, max } = plot.scales.x;
  const left = plot.valToPos(min, "x", true);
  const perX = (plot.valToPos(max, "x", true) - left) / (max - min || 1);
  const size = BUCKET_PX * (window.devicePixelRatio || 1);
  let isBegun = false;
  let bucket = null; // { number, low, high }: indices of the lowest and highest point

  const draw = (at) => {
    const x = left + (xs[at] - min) * perX;
    const y = plot.valToPos(ys[at], "y", true);
    if (isBegun) stroke.lineTo(x, y);
    else stroke.moveTo(x, y);
    isBegun = true;
  };
  const flush = () => {
    if (bucket === null) return;
    const { low, high } = bucket;
    draw(Math.min(low, high));
    if (low !== high) draw(Math.max(low, high));
  };
  for (let at = first; at <= last; at += 1) {
    const value = ys[at];
    if (value === null || value === undefined) continue;
    const number = Math.floor(((xs[at] - min) * perX) / size);
    if (bucket === null || bucket.number !== number) {
      flush();
      bucket = { number, low: at, high: at };
    } else {
      if (value < ys[bucket.low]) bucket.low = at;
      if (value > ys[bucket.high]) bucket.high = at;
    }
  }
  flush();
  return { stroke, fill: null, clip: null, band: null, gaps: null, flags: 1 };
}
