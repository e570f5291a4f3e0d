// What the pages of ECharts and PixiJS share: the tasks, their colours and how many lanes are in sight.
window.loadTasks = async () => {
  const response = await fetch(`/data/tasks.bin`);
  const plain = response.body.pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(plain).arrayBuffer();
  const head = await (await fetch("/data/tasks.json")).json();
  const { count } = head;
  return {
    ...head,
    start: new Float64Array(buffer, 0, count), // ns from the first task
    length: new Uint32Array(buffer, 8 * count, count), // ns
    lane: new Uint16Array(buffer, 12 * count, count), // tasks are sorted by lane
    kind: new Uint8Array(buffer, 14 * count, count), // index into colours
  };
};

/** How many lanes are in sight; the others are below, as in a page that scrolls. */
window.rowsInSight = (lanes) => Math.min(lanes, Number(new URLSearchParams(location.search).get("rows")));
