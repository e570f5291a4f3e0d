// Making the parts of the page that are text.

import { t } from "./words";

type Child = Node | string;

/** Make an element. Text always goes in as text, so no name in a trace can become markup. */
export function element<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  attributes: Record<string, string> = {},
  ...children: Child[]
): HTMLElementTagNameMap[Tag] {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Make a part of a drawing. */
export function shape(tag: string, attributes: Record<string, string | number>, ...children: Child[]): SVGElement {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

export function button(label: string, title: string, pressed: () => void): HTMLButtonElement {
  const made = element("button", { type: "button", title }, label);
  made.addEventListener("click", pressed);
  return made;
}

const EDGE = 4; // pixels between what floats and the edges of the window

/** What opens below its summary: over the page, but within the window. @param opened is called first */
export function dropDown(
  attributes: Record<string, string>,
  summary: string,
  content: HTMLElement,
  opened = (): void => {},
): HTMLDetailsElement {
  const heading = element("summary", {}, summary);
  const made = element("details", attributes, heading, content);
  content.classList.add("drop");
  made.addEventListener("toggle", () => made.open && opened());
  const place = (): void => void (made.open && below(heading, content));
  new ResizeObserver(place).observe(content);
  addEventListener("resize", place);
  return made;
}

/** Put what floats below something, within the window. */
export function below(anchor: HTMLElement, floats: HTMLElement): void {
  const { left, bottom } = anchor.getBoundingClientRect();
  floats.style.top = `${bottom + EDGE}px`;
  floats.style.left = "0"; // where it is as wide as it can be
  floats.style.maxHeight = `${innerHeight - bottom - 2 * EDGE}px`;
  floats.style.left = `${Math.max(EDGE, Math.min(left, innerWidth - floats.offsetWidth - EDGE))}px`;
}

/** A text with commands between backticks, which do not break within an option. */
export function withCommands(text: string): Child[] {
  const command = (words: string): HTMLElement =>
    element("code", {}, ...words.split(/(?<!\S)(-\S{1,30})/).map((part, at) => (at % 2 ? keep(part) : part)));
  return text.split("`").map((part, at) => (at % 2 ? command(part) : part));
}

const KEPT = /((?:± )?[!-~−]*\d (?:[nµm]?s|%)(?!\w)[!-~]*|(?<!\S)\S{0,16}[a-z]-[a-z]\S{0,16}(?!\S))/;

/** A text in whose lines numbers have their units beside them, and words their hyphens. */
export function unbroken(text: string): Child[] {
  return text.split(KEPT).map((part, at) => (at % 2 ? keep(part) : part));
}

function keep(text: string): HTMLElement {
  return element("span", { class: "kept" }, text);
}

export type Fact = [name: string, value: string | Node | null];

/** Facts one below the other, without those that are unknown. */
export function list(facts: Fact[]): HTMLElement {
  const made = element("dl", {});
  for (const [name, value] of facts) {
    if (value !== null) made.append(element("div", {}, element("dt", {}, name), element("dd", {}, value)));
  }
  return made;
}

const LONGEST = 2000; // letters of a text from a trace that the page shows

/** A text from a trace, short enough to be read. */
export function shortened(text: string, most = LONGEST): string {
  if (text.length <= most) return text;
  return `${text.slice(0, most)}… (${t("{count} more letters", { count: (text.length - most).toLocaleString("en-US") })})`;
}

/** A colour of a legend. @param dark the same on a dark ground */
export function swatch(fill: string, dark = fill): HTMLElement {
  const made = element("i", {});
  made.style.background = either(fill, dark);
  return made;
}

/** A colour of the style sheet: one on a light ground, another on a dark one. */
export function either(light: string, dark: string): string {
  return light === dark ? light : `light-dark(${light}, ${dark})`;
}
