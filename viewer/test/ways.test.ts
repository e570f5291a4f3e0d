import { describe, expect, test } from "vitest";
import type { Arrow } from "../src/arrows";
import { arrowsAlong, criticalPath, wayOf } from "../src/ways";
import { made, random, whole, type Task } from "./made";

/** A pipeline of random lengths in which nothing waits but for its device and what feeds it. */
function pipeline(seed: number) {
  const next = random(seed);
  const [stages, microbatches] = [whole(next, 1, 6), whole(next, 1, 8)];
  const rows: { rank: number; tasks: Task[] }[] = Array.from({ length: stages }, (_, rank) => ({ rank, tasks: [] }));
  const links: Arrow[] = [];
  const end: number[][] = [];
  const add = (stage: number, kind: "forward" | "backward", microbatch: number, ready: number): number => {
    const { tasks } = rows[stage]!;
    const start = Math.max(ready, tasks.at(-1)?.end ?? 0);
    const stop = start + whole(next, 1, 50);
    tasks.push({ start, end: stop, kind, microbatch, stage, step: 4 });
    return stop;
  };
  for (let mb = 0; mb < microbatches; mb++) {
    end.push([]);
    for (let stage = 0; stage < stages; stage++) end[mb]!.push(add(stage, "forward", mb, end[mb]![stage - 1] ?? 0));
  }
  for (let mb = 0; mb < microbatches; mb++) {
    let done = end[mb]![stages - 1]!;
    for (let stage = stages - 1; stage >= 0; stage--) done = add(stage, "backward", mb, done);
  }
  const at = (stage: number, kind: string, microbatch: number): number =>
    rows.slice(0, stage).reduce((sum, { tasks }) => sum + tasks.length, 0) +
    rows[stage]!.tasks.findIndex((task) => task.kind === kind && task.microbatch === microbatch);
  for (let mb = 0; mb < microbatches; mb++) {
    for (let stage = 0; stage + 1 < stages; stage++) {
      links.push([at(stage, "forward", mb), at(stage + 1, "forward", mb)]);
      links.push([at(stage + 1, "backward", mb), at(stage, "backward", mb)]);
    }
    links.push([at(stages - 1, "forward", mb), at(stages - 1, "backward", mb)]);
  }
  links.sort((one, other) => one[0] - other[0]);
  return { ...made({ rows, links }), stages, microbatches };
}

describe.each(Array.from({ length: 25 }, (_, seed) => seed))("a run in which nothing waits in vain, %d", (seed) => {
  const { head, data, stages } = pipeline(seed);
  const { tasks } = data;

  test("its critical path is as long as the run: nothing on it waits", () => {
    const path = criticalPath(4, head, data);
    const first = Math.min(...tasks.start);
    expect(tasks.start[path[0]!]).toBe(first);
    for (const [one, other] of arrowsAlong(path)) expect(tasks.start[other]).toBe(tasks.end[one]);
    expect(tasks.end[path.at(-1)!]).toBe(Math.max(...tasks.end));
  });

  test("a micro-batch's way goes through every stage twice, whichever of its tasks one looks at", () => {
    const own = [...tasks.microbatch].flatMap((microbatch, task) => (microbatch === 0 ? [task] : []));
    const ways = own.map((task) => new Set(wayOf(task, data).map((arrow) => arrow.join("→"))));
    for (const way of ways) expect(way.size).toBe(2 * stages - 1);
    for (const way of ways) expect([...way].sort()).toEqual([...ways[0]!].sort());
  });
});

test("of a step that there is not, there is no path", () => {
  const { head, data } = pipeline(1);
  expect(criticalPath(9, head, data)).toEqual([]);
});
