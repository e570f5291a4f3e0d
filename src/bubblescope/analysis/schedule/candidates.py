"""The schedules that a run may have followed: those that its placement allows, and those of a search.

A zero-bubble search plans for the times that a job profiled before it began. No trace tells those, and
a per cent more or less changes the order that is found. So a run that follows no known order is asked
what the search promises: a split backward, within the memory limit, and hardly more bubble than the
search finds for the times that were measured. The order of such a run is its plan.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.schedule.observe import BACKWARD, FORWARD, WEIGHT
from bubblescope.model.errors import ScheduleError
from bubblescope.model.kinds import Kind
from bubblescope.model.ordering import stretches_of
from bubblescope.schedules import SCHEDULES
from bubblescope.schedules import plan as codes
from bubblescope.schedules.classic import gpipe, looped_bfs
from bubblescope.schedules.dualpipe import mindspeed_dualpipev
from bubblescope.schedules.plan import Plan, column
from bubblescope.schedules.replay import Edges, Graph, data_edges
from bubblescope.schedules.simulate import Costs, Simulation, durations, run
from bubblescope.schedules.zb_auto import Times, zb_auto

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bubblescope.analysis.schedule.observe import Coordinates, Observed, Shape
    from bubblescope.model.arrays import Ints
    from bubblescope.model.timeline import Timeline


def _form(name: str) -> tuple[str, str, Callable[..., Plan]]:
    return name, "", SCHEDULES[name].make


_LAST_FIRST: Final = "last micro-batch's backward first"
_FORMS: Final[dict[str, list[tuple[str, str, Callable[..., Plan]]]]] = {
    "linear": [
        _form("1f1b"),
        _form("gpipe"),
        ("gpipe", _LAST_FIRST, partial(gpipe, last_first=True)),
        _form("eager-1f1b"),
        _form("zb-h1"),
        _form("zb-h2"),
    ],
    "looped": [
        _form("interleaved-1f1b"),
        _form("looped-bfs"),
        ("looped-bfs", _LAST_FIRST, partial(looped_bfs, last_first=True)),
        _form("interleaved-zb"),
    ],
    "zigzag": [
        _form("zb-v"),
        _form("v-half"),
        _form("v-min"),
        _form("dualpipev"),
        ("dualpipev", "MindSpeed's, last backwards whole", mindspeed_dualpipev),
        _form("hanayo"),
    ],
    "mirrored": [_form("dualpipe"), _form("chimera")],
}
"""The schedules of each placement, likelier ones first: where order cannot tell, these win."""
_TURNS: Final = {
    name: place
    for place, name in enumerate(
        dict.fromkeys(name for forms in _FORMS.values() for name, *_ in forms)
    )
}


GIVEN: Final = "as given"
"""The variant that is a plan of the user's."""


