// What is written on a block.

import { rowOf, type Head, type Tasks } from "./data";
import { duration } from "./units";
import { t } from "./words";

const NAME = 80; // letters of a task's own name

/** Whether a task's label is its own name: it is of no known kind. */
export function named(head: Head, tasks: Tasks, index: number): boolean {
  return head.kinds[tasks.kind[index]!]!.name === "other" && head.names[tasks.name[index]!] !== "";
}

/**
 * Kind and micro-batch, and the chunk where ranks have several: "F3" or "F3.1"; of a pair both: "F3+B1".
 * Of a task of no known kind its own name.
 */
export function short(head: Head, tasks: Tasks, index: number): string {
  if (named(head, tasks, index)) return cut(head.names[tasks.name[index]!]!);
  const label = head.kinds[tasks.kind[index]!]!.short;
  const own = numbered(head, tasks.microbatch[index]!, tasks.chunk[index]!);
  if (tasks.pair[index]! < 0) return label + own;
  return `F${own}+B${numbered(head, tasks.pair[index]!, tasks.pairChunk[index]!)}`;
}

/** PyTorch's profiler calls every module's range so: what is the same on all of them says nothing. */
const MODULE = "nn.Module: " as const;

function cut(whole: string): string {
  const name = whole.startsWith(MODULE) ? whole.slice(MODULE.length) : whole;
  return name.length <= NAME ? name : `${name.slice(0, NAME)}…`;
}

function numbered(head: Head, microbatch: number, chunk: number): string {
  return (microbatch < 0 ? "" : String(microbatch)) + (head.chunks > 1 && chunk >= 0 ? `.${chunk}` : "");
}

export function long(head: Head, tasks: Tasks, index: number): string {
  return `${short(head, tasks, index)}  ${duration(tasks.end[index]! - tasks.start[index]!)}`;
}

/** What a task is called and where it ran. */
export function whose(head: Head, tasks: Tasks, index: number): string {
  return t("{task} on rank {rank}", {
    task: short(head, tasks, index),
    rank: head.ranks[rowOf(head, index).rank]!.rank,
  });
}
