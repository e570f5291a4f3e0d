"""One clock for ranks that share none, from what must come before what.

A forward of micro-batch m cannot start on a stage before it has ended on the stage before, nor a
backward before it has ended on the stage after. With o the offset to be added to a rank's times, each
such pair of tasks on ranks a and b says

    o_b - o_a >= end_a - start_b,

a system of difference constraints. Longest paths through it bound every offset from below and, going
the other way, from above (Cormen et al., "Introduction to Algorithms", on difference constraints and
shortest paths). Forward traffic bounds from one side and backward traffic from the other, as the
two directions of a message exchange do in NTP (RFC 5905); the middle, which is taken, is right if the
fastest transfers take equally long both ways, and never off by more than half the width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope import units
from bubblescope.timeline import Notice, Timeline
from bubblescope.vocabulary import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["align"]

_NEVER: Final = -(2**60)
_FORWARD: Final = [Kind.FORWARD.value, Kind.FORWARD_BACKWARD.value]
_BACKWARD: Final = [Kind.BACKWARD.value, Kind.BACKWARD_INPUT.value]
_TIMES: Final = ("start_ns", "end_ns", "host_start_ns", "host_end_ns")


def align(timeline: Timeline) -> Timeline:
    """Shift the ranks of a timeline so that causes come before their effects.

    Where ranks share no clock, every step has a zero of its own on each rank and is aligned by
    itself; otherwise each rank is shifted once. The first rank of each group of connected ranks stays
    where it is. What cannot be aligned is left as it is, and said.

    Returns:
        The timeline with `clock_offset_ns` and `clock_error_ns` (half the width of what is feasible,
        the largest over the steps) of its ranks, and a notice of how it was aligned.
    """
    tasks = timeline.tasks
    pairs = _pairs(tasks)
    by_step = not timeline.run.common_clock
    shifts, errors, contradictions = [], [], []
    total = 0
    groups = (
        pairs.drop_nulls("step").partition_by("step", maintain_order=True) if by_step else [pairs]
    )
    for group in groups:
        total += group.height
        step = group["step"][0] if by_step and group.height else None
        for part in _connected(group):
            solved = _solve(part)
            if isinstance(solved, _Contradiction):
                contradictions.append((step, solved))
                continue
            for rank, offset, error in zip(*solved, strict=True):
                shifts.append((step, rank, offset))
                errors.append((rank, error))
    if not shifts:
        return timeline.with_notices(*_refusal(contradictions))
    shift = pl.DataFrame(
        shifts, schema={"step": pl.Int32, "rank": pl.Int32, "shift": pl.Int64}, orient="row"
    )
    keys = ["step", "rank"] if by_step else ["rank"]
    moved = (
        tasks.join(shift.select(*keys, "shift"), on=keys, how="left", maintain_order="left")
        .with_columns(pl.col(_TIMES) + pl.col("shift").fill_null(0))
        .drop("shift")
    )
    worst = (
        pl.DataFrame(errors, schema={"rank": pl.Int32, "error": pl.Int64}, orient="row")
        .group_by("rank")
        .agg(pl.col("error").max())
    )
    ranks = timeline.ranks.join(worst, on="rank", how="left").with_columns(
        clock_error_ns=pl.coalesce("error", "clock_error_ns")
    )
    if not by_step:
        ranks = ranks.join(shift.select("rank", "shift"), on="rank", how="left").with_columns(
            clock_offset_ns=pl.coalesce(
                pl.col("clock_offset_ns").fill_null(0) + pl.col("shift"), "clock_offset_ns"
            )
        )
    aligned = set(shift["rank"].to_list()) >= set(tasks["rank"].to_list())
    whole = aligned and not contradictions
    run = msgspec.structs.replace(
        timeline.run,
        common_clock=timeline.run.common_clock or whole,
        inferred={**timeline.run.inferred, "clock": "forwards and backwards between stages"},
        warnings=tuple(
            notice for notice in timeline.run.warnings if not whole or notice.code not in _SETTLED
        ),
    )
    error = max(error for _, error in errors)
    notice = Notice(
        "clocks-aligned",
        f"the clocks of {worst.height} of {timeline.ranks.height} ranks were aligned by {total:,} "
        f"pairs of tasks of which one must come before the other; times of different ranks are "
        f"uncertain by up to ±{units.duration(error)}",
    )
    kept = ranks.select(timeline.ranks.columns)
    return Timeline(moved, kept, run).with_notices(notice, *_refusal(contradictions))


_SETTLED: Final = frozenset({"no-common-clock", "clocks-unchecked"})


class _Contradiction(NamedTuple):
    """Two pairs of tasks that no clock satisfies, and by how much."""

    excess_ns: int
    pairs: tuple[str, ...]


def _pairs(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return each pair of tasks on two ranks of which one must come before the other.

    Of an overlapped pair no one knows when either half ran: its forward is taken to end no sooner
    than the whole starts, and to start no later than the whole ends.
    """
    both = pl.col("kind") == Kind.FORWARD_BACKWARD.value
    halves = tasks.with_columns(
        pl.col("kind").cast(pl.String),
        start=pl.when(both).then("end_ns").otherwise("start_ns"),
        end=pl.when(both).then("start_ns").otherwise("end_ns"),
    )
    columns = ["rank", "step", "stage", "microbatch", "start", "end", "name"]
    forwards = halves.filter(pl.col("kind").is_in(_FORWARD)).select(columns)
    backwards = pl.concat(
        [
            halves.filter(pl.col("kind").is_in(_BACKWARD)).select(columns),
            halves.filter(both)
            .with_columns(stage="pair_stage", microbatch="pair_microbatch")
            .select(columns),
        ]
    )
    found = []
    for passes, next_stage in ((forwards, 1), (backwards, -1)):
        known = passes.drop_nulls(["stage", "microbatch"])
        replica = _with_replica(known)
        found.append(
            replica.with_columns(stage=pl.col("stage") + next_stage)
            .join(
                replica,
                on=["step", "stage", "microbatch", "replica"],
                suffix="_b",
                nulls_equal=True,
            )
            .filter(pl.col("rank") != pl.col("rank_b"))
            .select(
                "step",
                a="rank",
                b="rank_b",
                bound=pl.col("end") - pl.col("start_b"),
                cause="name",
                effect="name_b",
            )
        )
    return pl.concat(found)


