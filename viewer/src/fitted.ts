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

const KNOWN = 5000; // texts of a font whose widths are kept

const widths = new Map<string, Map<string, number>>(); // by font

/** What tells how wide texts are in the font that is set: measuring takes long, and most texts come again. */
export function measure(context: CanvasRenderingContext2D): (text: string) => number {
  const { font } = context;
  const known = widths.get(font) ?? new Map<string, number>();
  if (known.size > KNOWN) known.clear();
  widths.set(font, known);
  return (text) => {
    let width = known.get(text);
    if (width === undefined) known.set(text, (width = context.measureText(text).width));
    return width;
  };
}
