// The colours around the blocks.

export const NAMES = ["text", "dim", "idle", "warm", "cool", "band", "line", "page", "accent"] as const;

export type Theme = Record<(typeof NAMES)[number], string>;

/** What the style sheet says. */
export function theme(): Theme {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()])) as Theme;
}
