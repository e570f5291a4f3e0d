// Kernels: what ran in a stretch of time, and what is said of one.

import {
  extentAt,
  firstEndingAfter,
  type Data,
  type Head,
  type KernelHead,
  type KernelRow,
  type Kernels,
  type Tasks,
} from "./data";
import { element, list, shortened, swatch, type Fact } from "./dom";
import { duration, exact, percent } from "./units";
import type { Inside } from "./schema";
import { nameOf, t } from "./words";

export const TOP = 5; // names of which the details of a task say how long they took
const NAME = 60; // letters of a kernel's name in a line

/** Sum up what ran in a stretch of time on a rank, by index. */
export function inside(head: Head, kernels: Kernels, rank: number, begin: number, stop: number): Inside {
  const { start, end, cut, use, name } = kernels;
  const rows = head.kernel_rows
    .filter((row) => row.rank === rank)
    .map(({ from, to }) => ({ at: firstEndingAfter(end, from, to, begin), to }))
    .filter(({ at, to }) => at < to);
  const took = new Float64Array(head.kernels?.names.length ?? 0);
  const counts = new Uint32Array(took.length);
  // How long any of use 0 ran, any of 0 or 1, and any of all: how far each has reached, and its sum.
  const reached = [begin, begin, begin];
  const covered = [0, 0, 0];
  let count = 0;
  for (;;) {
    // The next in the order of their starts, of all rows: in each they are in that order.
    let next = -1;
    let first = stop;
    for (let at = 0; at < rows.length; at++) {
      const began = start[rows[at]!.at]! - cut[rows[at]!.at]!;
      if (began >= first) continue;
      [next, first] = [at, began];
    }
    if (next < 0) break;
    const row = rows[next]!;
    const from = Math.max(begin, first);
    const to = Math.min(stop, end[row.at]!);
    if (to > begin || end[row.at]! > begin) {
      count++;
      took[name[row.at]!]! += to - from;
      counts[name[row.at]!]!++;
      for (let least = use[row.at]!; least < covered.length; least++) {
        covered[least]! += Math.max(0, to - Math.max(from, reached[least]!));
        reached[least] = Math.max(reached[least]!, to);
      }
    }
    if (++row.at >= row.to) rows.splice(next, 1);
  }
  const top = Array.from(took.keys())
    .filter((one) => counts[one])
    .sort((one, other) => took[other]! - took[one]! || one - other)
    .slice(0, TOP)
    .map((one): [number, number, number] => [one, took[one]!, counts[one]!]);
  return {
    count,
    compute: covered[0]!,
    communication: covered[1]! - covered[0]!,
    copy: covered[2]! - covered[1]!,
    top,
  };
}

/** What the device did in a task, as far as it is known: of its kernels, or else from sums. */
export function insideFacts(tasks: Tasks, index: number, found: Inside | null): Fact[] {
  const length = tasks.end[index]! - tasks.start[index]!;
  if (!(length > 0)) return found ? [[t("kernels"), String(found.count)]] : [];
  const sums = found ?? summed(tasks, index);
  const share = (ns: number): string => (ns === 0 ? t("none") : `${percent(ns / length)} · ${duration(ns)}`);
  if (!sums) {
    const busy = tasks.busy[index]!;
    return busy < 0
      ? []
      : [
          [t("kernels running"), percent(busy / length)],
          [t("idle inside"), share(length - busy)],
        ];
  }
  const { compute, communication, copy } = sums;
  return [
    [t("kernels"), found ? t("{count}, with copies", { count: found.count.toLocaleString("en-US") }) : null],
    [t("computing"), share(compute)],
    [t("exposed communication"), share(communication)],
    [t("exposed copies"), copy > 0 ? share(copy) : null],
    [t("idle inside"), share(Math.max(0, length - compute - communication - copy))],
  ];
}

function summed({ computing, communicating, copying }: Tasks, index: number): Omit<Inside, "count" | "top"> | null {
  if (!computing || !communicating || !copying || computing[index]! < 0) return null;
  return { compute: computing[index]!, communication: communicating[index]!, copy: copying[index]! };
}

/** The names that took longest in a task. */
export function longest(known: KernelHead, { top }: Inside): HTMLElement[] {
  if (!top.length) return [];
  const facts = top.map(([name, ns, count]): Fact => [
    `${duration(ns)} · ${count.toLocaleString("en-US")} ×`,
    shortened(known.names[name]![0], NAME),
  ]);
  const made = list(facts);
  made.className = "longest";
  return [element("h3", {}, t("kernels that took longest, in all")), made];
}

export function kernelRowOf(head: Head, kernel: number): KernelRow {
  return head.kernel_rows[extentAt(head.kernel_rows, kernel)]!;
}

/** When a kernel began, though the one before it in its stream may not have ended. */
export function began({ start, cut }: Kernels, index: number): number {
  return start[index]! - cut[index]!;
}

/** The stream, and the device where the rank has several. */
export function streamOf(head: Head, { rank, device, stream }: KernelRow): string {
  const several = head.kernel_rows.some((row) => row.rank === rank && row.device !== device);
  const name = stream < 0 ? t("stream unknown") : t("stream {stream}", { stream });
  return several ? `${t("device {device}", { device })} · ${name}` : name;
}

export function kernelTooltip(head: Head, { kernels }: Data, index: number): string {
  const { names, modules } = head.kernels!;
  const { name, module, lead, end } = kernels;
  const lines = [`${shortened(names[name[index]!]![0], 2 * NAME)}  ${duration(end[index]! - began(kernels, index))}`];
  if (module[index]! >= 0) lines.push(t("module {module}", { module: shortened(modules[module[index]!]!, 2 * NAME) }));
  lines.push(streamOf(head, kernelRowOf(head, index)));
  if (lead[index]! >= 0) lines.push(t("started {time} after its launch", { time: duration(lead[index]!) }));
  return lines.join("\n");
}

/** All that is known of a kernel. @param utc writes a time */
export function kernelDetails(
  head: Head,
  { kernels }: Data,
  index: number,
  utc: (time: number) => string,
): HTMLElement {
  const { names, modules, uses } = head.kernels!;
  const [short, full] = names[kernels.name[index]!]!;
  const row = kernelRowOf(head, index);
  const start = began(kernels, index);
  const [length, module, lead] = [kernels.end[index]! - start, kernels.module[index]!, kernels.lead[index]!];
  const { name, fill, dark } = uses[kernels.use[index]!]!;
  const facts: Fact[] = [
    [t("duration"), `${duration(length)} (${exact(length)})`],
    [t("use"), nameOf(name)],
    [t("module"), module < 0 ? null : shortened(modules[module]!)],
    [t("rank"), String(head.ranks[row.rank]!.rank)],
    [t("stream"), streamOf(head, row)],
    [t("start"), utc(start)],
    [t("end"), utc(start + length)],
    [t("launched before"), lead < 0 ? null : duration(lead)],
    [t("name in the trace"), shortened(full)],
  ];
  return element(
    "div",
    { class: "details" },
    element("h2", {}, swatch(fill, dark.fill), shortened(short, 2 * NAME)),
    list(facts),
  );
}
