// Ranks told apart by what is odd about them: which are folded, and into what.

import type { Head, StandingName } from "./data";
import type { Fold, Group, Grouping } from "./layout";
import { t } from "./words";

const FOLDED_FROM = 64; // ranks
const MOST_ROWS = 96; // of a group that is folded

/** How many ranks stand so. */
export const STANDINGS: Record<StandingName, (count: string) => string> = {
  odd: (count) => t("{count} odd", { count }),
  waits: (count) => t("{count} wait", { count }),
  alike: (count) => t("{count} alike", { count }),
};

/** Which groups are folded when ranks begin to be gathered so. */
export function foldedAtFirst(grouping: Grouping): ReadonlySet<string> {
  return new Set<StandingName>(grouping === "standing" ? ["waits", "alike"] : []);
}

/**
 * How ranks are gathered when a page opens: so many as no screen has room for, by what is odd about them,
 * unless there is nothing odd and no two that do the same.
 */
export function groupingAtFirst(head: Head): Grouping {
  if (head.ranks.length >= FOLDED_FROM && foldable(head)) return "standing";
  return new Set(head.ranks.map(({ host }) => host)).size > 1 ? "host" : "none";
}

/** Whether ranks are told apart, and any is odd or waits, or does the same as another. */
export function foldable({ ranks, standings }: Pick<Head, "ranks" | "standings">): boolean {
  if (!standings.length) return false;
  return standings.some(({ name }) => name !== "alike") || new Set(ranks.map(heldBy)).size < ranks.length;
}

/** The stages of a rank, as a word. */
function heldBy({ stages }: Head["ranks"][number]): string {
  return stages?.join(", ") ?? "";
}

/** How ranks stand, and of each that is odd, why. */
export function told({ ranks, standings }: Head): string {
  const counts = standings.map(({ name }) =>
    STANDINGS[name](ranks.filter(({ standing }) => standing === name).length.toLocaleString("en-US")),
  );
  const odd = ranks.flatMap(({ rank, standing, reason }) =>
    standing === "odd" ? t("rank {rank}: {reason}", { rank, reason: reason ?? "" }) : [],
  );
  return [counts.join(", "), ...odd].join("; ");
}

/** What of a group is one row: the ranks that hold the same stages, and where rows are few, of one replica each. */
export function rowsOfGroup(head: Head, group: Group): Pick<Fold, "key" | "title" | "ranks">[] {
  const apart = group.key === "waits" ? gathered(head, group, true) : []; // replicas wait together
  const rows = apart.length && apart.length <= MOST_ROWS ? apart : gathered(head, group, false);
  const together = Math.ceil(rows.length / MOST_ROWS);
  return Array.from({ length: Math.ceil(rows.length / together) }, (_, at) => {
    const some = rows.slice(at * together, (at + 1) * together);
    const title =
      some.length > 1
        ? `${some[0]!.title} – ${some.at(-1)!.title.replace(t("stage {stage}", { stage: "" }), "")}`
        : some[0]!.title;
    return { key: `${group.key} ${title}`, title, ranks: some.flatMap(({ ranks }) => ranks) };
  });
}

/** The ranks of a group by the stages that they hold, from the first on; of each replica apart, if wanted. */
function gathered(head: Head, group: Group, apart: boolean): Pick<Fold, "title" | "ranks">[] {
  const replicas = new Set(group.ranks.map((rank) => head.ranks[rank]!.dp));
  const place = (rank: number): [replica: number, stage: number] => {
    const { dp, stages } = head.ranks[rank]!;
    return [apart ? (dp ?? -1) : 0, stages?.[0] ?? -1];
  };
  const found = new Map<string, number[]>();
  for (const rank of [...group.ranks].sort((one, other) => {
    const [here, there] = [place(one), place(other)];
    return here[0] - there[0] || here[1] - there[1];
  })) {
    const { dp, stages } = head.ranks[rank]!;
    const held = stages?.length ? t("stage {stage}", { stage: stages.join(", ") }) : t("all ranks");
    const title =
      apart && replicas.size > 1 ? t("{stages} of replica {replica}", { stages: held, replica: dp ?? "?" }) : held;
    found.set(title, [...(found.get(title) ?? []), rank]);
  }
  return [...found].map(([title, ranks]) => ({ title, ranks }));
}
