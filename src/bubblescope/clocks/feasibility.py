"""Whether any clocks at all allow what happened: how a guess of who ran what is put to the test.

Where every rank counts from a zero of its own, a forward that precedes the forward that it needs
contradicts nothing by itself: one clock may be late. A contradiction is a circle of such demands that
adds up to more than nothing, such as a forward that left for the next rank and a backward that came
back before that rank could have run both (difference constraints; Cormen et al., "Introduction to
Algorithms", section 24.4, whose Bellman-Ford finds them).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.model import units
from bubblescope.model.dependencies import feeds
from bubblescope.model.kinds import SHORT, Kind

_NEVER: Final = -(2**60)
"""Nothing is demanded of two ranks: lower than any sum of times."""
_SHOWN: Final = 3


class Verdict(NamedTuple):
    """What a test of tasks against their dependencies showed.

    Attributes:
        demands: How many pairs of tasks there are of which one must come before the other.
        contradiction: One sentence part that names tasks that cannot be as they are said to be;
            None if nothing contradicts.
        steps: How many steps hold a contradiction.
    """

    demands: int
    contradiction: str | None = None
    steps: int = 0


def judged(tasks: pl.DataFrame) -> Verdict:
    """Test whether tasks can be of the stages and micro-batches that they are said to be of.

    A forward must not start before that of the stage before has ended, a backward not before that of
    the stage after and its own forward have ended, nor a weight gradient before its backward. Ranks
    have clocks of their own in every step; times of one rank in one step compare.

    Args:
        tasks: Frame with step, rank, kind, stage, microbatch, pair_stage, pair_microbatch, start_ns
            and end_ns; those without a stage or micro-batch are left out.
    """
    works = tasks.with_row_index("work")
    demands = pl.concat([_between(works), _within(works)])
    if not demands.height:
        return Verdict(0)
    steps = demands["step"].unique().sort()
    place = demands["step"].rank("dense").cast(pl.Int64).to_numpy() - 1
    ranks, clock = np.unique(demands.select("a", "b").to_numpy(), return_inverse=True)
    size = len(ranks)
    a, b = clock.reshape(-1, 2).T
    need = demands.select(pl.col("before_ns") - pl.col("after_ns")).to_series().to_numpy()
    weight = np.full((steps.len(), size, size), _NEVER, np.int64)
    np.maximum.at(weight, (place, a, b), need)
    # With clocks at `ahead`, every demand that is left moves one; no circle is longer than `size`.
    ahead = np.zeros((steps.len(), size), np.int64)
    for _ in range(size):
        later = np.maximum(ahead, (ahead[:, :, None] + weight).max(axis=1))
        if (later == ahead).all():
            return Verdict(demands.height)
        ahead = later
    moving = ((ahead[:, :, None] + weight).max(axis=1) > ahead).any(axis=1)
    if not moving.any():
        return Verdict(demands.height)
    worst = int(np.flatnonzero(moving)[0])
    circle = _circle(weight[worst])
    named = [
        demands.row(
            int(np.flatnonzero((place == worst) & (a == one) & (b == two) & (need == most))[0]),
            named=True,
        )
        for one, two in circle
        for most in [weight[worst, one, two]]
    ]
    excess = sum(int(weight[worst, one, two]) for one, two in circle)
    said = " and ".join(_named(row) for row in named[:_SHOWN])
    more = f" and {len(named) - _SHOWN} more such demands" if len(named) > _SHOWN else ""
    text = f"in step {steps[worst]}, {said}{more} contradict by {units.duration(excess)}"
    if len(named) == 1:
        text = f"in step {steps[worst]}, {said}, which is missed by {units.duration(excess)}"
    return Verdict(demands.height, text, int(moving.sum()))


def _between(works: pl.DataFrame) -> pl.DataFrame:
    """Return what each task needs of the stage before or after.

    Of an overlapped pair no one knows when either half ran, so neither bounds the other's neighbour
    more than the whole does.
    """
    both = pl.col("kind") == Kind.FORWARD_BACKWARD.value
    times = works.with_columns(
        start_ns=pl.when(both).then("end_ns").otherwise("start_ns"),
        end_ns=pl.when(both).then("start_ns").otherwise("end_ns"),
    )
    found = feeds(works, ("step",))
    return _demands(times, found["source"], found["target"], found["backward"])


def _within(works: pl.DataFrame) -> pl.DataFrame:
    """Return what each backward needs of its own forward, and each weight gradient of its backward."""
    key = ["step", "rank", "stage", "microbatch"]
    known = works.drop_nulls(["stage", "microbatch"])
    by_kind = {
        name: known.filter(pl.col("kind").is_in(kinds)).select("work", *key)
        for name, kinds in {
            "forward": [Kind.FORWARD.value],
            "backward": [Kind.BACKWARD.value, Kind.BACKWARD_INPUT.value],
            "weight": [Kind.BACKWARD_WEIGHT.value],
        }.items()
    }
    found = []
    for cause, effect in (("forward", "backward"), ("backward", "weight")):
        pairs = by_kind[cause].join(by_kind[effect], on=key, suffix="_fed")
        found.append(pairs.select("work", "work_fed"))
    pairs = pl.concat(found)
    blank = pl.Series([True] * pairs.height, dtype=pl.Boolean)
    return _demands(works, pairs["work"], pairs["work_fed"], blank)


def _demands(
    works: pl.DataFrame, causes: pl.Series, effects: pl.Series, backward: pl.Series
) -> pl.DataFrame:
    """Return rows of step, a and b (ranks), before_ns, after_ns, and who they are."""
    cause, effect = works[causes], works[effects]
    columns = {"step": cause["step"], "a": cause["rank"], "b": effect["rank"]}
    for name, side in (("cause", cause), ("effect", effect)):
        pair = backward & (side["kind"] == Kind.FORWARD_BACKWARD.value)
        of = side.select(
            kind=pl.col("kind").cast(pl.String),
            microbatch=pl.when(pair).then("pair_microbatch").otherwise("microbatch"),
            stage=pl.when(pair).then("pair_stage").otherwise("stage"),
        )
        columns |= {f"{name}_{field}": of[field] for field in of.columns}
    return pl.DataFrame(columns | {"before_ns": cause["end_ns"], "after_ns": effect["start_ns"]})


def _circle(weight: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> list[tuple[int, int]]:
    """Return a circle of ranks whose demands add up to more than nothing, pair by pair.

    Args:
        weight: By how much rank b's clock must be ahead of rank a's, a x b.
    """
    size = len(weight)
    ahead = np.zeros(size, np.int64)
    giver = np.arange(size)
    moved = 0
    for _ in range(size):
        offered = ahead[:, None] + weight
        best = offered.argmax(axis=0)
        gain = offered.max(axis=0) > ahead
        giver = np.where(gain, best, giver)
        ahead = np.maximum(ahead, offered.max(axis=0))
        if gain.any():
            moved = int(np.flatnonzero(gain)[0])
    at = moved
    for _ in range(size):
        at = int(giver[at])
    circle = [(int(giver[at]), at)]
    while circle[-1][0] != at:
        circle.append((int(giver[circle[-1][0]]), circle[-1][0]))
    return circle[::-1]


def _named(row: dict[str, object]) -> str:
    def task(side: str) -> str:
        letter = SHORT[Kind(row[f"{side}_kind"])]
        return f"{letter}{row[f'{side}_microbatch']} of stage {row[f'{side}_stage']}"

    where = f"on rank {row['a']}" if row["a"] == row["b"] else f"on ranks {row['a']} and {row['b']}"
    return f"{task('cause')} before {task('effect')} {where}"
