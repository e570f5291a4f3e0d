// Texts in little room.

const LONGEST = 200; // letters that are looked at

/** The beginning of a text that fits, with an ellipsis if that is not all of it. */
export function clip(context: CanvasRenderingContext2D, text: string, width: number): string {
  const whole = context.measureText(text).width;
  if (whole <= width) return text;
  // Of letters as wide as this text's are on average that many fit; then one less at a time.
  let short = text.slice(0, Math.min(LONGEST, Math.max(1, Math.ceil((text.length * width) / whole))));
  while (short.length > 1 && context.measureText(`${short}…`).width > width) short = short.slice(0, -1);
  return `${short}…`;
}
