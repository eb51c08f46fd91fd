// Numbers as people read them.

const whole = new Intl.NumberFormat("en-US");
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => (value === null ? "–" : whole.format(value));
export const compact = (value) => (value === null ? "–" : value < 10_000 ? whole.format(value) : short.format(value));
export const percent = (part, total) => (total ? `${((100 * part) / total).toFixed(1)} %` : "–");
export const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 0.9995) return `${(value * 1000).toFixed(size < 0.00995 ? 1 : 0)} ms`;
  return size < 99.5 ? `${value.toFixed(size < 9.95 ? 2 : 1)} s` : `${whole.format(Math.round(value))} s`;
}
