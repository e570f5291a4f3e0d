// What is said about a stretch that was selected.

import { ofDevices, type Head } from "./data";
import { element, list, swatch, type Fact } from "./dom";
import type { Range } from "./state";
import { duration, exact, percent } from "./units";
import { causeSwatch } from "./why";
import type { Totals } from "./schema";
import { nameOf, t } from "./words";

/** @param inside what devices did in tasks, if that is known */
export function rangeDetails(head: Head, range: Range, found: Totals, inside: Fact[] | null = null): HTMLElement {
  const length = range.end - range.start;
  const devices = ofDevices(head); // which also idle inside of tasks
  const share = (value: number): string =>
    `${duration(value)} · ${percent(found.spanned ? value / found.spanned : null)}`;
  const facts: Fact[] = [
    [t("length"), `${duration(length)} (${exact(length)})`],
    [t("ranks"), range.ranks ? named(head, range.ranks) : t("all {count} that are shown", { count: found.ranks })],
    [devices ? t("in tasks") : t("busy"), share(found.busy)],
    [devices ? t("outside of tasks") : t("idle"), share(found.idle)],
  ];
  const explained = found.causes.reduce((sum, value) => sum + value, 0);
  const causes: Fact[] = head.causes.flatMap((cause, index): Fact[] =>
    found.causes[index] ? [[nameOf(cause.name), labelled(causeSwatch(cause), share(found.causes[index]))]] : [],
  );
  // Outside the pipeline's phases no cause is known, nor where a run has no ledger.
  const rest = found.idle - explained;
  if (found.unexplained) causes.push([t("outside the pipeline, or not explained yet"), share(rest)]);
  else if (rest > 0.5 && causes.length) causes.push([t("outside the pipeline"), share(rest)]);
  const kinds = (counts: number[], times: number[]): Fact[] =>
    head.kinds.flatMap(({ name, fill, dark }, index): Fact[] =>
      counts[index]
        ? [
            [
              nameOf(name),
              labelled(swatch(fill, dark.fill), `${counts[index].toLocaleString("en-US")} · ${share(times[index]!)}`),
            ],
          ]
        : [],
    );
  const computing = kinds(found.tasks, found.kinds);
  const beside = kinds(found.tasks_beside, found.kinds_beside);
  const made = element("div", { class: "details" }, element("h2", {}, t("Selected stretch")), list(facts));
  if (devices)
    made.append(
      element("p", { class: "hint" }, t("Devices idle inside of tasks too: idle shares stand beside the ranks.")),
    );
  if (inside) made.append(element("h3", {}, t("devices, in the tasks that are wholly in it")), list(inside));
  if (causes.length) made.append(element("h3", {}, t("idle because of")), list(causes));
  if (computing.length)
    made.append(element("h3", {}, t("tasks, and their share of the time of these ranks")), list(computing));
  if (beside.length) made.append(element("h3", {}, t("beside them: communication and host")), list(beside));
  return made;
}

function named(head: Head, ranks: number[]): string {
  const numbers = ranks.map((index) => head.ranks[index]!.rank);
  return numbers.length <= 12
    ? numbers.join(", ")
    : t("{count}, {first} to {last}", { count: numbers.length, first: numbers[0]!, last: numbers.at(-1)! });
}

function labelled(mark: HTMLElement, text: string): HTMLElement {
  return element("span", {}, mark, text);
}
