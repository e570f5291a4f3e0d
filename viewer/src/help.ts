// The keys.

import { button, element, list, type Fact } from "./dom";
import { EXAMPLE } from "./search";

const KEYS: Fact[] = [
  ["wheel, PageUp, PageDown", "scroll the ranks"],
  ["ctrl or ⌘ + wheel, pinch, w s", "zoom"],
  ["shift + wheel, a d, space + drag", "move in time"],
  ["drag, or drag on the ruler", "select a stretch: its totals"],
  ["click a task or a gap", "details"],
  ["double click", "zoom to it"],
  ["← → ↑ ↓", "from task to task"],
  ["0 … 9, n p", "the step of that number; next, previous step"],
  ["f", "the whole run"],
  ["z, shift + z", "back to where you were, and forth"],
  ["/", `search: ${EXAMPLE}`],
  [". ,", "next, previous that was found"],
  ["Enter", "go to what a gap waited for"],
  ["e", "summary"],
  ["r", "what is in sight, as a table"],
  ["]", "the pane below"],
  ["[", "the legend"],
  ["l", "arrows: of what is selected, its micro-batch's way, the critical path, all in sight, none"],
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
  ["drag a title", "move a rank or a group; click a heading to fold it"],
  ["Delete, on a selected task", "hide its rank"],
  ["Escape", "close, deselect"],
];

/** A dialog: it keeps the focus, and a click outside or Escape closes it. */
export function help(): HTMLDialogElement {
  const close = button("close", "Escape", () => made.close());
  const made = element("dialog", { class: "help", "aria-label": "keys" }, list(KEYS), close);
  made.addEventListener("click", (event) => {
    if (event.target === made) made.close(); // what is around its content is its backdrop
  });
  made.addEventListener("keydown", (event) => event.key === "?" && made.close());
  return made;
}
