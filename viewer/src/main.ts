// The page: reads what it was given, draws, and listens.

import { arrowsOf, type Arrow } from "./arrows";
import { decode, type Data, type Head, type Step } from "./data";
import { hit } from "./hit";
import { layout, placeOf, type Item } from "./layout";
import { details, element, heading, help, legend, notes, tooltip } from "./panel";
import { GUTTER, Painter, type Theme } from "./paint";
import { Ruler } from "./ruler";
import { View } from "./view";
import { causes, gapDetails, gapTooltip } from "./why";

const FEW = 64; // ranks up to which the ideal is shown from the start

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

function start(head: Head, data: Data): void {
  const { tasks, gaps } = data;
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
  const why = causes(head);
  const colourKey = element("div", { class: "legends" }, legend(head, new Set(tasks.kind)), ...why);
  const foot = element("footer", {}, colourKey, ...notes(head), ask);
  document.body.append(heading(head), strip, scroll, foot, panel, tip, keys);

  const painter = new Painter(canvas, head, data, plan);
  const ruler = new Ruler(strip, head);
  let colours = theme();
  let selected: Item | null = null;
  let arrows: Arrow[] = []; // of what is selected
  let explained = why.length > 0;
  let linked = true;
  let frame = 0;

  const draw = (): void => {
    frame = 0;
    view.width = Math.max(1, canvas.clientWidth - GUTTER);
    painter.draw(view, scroll.scrollTop, colours, { causes: explained, selected, arrows: linked ? arrows : [] });
    ruler.draw(view, colours);
  };
  const redraw = (): void => {
    frame ||= requestAnimationFrame(draw);
  };

  const at = (x: number, y: number): Item | null =>
    hit(data, plan.places, view, x - GUTTER, y + scroll.scrollTop, explained);
  const select = (item: Item | null): void => {
    selected = item;
    arrows = item ? arrowsOf(item, data.links, gaps) : [];
    panel.hidden = !item;
    if (item?.what === "task") panel.replaceChildren(details(head, data, item.index, arrows));
    if (item?.what === "gap") panel.replaceChildren(gapDetails(head, data, item.index, go));
    redraw();
  };
  /** Select a task and bring it into sight. */
  const go = (task: number): void => {
    const item: Item = { what: "task", index: task };
    const place = placeOf(plan.places, item);
    const { clientHeight, scrollTop } = scroll;
    if (place && (place.top < scrollTop || place.top + place.height > scrollTop + clientHeight)) {
      scroll.scrollTop = place.top - clientHeight / 2;
    }
    view.reveal(tasks.start[task], tasks.end[task]);
    select(item);
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
    const found = at(event.offsetX, event.offsetY);
    canvas.style.cursor = found ? "pointer" : "default";
    tip.hidden = !found;
    if (found) {
      tip.textContent = (found.what === "task" ? tooltip : gapTooltip)(head, data, found.index);
      tip.style.left = `${Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 4)}px`;
      tip.style.top = `${Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 4)}px`;
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) select(at(event.offsetX, event.offsetY));
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("pointerleave", () => (tip.hidden = true));
  strip.addEventListener("click", (event) => showStep(ruler.stepAt(view, event.offsetX, event.offsetY)));
  ask.addEventListener("click", () => (keys.hidden = !keys.hidden));

  const actions: Record<string, () => unknown> = {
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
    c: () => {
      explained = !explained && why.length > 0;
      for (const line of why) line.classList.toggle("off", !explained);
      if (!explained && selected?.what === "gap") select(null);
    },
    l: () => (linked = !linked),
    Enter: () => selected?.what === "gap" && go(gaps.root[selected.index]),
    "?": () => (keys.hidden = !keys.hidden),
    Escape: () => {
      keys.hidden = true;
      select(null);
    },
  };
  addEventListener("keydown", (event) => {
    const action = event.ctrlKey || event.metaKey || event.altKey ? undefined : actions[event.key];
    const pressed = event.key === "Enter" && (event.target as Element).closest("button, summary");
    if (!action || pressed) return;
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
      at,
      selected: () => (selected?.what === "task" ? selected.index : -1),
      gap: () => (selected?.what === "gap" ? selected.index : -1),
      arrows: () => (linked ? arrows : []),
      gaps: () => head.gaps.map(({ rank, from, to }) => ({
        rank: head.ranks[rank].rank,
        start: [...gaps.start.subarray(from, to)],
        end: [...gaps.end.subarray(from, to)],
        cause: [...gaps.cause.subarray(from, to)].map((cause) => head.causes[cause].name),
        task: [...gaps.task.subarray(from, to)],
        root: [...gaps.root.subarray(from, to)],
        first: from,
      })),
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
decode(head, text).then(
  (data) => start(head, data),
  (error: unknown) => document.body.append(element("p", { class: "failed" }, `This page is damaged: ${String(error)}`)),
);
