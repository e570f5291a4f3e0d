// The colours around the blocks.

export const NAMES = ["text", "dim", "idle", "warm", "cool", "band", "line", "page", "accent"] as const;

export type Theme = Record<(typeof NAMES)[number], string> & { dark: boolean };

/** What the style sheet says. */
export function theme(): Theme {
  const style = getComputedStyle(document.documentElement);
  const colours = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  return { ...colours, dark: style.colorScheme === "dark" } as Theme;
}
