// Blocks that are wide enough to be written on, however many others are in sight.

import { drawnFrom } from "./area";
import { firstEndingAfter, nextEndingAfter, type Extent, type Spans } from "./data";
import type { View } from "./view";

/**
 * Those of a row that are at least so many pixels wide in sight.
 *
 * Every one of them is there at one of the times that are as many pixels apart, so that only what is there
 * at these is looked at: as many as there is room for, not as many as there are.
 */
export function wide(spans: Spans, { from, to }: Extent, view: View, least: number): number[] {
  const { end } = spans;
  const found: number[] = [];
  const length = least / view.scale;
  let index = firstEndingAfter(end, from, to, view.start);
  for (let time = view.start; index < to && time <= view.end; time += length) {
    index = nextEndingAfter(end, index, to, time);
    if (index === to || index === found.at(-1)) continue;
    const began = drawnFrom(spans, from, index);
    if (began <= time && Math.min(end[index]!, view.end) - Math.max(began, view.start) >= length) found.push(index);
  }
  return found;
}
