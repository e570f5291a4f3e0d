// Runs in every page before its own scripts. The page, or an adapter, sets window.bench:
//   ready()         whether the first picture is drawn
//   show(from, to)  go to a view, in nanoseconds from the first task, and draw it
//   force()         make the browser finish what was drawn
//   busy()          whether the picture will still change by itself (only where drawing is asynchronous)
(() => {
  const frame = () => new Promise((done) => requestAnimationFrame(() => done(performance.now())));

  const state = { first: null, frames: [], draws: [], settled: [], done: false, error: null };
  window.measured = state;
  addEventListener("error", (event) => (state.error ??= event.message));
  addEventListener("unhandledrejection", (event) => {
    // Perfetto's UI asks for news that are not to be had here.
    if (!String(event.reason).includes("Failed to fetch")) state.error ??= String(event.reason);
  });

  async function watch() {
    while (!window.bench?.ready()) await frame();
    window.bench.force();
    state.first = await frame();
  }
  watch().catch((error) => (state.error ??= String(error)));

  /** Go through views, one for each frame; a frame lasts from one animation frame to the next. */
  async function play(views) {
    state.done = false;
    let before = await frame();
    for (const [from, to] of views) {
      const began = performance.now();
      window.bench.show(from, to);
      window.bench.force();
      state.draws.push(performance.now() - began);
      const now = await frame();
      state.frames.push(now - before);
      before = now;
    }
    state.done = true;
  }

  /** Go to each view and wait until its picture is final. */
  async function settle(views) {
    state.done = false;
    for (const [from, to] of views) {
      await frame();
      const began = performance.now();
      window.bench.show(from, to);
      window.bench.force();
      await frame();
      let last = performance.now();
      // A quiet time of 0.2 s: work of one view may pause for a moment.
      for (let now = last; now - last < 200; now = await frame()) {
        if (window.bench.busy?.()) last = performance.now();
      }
      state.settled.push(last - began);
    }
    state.done = true;
  }

  const started = (promise) => void promise.catch((error) => (state.error ??= String(error)));
  window.drive = {
    play: (views) => setTimeout(() => started(play(views))),
    settle: (views) => setTimeout(() => started(settle(views))),
  };

  /** Read a pixel of every plain canvas, so that what was drawn onto them is really drawn. */
  window.readBack = () => {
    for (const canvas of document.querySelectorAll("canvas")) {
      if (canvas.width && canvas.height) canvas.getContext("2d")?.getImageData(0, 0, 1, 1);
    }
  };
})();
