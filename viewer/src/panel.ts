// What is said above, below and beside the lanes: heading, legends, details of a task.

import type { Arrow } from "./arrows";
import { LEAST_CONTRAST } from "./area";
import type { Scheme } from "./colour";
import { coordinates, rowOf, type Data, type Head } from "./data";
import { button, element, list, shortened, swatch, type Fact } from "./dom";
import { insideFacts, longest, type Inside } from "./kernels";
import { named, whose } from "./label";
import { contrast } from "./light";
import { patternImage } from "./pattern";
import type { Theme } from "./theme";
import { duration, exact, uncertain } from "./units";

const NAME = 120; // letters of a task's name over its details
const HEADING = 240; // letters of a line of the heading

export const RATES = ["makespan", "span", "over_ideal", "no_wait", "excess"] as const;

export function heading(head: Head): HTMLElement {
  const rates = RATES.map((name) =>
    element(
      "div",
      { class: "rate", title: head.definitions[name] ?? "" },
      element("span", { class: "value" }, uncertain(head.overall[name], head.errors[name])),
      element("span", { class: "name" }, name.replace("_", " ")),
    ),
  );
  return element(
    "header",
    {},
    element(
      "div",
      { class: "what" },
      element("h1", {}, shortened(head.title, HEADING)),
      element("p", {}, shortened(head.facts.join(" · "), HEADING)),
      ...schedule(head),
    ),
    element(
      "div",
      { class: "rates", "aria-label": "bubble rates" },
      element("span", { class: "caption" }, "bubble rate"),
      ...rates,
    ),
  );
}

/** What was recognised, and what did not follow it. */
function schedule(head: Head): HTMLElement[] {
  if (head.schedule === null) return [];
  const line = element("p", { class: "schedule" }, head.schedule);
  if (!head.departures.length) return [line];
  const items = head.departures.map((text) => element("li", {}, text));
  const count = items.length === 1 ? "1 departure" : `${items.length} departures`;
  return [
    line,
    element("details", { class: "departures" }, element("summary", {}, count), element("ul", {}, ...items)),
  ];
}

/** The warnings of the run, the first in plain sight. */
export function warnings(head: Head): HTMLElement[] {
  const [first, ...rest] = head.warnings;
  if (first === undefined) return [];
  const line = element("p", {}, element("b", {}, "warning "), shortened(first, 2 * HEADING));
  if (!rest.length) return [element("div", { class: "warnings", role: "status" }, line)];
  const more = element(
    "details",
    {},
    element("summary", {}, `${rest.length} more`),
    element("ul", {}, ...rest.map((text) => element("li", {}, shortened(text)))),
  );
  return [element("div", { class: "warnings", role: "status" }, line, more)];
}

export function notes(head: Head): HTMLElement[] {
  if (!head.notes.length) return [];
  const lines = head.notes.map((text) => element("li", {}, shortened(text)));
  return [element("details", { class: "notes" }, element("summary", {}, "notes"), element("ul", {}, ...lines))];
}

export function legend(head: Head, scheme: Scheme, theme: Theme, phases: boolean, kernels: boolean): HTMLElement {
  const entry = (fill: string, text: string, edge: string | null = null): HTMLElement => {
    const colour = swatch(fill);
    if (edge !== null) colour.style.boxShadow = `inset 0 0 0 1px ${edge}`;
    return element("span", {}, colour, text);
  };
  const phase = (name: "warm-up" | "cool-down", fill: string): HTMLElement => {
    const made = entry(fill, name, theme.dim);
    const colour = made.firstElementChild as HTMLElement;
    colour.style.background = `${patternImage(name, theme.dim)}, ${fill}`;
    return made;
  };
  const grounds =
    phases && head.columns.phases[0]?.length ? [phase("warm-up", theme.warm), phase("cool-down", theme.cool)] : [];
  const pale = head.overlays.length
    ? [
        element(
          "span",
          { class: "hint", title: head.overlays.map(({ detail }) => detail).join("\n") },
          `pale lanes: ${head.overlays.map(({ name }) => name).join(", ")} (i)`,
        ),
      ]
    : [];
  const lines = new Map(scheme.fills.map((fill, code) => [fill, scheme.edges[code]!]));
  const edgeOf = (fill: string): string | null =>
    contrast(fill, theme.idle) < LEAST_CONTRAST ? lines.get(fill)! : null;
  const blocks = scheme.legend.map(([fill, text]) => entry(fill, text, edgeOf(fill)));
  const uses =
    kernels && head.kernels
      ? [
          element("span", { class: "hint" }, "kernels (u):"),
          ...head.kernels.uses.map((use) => entry(theme.dark ? use.dark.fill : use.fill, use.name)),
        ]
      : [];
  return element(
    "div",
    { class: "legend" },
    ...blocks,
    entry(theme.idle, "bubble", theme.dim),
    ...grounds,
    ...pale,
    ...uses,
  );
}

