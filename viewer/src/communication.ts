// What communicated in a task, by the group that it was in.

import { rowOf, type Communication, type Data, type Head } from "./data";
import { element, shortened } from "./dom";
import { duration, percent, spans } from "./units";
import { t } from "./words";

const RANKS = 40; // letters of the numbers of a group's ranks

/** What communicated in a task in groups of one role, ns. */
export interface InGroup {
  role: string | null;
  said: string; // what the groups are for
  exposed: number; // nothing computed meanwhile
  hidden: number; // something did
  operations: string[];
}

/** What communicated in a task, by the role of the group, that with the most exposed time first. */
export function inGroups(head: Head, { task, of, exposed, hidden }: Communication, index: number): InGroup[] {
  const found = new Map<string | null, InGroup>();
  for (let at = firstOf(task, index); task[at] === index; at++) {
    const { role, said, operation } = head.communicating[of[at]!]!;
    const sums = found.get(role) ?? { role, said, exposed: 0, hidden: 0, operations: [] };
    sums.exposed += exposed[at]!;
    sums.hidden += hidden[at]!;
    if (operation !== null) sums.operations.push(operation);
    found.set(role, sums);
  }
  return [...found.values()].sort((one, other) => other.exposed - one.exposed || other.hidden - one.hidden);
}

/** Index of the first row of a task, or of the next task that has any. */
function firstOf(tasks: Int32Array, index: number): number {
  let [from, to] = [0, tasks.length];
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (tasks[middle]! < index) from = middle + 1;
    else to = middle;
  }
  return from;
}

/** The ranks with which a rank communicates in groups of a role; null where that is not one group. */
function membersOf(head: Head, rank: number, role: string | null): string | null {
  const groups = head.groups.filter((group) => group.role === role && group.ranks.includes(rank));
  if (groups.length !== 1) return null;
  const { ranks } = groups[0]!;
  return t("{count} ranks: {ranks}", { count: ranks.length, ranks: shortened(spans(ranks), RANKS) });
}

/** A table of what communicated in a task; nothing where that is not known or nothing did. */
export function communicated(head: Head, data: Data, index: number): HTMLElement[] {
  const groups = inGroups(head, data.communication, index);
  if (!groups.length) return [];
  const length = data.tasks.end[index]! - data.tasks.start[index]!;
  const { rank } = head.ranks[rowOf(head, index).rank]!;
  const share = (ns: number): string => (ns ? `${duration(ns)} · ${percent(ns / length)}` : t("none"));
  const columns = [t("group"), t("exposed"), t("hidden"), t("operations")];
  return [
    element("h3", {}, t("communication by group")),
    element(
      "table",
      { class: "groups" },
      element("tr", {}, ...columns.map((name) => element("th", { scope: "col" }, name))),
      ...groups.map(({ role, said, exposed, hidden, operations }) => {
        const members = membersOf(head, rank, role);
        return element(
          "tr",
          {},
          element(
            "th",
            { scope: "row" },
            role === null ? said : `${said} (${role})`,
            ...(members === null ? [] : [element("small", {}, members)]),
          ),
          element("td", { class: "number" }, share(exposed)),
          element("td", { class: "number" }, share(hidden)),
          element("td", {}, shortened(operations.join(", "))),
        );
      }),
    ),
  ];
}
