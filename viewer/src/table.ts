// What is in sight as a table: for those who read it, or have it read to them.

import type { App } from "./app";
import { firstEndingAfter, rowOf, type Head, type Row, type Tasks } from "./data";
import { button, element, shortened } from "./dom";
import { zeroOf } from "./journey";
import { short } from "./label";
import { within } from "./layout";
import { duration } from "./units";
import { nameOf, t } from "./words";

const MOST = 200; // lines
const NAME = 60; // letters of a task's name in the trace

interface Column {
  title: string;
  of: (row: Row, task: number) => number | string; // by which it is sorted
  text?: (value: number) => string; // of numbers
}

/** The tasks in sight, rank by rank, or sorted by a column whose heading was clicked. */
export function inSight(app: App): HTMLElement {
  const { head, data, view, plan, scroll } = app;
  const { tasks } = data;
  const found: number[] = [];
  for (const { row } of within(plan.places, scroll.scrollTop, scroll.scrollTop + scroll.clientHeight)) {
    const first = firstEndingAfter(tasks.end, row.from, row.to, view.start);
    const last = firstEndingAfter(tasks.start, first, row.to, view.end);
    for (let task = first; task < last; task++) found.push(task);
  }
  const columns = columnsOf(head, tasks, zeroOf(head, view));
  const headings = columns.map(({ title, text }, at) => {
    const sorting = button(title, t("sort by this, or the other way round"), () => sort(at));
    return element("th", { scope: "col", class: text ? "number" : "" }, sorting);
  });
  const body = element("tbody");
  fill(found);
  const caption =
    found.length > MOST
      ? t("Tasks in sight, the first {shown} of {count}: zoom in", {
          shown: MOST,
          count: found.length.toLocaleString("en-US"),
        })
      : t("Tasks in sight");
  return element(
    "table",
    { class: "insight" },
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...headings)),
    body,
  );

  function sort(at: number): void {
    const up = headings[at]!.ariaSort !== UP;
    headings.forEach((heading) => heading.removeAttribute("aria-sort"));
    headings[at]!.ariaSort = up ? UP : DOWN;
    fill(sorted(head, found, columns[at]!, up));
  }

  function fill(some: number[]): void {
    body.replaceChildren(...some.slice(0, MOST).map(line));
  }

  function line(task: number): HTMLElement {
    const row = rowOf(head, task);
    const cells = columns.map(({ of, text }, at) => {
      const value = of(row, task);
      if (at === 0) return element("th", { scope: "row" }, String(value));
      if (at === TASK) {
        const show = (): void => app.selection.go({ what: "task", index: task });
        return element("td", {}, button(String(value), t("select it"), show));
      }
      return text ? element("td", { class: "number" }, text(Number(value))) : element("td", {}, String(value));
    });
    return element("tr", {}, ...cells);
  }
}

const [UP, DOWN] = ["ascending", "descending"] as const;
const TASK = 2; // the column whose texts select the task

function columnsOf(head: Head, tasks: Tasks, zero: number): Column[] {
  const known = (value: number): string => (value < 0 ? "" : String(value));
  return [
    { title: t("rank"), of: ({ rank }) => head.ranks[rank]!.rank },
    { title: t("lane"), of: ({ lane }) => nameOf(lane) },
    { title: t("task"), of: (_, task) => short(head, tasks, task) },
    { title: t("begins"), of: (_, task) => tasks.start[task]! - zero, text: duration },
    { title: t("takes"), of: (_, task) => tasks.end[task]! - tasks.start[task]!, text: duration },
    { title: t("step"), of: (_, task) => tasks.step[task]!, text: known },
    { title: t("stage"), of: (_, task) => tasks.stage[task]!, text: known },
    { title: t("micro-batch"), of: (_, task) => tasks.microbatch[task]!, text: known },
    { title: t("name in the trace"), of: (_, task) => shortened(head.names[tasks.name[task]!]!, NAME) },
  ];
}

/** Tasks by a column; those that have the same there stay as they were. */
function sorted(head: Head, found: number[], { of }: Column, up: boolean): number[] {
  const values = new Map(found.map((task) => [task, of(rowOf(head, task), task)]));
  const sign = up ? 1 : -1;
  return [...found].sort((one, other) => {
    const [here, there] = [values.get(one)!, values.get(other)!];
    return sign * (typeof here === "number" ? here - (there as number) : here.localeCompare(String(there)));
  });
}
