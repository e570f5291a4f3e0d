// From task to task, by the arrow keys.

import { firstEndingAfter, rowOf, type Data, type Head } from "./data";
import type { Layout } from "./layout";
import type { View } from "./view";

export type Way = "left" | "right" | "up" | "down";

/** The task next to one that is selected; the first in sight if none is. -1 where there is no further. */
export function next(
  head: Head,
  { tasks }: Data,
  plan: Layout,
  view: View,
  top: number,
  selected: number,
  way: Way,
): number {
  if (selected < 0) return firstInSight();
  const row = rowOf(head, selected);
  if (way === "left") return selected > row.from ? selected - 1 : -1;
  if (way === "right") return selected + 1 < row.to ? selected + 1 : -1;
  const place = plan.placeOfRow.get(row);
  if (!place) return firstInSight();
  const middle = (tasks.start[selected]! + tasks.end[selected]!) / 2;
  const step = way === "down" ? 1 : -1;
  for (let at = plan.places.indexOf(place) + step; at >= 0 && at < plan.places.length; at += step) {
    const { from, to } = plan.places[at]!.row;
    const index = Math.min(firstEndingAfter(tasks.end, from, to, middle), to - 1);
    if (index >= from) return index;
  }
  return -1;

  function firstInSight(): number {
    for (const {
      row: { from, to },
      top: y,
    } of plan.places) {
      if (y < top) continue;
      const index = firstEndingAfter(tasks.end, from, to, view.start);
      if (index < to && tasks.start[index]! < view.end) return index;
    }
    return -1;
  }
}
