// Where the pixels of a view are in time.

import type { Grid } from "./area";
import type { View } from "./view";

const ALIKE = 1e-9; // by which share of its length a view that only moved may seem longer or shorter

/**
 * The grid of whole pixels of the device that is nearest to a view; they are as long as those of the last
 * one if the view only moved, to the last bit.
 *
 * @param ratio pixels of the device per CSS pixel
 */
export function gridOf(view: View, ratio: number, last: Grid | null = null): Grid {
  const columns = Math.max(1, Math.round(view.width * ratio));
  const length = (view.end - view.start) / columns;
  const perPixel = last && Math.abs(last.perPixel / length - 1) < ALIKE ? last.perPixel : length;
  return { first: Math.round(view.start / perPixel), perPixel, columns, ratio };
}
