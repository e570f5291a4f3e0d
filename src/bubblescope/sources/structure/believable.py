"""Whether the stages of inferred passes can be believed."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from bubblescope.model.kinds import BACKWARDS, Kind

_MOST: Final = 0.9
"""Share of the ways from stage to stage that must be possible for the stages to be believed."""
_UNSEEN: Final = 0.9
"""Factor of certainty where no receive is seen, which would tell the ends of the pipeline."""
_AT_END: Final = 0.25
"""Least share of receives that the ranks at the ends of a pipeline lack, against those in between: half
of 1/v with v chunks on a rank, of which hardly any run has more than two."""

_BACK: Final = [kind.value for kind in BACKWARDS]
_WAY: Final = ["step", "microbatch"]


def with_believable_stages(tasks: pl.DataFrame) -> tuple[pl.DataFrame, str | None]:
    """Take from inferred passes the stages that cannot be, or that traces of other ranks may change.

    A micro-batch is in one stage at a time: its forward begins after that of the stage before has
    ended, its backward after that of the stage behind. By the share of ways of which that is not so,
    the stages are less certain. And the order of ranks tells stages only if none is missing: the
    numbers of the ranks have no gap, and the first and the last receive less than the others.

    Args:
        tasks: Frame with rank, kind, stage, step, microbatch, start_ns, end_ns, certainty and, where
            passes were inferred, graph and received.

    Returns:
        The tasks; why they have no stages, None if they have or no pass was inferred.
    """
    if "graph" not in tasks.columns or tasks["graph"].null_count() == tasks.height:
        return tasks, None
    inferred = pl.col("graph").is_not_null()
    told = tasks.filter(inferred).drop_nulls(["stage", "microbatch"])
    if not told.height:
        return tasks, None
    share = _possible(told)
    why = _missing(told)
    if share < _MOST:
        why = f"{1 - share:.0%} of the ways from stage to stage would lead back in time"
    if why is not None:
        return tasks.with_columns(stage=pl.when(~inferred).then("stage")), f"unknown: {why}"
    if not told["received"].sum():
        share *= _UNSEEN
    sure = (pl.col("certainty") * share).cast(pl.Float32)
    return tasks.with_columns(certainty=sure), None


def _possible(told: pl.DataFrame) -> float:
    """Return the share of ways from stage to stage that do not lead back in time."""
    forward = told.filter(kind=Kind.FORWARD.value).sort("stage")
    backward = told.filter(pl.col("kind").is_in(_BACK)).sort("stage", descending=True)
    ways = [
        one.select(possible=pl.col("start_ns") >= pl.col("end_ns").shift(1).over(_WAY))
        for one in (forward, backward)
    ]
    possible = pl.concat(ways)["possible"].drop_nulls()
    return float(possible.mean()) if len(possible) else 1.0  # type: ignore[arg-type]


def _missing(told: pl.DataFrame) -> str | None:
    """Say of which ranks the traces seem to be missing; None if of none."""
    ranks = told["rank"].unique().sort().to_numpy()
    if len(ranks) < 2:
        return "the trace of one rank does not tell where it stands"
    apart = np.diff(ranks)
    if (apart != np.gcd.reduce(apart)).any():
        return "the traces of ranks in between are missing"
    graphs = told.group_by("rank").agg(
        received=pl.col("received").sum(),
        passes=pl.col("kind").is_in([Kind.FORWARD.value, *_BACK]).sum(),
        low=pl.col("stage").min(),
        high=pl.col("stage").max(),
        turns=(pl.col("stage").unique().sort().diff() == 1).any(),
    )
    if not graphs["received"].sum():
        return None  # sends and receives cannot be told apart
    ends = {
        "of the first stage": pl.col("low") == pl.col("low").min(),
        "of the rank at the turn of a V": pl.col("turns"),
        "of the last stage": pl.col("high") == pl.col("high").max(),
    }
    receives_all = pl.col("received") > (1 - _AT_END / 2) * pl.col("passes")
    for whose, which in ends.items():
        if graphs.select((which & receives_all).any()).item():
            return f"the trace {whose} is missing: all that are here receive from other ranks"
    return None
