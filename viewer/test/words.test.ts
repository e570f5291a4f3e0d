// @vitest-environment happy-dom
import { afterEach, describe, expect, test, vi } from "vitest";
import { CHINESE, NAMES } from "../src/chinese";
import { nameOf, t } from "../src/words";

const placesOf = (text: string): string[] => [...text.matchAll(/\{(\w+)\}/g)].map(([, place]) => place!).sort();
/** What is left of a text without its places, and without what people who read Chinese write in Latin letters too. */
const bare = (text: string): string => text.replace(/\{\w+\}|\b(rank|Enter|Esc|Shift)\b/g, "");

describe("the catalogue", () => {
  test.each(Object.entries(CHINESE))("%s", (english, chinese) => {
    expect(placesOf(chinese)).toEqual(placesOf(english));
    expect(/\p{Script=Han}/u.test(chinese) || !/[a-z]{2}/i.test(bare(chinese))).toBe(true);
  });
});

describe("in English", () => {
  test("a text stays as it is written, with its values", () => {
    expect(t("idle")).toBe("idle");
    expect(t("{least} to {most}", { least: 1, most: "{least}" })).toBe("1 to {least}");
  });

  test("a name is read without its underscores", () => expect(nameOf("send_forward")).toBe("send forward"));
});

describe("in Chinese", () => {
  afterEach(() => {
    vi.resetModules();
    document.documentElement.lang = location.hash = "";
  });

  const spoken = async (lang: string, hash: string): Promise<typeof import("../src/words")> => {
    vi.resetModules();
    document.documentElement.lang = lang;
    location.hash = hash;
    return import("../src/words");
  };

  test.each([
    ["zh-CN", "", "zh"],
    ["zh-CN", "#language=en", "en"],
    ["en", "#y=3&language=zh", "zh"],
    ["en", "", "en"],
    ["en", "#language=fr", "en"],
  ])("a page in %s with the address %s speaks it", async (lang, hash, language) => {
    expect((await spoken(lang, hash)).language).toBe(language);
  });

  test("so does a page that is read in a browser of that language", async () => {
    vi.spyOn(navigator, "language", "get").mockReturnValue("zh-TW");
    expect((await spoken("en", "")).language).toBe("zh");
    vi.restoreAllMocks();
  });

  test("sentences about the run are, where they are known in Chinese, and what a trace calls things is not", async () => {
    const head = { verdict: { said: "It waits." }, names: ["It waits."], steps: [1, 2], none: null, other: "It runs." };
    const chinese = { "It waits.": "它在等待。" };
    expect((await spoken("zh-CN", "")).spoken(head, chinese)).toEqual({ ...head, verdict: { said: "它在等待。" } });
    expect((await spoken("en", "")).spoken(head, chinese)).toEqual(head);
  });

  test("texts and names are translated, and what has no other name is not", async () => {
    const words = await spoken("zh-CN", "");
    expect(words.t("{count} ranks", { count: 4 })).toBe("4 个 rank");
    expect(words.nameOf("stage imbalance")).toBe(NAMES["stage imbalance"]);
    expect(words.nameOf("my kernel")).toBe("my kernel");
  });

  test("a search knows the names in both languages", async () => {
    await spoken("zh-CN", "");
    const { asked } = await import("../src/search");
    const { find } = await import("../src/matching");
    const { made } = await import("./made");
    const { head, data } = made({
      rows: [
        {
          rank: 0,
          tasks: [
            { start: 0, end: 5 },
            { start: 5, end: 9, kind: "backward" },
          ],
        },
      ],
    });
    expect([...find(asked("kind:反向", head), head, data).items]).toEqual([1]);
    expect(() => asked("kind:无此", head)).toThrow("没有名为 无此 的任务类型");
  });
});
