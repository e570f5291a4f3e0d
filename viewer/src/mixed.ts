// What is said of a pixel in which several tasks ran: their shares of its time.

import { pixelAt, spend } from "./area";
import { firstEndingAfter, type Data, type Head } from "./data";
import { gridOf } from "./grid";
import { firstBelow, type Place } from "./layout";
import type { View } from "./view";
import { nameOf, t } from "./words";

const RESOLVED = 3; // pixels of width from which a task is looked at by itself

/**
 * The shares of the kinds at a point, if the pixel there has more than one task or none is wide enough to
 * be told from its neighbours; else null.
 *
 * @param x pixels from the left of the plot @param y pixels from the top of the page
 */
export function mixedTooltip(
  head: Head,
  { tasks }: Data,
  places: Place[],
  view: View,
  x: number,
  y: number,
): string | null {
  const place = places[firstBelow(places, y)];
  if (x < 0 || !place || place.top > y || y >= place.top + place.height - place.band) return null;
  const { start, end, kind } = tasks;
  const all = gridOf(view, devicePixelRatio);
  const first = pixelAt(view.time(x), all.perPixel);
  const grid = { ...all, first, columns: 1 };
  const { from, to } = place.row;
  const [begin, stop] = [first * grid.perPixel, (first + 1) * grid.perPixel];
  const here = firstEndingAfter(end, from, to, begin);
  let past = firstEndingAfter(end, here, to, stop);
  if (past < to && start[past]! < stop) past++;
  let [widest, count] = [0, 0];
  for (let task = here; task < past; task++) {
    widest = Math.max(widest, end[task]! - start[task]!);
    count += tasks.merged?.[task] || 1;
  }
  if (count === 0 || widest * view.scale >= RESOLVED) return null;
  const shares = new Float32Array(head.kinds.length);
  const covered = new Float32Array(1);
  spend(tasks, place.row, grid, { from: 0, to: 1 }, kind, shares.length, shares, covered);
  const parts = head.kinds
    .map(({ name }, code): [number, string] => [shares[code]!, nameOf(name)])
    .filter(([share]) => share > 0)
    .sort(([one], [other]) => other - one);
  const said = [...parts, [Math.max(0, 1 - covered[0]!), t("idle")] as [number, string]];
  const tasksHere =
    count === 1
      ? t("1 task in this pixel")
      : t("{count} tasks in this pixel", { count: count.toLocaleString("en-US") });
  return `${said.map(([share, name]) => `${name} ${rounded(share)}`).join(", ")}; ${tasksHere}`;
}

/** A share in whole percent, but never none of what there is. */
function rounded(share: number): string {
  const percent = Math.round(100 * share);
  return percent === 0 && share > 0.00005 ? t("under 1 %") : `${percent} %`;
}
