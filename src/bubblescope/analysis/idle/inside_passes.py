"""What ranks computed inside of passes, and how long they communicated there and computed nothing.

Ranks that share a stage wait for each other in each collective of a pass: tensor-, context- and
expert-parallel ones, and those that shard its parameters. Its kernel lasts from when a rank gets there
until all have. So a rank that is ahead has long passes, and how fast devices are shows in what they
compute only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bubblescope.analysis.inside_tasks import spent_inside
from bubblescope.model.budget import Use
from bubblescope.model.cached_results import remembered

if TYPE_CHECKING:
    from bubblescope.model.arrays import Ints
    from bubblescope.model.timeline import Timeline


class Inside(NamedTuple):
    """What the devices of a timeline did in its n tasks, in nanoseconds; 0 where traces do not tell.

    Attributes:
        computed_ns: How long they computed or copied; n long.
        waits_ns: How long they did neither, and communicated or their host waited for another rank.
    """

    computed_ns: Ints
    waits_ns: Ints

    def of(self, rows: Ints) -> Inside:
        """Return the same of some of the tasks."""
        return Inside(*(ns[rows] for ns in self))


@remembered
def inside_passes(timeline: Timeline) -> Inside:
    """Return what devices did in a timeline's tasks; of a part of a run, in those that it has."""
    if not timeline.budget.height:
        nothing = np.zeros(len(timeline), np.int64)
        return Inside(nothing, nothing)
    return Inside(
        spent_inside(timeline, (Use.COMPUTE, Use.COPY)),
        spent_inside(timeline, (Use.COMMUNICATION, Use.RANK_WAIT)),
    )
