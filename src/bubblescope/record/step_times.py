"""What steps were on one rank, as soon as they are over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from bubblescope.model.intervals import idle_share, union_ns
from bubblescope.model.kinds import COMPUTE_KINDS, Kind, Lane
from bubblescope.model.whole_steps import NAMES, ORDER, OTHER, UNRECORDED
from bubblescope.recording.columns import SPOILED
from bubblescope.recording.rows import FIELDS, KINDS, LANES, TIMES, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bubblescope.model.arrays import Ints
    from bubblescope.recording.rows import Rows

_STEP, _MICROBATCH = FIELDS.index("step"), FIELDS.index("microbatch")
_START, _END, _HOST_START = (TIMES.index(name) for name in ("start_ns", "end_ns", "host_start_ns"))
_COMPUTE: Final = LANES.index(Lane.COMPUTE)
_OTHER: Final = KINDS.index(Kind.OTHER)
_PIPELINE: Final = [code for code, kind in enumerate(KINDS) if kind in COMPUTE_KINDS]
_CODES: Final = {what: [KINDS.index(kind) for kind in kinds] for what, kinds in ORDER.items()}


class WholeStep(NamedTuple):
    """What a rank was in, from the start of a step to the start of its next.

    Attributes:
        step: Its number.
        start_ns: When its first task began, on the host's monotonic clock.
        end_ns: When the first task of the next step did.
        phase_ns: How much of that was between its first forward or backward and the end of its last.
        spent_ns: What the rank was in, in the words of `model.whole_steps`, and for how long; it
            adds up to `length_ns`.
    """

    step: int
    start_ns: int
    end_ns: int
    phase_ns: int
    spent_ns: dict[str, int]

    @property
    def length_ns(self) -> int:
        """From its start to the start of the next."""
        return self.end_ns - self.start_ns


class StepTimes(NamedTuple):
    """What one step was on one rank.

    Attributes:
        step: Its number.
        start_ns: When its first forward or backward began, on the host's monotonic clock.
        end_ns: When its last one ended.
        busy_ns: Time in between in which one ran.
        between_ns: Time in between in which this rank was in no round, where the step has several, to
            accumulate gradients. Others may have been in one: the rate `span` of a report leaves out
            only what nobody was in, which a rank cannot know.
        kinds_ns: Time of each kind of task.
        before: The step before this one, whole, which ended when this one began; None if that was not
            recorded, or not all of it.
    """

    step: int
    start_ns: int
    end_ns: int
    busy_ns: int
    kinds_ns: dict[str, int]
    before: WholeStep | None = None
    between_ns: int = 0

    @property
    def span_ns(self) -> int:
        """From its first forward or backward to its last."""
        return self.end_ns - self.start_ns

    @property
    def bubble(self) -> float:
        """Share of that in which none ran: the rank's rate `span`, if the step has one round."""
        return idle_share(self.busy_ns, self.span_ns) or 0.0


class _Tasks(NamedTuple):
    """Tasks as columns; n long."""

    step: Ints
    microbatch: Ints
    kind: Ints
    lane: Ints
    start_ns: Ints
    end_ns: Ints
    names: list[str | None]

    @property
    def columns(self) -> tuple[Ints, ...]:
        """All but the names."""
        return self.step, self.microbatch, self.kind, self.lane, self.start_ns, self.end_ns

    def of(self, chosen: NDArray[np.bool_]) -> _Tasks:
        """Return some of them."""
        names = [self.names[at] for at in np.flatnonzero(chosen).tolist()]
        step, microbatch, kind, lane, start_ns, end_ns = (one[chosen] for one in self.columns)
        return _Tasks(step, microbatch, kind, lane, start_ns, end_ns, names)

    def passes(self) -> NDArray[np.bool_]:
        """Say which are forwards and backwards."""
        chosen: NDArray[np.bool_] = (self.lane == _COMPUTE) & np.isin(self.kind, _PIPELINE)
        return chosen


def step_times(
    step: int,
    parts: Sequence[Rows],
    before: Sequence[Rows] = (),
    microbatches: int | None = None,
) -> StepTimes | None:
    """Return what a step was, from what was recorded; None if it has no forward or backward.

    Args:
        step: Its number.
        parts: Tasks, in any order; those of other steps are left out.
        before: All tasks of the step before it, if they are known.
        microbatches: How many a round of the schedule has, if that is known.
    """
    if not parts:
        return None
    tasks = _joined([*before, *parts])
    own = tasks.of(tasks.step == step)
    phase = own.passes()
    if not phase.any():
        return None
    totals = np.zeros(len(KINDS), np.int64)
    np.add.at(totals, own.kind, own.end_ns - own.start_ns)
    kinds_ns = {KINDS[code].value: int(totals[code]) for code in np.unique(own.kind).tolist()}
    passes = own.of(phase)
    first, last = int(passes.start_ns.min()), int(passes.end_ns.max())
    busy_ns = union_ns(passes.start_ns, passes.end_ns)
    between_ns = last - first - _in_rounds_ns(passes, microbatches)
    whole = _whole(step - 1, tasks, int(own.start_ns.min())) if before else None
    return StepTimes(step, first, last, busy_ns, kinds_ns, whole, between_ns)


