// What is said above, below and beside the lanes: heading, legends, details of a task.

import type { Arrow } from "./arrows";
import { communicated } from "./communication";
import { coordinates, rowOf, usualLength, type Data, type Head, type Rank, type Tasks } from "./data";
import { button, element, list, shortened, swatch, withCommands, type Fact } from "./dom";
import { counterpartFacts } from "./difference";
import { insideFacts, longest } from "./kernels";
import { named, whose } from "./label";
import { strip } from "./strip";
import { duration, exact } from "./units";
import type { Inside } from "./schema";
import { waitingSaid } from "./waits";
import { nameOf, t } from "./words";

const NAME = 120; // letters of a task's name over its details
const HEADING = 240; // letters of a line of the heading

/** The warnings of the run, the first in plain sight. */
export function warnings(head: Head): HTMLElement[] {
  const [first, ...rest] = head.warnings;
  if (first === undefined) return [];
  const line = element("p", {}, element("b", {}, t("warning ")), ...withCommands(shortened(first, 2 * HEADING)));
  if (!rest.length) return [element("div", { class: "warnings", role: "status" }, line)];
  const more = element(
    "details",
    {},
    element("summary", {}, t("{count} more", { count: rest.length })),
    element("ul", {}, ...rest.map((text) => element("li", {}, ...withCommands(shortened(text))))),
  );
  return [element("div", { class: "warnings", role: "status" }, line, more)];
}

export function notes(head: Head): HTMLElement {
  return element(
    "ul",
    { class: "notes" },
    ...head.notes.map((text) => element("li", {}, ...withCommands(shortened(text)))),
  );
}

/** Which rank it is, and on which host if the trace says. */
function where({ rank, host }: Rank): string {
  return host === UNKNOWN ? String(rank) : t("{rank} on {host}", { rank, host: shortened(host) });
}

const UNKNOWN = "unknown" as const; // the host of ranks whose trace names none

/** What the details of a task say of its kernels, beside what its columns say. */
export interface Unfolding {
  inside: Inside | null; // what ran in it, if that is known
  shown: boolean; // whether the kernels of its rank are
  toggle: () => void;
}

/**
 * All that is known of a task.
 *
 * @param go shows another
 * @param goFar shows one that is not here, by its number among all of the run
 * @param off how much later a task of another run is than where its step would begin with this run's
 */
