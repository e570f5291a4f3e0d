// A task among its like: how long those of its kind take, on its stage and in its micro-batch.

import { rowOf, type Data, type Head } from "./data";
import { element, shape } from "./dom";
import { whose } from "./label";
import { brief, duration } from "./units";
import { t } from "./words";

const WIDTH = 374; // pixels
const ROW = 26;
const LEFT = 152; // of the plot
const MOST = 300; // dots of a row

/** Tasks like one: of its kind and stage, and of its kind and micro-batch in the same step; itself among them. */
export function likeOf(head: Head, { tasks }: Data, task: number): { stage: number[]; microbatch: number[] } {
  const { lane } = rowOf(head, task);
  const stage: number[] = [];
  const microbatch: number[] = [];
  for (const row of head.rows) {
    if (row.lane !== lane) continue;
    for (let other = row.from; other < row.to; other++) {
      if (tasks.kind[other] !== tasks.kind[task]) continue;
      if (tasks.stage[other] === tasks.stage[task]) stage.push(other);
      const same = tasks.microbatch[other] === tasks.microbatch[task] && tasks.step[other] === tasks.step[task];
      if (same && tasks.microbatch[task]! >= 0) microbatch.push(other);
    }
  }
  return { stage, microbatch };
}

/** @param go shows another task */
export function strip(head: Head, data: Data, task: number, go: (task: number) => void): HTMLElement[] {
  const { stage, microbatch } = likeOf(head, data, task);
  const rows = (
    [
      [data.tasks.stage[task]! < 0 ? t("of its kind") : t("on its stage"), stage],
      [t("of its micro-batch"), microbatch],
    ] as const
  ).filter(([, all]) => all.length > 1);
  if (!rows.length) return [];
  const length = (one: number): number => data.tasks.end[one]! - data.tasks.start[one]!;
  const most = Math.max(1, ...rows.flatMap(([, all]) => thinned(all, task).map(length)));
  const x = (one: number): number => LEFT + (length(one) / most) * (WIDTH - LEFT - 12);
  const plots = rows.map(([name, all], at) => {
    const middle = at * ROW + ROW / 2;
    const dots = thinned(all, task).map((one) => dot(one, x(one), middle));
    return shape(
      "g",
      {},
      shape("text", { x: 0, y: middle + 4, class: "dim" }, `${name} (${all.length.toLocaleString("en-US")})`),
      shape("line", { x1: LEFT, x2: WIDTH - 8, y1: middle, y2: middle, class: "axis" }),
      ...dots,
    );
  });
  const height = rows.length * ROW + 16;
  const scale = shape("text", { x: WIDTH - 8, y: height - 3, class: "dim", "text-anchor": "end" }, brief(most));
  const zero = shape("text", { x: LEFT, y: height - 3, class: "dim" }, "0");
  const box = { width: WIDTH, height, viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": said() };
  return [
    element("h3", {}, t("Its like, by how long they take")),
    shape("svg", { ...box, class: "strip" }, ...plots, zero, scale),
  ] as HTMLElement[];

  function dot(one: number, at: number, middle: number): SVGElement {
    const own = one === task;
    const made = shape("circle", { cx: at, cy: middle, r: own ? 5 : 3, class: own ? "own" : "other" });
    made.append(shape("title", {}, `${whose(head, data.tasks, one)}: ${duration(length(one))}`));
    if (!own) made.addEventListener("click", () => go(one));
    return made;
  }

  /** The plot in words. */
  function said(): string {
    return rows
      .map(([name, all]) => {
        const shorter = all.filter((one) => length(one) < length(task)).length;
        return t("{name}: longer than {shorter} of {others} others", { name, shorter, others: all.length - 1 });
      })
      .join("; ");
  }
}

/** No more than can be told apart, evenly, and the one that all is about, drawn last. */
function thinned(all: readonly number[], task: number): number[] {
  const every = Math.max(1, Math.ceil(all.length / MOST));
  return [...all.filter((one, at) => at % every === 0 && one !== task), task];
}
