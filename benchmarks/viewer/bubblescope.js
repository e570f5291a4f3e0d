// Our page draws at once when it is told to, as it would if someone moved it: what a frame has no time for
// it does in the next.
(() => {
  const app = () => window.bubblescope.app;
  window.bench = {
    ready: () => Boolean(window.bubblescope),
    show: (from, to) => {
      app().view.set(from, to);
      app().draw();
    },
    force: window.readBack,
  };
})();
