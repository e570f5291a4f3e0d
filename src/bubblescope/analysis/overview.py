"""How much there is of a run: what every heading says, and how long its tasks are by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Self

    from bubblescope.model.arrays import Ints
    from bubblescope.model.timeline import Timeline

_EXACT: Final = 12
"""Leading bits of a length by which it is counted where the median is looked for."""


class Overview(NamedTuple):
    """How much there is, in some steps of a run or in all; of several parts, it adds up.

    Attributes:
        tasks: Number of tasks.
        span_ns: First start and last end of tasks; None without any.
        device_ns: The same of what devices spent time on.
        steps: Frame with step, start_ns, end_ns and tasks.
        per_rank: Frame with rank and tasks; of ranks that have any.
        kinds: Frame with kind, count, total_ns, min_ns and max_ns.
        lengths: Frame with kind, size and count: how many tasks are about as long, as `sized` has it.
        kernels_told: Whether the traces say of any task how long kernels ran in it.
    """

    tasks: int
    span_ns: tuple[int, int] | None
    device_ns: tuple[int, int] | None
    steps: pl.DataFrame
    per_rank: pl.DataFrame
    kinds: pl.DataFrame
    lengths: pl.DataFrame
    kernels_told: bool

    @classmethod
    def of(cls, timeline: Timeline) -> Self:
        """Look at a timeline."""
        tasks = timeline.tasks
        edges = (pl.col("start_ns").min(), pl.col("end_ns").max())
        length = pl.col("end_ns") - pl.col("start_ns")
        sizes = pl.Series(sized(tasks.select(length).to_series().to_numpy()))
        count = pl.len().cast(pl.Int64)
        return cls(
            tasks.height,
            tasks.select(edges).row(0) if tasks.height else None,
            timeline.budget.select(edges).row(0) if timeline.budget.height else None,
            tasks.drop_nulls("step").group_by("step").agg(*edges, tasks=count),
            tasks.group_by("rank").agg(tasks=count),
            tasks.group_by("kind").agg(
                count=count, total_ns=length.sum(), min_ns=length.min(), max_ns=length.max()
            ),
            tasks.select("kind", size=sizes).group_by("kind", "size").agg(count=count),
            bool(tasks["busy_ns"].is_not_null().any()),
        )

    @classmethod
    def joined(cls, parts: Sequence[Overview]) -> Self:
        """Return that of several parts of a run together."""
        steps, per_rank, kinds, lengths = (
            pl.concat([getattr(part, name) for part in parts])
            for name in ("steps", "per_rank", "kinds", "lengths")
        )
        return cls(
            sum(part.tasks for part in parts),
            _around(part.span_ns for part in parts),
            _around(part.device_ns for part in parts),
            steps.sort("step"),
            per_rank.group_by("rank").agg(pl.col("tasks").sum()).sort("rank"),
            kinds.group_by("kind")
            .agg(pl.col("count", "total_ns").sum(), pl.col("min_ns").min(), pl.col("max_ns").max())
            .sort("kind"),
            lengths.group_by("kind", "size").agg(pl.col("count").sum()).sort("kind", "size"),
            any(part.kernels_told for part in parts),
        )

    def middles(self) -> pl.DataFrame:
        """Return the sizes in which the medians of each kind are, as kind, size, and first.

        `first` is how many tasks of the kind are shorter than all of that size.
        """
        upto = pl.col("count").cum_sum().over("kind")
        of = pl.col("count").sum().over("kind")
        return (
            self.lengths.sort("kind", "size")
            .with_columns(first=upto - pl.col("count"), upto=upto, of=of)
            .filter(pl.col("upto") > (pl.col("of") - 1) // 2, pl.col("first") <= pl.col("of") // 2)
            .select("kind", "size", "first")
        )

    def with_medians(self, near: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """Return `kinds` with median_ns.

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
        found = found.with_columns(last=last).join(self.kinds.select("kind", of="count"), on="kind")
        low, high = (
            pl.col("length_ns").filter(pl.col("last") > at).min()
            for at in ((pl.col("of") - 1) // 2, pl.col("of") // 2)
        )
        medians = found.group_by("kind").agg(median_ns=(low + high) // 2)
        kinds = self.kinds.join(medians, on="kind", how="left", maintain_order="left")
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
    bits = np.searchsorted(1 << np.arange(62), lengths, "right")
    shift = np.maximum(bits - _EXACT, 0)
    sizes: Ints = (shift << _EXACT) + (lengths >> shift)
    return sizes


def lengths_near(timeline: Timeline, middles: pl.DataFrame) -> pl.DataFrame:
    """Return how many tasks have each of the lengths among which a median is.

    Args:
        timeline: A part of a run.
        middles: As `Overview.middles` returns it, of the whole run.

    Returns:
        Frame with kind, size, length_ns and count.
    """
    length = pl.col("end_ns") - pl.col("start_ns")
    tasks = timeline.tasks.select("kind", length_ns=length)
    tasks = tasks.with_columns(size=pl.Series(sized(tasks["length_ns"].to_numpy())))
    near = tasks.join(middles, on=["kind", "size"], how="semi")
    return near.group_by("kind", "size", "length_ns").agg(count=pl.len().cast(pl.Int64))
