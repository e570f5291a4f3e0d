// Ranks told apart by what is odd about them: which are folded, and into what.

import type { Head, StandingName } from "./data";
import type { Fold, Group, Grouping } from "./layout";

const FOLDED_FROM = 64; // ranks
const MOST_STAGES = 96; // of a group that have a sum each

/** How many ranks stand so, after their number. */
export const STANDINGS: Record<StandingName, string> = { odd: "odd", waits: "wait", alike: "alike" };

/** Which groups are folded when ranks begin to be gathered so. */
export function foldedAtFirst(grouping: Grouping): ReadonlySet<string> {
  return new Set(grouping === "standing" ? ["waits", "alike"] : []);
}

/** How ranks are gathered when a page opens: so many as no screen has room for, by what is odd about them. */
export function groupingAtFirst({ ranks, standings }: Head): Grouping {
  if (ranks.length >= FOLDED_FROM && standings.length) return "standing";
  return new Set(ranks.map(({ host }) => host)).size > 1 ? "host" : "none";
}

/** How ranks stand, and of each that is odd, why. */
export function told({ ranks, standings }: Head): string {
  const counts = standings.map(
    ({ name }) =>
      `${ranks.filter(({ standing }) => standing === name).length.toLocaleString("en-US")} ${STANDINGS[name]}`,
  );
  const odd = ranks.flatMap(({ rank, standing, reason }) => (standing === "odd" ? `rank ${rank}: ${reason}` : []));
  return [counts.join(", "), ...odd].join("; ");
}

/** The ranks of a group by the stages that they hold, from the first on. */
export function byStage(head: Head, group: Group): Pick<Fold, "key" | "title" | "ranks">[] {
  const found = new Map<string, number[]>();
  const first = (rank: number): number => head.ranks[rank]!.stages?.[0] ?? -1;
  for (const rank of [...group.ranks].sort((one, other) => first(one) - first(other))) {
    const held = head.ranks[rank]!.stages?.join(", ") ?? "";
    found.set(held, [...(found.get(held) ?? []), rank]);
  }
  const held = [...found];
  const together = Math.ceil(held.length / MOST_STAGES);
  return Array.from({ length: Math.ceil(held.length / together) }, (_, at) => {
    const some = held.slice(at * together, (at + 1) * together);
    const stages = some.length > 1 ? `${some[0]![0]} – ${some.at(-1)![0]}` : some[0]![0];
    const title = stages === "" ? "all ranks" : `stage ${stages}`;
    return { key: `${group.key} ${title}`, title, ranks: some.flatMap(([, ranks]) => ranks) };
  });
}
