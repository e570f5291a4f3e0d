// What devices spent their time on: of each rank and step, and what they lost time to, as `bubblescope report` says it.

import { ofDevices, type Data, type Devices, type Head, type KernelUse, type Rank } from "./data";
import { button, element, swatch, withCommands, type Fact } from "./dom";
import type { Range } from "./state";
import { duration, percent } from "./units";
import { nameOf, t } from "./words";

const MOST_ROWS = 48; // ranks or steps that a table has
const IDLE = "idle" as const; // what all classes of idle time together are called
const COMMUNICATION = 1; // which of the uses that is
const WAITING = "of it waiting for later ranks" as const;
const LEAST = 0.001; // share of the time below which nothing is spoken of

const sum = (times: readonly number[]): number => times.reduce((all, time) => all + time, 0);

/** The shares of each of the uses, and then of idle time. */
export function sharesOf({ uses }: Devices, times: readonly number[]): number[] {
  const whole = sum(times) || 1;
  return [...times.slice(0, uses.length), sum(times.slice(uses.length))].map((time) => time / whole);
}

/** What is busy in its colours, and what is left for idle time. */
function bar(devices: Devices, shares: number[]): HTMLElement {
  const parts = devices.uses.map(({ fill, dark }, use) => {
    const part = swatch(fill, dark.fill);
    part.style.width = `${100 * shares[use]!}%`;
    return part;
  });
  return element("span", { class: "spent" }, ...parts);
}

/** Something that a step is spent on. */
export interface Spent {
  name: string;
  time: number;
  share: number;
  use?: KernelUse; // what is busy with it
  part?: true; // of what stands before it, at least
}

/** What a step is spent on: each use, all that is idle, and its classes, most first; without what is hardly any. */
export function stepTimes({ uses, idle, step, ranks, waits }: Devices): { all: Spent[]; idle: Spent[] } {
  const whole = sum(step) || 1;
  const rest = step.slice(uses.length);
  const spent = (name: string, time: number): Spent => ({ name, time, share: time / whole });
  const worth = ({ share }: Spent): boolean => share >= LEAST;
  const all = [...uses.map((use, at) => ({ ...spent(use.name, step[at]!), use })), spent(IDLE, sum(rest))];
  const waiting = sum(waits.map((rank) => rank.waits)) / Math.max(1, ranks.length);
  all.splice(COMMUNICATION + 1, 0, { ...spent(WAITING, waiting * whole), part: true });
  const classes = idle.map((name, at) => spent(name, rest[at]!)).sort((one, other) => other.time - one.time);
  return { all: all.filter(worth), idle: classes.filter(worth) };
}

/** A part of the summary. */
export type Part = [title: string, hint: string, ...content: HTMLElement[]];

/** Of ranks and of steps what each spent, and what time is lost to. @param go shows a rank, or a step, by index */
export function spentByDevices(
  { devices, ranks, steps }: Head,
  go: (rank: number | null, step: number | null) => void,
): Part[] {
  if (!devices) return [];
  const lengthOf = (step: number): string => {
    const { phase } = steps[step]!;
    if (phase === null) return "";
    return devices.open.includes(step) ? t("{time}, open", { time: duration(phase) }) : duration(phase);
  };
  return [
    ...listed(devices, devices.ranks, {
      title: t("Devices"),
      hint: t("from its first operation to its last, in %"),
      heads: [t("rank"), t("mostly idle for")],
      name: (rank) => String(ranks[rank]!.rank),
      note: (_, times) => mostlyIdle(devices, times),
      show: (rank) => go(rank, null),
    }),
    ...(ofDevices({ ranks }) ? stepsOf() : []),
    ...cameLate(devices, ranks, (rank) => go(rank, null)),
    ...lost(devices),
  ];

  function stepsOf(): Part[] {
    return listed(devices!, devices!.steps, {
      title: t("Steps of devices"),
      hint: t("from its start to the next one's, in %"),
      heads: [t("step"), ""],
      name: (step) => String(steps[step]!.step),
      note: lengthOf,
      show: (step) => go(null, step),
    });
  }
}

/** Who waits for whom in collectives: the latest ranks where they are many. */
function cameLate({ waits }: Devices, ranks: Rank[], show: (rank: number) => void): Part[] {
  if (!waits.length) return [];
  const latest = [...waits].sort((one, other) => other.late - one.late).slice(0, MOST_ROWS);
  const rows = latest
    .sort((one, other) => one.rank - other.rank)
    .map((one) => {
      const name = button(String(ranks[one.rank]!.rank), t("show it"), () => show(one.rank));
      const numbers = [one.collectives, one.last, (100 * one.waits).toFixed(1), (100 * one.late).toFixed(1)];
      return element(
        "tr",
        {},
        element("th", { scope: "row" }, name),
        ...numbers.map((number) => element("td", { class: "number" }, String(number))),
      );
    });
  const heads = [t("collectives"), t("last in"), t("waits"), t("late")];
  const head = element(
    "tr",
    {},
    element("th", { scope: "col" }, t("rank")),
    ...heads.map((name) => element("th", { scope: "col", class: "number" }, name)),
  );
  const hint = [t("waiting for others, and coming later than half of the ranks, at least, in %")];
  if (latest.length < waits.length)
    hint.push(t("the latest {shown} of {count}", { shown: latest.length, count: waits.length }));
  const table = element("table", { class: "budget" }, element("thead", {}, head), element("tbody", {}, ...rows));
  return [[t("Collectives"), hint.join(" · "), table]];
}

