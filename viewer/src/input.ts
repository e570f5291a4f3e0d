// Pointer, wheel and keys.

import type { App } from "./app";
import { curveTooltip } from "./curves";
import { hasCauses } from "./data";
import { firstBelow, foldAt, moved, type Item } from "./layout";
import { kernelTooltip } from "./kernels";
import { long } from "./label";
import { changeText } from "./difference";
import { mixedTooltip } from "./mixed";
import { foldTooltip, UNFOLD_RIGHT } from "./titles";
import { waitingSaid } from "./waits";
import { gapTooltip } from "./why";
import { t } from "./words";

const CLICK = 4; // pixels that a pointer may move in a click
const TITLE = 22; // height of a rank's title
const PAGE = 0.9; // of the height in sight, that PageUp and PageDown move
const STEP = 0.15; // of the width, that a key moves

const TWICE = 400; // milliseconds within which two clicks are one
const LONG_PRESS = 450; // milliseconds that a finger rests before it measures
const DIGITS = 700; // milliseconds within which digits are one number

type Drag =
  | { what: "pan"; x: number; y: number; moved: boolean }
  | { what: "range"; x: number; y: number; whole: boolean; moved: boolean }
  | { what: "title"; x: number; y: number; moved: boolean }
  | { what: "pinch"; distance: number };

export function listen(app: App): void {
  lanes(app);
  ruler(app);
  minimap(app);
  keys(app);
  surroundings(app);
}

function surroundings(app: App): void {
  new ResizeObserver(() => app.resize()).observe(app.scroll);
  app.scroll.addEventListener("scroll", () => app.journey.moved());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => app.retheme());
  const watchRatio = (): void =>
    matchMedia(`(resolution: ${devicePixelRatio}dppx)`).addEventListener(
      "change",
      () => {
        app.redraw();
        watchRatio();
      },
      { once: true },
    );
  watchRatio();
  addEventListener("hashchange", () => app.journey.readAddress());
}

/**
 * A wheel scrolls the ranks, with shift it pans time, with ctrl or ⌘ it zooms at the pointer; a touchpad's
 * sideways movement pans, and its pinch, which browsers report as a wheel with ctrl, zooms. For those who
 * want it, the plain wheel zooms.
 */
function wheel(app: App, event: WheelEvent): void {
  const x = Math.max(0, event.offsetX - app.left);
  const unit = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
  const sideways = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
  const plain = !event.ctrlKey && !event.metaKey;
  if (plain && (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))) app.view.pan(sideways * unit);
  else if (plain && !app.state.wheelZooms) return scrolled(app);
  // A pinch comes in smaller steps than the notches of a wheel.
  else app.view.zoom(Math.exp(-event.deltaY * unit * (Math.abs(event.deltaY) < 40 && !plain ? 0.01 : 0.002)), x);
  event.preventDefault();
  app.journey.moved();
}

let hinted = false;

/** The wheel scrolls the ranks; where all are in sight, say once what zooms. */
function scrolled(app: App): void {
  if (hinted || app.plan.height > app.scroll.clientHeight) return;
  hinted = true;
  app.toolbar.say(t("ctrl + wheel zooms, shift + wheel moves in time"));
}

