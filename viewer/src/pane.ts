// The docked pane below the lanes: details of what is selected, and whatever else has a tab of its own.

import { button, element } from "./dom";
import { t } from "./words";

const KEY_STEP = 24; // pixels that an arrow key moves its edge
const LEAST = 96; // pixels of height
const MOST = 0.6; // of the window's height

interface Tab {
  button: HTMLButtonElement;
  fill: (body: HTMLElement) => void;
}

export class Pane {
  readonly section: HTMLElement;
  /** The key of the tab that is shown; null while the pane is closed. */
  shown: string | null = null;
  private readonly tabs = new Map<string, Tab>();
  private readonly strip = element("div", { class: "tabs", role: "tablist", "aria-label": t("panes") });
  private readonly body = element("div", { class: "body", role: "tabpanel", tabindex: "0" });

  /** @param changed is told that the pane opened, closed or has another tab */
  constructor(private readonly changed: () => void) {
    const close = button("×", t("close (Escape, or ])"), () => this.close());
    close.className = "close";
    close.setAttribute("aria-label", t("close the pane"));
    const bar = element("div", { class: "bar" }, this.strip, close);
    this.section = element(
      "section",
      { class: "pane", "aria-label": t("details"), hidden: "" },
      this.grip(),
      bar,
      this.body,
    );
    this.strip.addEventListener("keydown", (event) => this.walk(event));
  }

  /** Add a tab. @param fill puts into an empty element what the tab shows, each time that it is shown */
  tab(key: string, title: string, fill: (body: HTMLElement) => void): void {
    const made = button(title, "", () => this.open(key));
    made.setAttribute("role", "tab");
    made.dataset["key"] = key;
    this.tabs.set(key, { button: made, fill });
    this.strip.append(made);
    this.mark();
  }

  /** Give a tab another name, or with null take it out of sight. */
  rename(key: string, title: string | null): void {
    const { button: made } = this.tabs.get(key)!;
    made.hidden = title === null;
    if (title !== null) made.textContent = title;
    if (title === null && this.shown === key) this.close();
  }

  open(key: string): void {
    const before = this.shown;
    this.shown = key;
    this.section.hidden = false;
    this.measure();
    this.refresh(key);
    this.body.scrollTop = 0;
    this.mark();
    if (before !== key) this.changed();
  }

  /** Show what a tab has now, if it is in sight. */
  refresh(key: string): void {
    if (this.shown !== key) return;
    this.body.replaceChildren();
    this.tabs.get(key)!.fill(this.body);
  }

  close(): void {
    if (this.shown === null) return;
    this.shown = null;
    this.section.hidden = true;
    this.mark();
    this.changed();
  }

  toggle(key: string): void {
    if (this.shown === key) this.close();
    else this.open(key);
  }

  /** Open the tab that comes first, or close the pane. */
  toggleAny(): void {
    if (this.shown !== null) return this.close();
    const first = [...this.tabs].find(([, { button: made }]) => !made.hidden);
    if (first) this.open(first[0]);
  }

  private mark(): void {
    for (const [key, { button: made }] of this.tabs) {
      made.setAttribute("aria-selected", String(key === this.shown));
      made.tabIndex = key === this.shown || this.shown === null ? 0 : -1;
    }
  }

  /** Arrow keys go from tab to tab, as in any list of tabs. */
  private walk(event: KeyboardEvent): void {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const keys = [...this.tabs].filter(([, { button: made }]) => !made.hidden).map(([key]) => key);
    const next = keys[(keys.indexOf(this.shown ?? "") + by + keys.length) % keys.length]!;
    this.open(next);
    this.tabs.get(next)!.button.focus();
  }

  /** What one drags, or moves with the arrow keys, to make the pane taller or lower. */
  private grip(): HTMLElement {
    const made = element("div", {
      class: "grip",
      role: "separator",
      tabindex: "0",
      "aria-orientation": "horizontal",
      "aria-valuemin": String(LEAST),
      "aria-valuenow": "0",
      "aria-label": t("height of the pane"),
    });
    let from: { y: number; height: number } | null = null;
    made.addEventListener("pointerdown", (event) => {
      from = { y: event.clientY, height: this.section.offsetHeight };
      made.setPointerCapture(event.pointerId);
    });
    made.addEventListener("pointermove", (event) => {
      if (from) this.resize(from.height + from.y - event.clientY);
    });
    const release = (): void => void (from = null);
    made.addEventListener("pointerup", release);
    made.addEventListener("pointercancel", release);
    made.addEventListener("keydown", (event) => {
      const by = { ArrowUp: KEY_STEP, ArrowDown: -KEY_STEP }[event.key];
      if (by === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      this.resize(this.section.offsetHeight + by);
    });
    return made;
  }

  private resize(height: number): void {
    const bounded = Math.min(Math.max(height, LEAST), innerHeight * MOST);
    this.section.style.height = `${Math.round(bounded)}px`;
    this.measure();
    this.changed();
  }

  /** Tell how tall it is to who does not see it. */
  private measure(): void {
    this.section.querySelector(".grip")!.setAttribute("aria-valuenow", String(this.section.offsetHeight));
  }
}
