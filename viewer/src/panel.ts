// Everything on the page that is text: heading, legend, details, help.

import type { Arrow } from "./arrows";
import { rowOf, type Data, type Head } from "./data";
import { long, whose } from "./label";
import { duration, exact, percent, uncertain } from "./units";

type Child = Node | string;

/** Make an element. Text always goes in as text, so no name in a trace can become markup. */
export function element(tag: string, attributes: Record<string, string> = {}, ...children: Child[]): HTMLElement {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function heading(head: Head): HTMLElement {
  const rates = (["makespan", "span", "over_ideal", "ideal", "excess"] as const).map((name) =>
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
    element("div", { class: "what" }, element("h1", {}, head.title), element("p", {}, head.facts.join(" · ")), ...schedule(head)),
    element("div", { class: "rates", "aria-label": "bubble rates" }, element("span", { class: "caption" }, "bubble rate"), ...rates),
  );
}

/** What was recognised, and what did not follow it. */
function schedule(head: Head): HTMLElement[] {
  if (head.schedule === null) return [];
  const line = element("p", { class: "schedule" }, head.schedule);
  if (!head.departures.length) return [line];
  const items = head.departures.map((text) => element("li", {}, text));
  const count = items.length === 1 ? "1 departure" : `${items.length} departures`;
  return [line, element("details", { class: "departures" }, element("summary", {}, count), element("ul", {}, ...items))];
}

export function legend(head: Head, used: Set<number>): HTMLElement {
  const entries = head.kinds.flatMap((kind, index) => {
    if (!used.has(index)) return [];
    const swatch = element("i", {});
    swatch.style.background = kind.fill;
    return [element("span", {}, swatch, kind.name.replaceAll("_", " "))];
  });
  const idle = element("span", {}, element("i", { class: "idle" }), "bubble");
  const ideal = head.rows.some((row) => row.lane === "ideal")
    ? [element("span", { class: "hint" }, "pale lanes: the same tasks without waiting (i)")]
    : [];
  return element("div", { class: "legend" }, ...entries, idle, ...ideal);
}

export function notes(head: Head): HTMLElement[] {
  const lines = [
    ...head.warnings.map((text) => element("li", { class: "warning" }, text)),
    ...head.notes.map((text) => element("li", {}, text)),
  ];
  if (!lines.length) return [];
  const count = head.warnings.length;
  const title = count ? `${count} warning${count > 1 ? "s" : ""}` : "notes";
  return [element("details", { class: "notes" }, element("summary", {}, title), element("ul", {}, ...lines))];
}

/** All that is known of a task. */
export function details(head: Head, data: Data, index: number, arrows: Arrow[]): HTMLElement {
  const { start, end, step, stage, chunk, microbatch, peer, busy, lead, kind, name } = data.tasks;
  const row = rowOf(head, index);
  const length = end[index] - start[index];
  const place = head.ranks[row.rank];
  const known = (value: number): string | null => (value < 0 ? null : String(value));
  const others = (tasks: number[]): string | null =>
    tasks.length ? tasks.map((task) => whose(head, data.tasks, task)).join(", ") : null;
  const facts: Fact[] = [
    ["duration", `${duration(length)} (${exact(length)})`],
    ["micro-batch", known(microbatch[index])],
    ["step", known(step[index])],
    ["stage", known(stage[index])],
    ["chunk", known(chunk[index])],
    ["rank", `${place.rank} on ${place.host}`],
    ["lane", row.lane],
    ["peer rank", known(peer[index])],
    ["fed by", others(arrows.filter(([, target]) => target === index).map(([source]) => source))],
    ["feeds", others(arrows.filter(([source]) => source === index).map(([, target]) => target))],
    ["since step began", sinceStep(head, step[index], start[index])],
    ["start", utc(head.origin, start[index])],
    ["kernels running", busy[index] >= 0 && length > 0 ? percent(busy[index] / length) : null],
    ["launched before", lead[index] >= 0 ? duration(lead[index]) : null],
    ["name in the trace", head.names[name[index]]],
  ];
  const { name: title, fill } = head.kinds[kind[index]];
  const swatch = element("i", {});
  swatch.style.background = fill;
  return element("div", {}, element("h2", {}, swatch, title.replaceAll("_", " ")), list(facts));
}

export type Fact = [name: string, value: string | null];

/** Facts one below the other, without those that are unknown. */
export function list(facts: Fact[]): HTMLElement {
  const made = element("dl", {});
  for (const [name, value] of facts) {
    if (value !== null) made.append(element("dt", {}, name), element("dd", {}, value));
  }
  return made;
}

export function sinceStep(head: Head, step: number, time: number): string | null {
  const began = head.steps.find((one) => one.step === step);
  return began ? duration(time - began.start) : null;
}

export function tooltip(head: Head, { tasks }: Data, index: number): string {
  return long(head, tasks, index);
}

/** Absolute start in ns: the origin exceeds what a number holds, so it is added as a BigInt. */
function utc(origin: string, offset: number): string {
  return `${BigInt(origin) + BigInt(Math.round(offset))} ns`;
}

const KEYS: [string, string][] = [
  ["wheel, w s", "zoom"],
  ["drag, shift + wheel, a d", "move in time"],
  ["wheel over the titles", "scroll the ranks"],
  ["click a task or a gap", "details"],
  ["click a step", "show that step"],
  ["n p", "next, previous step"],
  ["f or 0", "show everything"],
  ["i", "show or hide the ideal"],
  ["c", "show or hide causes of idle time"],
  ["Enter", "go to what a gap waited for"],
  ["l", "show or hide arrows to what a task feeds"],
  ["Escape", "close, deselect"],
];

export function help(): HTMLElement {
  return element("div", { class: "help", role: "dialog", "aria-label": "keys", hidden: "" }, list(KEYS));
}
