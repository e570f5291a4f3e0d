"""How far the passes reach that autograd's graphs tell, and forwards that no graph tells.

A schedule does more for a pass than what autograd records and its engine visits: it looks for the nodes
at which it splits a backward, and adds up gradients of weights itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from bubblescope.model.kinds import Kind
from bubblescope.sources.phase_evidence import NONE

if TYPE_CHECKING:
    from bubblescope.model.arrays import Ints, Mask
    from bubblescope.sources.structure.calls import Order

_LEFT_OVER: Final = 2
"""Operators that a pass may leave behind it, before the wait for what the next works on."""

_ALIKE: Final = 0.2
"""How far the number of operators of a forward without a backward may be from that of one with."""


def with_preparation(order: Order, backwards: pl.DataFrame, forwards: pl.DataFrame) -> pl.DataFrame:
    """Let backwards begin with what the caller recorded for them, since the pass or transfer before.

    Zero-bubble schedules look for the nodes at which they split a backward in this way, one for each
    layer. One or two operators before the longest wait are still of the pass before, such as one that
    detaches its result.
    """
    ends = [frame["end_ns"].to_numpy() for frame in (backwards, forwards, order.moved)]
    done_ns = np.sort(np.concatenate(ends))
    start = backwards["start_ns"].to_numpy()
    since = np.append(NONE, done_ns)[np.searchsorted(done_ns, start, side="right")]
    recorded_ns, recorded_end = (order.recorded[edge].to_numpy() for edge in ("start_ns", "end_ns"))
    of = np.searchsorted(start, recorded_ns, side="right")
    ours = (of < len(start)) & (recorded_ns >= np.append(since, 2**62)[of])
    steps = pl.DataFrame(
        {
            "of": np.concatenate([of[ours], np.arange(len(start))]),
            "start_ns": np.concatenate([recorded_ns[ours], start]),
            "end_ns": np.concatenate([recorded_end[ours], start]),
        }
    ).sort("of", "start_ns")
    before = pl.col("end_ns").shift(1).over("of").fill_null(pl.Series(since).gather(steps["of"]))
    begun = (
        steps.with_columns(wait_ns=pl.col("start_ns") - before)
        .group_by("of")
        .agg(
            pl.col("start_ns").get(
                pl.when(pl.col("wait_ns").arg_max() <= _LEFT_OVER)
                .then(pl.col("wait_ns").arg_max())
                .otherwise(0)
            )
        )
        .sort("of")
    )
    return backwards.with_columns(begun["start_ns"])


def with_sums(
    order: Order, backwards: pl.DataFrame, forwards: pl.DataFrame, apart: pl.DataFrame
) -> pl.DataFrame:
    """Let gradients of weights end with what the caller does right after them: it adds them up itself.

    At the end of a step other work follows, so that none ends later than after as many operators as
    half of them have.
    """
    weight = (backwards["kind"] == Kind.BACKWARD_WEIGHT.value).to_numpy()
    if not weight.any():
        return backwards
    begins = (backwards, forwards, order.moved, apart, order.recorded)
    starts = [frame["start_ns"].to_numpy() for frame in begins]
    begun_ns = np.sort(np.concatenate([*starts, [2**62]]))
    end = backwards["end_ns"].to_numpy()
    own_start, own_end = (order.own[edge].to_numpy() for edge in ("start_ns", "end_ns"))
    after = np.searchsorted(own_start, end)
    until = np.searchsorted(own_start, begun_ns[np.searchsorted(begun_ns, end)])
    count = np.minimum(until - after, int(np.median((until - after)[weight])))
    last = own_end[(after + count - 1).clip(0)]
    return backwards.with_columns(end_ns=pl.Series(np.where(weight & (count > 0), last, end)))


def alike_forwards(order: Order, taken: Mask, sizes: Ints) -> pl.DataFrame:
    """Return forwards that no backward tells: runs of about as many operators as others have.

    Args:
        order: What ran.
        taken: Which of the numbered operators are in a forward.
        sizes: How many operators autograd recorded in each of those.
    """
    free = order.advances & ~taken
    start, end = (order.numbered[edge].to_numpy()[free] for edge in ("start_ns", "end_ns"))
    moved = order.moved["start_ns"].to_numpy()
    parts = np.stack(
        [
            np.searchsorted(np.sort(edges), start)
            for edges in (
                moved,
                order.engine["start_ns"].to_numpy(),
                order.numbered["start_ns"].to_numpy()[taken],
            )
        ]
    )
    begins = np.append(np.ones(min(1, len(start)), bool), np.diff(parts, axis=1).any(axis=0))
    runs = pl.DataFrame(
        {
            "run": np.cumsum(begins),
            "start_ns": start,
            "end_ns": end,
            "graph": order.sequence[free],
        },
        schema={"run": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "graph": pl.Int64},
    )
    found = runs.group_by("run", maintain_order=True).agg(
        pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("graph").max(), size=pl.len()
    )
    known = np.unique(sizes)
    own = found["size"].to_numpy()
    # Only a forward multiplies matrices; what prepares a backward does not.
    low, high = (
        np.searchsorted(order.products_ns, found[edge].to_numpy())
        for edge in ("start_ns", "end_ns")
    )
    near = [bool(len(known)) and bool((np.abs(known - one) <= _ALIKE * known).any()) for one in own]
    return found.filter(pl.Series(near, dtype=pl.Boolean) & pl.Series(low < high)).select(
        "start_ns", "end_ns", "graph"
    )
