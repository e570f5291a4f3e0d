"""Whether the stages of inferred passes can be believed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from bubblescope.model.kinds import BACKWARDS, Kind

if TYPE_CHECKING:
    from bubblescope.model.arrays import Ints

_MOST: Final = 0.9
"""Share of the ways from stage to stage that must be possible for the stages to be believed."""
_UNSEEN: Final = 0.9
"""Factor of certainty where no receive is seen, which would tell the ends of the pipeline."""
_AT_END: Final = 0.25
"""Least share of receives that the ranks at the ends of a pipeline lack, against those in between: half
of 1/v with v chunks on a rank, of which hardly any run has more than two."""
_AT_ONCE: Final = 0.5
"""Share of the time that a pass takes within which the next rank begins if it waits for nothing
else."""
_APART: Final = 0.45
"""Factor of certainty where a rank never does, for there may be another in between: with it no stage is
more likely than not."""

_BACK: Final = [kind.value for kind in BACKWARDS]
_WAY: Final = ["step", "microbatch"]


def with_believable_stages(
    tasks: pl.DataFrame, *, by_peers: bool = False
) -> tuple[pl.DataFrame, str | None]:
    """Take from inferred passes the stages that cannot be, or that traces of other ranks may change.

    A micro-batch is in one stage at a time: its forward begins after that of the stage before has
    ended, its backward after that of the stage behind. By the share of ways of which that is not so,
    the stages are less certain. Where ranks never run a step at the same time, it is their clocks, or
    numbers of steps, that cannot be (`sources.step_agreement` says so), and stages stay. And the order
    of ranks tells stages only if none is missing: the
    numbers of the ranks have no gap, the first and the last receive less than the others, and what
    one rank hands on the next takes at once, at least sometimes.

    Args:
        tasks: Frame with rank, kind, stage, step, microbatch, start_ns, end_ns, certainty and, where
            passes were inferred, graph and received.
        by_peers: Whether stages were told by who sent to whom.

    Returns:
        The tasks; why they have no stages, None if they have or no pass was inferred.
    """
    if "graph" not in tasks.columns or tasks["graph"].null_count() == tasks.height:
        return tasks, None
    inferred = pl.col("graph").is_not_null()
    told = tasks.filter(inferred).drop_nulls(["stage", "microbatch"])
    if not told.height:
        return tasks, None
    share = share_possible(told)
    why = None if by_peers else _missing(told)
    if share < _MOST and not _apart(told):
        why = f"{1 - share:.0%} of the ways from stage to stage would lead back in time"
    if why is not None:
        return tasks.with_columns(stage=pl.when(~inferred).then("stage")), f"unknown: {why}"
    if not by_peers and not told["received"].sum():
        share *= _UNSEEN
    if not by_peers and not _handed_over(told):
        share *= _APART
    sure = (pl.col("certainty") * share).cast(pl.Float32)
    return tasks.with_columns(certainty=sure), None


def may_be_all(tasks: pl.DataFrame) -> bool:
    """Say whether ranks whose passes are marked may be all of their pipeline.

    Only then does the order in which they pass on a micro-batch tell their stages. They are not if
    numbers of ranks between theirs are missing, nor if one alone runs forwards ahead, as a rank does
    that waits for the backwards of others.

    Args:
        tasks: Frame with rank, kind, step and start_ns.
    """
    ranks = tasks["rank"].unique().sort().to_numpy()
    if len(ranks) > 1:
        return not _is_gapped(ranks)
    forward, backward = pl.col("kind") == Kind.FORWARD.value, pl.col("kind").is_in(_BACK)
    first_ns = pl.col("start_ns").filter(backward).min()
    starts_ns = pl.col("start_ns").filter(forward)
    ahead, after = (starts_ns < first_ns).sum() > 1, (starts_ns > first_ns).any()
    return not tasks.group_by("step").agg(waits=ahead & after)["waits"].any()


def _is_gapped(ranks: Ints) -> bool:
    """Say whether some of evenly spaced numbers of ranks are missing between those that are here."""
    apart = np.diff(ranks)
    return bool((apart != np.gcd.reduce(apart)).any())


def share_possible(told: pl.DataFrame) -> float:
    """Return the share of ways from stage to stage that do not lead back in time."""
    forward = told.filter(kind=Kind.FORWARD.value).sort("stage")
    backward = told.filter(pl.col("kind").is_in(_BACK)).sort("stage", descending=True)
    ways = [
        one.select(possible=pl.col("start_ns") >= pl.col("end_ns").shift(1).over(_WAY))
        for one in (forward, backward)
    ]
    possible = pl.concat(ways)["possible"].drop_nulls()
    return float(possible.mean()) if len(possible) else 1.0  # type: ignore[arg-type]


def _apart(told: pl.DataFrame) -> bool:
    """Say whether some rank has ended every step, backwards and all, before another begins it."""
    spans = told.group_by("step", "rank").agg(
        pl.col("start_ns").min(), pl.col("end_ns").max(), both=pl.col("kind").n_unique() > 1
    )
    steps = (
        spans.filter("both").group_by("step").agg(pl.col("start_ns").max(), pl.col("end_ns").min())
    )
    return steps.height > 0 and bool((steps["start_ns"] > steps["end_ns"]).all())


def _handed_over(told: pl.DataFrame) -> bool:
    """Say whether ranks were seen to work on something soon after another had made it.

    Were there a rank between, whose trace is missing, what one hands on to the other would always come
    later, by the time that it takes there; and so would what comes back.
    """
    waits = []
    for kinds, back in (([Kind.FORWARD.value], False), (_BACK, True)):
        way = told.filter(pl.col("kind").is_in(kinds)).sort("stage", descending=back)
        rank, stage, end = (
            pl.col(name).shift(1).over(_WAY) for name in ("rank", "stage", "end_ns")
        )
        length = (pl.col("end_ns") - pl.col("start_ns")).median().over("rank")
        waits.append(
            way.select(
                before=pl.col("rank") if back else rank,
                behind=rank if back else pl.col("rank"),
                next=(stage - pl.col("stage")).abs() == 1,
                share=(pl.col("start_ns") - end) / length,
            ).filter("next")
        )
    hops = pl.concat(waits)
    apart = hops.filter(pl.col("before") != pl.col("behind"))
    if apart.height < hops.height:  # a V, which comes back the way it went
        low, high = pl.min_horizontal("before", "behind"), pl.max_horizontal("before", "behind")
        apart = apart.with_columns(before=low, behind=high)
    shortest = apart.group_by("before", "behind").agg(pl.col("share").min())
    return bool((shortest["share"] <= _AT_ONCE).all())


def _missing(told: pl.DataFrame) -> str | None:
    """Say of which ranks the traces seem to be missing; None if of none."""
    ranks = told["rank"].unique().sort().to_numpy()
    if len(ranks) < 2:
        return "the trace of one rank does not tell where it stands"
    if _is_gapped(ranks):
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
