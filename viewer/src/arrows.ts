// Arrows from a task to what it feeds.

import { firstEndingAfter, type Gaps, type Head, type Links, type Tasks } from "./data";
import { placeOf, type Item, type Layout, type Place } from "./layout";
import type { View } from "./view";

export type Arrow = [source: number, target: number];

export const MOST = 3000; // arrows that are drawn at once
const HEAD = 6; // pixels

/** What feeds a task and what it feeds; for a gap, what it waited for in the end. */
export function arrowsOf(item: Item, links: Links, gaps: Gaps): Arrow[] {
  if (item.what === "gap") {
    const [root, task] = [gaps.root[item.index]!, gaps.task[item.index]!];
    return task < 0 || root < 0 || root === task ? [] : [[root, task]];
  }
  const found: Arrow[] = [];
  links.source.forEach((source, index) => {
    const target = links.target[index]!;
    if (source === item.index || target === item.index) found.push([source, target]);
  });
  return found;
}

/** The arrows that begin at a task in sight, and how many there are if that is too many to draw. */
export function arrowsInSight(
  links: Links,
  tasks: Tasks,
  places: Place[],
  view: View,
): { arrows: Arrow[]; count: number } {
  const arrows: Arrow[] = [];
  let count = 0;
  for (const { row } of places) {
    const first = firstEndingAfter(tasks.end, row.from, row.to, view.start);
    const last = firstEndingAfter(tasks.start, first, row.to, view.end);
    let index = firstAtLeast(links.source, first);
    const end = firstAtLeast(links.source, last);
    count += end - index;
    for (; index < end && arrows.length <= MOST; index++) arrows.push([links.source[index]!, links.target[index]!]);
  }
  return count > MOST ? { arrows: [], count } : { arrows, count };
}

/** Index of the first of some ascending numbers that is at least `least`. */
function firstAtLeast(numbers: Int32Array, least: number): number {
  let from = 0;
  let to = numbers.length;
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (numbers[middle]! >= least) to = middle;
    else from = middle + 1;
  }
  return from;
}

export function drawArrows(
  context: CanvasRenderingContext2D,
  arrows: Arrow[],
  head: Head,
  tasks: Tasks,
  plan: Layout,
  view: View,
  left: number,
  top: number,
  colour: string,
): void {
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = arrows.length > 100 ? 0.8 : 1.5;
  for (const [source, target] of arrows) {
    const ends = [source, target].map((index) => placeOf(head, plan, { what: "task", index }));
    if (!ends[0] || !ends[1]) continue;
    const [from, to] = ends.map((place) => place!.top + place!.height / 2 - top) as [number, number];
    // Clocks that differ may let a target begin before its source ends.
    const x0 = left + near(view.x(tasks.end[source]!), view.width);
    const x1 = left + near(view.x(tasks.start[target]!), view.width);
    const bend = Math.max(16, Math.abs(x1 - x0) / 2);
    context.beginPath();
    context.moveTo(x0, from);
    context.bezierCurveTo(x0 + bend, from, x1 - bend, to, x1 - HEAD, to);
    context.stroke();
    context.beginPath();
    context.moveTo(x1, to);
    context.lineTo(x1 - HEAD - 1, to - HEAD / 2);
    context.lineTo(x1 - HEAD - 1, to + HEAD / 2);
    context.fill();
  }
}

/** Keep a coordinate within reach of what canvases draw exactly. */
function near(x: number, width: number): number {
  return Math.min(Math.max(x, -10 * width), 11 * width);
}
