// Numbers as people read them; the same forms as the terminal report's.

const SCALES = [
  [1e9, "s"],
  [1e6, "ms"],
  [1e3, "µs"],
] as const;

const HOUR = 3600e9;
const [H, MIN] = ["h", "min"] as const;

/** "4 h 22 min": of hours nobody counts the seconds. */
function hours(ns: number): string {
  const minutes = Math.round(Math.abs(ns) / 60e9);
  return `${ns < 0 ? "-" : ""}${Math.floor(minutes / 60)} ${H} ${String(minutes % 60).padStart(2, "0")} ${MIN}`;
}

export function duration(ns: number): string {
  if (Math.abs(ns) >= HOUR) return hours(ns);
  for (const [scale, unit] of SCALES) {
    if (Math.abs(ns) >= scale) {
      const value = ns / scale;
      const digits = Math.max(0, 4 - String(Math.trunc(Math.abs(value))).length);
      return `${value.toFixed(digits)} ${unit}`;
    }
  }
  return `${Math.round(ns)} ns`;
}

/** The same in little room: three digits. */
export function brief(ns: number): string {
  if (Math.abs(ns) >= HOUR) return hours(ns);
  for (const [scale, unit] of SCALES) {
    if (Math.abs(ns) < scale * 0.9995) continue;
    const value = ns / scale;
    return `${value.toFixed(Math.max(0, 3 - String(Math.trunc(Math.abs(value) * 1.0005)).length))} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}

export function exact(ns: number): string {
  return `${Math.round(ns).toLocaleString("en-US")} ns`;
}

export function percent(rate: number | null): string {
  return rate === null ? "–" : `${(100 * rate).toFixed(2)} %`;
}

/** Whether a share that may be off by so much is written with that: as much as its last digit tells. */
export function telling(error: number | null): error is number {
  return error !== null && error >= 0.00005;
}

/** A text of the report's, in which negative numbers have a hyphen, with signs of minus as elsewhere on the page. */
export function withMinus(text: string): string {
  return text.replace(/(?<!\S)-(?=\d)/g, "−");
}

/** A share with how far it may be off, if that is known and tells anything. */
export function uncertain(rate: number | null, error: number | null): string {
  if (rate === null || !telling(error)) return percent(rate);
  return `${(100 * rate).toFixed(2)} ± ${Number((100 * error).toPrecision(2))} %`;
}

/** The smallest 1, 2 or 5 times a power of ten that is at least `least`, and at least 1. */
export function roundStep(least: number): number {
  const power = 10 ** Math.max(0, Math.floor(Math.log10(least)));
  for (const factor of [1, 2, 5, 10]) if (power * factor >= least) return power * factor;
  return power * 10;
}

/** What the times on an axis are told by, in ns. */
export interface Scale {
  spacing: number; // of ticks
  most: number; // the latest time
}

const FINER = 10; // of a unit, from which on times are in it, however near ticks are

/** A time on an axis, in the unit of all its ticks. @param least difference that its digits tell, in ns */
export function tick(ns: number, { spacing, most }: Scale, least = spacing): string {
  const fits = ([scale]: readonly [number, string]): boolean => spacing * 5 >= scale || most >= FINER * scale;
  const [scale, unit] = SCALES.find(fits) ?? [1, "ns"];
  const digits = Math.max(0, Math.ceil(Math.log10(scale / least) - 1e-9));
  return `${(ns / scale).toFixed(digits)} ${unit}`;
}

const PREFIXES = ["", "Ki", "Mi", "Gi", "Ti", "Pi"] as const;

/** A counter's value with its unit; bytes with a binary prefix. */
export function quantity(value: number, unit: string): string {
  if (unit !== "bytes") return `${Number(value.toPrecision(4)).toLocaleString("en-US")} ${unit}`.trim();
  const power = Math.min(PREFIXES.length - 1, Math.max(0, Math.floor(Math.log2(Math.max(1, Math.abs(value))) / 10)));
  return `${Number((value / 1024 ** power).toPrecision(4))} ${PREFIXES[power]}B`;
}

/** A length in a drawing, as exact as can be seen. */
export function fixed(value: number): number {
  return Number(value.toFixed(2));
}

/** "0-3,7": ascending numbers in few letters. */
export function spans(numbers: number[]): string {
  const sorted = [...numbers].sort((one, other) => one - other);
  const parts: string[] = [];
  for (let i = 0; i < sorted.length;) {
    let j = i;
    while (sorted[j + 1] === sorted[j]! + 1) j++;
    parts.push(i === j ? String(sorted[i]) : `${sorted[i]}-${sorted[j]}`);
    i = j + 1;
  }
  return parts.join(",");
}
