// What is written on a block.

import type { Head, Tasks } from "./data";
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
