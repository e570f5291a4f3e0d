"""What must come before what on different ranks: all that is known about how their clocks differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.vocabulary import Kind

if TYPE_CHECKING:
    from bubblescope.timeline import Timeline

__all__ = ["constraints"]

_FORWARD: Final = [Kind.FORWARD.value, Kind.FORWARD_BACKWARD.value]
_BACKWARD: Final = [Kind.BACKWARD.value, Kind.BACKWARD_INPUT.value]
_RECEIVES: Final = {
    Kind.SEND_FORWARD.value: Kind.RECV_FORWARD.value,
    Kind.SEND_BACKWARD.value: Kind.RECV_BACKWARD.value,
}


def constraints(timeline: Timeline) -> pl.DataFrame:
    """Return each pair of moments on two ranks of which one must not come after the other.

    A forward of a micro-batch cannot start on a stage before it has ended on the stage before, nor a
    backward before it has ended on the stage after. A receive cannot end before its send has
    started, which says more where both were recorded.

    Returns:
        Frame with step, a and b (ranks), before_ns (on a) and after_ns (on b), neither of which is
        null, and cause and effect, the names of the tasks.
    """
    return pl.concat([_passes(timeline), _messages(timeline.tasks)])


def _passes(timeline: Timeline) -> pl.DataFrame:
    """Return the ends of passes that those of the next stage wait for, and their starts.

    Of an overlapped pair no one knows when either half ran: its forward is taken to end no sooner
    than the whole starts, and to start no later than the whole ends.
    """
    both = pl.col("kind") == Kind.FORWARD_BACKWARD.value
    halves = timeline.tasks.with_columns(
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
        known = _with_replica(passes.drop_nulls(["stage", "microbatch"]))
        found.append(
            known.with_columns(stage=pl.col("stage") + next_stage)
            .join(
                known,
                on=["step", "stage", "microbatch", "replica"],
                suffix="_b",
                nulls_equal=True,
            )
            .filter(pl.col("rank") != pl.col("rank_b"))
            .select(
                "step",
                a="rank",
                b="rank_b",
                before_ns="end",
                after_ns="start_b",
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


def _messages(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return the starts of sends and the ends of their receives.

    Both are of the same step, direction, micro-batch and pair of ranks, and there are as many of one
    as of the other.
    """
    key = ["step", "direction", "microbatch", "a", "b"]
    known = tasks.filter(pl.col("peer").is_not_null(), pl.col("microbatch").is_not_null())
    known = known.with_columns(pl.col("kind").cast(pl.String))
    sends = known.filter(pl.col("kind").is_in(list(_RECEIVES))).select(
        "step",
        "microbatch",
        direction=pl.col("kind").replace_strict(_RECEIVES, default=None),
        a="rank",
        b="peer",
        before_ns="start_ns",
        cause="name",
    )
    receives = known.filter(pl.col("kind").is_in(list(_RECEIVES.values()))).select(
        "step",
        "microbatch",
        direction="kind",
        a="peer",
        b="rank",
        after_ns="end_ns",
        effect="name",
    )
    turn = pl.int_range(pl.len()).over(key)
    count = pl.len().over(key)
    sends = sends.sort("before_ns").with_columns(turn=turn, count=count)
    receives = receives.sort("after_ns").with_columns(turn=turn, count=count)
    return (
        sends.join(receives, on=[*key, "turn", "count"], nulls_equal=True)
        .filter(pl.col("a") != pl.col("b"))
        .select("step", "a", "b", "before_ns", "after_ns", "cause", "effect")
    )
