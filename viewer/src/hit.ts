// What is at a point of the canvas.

import { running, type Data, type Spans } from "./data";
import { firstBelow, type Item, type Place } from "./layout";
import type { View } from "./view";

const REACH = 3; // pixels from a block that still hit it

/**
 * The task or gap at a point; in the band below the blocks, the gap. Where a gap is there but a task is
 * within reach, it is the shorter of the two, which is harder to point at.
 *
 * @param x pixels from the left of the plot
 * @param y pixels from the top of the page
 * @param idle whether gaps are shown
 */
export function hit(
  { tasks, gaps }: Data,
  places: Place[],
  view: View,
  x: number,
  y: number,
  idle: boolean,
): Item | null {
  const place = places[firstBelow(places, y)];
  if (x < 0 || !place || place.top > y) return null;
  const gap = idle && place.gaps ? running(gaps, place.gaps, view.time(x)) : -1;
  if (gap >= 0 && y >= place.top + place.height - place.band) return { what: "gap", index: gap };
  for (let reach = 0; reach <= REACH; reach++) {
    for (const side of [reach, -reach]) {
      const task = running(tasks, place.row, view.time(x + side));
      if (task < 0) continue;
      if (gap >= 0 && reach > 0 && length(gaps, gap) < length(tasks, task)) return { what: "gap", index: gap };
      return { what: "task", index: task };
    }
  }
  return gap < 0 ? null : { what: "gap", index: gap };
}

function length({ start, end }: Spans, index: number): number {
  return end[index]! - start[index]!;
}
