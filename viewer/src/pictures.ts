// What is in sight as a picture or a link, to be kept elsewhere.

import type { App } from "./app";
import { copy, png, save, svg, type Pictured } from "./picture";
import { t } from "./words";

export class Pictures {
  constructor(private readonly app: App) {}

  async picture(format: "png" | "svg", way: "copy" | "save"): Promise<void> {
    const name = `${this.app.head.title.replace(/[^\w.-]+/g, "-").slice(0, 80) || "bubblescope"}.${format}`;
    this.app.draw();
    const blob =
      format === "png"
        ? await png([this.app.strip, this.app.canvas], this.app.head, this.app.data, this.shown(), this.app.left)
        : new Blob([this.svg()], { type: "image/svg+xml" });
    if (way === "save") return save(blob, name);
    this.app.toolbar.say(
      (await copy(blob, name)) === "copied"
        ? t("{format} copied", { format: format.toUpperCase() })
        : t("no clipboard here: saved {name}", { name }),
    );
  }

  svg(): string {
    return svg(this.app.head, this.app.data, this.shown());
  }

  private shown(): Pictured {
    const { view, plan, scheme, colours, scroll, state, canvas } = this.app;
    return {
      view,
      plan,
      scheme,
      theme: colours,
      figure: state.arranged.figure,
      causes: state.causes && !state.arranged.figure,
      top: scroll.scrollTop,
      height: canvas.clientHeight,
    };
  }

  async copyLink(): Promise<void> {
    this.app.journey.address();
    try {
      await navigator.clipboard.writeText(location.href);
      this.app.toolbar.say(t("link copied"));
    } catch {
      this.app.toolbar.say(t("the address bar has the link"));
    }
  }
}
