import { describe, expect, test } from "vitest";
import {
  factorOf,
  layersIn,
  NOTHING,
  parse,
  partitionOf,
  quoted,
  toggled,
  values,
  withFactor,
  withPartition,
  words,
  written,
} from "../src/question";

describe("a question is text that a shell reads", () => {
  test.each([
    ["plain", "plain"],
    ["2=0.5", "2=0.5"],
    ["8,8,8", "8,8,8"],
    ["slow rank", "'slow rank'"],
    ["it's", `'it'"'"'s'`],
    ["", "''"],
    ["$(rm) `x` ;", "'$(rm) `x` ;'"],
    ["ü", "'ü'"],
  ])("%s", (word, text) => {
    expect(quoted(word)).toBe(text);
    expect(words(text)).toEqual([word]);
  });

  test.each([
    "--without 'slow rank'",
    "--host-never-late",
    "--stage 2=0.5 --rank 7=1.25",
    "--healthy 6 --move 1@3:0 --layers 8,8,8,8",
    "--schedule interleaved-1f1b --chunks 4",
    `--kernel 'it'"'"'s=0.5'`,
  ])("%s", (text) => expect(written(parse(text))).toBe(text));

  test("there is one text of each, whatever came first", () => {
    expect(written(parse("--layers 4,4 --move 1@0:1 --stage 0=2 --without 'host pause'"))).toBe(
      "--without 'host pause' --stage 0=2 --move 1@0:1 --layers 4,4",
    );
  });

  test("what asks nothing is left out: the text may come from an address, and is copied to a shell", () => {
    expect(written(parse("--stage 0=2 ; rm -rf / --output x --healthy 1"))).toBe("--stage 0=2 --healthy 1");
    expect(written(parse("--without '; rm -rf /'"))).toBe("--without '; rm -rf /'");
  });
});

test("a value is there or not", () => {
  const one = toggled(NOTHING, "--healthy", "6");
  const two = toggled(one, "--healthy", "7");
  expect(values(two, "--healthy")).toEqual(["6", "7"]);
  expect(values(toggled(two, "--healthy", "6"), "--healthy")).toEqual(["7"]);
});

test("a stage has one factor, and none if it is as long as it is", () => {
  const long = withFactor(parse("--stage 12=0.5"), 2, 1.5);
  expect([factorOf(long, 2), factorOf(long, 12), factorOf(long, 1)]).toEqual([1.5, 0.5, 1]);
  expect(written(withFactor(long, 2, 0.75))).toBe("--stage 12=0.5 --stage 2=0.75");
  expect(written(withFactor(long, 2, 1))).toBe("--stage 12=0.5");
});

describe("layers", () => {
  const now = [8, 8, 8, 8];

  test.each([
    [[9, 7, 8, 8], "--move 1@1:0 --layers 8,8,8,8"],
    [[8, 6, 8, 10], "--move 2@1:3 --layers 8,8,8,8"],
    [[9, 9, 8, 6], "--partition 9,9,8,6 --layers 8,8,8,8"],
    [[8, 8, 8, 8], ""],
  ])("%j", (then, text) => {
    const question = withPartition(NOTHING, now, then);
    expect(written(question)).toBe(text);
    expect(partitionOf(question, now)).toEqual(then);
  });

  test("another boundary goes on from where the first is, and other changes stay", () => {
    const first = withPartition(parse("--healthy 3"), now, [9, 7, 8, 8]);
    expect(written(withPartition(first, now, [9, 7, 9, 7]))).toBe("--healthy 3 --partition 9,7,9,7 --layers 8,8,8,8");
  });

  test.each([
    ["8,8,8", [8, 8, 8]],
    [" 8 , 0,16 ", [8, 0, 16]],
    ["8,8", null],
    ["0,0,0", null],
    ["8,8,x", null],
    ["", null],
  ])("%s", (text, found) => expect(layersIn(text, 3)).toEqual(found));
});