/** What the details of a task say of its kernels, beside what its columns say. */
export interface Unfolding {
  inside: Inside | null; // what ran in it, if that is known
  shown: boolean; // whether the kernels of its rank are
  toggle: () => void;
}

/** All that is known of a task. @param go shows another */
export function details(
  head: Head,
  data: Data,
  index: number,
  arrows: Arrow[],
  go: (task: number) => void,
  unfolding: Unfolding,
): HTMLElement {
  const { start, end, step, stage, chunk, microbatch, pair, pairChunk, peer, lead, kind, name } = data.tasks;
  const row = rowOf(head, index);
  const length = end[index]! - start[index]!;
  const place = head.ranks[row.rank]!;
  const known = (value: number): string | null => (value < 0 ? null : String(value));
  const measured = row.lane !== "ideal" && row.lane !== "whatif";
  const facts: Fact[] = [
    ["duration", `${duration(length)} (${exact(length)})`],
    ["usual here", usual(head, data, index)],
    ["micro-batch", known(microbatch[index]!)],
    [
      "overlapped with",
      pair[index]! < 0
        ? null
        : `micro-batch ${pair[index]}${pairChunk[index]! < 0 ? "" : `, chunk ${pairChunk[index]}`}`,
    ],
    ["step", known(step[index]!)],
    ["stage", known(stage[index]!)],
    ["chunk", known(chunk[index]!)],
    ["rank", `${place.rank} on ${shortened(place.host)}`],
    ["coordinates", coordinates(place)],
    ["lane", row.lane],
    ["peer rank", known(peer[index]!)],
    ["fed by", tasks(arrows.filter(([, target]) => target === index).map(([source]) => source))],
    ["feeds", tasks(arrows.filter(([source]) => source === index).map(([, target]) => target))],
    ["since step began", sinceStep(head, step[index]!, start[index]!)],
    ["start", utc(head.origin, start[index]!)],
    ["end", utc(head.origin, end[index]!)],
    ["launched by host", lead[index]! >= 0 ? utc(head.origin, start[index]! - lead[index]!) : null],
    ["launched before", lead[index]! >= 0 ? duration(lead[index]!) : null],
    ["clock", place.off ? `±${duration(place.off)} against the first host` : null],
    ["name in the trace", shortened(head.names[name[index]!]!)],
  ];
  const { name: title, fill, dark } = head.kinds[kind[index]!]!;
  const heading = named(head, data.tasks, index)
    ? shortened(head.names[name[index]!]!, NAME)
    : title.replaceAll("_", " ");
  const made = element("div", {}, element("h2", {}, swatch(fill, dark.fill), heading));
  if (measured) made.append(...ranInside(head, data, index, row.rank, unfolding));
  made.append(list(facts));
  return made;

  function tasks(others: number[]): Node | null {
    if (!others.length) return null;
    return element(
      "span",
      {},
      ...others.map((task) => button(whose(head, data.tasks, task), "show this task", () => go(task))),
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
  if (head.kernels && inside) made.push(...longest(head.kernels, inside));
  if (head.kernels && head.kernel_rows.some((row) => row.rank === rank)) {
    made.push(button(shown ? "fold kernels (u)" : "kernels (u)", "every kernel under the rank, by stream", toggle));
  } else if (head.no_kernels !== null) made.push(hinted(head.no_kernels));
  return made.length ? [element("div", { class: "inside" }, ...made)] : [];
}

/** A sentence with commands between backticks. */
function hinted(text: string): HTMLElement {
  const parts = text.split("`").map((part, index) => (index % 2 ? element("code", {}, part) : part));
  return element("p", { class: "hint" }, ...parts);
}

/** The median of tasks of the same kind and stage, and how this one compares. */
function usual(head: Head, { tasks }: Data, index: number): string | null {
  const stage = tasks.stage[index]! < 0 ? null : tasks.stage[index];
  const like = head.spread.find((spread) => spread.kind === tasks.kind[index] && spread.stage === stage);
  if (!like?.middle) return null;
  const ratio = (tasks.end[index]! - tasks.start[index]!) / like.middle;
  return `${duration(like.middle)}; this is ${ratio.toFixed(2)} of it`;
}

export function sinceStep(head: Head, step: number, time: number): string | null {
  const began = head.steps.find((one) => one.step === step);
  return began ? duration(time - began.start) : null;
}

/** Absolute time in ns: the origin exceeds what a number holds, so it is added as a BigInt. */
export function utc(origin: string, offset: number): string {
  return `${BigInt(origin) + BigInt(Math.round(offset))} ns`;
}
