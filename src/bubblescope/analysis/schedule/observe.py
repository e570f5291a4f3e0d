"""What the ranks of a run did, as the operations of a pipeline: the common ground with a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.pipeline_phase import of_phase
from bubblescope.model.arrays import blocks_of_ranks
from bubblescope.model.cached_results import remembered
from bubblescope.model.extents import extremes
from bubblescope.model.kinds import COMPUTE_KINDS, Kind
from bubblescope.model.ordering import distinct, in_order, stretches_of
from bubblescope.schedules.plan import looped, mirrored, zigzag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.model.arrays import Mask, Numbers
    from bubblescope.model.timeline import Timeline

FORWARD, BACKWARD, WEIGHT = range(3)
"""What an operation is to a schedule: an input gradient or a fused backward are both `BACKWARD`."""

_WORK: Final = {
    Kind.FORWARD.value: FORWARD,
    Kind.BACKWARD.value: BACKWARD,
    Kind.BACKWARD_INPUT.value: BACKWARD,
    Kind.BACKWARD_WEIGHT.value: WEIGHT,
    Kind.FORWARD_BACKWARD.value: FORWARD,
}
_UNSTEPPED: Final = -1
_STAGES: Final = 4096
"""Stages that any pipeline may have."""
_TIMES: Final = 8
"""How many times as many stages or micro-batches as were seen a run may have."""
_SPARE: Final = 1024
"""Micro-batches that a step may have however few were seen."""
_NEEDED: Final = (
    *("rank", "step", "kind", "lane", "stage", "microbatch", "pair_stage", "pair_microbatch"),
    *("start_ns", "end_ns"),
)


class Shape(msgspec.Struct, frozen=True):
    """One way to see the ranks of a run as a pipeline.

    Attributes:
        name: "linear", "looped", "zigzag" or "mirrored".
        placement: Stages of each device.
    """

    name: str
    placement: tuple[tuple[int, ...], ...]

    @property
    def devices(self) -> int:
        """Pipeline devices p."""
        return len(self.placement)

    @property
    def chunks(self) -> int:
        """Model chunks on each device v."""
        return max(map(len, self.placement))


class Observed(msgspec.Struct, frozen=True):
    """Forwards, backwards and weight gradients in the order in which each rank ran them.

    Overlapped pairs are their forward and then their backward. All arrays have one element per
    operation, sorted by rank, step and start.

    Attributes:
        rank, step: As in the timeline; the step is -1 in a run without steps.
        work: `FORWARD`, `BACKWARD` or `WEIGHT`.
        stage, microbatch: What it works on.
        task: Row of the task in the timeline.
        group: Number of its rank and step, ascending.
        fused: The backward makes the weight gradient as well.
        stages: Rank -> the stages that it holds, ascending; of all ranks of the run.
        microbatches: Micro-batches of a step m, as far as they were seen anywhere in the run.
    """

    rank: Numbers
    step: Numbers
    work: Numbers
    stage: Numbers
    microbatch: Numbers
    task: Numbers
    group: Numbers
    fused: np.ndarray[tuple[int], np.dtype[np.bool_]]
    stages: dict[int, tuple[int, ...]]
    microbatches: int

    def first(self, microbatches: int) -> Observed:
        """Return the operations of the first so many micro-batches."""
        return self.only(self.microbatch < microbatches)

    def early(self, share: float) -> Observed:
        """Return the operations of the first steps, about this share of them and at least one."""
        steps = np.unique(self.step)
        return self.only(self.step <= steps[int(share * (len(steps) - 1))])

    def only(self, kept: Mask) -> Observed:
        """Return some of the operations."""
        arrays = {
            name: getattr(self, name)[kept]
            for name in ("rank", "step", "work", "stage", "microbatch", "task", "fused")
        }
        group = np.unique(self.group[kept], return_inverse=True)[1]
        return msgspec.structs.replace(self, **arrays, group=group.astype(np.int32))


class Seen(msgspec.Struct, frozen=True):
    """Which numbers tasks of a run have, or of a part of it.

    Attributes:
        busiest: The most tasks with a stage and a micro-batch of a rank in a step.
        stages: Frame with rank, stage, and paired, whether it is the second of an overlapped pair.
        microbatches: Frame with microbatch and paired.
        passes: Number of forwards, backwards and the like.
        doubt_millionths: How uncertain these are, summed, in millionths.
    """

    busiest: int
    stages: pl.DataFrame
    microbatches: pl.DataFrame
    passes: int
    doubt_millionths: int

    @classmethod
    def of(cls, tasks: pl.DataFrame) -> Self:
        """Look at tasks, as in `Timeline.tasks`."""
        columns = (*_NEEDED[: _NEEDED.index("start_ns")], "certainty")
        tasks = tasks.select(columns)
        wanted = of_phase(tasks, _WORK.keys())
        return cls.joined([cls._of_ranks(block, wanted) for block in blocks_of_ranks(tasks)])

    @classmethod
    def _of_ranks(cls, tasks: pl.DataFrame, wanted: pl.Expr) -> Self:
        """Look at all tasks of some ranks; those that are `wanted` are of the pipeline phase."""
        known = tasks.filter(wanted).drop_nulls(["stage", "microbatch"])
        pair = {"stage": "pair_stage", "microbatch": "pair_microbatch"}
        both = [known.select("rank", *pair), known.select("rank", **pair).drop_nulls()]
        busiest: Any = extremes(known.select("rank", "step"))["count"].max()
        # What has no stage or no micro-batch tells nothing of a schedule.
        placed = pl.all_horizontal(pl.col("stage", "microbatch").is_not_null())
        passes = tasks.filter(pl.col("kind").is_in([kind.value for kind in COMPUTE_KINDS]))
        doubt = 1 - pl.when(placed).then(pl.col("certainty").cast(pl.Float64)).otherwise(0.0)
        doubts = passes.drop_nulls("certainty").select((doubt * _MILLION).round().cast(pl.Int64))
        return cls(
            busiest or 0,
            _either([distinct(one, "rank", "stage") for one in both]),
            _either([one.select(pl.col("microbatch").unique()) for one in both]),
            passes.height,
            int(doubts.to_series().sum()),
        )

    @classmethod
    def joined(cls, parts: Sequence[Seen]) -> Self:
        """Return the numbers of parts together."""
        return cls(
            max(part.busiest for part in parts),
            pl.concat([part.stages for part in parts]).unique(),
            pl.concat([part.microbatches for part in parts]).unique(),
            sum(part.passes for part in parts),
            sum(part.doubt_millionths for part in parts),
        )

    @property
    def most_stages(self) -> int:
        """How many stages a pipeline may have of which these were seen."""
        return max(_STAGES, _TIMES * self.stages.filter(~pl.col("paired"))["stage"].n_unique())

    @property
    def most_microbatches(self) -> int:
        """How many micro-batches a step may have."""
        return _TIMES * self.busiest + _SPARE

    @property
    def step_size(self) -> int:
        """How many micro-batches a step has."""
        likely = pl.col("paired") | (pl.col("microbatch") < self.most_microbatches)
        highest: Any = self.microbatches.filter(likely)["microbatch"].max()
        return 0 if highest is None else highest + 1

    @property
    def certainty(self) -> float:
        """The mean certainty of passes: 1 where the traces state what they are."""
        return 1 - self.doubt_millionths / _MILLION / max(1, self.passes)

    def held(self, ranks: pl.DataFrame) -> dict[int, tuple[int, ...]]:
        """Return the stages of each rank of which any was seen, ascending."""
        most = self.most_stages
        likely = self.stages.filter(pl.col("paired") | (pl.col("stage") < most))
        seen = likely.group_by("rank").agg(pl.col("stage").unique())
        stated = dict(ranks.select("rank", "stages").iter_rows())
        return {
            rank: tuple(
                sorted({*stages, *(one for one in stated.get(rank) or () if 0 <= one < most)})
            )
            for rank, stages in sorted(seen.iter_rows())
        }


def _either(halves: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return what a pass or the first of an overlapped pair is of, and the second; with `paired`."""
    flags = (pl.lit(value=paired).alias("paired") for paired in (False, True))
    return pl.concat([half.with_columns(flag) for half, flag in zip(halves, flags, strict=True)])


