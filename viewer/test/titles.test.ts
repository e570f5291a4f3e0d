import { expect, test } from "vitest";
import { drawFold, drawTitle, meanIdle } from "../src/titles";
import type { Band, Fold } from "../src/layout";
import { made, THEME } from "./made";

const NOTHING = { span: null, longest_span: null, over_ideal: null, no_wait: null, excess: null, error: null };
const ranks = [0.1, 0.3].map((makespan) => ({ stages: [0, 7], rates: { ...NOTHING, makespan } }));
const { head } = made({ ranks, rows: [] });

/** What is written, and how far from the top, where letters are six pixels wide. */
function written(draw: (context: CanvasRenderingContext2D) => void): Map<string, number> {
  const texts = new Map<string, number>();
  draw({
    fillRect: () => {},
    measureText: (text: string) => ({ width: 6 * text.length }),
    fillText: (text: string, _: number, y: number) => texts.set(text, y),
  } as unknown as CanvasRenderingContext2D);
  return texts;
}

const fold: Fold = {
  ...{ key: "alike", title: "stage 3", ranks: [0, 1], shows: "sum" },
  ...{ top: 0, height: 20, stack: "compute" },
};

test("a sum has the mean idle share of its ranks, and how many they are", () => {
  expect(meanIdle(head, [0, 1])).toBe("20.00 %");
  expect(meanIdle(made({ ranks: [{}], rows: [] }).head, [0])).toBe("");
  const texts = written((context) => drawFold(context, head, fold, 0, 176, 800, THEME));
  expect([...texts.keys()]).toEqual(["▶", "stage 3 × 2", "20.00 %"]);
});

test("the share stands below a title that leaves no room for it, if the lane is high enough", () => {
  const titled = { ...fold, title: "stage 1 of replica 27", ranks: [0] };
  const at = (height: number): number | undefined =>
    written((context) => drawFold(context, head, { ...titled, height }, 0, 176, 800, THEME)).get("10.00 %");
  expect([at(20), at(60)]).toEqual([undefined, 26]);
});

test("where there is no room beside its lane, it stands on it", () => {
  const texts = written((context) => drawFold(context, head, fold, 0, 0, 390, THEME));
  expect([...texts.keys()]).toEqual(["▶", "stage 3 × 2 · 20.00 % idle"]);
  expect(written((context) => drawFold(context, head, { ...fold, height: 5 }, 0, 0, 390, THEME))).toEqual(new Map());
});

test("stages that have no room beside the rank stand below it, if the lane is high enough", () => {
  const at = (height: number): number | undefined => {
    const place = { top: 0, height, titled: 0, number: 1, unfolded: null, like: false };
    const band: Band = { ...place, rank: 0, stack: "compute" };
    return written((context) => drawTitle(context, head, band, 0, 176, THEME)).get("stage 0, 7");
  };
  expect(at(60)).toBe(26);
  expect(at(20)).toBe(undefined);
});
