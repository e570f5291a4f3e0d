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

/** What the sentences about the run are in Chinese; nothing where the page was written in English. */
export function sentences(): Record<string, string> {
  return JSON.parse(document.getElementById("chinese")?.textContent || "{}") as Record<string, string>;
}

const AS_NAMED = ["names", "kernels", "title", "host"]; // what a trace calls things, whatever that reads like

/** What was said in English, in the language of the page. @param chinese what sentences are in Chinese, where that is known */
export function spoken<Value>(value: Value, chinese: Record<string, string>): Value {
  const told = (one: unknown): unknown => {
    if (typeof one === "string") return Object.hasOwn(chinese, one) ? chinese[one] : one;
    if (Array.isArray(one)) return typeof one[0] === "number" ? one : one.map(told);
    if (typeof one !== "object" || one === null) return one;
    return Object.fromEntries(
      Object.entries(one).map(([key, part]) => [key, AS_NAMED.includes(key) ? part : told(part)]),
    );
  };
  return language === "zh" && Object.keys(chinese).length ? (told(value) as Value) : value;
}

/** What languages are called: by HTML, and by those who read them, in full and in little room; what they are told where a page has no sentence of theirs about its run. */
export const TONGUES = {
  en: { tag: "en", name: "English", short: "EN", alone: "" },
  zh: {
    tag: "zh-CN",
    name: "简体中文",
    short: "中",
    alone: "（关于这次运行的句子仍为英文：写页面时加 --lang zh 即有中文）",
  },
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
