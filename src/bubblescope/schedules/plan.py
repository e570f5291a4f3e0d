"""A plan: what every device of a pipeline runs in one step, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.model.errors import ScheduleError
from bubblescope.model.kinds import SHORT, Kind
from bubblescope.model.timeline import KIND_DTYPE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bubblescope.model.arrays import Ints

KINDS: Final = (
    Kind.FORWARD,
    Kind.BACKWARD,
    Kind.BACKWARD_INPUT,
    Kind.BACKWARD_WEIGHT,
    Kind.FORWARD_BACKWARD,
)
"""The kinds of a plan's operations; `Plan.kind` holds indices into it."""

FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD_BACKWARD = range(5)
"""The same by name."""

_CODE: Final = {kind: code for code, kind in enumerate(KINDS)}


class Operation(NamedTuple):
    """One operation of a device.

    Attributes:
        kind: What it does; one of `KINDS`.
        stage: The virtual stage, 0 to S - 1 along the model; of the forward half if it is a pair.
        microbatch: The micro-batch, 0 to m - 1.
        pair_stage, pair_microbatch: Of the backward half of an overlapped pair, else None.
    """

    kind: Kind
    stage: int
    microbatch: int
    pair_stage: int | None = None
    pair_microbatch: int | None = None

    def __str__(self) -> str:
        label = f"{SHORT[self.kind]}{self.microbatch}"
        if self.pair_stage is None:
            return f"{label}.{self.stage}"
        return f"F{self.microbatch}.{self.stage}&B{self.pair_microbatch}.{self.pair_stage}"


class Halves(msgspec.Struct, frozen=True):
    """The operations of a plan with every overlapped pair as its forward and its backward.

    Attributes:
        operation: Index of the operation in the plan, ascending.
        kind: 0 forward, 1 fused backward, 2 input gradient, 3 weight gradient.
        stage, microbatch: What it works on.
    """

    operation: Ints
    kind: Ints
    stage: Ints
    microbatch: Ints


