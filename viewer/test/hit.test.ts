import { describe, expect, test } from "vitest";
import { hit } from "../src/hit";
import { arrangement, layout } from "../src/layout";
import { View } from "../src/view";
import { made, random, row } from "./made";

const { head, data } = made({
  rows: [
    {
      rank: 0,
      tasks: [
        { start: 100, end: 200 },
        { start: 400, end: 401 },
        { start: 600, end: 700 },
      ],
    },
    { rank: 1, tasks: [{ start: 0, end: 1000 }] },
  ],
  gaps: [
    {
      rank: 0,
      gaps: [
        { start: 200, end: 400 },
        { start: 401, end: 598 },
        { start: 598, end: 600 },
        { start: 640, end: 645 },
      ],
    },
  ],
});
const { places } = layout(head, arrangement(head));
const view = new View(1000);
view.width = 1000;
view.set(0, 1000); // a pixel is a nanosecond
const middle = places[0]!.top + places[0]!.height / 2;
const at = (x: number, y = middle, idle = true) => hit(data, places, view, x, y, idle);

describe("at a point is", () => {
  test("the task there", () => {
    expect(at(150)).toEqual({ what: "task", index: 0 });
    expect(at(650)).toEqual({ what: "task", index: 2 });
    expect(at(500, places[1]!.top)).toEqual({ what: "task", index: 3 });
  });

  test("the task there, even where that is in a gap", () => {
    expect(at(642)).toEqual({ what: "task", index: 2 });
  });

  test("the gap there", () => {
    expect(at(300)).toEqual({ what: "gap", index: 0 });
  });

  test("nothing where there is none, or gaps are not shown", () => {
    expect(at(50)).toBeNull();
    expect(at(300, middle, false)).toBeNull();
  });

  test("nothing left of the plot, above, below or between lanes", () => {
    expect(at(-1)).toBeNull();
    expect(at(150, places[0]!.top - 1)).toBeNull();
    expect(at(150, places[0]!.top + places[0]!.height)).toBeNull();
    expect(at(150, 1e6)).toBeNull();
  });
});

describe("where what could have been stands above what was", () => {
  const both = made({
    rows: [
      { rank: 0, tasks: [{ start: 100, end: 200 }] },
      { rank: 0, lane: "ideal", tasks: [{ start: 0, end: 100 }] },
      { rank: 1, tasks: [{ start: 200, end: 300 }] },
      { rank: 1, lane: "ideal", tasks: [{ start: 100, end: 200 }] },
    ],
    gaps: [{ rank: 0, gaps: [{ start: 0, end: 100 }] }],
    head: { overlays: [{ lane: "ideal", name: "ideal", detail: "", idle: null }], above: "ideal" },
  });
  const above = layout(both.head, arrangement(both.head));
  const on = (x: number, y: number) => hit(both.data, above.places, view, x, y, true);

  test("each is hit in its own stack, and gaps only below", () => {
    const [ideal0, ideal1, measured0, measured1] = above.places.map(({ top, height }) => top + height / 2) as [
      number,
      number,
      number,
      number,
    ];
    expect([on(50, ideal0), on(150, ideal1), on(150, measured0), on(250, measured1)]).toEqual(
      [1, 3, 0, 2].map((index) => ({ what: "task", index })),
    );
    expect(on(50, measured0)).toEqual({ what: "gap", index: 0 });
    expect(on(150, ideal0)).toBeNull();
  });

  test("captions are not", () => {
    for (const { top, height } of above.captions)
      for (const y of [top, top + height / 2, top + height - 1]) expect(on(50, y)).toBeNull();
  });
});

describe("what is near and hard to point at is", () => {
  test("a task shorter than the gap beside it", () => {
    expect(at(398)).toEqual({ what: "task", index: 1 });
    expect(at(403)).toEqual({ what: "task", index: 1 });
    expect(at(404)).toEqual({ what: "gap", index: 1 });
  });

  test("a gap shorter than the task beside it", () => {
    expect(at(599)).toEqual({ what: "gap", index: 2 });
  });

  test("a task within three pixels where there is no gap", () => {
    expect(at(97)).toEqual({ what: "task", index: 0 });
    expect(at(96)).toBeNull();
    expect(at(703)).toBeNull();
    expect(at(702.5)).toEqual({ what: "task", index: 2 });
  });
});

test("a task is hit wherever a pixel's point lies in it", () => {
  const run = made({ rows: [{ rank: 0, tasks: row(random(4), 300) }] });
  const plan = layout(run.head, arrangement(run.head));
  const { start, end } = run.data.tasks;
  view.set(0, run.head.end);
  for (let x = 0; x < 1000; x += 0.7) {
    const time = view.time(x);
    const there = start.findIndex((from, task) => from <= time && time < end[task]!);
    if (there >= 0) expect(hit(run.data, plan.places, view, x, middle, true)).toEqual({ what: "task", index: there });
  }
});