function lanes(app: App): void {
  const { canvas, scroll, tip, view } = app;
  canvas.addEventListener("wheel", (event) => wheel(app, event), { passive: false });
  let drag: Drag | null = null;
  let pressing: ReturnType<typeof setTimeout> | undefined;
  let clicked: { time: number; x: number; y: number; item: Item | null } = { time: -Infinity, x: 0, y: 0, item: null };
  const touches = new Map<number, PointerEvent>();

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button > 1) return;
    if (event.button === 1) event.preventDefault(); // or the browser scrolls by itself
    canvas.setPointerCapture(event.pointerId);
    touches.set(event.pointerId, event);
    const { clientX: x, clientY: y } = event;
    const measuring: Drag = { what: "range", x: event.offsetX, y: event.offsetY, whole: false, moved: false };
    clearTimeout(pressing);
    if (touches.size === 2) drag = { what: "pinch", distance: apart(touches) };
    else if (event.offsetX < app.left) drag = { what: "title", x, y, moved: false };
    else if (event.pointerType === "touch" || event.button === 1 || held.has("Space"))
      drag = { what: "pan", x, y, moved: false };
    else drag = measuring;
    if (event.pointerType === "touch" && touches.size === 1)
      pressing = setTimeout(() => {
        if (drag?.what === "pan" && !drag.moved) drag = measuring;
      }, LONG_PRESS);
  });

  canvas.addEventListener("pointermove", (event) => {
    if (touches.has(event.pointerId)) touches.set(event.pointerId, event);
    app.pointer = event.offsetX >= app.left ? event.offsetX - app.left : null;
    app.pointerTop = event.offsetY;
    app.hover();
    if (!drag) return point(event);
    tip.hidden = true;
    if (drag.what === "pinch") {
      const [one, other] = [...touches.values()];
      if (!one || !other) return;
      const distance = apart(touches);
      view.zoom(distance / drag.distance, (one.offsetX + other.offsetX) / 2 - app.left);
      drag.distance = distance;
      app.journey.moved();
    } else if (drag.what === "range") {
      drag.moved ||= Math.abs(event.offsetX - drag.x) >= CLICK;
      app.selecting = range(app, drag, event.offsetX, event.offsetY);
      app.hover();
    } else {
      const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
      if (!drag.moved && Math.hypot(dx, dy) < CLICK) return;
      drag.moved = true;
      if (drag.what === "title") {
        canvas.style.cursor = "grabbing";
        return;
      }
      view.pan(-dx);
      scroll.scrollTop -= dy;
      [drag.x, drag.y] = [event.clientX, event.clientY];
      app.journey.moved();
    }
  });

  canvas.addEventListener("pointerup", (event) => {
    touches.delete(event.pointerId);
    clearTimeout(pressing);
    const done = drag;
    drag = null;
    if ((done?.what === "pan" || done?.what === "range") && !done.moved && event.button === 0) click(event);
    if (done?.what === "range" && app.selecting) app.selection.selectRange(app.selecting);
    app.selecting = null;
    app.hover();
    if (done?.what === "title") {
      canvas.style.cursor = "default";
      const top = canvas.getBoundingClientRect().top;
      if (done.moved) drop(app, done.y - top, event.offsetY);
      else press(app, event.offsetX, event.offsetY);
    }
  });
  // The first of two clicks may have opened the pane where the second falls.
  addEventListener("pointerdown", (event) => {
    if (event.target === canvas || !again(event) || !clicked.item) return;
    event.preventDefault();
    app.selection.zoomTo(clicked.item);
    clicked = { ...clicked, time: -Infinity };
  });
  canvas.addEventListener("pointercancel", (event) => {
    touches.delete(event.pointerId);
    clearTimeout(pressing);
    drag = app.selecting = null;
  });
  canvas.addEventListener("pointerleave", () => {
    tip.hidden = true;
    app.pointer = null;
    app.pointerTop = -1;
    app.hover();
  });

  /** Whether this is the second of two clicks at one place. */
  function again({ clientX: x, clientY: y, timeStamp: time }: PointerEvent): boolean {
    return time - clicked.time < TWICE && Math.hypot(x - clicked.x, y - clicked.y) < CLICK;
  }

  /** Select what is there; of two clicks, zoom to what the first selected, for the pane it opened moved the lanes. */
  function click(event: PointerEvent): void {
    const { clientX: x, clientY: y, offsetX, offsetY, timeStamp: time } = event;
    const twice = again(event);
    if (twice && clicked.item) app.selection.zoomTo(clicked.item);
    else pick(app, offsetX, offsetY);
    clicked = { time: twice ? -Infinity : time, x, y, item: app.state.selected };
  }

  function said({ what, index }: Item): string {
    const { head, data } = app;
    if (what === "task") {
      const text = long(head, data.tasks, index) + changeText(data.tasks, index);
      return [text, waitingSaid(head, data, index)].filter(Boolean).join("\n");
    }
    return what === "gap" ? gapTooltip(head, data, index) : kernelTooltip(head, data, index);
  }

  /** Say what is under the pointer. */
  function point(event: PointerEvent): void {
    const found = app.selection.at(event.offsetX, event.offsetY);
    const titled = event.offsetX < app.left;
    const y = event.offsetY + scroll.scrollTop;
    const mixed = mixedTooltip(app.head, app.data, app.plan.places, view, event.offsetX - app.left, y);
    const fold = found ? undefined : foldAt(app.plan, y);
    const folding = titled && unfoldable(app, event.offsetX, event.offsetY) !== null;
    canvas.style.cursor = folding || fold?.key ? "pointer" : titled ? "grab" : found ? "pointer" : "default";
    const curve = titled
      ? null
      : curveTooltip(app.head, app.data.samples, app.plan.curves, view.time(event.offsetX - app.left), y);
    const text = curve ?? mixed ?? (found ? said(found) : fold?.key ? foldTooltip(fold) : "");
    tip.hidden = text === "";
    if (text === "") return;
    tip.textContent = text;
    tip.style.left = `${Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 4)}px`;
    tip.style.top = `${Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 4)}px`;
  }
}

