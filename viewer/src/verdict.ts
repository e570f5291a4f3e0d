// The head of the page: how much is idle, why, and what would help, that which saves most first.

import { ofDevices, type Head, type Remedy } from "./data";
import { button, dropDown, element, shortened, unbroken } from "./dom";
import { causeSwatch } from "./why";
import { brief, telling, uncertain } from "./units";
import { nameOf, t } from "./words";

const IN_SIGHT = 3; // what would help most; the summary has all
const TITLE = 240; // letters of a line
export const RATES = ["makespan", "span", "longest_span", "over_ideal", "no_wait", "excess"] as const;

/** @param go shows what a sentence is about @param more shows all that is said */
export function verdict(head: Head, go: (remedy: Remedy) => void, more: () => void): HTMLElement {
  const { remedies } = head.verdict;
  const rest = remedies.length - IN_SIGHT;
  return element(
    "header",
    {},
    idle(head),
    element(
      "ol",
      { class: "remedies", "aria-label": t("what would help") },
      ...remedies.slice(0, IN_SIGHT).map((one) => element("li", {}, sentence(head, one, go))),
    ),
    element(
      "div",
      { class: "what" },
      element("h1", {}, shortened(head.title, TITLE)),
      element("p", { title: shortened(head.facts.join(" · ")) }, ...unbroken(shortened(head.facts.join(" · "), TITLE))),
      ...schedule(head),
      ...(rest > 0 ? [button(t("{count} more that would help", { count: rest }), t("the summary has all"), more)] : []),
    ),
  );
}

/** One large number, and the others by their definitions. */
function idle(head: Head): HTMLElement {
  const { share, error, share_of: of, said } = head.verdict;
  const others = ofDevices(head)
    ? []
    : RATES.filter((name) => head.overall[name] !== null && !(name === "makespan" && share !== null));
  return element(
    "div",
    { class: "idle" },
    ...(share === null ? [] : [element("strong", { class: "share" }, ...large(share, error))]),
    element(
      "div",
      {},
      element("p", {}, ...unbroken([of, said].filter(Boolean).join(" "))),
      ...(others.length
        ? [
            dropDown(
              { class: "others" },
              t("{count} other rates", { count: others.length }),
              element("div", {}, rates(head, others)),
            ),
          ]
        : []),
    ),
  );
}

export function rates(head: Head, names: readonly (keyof Head["overall"])[]): HTMLElement {
  const rows = names.map((name) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, nameOf(name)),
      element("td", { class: "number" }, uncertain(head.overall[name], head.errors[name])),
      element("td", {}, head.definitions[name] ?? ""),
    ),
  );
  return element("table", { class: "rates" }, ...rows);
}

/** How far it may be off is part of the number, but not what one looks for. */
function large(share: number, error: number | null): (string | HTMLElement)[] {
  if (!telling(error)) return [`${(100 * share).toFixed(1)} %`];
  const [number, off] = uncertain(share, error).split(" ± ") as [string, string];
  return [number, element("small", {}, ` ± ${off}`)];
}

/** What a step would gain, what to do for that, and what shows it. */
function sentence(head: Head, remedy: Remedy, go: (remedy: Remedy) => void): HTMLElement {
  const made = button("", remedy.advice, () => go(remedy));
  made.className = remedy.saved === 0 ? "remedy idleness" : "remedy";
  const cause = remedy.cause === null ? undefined : head.causes[remedy.cause];
  made.append(
    element("span", { class: "gain" }, ...(cause ? [causeSwatch(cause)] : []), gain(remedy)),
    element(
      "span",
      { class: "said" },
      element("b", {}, ...unbroken(remedy.headline)),
      ...unbroken(` ${remedy.evidence}`),
    ),
  );
  return made;
}

/** Whether a task or idle time among the lanes shows what a remedy is about. */
export function shownInLanes({ task, cause }: Remedy): boolean {
  return task !== null || cause !== null;
}

/** "−102 ms" where that would be saved, "170 ms lost" where so much is lost to it. */
export function gain({ saved, spent }: Pick<Remedy, "saved" | "spent">): string {
  if (saved !== null) return saved > 0 ? `−${brief(saved)}` : "0 ms";
  return spent === null ? "" : t("{time} lost", { time: brief(spent) });
}

/** What was recognised, and what did not follow it. */
function schedule(head: Head): HTMLElement[] {
  if (head.schedule === null) return [];
  const line = element("p", { class: "schedule", title: head.schedule }, ...unbroken(head.schedule));
  if (!head.departures.length) return [line];
  const items = head.departures.map((text) => element("li", {}, text));
  const count = items.length === 1 ? t("1 departure") : t("{count} departures", { count: items.length });
  return [line, dropDown({ class: "departures" }, count, element("ul", {}, ...items))];
}
