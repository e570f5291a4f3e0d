"""What ranks computed inside of passes, and how long they communicated there and computed nothing.

Ranks that share a stage wait for each other in each collective of a pass: tensor-, context- and
expert-parallel ones, and those that shard its parameters. Its kernel lasts from when a rank gets there
until all have. So a rank that is ahead has long passes, and how fast devices are shows in what they
compute only. Likewise of a host that is timed, which is in the call until all are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.analysis.inside_tasks import spent_inside
from bubblescope.model.budget import Use
from bubblescope.model.cached_results import remembered
from bubblescope.model.intervals import covered_ns
from bubblescope.model.kinds import Kind, Lane
from bubblescope.model.timing import HOST

if TYPE_CHECKING:
    from bubblescope.model.arrays import Ints
    from bubblescope.model.timeline import Timeline


class Inside(NamedTuple):
    """What ranks did in a timeline's n tasks, in nanoseconds; 0 where that is not known.

    Attributes:
        computed_ns: How long their devices computed or copied, or hosts that were timed instead worked;
            n long.
        waits_ns: How long they did neither, and communicated or their host waited for another rank.
    """

    computed_ns: Ints
    waits_ns: Ints

    def of(self, rows: Ints) -> Inside:
        """Return the same of some of the tasks."""
        return Inside(*(ns[rows] for ns in self))


@remembered
def inside_passes(timeline: Timeline) -> Inside:
    """Return what ranks did in a timeline's tasks; of a part of a run, in those that it has."""
    if timeline.budget.height:
        return Inside(
            spent_inside(timeline, (Use.COMPUTE, Use.COPY)),
            spent_inside(timeline, (Use.COMMUNICATION, Use.RANK_WAIT)),
        )
    if {origin.format for origin in timeline.run.origins} == {_RECORDED}:
        return _on_hosts(timeline.tasks, timeline.ranks)
    nothing = np.zeros(len(timeline), np.int64)
    return Inside(nothing, nothing)


def knows_waits(timeline: Timeline) -> bool:
    """Say whether it is known how long ranks communicated inside of passes."""
    return timeline.budget.height > 0 or bool(inside_passes(timeline).waits_ns.any())


_RECORDED: Final = "native"
"""Recordings of our own: there a collective is what the thread of the passes waits in. In what others
trace of a host, another thread may be in it, while passes go on."""


def _on_hosts(tasks: pl.DataFrame, ranks: pl.DataFrame) -> Inside:
    """Return it of ranks whose hosts were timed: a host in a collective within a task waits."""
    hosts = ranks.filter(pl.col("timed") == HOST)["rank"]
    own = pl.col("rank").is_in(hosts.implode())
    collectives = tasks.filter(own, pl.col("kind") == Kind.COLLECTIVE.value)
    collectives = collectives.select(_SPAN).sort(_SPAN)
    work = tasks.select(own & (pl.col("lane") == Lane.COMPUTE.value)).to_series().arg_true()
    spans = tasks.select(_SPAN)[work]
    computed_ns, waits_ns = (np.zeros(tasks.height, np.int64) for _ in range(2))
    waits_ns[work] = covered_ns(_arrays(collectives), _arrays(spans))
    computed_ns[work] = (spans["end_ns"] - spans["start_ns"]).to_numpy() - waits_ns[work]
    return Inside(computed_ns, waits_ns)


_SPAN: Final = ("rank", "start_ns", "end_ns")


def _arrays(spans: pl.DataFrame) -> tuple[Ints, Ints, Ints]:
    rank, start, end = (column.to_numpy() for column in spans)
    return rank.astype(np.int64), start, end
