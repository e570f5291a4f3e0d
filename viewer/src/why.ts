// What is said about idle time: a legend of its causes, and the details of a gap.

import type { Cause, Data, Head } from "./data";
import { short, whose } from "./label";
import { element, list, sinceStep, type Fact } from "./panel";
import { duration, exact, percent } from "./units";

/** A cause's bar as it is drawn in the lanes. */
function swatch({ fill, striped, inherent }: Cause): HTMLElement {
  const made = element("i", { class: striped ? "bar striped" : "bar" });
  made.style.borderColor = fill;
  if (!striped) made.style.background = fill;
  if (inherent) made.style.opacity = "0.5";
  return made;
}

/** The causes that there are with their shares, largest first. */
export function causes(head: Head): HTMLElement[] {
  const present = head.causes.filter(({ share }) => share > 0).sort((one, other) => other.share - one.share);
  if (!present.length) return [];
  const entries = present.map((cause) =>
    element("span", { title: cause.meaning }, swatch(cause), `${cause.name} `, element("b", {}, percent(cause.share))),
  );
  return [element("div", { class: "causes" }, element("span", { class: "hint" }, "idle because of (c)"), ...entries)];
}

function nature(head: Head, { tasks }: Data, task: number): string {
  const kind = head.kinds[tasks.kind[task]].name.replaceAll("_", " ");
  return tasks.microbatch[task] < 0 ? kind : `${kind} of micro-batch ${tasks.microbatch[task]}`;
}

/** All that is known of a gap. @param go shows a task */
export function gapDetails(head: Head, data: Data, index: number, go: (task: number) => void): HTMLElement {
  const { start, end, step, cause, task, root } = data.gaps;
  const { name, meaning } = head.causes[cause[index]];
  const rank = head.gaps.find(({ from, to }) => from <= index && index < to)!.rank;
  const length = end[index] - start[index];
  const target = root[index];
  const origin = whose(head, data.tasks, target);
  const facts: Fact[] = [
    ["why", meaning],
    ["idle", `${duration(length)} (${exact(length)})`],
    ["step", step[index] < 0 ? null : String(step[index])],
    ["rank", `${head.ranks[rank].rank} on ${head.ranks[rank].host}`],
    ["since step began", sinceStep(head, step[index], start[index])],
    ["before", task[index] < 0 ? "the end of the step" : short(head, data.tasks, task[index])],
    ["waited in the end for", target === task[index] ? "no other task" : `${origin}, a ${nature(head, data, target)}`],
  ];
  const button = element("button", { type: "button" }, `show ${origin} (Enter)`);
  button.addEventListener("click", () => go(target));
  return element("div", {}, element("h2", {}, swatch(head.causes[cause[index]]), name), list(facts), button);
}

export function gapTooltip(head: Head, { gaps }: Data, index: number): string {
  const { name, meaning } = head.causes[gaps.cause[index]];
  return `idle ${duration(gaps.end[index] - gaps.start[index])}: ${name}\n${meaning}`;
}
