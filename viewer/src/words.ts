// The words of the page, in the language of whoever reads it. A text is written in English where it is shown, through `t`,
// and what it is in Chinese stands in `chinese.ts`.

import { CHINESE, NAMES } from "./chinese";

export const LANGUAGES = ["en", "zh"] as const;
export type Language = (typeof LANGUAGES)[number];

type Text = keyof typeof CHINESE;
type Places<Said> = Said extends `${string}{${infer Name}}${infer Rest}` ? Name | Places<Rest> : never;
type Values<Said> = [Places<Said>] extends [never] ? [] : [Record<Places<Said>, string | number>];

/** The language of a page whose address names none: that in which it was written, or that of the browser. */
export const usual: Language = usualOf();

/** The language in which the page speaks: nothing changes it but to open the page again. */
export const language: Language = asked() ?? usual;

/** A text in the language of the page, with values in its places. */
export function t<const Said extends Text>(text: Said, ...[values]: Values<Said>): string {
  const said = language === "zh" ? CHINESE[text] : text;
  return values ? said.replace(/\{(\w+)\}/g, (_, place: keyof typeof values) => String(values[place])) : said;
}

/** What a name that stands in the data means to people. What is known by no other name stays as it is. */
export function nameOf(name: string): string {
  return (language === "zh" && NAMES[name]) || name.replaceAll("_", " ");
}

/** What languages are called: by HTML, and by those who read them, in full and in little room. */
export const TONGUES = {
  en: { tag: "en", name: "English", short: "EN" },
  zh: { tag: "zh-CN", name: "简体中文", short: "中" },
} as const satisfies Record<Language, object>;

function usualOf(): Language {
  if (typeof document === "undefined") return "en";
  return [document.documentElement.lang, navigator.language].some((tag) => /^zh\b/i.test(tag)) ? "zh" : "en";
}

function asked(): Language | undefined {
  if (typeof location === "undefined") return undefined;
  const given = new URLSearchParams(location.hash.slice(1)).get("language");
  return LANGUAGES.find((one) => one === given);
}
