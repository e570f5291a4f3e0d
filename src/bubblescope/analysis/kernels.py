"""Kernels: how often each ran and how long, where it varies, and what makes a rank slower than others.

docs/kernels.md has the formulas. Everything is of `Timeline.activities`, and, for the time of a rank
that no kernel fills, of `Timeline.budget`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.picture_data import pictured
from bubblescope.model.budget import BUSY, HIDDEN, IDLE, Use
from bubblescope.model.errors import TimelineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.analysis.picture_data import Pictured
    from bubblescope.model.timeline import Timeline

SCHEMA: Final = "bubblescope.kernels/1"
"""Name and version of the JSON, described in docs/kernels.md. Keys are only ever added."""

COLUMNS: Final = ("stage", "kind", "module", "use", "rank", "name", "full")
"""What rows of the table may be told apart by."""
BY: Final = ("stage", "kind", "name")
"""What they are told apart by, unless asked otherwise; beside another run, by name alone."""

LENGTH: Final = (pl.col("end_ns") - pl.col("start_ns")).alias("length_ns")
NO_KERNELS: Final = (
    "the kernels of this run were not kept: they are only if asked for, by "
    "bubblescope.load(..., activities=True), and only traces of devices have them (PyTorch profiler, "
    "Nsight Systems, rocpd)"
)
"""Why a question about kernels has no answer."""


class Effect(msgspec.Struct, frozen=True):
    """How one kernel adds to the difference between two ranks; counts and lengths are sums over steps.

    Attributes:
        name: The kernel.
        use: "compute", "communication" or "copy".
        count, peer_count: How often it ran, on the rank and on its peer.
        total_ns, peer_total_ns: How long in all.
        count_ns: (count - peer_count) x the peer's mean length; the rank's, if the peer has none.
        length_ns: count x (mean length - the peer's mean length): the rest of the difference.
    """

    name: str
    use: str
    count: int
    peer_count: int
    total_ns: int
    peer_total_ns: int
    count_ns: int
    length_ns: int

    @classmethod
    def of(cls, name: str, use: str, now: tuple[int, int], was: tuple[int, int]) -> Effect:
        """Split the difference between count and total of a rank and its peer, to the nanosecond."""
        (count, total), (peer_count, peer_total) = now, was
        more = count - peer_count
        if peer_count and count:
            of_count = (2 * more * peer_total + peer_count) // (2 * peer_count)  # to the nearest
        else:  # the mean of the only one that has it
            of_count = total - peer_total
        of_length = total - peer_total - of_count
        return cls(name, use, count, peer_count, total, peer_total, of_count, of_length)

    @property
    def difference_ns(self) -> int:
        """By how much longer it ran on the rank."""
        return self.total_ns - self.peer_total_ns


class Against(msgspec.Struct, frozen=True):
    """A rank against the median of its peers, over the same steps.

    The median is the peer that differs least from all: it has the least sum of differences in compute,
    exposed communication, exposed copying and idle time. All wait for the slowest, so the lengths of
    their steps tell little.

    `difference_ns` is, to the nanosecond, the sum of the effects of kernels that compute, of
    `overlap_ns`, `communication_ns`, `copy_ns` and `idle`.

    Attributes:
        rank, peer: The two ranks.
        stage: What they share; None if there is no pipeline.
        steps: The steps that both have; empty where there are none, and all time counts.
        time_ns, peer_time_ns: Time of their devices in these steps.
        effects: Of every kernel, the largest difference first. Those that communicate or copy are for
            explanation: what counts of them is what nothing hides.
        overlap_ns: How much less of the lengths of computing kernels is time of its own: they overlap,
            and may reach into the next step.
        communication_ns: Difference in exposed communication.
        copy_ns: Difference in exposed copying.
        idle: Class of idle time -> difference, those that occur.
    """

    rank: int
    peer: int
    stage: int | None
    steps: tuple[int, ...]
    time_ns: int
    peer_time_ns: int
    effects: tuple[Effect, ...]
    overlap_ns: int
    communication_ns: int
    copy_ns: int
    idle: dict[Use, int]

    @property
    def difference_ns(self) -> int:
        """How much longer the rank took."""
        return self.time_ns - self.peer_time_ns

    @property
    def compute_ns(self) -> int:
        """Difference in time with any kernel computing."""
        mine = (one.difference_ns for one in self.effects if one.use == Use.COMPUTE.value)
        return sum(mine) + self.overlap_ns

    @property
    def idle_ns(self) -> int:
        """Difference in idle time."""
        return sum(self.idle.values())

    @property
    def distance_ns(self) -> int:
        """Sum of the differences in what time is spent on, whatever their signs."""
        parts = (self.compute_ns, self.communication_ns, self.copy_ns, self.idle_ns)
        return sum(map(abs, parts))

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        plain = {
            name: msgspec.to_builtins(getattr(self, name))
            for name in self.__struct_fields__
            if name != "idle"
        }
        return {
            **plain,
            "difference_ns": self.difference_ns,
            "compute_ns": self.compute_ns,
            "idle_ns": self.idle_ns,
            "idle": [{"class": use.value, "idle_ns": time} for use, time in self.idle.items()],
        }


class Counted(NamedTuple):
    """What is known of the kernels of a run: as of `Kernels`."""

    timeline: Timeline
    by: tuple[str, ...]
    table: pl.DataFrame
    total_ns: int
    device_ns: int
    against: tuple[Against, ...]
    devices: int


class Kernels(msgspec.Struct, frozen=True, eq=False):
    """Everything that `bubblescope kernels` says about a run.

    Attributes:
        timeline: The run.
        by: What rows are told apart by, of `COLUMNS`.
        table: Frame with the columns of `by`, count, total_ns, share (of the time of all kernels),
            mean_ns, median_ns, p95_ns, microbatch_spread and rank_spread, most time first. The spreads
            are coefficients of variation, null where there is nothing to compare.
        total_ns: Time of all kernels, however they overlap.
        device_ns: Time of the devices, each from its first to its last.
        against: Ranks against the median of their peers, those that differ most first.
        changes: Beside another run, if asked for: frame with the columns of `by`, count, after_count,
            mean_ns, after_mean_ns, total_ns, after_total_ns and difference_ns, the largest first.
            Counts and totals are of a rank in a step.
        labels: What to call the two runs.
        devices: How many devices have kernels.
    """

    timeline: Timeline
    by: tuple[str, ...]
    table: pl.DataFrame
    total_ns: int
    device_ns: int
    against: tuple[Against, ...]
    changes: pl.DataFrame | None = None
    labels: tuple[str, str] = ("A", "B")
    devices: int = 0

    @classmethod
    def of(
        cls,
        timeline: Timeline,
        *,
        by: Sequence[str] | None = None,
        like: Timeline | None = None,
        labels: tuple[str, str] = ("A", "B"),
    ) -> Self:
        """Sum up the kernels of a run.

        Args:
            timeline: The run, read with its activities.
            by: What to tell rows apart by, of `COLUMNS`; if left out, `BY`, and beside another run
                the name alone.
            like: Another run, to set beside it.
            labels: What to call the two.

        Raises:
            TimelineError: A run has no activities, or there is no such column.
        """
        by = known(by if by is not None else BY if like is None else BY[-1:])
        ran = _activities(timeline)
        counted = timeline.budget.filter(~pl.col("use").is_in(HIDDEN_USES))
        return cls(
            timeline,
            by,
            _table(ran, by),
            int(ran["length_ns"].sum()),
            int(counted["spent_ns"].sum()),
            _against(timeline, ran),
            None if like is None else _changes(ran, _activities(like), by),
            labels,
            timeline.activities.select("rank", "device").n_unique(),
        )

    @classmethod
    def of_pieces(cls, found: Counted) -> Self:
        """Return what is said of a run that was looked at in parts."""
        return cls(**found._asdict())

    def pictured(self) -> list[Pictured]:
        """Return what its picture shows: the first step, if there are tasks."""
        return [pictured(self.timeline, max_steps=1)] if len(self.timeline) else []

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, following the schema `SCHEMA`."""
        return {
            "schema": SCHEMA,
            "by": list(self.by),
            "kernels": int(self.table["count"].sum()),
            "total_ns": self.total_ns,
            "device_ns": self.device_ns,
            "rows": self.table.to_dicts(),
            "ranks": [one.to_dict() for one in self.against],
            "labels": None if self.changes is None else list(self.labels),
            "changes": None if self.changes is None else self.changes.to_dicts(),
        }


HIDDEN_USES: Final = [use.value for use in HIDDEN]


def known(by: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that rows are told apart by.

    Raises:
        TimelineError: There is no such column.
    """
    unknown = next((one for one in by if one not in COLUMNS), None)
    if unknown is not None or not by:
        told = f"there is no column {unknown}" if unknown else "no column is given"
        raise TimelineError(f"{told}; kernels can be grouped by {', '.join(COLUMNS)}")
    return tuple(dict.fromkeys(by))


def _activities(timeline: Timeline) -> pl.DataFrame:
    """Return the kernels of a run with their lengths."""
    if not timeline.activities.height:
        raise TimelineError(NO_KERNELS)
    return timeline.activities.with_columns(LENGTH)


def _table(ran: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    length = pl.col("length_ns")
    sums = ran.group_by(by).agg(
        count=pl.len(),
        total_ns=length.sum(),
        median_ns=length.median().round().cast(pl.Int64),
        p95_ns=length.quantile(HIGH, "linear").round().cast(pl.Int64),
    )
    return table_of(sums, _microbatch_spread(ran, by), _rank_spread(ran, by), by)


def table_of(
    sums: pl.DataFrame, within: pl.DataFrame, over: pl.DataFrame, by: Sequence[str]
) -> pl.DataFrame:
    """Return `Kernels.table`.

    Args:
        sums: Frame with the columns of `by`, count, total_ns, median_ns and p95_ns.
        within: As `spread_within` returns it.
        over: As `spread_over` returns it.
        by: What rows are told apart by.
    """
    total = pl.col("total_ns")
    return (
        sums.select(
            *by,
            "count",
            "total_ns",
            share=total / total.sum().clip(1),
            mean_ns=(total / pl.col("count")).round().cast(pl.Int64),
            median_ns="median_ns",
            p95_ns="p95_ns",
        )
        .join(within, on=by, how="left", nulls_equal=True)
        .join(over, on=by, how="left", nulls_equal=True)
        .sort("total_ns", *by, descending=[True, *[False] * len(by)], nulls_last=True)
    )


HIGH: Final = 0.95
"""Share of a kernel's runs that are no longer than `p95_ns`."""


def _microbatch_spread(ran: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    return spread_within(varied(ran, by), by)


def varied(ran: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return how much the time that a micro-batch takes varies within the steps of some ranks.

    Returns:
        Frame with the columns of `by`, and mean and variance, summed over the `of` steps of ranks with
        several micro-batches.
    """
    place = list(dict.fromkeys([*by, "rank", "step"]))
    length = pl.col("length_ns")
    return (
        ran.drop_nulls("microbatch")
        .group_by(list(dict.fromkeys([*place, "microbatch"])))
        .agg(length.sum())
        .group_by(place)
        .agg(mean=length.mean(), variance=length.var(ddof=0), several=pl.len() > 1)
        .filter("several")
        .group_by(by)
        .agg(pl.col("mean", "variance").sum(), of=pl.len())
    )


def spread_within(each: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return how much the time that a micro-batch takes varies within a step of a rank.

    It is sqrt(mean of the variances) / mean, over the steps of all ranks with several micro-batches.

    Args:
        each: As `varied` returns it, once or of several batches of ranks.
        by: What rows are told apart by.
    """
    mean = pl.col("mean") / pl.col("of")
    spread = (pl.col("variance") / pl.col("of")).sqrt() / mean
    sums = each.group_by(by).agg(pl.col("mean", "variance", "of").sum())
    return sums.select(*by, microbatch_spread=pl.when(mean > 0).then(spread))


def _rank_spread(ran: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    return spread_over(of_ranks(ran, by), by)


def of_ranks(ran: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the columns of `by`, rank, and how long a kernel took in a step of it, the mean."""
    steps = ran.group_by("rank").agg(steps=pl.col("step").drop_nulls().n_unique().clip(1))
    place = list(dict.fromkeys([*by, "rank"]))
    return (
        ran.group_by(place)
        .agg(pl.col("length_ns").sum())
        .join(steps, on="rank")
        .select(*place, a_step=pl.col("length_ns") / pl.col("steps"))
    )


def spread_over(each: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return how much the time in a step varies over the ranks that have a kernel: deviation / mean.

    Args:
        each: As `of_ranks` returns it, of all ranks.
        by: What rows are told apart by.
    """
    mean = pl.col("a_step").mean()
    return (
        each.sort("rank")
        .group_by(by)
        .agg(
            rank_spread=pl.when((pl.len() > 1) & (mean > 0)).then(
                pl.col("a_step").std(ddof=0) / mean
            )
        )
    )


def _against(timeline: Timeline, ran: pl.DataFrame) -> tuple[Against, ...]:
    """Compare each rank with the median of those that do the same work."""
    spent = timeline.budget.filter(~pl.col("use").is_in(HIDDEN_USES))
    known = ran["rank"].unique().to_list()
    peers = peers_of(timeline.ranks, known, spent.select("rank", "step").unique())
    return against(peers, *(summed(frame, peers) for frame in (spent, ran)))


class Peers(NamedTuple):
    """Ranks that do the same work.

    Attributes:
        stage: What they share; None if there is no pipeline.
        members: The ranks.
        steps: The steps that all of them have; None where no steps are known, and all time counts.
    """

    stage: int | None
    members: list[int]
    steps: list[int] | None


def peers_of(ranks: pl.DataFrame, known: Sequence[int], steps: pl.DataFrame) -> list[Peers]:
    """Return the ranks that are compared with each other.

    Args:
        ranks: All ranks, as in `Timeline.ranks`.
        known: Those with kernels.
        steps: Frame with rank and step, unique: of which devices' time is known.
    """
    both = set(known) & set(steps["rank"].unique())
    ranks = ranks.filter(pl.col("rank").is_in(list(both)))
    pipelined = ranks["stages"].n_unique() > 1
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, stages in ranks.select("rank", "stages").iter_rows():
        groups.setdefault(tuple(stages or ()) if pipelined else (), []).append(rank)
    held = {rank: set(own["step"].drop_nulls()) for (rank,), own in steps.group_by("rank")}
    found = []
    for stages, members in groups.items():
        common = set.intersection(*(held[rank] for rank in members))
        stepped = any(held[rank] for rank in members)
        if len(members) > 1 and (common or not stepped):
            stage = stages[0] if stages else None
            found.append(Peers(stage, members, sorted(common) if stepped else None))
    return found


def summed(rows: pl.DataFrame, peers: Sequence[Peers]) -> pl.DataFrame:
    """Return what ranks spent in the steps that they share with their peers.

    Args:
        rows: Those of the budget, or kernels with their lengths; of some ranks or all.
        peers: As `peers_of` returns it.

    Returns:
        Frame with rank, use and spent_ns; of kernels rank, name, use, count and total_ns.
    """
    within = [
        pl.col("rank").is_in(one.members)
        & (pl.lit(value=True) if one.steps is None else pl.col("step").is_in(one.steps))
        for one in peers
    ]
    mine = rows.filter(pl.any_horizontal(pl.lit(value=False), *within))
    if "spent_ns" in rows.columns:
        return mine.group_by("rank", "use").agg(pl.col("spent_ns").sum())
    sums = {"count": pl.len(), "total_ns": pl.col("length_ns").sum()}
    return mine.group_by("rank", "name", "use").agg(**sums)


def against(peers: Sequence[Peers], spent: pl.DataFrame, ran: pl.DataFrame) -> tuple[Against, ...]:
    """Compare each rank with the median of its peers.

    Args:
        peers: As `peers_of` returns it.
        spent: As `summed` returns it, of the budget of all ranks.
        ran: The same of their kernels.
    """
    uses: dict[int, dict[str, int]] = {rank: {} for one in peers for rank in one.members}
    for rank, use, time in spent.iter_rows():
        uses[rank][use] = time
    totals: dict[int, dict[tuple[str, str], tuple[int, int]]] = {rank: {} for rank in uses}
    for rank, name, use, count, total in ran.iter_rows():
        totals[rank][name, use] = (count, total)
    found = []
    for stage, members, steps in peers:
        peer = _median(members, uses)
        found += [
            _difference(rank, peer, stage, tuple(steps or ()), uses, totals)
            for rank in members
            if rank != peer
        ]
    return tuple(sorted(found, key=lambda one: (-one.distance_ns, one.rank)))


def _median(members: list[int], uses: dict[int, dict[str, int]]) -> int:
    """Return the rank that differs least from all; of equals, that which computes least."""
    spent = np.array(
        [
            [
                *(uses[rank].get(use.value, 0) for use in BUSY),
                sum(uses[rank].get(use.value, 0) for use in IDLE),
            ]
            for rank in members
        ],
        np.int64,
    )
    distance = [int(np.abs(spent - one).sum()) for one in spent]
    return min(zip(distance, spent[:, 0].tolist(), members, strict=True))[2]


_NONE: Final = (0, 0)
"""Count and total of a kernel that a rank does not have."""


def _difference(
    rank: int,
    peer: int,
    stage: int | None,
    steps: tuple[int, ...],
    uses: dict[int, dict[str, int]],
    totals: dict[int, dict[tuple[str, str], tuple[int, int]]],
) -> Against:
    now, was = totals[rank], totals[peer]
    effects = [
        Effect.of(name, use, now.get((name, use), _NONE), was.get((name, use), _NONE))
        for name, use in {**now, **was}
    ]
    effects.sort(key=lambda one: (-abs(one.difference_ns), one.name, one.use))

    def more(use: Use) -> int:
        return uses[rank].get(use.value, 0) - uses[peer].get(use.value, 0)

    computed = sum(one.difference_ns for one in effects if one.use == Use.COMPUTE.value)
    return Against(
        rank=rank,
        peer=peer,
        stage=stage,
        steps=steps,
        time_ns=sum(uses[rank].values()),
        peer_time_ns=sum(uses[peer].values()),
        effects=tuple(effects),
        overlap_ns=more(Use.COMPUTE) - computed,
        communication_ns=more(Use.COMMUNICATION),
        copy_ns=more(Use.COPY),
        idle={use: more(use) for use in IDLE if use.value in uses[rank] or use.value in uses[peer]},
    )


def _changes(before: pl.DataFrame, after: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Set two runs side by side; counts and totals are of a rank in a step."""
    sides = [_of_a_step(before, by), _of_a_step(after, by)]
    number = [f"{name}{side}" for name in ("count", "total_ns") for side in ("", "_after")]
    return (
        sides[0]
        .join(sides[1], on=by, how="full", coalesce=True, nulls_equal=True, suffix="_after")
        .with_columns(pl.col(number).fill_null(0))
        .with_columns(difference_ns=pl.col("total_ns_after") - pl.col("total_ns"))
        .select(
            *by,
            "count",
            "mean_ns",
            "total_ns",
            "difference_ns",
            after_count="count_after",
            after_mean_ns="mean_ns_after",
            after_total_ns="total_ns_after",
        )
        .select(*by, *_CHANGE)
        .sort(
            pl.col("difference_ns").abs(),
            *by,
            descending=[True, *[False] * len(by)],
            nulls_last=True,
        )
    )


_CHANGE: Final = (
    "count",
    "after_count",
    "mean_ns",
    "after_mean_ns",
    "total_ns",
    "after_total_ns",
    "difference_ns",
)


def _of_a_step(ran: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return count, mean and total of each row: what ran in no step is of no interest if any did."""
    inside = ran.drop_nulls("step")
    ran = inside if inside.height else ran
    parts = ran.select("rank", "step").n_unique()
    length = pl.col("length_ns")
    return ran.group_by(by).agg(
        count=pl.len() / parts,
        mean_ns=length.mean().round().cast(pl.Int64),
        total_ns=(length.sum() / parts).round().cast(pl.Int64),
    )