_MILLION: Final = 1_000_000


@remembered
def seen(timeline: Timeline) -> Seen:
    """Return which numbers the tasks of a run have; of a part of a run, those of the whole run."""
    return Seen.of(timeline.tasks)


@remembered
def stages_held(timeline: Timeline) -> dict[int, tuple[int, ...]]:
    """Return what `Seen.held` does; of a part of a run, that of the whole run."""
    return seen(timeline).held(timeline.ranks)


def observe(timeline: Timeline) -> Observed:
    """Return what the ranks of a run did."""
    numbers = seen(timeline)
    tasks = timeline.tasks.select(_NEEDED).with_row_index("task")
    wanted = of_phase(tasks, _WORK.keys())
    parts = [_halves(block.filter(wanted), numbers) for block in blocks_of_ranks(tasks)]
    columns: dict[str, Any] = {
        name: np.concatenate(
            [part.drop_in_place(name).to_numpy().astype(np.int32) for part in parts]
        )
        for name in ("rank", "step", "work", "stage", "microbatch", "task")
    }
    rank = columns["rank"]
    turn = (np.diff(rank) != 0) | (np.diff(columns["step"]) != 0)
    return Observed(
        **columns,
        group=np.cumsum(np.append(np.zeros(min(1, len(rank)), bool), turn), dtype=np.int32),
        fused=np.concatenate([part["fused"].to_numpy() for part in parts]),
        stages=stages_held(timeline),
        microbatches=numbers.step_size,
    )


