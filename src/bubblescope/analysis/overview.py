"""How much there is of a run: what every heading says, and how long its tasks are by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.device_budget import between_captures
from bubblescope.analysis.step_lengths import whole
from bubblescope.model.extents import BEGAN, extremes
from bubblescope.model.kinds import Kind, Lane
from bubblescope.model.ordering import counted, distinct

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from typing_extensions import Self

    from bubblescope.model.arrays import Ints
    from bubblescope.model.timeline import Timeline

_EXACT: Final = 12
"""Leading bits of a length by which it is counted where the median is looked for."""


class Overview(msgspec.Struct, frozen=True):
    """How much there is, in some steps of a run or in all; of several parts, it adds up.

    Attributes:
        tasks: Number of tasks.
        span_ns: First start and last end of tasks; None without any.
        device_ns: The same of what devices spent time on.
        extents: Frame with step (null of tasks of none), tasks, start_ns, end_ns, longest_ns and ranks:
            from when to when tasks are, how long that is on the rank where it is longest, and how many
            ranks compute. They begin as `BEGAN` has it.
        per_rank: Frame with rank, tasks and stage (the first of its first chunk), of ranks with any.
        device_steps: Frame with step, start_ns, end_ns, longest_ns, ranks and open: the same of the
            steps of devices, each to the start of the next one.
        unrecorded: As `between_captures` returns it, of ranks; of several parts without what lies
            between them.
        kernels_told: Whether the traces say of any task how long kernels ran in it.
    """

    tasks: int
    span_ns: tuple[int, int] | None
    device_ns: tuple[int, int] | None
    extents: pl.DataFrame
    per_rank: pl.DataFrame
    device_steps: pl.DataFrame
    unrecorded: pl.DataFrame
    kernels_told: bool

    @classmethod
    def of(cls, timeline: Timeline) -> Self:
        """Look at a timeline."""
        tasks = timeline.tasks
        edges = (pl.col("start_ns").min(), pl.col("end_ns").max())
        count = pl.len().cast(pl.Int64)
        start, end = (tasks[name].to_numpy() for name in ("start_ns", "end_ns"))
        # By rank, step and lane first, which are far fewer.
        windows = extremes(
            tasks.select("rank", "step", "lane"), least={"start_ns": start}, most={"end_ns": end}
        )
        counts = windows.group_by("rank").agg(tasks=pl.col("count").sum())
        on_ranks = windows.group_by("rank", "step").agg(
            BEGAN,
            pl.col("end_ns").max(),
            tasks=pl.col("count").sum(),
            compute=(pl.col("lane") == Lane.COMPUTE.value).any(),
        )
        longest = (pl.col("end_ns") - pl.col("start_ns")).max()
        return cls(
            tasks.height,
            tasks.select(edges).row(0) if tasks.height else None,
            timeline.budget.select(edges).row(0) if timeline.budget.height else None,
            on_ranks.group_by("step")
            .agg(pl.col("tasks").sum(), *edges, longest_ns=longest, ranks=pl.col("compute").sum())
            .sort("step"),
            counts.join(first_stages(tasks), on="rank").sort("rank"),
            timeline.step_times.group_by("step")
            .agg(*edges, pl.col("open").any(), longest_ns=longest, ranks=count)
            .sort("step"),
            between_captures(timeline.budget, "rank"),
            bool(tasks["busy_ns"].is_not_null().any()),
        )

    @classmethod
    def joined(cls, parts: Sequence[Overview]) -> Self:
        """Return that of several parts of a run together."""
        extents, per_rank, device_steps, unrecorded = (
            pl.concat([getattr(part, name) for part in parts])
            for name in ("extents", "per_rank", "device_steps", "unrecorded")
        )
        return cls(
            sum(part.tasks for part in parts),
            _around(part.span_ns for part in parts),
            _around(part.device_ns for part in parts),
            extents.sort("step"),
            per_rank.group_by("rank")
            .agg(pl.col("tasks").sum(), pl.col("stage").min())
            .sort("rank"),
            device_steps.group_by("step")
            .agg(
                pl.col("start_ns").min(),
                pl.col("end_ns").max(),
                pl.col("open").any(),
                pl.col("longest_ns").max(),
                pl.col("ranks").sum(),
            )
            .sort("step"),
            unrecorded.sort("rank", "start_ns"),
            any(part.kernels_told for part in parts),
        )

    def length_ns(self, *, of_devices: bool) -> int:
        """Return from the first start to the last end of tasks; without any, of what devices did.

        Args:
            of_devices: As of `spans`: the last step may go on after the last task then.
        """
        edges = ("start_ns", "end_ns")
        steps = self.spans(of_devices=True).select(edges).rows() if of_devices else []
        around = _around([self.span_ns or self.device_ns, *steps])
        return around[1] - around[0] if around else 0

    @property
    def steps(self) -> pl.DataFrame:
        """Frame with step, start_ns, end_ns and tasks, of those that have tasks."""
        return self.extents.drop_nulls("step").select("step", "start_ns", "end_ns", "tasks")

    def spans(self, *, of_devices: bool) -> pl.DataFrame:
        """Return step, start_ns and end_ns of all steps that have tasks, in the order of time.

        Args:
            of_devices: Whether steps are those of devices, each to the start of the next one.
        """
        edges = ("start_ns", "end_ns")
        spans = self.steps.select("step", *edges)
        if of_devices:
            spans = spans.update(self.device_steps.select("step", *edges), on="step")
        return spans.sort("start_ns", "step")

    def typical(
        self, *, common_clock: bool, of_devices: bool, among: Collection[int] = ()
    ) -> dict[str, Any] | None:
        """Return the row of `extents` of the step of median length, of those on most ranks, if any.

        Of an even number it is the shorter of the two in the middle.

        Args:
            common_clock: Whether ranks share a clock: else a step is as long as on its longest rank.
            of_devices: As of `spans`; the row is one of `device_steps` then.
            among: Those to choose from, if any of them will do.
        """
        computing = self.extents.filter(pl.col("ranks") > 0)
        if not computing.height:
            return None
        if of_devices and self.device_steps.height:
            steps = whole(self.device_steps)
        else:
            stepped = computing.drop_nulls("step")
            steps = stepped if stepped.height else computing
        some = steps.filter(pl.col("step").is_in(list(among)))
        some = some if some.height else steps
        length = pl.col("end_ns") - pl.col("start_ns") if common_clock else pl.col("longest_ns")
        found = (
            some.filter(pl.col("ranks") == pl.col("ranks").max())
            .with_columns(length_ns=length)
            .sort("length_ns", "step")
        )
        return found.row((found.height - 1) // 2, named=True)

    def order(self, ranks: pl.DataFrame) -> pl.DataFrame:
        """Return ranks, as in `Timeline.ranks`, in the order of the pipeline."""
        return in_pipeline_order(ranks, self.per_rank)


def evenly(ranks: pl.DataFrame, count: int) -> pl.DataFrame:
    """Return so many rows, from the first to the last as evenly as can be; no more than there are."""
    if ranks.height <= count:
        return ranks
    return ranks[np.linspace(0, ranks.height - 1, count).round().astype(np.int64)]


def first_stages(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return rank and stage: the first of the rank's first chunk, null where it is not known."""
    known = tasks.select("rank", "chunk", "stage").filter(pl.col("chunk") == 0).drop_nulls("stage")
    first = extremes(known.select("rank"), least={"stage": known["stage"].to_numpy()})
    every = distinct(tasks, "rank")
    return every.join(first.select("rank", "stage"), on="rank", how="left")


