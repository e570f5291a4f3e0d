"""What the operations of one step wait for: in job traces, and in traces of computation alone.

The model of job traces is that of Lin et al., "Understanding Stragglers in Large Model Training
Using What-if Analysis" (OSDI 2025, arXiv 2505.05713, section 3), as its authors' program
(https://github.com/ByteDance-Seed/StragglerAnalysis) has it; docs/stragglers.md lists its rules.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.model.dependencies import feeds
from bubblescope.model.errors import TimelineError
from bubblescope.model.kinds import Kind
from bubblescope.names import job_trace_operations as names
from bubblescope.schedules.replay import Edges, Graph

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bubblescope.analysis.stragglers.operations import Array, Operations

_CLOCK_NS: Final = 50_000
"""How far the clocks of two workers may be apart where unlaunched messages are looked for."""

_AFTER: Final = (names.COLLECT_GARBAGE, names.REDUCE_LAYERNORM, names.REDUCE_EMBEDDING)
_FEEDS: Final = {"forward": 1, "backward": -1}
"""Which stage a direction's result goes to, from its own."""


class Rendezvous(NamedTuple):
    """Communication that nobody begins before all are there.

    Attributes:
        members: Its operations, one of each worker of a replica that takes part.
        replicas: Whether all replicas take part.
    """

    members: list[int]
    replicas: bool


class StepGraph(NamedTuple):
    """What waits for what in one step.

    Attributes:
        graph: Operations, numbered as in the table, and after them the rendezvous: each waits for
            what its members need, and its members for it.
        rendezvous: The rendezvous.
    """

    graph: Graph
    rendezvous: list[Rendezvous]


class _Links:
    """Edges while they are collected."""

    def __init__(self) -> None:
        self.pairs: list[tuple[int, int]] = []

    def chain(self, operations: Iterable[int]) -> None:
        """Let each wait for the one before it."""
        self.pairs += pairwise(operations)


def step_graph(operations: Operations) -> StepGraph:
    """Return what the operations of a step wait for.

    Raises:
        TimelineError: Messages do not match computations, or no operation says which micro-batch it
            works on.
        ScheduleError: Operations wait for each other in a circle.
    """
    links = _Links()
    rendezvous = (
        _job_trace(operations, links) if operations.job_trace else _compute(operations, links)
    )
    count = len(operations)
    met = {
        member: count + number for number, one in enumerate(rendezvous) for member in one.members
    }
    pairs = [(source, met.get(target, target)) for source, target in links.pairs]
    pairs += [(node, member) for member, node in met.items()]
    source, target = np.array(pairs, np.int64).reshape(-1, 2).T
    graph = Graph(
        count + len(rendezvous), Edges(source, target), lambda index: _name(operations, index)
    )
    return StepGraph(graph, rendezvous)


def _name(operations: Operations, index: int) -> str:
    if index >= len(operations):
        return "the communication that follows"
    return f"{operations.types[operations.type[index]]} at place {operations.place[index]}"


def _job_trace(operations: Operations, links: _Links) -> list[Rendezvous]:
    """Link the operations of a job trace and return the rendezvous."""
    places = range(len(operations.pipeline.stages))
    messages: dict[tuple[int, str, str], list[int]] = {}
    for place in places:
        compute = operations.at(place, *names.COMPUTATIONS)
        links.chain(compute.tolist())
        for direction in _FEEDS:
            for end in ("send", "recv"):
                messages[place, direction, end] = _stream(operations, links, place, direction, end)
        _first_backward(operations, links, place, compute)
        _parameters(operations, links, place)
        _after_compute(operations, links, place, compute)
    return [
        *_messages(messages, len(places)),
        *_everybody(operations, [0, places[-1]], names.REDUCE_EMBEDDING, replicas=False),
        *_everybody(operations, places, names.CLIP_GRADIENTS, replicas=True),
        *(
            Rendezvous([operation], replicas=True)
            for place in places
            for operation in operations.at(place, *names.BY_REPLICA).tolist()
        ),
    ]


def _stream(
    operations: Operations, links: _Links, place: int, direction: str, end: str
) -> list[int]:
    """Link one of a place's four message streams, and return the messages that were sent at all.

    A send waits for its computation. A receive waits for the computation before its own, so it is
    posted no earlier, and its own waits for it. Traces also hold messages that were never launched:
    receives after the last computation, sends before the first, and those at the model's ends.
    """
    compute = operations.at(place, f"{direction}-compute")
    stream = operations.at(place, f"{direction}-{end}")
    links.chain(stream.tolist())
    if not len(stream) or not len(compute):
        return []
    receives = end == "recv"
    if receives:
        launched = operations.first_ns[stream] <= operations.first_ns[compute].max() + _CLOCK_NS
    else:
        launched = operations.last_ns[stream] >= operations.last_ns[compute].min() - _CLOCK_NS
    kept = stream[launched]
    missing = len(compute) - len(kept)
    edge = place in {0, len(operations.pipeline.stages) - 1}
    if missing and len(kept) and not (edge and missing == 1):
        raise TimelineError(
            f"pipeline place {place} has {len(kept)} {direction}-{end} for {len(compute)} "
            f"{direction}-compute in a step; give a trace of whole steps"
        )
    own = compute[missing:] if receives else compute[: len(kept)]
    own = own[: len(kept)]
    pairs = zip(own.tolist(), kept.tolist(), strict=True)
    for computation, message in pairs:
        links.pairs.append((message, computation) if receives else (computation, message))
    if receives:
        before = compute[missing - 1 :] if missing else compute
        late = kept if missing else kept[1:]
        links.pairs += zip(before.tolist(), late.tolist(), strict=False)
    # The stages are those that the messages go between; at the model's ends there is none.
    ahead = _FEEDS[direction] * (-1 if receives else 1)
    stage = operations.stage[own]
    stages = max(int(operations.stage.max()), len(operations.pipeline.stages) - 1) + 1
    known = np.where(stage < 0, place, stage) + ahead
    sent: list[int] = kept[(known >= 0) & (known < stages)].tolist()
    return sent