def _halves(tasks: pl.DataFrame, numbers: Seen) -> pl.DataFrame:
    """Return a row for each operation, two of an overlapped pair, by rank, step and time.

    Args:
        tasks: Frame with `_NEEDED` and task: some tasks of the pipeline phase.
        numbers: Which numbers the tasks of the run have.
    """
    # A single damaged number would make plans of a billion devices or micro-batches. A rank runs each
    # micro-batch of a step on each of its stages, so there are about as many as it has tasks in a
    # step; more where a trace is cut.
    known = tasks.filter(
        pl.col("stage") < numbers.most_stages, pl.col("microbatch") < numbers.most_microbatches
    )
    known = known.with_columns(
        step=pl.col("step").fill_null(_UNSTEPPED),
        work=pl.col("kind").replace_strict(_WORK, return_dtype=pl.Int32),
        fused=pl.col("kind") == Kind.BACKWARD.value,
        half=pl.lit(0, pl.Int8),
    )
    pairs = known.filter(
        pl.col("pair_stage").is_not_null(), pl.col("pair_microbatch").is_not_null()
    )
    backs = pairs.with_columns(
        stage="pair_stage",
        microbatch="pair_microbatch",
        work=pl.lit(BACKWARD, pl.Int32),
        fused=pl.lit(value=True),
        half=pl.lit(1, pl.Int8),
    )
    key = ("rank", "step", "start_ns", "end_ns", "task", "half")
    columns = (*key, "work", "stage", "microbatch", "fused")
    both = pl.concat([known.select(columns), backs.select(columns)]) if backs.height else known
    return in_order(both, *key).select(
        "rank", "step", "work", "stage", "microbatch", "task", "fused"
    )


def shapes(observed: Observed) -> list[Shape]:
    """Return every way in which the ranks' stages can be placed, likeliest first.

    Ranks may be missing. Of a linear pipeline so may the last devices, and the others' stages do not
    tell; but in most schedules how many forwards run ahead of the first backward does.
    """
    sets = set(observed.stages.values())
    if not sets:
        return []
    chunks = max(map(len, sets))
    top = max(map(max, sets)) + 1
    if chunks == 1:
        return [Shape("linear", tuple(looped(count, 1))) for count in _lengths(observed, top)]
    found = []
    placed = [
        *(("mirrored", mirrored(count)) for count in (top, top + 1)),
        *(("looped", looped(count, chunks)) for count in _strides(sets)),
        *(("zigzag", zigzag(count, chunks)) for count in _turns(sets)),
    ]
    for name, placement in placed:
        if all(any(set(held) <= set(full) for full in placement) for held in sets):
            found.append(Shape(name, tuple(tuple(sorted(full)) for full in placement)))
    halved = _halved(observed)
    return [shape for shape in found if (shape.name == "mirrored") == halved]