def in_pipeline_order(ranks: pl.DataFrame, first: pl.DataFrame) -> pl.DataFrame:
    """Return ranks in the order of the pipeline: by the stage of each one's first chunk, then by rank.

    Where two copies of a pipeline run in opposite directions, two ranks hold the same stages, but not
    as the same chunks. Unknown stages order by rank.

    Args:
        ranks: As in `Timeline.ranks`.
        first: Frame with rank and stage, as `first_stages` returns it.
    """
    stage = pl.coalesce("chunk_stage", pl.col("stages").list.min(), "rank")
    known = first.select("rank", chunk_stage="stage")
    return ranks.join(known, on="rank", how="left").sort(stage, "rank").drop("chunk_stage")


def kinds_of(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return kind, count, total_ns, min_ns and max_ns of tasks."""
    length = pl.col("end_ns") - pl.col("start_ns")
    return tasks.group_by("kind").agg(
        count=pl.len().cast(pl.Int64),
        total_ns=length.sum(),
        min_ns=length.min(),
        max_ns=length.max(),
    )


class Kinds(NamedTuple):
    """How long tasks of each kind are; of several parts of a run, it adds up.

    Attributes:
        sums: Frame with kind, count, total_ns, min_ns and max_ns.
        sizes: Frame with kind, size and count: how many tasks are about as long, as `sized` has it.
    """

    sums: pl.DataFrame
    sizes: pl.DataFrame

    @classmethod
    def of(cls, tasks: pl.DataFrame) -> Self:
        """Look at tasks."""
        key, count = counted(_kind_and_size(tasks))
        every = pl.Series([kind.value for kind in Kind], dtype=tasks.schema["kind"])
        sizes = pl.DataFrame(
            {"kind": every.gather(key % _KINDS), "size": key // _KINDS, "count": count},
            schema_overrides={"size": pl.Int64, "count": pl.Int64},
        )
        return cls(kinds_of(tasks), sizes)

    @classmethod
    def joined(cls, parts: Sequence[Kinds]) -> Self:
        """Return those of several parts of a run together."""
        sums, sizes = (pl.concat(frames) for frames in zip(*parts, strict=True))
        ends = pl.col("min_ns").min(), pl.col("max_ns").max()
        return cls(
            sums.group_by("kind").agg(pl.col("count", "total_ns").sum(), *ends).sort("kind"),
            sizes.group_by("kind", "size").agg(pl.col("count").sum()).sort("kind", "size"),
        )

    def middles(self) -> pl.DataFrame:
        """Return the sizes in which the medians of each kind are, as kind, size, and first.

        `first` is how many tasks of the kind are shorter than all of that size.
        """
        upto = pl.col("count").cum_sum().over("kind")
        of = pl.col("count").sum().over("kind")
        return (
            self.sizes.sort("kind", "size")
            .with_columns(first=upto - pl.col("count"), upto=upto, of=of)
            .filter(pl.col("upto") > (pl.col("of") - 1) // 2, pl.col("first") <= pl.col("of") // 2)
            .select("kind", "size", "first")
        )

    def with_medians(self, near: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """Return `sums` with median_ns.

        Args:
            near: As `lengths_near` returns it, of all parts.
        """
        found = (
            pl.concat(near)
            .group_by("kind", "size", "length_ns")
            .agg(pl.col("count").sum())
            .join(self.middles(), on=["kind", "size"])
            .sort("kind", "length_ns")
        )
        last = pl.col("count").cum_sum().over("kind", "size") + pl.col("first")
        found = found.with_columns(last=last).join(self.sums.select("kind", of="count"), on="kind")
        low, high = (
            pl.col("length_ns").filter(pl.col("last") > at).min()
            for at in ((pl.col("of") - 1) // 2, pl.col("of") // 2)
        )
        medians = found.group_by("kind").agg(median_ns=(low + high) // 2)
        kinds = self.sums.join(medians, on="kind", how="left", maintain_order="left")
        return kinds.select("kind", "count", "total_ns", "min_ns", "median_ns", "max_ns")


def _around(spans: Iterable[tuple[int, int] | None]) -> tuple[int, int] | None:
    """Return from when to when any of some spans is."""
    known = [span for span in spans if span is not None]
    if not known:
        return None
    return min(start for start, _ in known), max(end for _, end in known)


def sized(lengths: Ints) -> Ints:
    """Return a number for each length, ascending with them: the same for those that are about as long.

    Args:
        lengths: In nanoseconds, not negative; those that differ in their leading bits differ.
    """
    # Floats hold their exponent ready, but are rounded up to the next from 53 bits on.
    if lengths.max(initial=0) < 1 << 53:
        bits = np.frexp(lengths.astype(np.float64))[1].astype(np.int64)
    else:
        bits = np.searchsorted(1 << np.arange(62), lengths, "right")
    shift = np.maximum(bits - _EXACT, 0)
    sizes: Ints = (shift << _EXACT) + (lengths >> shift)
    return sizes


def lengths_near(timeline: Timeline, middles: pl.DataFrame) -> pl.DataFrame:
    """Return how many tasks have each of the lengths among which a median is.

    Args:
        timeline: A part of a run.
        middles: As `Kinds.middles` returns it, of the whole run.

    Returns:
        Frame with kind, size, length_ns and count.
    """
    kinds = middles["kind"].cast(timeline.tasks.schema["kind"]).to_physical().to_numpy()
    wanted = middles["size"].to_numpy() * _KINDS + kinds
    key = _kind_and_size(timeline.tasks)
    rows = np.isin(key, wanted)
    length = pl.col("end_ns") - pl.col("start_ns")
    near = timeline.tasks.select("kind", "start_ns", "end_ns").filter(pl.Series(rows))
    sizes = pl.Series(key[rows] // _KINDS, dtype=pl.Int64)
    near = near.select("kind", size=sizes, length_ns=length)
    return near.group_by("kind", "size", "length_ns").agg(count=pl.len().cast(pl.Int64))


_KINDS: Final = len(Kind)


def _kind_and_size(tasks: pl.DataFrame) -> Ints:
    """Return a number for the size of each task and its kind, the same where both are."""
    length = tasks["end_ns"].to_numpy() - tasks["start_ns"].to_numpy()
    key: Ints = sized(length) * _KINDS + tasks["kind"].to_physical().to_numpy()
    return key