function apart(touches: Map<number, PointerEvent>): number {
  const [one, other] = [...touches.values()] as [PointerEvent, PointerEvent];
  return Math.max(1, Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY));
}

/** The stretch between where a drag began and where it is; on all ranks, or on those that it crosses. */
function range(app: App, drag: { x: number; y: number; whole: boolean }, x: number, y: number) {
  const [start, end] = [drag.x, x]
    .map((at) => Math.round(app.view.time(Math.max(0, at - app.left))))
    .sort((one, other) => one - other) as [number, number];
  if (Math.abs(x - drag.x) < CLICK || end <= start) return null;
  if (drag.whole) return { start, end, ranks: null };
  const top = app.scroll.scrollTop;
  const [from, to] = [drag.y + top, y + top].sort((one, other) => one - other) as [number, number];
  const crossed = <T extends { top: number; height: number }>(parts: T[]): T[] =>
    parts.filter(({ top: y, height }) => y < to && y + height > from);
  const ranks = [
    ...new Set([
      ...crossed(app.plan.bands).map(({ rank }) => rank),
      ...crossed(app.plan.folds).flatMap(({ ranks: some, shows }) => (shows === "ranks" ? [] : some)),
    ]),
  ];
  return { start, end, ranks: ranks.length ? ranks : null };
}

/** The rank, by index, whose kernels are unfolded or folded by a click at a point of the titles. */
function unfoldable(app: App, x: number, y: number): number | null {
  const band = app.plan.bands[firstBelow(app.plan.bands, y + app.scroll.scrollTop)];
  if (x > UNFOLD_RIGHT || !band || band.unfolded === null || band.stack !== "compute") return null;
  const below = y + app.scroll.scrollTop - band.top;
  return below >= 0 && below < TITLE ? band.rank : null;
}

/** The lanes were clicked: select what is there, or show the ranks of a sum. */
function pick(app: App, x: number, y: number): void {
  const item = app.selection.at(x, y);
  const fold = item ? undefined : foldAt(app.plan, y + app.scroll.scrollTop);
  app.tip.hidden ||= fold !== undefined;
  if (fold?.key) app.arranging.open(fold);
  else app.selection.select(item);
}

/** The titles were clicked: fold or unfold the group whose heading is there, or the rank. */
function press(app: App, x: number, y: number): void {
  const at = y + app.scroll.scrollTop;
  const heading = app.plan.headings.find(({ top, height }) => top <= at && at < top + height);
  const fold = foldAt(app.plan, at);
  const rank = unfoldable(app, x, y);
  if (heading) app.arranging.fold(heading.group.key);
  else if (fold?.key) app.arranging.open(fold);
  else if (rank !== null) app.arranging.unfold([rank], !app.state.arranged.unfolded.has(rank));
}

