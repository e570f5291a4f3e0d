"""What one step was on one rank, as soon as it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from bubblescope.model.intervals import idle_share, union_ns
from bubblescope.model.kinds import COMPUTE_KINDS, Lane
from bubblescope.recording.rows import FIELDS, KINDS, LANES, TIMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.recording.rows import Rows

_STEP: Final = FIELDS.index("step")
_START, _END = TIMES.index("start_ns"), TIMES.index("end_ns")
_COMPUTE: Final = LANES.index(Lane.COMPUTE)
_PIPELINE: Final = [code for code, kind in enumerate(KINDS) if kind in COMPUTE_KINDS]


class StepTimes(NamedTuple):
    """What one step was on one rank.

    Attributes:
        step: Its number.
        start_ns: When its first forward or backward began, on the host's monotonic clock.
        end_ns: When its last one ended.
        busy_ns: Time in between in which one ran.
        kinds_ns: Time of each kind of task.
    """

    step: int
    start_ns: int
    end_ns: int
    busy_ns: int
    kinds_ns: dict[str, int]

    @property
    def span_ns(self) -> int:
        """From its first forward or backward to its last."""
        return self.end_ns - self.start_ns

    @property
    def bubble(self) -> float:
        """Share of that in which none ran: the rank's bubble rate named `span`."""
        return idle_share(self.busy_ns, self.span_ns) or 0.0


def step_times(step: int, parts: Sequence[Rows]) -> StepTimes | None:
    """Return what a step was, from what was recorded; None if it has no forward or backward.

    Args:
        step: Its number.
        parts: Tasks, in any order; those of other steps are left out.
    """
    if not parts:
        return None
    own = [rows.fields[_STEP] == step for rows in parts]
    kind, lane, start_ns, end_ns = (
        np.concatenate([column[there] for column, there in zip(columns, own, strict=True)])
        for columns in (
            [rows.kind for rows in parts],
            [rows.lane for rows in parts],
            [rows.times[_START] for rows in parts],
            [rows.times[_END] for rows in parts],
        )
    )
    phase = (lane == _COMPUTE) & np.isin(kind, _PIPELINE)
    if not phase.any():
        return None
    totals = np.zeros(len(KINDS), np.int64)
    np.add.at(totals, kind, end_ns - start_ns)
    kinds_ns = {KINDS[code].value: int(totals[code]) for code in np.unique(kind).tolist()}
    start_ns, end_ns = start_ns[phase], end_ns[phase]
    first, last = int(start_ns.min()), int(end_ns.max())
    return StepTimes(step, first, last, union_ns(start_ns, end_ns), kinds_ns)