def _in_rounds_ns(passes: _Tasks, microbatches: int | None) -> int:
    """Return how long a rank was in rounds of a step, as `analysis.between_rounds` knows them."""
    count = int(passes.microbatch.max()) + 1
    if not microbatches or count <= microbatches or count % microbatches:
        return int(passes.end_ns.max() - passes.start_ns.min())
    # A task without a micro-batch may be of any round: it is on its own.
    alone = -1 - np.arange(len(passes.step))
    number = np.where(passes.microbatch < 0, alone, passes.microbatch // microbatches)
    found, of = np.unique(number, return_inverse=True)
    start_ns = np.full(len(found), passes.start_ns.max())
    end_ns = np.full(len(found), passes.end_ns.min())
    np.minimum.at(start_ns, of, passes.start_ns)
    np.maximum.at(end_ns, of, passes.end_ns)
    return union_ns(start_ns, end_ns)


def _joined(parts: Sequence[Rows]) -> _Tasks:
    """Return tasks as one; those of rounds that failed are of no step, as when they are read."""
    step, microbatch = (
        np.concatenate([rows.fields[at] for rows in parts]) for at in (_STEP, _MICROBATCH)
    )
    times = [
        np.concatenate([rows.times[at] for rows in parts]) for at in (_START, _END, _HOST_START)
    ]
    names = [name for rows in parts for name in rows.names]
    step = step.astype(np.int64)
    if SPOILED in names:
        for at in [at for at, name in enumerate(names) if name == SPOILED]:
            failed = (
                (step == step[at]) & (times[2] <= times[2][at]) & (microbatch >= microbatch[at])
            )
            step[failed] = UNKNOWN
    kind, lane = (
        np.concatenate([getattr(rows, name) for rows in parts]).astype(np.int64)
        for name in ("kind", "lane")
    )
    return _Tasks(step, microbatch.astype(np.int64), kind, lane, times[0], times[1], names)


def _whole(step: int, tasks: _Tasks, end_ns: int) -> WholeStep | None:
    """Take a step apart that lasted until the next began; None if nothing of it is there."""
    own = tasks.of(tasks.step == step)
    if not len(own.step) or (start_ns := int(own.start_ns.min())) > end_ns:
        return None
    passes = own.passes()
    phase_ns = 0
    if passes.any():
        closes = min(int(own.end_ns[passes].max()), end_ns)
        phase_ns = max(0, closes - int(own.start_ns[passes].min()))
    inside = tasks.of((tasks.end_ns > start_ns) & (tasks.start_ns < end_ns))
    starts, ends = inside.start_ns.clip(start_ns, end_ns), inside.end_ns.clip(start_ns, end_ns)
    spent_ns: dict[str, int] = {}
    covered_ns, sofar = 0, np.zeros(len(starts), bool)
    for what, chosen in _sorts(inside):
        sofar |= chosen
        reached_ns = union_ns(starts[sofar], ends[sofar])
        if reached_ns > covered_ns:
            spent_ns[what] = reached_ns - covered_ns
        covered_ns = reached_ns
    if rest_ns := end_ns - start_ns - covered_ns:
        spent_ns[UNRECORDED] = rest_ns
    return WholeStep(step, start_ns, end_ns, phase_ns, spent_ns)


def _sorts(tasks: _Tasks) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return what a rank may be in, and which tasks are it, in the order in which it counts."""
    kinds = set(np.unique(tasks.kind).tolist())
    found = [
        (what, np.isin(tasks.kind, codes)) for what, codes in _CODES.items() if kinds & {*codes}
    ]
    if _OTHER not in kinds:
        return found
    others = tasks.kind == _OTHER
    named: dict[str, NDArray[np.bool_]] = {}
    for at in np.flatnonzero(others & (tasks.lane != _COMPUTE)).tolist():
        name = tasks.names[at] or Kind.OTHER.value
        named.setdefault(name, np.zeros(len(others), bool))[at] = True
    lengths = tasks.end_ns - tasks.start_ns
    most = sorted(named.items(), key=lambda one: (-int(lengths[one[1]].sum()), one[0]))
    return [*found, *most[:NAMES], (OTHER, others)]
