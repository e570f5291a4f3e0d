// The names of the causes of idle time, in the gaps.

import { firstEndingAfter, type Gaps, type Head } from "./data";
import { bar } from "./lanes";
import type { Place } from "./layout";
import { duration } from "./units";
import type { View } from "./view";

const ROOM = 20; // least height of a lane, and width of a gap, in which causes are named
const SPARSE = 8; // least pixels a gap on average at which they are

/** Name the causes of the gaps of a lane that are wide enough. @param left and @param y of the lane */
export function nameCauses(
  context: CanvasRenderingContext2D,
  head: Head,
  { start, end, cause }: Gaps,
  { gaps: extent, height }: Place,
  view: View,
  left: number,
  y: number,
): void {
  if (!extent || height < ROOM) return;
  let index = firstEndingAfter(end, extent.from, extent.to, view.start);
  const last = firstEndingAfter(end, index, extent.to, view.end);
  if ((last - index) * SPARSE > view.width) return;
  const middle = y + (height - bar(height)) / 2 + 0.5;
  for (; index < extent.to && start[index]! < view.end; index++) {
    const from = Math.max(0, view.x(start[index]!));
    const to = Math.min(view.width, view.x(end[index]!));
    if (to - from < ROOM) continue;
    const { name } = head.causes[cause[index]!]!;
    for (const text of [`${name}  ${duration(end[index]! - start[index]!)}`, name]) {
      const width = context.measureText(text).width;
      if (width + 6 > to - from) continue;
      context.fillText(text, left + (from + to - width) / 2, middle);
      break;
    }
  }
}
