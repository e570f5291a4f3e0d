// The lanes as pixels: one image of the visible plot, written row by row and brought to the canvas at once.

export class Raster {
  private image = new ImageData(1, 1);
  private pixels = new Uint32Array(this.image.data.buffer);
  private ratio = 1; // device pixels per CSS pixel

  /** Start an image of that many CSS pixels, all of one colour. */
  begin(width: number, height: number, ratio: number, colour: number): void {
    const [columns, rows] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
    if (this.image.width !== columns || this.image.height !== rows) {
      this.image = new ImageData(columns, rows);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    this.ratio = ratio;
    this.pixels.fill(colour);
  }

  get columns(): number {
    return this.image.width;
  }

  /** Fill a band of rows with lines of pixels, of which the last that is not 0 shows. */
  band(top: number, height: number, ...layers: Uint32Array[]): void {
    const { columns, pixels } = this;
    const from = Math.max(0, Math.round(top * this.ratio));
    const to = Math.min(this.image.height, Math.round((top + height) * this.ratio));
    if (from >= to) return;
    const first = from * columns;
    for (const layer of layers) {
      if (layer === layers[0]) pixels.set(layer, first);
      else for (let x = 0; x < columns; x++) if (layer[x] !== 0) pixels[first + x] = layer[x]!;
    }
    for (let row = from + 1; row < to; row++) pixels.copyWithin(row * columns, first, first + columns);
  }

  /** Fill part of a column; heights in CSS pixels. */
  column(x: number, top: number, bottom: number, colour: number): void {
    const to = Math.min(this.image.height, Math.round(bottom * this.ratio));
    for (let row = Math.max(0, Math.round(top * this.ratio)); row < to; row++)
      this.pixels[row * this.columns + x] = colour;
  }

  flush(context: CanvasRenderingContext2D, left: number): void {
    context.putImageData(this.image, Math.round(left * this.ratio), 0);
  }
}

/** "#rrggbb" as the 32 bits that an ImageData holds on a little-endian machine. */
export function packed(colour: string): number {
  const value = parseInt(colour.slice(1), 16);
  return ((255 << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

/** A colour over another, "#rrggbb" both. */
export function blend(colour: string, ground: string, opacity: number): string {
  const [above, below] = [colour, ground].map((text) => parseInt(text.slice(1), 16)) as [number, number];
  const mixed = [16, 8, 0].map((shift) => {
    const [one, other] = [(above >> shift) & 255, (below >> shift) & 255];
    return Math.round(other + (one - other) * opacity);
  });
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}
