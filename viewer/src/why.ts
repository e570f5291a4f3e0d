// What is said about idle time: a legend of its causes, and the details of a gap.

import { coordinates, extentAt, type Cause, type Data, type Head } from "./data";
import { either, element, list, type Fact } from "./dom";
import { short, whose } from "./label";
import { sinceStep } from "./panel";
import { patternImage } from "./pattern";
import { duration, exact, percent } from "./units";
import type { Idle } from "./schema";
import { nameOf, t } from "./words";

/** A cause's bar as it is drawn in the lanes. */
export function causeSwatch({ pattern, fill, dark }: Cause): HTMLElement {
  const made = element("i", { class: "bar" });
  made.style.background = patternImage(pattern, either(fill, dark));
  return made;
}

/** Whether it is known why ranks are idle in what is in sight; nothing where it is. */
export function idleSaid(idle: Idle | "soon"): string {
  if (idle === "soon") return t("working out why ranks are idle here…");
  if (idle === "closer") return t("why ranks are idle is not known of all these steps: zoom in, and it is worked out");
  if (idle === "unknown") return t("why ranks are idle here is not known, as the dataset cannot be written to");
  return "";
}

/** The causes that there are with their shares, largest first. */
export function causes(head: Head): HTMLElement[] {
  const present = head.causes.filter(({ share }) => share > 0).sort((one, other) => other.share - one.share);
  if (!present.length) return [];
  const entries = present.map((cause) =>
    element(
      "span",
      { title: cause.meaning },
      causeSwatch(cause),
      `${nameOf(cause.name)} `,
      element("b", {}, percent(cause.share)),
    ),
  );
  return [element("div", { class: "causes" }, ...entries)];
}

function nature(head: Head, { tasks }: Data, task: number): string {
  const kind = nameOf(head.kinds[tasks.kind[task]!]!.name);
  return tasks.microbatch[task]! < 0
    ? kind
    : t("{kind} of micro-batch {microbatch}", { kind, microbatch: tasks.microbatch[task]! });
}

/** All that is known of a gap. @param go shows what it waited for in the end */
export function gapDetails(head: Head, data: Data, index: number, go: () => void): HTMLElement {
  const { start, end, step, cause, task, root, root_id } = data.gaps;
  const { name, meaning } = head.causes[cause[index]!]!;
  const { rank } = head.gaps[extentAt(head.gaps, index)]!;
  const length = end[index]! - start[index]!;
  const target = root[index]!;
  const known = target >= 0;
  const origin = known ? whose(head, data.tasks, target) : t("a task out of sight");
  const facts: Fact[] = [
    [t("why"), meaning],
    [t("idle"), `${duration(length)} (${exact(length)})`],
    [t("step"), step[index]! < 0 ? null : String(step[index])],
    [t("rank"), t("{rank} on {host}", { rank: head.ranks[rank]!.rank, host: head.ranks[rank]!.host })],
    [t("coordinates"), coordinates(head.ranks[rank]!)],
    [t("since step began"), sinceStep(head, step[index]!, start[index]!)],
    [t("before"), task[index]! < 0 ? t("the end of the step") : short(head, data.tasks, task[index]!)],
    [
      t("waited in the end for"),
      target === task[index]
        ? t("no other task")
        : known
          ? t("{task}, a {nature}", { task: origin, nature: nature(head, data, target) })
          : origin,
    ],
  ];
  const made = element(
    "div",
    { class: "details" },
    element("h2", {}, causeSwatch(head.causes[cause[index]!]!), nameOf(name)),
    list(facts),
  );
  if (known || root_id) {
    const button = element("button", { type: "button" }, t("show {task} (Enter)", { task: origin }));
    button.addEventListener("click", () => go());
    made.append(button);
  }
  return made;
}

export function gapTooltip(head: Head, { gaps }: Data, index: number): string {
  const { name, meaning } = head.causes[gaps.cause[index]!]!;
  return `${t("idle {time}: {cause}", { time: duration(gaps.end[index]! - gaps.start[index]!), cause: nameOf(name) })}\n${meaning}`;
}
