// What is in sight as a table: for those who read it, or have it read to them.

import type { App } from "./app";
import { firstEndingAfter, type Row } from "./data";
import { button, element } from "./dom";
import { short } from "./label";
import { zeroOf } from "./journey";
import { within } from "./layout";
import { duration } from "./units";
import { nameOf, t } from "./words";

const MOST = 200; // lines

/** The tasks in sight, rank by rank. */
export function inSight(app: App): HTMLElement {
  const { head, data, view, plan, scroll } = app;
  const { tasks } = data;
  const zero = zeroOf(head, view);
  const rows = within(plan.places, scroll.scrollTop, scroll.scrollTop + scroll.clientHeight).map(({ row }) => row);
  const lines: HTMLElement[] = [];
  let count = 0;
  for (const row of rows) {
    const first = firstEndingAfter(tasks.end, row.from, row.to, view.start);
    const last = firstEndingAfter(tasks.start, first, row.to, view.end);
    count += last - first;
    for (let task = first; task < last && lines.length < MOST; task++) lines.push(line(row, task));
  }
  const columns = [t("rank"), t("lane"), t("task"), t("begins"), t("takes")].map((name) =>
    element("th", { scope: "col" }, name),
  );
  const caption =
    count > lines.length
      ? t("Tasks in sight, the first {shown} of {count}: zoom in", {
          shown: lines.length,
          count: count.toLocaleString("en-US"),
        })
      : t("Tasks in sight");
  return element(
    "table",
    { class: "insight" },
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...columns)),
    element("tbody", {}, ...lines),
  );

  function line(row: Row, task: number): HTMLElement {
    const show = button(short(head, tasks, task), t("select it"), () =>
      app.selection.go({ what: "task", index: task }),
    );
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, String(head.ranks[row.rank]!.rank)),
      element("td", {}, nameOf(row.lane)),
      element("td", {}, show),
      element("td", { class: "number" }, duration(tasks.start[task]! - zero)),
      element("td", { class: "number" }, duration(tasks.end[task]! - tasks.start[task]!)),
    );
  }
}