/** A title was dragged: put its rank or group where it was let go, in the order of its own stack. */
function drop(app: App, fromY: number, toY: number): void {
  const {
    plan,
    scroll: { scrollTop },
    state: { arranged },
  } = app;
  const [from, to] = [fromY + scrollTop, toY + scrollTop];
  const held = plan.headings.find(({ top, height }) => top <= from && from < top + height);
  if (held) {
    const headings = plan.headings.filter(({ stack }) => stack === held.stack);
    const target = headings.findLast(({ top }) => top <= to) ?? headings[0]!;
    const behind = to > from;
    const other = behind ? target.group.ranks.at(-1)! : target.group.ranks[0]!;
    app.arranging.arrange({ order: moved(arranged.order, held.group.ranks, other, behind) });
    return;
  }
  const rank = plan.bands[firstBelow(plan.bands, from)];
  if (!rank) return;
  const bands = plan.bands.filter(({ stack }) => stack === rank.stack);
  const target = bands[Math.min(firstBelow(bands, to), bands.length - 1)]!;
  app.arranging.arrange({ order: moved(arranged.order, [rank.rank], target.rank, to > from) });
}

function ruler(app: App): void {
  const { strip, view } = app;
  strip.addEventListener("wheel", (event) => wheel(app, event), { passive: false });
  let from: number | null = null;
  strip.addEventListener("pointerdown", (event) => {
    if (event.offsetX < app.left) return;
    from = event.offsetX;
    strip.setPointerCapture(event.pointerId);
  });
  strip.addEventListener("pointermove", (event) => {
    if (from === null) return;
    app.selecting = range(app, { x: from, y: 0, whole: true }, event.offsetX, 0);
    app.hover();
  });
  strip.addEventListener("pointerup", (event) => {
    if (app.selecting) app.selection.selectRange(app.selecting);
    else if (from !== null) app.journey.showStep(app.ruler.stepAt(view, event.offsetX - app.left, event.offsetY));
    app.selecting = from = null;
  });
}

function minimap(app: App): void {
  const { map, view, minimap: strip } = app;
  let grip: { what: "start" | "end" | "inside"; offset: number } | null = null;
  const at = (event: PointerEvent): number => strip.time(view, event.offsetX - app.left);
  map.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      view.zoom(Math.exp(-event.deltaY * 0.002), view.width / 2);
      app.journey.moved();
    },
    { passive: false },
  );
  map.addEventListener("pointerdown", (event) => {
    map.setPointerCapture(event.pointerId);
    const what = strip.gripAt(view, event.offsetX - app.left);
    const length = view.end - view.start;
    if (what === "outside") view.set(at(event) - length / 2, at(event) + length / 2);
    grip = { what: what === "outside" ? "inside" : what, offset: at(event) - view.start };
    app.journey.moved();
  });
  map.addEventListener("pointermove", (event) => {
    if (!grip) {
      const what = strip.gripAt(view, event.offsetX - app.left);
      map.style.cursor = what === "start" || what === "end" ? "ew-resize" : what === "inside" ? "grab" : "pointer";
      return;
    }
    const length = view.end - view.start;
    if (grip.what === "inside") view.set(at(event) - grip.offset, at(event) - grip.offset + length);
    if (grip.what === "start") view.set(Math.min(at(event), view.end - 10), view.end);
    if (grip.what === "end") view.set(view.start, Math.max(at(event), view.start + 10));
    app.journey.moved();
  });
  const release = (): void => void (grip = null);
  map.addEventListener("pointerup", release);
  map.addEventListener("pointercancel", release);
}

const held = new Set<string>(); // keys that are down, by their place on the keyboard

