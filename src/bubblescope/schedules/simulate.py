"""Simulation: the timeline of a plan whose operations take known times.

The result is a `Timeline` like that of a measured run, so every report, view and export takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.model.errors import ScheduleError
from bubblescope.model.kinds import SHORT, Kind, Lane
from bubblescope.model.provenance import Origin, Run
from bubblescope.model.timeline import KIND_DTYPE, LANE_DTYPE, TASK_SCHEMA, Timeline
from bubblescope.schedules.plan import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FORWARD_BACKWARD,
    KINDS,
    Operation,
)
from bubblescope.schedules.replay import MESSAGES, Edges, Graph, edges_of

if TYPE_CHECKING:
    from bubblescope.model.arrays import Ints
    from bubblescope.schedules.plan import Plan
    from bubblescope.schedules.replay import DataEdges
    from bubblescope.schedules.zb_auto import Times

Duration = int | Sequence[int] | Sequence[Sequence[int]] | np.ndarray | Callable[[int, int], int]
"""A time for all, one for every stage, a table of stages by micro-batches, or a function of both."""

Transfer = int | np.ndarray | Callable[[Operation, Operation], int]
"""A time for every transfer between devices, a table from device to device, or a function of the
operation that sends and the one that waits."""

ORDER_ONLY: Final = (
    "Only the order of computing is checked for deadlocks: transfers have no order of their own here, "
    "and every result is sent as soon as it is there. A program whose sends and receives wait for each "
    "other may still hang."
)
"""What a plan that can be simulated is not checked for."""

_RECEIVES = (Kind.RECV_FORWARD, Kind.RECV_BACKWARD)


class Costs(msgspec.Struct, frozen=True):
    """How long everything takes, in nanoseconds.

    Attributes:
        forward_ns, backward_input_ns, backward_weight_ns: Of one stage and micro-batch.
        backward_ns: Of a fused backward; the sum of its parts if None.
        forward_backward_ns: Of an overlapped pair, as a `Duration` of its forward; the sum of its
            halves if None, which is no overlap at all.
        comm_ns: From the end of an operation to the start of one on another device that needs its
            result. Transfers do not keep devices from computing.
        sync_ns: Of what the devices do together before the optimizer (gradient norm, reduction):
            it begins when all of them are done. None if each device goes on by itself.
        optimizer_ns: Of the optimizer.
    """

    forward_ns: Duration
    backward_input_ns: Duration
    backward_weight_ns: Duration
    backward_ns: Duration | None = None
    forward_backward_ns: Duration | None = None
    comm_ns: Transfer = 0
    sync_ns: int | None = None
    optimizer_ns: int = 0

    @classmethod
    def shared(
        cls,
        plan: Plan,
        times: Times,
        *,
        backward_ns: int | None = None,
        forward_backward_ns: int | None = None,
        sync_ns: int | None = None,
        optimizer_ns: int = 0,
    ) -> Costs:
        """Return costs for times of a micro-batch on one *device*, split evenly over its stages.

        So schedules with more chunks cut the same model into smaller pieces.
        """
        parts = plan.stages / plan.devices
        forward, backward_input, backward_weight = (round(time / parts) for time in times[:3])
        return cls(
            forward,
            backward_input,
            backward_weight,
            None if backward_ns is None else round(backward_ns / parts),
            None if forward_backward_ns is None else round(forward_backward_ns / parts),
            comm_ns=times.comm_ns,
            sync_ns=sync_ns,
            optimizer_ns=optimizer_ns,
        )


class Simulation(NamedTuple):
    """When the operations of one step run.

    Attributes:
        start_ns, end_ns: Of every operation of the plan.
    """

    start_ns: Ints
    end_ns: Ints


def transfer_ns(size_bytes: int, bytes_per_second: float, latency_ns: int = 0) -> int:
    """Return how long a message takes: latency + size / bandwidth."""
    return latency_ns + round(size_bytes / bytes_per_second * 1e9)


def durations(plan: Plan, costs: Costs) -> Ints:
    """Return how long every operation of a plan takes, in nanoseconds.

    Raises:
        ScheduleError: A table of times does not fit the plan, or a time is negative.
    """
    shape = (plan.stages, plan.microbatches)
    forward, back_input, back_weight = (
        _table(name, getattr(costs, name), shape)
        for name in ("forward_ns", "backward_input_ns", "backward_weight_ns")
    )
    back = (
        back_input + back_weight
        if costs.backward_ns is None
        else _table("backward_ns", costs.backward_ns, shape)
    )
    at = (plan.stage, plan.microbatch)
    pair = plan.kind == FORWARD_BACKWARD
    both = np.zeros(len(plan), np.int64)
    if costs.forward_backward_ns is not None:
        both = _table("forward_backward_ns", costs.forward_backward_ns, shape)[at]
    else:
        both[pair] = forward[at][pair] + back[plan.pair_stage[pair], plan.pair_microbatch[pair]]
    taken = [(FORWARD, forward), (BACKWARD, back), (BACKWARD_INPUT, back_input)]
    taken.append((BACKWARD_WEIGHT, back_weight))
    return np.select(
        [plan.kind == kind for kind, _ in taken], [table[at] for _, table in taken], both
    )


def run(plan: Plan, costs: Costs) -> Simulation:
    """Return when the operations of one step run, without making a timeline."""
    edges, _ = edges_of(plan)
    graph = Graph(len(plan), edges, lambda index: _label(plan, index))
    return Simulation(*graph.run(durations(plan, costs), _delays(plan, edges, costs.comm_ns)))


def simulate(plan: Plan, costs: Costs, *, steps: int = 1) -> Timeline:
    """Return the timeline of a plan.

    Rank r is pipeline device r. Between devices there are send and receive tasks wherever a
    transfer takes time.

    Args:
        plan: What each device runs, in order.
        costs: How long it takes.
        steps: How many training steps follow one another.

    Raises:
        ScheduleError: The plan deadlocks, or the costs do not fit it.
    """
    edges, data = edges_of(plan)
    delays = _delays(plan, edges, costs.comm_ns)
    count, devices = len(plan), plan.devices
    # Behind the operations of a step come, for every device, the end of its work and its optimizer.
    size = count + 2 * devices
    done, optimizer = count + np.arange(devices), count + devices + np.arange(devices)
    sync = costs.sync_ns or 0
    joins = [(plan.first[1:] - 1, done, 0), (done, optimizer, sync)]
    if costs.sync_ns is not None:
        # Each end of work waits for the one of the device before, so the last is everybody's.
        joins += [(done[:-1], done[1:], 0), (done[-1:].repeat(devices), optimizer, sync)]
    once = Edges(
        np.concatenate([edges.source, *(source for source, _, _ in joins)]),
        np.concatenate([edges.target, *(target for _, target, _ in joins)]),
    )
    waits = np.concatenate([delays, *(np.full(len(source), wait) for source, _, wait in joins)])
    shift = size * np.arange(steps)[:, None]
    again = (optimizer + shift[:-1]).ravel(), (plan.first[:-1] + shift[1:]).ravel()
    graph = Graph(
        steps * size,
        Edges(
            np.concatenate([(once.source + shift).ravel(), again[0]]),
            np.concatenate([(once.target + shift).ravel(), again[1]]),
        ),
        lambda index: _label(plan, index % size),
    )
    lengths = np.concatenate([durations(plan, costs), np.repeat([0, costs.optimizer_ns], devices)])
    start, end = (
        times.reshape(steps, size)
        for times in graph.run(
            np.tile(lengths, steps),
            np.concatenate([np.tile(waits, steps), np.zeros(len(again[0]), np.int64)]),
        )
    )
    parts = [
        _operations(plan, start[:, :count], end[:, :count]),
        _transfers(plan, data, delays[len(delays) - len(data.source) :], end[:, :count]),
    ]
    step, everyone = np.divmod(np.arange(steps * devices), devices)
    if sync:
        met = end[:, done[-1:]].repeat(devices)
        parts.append(
            _frame(
                step=step,
                start=met,
                end=met + sync,
                lane=Lane.COMM,
                once={"rank": everyone, "kind": Kind.COLLECTIVE.value, "name": "sync"},
            )
        )
    if costs.optimizer_ns:
        parts.append(
            _frame(
                step=step,
                start=start[:, optimizer].ravel(),
                end=end[:, optimizer].ravel(),
                lane=Lane.COMPUTE,
                once={"rank": everyone, "kind": Kind.OPTIMIZER.value, "name": "optimizer"},
            )
        )
    ranks = pl.DataFrame(
        {"rank": range(devices), "host": "simulated", "stages": plan.placement},
        schema={"rank": pl.Int32, "host": pl.String, "stages": pl.List(pl.Int32)},
    )
    origin = Origin("simulation", None, plan.name)
    about = Run(origins=(origin,), schedule=plan.name, microbatches=plan.microbatches)
    return Timeline(pl.concat(parts, how="diagonal"), ranks, about)


def _table(name: str, time: Duration, shape: tuple[int, int]) -> Ints:
    """Return a duration for every stage and micro-batch."""
    if callable(time):
        rows = [[time(stage, index) for index in range(shape[1])] for stage in range(shape[0])]
        table = np.array(rows, np.int64)
    else:
        given = np.asarray(time, np.int64)
        try:
            table = np.broadcast_to(given[:, None] if given.ndim == 1 else given, shape)
        except ValueError:
            raise ScheduleError(
                f"{name} has the shape {given.shape}, but the plan has {shape[0]} stages and "
                f"{shape[1]} micro-batches"
            ) from None
    if (table < 0).any():
        raise ScheduleError(f"{name} is negative")
    return table


def _delays(plan: Plan, edges: Edges, comm: Transfer) -> Ints:
    """Return the transfer time of every edge: nothing within a device."""
    source, target = plan.device[edges.source], plan.device[edges.target]
    crosses = source != target
    delays = np.zeros(len(source), np.int64)
    if callable(comm):
        operations = [o for device in range(plan.devices) for o in plan.order(device)]
        ends = zip(edges.source[crosses].tolist(), edges.target[crosses].tolist(), strict=True)
        delays[crosses] = [comm(operations[one], operations[other]) for one, other in ends]
    elif isinstance(comm, np.ndarray):
        if comm.shape != (plan.devices, plan.devices):
            raise ScheduleError(
                f"comm_ns has the shape {comm.shape}, but the plan has {plan.devices} devices"
            )
        delays[crosses] = comm[source[crosses], target[crosses]]
    else:
        delays[crosses] = comm
    if (delays < 0).any():
        raise ScheduleError("comm_ns is negative")
    return delays


def _label(plan: Plan, index: int) -> str:
    if index >= len(plan):
        return "the end of the step"
    return f"{plan.operation(index)} on device {plan.device[index]}"


def _operations(plan: Plan, start: Ints, end: Ints) -> pl.DataFrame:
    """Return the tasks of operations that start and end in every step: steps x operations."""
    short = pl.Series([SHORT[kind] for kind in KINDS])[plan.kind]
    columns = plan.operations().with_columns(
        rank=plan.device,
        # A format of nulls is null, so only pairs have the first.
        name=pl.coalesce(
            pl.format("F{}.{}&B{}.{}", "microbatch", "stage", "pair_microbatch", "pair_stage"),
            pl.format("{}{}.{}", short, "microbatch", "stage"),
        ),
    )
    return _frame(
        step=np.repeat(np.arange(len(start)), len(plan)),
        start=start.ravel(),
        end=end.ravel(),
        lane=Lane.COMPUTE,
        once=columns.to_dict(),
    ).with_columns(busy_ns=pl.col("end_ns") - pl.col("start_ns"))


def _transfers(plan: Plan, data: DataEdges, delays: Ints, end: Ints) -> pl.DataFrame:
    """Return a send and a receive for every result that takes time to reach another device.

    `delays` are of the data edges between devices; `end` is when operations end, steps x operations.
    """
    late = np.flatnonzero((delays > 0) & (data.message < len(_RECEIVES)))
    ways = np.array([1, -1])  # a forward's result goes one stage up, a backward's one down
    message, sent = data.message[late], data.stage[late]
    received = sent + ways[message]
    sender, receiver = plan.device[data.source[late]], plan.device[data.target[late]]
    begin = end[:, data.source[late]]
    parts = []
    for kinds, rank, peer, stage in (
        (MESSAGES, sender, receiver, sent),
        (_RECEIVES, receiver, sender, received),
    ):
        names = pl.Series([kind.value for kind in kinds if kind], dtype=KIND_DTYPE)
        parts.append(
            _frame(
                step=np.repeat(np.arange(len(end)), len(late)),
                start=begin.ravel(),
                end=(begin + delays[late]).ravel(),
                lane=Lane.COMM,
                once={
                    "rank": rank,
                    "kind": names[message],
                    "stage": stage,
                    "chunk": plan.chunk_of(rank, stage),
                    "microbatch": data.microbatch[late],
                    "peer": peer,
                    "name": pl.Series([SHORT[Kind(name)] for name in names])[message],
                },
            )
        )
    return pl.concat(parts)


def _frame(
    *, step: Ints, start: Ints, end: Ints, lane: Lane, once: Mapping[str, object]
) -> pl.DataFrame:
    """Return tasks of every step from what is the same in all of them."""
    same = pl.DataFrame(once)
    repeats = len(step) // max(len(same), 1)
    return (
        pl.concat([same] * max(repeats, 1))
        .with_columns(step=step, start_ns=start, end_ns=end, lane=pl.lit(lane.value, LANE_DTYPE))
        .cast({name: TASK_SCHEMA[name] for name in (*once, "step")})
    )
