// Colours as light. Screens are told colours in sRGB (IEC 61966-2-1), whose numbers are not proportional
// to light; what is mixed or compared is.

import { blend } from "./raster";

/** The light of each of the 256 values of a channel, from 0 to 1. */
export const LIGHT = Float64Array.from({ length: 256 }, (_, value) => {
  const share = value / 255;
  return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
});

const STEPS = 4096; // fine enough: where the curve is steepest, a step is 0.8 of a value

/** The value of a channel for some light, by `STEPS` of it. */
const VALUES = Uint8Array.from({ length: STEPS + 1 }, (_, step) => {
  const light = step / STEPS;
  return Math.round(255 * (light <= 0.0031308 ? 12.92 * light : 1.055 * light ** (1 / 2.4) - 0.055));
});

/** The pixel, as an ImageData holds it on a little-endian machine, that gives some light. */
export function pixelOf(red: number, green: number, blue: number): number {
  return ((255 << 24) | (value(blue) << 16) | (value(green) << 8) | value(red)) >>> 0;
}

function value(light: number): number {
  return VALUES[light <= 0 ? 0 : light >= 1 ? STEPS : (light * STEPS + 0.5) | 0]!;
}

/** Relative luminance of "#rrggbb" (WCAG 2.2). */
export function luminance(colour: string): number {
  const number = parseInt(colour.slice(1), 16);
  return 0.2126 * LIGHT[number >> 16]! + 0.7152 * LIGHT[(number >> 8) & 255]! + 0.0722 * LIGHT[number & 255]!;
}

/** Contrast ratio of two colours, from 1 to 21 (WCAG 2.2). */
export function contrast(one: string, other: string): number {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b) as [number, number];
  return (high + 0.05) / (low + 0.05);
}

const LINE_CONTRAST = 4.5;

/** The colour of lines around a fill: its hue, as light or dark as is needed to see them. */
export function lineOn(fill: string): string {
  const end = contrast("#000000", fill) > contrast("#ffffff", fill) ? "#000000" : "#ffffff";
  for (let share = 0; share < 1; share += 0.02) {
    const line = blend(end, fill, share);
    if (contrast(line, fill) >= LINE_CONTRAST) return line;
  }
  return end;
}

/** The colour of text on a fill. */
export function inkOn(fill: string): string {
  return contrast("#ffffff", fill) > contrast("#1a1a1a", fill) ? "#ffffff" : "#1a1a1a";
}
