// Patterns, which tell apart what hues do not: in pixels, and in a legend.

import type { Grid, Stretch } from "./area";
import type { Pattern } from "./data";
import type { Raster } from "./raster";

const UNIT = 4; // pixels after which most patterns repeat
const SPARSE = 8; // the same of the stripes of phases
const REPEAT = 24; // after which all do
const LINE = 2; // height of the line that stands for what is inherent

/** All that causes have. */
export const PATTERNS: readonly Pattern[] = ["solid", "upright", "level", "rising", "falling", "dots", "check", "line"];

/** Patterns of causes, and stripes: of warm-up, in which work rises, of cool-down, and of what is not known. */
export type Hatch = Pattern | "warm-up" | "cool-down" | "unrecorded";

/** Whether a pattern has ink at a place, in pixels from the left and the top. */
const INKED: Record<Hatch, (x: number, y: number, height: number) => boolean> = {
  solid: () => true,
  upright: (x) => x % UNIT < 2,
  level: (_, y) => y % 2 === 0,
  rising: (x, y) => (x + y) % UNIT < 2,
  falling: (x, y, height) => (x + height - y) % UNIT < 2,
  dots: (x, y) => x % 3 < 2 && y % 3 < 2,
  check: (x, y) => x % UNIT < 2 === y % UNIT < 2,
  line: (_, y, height) => y >= height - LINE,
  "warm-up": (x, y) => (x + y) % SPARSE < 1,
  "cool-down": (x, y, height) => (x + (SPARSE - 1) * y + height) % SPARSE < 1,
  unrecorded: (x, y) => (x + y) % SPARSE < 1 || (x + (SPARSE - 1) * y) % SPARSE < 1,
};

/** Pixels after which each pattern of a cause is the same again, across and down. */
export const PERIOD = 12;

/** Whether a pattern has ink at a place of a picture; what is inherent, a line by itself, fills what it has. */
export function inked(pattern: Pattern, x: number, y: number): boolean {
  return pattern === "line" || INKED[pattern](x, y, PERIOD);
}

/**
 * Fill a band of rows with two lines of pixels in turn, as patterns have it.
 *
 * @param inked the pixels where there is ink, or no pattern
 * @param bare those where there is none
 * @param marks by pixel: which of the patterns is there, plus 1; 0 where none is
 * @param unit pixels of the device for each of a pattern's
 */
export function hatch(
  raster: Raster,
  { from, to }: Stretch,
  inked: Uint32Array,
  bare: Uint32Array,
  marks: Uint8Array,
  patterns: Hatch[],
  { first }: Grid,
  unit: number,
  stretch: Stretch,
): void {
  const repeat = REPEAT * unit;
  const phase = ((first % repeat) + repeat) % repeat; // patterns stay where they are when the view moves
  const rows = rowsOf(patterns, to - from, unit);
  const line = inked.slice();
  const patterned = new Int32Array(stretch.to - stretch.from);
  let count = 0;
  for (let x = stretch.from; x < stretch.to; x++) if (marks[x] !== 0) patterned[count++] = x;
  for (let row = from; row < to; row++) {
    const inks = rows[row - from]!;
    for (let at = 0; at < count; at++) {
      const x = patterned[at]!;
      line[x] = inks[marks[x]! - 1]![(phase + x) % repeat] ? inked[x]! : bare[x]!;
    }
    raster.put(row, line, stretch);
  }
}

const made = new WeakMap<Hatch[], Map<string, Uint8Array[][]>>();

/** Of each row of a band, and of each pattern, where there is ink. */
function rowsOf(patterns: Hatch[], count: number, unit: number): Uint8Array[][] {
  const known = made.get(patterns) ?? new Map<string, Uint8Array[][]>();
  made.set(patterns, known);
  const key = `${count} ${unit}`;
  const height = Math.floor(count / unit);
  const rows =
    known.get(key) ??
    Array.from({ length: count }, (_, row) =>
      patterns.map((pattern) =>
        Uint8Array.from({ length: REPEAT * unit }, (_, x) =>
          INKED[pattern](Math.floor(x / unit), Math.floor(row / unit), height) ? 1 : 0,
        ),
      ),
    );
  known.set(key, rows);
  return rows;
}

/** A pattern as the style sheet has it. @param colour likewise */
export function patternImage(pattern: Hatch, colour: string): string {
  const stripes = (angle: string, wide = 2, apart = UNIT): string =>
    `repeating-linear-gradient(${angle}, ${colour} 0 ${wide}px, transparent ${wide}px ${apart}px)`;
  const images: Record<Hatch, string> = {
    solid: `linear-gradient(${colour}, ${colour})`,
    upright: stripes("90deg"),
    level: `repeating-linear-gradient(0deg, ${colour} 0 1px, transparent 1px 2px)`,
    rising: stripes("-45deg"),
    falling: stripes("45deg"),
    dots: `radial-gradient(${colour} 1.2px, transparent 1.4px) 0 0 / 3px 3px`,
    check: `conic-gradient(${colour} 25%, transparent 0 50%, ${colour} 0 75%, transparent 0) 0 0 / 4px 4px`,
    line: `linear-gradient(${colour}, ${colour}) bottom / 100% ${LINE}px no-repeat`,
    "warm-up": stripes("-45deg", 1, 5),
    "cool-down": stripes("45deg", 1, 5),
    unrecorded: `${stripes("-45deg", 1, 5)}, ${stripes("45deg", 1, 5)}`,
  };
  return images[pattern];
}