/** What keys do, by their place on the keyboard for those under the left hand, else by what they write. */
function keys(app: App): void {
  const { view, scroll } = app;
  const zoom = (factor: number) => (): void => {
    view.zoom(factor, view.width / 2);
    app.journey.moved();
  };
  const pan = (share: number) => (): void => {
    view.pan(view.width * share);
    app.journey.moved();
  };
  const placed: Record<string, () => unknown> = {
    KeyW: zoom(1.3),
    KeyS: zoom(1 / 1.3),
    KeyA: pan(-STEP),
    KeyD: pan(STEP),
  };
  const actions: Record<string, () => unknown> = {
    ArrowLeft: () => app.selection.step("left"),
    ArrowRight: () => app.selection.step("right"),
    ArrowUp: () => app.selection.step("up"),
    ArrowDown: () => app.selection.step("down"),
    PageUp: () => (scroll.scrollTop -= scroll.clientHeight * PAGE),
    PageDown: () => (scroll.scrollTop += scroll.clientHeight * PAGE),
    f: () => {
      view.fit();
      app.journey.moved();
    },
    n: () => app.journey.neighbour(1),
    p: () => app.journey.neighbour(-1),
    z: () => app.journey.undo(),
    Z: () => app.journey.redo(),
    "/": () => app.finding.focusSearch(),
    ".": () => app.finding.nextFound(1),
    ",": () => app.finding.nextFound(-1),
    i: () => app.arranging.toggleOverlays(),
    o: () => app.head.overlays.length && app.arranging.nextAbove(),
    c: () => hasCauses(app.head) && app.change({ causes: !app.state.causes }),
    l: () => app.arranging.nextArrows(),
    b: () => app.arranging.nextMode(),
    h: () => app.change({ launches: !app.state.launches }),
    k: () => app.change({ phases: !app.state.phases }),
    u: () => app.arranging.toggleKernels(),
    m: () => app.arranging.toggleFolding(),
    g: () => app.arranging.nextGrouping(),
    "+": () => app.arranging.resizeLanes(1),
    "=": () => app.arranging.resizeLanes(1),
    "-": () => app.arranging.resizeLanes(-1),
    v: () => app.arranging.toggleFigure(),
    t: () => app.arranging.nextTheme(),
    e: () => app.pane.toggle("summary"),
    y: () => app.head.whatif && app.pane.toggle("whatif"),
    r: () => app.pane.toggle("table"),
    "[": () => app.change({ legend: !app.state.legend }),
    "]": () => app.pane.toggleAny(),
    Delete: () => app.selection.hideSelected(),
    Enter: () => {
      const { selected } = app.state;
      if (selected?.what === "gap") app.selection.goToRoot(selected.index);
    },
    "?": () => app.toggleHelp(),
    Escape: () => app.escape(),
  };
  addEventListener("keydown", (event) => {
    if (event.altKey || event.metaKey || event.ctrlKey) return;
    const target = event.target as Element;
    if (target.closest("input, select, textarea, dialog")) return;
    held.add(event.code);
    const control = target.closest("button, summary, [role=button]");
    if (control && (event.key === "Enter" || event.key === " ")) return;
    if (/^[0-9]$/.test(event.key)) return number(app, event.key);
    const action = (event.shiftKey ? undefined : placed[event.code]) ?? actions[event.key];
    if (event.code === "Space") event.preventDefault(); // it would scroll, and here it drags
    if (!action) return;
    event.preventDefault();
    action();
  });
  addEventListener("keyup", (event) => held.delete(event.code));
  addEventListener("blur", () => held.clear());
}

let typed = { text: "", at: -Infinity };

/** Show the step that has a number: of several digits, if they come one soon after the other. */
function number(app: App, digit: string): void {
  const now = performance.now();
  typed = { text: now - typed.at < DIGITS ? typed.text + digit : digit, at: now };
  const step = app.head.steps.find((one) => String(one.step) === typed.text);
  if (step) app.journey.showStep(step);
  else app.toolbar.say(t("no step {step}", { step: typed.text }), true);
}