def _first_backward(operations: Operations, links: _Links, place: int, compute: Array) -> None:
    """Let the first gradient messages wait for the last forward but one before the first backward."""
    forward = operations.type[compute] == operations.types.index(names.FORWARD)
    ahead = int(np.argmin(forward)) if not forward.all() else 0
    if ahead < 2:
        return
    before = int(compute[ahead - 2])
    for end in ("recv", "send"):
        first = operations.at(place, f"backward-{end}")[:1].tolist()
        links.pairs += [(before, message) for message in first]


def _parameters(operations: Operations, links: _Links, place: int) -> None:
    """Link the gathering of parameters and the reduction of gradients with the computations."""
    links.chain(operations.at(place, names.GATHER_PARAMETERS, names.SCATTER_GRADIENTS).tolist())
    chunk = operations.chunk
    forward, backward = (operations.at(place, name) for name in names.COMPUTATIONS)
    for each in np.unique(chunk[forward]).tolist():
        gathers = operations.at(place, names.GATHER_PARAMETERS)
        gathers = gathers[chunk[gathers] == each]
        first = forward[chunk[forward] == each][:1].tolist()
        links.pairs += [(gather, first[0]) for gather in gathers[-1:].tolist()]
    if names.REDUCE_APART not in operations.types:
        return
    for each in np.unique(chunk[backward]).tolist():
        scatters = operations.at(place, names.SCATTER_GRADIENTS)
        scatters = scatters[chunk[scatters] == each]
        mine = backward[chunk[backward] == each]
        last = int(mine[np.argmax(operations.last_ns[mine])])
        links.pairs += [(last, scatter) for scatter in scatters[:1].tolist()]


def _after_compute(operations: Operations, links: _Links, place: int, compute: Array) -> None:
    """Link what follows the last computation of a step, one after the other."""
    overlapped = names.REDUCE_APART in operations.types
    reduce = names.REDUCE_APART if overlapped else names.SCATTER_GRADIENTS
    last = compute[np.argmax(operations.last_ns[compute])][None] if len(compute) else compute
    steps = [
        operations.at(place, name)
        for name in (*_AFTER, reduce, names.CLIP_GRADIENTS, names.OPTIMIZER)
    ]
    links.chain(np.concatenate([last, *steps]).tolist())
    if overlapped:
        scattered = operations.at(place, names.SCATTER_GRADIENTS)[-1:].tolist()
        after = np.concatenate(steps[1:])[:1].tolist()
        links.pairs += [(scatter, later) for scatter in scattered for later in after]


def _messages(messages: dict[tuple[int, str, str], list[int]], places: int) -> list[Rendezvous]:
    """Pair the k-th send with the k-th receive at the place that it goes to."""
    rendezvous = []
    for direction, ahead in _FEEDS.items():
        for place in range(places):
            sends = messages[place, direction, "send"]
            other = (place + ahead) % places
            receives = messages[other, direction, "recv"]
            if len(sends) != len(receives):
                raise TimelineError(
                    f"pipeline place {place} has {len(sends)} {direction}-send in a step, but place "
                    f"{other} has {len(receives)} {direction}-recv; give a trace of whole steps"
                )
            rendezvous += [
                Rendezvous(list(pair), replicas=False) for pair in zip(sends, receives, strict=True)
            ]
    return rendezvous


def _everybody(
    operations: Operations, places: Iterable[int], name: str, *, replicas: bool
) -> list[Rendezvous]:
    """Let the k-th operations of some places meet."""
    columns = [operations.at(place, name).tolist() for place in dict.fromkeys(places)]
    columns = [column for column in columns if column]
    return [Rendezvous(list(members), replicas) for members in zip(*columns, strict=False)]


def _compute(operations: Operations, links: _Links) -> list[Rendezvous]:
    """Link computations in the order of their devices, and with those on the stages beside them."""
    places = range(len(operations.pipeline.stages))
    turn = np.zeros(len(operations), np.int64)
    for place in places:
        mine = operations.at(place, *operations.types)
        turn[mine] = np.arange(len(mine))
        links.chain(mine.tolist())
    unknown = ("stage", "microbatch", "pair_stage", "pair_microbatch")
    works = (
        pl.DataFrame({name: getattr(operations, name) for name in unknown})
        .with_columns(
            pl.all().replace(-1, None),
            rank=pl.Series(operations.place),
            kind=pl.Series(operations.types).gather(operations.type),
        )
        .with_row_index("work")
    )
    if len(places) > 1 and not _any_placed_forward(works):
        raise TimelineError(
            "no forward states its stage and micro-batch, so stages cannot be linked"
        )
    fed = feeds(works)
    found = list(zip(fed["source"].to_list(), fed["target"].to_list(), strict=True))
    # Within a place only what agrees with the order there: that is what the device did.
    links.pairs += [
        (source, target)
        for source, target in found
        if operations.place[source] != operations.place[target] or turn[source] < turn[target]
    ]
    return []


def _any_placed_forward(works: pl.DataFrame) -> bool:
    forwards = works.filter(pl.col("kind").is_in([Kind.FORWARD.value, Kind.FORWARD_BACKWARD.value]))
    return forwards.drop_nulls(["stage", "microbatch"]).height > 0