/** What a table of ranks or steps says, each by its index. */
interface Listed {
  title: string;
  hint: string;
  heads: [first: string, last: string];
  name: (index: number) => string;
  note: (index: number, times: number[]) => string;
  show: (index: number) => void;
}

/** A line for each of some ranks or steps, the idlest where they are many: a bar, shares, and a note. */
function listed(devices: Devices, all: (number[] | null)[], { title, hint, heads, name, note, show }: Listed): Part[] {
  const known = all.flatMap((times, index) => (times ? [{ index, times, shares: sharesOf(devices, times) }] : []));
  if (!known.length) return [];
  const idlest = [...known].sort((one, other) => other.shares.at(-1)! - one.shares.at(-1)!).slice(0, MOST_ROWS);
  const shown = idlest.sort((one, other) => one.index - other.index);
  const rows = shown.map(({ index, times, shares }) =>
    element(
      "tr",
      {},
      element(
        "th",
        { scope: "row" },
        button(name(index), t("show it"), () => show(index)),
      ),
      element("td", {}, bar(devices, shares)),
      ...shares.map((share) => element("td", { class: "number" }, (100 * share).toFixed(1))),
      element("td", { class: "dim" }, note(index, times)),
    ),
  );
  const uses = devices.uses.map(({ name, fill, dark }) => [swatch(fill, dark.fill), nameOf(name)]);
  const head = element(
    "tr",
    {},
    element("th", { scope: "col" }, heads[0]),
    element("td", {}),
    ...[...uses, [t("idle")]].map((parts) => element("th", { scope: "col", class: "number" }, ...parts)),
    element("th", { scope: "col" }, heads[1]),
  );
  const some =
    shown.length < known.length ? t("the {shown} idlest of {count}", { shown: shown.length, count: known.length }) : "";
  const table = element("table", { class: "budget" }, element("thead", {}, head), element("tbody", {}, ...rows));
  return [[title, [hint, some].filter(Boolean).join(" · "), element("div", { class: "scroll" }, table)]];
}

/** The class of idle time of which there is most; empty without any. */
function mostlyIdle({ uses, idle }: Devices, times: number[]): string {
  const own = times.slice(uses.length);
  const most = Math.max(0, ...own);
  return most > 0 ? nameOf(idle[own.indexOf(most)]!) : "";
}

/** What time goes to that is not computing, and of which time nobody knows. */
function lost({ losses, untold }: Devices): Part[] {
  if (!losses.length && !untold.length) return [];
  const rows = losses.map(({ name, detail, time, share }) =>
    element(
      "tr",
      {},
      element("td", { class: "number" }, duration(time)),
      element("td", { class: "number" }, percent(share)),
      element("td", {}, nameOf(name), ...(detail ? [" ", element("span", { class: "dim" }, detail)] : [])),
    ),
  );
  const unknown = untold.map((text) => element("p", {}, ...withCommands(text)));
  return [
    [t("Where devices lose time"), t("all of them, over the whole run"), element("table", {}, ...rows), ...unknown],
  ];
}

/**
 * What devices did in the tasks that are wholly in a stretch; null where that is not known.
 *
 * @param ranks by index
 */
export function spentInTasks(head: Head, data: Data, { start, end }: Range, ranks: readonly number[]): Fact[] | null {
  const { computing, communicating, copying } = data.tasks;
  if (!head.devices || !computing || !communicating || !copying || data.tasks.id) return null;
  const wanted = new Set(ranks);
  const rows = head.rows.filter(({ lane, rank }) => lane === "compute" && wanted.has(rank));
  if (rows.some(({ row }) => row > 0)) return null; // tasks of several rows are there at once: nothing adds up
  const times = head.devices.uses.map(() => 0);
  let [whole, count] = [0, 0];
  for (const { from, to } of rows) {
    for (let task = from; task < to; task++) {
      if (data.tasks.start[task]! < start || data.tasks.end[task]! > end || computing[task]! < 0) continue;
      whole += data.tasks.end[task]! - data.tasks.start[task]!;
      count++;
      [computing, communicating, copying].forEach((column, use) => (times[use]! += column[task]!));
    }
  }
  if (!whole) return null;
  const share = (time: number): string => `${duration(time)} · ${percent(time / whole)}`;
  return [
    [t("tasks"), count.toLocaleString("en-US")],
    ...head.devices.uses.map(({ name, fill, dark }, use): Fact => {
      const value = element("span", {}, swatch(fill, dark.fill), share(times[use]!));
      return [nameOf(name), value];
    }),
    [t("idle"), share(whole - sum(times))],
  ];
}
