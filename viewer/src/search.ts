// Finding tasks: "rank:3 kind:B mb:7", each word one condition, all of which must hold.

import { changeOf } from "./against";
import type { Data, Head, Tasks } from "./data";

export const EXAMPLE = "rank:3 kind:B mb:7 step:2 stage:1 chunk:0 lane:comm dur>5ms name";

// Micro has a sign of its own, and some keyboards write the Greek letter instead.
const UNITS: Record<string, number> = { ns: 1, us: 1e3, "\u00b5s": 1e3, "\u03bcs": 1e3, ms: 1e6, s: 1e9 };
const NUMBERED: Record<string, "microbatch" | "step" | "stage" | "chunk" | "peer"> = {
  mb: "microbatch",
  microbatch: "microbatch",
  step: "step",
  stage: "stage",
  chunk: "chunk",
  peer: "peer",
};

type Test = (task: number) => boolean;
interface Condition {
  row?: (row: Head["rows"][number]) => boolean;
  task?: Test;
}

/** Why a query cannot be answered. */
export class QueryError extends Error {}

/**
 * Tasks that a query is about, those that were measured only, in the order of the page.
 *
 * Words: `rank:`, `kind:` (short as on the blocks or long), `mb:`, `step:`, `stage:`, `chunk:`, `peer:`,
 * `lane:`, `host:`, `dur>`, `dur>=`, `dur<` and `dur<=` with a unit, and anything else a part of the name in the trace. Numbers may be
 * lists and ranges: `mb:1,4-6`.
 */
export function find(query: string, head: Head, { tasks }: Data): Int32Array {
  const conditions = words(query).map((word) => condition(word, head, tasks));
  const rows = conditions.flatMap(({ row }) => row ?? []);
  const tests = conditions.flatMap(({ task }) => task ?? []);
  const found: number[] = [];
  if (!conditions.length) return Int32Array.from(found);
  for (const row of head.rows) {
    if (row.lane === "ideal" || row.lane === "whatif" || !rows.every((holds) => holds(row))) continue;
    for (let task = row.from; task < row.to; task++) if (tests.every((holds) => holds(task))) found.push(task);
  }
  return Int32Array.from(found);
}

function words(query: string): string[] {
  return query.match(/(?:[^\s"]|"[^"]*")+/g)?.map((word) => word.replaceAll('"', "")) ?? [];
}

function condition(word: string, head: Head, tasks: Tasks): Condition {
  const lasting = /^dur(?:ation)?([<>])(=?)(\d+(?:\.\d+)?)(ns|us|\u00b5s|\u03bcs|ms|s)?$/i.exec(word);
  if (lasting) {
    const [, sign, equal, number, unit] = lasting;
    const limit = Number(number) * UNITS[(unit ?? "ns").toLowerCase()]!;
    const length = (task: number): number => tasks.end[task]! - tasks.start[task]!;
    return { task: (task) => (length(task) === limit ? equal !== "" : length(task) > limit === (sign === ">")) };
  }
  const changed = /^(gained|lost)([<>])(\d+(?:\.\d+)?)(ns|us|\u00b5s|\u03bcs|ms|s)$/i.exec(word);
  if (changed) {
    const [, way, sign, number, unit] = changed as unknown as [string, string, string, string, string];
    if (!tasks.like) throw new QueryError(`${way}: wants a page of two runs`);
    const [limit, towards] = [Number(number) * UNITS[unit.toLowerCase()]!, way.toLowerCase() === "lost" ? 1 : -1];
    return {
      task: (task) => {
        const change = (changeOf(tasks, task) ?? 0) * towards; // what has no like has neither gained nor lost
        return change > 0 && (sign === ">" ? change > limit : change < limit);
      },
    };
  }
  const at = word.indexOf(":");
  const [field, value] = at < 0 ? ["name", word] : [word.slice(0, at).toLowerCase(), word.slice(at + 1)];
  if (field === "rank") {
    const wanted = numbers(value, field);
    return { row: (row) => wanted(head.ranks[row.rank]!.rank) };
  }
  if (field === "host") return { row: (row) => head.ranks[row.rank]!.host.includes(value) };
  if (field === "lane") return { row: (row) => row.lane === value };
  if (field === "kind") {
    const named = head.kinds.map(
      ({ name, short }) => value === short || name === value || name.replaceAll("_", " ") === value,
    );
    if (!named.includes(true)) throw new QueryError(`no kind is called ${value}`);
    return { task: (task) => named[tasks.kind[task]!]! };
  }
  if (Object.hasOwn(NUMBERED, field)) {
    const [wanted, column] = [numbers(value, field), tasks[NUMBERED[field]!]];
    return { task: (task) => wanted(column[task]!) };
  }
  const text = (field === "name" ? value : word).toLowerCase();
  const named = head.names.map((name) => name.toLowerCase().includes(text));
  return { task: (task) => named[tasks.name[task]!]! };
}

/** "3", "1,4-6": which numbers are meant. */
function numbers(text: string, field: string): (value: number) => boolean {
  const spans = text.split(",").map((part) => {
    const parsed = /^(\d+)(?:-(\d+))?$/.exec(part.trim());
    if (!parsed) throw new QueryError(`${field}: wants numbers, such as ${field}:3 or ${field}:1,4-6`);
    return [Number(parsed[1]), Number(parsed[2] ?? parsed[1])] as const;
  });
  return (value) => spans.some(([least, most]) => least <= value && value <= most);
}
