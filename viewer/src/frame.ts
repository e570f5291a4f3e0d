// What stands around the blocks of a picture of shapes: the axis of time, and why ranks were idle.

import { firstEndingAfter, type Cause, type Data, type Head } from "./data";
import { shape } from "./dom";
import type { Place } from "./layout";
import { fillOf, patternFill } from "./picture_legend";
import { axisOf, ticksOf } from "./ruler";
import type { Theme } from "./theme";
import { fixed, tick } from "./units";
import type { View } from "./view";
import { t } from "./words";

export const AXIS = 40; // pixels of height: steps above, times below
const LEAST = 0.5; // pixels of a stretch of idle time that is drawn
const LETTER = 6.6; // mean width of one

/** Ticks, and where steps begin, down to `bottom`. @param left of the plot */
export function axis(head: Head, view: View, left: number, bottom: number, theme: Theme): SVGElement {
  const made = shape("g", { class: "axis" });
  const times = axisOf(head, view);
  for (const at of ticksOf(view, times)) {
    const x = fixed(left + view.x(at));
    made.append(
      shape("line", { x1: x, x2: x, y1: AXIS - 6, y2: AXIS, stroke: theme.dim }),
      shape("text", { x: x + 4, y: AXIS - 6, fill: theme.dim }, tick(at - times.zero, times)),
    );
  }
  let drawn = -Infinity;
  for (const { step, start, end } of head.steps) {
    if (end <= view.start || start >= view.end) continue;
    const x = Math.max(0, view.x(start));
    const text = t("step {step}", { step });
    if (x - drawn < text.length * LETTER || view.x(end) - x < text.length * LETTER) continue;
    drawn = x;
    made.append(shape("text", { x: fixed(left + x), y: 14, fill: theme.text, "font-weight": 600 }, text));
    if (view.x(start) >= 0)
      made.append(
        shape("line", { x1: fixed(left + x), x2: fixed(left + x), y1: AXIS, y2: bottom, stroke: theme.line }),
      );
  }
  return made;
}

/** The bands below blocks, in the colours and patterns of causes, and which these are. @param offset from the heights of the plan to those of the picture */
export function causeBands(
  head: Head,
  { gaps }: Data,
  places: Place[],
  view: View,
  left: number,
  offset: number,
  theme: Theme,
): { bands: SVGElement; causes: Cause[] } {
  const bands = shape("g", { class: "causes" });
  const seen = new Set<number>();
  const fills = head.causes.map((cause) => (cause.inherent ? fillOf(cause, theme) : patternFill(cause, theme)));
  for (const { gaps: own, top, height, band } of places) {
    if (!own || band === 0) continue;
    for (let gap = firstEndingAfter(gaps.end, own.from, own.to, view.start); gap < own.to; gap++) {
      if (gaps.start[gap]! >= view.end) break;
      const [from, to] = [Math.max(0, view.x(gaps.start[gap]!)), Math.min(view.width, view.x(gaps.end[gap]!))];
      if (to - from < LEAST) continue;
      const cause = gaps.cause[gap]!;
      seen.add(cause);
      const tall = head.causes[cause]!.inherent ? 2 : band - 1;
      const y = top + height - tall + offset;
      bands.append(
        shape("rect", {
          x: fixed(left + from),
          y: fixed(y),
          width: fixed(to - from),
          height: tall,
          fill: fills[cause]!,
        }),
      );
    }
  }
  return { bands, causes: head.causes.filter((_, cause) => seen.has(cause)) };
}
