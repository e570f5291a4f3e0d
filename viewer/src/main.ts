// The page: reads what it was given, draws, and listens.

import { decode, running, type Head, type Step, type Tasks } from "./data";
import { firstBelow, layout } from "./layout";
import { details, element, heading, help, legend, notes, tooltip } from "./panel";
import { GUTTER, Painter, type Theme } from "./paint";
import { Ruler } from "./ruler";
import { View } from "./view";

const FEW = 64; // ranks up to which the ideal is shown from the start
const REACH = 3; // pixels from a block that still hit it

function theme(): Theme {
  const style = getComputedStyle(document.documentElement);
  const get = (name: string): string => style.getPropertyValue(`--${name}`).trim();
  return {
    text: get("text"),
    dim: get("dim"),
    idle: get("idle"),
    band: get("band"),
    line: get("line"),
    page: get("page"),
    accent: get("accent"),
  };
}

function start(head: Head, tasks: Tasks): void {
  const view = new View(Math.max(1, head.end));
  let ideal = head.ranks.length <= FEW;
  let plan = layout(head, ideal);
  const canvas = element("canvas", {
    class: "lanes",
    tabindex: "0",
    role: "application",
    "aria-label": `Timeline of ${head.ranks.length} ranks. Press ? for keys.`,
  }) as HTMLCanvasElement;
  const strip = element("canvas", { class: "ruler" }) as HTMLCanvasElement;
  // As tall as all lanes together, so that the browser scrolls; the canvas stays in sight within it.
  const page = element("div", { class: "page" }, canvas);
  page.style.height = `${plan.height}px`;
  const scroll = element("main", {}, page);
  const panel = element("aside", { hidden: "", "aria-live": "polite" });
  const tip = element("div", { class: "tip", hidden: "" });
  const keys = help();
  const ask = element("button", { type: "button", title: "keys (?)", "aria-label": "show keys" }, "?");
  const foot = element("footer", {}, legend(head, new Set(tasks.kind)), ...notes(head), ask);
  document.body.append(heading(head), strip, scroll, foot, panel, tip, keys);

  const painter = new Painter(canvas, head, tasks, plan);
  const ruler = new Ruler(strip, head);
  let colours = theme();
  let selected = -1;
  let frame = 0;

  const draw = (): void => {
    frame = 0;
    view.width = Math.max(1, canvas.clientWidth - GUTTER);
    painter.draw(view, scroll.scrollTop, colours, selected);
    ruler.draw(view, colours);
  };
  const redraw = (): void => {
    frame ||= requestAnimationFrame(draw);
  };

  /** The task at a point of the canvas, within reach, and the row that it is in. */
  const hit = (x: number, y: number): { task: number; place: number } | null => {
    const place = firstBelow(plan.places, y + scroll.scrollTop);
    if (x < GUTTER || place === plan.places.length || plan.places[place].top > y + scroll.scrollTop) return null;
    for (let reach = 0; reach <= REACH; reach++) {
      for (const side of [reach, -reach]) {
        const task = running(tasks, plan.places[place].row, view.time(x - GUTTER + side));
        if (task >= 0) return { task, place };
      }
    }
    return null;
  };
  const select = (found: ReturnType<typeof hit>): void => {
    selected = found ? found.task : -1;
    panel.hidden = !found;
    if (found) {
      const { row } = plan.places[found.place];
      panel.replaceChildren(details(head, tasks, found.task, row.rank, row.lane));
    }
    redraw();
  };
  const arrange = (): void => {
    plan = layout(head, ideal);
    painter.layout = plan;
    page.style.height = `${plan.height}px`;
    redraw();
  };
  const showStep = (step: Step | undefined): void => {
    if (step) view.fit(step.start, step.end);
    redraw();
  };
  const neighbour = (direction: 1 | -1): void => {
    const middle = (view.start + view.end) / 2;
    const current = head.steps.findIndex((step) => middle < step.end);
    const whole = view.end - view.start >= head.end;
    const from = current < 0 ? head.steps.length - 1 : current;
    showStep(head.steps[whole ? (direction > 0 ? 0 : head.steps.length - 1) : from + direction]);
  };

  new ResizeObserver(() => {
    canvas.style.height = `${scroll.clientHeight}px`;
    redraw();
  }).observe(scroll);
  scroll.addEventListener("scroll", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    colours = theme();
    redraw();
  });
  const watchRatio = (): void =>
    matchMedia(`(resolution: ${devicePixelRatio}dppx)`).addEventListener(
      "change",
      () => {
        redraw();
        watchRatio();
      },
      { once: true },
    );
  watchRatio();

  const wheel = (event: WheelEvent): void => {
    const x = event.offsetX - GUTTER;
    if (x < 0) return; // over the titles the page scrolls
    event.preventDefault();
    const unit = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
    const sideways = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) view.pan(sideways * unit);
    else view.zoom(Math.exp(-event.deltaY * unit * 0.002), x);
    redraw();
  };
  canvas.addEventListener("wheel", wheel, { passive: false });
  strip.addEventListener("wheel", wheel, { passive: false });

  let drag: { x: number; y: number; moved: boolean } | null = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, y: event.clientY, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
      if (!drag.moved && Math.hypot(dx, dy) < 4) return;
      view.pan(-dx);
      scroll.scrollTop -= dy;
      drag = { x: event.clientX, y: event.clientY, moved: true };
      tip.hidden = true;
      redraw();
      return;
    }
    const found = hit(event.offsetX, event.offsetY);
    canvas.style.cursor = found ? "pointer" : "default";
    tip.hidden = !found;
    if (found) {
      tip.textContent = tooltip(head, tasks, found.task);
      tip.style.left = `${Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 4)}px`;
      tip.style.top = `${Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 4)}px`;
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) select(hit(event.offsetX, event.offsetY));
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("pointerleave", () => (tip.hidden = true));
  strip.addEventListener("click", (event) => showStep(ruler.stepAt(view, event.offsetX, event.offsetY)));
  ask.addEventListener("click", () => (keys.hidden = !keys.hidden));

  const actions: Record<string, () => void> = {
    w: () => view.zoom(1.3, view.width / 2),
    s: () => view.zoom(1 / 1.3, view.width / 2),
    a: () => view.pan(-view.width * 0.15),
    d: () => view.pan(view.width * 0.15),
    ArrowLeft: () => view.pan(-view.width * 0.15),
    ArrowRight: () => view.pan(view.width * 0.15),
    ArrowUp: () => (scroll.scrollTop -= 60),
    ArrowDown: () => (scroll.scrollTop += 60),
    f: () => view.fit(),
    "0": () => view.fit(),
    n: () => neighbour(1),
    p: () => neighbour(-1),
    i: () => {
      ideal = !ideal;
      arrange();
    },
    "?": () => (keys.hidden = !keys.hidden),
    Escape: () => {
      keys.hidden = true;
      select(null);
    },
  };
  addEventListener("keydown", (event) => {
    const action = event.ctrlKey || event.metaKey || event.altKey ? undefined : actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
    redraw();
  });

  // For tests: what is shown, and a way to show something else and wait until it is.
  Object.assign(window, {
    bubblescope: {
      gutter: GUTTER,
      view: () => ({ start: view.start, end: view.end }),
      show: (from: number, to: number) => {
        view.set(from, to);
        draw();
      },
      taskAt: (x: number, y: number) => hit(x, y)?.task ?? -1,
      selected: () => selected,
      get places() {
        return plan.places;
      },
    },
  });
  canvas.style.height = `${scroll.clientHeight}px`;
  draw();
}

const text = (id: string): string => document.getElementById(id)?.textContent ?? "";
const head = JSON.parse(text("head")) as Head;
decode(head, text("columns")).then(
  (tasks) => start(head, tasks),
  (error: unknown) => document.body.append(element("p", { class: "failed" }, `This page is damaged: ${String(error)}`)),
);