def _lengths(observed: Observed, seen: int) -> list[int]:
    """Return the numbers of devices that warm-ups speak for, of a pipeline of `seen` or more.

    Device i of p runs p - i forwards ahead of its first backward in 1F1B and ZB-H1, and twice as
    many less one in eager 1F1B and ZB-H2.
    """
    begin = stretches_of(observed.group)
    back = np.flatnonzero(observed.work == BACKWARD)
    groups, first = np.unique(observed.group[back], return_index=True)
    ahead = back[first] - begin[groups]
    device = np.array([observed.stages[rank][0] for rank in observed.rank[begin[groups]].tolist()])
    counts = {
        round(float(np.median(device + each))) for each in (ahead, (ahead + 1) // 2) if len(each)
    }
    return [seen, *sorted({seen + 1, *(count for count in counts if count > seen)})]


def _strides(sets: set[tuple[int, ...]]) -> list[int]:
    """Return the numbers of devices that looped stages allow: the step from chunk to chunk."""
    return sorted({held[1] - held[0] for held in sets if len(held) > 1})


def _turns(sets: set[tuple[int, ...]]) -> list[int]:
    """Return the numbers of devices that folded stages allow: r and 2p - 1 - r add up to 2p - 1."""
    sums = {held[0] + held[1] + 1 for held in sets if len(held) > 1}
    return sorted(total // 2 for total in sums if total % 2 == 0)


def _halved(observed: Observed) -> bool:
    """Say whether ranks run only half of the micro-batches of a stage, as in two opposite pipelines."""
    forward = observed.work == FORWARD
    if not forward.any():
        return False
    both = {stages for stages in observed.stages.values() if len(stages) > 1}
    if not both or any(len(stages) != 2 for stages in both):
        return False
    count = int(observed.microbatch[forward].max()) + 1
    size = int(observed.stage.max()) + 1
    cells = np.zeros((int(observed.rank.max()) + 1, size, count), bool)
    cells[observed.rank[forward], observed.stage[forward], observed.microbatch[forward]] = True
    seen = cells.sum(axis=2)
    return bool(np.median(seen[seen > 0]) <= 0.6 * count)


class Coordinates(msgspec.Struct, frozen=True):
    """Where the ranks of a run stand in a pipeline.

    Attributes:
        device: Rank -> pipeline device.
        replica: Rank -> which copy of the pipeline, from 0: data and tensor parallel ranks run the
            same operations.
    """

    device: dict[int, int]
    replica: dict[int, int]


def coordinates(observed: Observed, shape: Shape, order: Sequence[int]) -> Coordinates:
    """Return where each rank stands.

    Args:
        observed: What the ranks did.
        shape: How stages are placed.
        order: The ranks, those of one replica in the same order as those of another.
    """
    device: dict[int, int] = {}
    replica: dict[int, int] = {}
    taken: dict[int, int] = {}
    begins: dict[int, set[int]] = {}
    if shape.name == "mirrored":
        first = (observed.work == FORWARD) & (observed.microbatch == 0)
        for rank, stage in zip(observed.rank[first], observed.stage[first], strict=True):
            begins.setdefault(int(rank), set()).add(int(stage))
    for rank in order:
        if rank not in observed.stages:
            continue
        held = set(observed.stages[rank])
        fits = [number for number, full in enumerate(shape.placement) if held <= set(full)]
        # Opposite pipelines have two devices for the same stages. The first micro-batch goes down,
        # past device r at stage r.
        told = [number for number in fits if begins.get(rank) == {number}]
        device[rank] = min(told or fits, key=lambda number: taken.get(number, 0))
        replica[rank] = taken.get(device[rank], 0)
        taken[device[rank]] = replica[rank] + 1
    return Coordinates(device, replica)
