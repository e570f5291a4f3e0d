"""How far the times of ranks may be off against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from bubblescope.model.provenance import Run
    from bubblescope.model.timeline import Timeline

UNKNOWN_HOST: Final = "unknown"
"""The host of a rank whose trace names none."""
MAX_DRIFT: Final = 100.1e-6
"""How fast a clock may run away from true time: what quartz oscillators are specified to keep, 100
parts per million, as its own time counts it. The difference of two clocks may be twice that."""


def may_differ(ranks: pl.DataFrame, run: Run) -> bool:
    """Say whether ranks may be by different clocks: those of several hosts, or of hosts not known."""
    hosts = ranks["host"].unique().to_list()
    return not run.common_clock or len(hosts) > 1 or (hosts == [UNKNOWN_HOST] and ranks.height > 1)


def clock_errors(timeline: Timeline) -> pl.DataFrame:
    """Return what is known of the clocks of a timeline.

    Returns:
        Frame with rank, group (ranks of one group may be compared; of those of different groups
        nothing is known) and error_ns, how far a rank's times may be off against the first clock of
        its group.
    """
    ranks = timeline.ranks.select("rank", "host", error_ns=pl.col("clock_error_ns"))
    groups = timeline.run.clock.comparable if timeline.run.clock else ()
    number = {rank: group for group, ranks in enumerate(groups) for rank in ranks}
    if number:
        group = pl.col("rank").replace_strict(number, default=-1, return_dtype=pl.Int64)
    else:  # nobody has looked, or it was saved before groups were
        known = pl.col("error_ns").is_not_null()
        group = (
            pl.when(known)
            .then(0)
            .otherwise(pl.col("host").rank("dense").fill_null(0))
            .cast(pl.Int64)
        )
    return ranks.select("rank", group=group, error_ns=pl.col("error_ns").fill_null(0))