def _with_replica(passes: pl.DataFrame) -> pl.DataFrame:
    """Number the pipelines that stand side by side: the k-th rank of a stage is of pipeline k."""
    places = (
        passes.select("stage", "rank")
        .unique()
        .sort("rank")
        .with_columns(replica=pl.int_range(pl.len()).over("stage"))
    )
    return passes.join(places, on=["stage", "rank"])


def _connected(pairs: pl.DataFrame) -> list[pl.DataFrame]:
    """Split pairs into groups of ranks that are connected with each other only."""
    ranks = np.unique(np.concatenate([pairs["a"].to_numpy(), pairs["b"].to_numpy()]))
    label = np.arange(len(ranks))
    a, b = (np.searchsorted(ranks, pairs[end].to_numpy()) for end in ("a", "b"))
    while True:  # every round halves the length of the longest chain of labels
        lowest = label.copy()
        np.minimum.at(lowest, a, label[b])
        np.minimum.at(lowest, b, label[a])
        lowest = lowest[lowest]
        if (lowest == label).all():
            break
        label = lowest
    return pairs.with_columns(group=pl.Series(label[a])).partition_by("group", maintain_order=True)


def _solve(
    pairs: pl.DataFrame,
) -> tuple[list[int], list[int], list[int]] | _Contradiction:
    """Return ranks, the offset in the middle of what is feasible for each, and half its width.

    Ranks that are bounded from one side only are left out.
    """
    tightest = pairs.group_by("a", "b").agg(pl.col("bound").max())
    ranks = np.unique(np.concatenate([tightest["a"].to_numpy(), tightest["b"].to_numpy()]))
    path = np.full((len(ranks), len(ranks)), _NEVER, np.int64)
    a, b = (np.searchsorted(ranks, tightest[end].to_numpy()) for end in ("a", "b"))
    path[a, b] = tightest["bound"].to_numpy()
    np.fill_diagonal(path, np.maximum(path.diagonal(), 0))
    edges = path.copy()
    for middle in range(len(ranks)):  # Floyd and Warshall, for longest paths
        through = path[:, middle, None] + path[None, middle, :]
        np.maximum(path, np.where(through < _NEVER // 2, _NEVER, through), out=path)
    if (path.diagonal() > 0).any():
        return _contradiction(pairs, ranks, edges, path)
    low, high = path[0], -path[:, 0]
    bounded = (low > _NEVER // 2) & (high < -_NEVER // 2)
    offsets = (low + high) // 2
    errors = -(-(high - low) // 2)
    return (
        ranks[bounded].tolist(),
        offsets[bounded].tolist(),
        errors[bounded].tolist(),
    )


def _contradiction(
    pairs: pl.DataFrame, ranks: NDArray[np.int64], edges: NDArray[np.int64], path: NDArray[np.int64]
) -> _Contradiction:
    """Name the worst two pairs that contradict, or the ranks of a longer way round."""
    round_trip = np.where((edges > _NEVER // 2) & (edges.T > _NEVER // 2), edges + edges.T, _NEVER)
    np.fill_diagonal(round_trip, _NEVER)
    one, other = np.unravel_index(round_trip.argmax(), round_trip.shape)
    if round_trip[one, other] <= 0:
        worst = int(path.diagonal().argmax())
        return _Contradiction(int(path[worst, worst]), (f"transfers through rank {ranks[worst]}",))

    def tightest(a: int, b: int) -> str:
        row = pairs.filter(a=int(ranks[a]), b=int(ranks[b])).sort("bound").tail(1).to_dicts()[0]
        return f"{row['cause']} on rank {row['a']} before {row['effect']} on rank {row['b']}"

    return _Contradiction(
        int(round_trip[one, other]),
        (tightest(int(one), int(other)), tightest(int(other), int(one))),
    )


def _refusal(contradictions: list[tuple[int | None, _Contradiction]]) -> list[Notice]:
    """Say what was left as it is, and why."""
    if not contradictions:
        return []
    step, worst = max(contradictions, key=lambda one: one[1].excess_ns)
    where = "" if step is None else f" of {len(contradictions)} steps (step {step} the most)"
    return [
        Notice(
            "clocks-contradict",
            f"no clock is right for what happened{where}, so the times are as they were: "
            f"{' and '.join(worst.pairs)} contradict by {units.duration(worst.excess_ns)}",
            len(contradictions),
        )
    ]