class Plan:
    """What every device of a pipeline runs in one step, in order.

    A stage's forward needs that of the stage before, a backward that of the stage after, a weight
    gradient its own input gradient: what an operation waits for follows from what it is, so a plan
    is no more than the order on every device.

    Args:
        name: Name of the schedule.
        placement: For each device the virtual stages that it holds, chunk by chunk. In a
            bidirectional pipeline a stage is on two devices, and which of them works on a
            micro-batch depends on the micro-batch.
        columns: For each device an array of its operations in order, 5 x n: index into `KINDS`,
            stage, micro-batch, and stage and micro-batch of the pair or -1. `Plan.of` takes lists
            of `Operation`.
        rounds: As the attribute.

    Attributes:
        devices: Number of pipeline devices p.
        stages: Number of virtual stages S along the model.
        microbatches: Micro-batches of a step m, of all its rounds.
        rounds: How often a step runs the schedule, where it accumulates gradients; see `repeated`.
        device, kind, stage, microbatch, pair_stage, pair_microbatch: Arrays of one element per
            operation, device after device, each in order; `kind` indexes `KINDS`, and the pair is
            -1 where there is none.
        first: For each device the index of its first operation, and the number of all: p + 1 long.

    Raises:
        ScheduleError: The orders are no pipeline: an operation is missing, doubled or on a device
            that does not hold its stage, or comes before one of its own device that it needs.
    """

    def __init__(
        self,
        name: str,
        placement: Sequence[Sequence[int]],
        columns: Sequence[Ints],
        rounds: int = 1,
    ) -> None:
        self.name = name
        self.rounds = rounds
        self.placement = tuple(tuple(stages) for stages in placement)
        self.devices = len(columns)
        sizes = [part.shape[1] for part in columns]
        if not sizes or not all(sizes) or self.devices != len(self.placement):
            raise ScheduleError(f"{name}: a plan needs operations for every device")
        table = np.concatenate(columns, axis=1)
        self.kind, self.stage, self.microbatch, self.pair_stage, self.pair_microbatch = table
        self.first: Ints = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.device: Ints = np.repeat(np.arange(self.devices), sizes)
        self.stages = 1 + max(max(stages, default=0) for stages in self.placement)
        self.microbatches = int(max(self.microbatch.max(), self.pair_microbatch.max())) + 1
        self.halves = self._halves()
        self._check()

    @classmethod
    def of(
        cls,
        name: str,
        placement: Sequence[Sequence[int]],
        orders: Sequence[Sequence[Operation]],
    ) -> Plan:
        """Return the plan of each device's operations in order."""
        columns = [
            np.array(
                [
                    (_CODE[kind], stage, microbatch, _absent(pair), _absent(pair_microbatch))
                    for kind, stage, microbatch, pair, pair_microbatch in order
                ],
                np.int64,
            )
            .reshape(-1, 5)
            .T
            for order in orders
        ]
        return cls(name, placement, columns)

    def __len__(self) -> int:
        return int(self.first[-1])

    def __repr__(self) -> str:
        return (
            f"Plan({self.name!r}, {self.devices} devices, {self.chunks} chunks each, "
            f"{self.microbatches} micro-batches, {len(self)} operations)"
        )

    @property
    def chunks(self) -> int:
        """Model chunks on each device v."""
        return max(map(len, self.placement))

    @property
    def per_round(self) -> int:
        """Micro-batches of each round."""
        return self.microbatches // self.rounds

    @property
    def copies(self) -> float:
        """How often the model's parameters are held: 2 in bidirectional pipelines."""
        return sum(map(len, self.placement)) / self.stages

    @property
    def splits_backward(self) -> bool:
        """Whether weight gradients are operations of their own."""
        return bool((self.kind == BACKWARD_WEIGHT).any())

    @property
    def overlaps(self) -> bool:
        """Whether some forwards run overlapped with a backward."""
        return bool((self.kind == FORWARD_BACKWARD).any())

    def repeated(self, rounds: int) -> Plan:
        """Return the plan of a step that runs this one so many times, for more micro-batches each time.

        That is how a job accumulates gradients that calls its schedule more than once a step: round r
        has micro-batches r m to (r + 1) m - 1, and a device begins it when it is done with the one
        before.
        """
        if rounds == 1:
            return self
        table = np.array(
            (self.kind, self.stage, self.microbatch, self.pair_stage, self.pair_microbatch)
        )
        shift = np.zeros((rounds, *table.shape), np.int64)
        more = np.arange(rounds)[:, None] * self.microbatches
        shift[:, 2] = more
        shift[:, 4] = np.where(table[4] >= 0, more, 0)
        columns = [
            np.concatenate(list((table + shift)[:, :, begin:end]), axis=1)
            for begin, end in zip(self.first[:-1], self.first[1:], strict=True)
        ]
        return Plan(self.name, self.placement, columns, rounds * self.rounds)

    def order(self, device: int) -> list[Operation]:
        """Return what a device runs, in order."""
        part = slice(int(self.first[device]), int(self.first[device + 1]))
        columns = (self.kind, self.stage, self.microbatch, self.pair_stage, self.pair_microbatch)
        return [
            Operation(
                KINDS[kind],
                stage,
                microbatch,
                *((pair, other) if pair >= 0 else (None, None)),
            )
            for kind, stage, microbatch, pair, other in zip(
                *(column[part].tolist() for column in columns), strict=True
            )
        ]

    def operation(self, index: int) -> Operation:
        """Return an operation by its index in the plan's arrays."""
        device = int(self.device[index])
        return self.order(device)[index - int(self.first[device])]

    def table(self, *kinds: int) -> Ints:
        """Return which operation does each of some kinds' work: S x m, -1 where none does.

        Args:
            kinds: Indices into `KINDS`, of halves.
        """
        found = np.full((self.stages, self.microbatches), -1, np.int64)
        wanted = np.zeros(len(KINDS), bool)
        wanted[list(kinds)] = True
        chosen = wanted[self.halves.kind]
        found[self.halves.stage[chosen], self.halves.microbatch[chosen]] = self.halves.operation[
            chosen
        ]
        return found

    def chunk_of(self, device: Ints, stage: Ints) -> Ints:
        """Return the chunk in which devices hold stages, or -1 where they do not."""
        chunks = np.full((self.devices, self.stages), -1, np.int64)
        for holder, stages in enumerate(self.placement):
            # A middle device of a bidirectional pipeline of odd size would hold a stage twice.
            for chunk, held in reversed(list(enumerate(stages))):
                chunks[holder, held] = chunk
        return chunks[device, stage]

    def operations(self) -> pl.DataFrame:
        """Return kind, stage, chunk and microbatch of each operation, and those of pairs, else null.

        The columns are called as in `Timeline.tasks`.
        """
        pair = pl.Series(self.pair_stage >= 0)
        pair_chunk = self.chunk_of(self.device, np.maximum(self.pair_stage, 0))
        return pl.DataFrame(
            {
                "kind": pl.Series([kind.value for kind in KINDS], dtype=KIND_DTYPE)[self.kind],
                "stage": self.stage,
                "chunk": self.chunk_of(self.device, self.stage),
                "microbatch": self.microbatch,
                "pair_stage": self.pair_stage,
                "pair_chunk": pair_chunk,
                "pair_microbatch": self.pair_microbatch,
            }
        ).with_columns(pl.when(pair).then(pl.col("^pair_.*$")))

    def peak_memory(self, weight_share: float = 0.5) -> NDArray[np.float64]:
        """Return the most activations that each device holds at once.

        A forward stores a stage's activations; a fused backward lets them go, an input gradient all
        but `weight_share` of them, and the weight gradient the rest. With M_B and M_W the memory
        before and after the input gradient, as in Qi et al. (arXiv 2401.10241, section 2), the
        share is M_W / M_B, a half in its authors' implementation.

        Returns:
            One number per device, in activations of one micro-batch in one p-th of the model.
        """
        halves = self.halves
        change = np.array([1.0, -1.0, weight_share - 1.0, -weight_share])[halves.kind]
        device = self.device[halves.operation]
        held = np.cumsum(change)
        # Each device starts from nothing: all that the ones before it stored, it let go.
        peak = np.zeros(self.devices)
        np.maximum.at(peak, device, held)
        return peak * self.devices / self.stages

    def _halves(self) -> Halves:
        pair = self.kind == FORWARD_BACKWARD
        index = np.arange(len(self))
        operation = np.concatenate([index, index[pair]])
        kind = np.concatenate([np.where(pair, FORWARD, self.kind), np.full(pair.sum(), BACKWARD)])
        stage = np.concatenate([self.stage, self.pair_stage[pair]])
        microbatch = np.concatenate([self.microbatch, self.pair_microbatch[pair]])
        order = np.argsort(operation, kind="stable")
        return Halves(operation[order], kind[order], stage[order], microbatch[order])

    def _check(self) -> None:
        halves = self.halves
        device, stage = self.device[halves.operation], halves.stage
        stages = max(self.stages, int(stage.max()) + 1)
        places = [
            holder * stages + one for holder, held in enumerate(self.placement) for one in held
        ]
        elsewhere = ~np.isin(device * stages + stage, places)
        if elsewhere.any():
            at = int(halves.operation[elsewhere][0])
            raise ScheduleError(
                f"{self.name}: device {self.device[at]} runs {self.operation(at)} but does not hold "
                "that stage"
            )
        self._check_complete("forward", FORWARD)
        self._check_complete("backward", BACKWARD, BACKWARD_INPUT)
        # Only now are the tables known to be no larger than the plan.
        forward, backward, weight = (
            self.table(FORWARD),
            self.table(BACKWARD, BACKWARD_INPUT),
            self.table(BACKWARD_WEIGHT),
        )
        split = self.kind[backward] == BACKWARD_INPUT
        if (split != (weight >= 0)).any() or (halves.kind == BACKWARD_WEIGHT).sum() != split.sum():
            raise ScheduleError(
                f"{self.name}: every input gradient needs one weight gradient, and no other does"
            )
        for first, then, words in (
            (forward, backward, "backward comes before its forward"),
            (np.where(split, backward, -1), weight, "weight gradient comes before its backward"),
        ):
            late = (first >= then) & (first >= 0) & (self.device[first] == self.device[then])
            if late.any():
                stage, microbatch = np.argwhere(late)[0]
                raise ScheduleError(
                    f"{self.name}: at stage {stage}, micro-batch {microbatch}, the {words}"
                )
        if (split & (self.device[weight] != self.device[backward])).any():
            raise ScheduleError(f"{self.name}: a weight gradient runs on another device")

    def _check_complete(self, what: str, *kinds: int) -> None:
        """Check that each stage does some kinds' work once for each micro-batch."""
        halves = self.halves
        mine = np.isin(halves.kind, kinds)
        work = halves.stage[mine] * self.microbatches + halves.microbatch[mine]
        done = np.unique(work)
        wanted = self.stages * self.microbatches
        if done.size < wanted:
            gaps = np.flatnonzero(done != np.arange(done.size))
            first = int(gaps[0]) if gaps.size else done.size
            stage, microbatch = divmod(first, self.microbatches)
            raise ScheduleError(
                f"{self.name}: no {what} of micro-batch {microbatch} at stage {stage}"
            )
        if work.size > wanted:
            raise ScheduleError(f"{self.name}: {work.size - wanted} {what}s run twice")


