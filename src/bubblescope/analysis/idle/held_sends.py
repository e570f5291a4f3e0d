"""Sends that held up their own rank, because the receiver came late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.analysis.outside_passes import AWAITS_SENDS

if TYPE_CHECKING:
    from bubblescope.model.arrays import Ints
    from bubblescope.model.timeline import Timeline

_HELD: Final = {"source": pl.Int64(), "target": pl.Int64(), "until_ns": pl.Int64()}
_KEY: Final = ["rank", "step", "stage", "microbatch"]


def held_sends(
    timeline: Timeline, tasks: pl.DataFrame, links: tuple[Ints, Ints], times: tuple[Ints, Ints]
) -> pl.DataFrame:
    """Return which tasks waited until another rank took what theirs had sent.

    A rank that waits for a send begins its next task once the receiver has come to its receive and what
    was sent is there, which is about when the receiver's task begins, and moves with that.

    Args:
        timeline: The run.
        tasks: The pipeline's n tasks.
        links: What feeds what from rank to rank, as their numbers: e sources and targets.
        times: When each of the tasks starts and ends, n times each.

    Returns:
        Frame with source (the receiver's task) and target, numbers of tasks, and until_ns, when the
        send was done.
    """
    nothing = pl.DataFrame(schema=_HELD)
    waits = timeline.tasks.filter(AWAITS_SENDS).drop_nulls(["stage", "microbatch", "step"])
    source, target = links
    if not waits.height or not len(source):
        return nothing
    start, end = times
    # The waiting says which micro-batch it is of, and for which stage: that of the receiver's task.
    way = pl.DataFrame(
        {
            "rank": tasks["rank"].gather(source),
            "step": tasks["step"].gather(source),
            "stage": tasks["stage"].gather(target),
            "microbatch": tasks["microbatch"].gather(target),
            "sent_ns": end[source],
            "began_ns": start[target],
            "source": target,
        }
    )
    met = waits.select(*_KEY, wait_ns="start_ns", done_ns="end_ns").join(way, on=_KEY)
    # A forward and a backward may go to one stage: what waits is behind what it sent.
    met = met.filter(
        pl.col("sent_ns") <= pl.col("wait_ns"), pl.col("wait_ns") <= pl.col("began_ns")
    )
    if not met.height:
        return nothing
    own = tasks.select("rank", "step", next_ns=pl.Series(start)).with_row_index("target")
    found = (
        met.sort("done_ns")
        .join_asof(
            own.sort("next_ns"),
            left_on="done_ns",
            right_on="next_ns",
            by=["rank", "step"],
            strategy="forward",
            check_sortedness=False,  # both are sorted
        )
        .drop_nulls("target")
        .unique(["source", "target"], keep="last", maintain_order=True)
        .select("source", "target", until_ns="done_ns")
        .cast(_HELD)  # type: ignore[arg-type]
    )
    # Two that send to each other and wait for both hold up each other: neither does.
    return found.join(
        found, left_on=["source", "target"], right_on=["target", "source"], how="anti"
    )
