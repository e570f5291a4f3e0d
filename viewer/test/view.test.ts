import { beforeEach, describe, expect, test } from "vitest";
import { View } from "../src/view";
import { random } from "./made";

const LIMIT = 1_000_000;
let view: View;

beforeEach(() => {
  view = new View(LIMIT);
  view.width = 1000;
});

const length = (): number => view.end - view.start;

test("it opens on all there is, with a little room on both sides", () => {
  expect([view.start, view.end]).toEqual([-10_000, 1_010_000]);
});

test("x and time are each other's inverse", () => {
  view.set(200_000, 300_000);
  expect(view.x(200_000)).toBe(0);
  expect(view.x(300_000)).toBe(1000);
  expect(view.scale).toBe(0.01);
  for (const x of [-50, 0, 1, 333.3, 1000]) expect(view.x(view.time(x))).toBeCloseTo(x, 6);
});

test("fit shows a stretch with a hundredth of room on both sides", () => {
  view.fit(100_000, 200_000);
  expect([view.start, view.end]).toEqual([99_000, 201_000]);
});

describe("limits", () => {
  test.each([
    [-1e12, 1e12],
    [-1e12, -1e11],
    [1e11, 1e12],
    [500_000, 500_000],
    [999_999, 1e9],
    [7, 3],
  ])("a view from %d to %d keeps within 10 ns and a little more than there is", (start, end) => {
    view.set(start, end);
    expect(length()).toBeGreaterThanOrEqual(10 - 1e-9);
    expect(view.start).toBeGreaterThanOrEqual(-50_000);
    expect(view.end).toBeLessThanOrEqual(1_050_000);
  });

  test.each([1, 2, 10])("a run of %d ns can be shown", (limit) => {
    const small = new View(limit);
    small.zoom(100, 0);
    expect(small.start).toBeLessThan(small.end);
    expect(small.start).toBeLessThanOrEqual(limit);
    expect(small.end).toBeGreaterThanOrEqual(0);
  });
});

describe("zoom", () => {
  test("the point under the pointer stays where it is", () => {
    const next = random(3);
    for (let turn = 0; turn < 200; turn++) {
      view.set(400_000, 600_000);
      const x = 1000 * next();
      const time = view.time(x);
      view.zoom(0.5 + 20 * next(), x);
      expect(view.x(time)).toBeCloseTo(x, 5);
    }
  });

  test("it stays there where one cannot zoom in further", () => {
    view.set(500_000, 500_012);
    const time = view.time(100);
    for (let turn = 0; turn < 10; turn++) view.zoom(1.3, 100);
    expect(length()).toBeCloseTo(10, 6);
    expect(view.x(time)).toBeCloseTo(100, 3);
  });

  test("out and in again is where one was", () => {
    view.set(400_000, 400_100);
    view.zoom(0.01, 500);
    view.zoom(100, 500);
    expect(view.start).toBeCloseTo(400_000, 5);
    expect(view.end).toBeCloseTo(400_100, 5);
  });

  test("out as far as it goes shows everything", () => {
    for (let turn = 0; turn < 20; turn++) view.zoom(0.5, 900);
    expect(view.start).toBeLessThanOrEqual(0);
    expect(view.end).toBeGreaterThanOrEqual(LIMIT);
  });
});

test("pan moves by pixels and stops at the ends", () => {
  view.set(100_000, 200_000);
  view.pan(10);
  expect([view.start, view.end]).toEqual([101_000, 201_000]);
  view.pan(-1e9);
  expect([view.start, view.end]).toEqual([-50_000, 50_000]);
  view.pan(1e9);
  expect([view.start, view.end]).toEqual([950_000, 1_050_000]);
});

describe("reveal", () => {
  test("what is in sight and wide enough to be seen moves nothing", () => {
    view.set(100_000, 200_000);
    view.reveal(150_000, 160_000);
    expect([view.start, view.end]).toEqual([100_000, 200_000]);
  });

  test("what is elsewhere comes to the middle, no closer if it can be seen", () => {
    view.set(100_000, 200_000);
    view.reveal(700_000, 710_000);
    expect([view.start, view.end]).toEqual([655_000, 755_000]);
  });

  test("what is too narrow comes closer", () => {
    view.set(100_000, 200_000);
    view.reveal(150_000, 150_100);
    expect(length()).toBeCloseTo(3000);
    expect((view.start + view.end) / 2).toBeCloseTo(150_050);
  });

  test("what is longer than the view is shown whole", () => {
    view.set(100_000, 101_000);
    view.reveal(300_000, 500_000);
    expect(view.start).toBeLessThan(300_000);
    expect(view.end).toBeGreaterThan(500_000);
  });

  test("what has no length is shown as closely as anything is", () => {
    view.reveal(400_000, 400_000);
    expect(length()).toBeCloseTo(10);
    expect(view.x(400_000)).toBeCloseTo(500);
  });
});
