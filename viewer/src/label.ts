// What is written on a block.

import { rowOf, type Head, type Tasks } from "./data";
import { duration } from "./units";

/** Kind and micro-batch, and the chunk where ranks have several: "F3" or "F3.1"; of a pair both: "F3+B1". */
export function short(head: Head, tasks: Tasks, index: number): string {
  const label = head.kinds[tasks.kind[index]].short;
  const own = numbered(head, tasks.microbatch[index], tasks.chunk[index]);
  if (tasks.pair[index] < 0) return label + own;
  return `F${own}+B${numbered(head, tasks.pair[index], tasks.pairChunk[index])}`;
}

function numbered(head: Head, microbatch: number, chunk: number): string {
  return (microbatch < 0 ? "" : String(microbatch)) + (head.chunks && chunk >= 0 ? `.${chunk}` : "");
}

export function long(head: Head, tasks: Tasks, index: number): string {
  return `${short(head, tasks, index)}  ${duration(tasks.end[index] - tasks.start[index])}`;
}

/** What a task is called and where it ran. */
export function whose(head: Head, tasks: Tasks, index: number): string {
  return `${short(head, tasks, index)} on rank ${head.ranks[rowOf(head, index).rank].rank}`;
}