export function details(
  head: Head,
  data: Data,
  index: number,
  arrows: Arrow[],
  go: (task: number) => void,
  goFar: (id: number) => void,
  unfolding: Unfolding,
  off = 0,
): HTMLElement {
  const { start, end, step, stage, chunk, microbatch, pair, pairChunk, peer, lead, kind, name } = data.tasks;
  const row = rowOf(head, index);
  const length = end[index]! - start[index]!;
  const place = head.ranks[row.rank]!;
  const known = (value: number): string | null => (value < 0 ? null : String(value));
  const measured = row.lane !== "ideal" && row.lane !== "whatif";
  const other = row.lane === "against";
  const facts: Fact[] = [
    [t("run"), head.against ? (other ? "B" : "A") : null],
    [t("duration"), `${duration(length)} (${exact(length)})`],
    [t("waiting"), waitingSaid(head, data, index) || null],
    [t("certainty"), inferred(head, data.tasks, index)],
    ...(head.against && (other || row.lane === "compute") ? counterpartFacts(data.tasks, index, go, goFar) : []),
    [t("usual here"), other ? null : usual(head, data, index)],
    [t("micro-batch"), known(microbatch[index]!)],
    [
      t("overlapped with"),
      pair[index]! < 0
        ? null
        : pairChunk[index]! < 0
          ? t("micro-batch {microbatch}", { microbatch: pair[index]! })
          : t("micro-batch {microbatch}, chunk {chunk}", { microbatch: pair[index]!, chunk: pairChunk[index]! }),
    ],
    [t("step"), known(step[index]!)],
    [t("stage"), known(stage[index]!)],
    [t("chunk"), known(chunk[index]!)],
    [t("rank"), where(place)],
    [t("coordinates"), coordinates(place)],
    [t("lane"), nameOf(row.lane)],
    [t("peer rank"), known(peer[index]!)],
    [t("fed by"), tasks(arrows.filter(([, target]) => target === index).map(([source]) => source))],
    [t("feeds"), tasks(arrows.filter(([source]) => source === index).map(([, target]) => target))],
    [t("since step began"), sinceStep(head, step[index]!, start[index]! - off)],
    [t("start"), other ? null : utc(head.origin, start[index]!)],
    [t("end"), other ? null : utc(head.origin, end[index]!)],
    [t("launched by host"), lead[index]! >= 0 && !other ? utc(head.origin, start[index]! - lead[index]!) : null],
    [t("launched before"), lead[index]! >= 0 ? duration(lead[index]!) : null],
    [t("clock"), place.off ? t("±{time} against the first host", { time: duration(place.off) }) : null],
    [t("name in the trace"), shortened(head.names[name[index]!]!)],
  ];
  const { name: title, fill, dark } = head.kinds[kind[index]!]!;
  const heading = named(head, data.tasks, index) ? shortened(head.names[name[index]!]!, NAME) : nameOf(title);
  const made = element("div", { class: "details" }, element("h2", {}, swatch(fill, dark.fill), heading));
  if (measured) made.append(...ranInside(head, data, index, row.rank, unfolding));
  made.append(list(facts), ...strip(head, data, index, go));
  if (head.inferred?.way && (data.tasks.certainty?.[index] ?? -1) >= 0) made.append(hinted(head.inferred.way));
  return made;

  function tasks(others: number[]): Node | null {
    if (!others.length) return null;
    return element(
      "span",
      {},
      ...others.map((task) => button(whose(head, data.tasks, task), t("show this task"), () => go(task))),
    );
  }
}

/** What the device did in a task: shares, the longest kernels, and a way to see all. */
function ranInside(
  head: Head,
  data: Data,
  index: number,
  rank: number,
  { inside, shown, toggle }: Unfolding,
): HTMLElement[] {
  const made: HTMLElement[] = [];
  const facts = insideFacts(data.tasks, index, inside);
  if (facts.length) made.push(list(facts));
  made.push(...communicated(head, data, index));
  if (head.kernels && inside) made.push(...longest(head.kernels, inside));
  if (head.kernels && head.kernel_rows.some((row) => row.rank === rank)) {
    made.push(
      button(shown ? t("fold kernels (u)") : t("kernels (u)"), t("every kernel under the rank, by stream"), toggle),
    );
  } else if (head.no_kernels !== null) made.push(hinted(head.no_kernels));
  return made.length ? [element("div", { class: "inside" }, ...made)] : [];
}

/** How certain it is that a task is what it was inferred to be, and by what; null where the trace states it. */
function inferred(head: Head, { certainty }: Tasks, index: number): string | null {
  const percent = certainty?.[index] ?? -1;
  if (percent < 0) return null;
  return head.inferred
    ? t("inferred, {percent} % certain: {how}", { percent, how: shortened(head.inferred.how) })
    : t("inferred, {percent} % certain", { percent });
}

function hinted(text: string): HTMLElement {
  return element("p", { class: "hint" }, ...withCommands(text));
}

/** The median of tasks of the same kind and stage, and how this one compares. */
function usual(head: Head, { tasks }: Data, index: number): string | null {
  const middle = usualLength(head.spread)(tasks.kind[index]!, tasks.stage[index]!);
  if (isNaN(middle)) return null;
  const ratio = (tasks.end[index]! - tasks.start[index]!) / middle;
  return t("{time}; this is {ratio} times it", { time: duration(middle), ratio: ratio.toFixed(2) });
}

export function sinceStep(head: Head, step: number, time: number): string | null {
  const began = head.steps.find((one) => one.step === step);
  return began ? duration(time - began.start) : null;
}

/** Absolute time in ns: the origin exceeds what a number holds, so it is added as a BigInt. */
export function utc(origin: string, offset: number): string {
  return `${BigInt(origin) + BigInt(Math.round(offset))} ns`;
}
