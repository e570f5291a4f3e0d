// The keys.

import { button, element, list, type Fact } from "./dom";
import { EXAMPLE } from "./search";
import { t } from "./words";

const KEYS: Fact[] = [
  [t("wheel, PageUp, PageDown"), t("scroll the ranks")],
  [t("ctrl or ⌘ + wheel, pinch, w s"), t("zoom")],
  [t("shift + wheel, a d, space + drag"), t("move in time")],
  [t("drag, or drag on the ruler"), t("select a stretch: its totals")],
  [t("click a task or a gap"), t("details")],
  [t("double click"), t("zoom to it")],
  ["← → ↑ ↓", t("from task to task")],
  ["0 … 9, n p", t("the step of that number; next, previous step")],
  ["f", t("the whole run")],
  [t("z, shift + z"), t("back to where you were, and forth")],
  ["/", t("search: {example}", { example: EXAMPLE })],
  [". ,", t("next, previous that was found")],
  [t("Enter"), t("go to what a gap waited for")],
  ["e", t("summary")],
  ["r", t("what is in sight, as a table")],
  ["]", t("the pane below")],
  ["[", t("the legend")],
  ["l", t("arrows: of what is selected, its micro-batch's way, the critical path, all in sight, none")],
  ["c", t("causes of idle time")],
  ["i", t("the ideal (the same tasks without waiting), and the what-if")],
  ["o", t("the ideal, or the what-if, above all that was measured")],
  ["b", t("colour by something else")],
  ["h", t("when tasks were launched")],
  ["k", t("shade warm-up and cool-down")],
  [t("u, or click ▶ at a rank"), t("the kernels under a rank: of what is selected, or where the pointer is")],
  ["g", t("group by something else")],
  ["m", t("fold ranks that are alike into sums, with odd ones apart; click a sum for its ranks")],
  ["+ -", t("taller, lower lanes")],
  ["v", t("the look of papers")],
  ["t", t("light or dark")],
  ["y", t("what if: what would make steps shorter, and by how much")],
  [t("drag a title"), t("move a rank or a group; click a heading to fold it")],
  [t("Delete, on a selected task"), t("hide its rank")],
  [t("Escape"), t("close, deselect")],
];

/** A dialog: it keeps the focus, and a click outside or Escape closes it. */
export function help(): HTMLDialogElement {
  const close = button(t("close"), t("Escape"), () => made.close());
  const heading = element("h2", {}, t("keys"), close); // at the top: where the focus goes, the dialog scrolls to
  const made = element("dialog", { class: "help", "aria-label": t("keys") }, heading, list(KEYS));
  made.addEventListener("click", (event) => {
    if (event.target === made) made.close(); // what is around its content is its backdrop
  });
  made.addEventListener("keydown", (event) => event.key === "?" && made.close());
  return made;
}
