// What is said about a stretch that was selected.

import type { Head } from "./data";
import { element, list, swatch, type Fact } from "./dom";
import type { Range } from "./state";
import { duration, exact, percent } from "./units";
import { causeSwatch } from "./why";
import type { Totals } from "./schema";

export function rangeDetails(head: Head, range: Range, found: Totals): HTMLElement {
  const length = range.end - range.start;
  const share = (value: number): string =>
    `${duration(value)} · ${percent(found.spanned ? value / found.spanned : null)}`;
  const facts: Fact[] = [
    ["length", `${duration(length)} (${exact(length)})`],
    ["ranks", range.ranks ? named(head, range.ranks) : `all ${found.ranks} that are shown`],
    ["busy", share(found.busy)],
    ["idle", share(found.idle)],
  ];
  const explained = found.causes.reduce((sum, value) => sum + value, 0);
  const causes: Fact[] = head.causes.flatMap((cause, index): Fact[] =>
    found.causes[index] ? [[cause.name, labelled(causeSwatch(cause), share(found.causes[index]))]] : [],
  );
  // Outside the pipeline's phases no cause is known, nor where a run has no ledger.
  if (found.idle - explained > 0.5 && causes.length)
    causes.push(["outside the pipeline", share(found.idle - explained)]);
  const kinds: Fact[] = head.kinds.flatMap(({ name, fill, dark }, index): Fact[] =>
    found.tasks[index]
      ? [
          [
            name.replaceAll("_", " "),
            labelled(
              swatch(fill, dark.fill),
              `${found.tasks[index].toLocaleString("en-US")} · ${share(found.kinds[index]!)}`,
            ),
          ],
        ]
      : [],
  );
  const made = element("div", { class: "details" }, element("h2", {}, "Selected stretch"), list(facts));
  if (causes.length) made.append(element("h3", {}, "idle because of"), list(causes));
  if (kinds.length) made.append(element("h3", {}, "tasks, and their share of the time of these ranks"), list(kinds));
  return made;
}

function named(head: Head, ranks: number[]): string {
  const numbers = ranks.map((index) => head.ranks[index]!.rank);
  return numbers.length <= 12 ? numbers.join(", ") : `${numbers.length}, ${numbers[0]} to ${numbers.at(-1)}`;
}

function labelled(mark: HTMLElement, text: string): HTMLElement {
  return element("span", {}, mark, text);
}
