// Numbers, sizes and times as people read them.

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const WHEN = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const WHEN_EXACTLY = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const TIME_EXACTLY = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const NONE = "–";

/** 12,345. */
export function count(value) {
  return Number.isFinite(value) ? NUMBER.format(value) : NONE;
}

/** 12.3K. */
export function compact(value) {
  return Number.isFinite(value) ? COMPACT.format(value) : NONE;
}

/** A measured value with about four digits. */
export function measured(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

/** 1.4 GB. */
export function bytes(value) {
  if (!Number.isFinite(value)) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let rest = value;
  let unit = 0;
  while (rest >= 1000 && unit < units.length - 1) {
    rest /= 1000;
    unit += 1;
  }
  return `${rest >= 100 || unit === 0 ? rest.toFixed(0) : rest.toFixed(1)} ${units[unit]}`;
}

/** 3 d 4 h. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return NONE;
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return joined(s, 3600, "h", 60, "min");
  return joined(s, 86400, "d", 3600, "h");
}

function joined(s, size, unit, partSize, partUnit) {
  const part = Math.floor((s % size) / partSize);
  return `${Math.floor(s / size)} ${unit}${part ? ` ${part} ${partUnit}` : ""}`;
}

/** "5 min ago" or "in 2 h". */
export function ago(iso) {
  const seconds = (Date.now() - Date.parse(iso)) / 1000;
  if (!Number.isFinite(seconds)) return NONE;
  if (Math.abs(seconds) < 5) return "now";
  return seconds >= 0 ? `${duration(seconds)} ago` : `in ${duration(-seconds)}`;
}

/** The date and time where the reader is, of a text or, with `isSeconds`, of seconds since 1970. */
export function when(time, isSeconds = false) {
  const at = isSeconds ? 1000 * time : Date.parse(time);
  return Number.isFinite(at) ? (isSeconds ? WHEN_EXACTLY : WHEN).format(at) : NONE;
}

/** The name of a tick of a clock whose ticks are `step` seconds apart: a date at midnight. */
export function clock(seconds, step) {
  const at = new Date(1000 * seconds);
  const isMidnight = at.getHours() + at.getMinutes() + at.getSeconds() === 0;
  if (step >= 86_400 || isMidnight) return DAY.format(at);
  return (step < 60 ? TIME_EXACTLY : TIME).format(at);
}

/** One word for a number of things. */
export function counted(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}
