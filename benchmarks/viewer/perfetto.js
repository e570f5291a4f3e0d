// Perfetto's UI asks its trace processor, in a worker, for what a view holds and draws again when it is
// told; until then it draws what it has.
(() => {
  const trace = () => window.app?.trace;

  /** Whether there are blocks in the lanes: at least a tenth of the canvas is in strong colours. */
  function drawn() {
    if (!trace()) return false;
    const canvas = [...document.querySelectorAll("canvas")].reduce(
      (best, one) => (one.width * one.height > (best?.width ?? 0) * (best?.height ?? 0) ? one : best),
      null,
    );
    const context = canvas?.getContext("2d");
    if (!context) return false;
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
    let strong = 0;
    let looked = 0;
    for (let i = 0; i < data.length; i += 4 * 7) {
      looked++;
      const [red, green, blue] = [data[i], data[i + 1], data[i + 2]];
      if (data[i + 3] > 200 && Math.max(red, green, blue) - Math.min(red, green, blue) > 60) strong++;
    }
    return strong > looked / 10;
  }

  let idle = null;
  window.bench = {
    ready: drawn,
    show: (from, to) => {
      const { start } = trace().traceInfo;
      trace().timeline.setViewportTime(start + BigInt(Math.round(from)), start + BigInt(Math.round(to)));
      window.raf.syncCanvasRedraw();
      idle = null;
    },
    force: window.readBack,
    busy: () => {
      // Its own test hook says when nothing is under way any more.
      if (idle === null) {
        idle = false;
        window.waitForPerfettoIdle(50).then(() => (idle = true));
      }
      return !idle;
    },
  };
})();
