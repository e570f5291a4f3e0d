// The names of the causes of idle time, in the gaps.

import { firstEndingAfter, type Data, type Extent, type Head, type Spans } from "./data";
import { measure } from "./fitted";
import type { Place } from "./layout";
import { duration } from "./units";
import type { View } from "./view";
import { wide } from "./wide";
import { nameOf } from "./words";

const ROOM = 14; // least height of the blocks of a lane, and
const LEAST = 24; // least width of a gap, in which causes are named

/** Name the causes of the gaps of a lane that are wide enough. @param left and @param y of the lane @param height of its blocks */
export function nameCauses(
  context: CanvasRenderingContext2D,
  head: Head,
  { gaps, tasks }: Pick<Data, "gaps" | "tasks">,
  { gaps: extent, row }: Place,
  view: View,
  left: number,
  y: number,
  height: number,
): void {
  if (!extent || height < ROOM) return;
  const { start, end, cause } = gaps;
  const widthOf = measure(context);
  for (const index of wide(gaps, extent, view, LEAST)) {
    const free = between(tasks, row, start[index]!, end[index]!);
    const from = Math.max(0, view.x(free.start));
    const to = Math.min(view.width, view.x(free.end));
    const name = nameOf(head.causes[cause[index]!]!.name);
    for (const text of [`${name}  ${duration(end[index]! - start[index]!)}`, name]) {
      const width = widthOf(text);
      if (width + 6 > to - from) continue;
      context.fillText(text, left + (from + to - width) / 2, y + height / 2 + 0.5);
      break;
    }
  }
}

/** The longest part of a stretch with no task in it: what is not of a pipeline, such as an optimizer, lies in gaps. */
function between(tasks: Spans, row: Extent, start: number, end: number): { start: number; end: number } {
  let [best, at] = [{ start, end: start }, start];
  for (let task = firstEndingAfter(tasks.end, row.from, row.to, start); at < end; task++) {
    const next = task < row.to ? Math.min(end, tasks.start[task]!) : end;
    if (next - at > best.end - best.start) best = { start: at, end: next };
    at = next < end ? tasks.end[task]! : end;
  }
  return best;
}
