// The keys.

import { element, list, type Fact } from "./dom";
import { EXAMPLE } from "./search";

const KEYS: Fact[] = [
  ["wheel, pinch, w s", "zoom"],
  ["drag, shift + wheel, a d", "move in time"],
  ["wheel over the titles", "scroll the ranks"],
  ["shift + drag, drag on the ruler", "select a stretch: its totals"],
  ["click a task or a gap", "details"],
  ["double click", "zoom to it"],
  ["← → ↑ ↓", "from task to task"],
  ["0 … 9, n p", "a step; next, previous step"],
  ["f", "show everything"],
  ["z, shift + z", "back to where you were, and forth"],
  ["/", `search: ${EXAMPLE}`],
  [". ,", "next, previous task found"],
  ["Enter", "go to what a gap waited for"],
  ["l", "arrows: of what is selected, all in sight, none"],
  ["c", "causes of idle time"],
  ["i", "the ideal (the same tasks without waiting), and the what-if"],
  ["o", "the ideal, or the what-if, above all that was measured"],
  ["b", "colour by something else"],
  ["h", "when tasks were launched"],
  ["k", "shade warm-up and cool-down"],
  ["u, or click ▶ at a rank", "the kernels under a rank: of what is selected, or where the pointer is"],
  ["g", "group by something else"],
  ["+ -", "taller, lower lanes"],
  ["v", "the look of papers"],
  ["t", "light or dark"],
  ["e", "summary"],
  ["y", "what if: what would make steps shorter, and by how much"],
  ["drag a title", "move a rank or a group; click a heading to fold it"],
  ["Delete, on a selected task", "hide its rank"],
  ["Escape", "close, deselect"],
];

export function help(): HTMLElement {
  return element(
    "div",
    { class: "help", role: "dialog", "aria-label": "keys", tabindex: "-1", hidden: "" },
    list(KEYS),
  );
}
