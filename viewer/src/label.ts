// What is written on a block.

import { rowOf, type Head, type Tasks } from "./data";
import { duration } from "./units";

/** Kind and micro-batch, and the chunk where ranks have several: "F3" or "F3.1". */
export function short(head: Head, tasks: Tasks, index: number): string {
  const microbatch = tasks.microbatch[index] < 0 ? "" : String(tasks.microbatch[index]);
  const chunk = head.chunks && tasks.chunk[index] >= 0 ? `.${tasks.chunk[index]}` : "";
  return head.kinds[tasks.kind[index]].short + microbatch + chunk;
}

export function long(head: Head, tasks: Tasks, index: number): string {
  return `${short(head, tasks, index)}  ${duration(tasks.end[index] - tasks.start[index])}`;
}

/** What a task is called and where it ran. */
export function whose(head: Head, tasks: Tasks, index: number): string {
  return `${short(head, tasks, index)} on rank ${head.ranks[rowOf(head, index).rank].rank}`;
}
