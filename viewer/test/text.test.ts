// @vitest-environment happy-dom
import { expect, test } from "vitest";
import { scheme } from "../src/colour";
import { shortened } from "../src/dom";
import { details, heading, legend, notes, warnings } from "../src/panel";
import { gapDetails } from "../src/why";
import { made, THEME } from "./made";

const HOSTILE = `"'><img src=x onerror=alert(1)><script>alert(2)</script>&lt;b&gt;`;

const { head, data } = made({
  ranks: [{ host: HOSTILE }],
  rows: [{ rank: 0, tasks: [{ start: 0, end: 10, name: HOSTILE }, { start: 10, end: 20 }] }],
  gaps: [{ rank: 0, gaps: [{ start: 20, end: 30, task: 1, root: 0 }] }],
  head: {
    title: HOSTILE,
    facts: [HOSTILE],
    schedule: HOSTILE,
    departures: [HOSTILE],
    notes: [HOSTILE],
    warnings: [HOSTILE, HOSTILE],
    definitions: { makespan: HOSTILE },
    overlays: [{ lane: "whatif", name: HOSTILE, detail: HOSTILE }],
  },
});

test.each<[string, () => HTMLElement[]]>([
  ["heading", () => [heading(head)]],
  ["warnings", () => warnings(head)],
  ["notes", () => notes(head)],
  ["legend", () => [legend(head, scheme("kind", head, data), THEME, true)]],
  ["details of a task", () => [details(head, data, 0, [[0, 1]], () => {})]],
  ["details of a gap", () => [gapDetails(head, data, 0, () => {})]],
])("whatever a trace says, in the %s it stays text", (_, make) => {
  const page = document.createElement("div");
  page.append(...make());
  expect(page.querySelectorAll("img, script")).toHaveLength(0);
  expect(page.textContent).toContain(HOSTILE);
});

test("a text of any length is shown short, with how much more there is", () => {
  expect(shortened("x".repeat(2000))).toBe("x".repeat(2000));
  expect(shortened("x".repeat(3500))).toBe(`${"x".repeat(2000)}… (1,500 more letters)`);
});