def _absent(value: int | None) -> int:
    return -1 if value is None else value


def linear(devices: int) -> list[tuple[int, ...]]:
    """Return the placement of one stage on each device."""
    return looped(devices, 1)


def looped(devices: int, chunks: int) -> list[tuple[int, ...]]:
    """Return the placement that deals stages out in rounds: device r holds r, r + p, r + 2p ..."""
    return [tuple(range(rank, devices * chunks, devices)) for rank in range(devices)]


def zigzag(devices: int, chunks: int) -> list[tuple[int, ...]]:
    """Return the placement that turns around at either end: device r holds r, 2p - 1 - r, 2p + r ...

    With two chunks it is the V of ZB-V and DualPipeV.
    """
    return [
        tuple(
            chunk * devices + (rank if chunk % 2 == 0 else devices - 1 - rank)
            for chunk in range(chunks)
        )
        for rank in range(devices)
    ]


def mirrored(devices: int) -> list[tuple[int, ...]]:
    """Return the placement of two opposite pipelines: device r holds r, and p - 1 - r of a copy."""
    return [(rank, devices - 1 - rank) for rank in range(devices)]


def column(kind: int | Ints, stage: int | Ints, microbatch: Ints) -> Ints:
    """Return operations that are no pairs, as `Plan` takes them: 5 x n."""
    one = np.ones_like(microbatch)
    return np.stack([kind * one, stage * one, microbatch, -one, -one])