class Candidate(NamedTuple):
    """A schedule that a run may have followed.

    Attributes:
        name: Its name.
        variant: What tells it from the form in `SCHEDULES`; empty if nothing does.
        make: Returns the plan for so many micro-batches; may raise `ScheduleError`.
    """

    name: str
    variant: str
    make: Callable[[int], Plan]

    def in_rounds(self, rounds: int) -> Candidate:
        """Return the candidate of a step that runs the schedule so many times."""
        make = self.make
        return self._replace(make=lambda count: make(count // rounds).repeated(rounds))

    @classmethod
    def given(cls, plan: Plan, variant: str) -> Candidate:
        """Return the candidate that is this plan."""
        return cls(plan.name, variant, lambda _count: plan)


def turn(name: str, variant: str) -> int:
    """Return in which turn a schedule is believed where order cannot tell: the user's own first."""
    return -1 if variant == GIVEN else _TURNS.get(name, len(_TURNS))


def known(shape: Shape, also: Sequence[Plan]) -> list[Candidate]:
    """Return every schedule with the placement, and those of `also` that have it."""
    devices, chunks = shape.devices, shape.chunks
    found = [
        Candidate.given(plan, GIVEN)
        for plan in also
        if [set(held) for held in plan.placement] == [set(held) for held in shape.placement]
    ]
    for name, variant, make in _FORMS[shape.name]:
        if SCHEDULES[name].any_chunks:
            found.append(Candidate(name, variant, partial(make, devices, chunks=chunks)))
        elif int(SCHEDULES[name].chunks) == chunks:
            found.append(Candidate(name, variant, partial(make, devices)))
    return found


_PER_DEVICE: Final = {"zb-1p": 1, "zb-2p": 2}
"""Memory limits, in micro-batches for each device of the pipeline."""

_SPARED: Final = 0.75
"""Of the bubble that the search spares 1F1B, the share that a searched order must spare as well."""

_ENOUGH: Final = 4
"""Micro-batches for each device from which on more of them make no other bubble."""

_CODES: Final = (codes.FORWARD, codes.BACKWARD_INPUT, codes.BACKWARD_WEIGHT)
"""The kinds of a plan's operations, by what an observed operation works on."""


def measured_times(timeline: Timeline) -> Times:
    """Return the median forward, input gradient and weight gradient of a run, and its transfer.

    A transfer takes no longer than the shortest wait between a pass and that of the next stage.
    """
    from bubblescope.clocks.causality import constraints  # noqa: PLC0415  for searches alone

    length = pl.col("end_ns") - pl.col("start_ns")
    median = dict(timeline.tasks.group_by("kind").agg(length.median()).iter_rows())
    forward, backward, weight = (
        int(median.get(kind.value) or 0)
        for kind in (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
    )
    waits = constraints(timeline).select(wait=pl.col("after_ns") - pl.col("before_ns"))
    shortest = waits.filter(pl.col("wait") >= 0).select(pl.col("wait").min()).item()
    return Times(forward, backward, weight, int(shortest or 0))


def searched(shape: Shape, times: Times) -> list[Candidate]:
    """Return what the zero-bubble search finds for the measured times."""
    p = shape.devices
    return [
        Candidate(
            name,
            "for the measured times",
            partial(zb_auto, p, times=times, memory=limit * p, name=name),
        )
        for name, limit in _PER_DEVICE.items()
    ]


class _Ran(msgspec.Struct, frozen=True):
    """What a device ran in one step, in order."""

    work: Ints
    microbatch: Ints

    def is_in_turn(self) -> bool:
        """Say whether the micro-batches of each kind ran from first to last."""
        return all(
            bool((np.diff(self.microbatch[self.work == work]) > 0).all())
            for work in (FORWARD, BACKWARD, WEIGHT)
        )

    def turns_at_once(self) -> bool:
        """Say whether the first backward follows its own forward, as it does on the last device."""
        first = int((self.work == BACKWARD).argmax())
        return int((self.work[:first] == FORWARD).sum()) <= int(self.microbatch[first]) + 1

    def most_held(self) -> float:
        """Return the most activations held at once, in micro-batches.

        A forward stores a micro-batch; the input gradient and the weight gradient free a half each.
        Those that were lost of the trace ran, at the soonest, with the one before.
        """
        end = int(self.microbatch.max()) + 1
        forwards = np.maximum.accumulate(np.where(self.work == FORWARD, self.microbatch + 1, 0))
        freed = np.zeros(len(self.work))
        for work in (BACKWARD, WEIGHT):
            mine = np.append(np.where(self.work == work, self.microbatch, end), end)
            freed += np.minimum.accumulate(mine[::-1])[::-1][1:] / 2
        return float((forwards - freed).max())


def own_order(
    observed: Observed, shape: Shape, seats: Coordinates, times: Times
) -> Candidate | None:
    """Return the run's own order, if it keeps the promise of a zero-bubble search; else None."""
    p, m = shape.devices, observed.microbatches
    ran = _ran(observed, seats)
    if not all(order.is_in_turn() for order in ran.values()):
        return None
    if p - 1 in ran and not ran[p - 1].turns_at_once():
        return None
    held = max(order.most_held() for order in ran.values())
    plain, whole = (SCHEDULES[name].make(p, m) for name in ("1f1b", "zb-h1"))
    try:
        replayed = _replay(whole, ran, times)
    except ScheduleError:  # the orders do not belong together
        return None
    spared = _longest(plain, run(plain, Costs.shared(plain, times)), ran)
    spared -= _longest(whole, replayed, ran)
    for name, limit in _PER_DEVICE.items():
        if held <= limit * p and spared >= _SPARED * _possible(p, m, times, limit * p, ran):
            order = np.lexsort((replayed.start_ns, whole.device))
            columns = [
                column(whole.kind[mine], device, whole.microbatch[mine])
                for device, mine in enumerate(np.split(order, whole.first[1:-1]))
            ]
            return Candidate.given(Plan(name, shape.placement, columns), "in an order of its own")
    return None


def _possible(devices: int, count: int, times: Times, memory: int, seen: Iterable[int]) -> int:
    """Return how much of 1F1B's bubble a search spares, by as many micro-batches as show it."""
    count = min(count, _ENOUGH * devices)
    plain = SCHEDULES["1f1b"].make(devices, count)
    best = zb_auto(devices, count, times, memory)
    least, most = (
        _longest(plan, run(plan, Costs.shared(plan, times)), seen) for plan in (best, plain)
    )
    return most - least


def _ran(observed: Observed, seats: Coordinates) -> dict[int, _Ran]:
    """Return the order of each observed device in most of its fullest steps."""
    count = observed.microbatches
    code = observed.work * count + observed.microbatch
    begins = stretches_of(observed.group)
    orders: dict[int, Counter[bytes]] = {}
    for begin, step in zip(begins.tolist(), np.split(code, begins[1:]), strict=True):
        device = seats.device[int(observed.rank[begin])]
        orders.setdefault(device, Counter())[step.tobytes()] += 1
    ran = {}
    for device, seen in orders.items():
        fullest = max(seen, key=lambda order: (len(order), seen[order]))
        ran[device] = _Ran(*np.divmod(np.frombuffer(fullest, code.dtype), count))
    return ran


def _replay(whole: Plan, ran: dict[int, _Ran], times: Times) -> Simulation:
    """Return when the operations of a step run if the devices keep to the orders that were observed.

    What was not observed (lost operations, devices without a trace) runs as soon as what it needs is
    there, whatever its device does: so it fits in where the others left room for it. `whole` is any
    plan of all the operations.
    """
    tables = np.stack([whole.table(code) for code in _CODES])
    chains = [tables[order.work, device, order.microbatch] for device, order in ran.items()]
    data = data_edges(whole)
    edges = Edges(
        np.concatenate([data.source, *(chain[:-1] for chain in chains)]),
        np.concatenate([data.target, *(chain[1:] for chain in chains)]),
    )
    crosses = whole.device[edges.source] != whole.device[edges.target]
    lengths = np.maximum(durations(whole, Costs.shared(whole, times)), 1)
    return Simulation(*Graph(len(whole), edges).run(lengths, crosses * times.comm_ns))


def _longest(plan: Plan, simulation: Simulation, devices: Iterable[int]) -> int:
    """Return the longest time from the first start to the last end of one of the devices."""
    start = np.minimum.reduceat(simulation.start_ns, plan.first[:-1])
    end = np.maximum.reduceat(simulation.end_ns, plan.first[:-1])
    return int((end - start)[list(devices)].max())
