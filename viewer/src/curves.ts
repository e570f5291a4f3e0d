// Counters, such as memory, as filled curves. A value holds until the next.

import { firstEndingAfter, type Head, type Samples } from "./data";
import type { Curve } from "./layout";
import type { Theme } from "./theme";
import { rated } from "./titles";
import { quantity } from "./units";
import type { View } from "./view";
import { t } from "./words";

const FILL = "#8c96c6";

/** Draw one curve. @param left and @param y of its lane */
export function drawCurve(
  context: CanvasRenderingContext2D,
  head: Head,
  { time, value }: Samples,
  { samples: { from, to, counter }, height }: Curve,
  view: View,
  left: number,
  y: number,
  theme: Theme,
): void {
  const { name, unit, most } = head.counters[counter]!;
  context.fillStyle = theme.idle;
  context.fillRect(left, y, view.width, height);
  context.fillStyle = FILL;
  const times = time;
  let index = firstEndingAfter(times, from, to, view.start) - 1;
  for (let x = 0; x < view.width; x++) {
    const at = view.time(x + 0.5);
    index = Math.max(index, firstEndingAfter(times, Math.max(from, index), to, at) - 1);
    if (index < from) continue;
    const tall = most > 0 ? (height * Math.max(0, value[index]!)) / most : 0;
    context.fillRect(left + x, y + height - tall, 1, tall);
  }
  if (rated(left)) return;
  const label = t("{name}, up to {most}", { name, most: quantity(most, unit) });
  const middle = Math.min(height / 2, 8);
  // A curve behind it would be nearly as dark, or as light.
  context.fillStyle = theme.idle;
  context.fillRect(left + 2, y, context.measureText(label).width + 8, Math.min(height, 2 * middle));
  context.fillStyle = theme.dim;
  context.fillText(label, left + 6, y + middle);
}

/** The counter whose curve is at a height of the page, with its value at a time. */
export function curveTooltip(head: Head, samples: Samples, curves: Curve[], at: number, y: number): string | null {
  const curve = curves.find(({ top, height }) => top <= y && y < top + height);
  const value = curve && valueAt(samples, curve, at);
  if (!curve || value == null) return null;
  const { name, unit, most } = head.counters[curve.samples.counter]!;
  const said = { name, value: quantity(value, unit), most: quantity(most, unit) };
  return t("{name}: {value} of at most {most}", said);
}

/** The value of a counter at a time, if it has one. */
export function valueAt({ time, value }: Samples, { samples: { from, to } }: Curve, at: number): number | null {
  const index = firstEndingAfter(time, from, to, at) - 1;
  return index < from ? null : value[index]!;
}
