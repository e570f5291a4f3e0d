// Our page draws at once when it is told to.
(() => {
  const page = () => window.bubblescope;
  window.bench = {
    ready: () => Boolean(page()),
    show: (from, to) => page().show(from, to),
    force: window.readBack,
  };
})();
