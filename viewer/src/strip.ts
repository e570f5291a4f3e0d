// Brings sampled rows onto a canvas: all of them into one image, a pixel row each, then stretched.

import type { Extent, Numbers, Spans } from "./data";
import { sample } from "./sample";
import type { View } from "./view";

/** What is sampled once and shown in one or several bands. */
export interface Layer {
  spans: Spans;
  extent: Extent;
  codes: Numbers;
  colours: Uint32Array;
  bands: { top: number; height: number }[];
}

export class Strip {
  private readonly canvas = document.createElement("canvas");

  paint(context: CanvasRenderingContext2D, layers: Layer[], view: View, left: number, ratio: number): void {
    if (!layers.length) return;
    const columns = Math.max(1, Math.round(view.width * ratio));
    if (this.canvas.width !== columns || this.canvas.height < layers.length) {
      this.canvas.width = columns;
      this.canvas.height = layers.length;
    }
    const image = new ImageData(columns, layers.length);
    const pixels = new Uint32Array(image.data.buffer);
    layers.forEach(({ spans, extent, codes, colours }, index) => {
      const line = pixels.subarray(index * columns, (index + 1) * columns);
      sample(spans, extent, view, ratio, codes, colours, line);
    });
    this.canvas.getContext("2d")!.putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    layers.forEach(({ bands }, index) => {
      for (const { top, height } of bands) {
        context.drawImage(this.canvas, 0, index, columns, 1, left, top, columns / ratio, height);
      }
    });
  }
}

/** "#rrggbb" as the 32 bits that an ImageData holds on a little-endian machine. */
export function packed(colour: string, opacity = 1): number {
  const value = parseInt(colour.slice(1), 16);
  const [red, green, blue] = [value >> 16, (value >> 8) & 255, value & 255];
  return ((Math.round(opacity * 255) << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}
