"""A run that is given in parts, none of which need be there with another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import polars as pl

from bubblescope.model.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bubblescope.model.provenance import Run


class Pieces(Protocol):
    """A run in parts of whole steps, and in batches of ranks.

    It is sent to wherever its parts are looked at: it is small, such as the path of a folder.
    """

    @property
    def run(self) -> Run:
        """What is known of the whole run."""

    @property
    def ranks(self) -> pl.DataFrame:
        """All ranks, as in `Timeline.ranks`."""

    @property
    def parts(self) -> Sequence[Sequence[int]]:
        """The steps of each part: each is in one. A run without steps is one part, without any."""

    @property
    def batches(self) -> int:
        """Number of batches that all ranks are in."""

    @property
    def cuts(self) -> int:
        """Number of stretches to `cut` before all parts are looked at, where that is less work."""

    def cut(self, number: int) -> None:
        """Take what of one stretch is of each part, so that it is at hand when they are looked at."""

    def make_ready(self, index: int) -> None:
        """Put a part in order that is about to be looked at, if it can be kept so."""

    def part(self, index: int) -> Timeline:
        """Return all that ran on all ranks in the steps of a part.

        What belongs to no step is in one part, such as the one in whose time it began. The ranks and
        the run are those of the whole.
        """

    def around(self, index: int, start_ns: int, end_ns: int) -> Timeline:
        """Return what is in no step of a part, and not among its own, but overlaps a time."""

    def along(self, batch: int, parts: Sequence[int] | None = None) -> Timeline:
        """Return the tasks of a batch of ranks in some parts, or in all; nothing else need be there."""

    def during(self, ranks: Sequence[int], start_ns: int, end_ns: int) -> pl.DataFrame:
        """Return the tasks of some ranks, few perhaps, that overlap a time, in no order."""

    def counters(self) -> pl.DataFrame:
        """Return the counters of the whole run, as in `Timeline.counters`."""


class Runs(Protocol):
    """How work is done on many jobs: in this process, or as `bubblescope.engine.Engine.run` does it."""

    def __call__(
        self, work: Callable[[Any], Any], jobs: Sequence[Any], /
    ) -> Iterator[tuple[int, Any]]:
        """Yield the number of each job, and what came of it, in any order."""


def here(work: Callable[[Any], Any], jobs: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Do work on jobs one after the other, in this process."""
    for index, job in enumerate(jobs):
        yield index, work(job)


class Split:
    """A run that is there as a whole, split: for those who would try what parts tell.

    Args:
        timeline: The run.
        parts: The steps of each part.
        batches: The ranks of each batch.
    """

    def __init__(
        self, timeline: Timeline, parts: Sequence[Sequence[int]], batches: Sequence[Sequence[int]]
    ) -> None:
        self.timeline = timeline
        self.parts = parts
        self._batches = batches
        opens = timeline.tasks.drop_nulls("step").group_by("step").agg(pl.col("start_ns").min())
        opens = opens.sort("start_ns")
        part_of = {step: part for part, steps in enumerate(parts) for step in steps}
        self._opens = opens["start_ns"].to_numpy()
        self._part_of = np.array([part_of[step] for step in opens["step"].to_list()], np.int64)
        self._by_step = part_of

    @property
    def run(self) -> Run:
        """What is known of the run."""
        return self.timeline.run

    @property
    def ranks(self) -> pl.DataFrame:
        """Its ranks."""
        return self.timeline.ranks

    @property
    def batches(self) -> int:
        """Number of batches of ranks."""
        return len(self._batches)

    @property
    def cuts(self) -> int:
        """None: all of it is at hand."""
        return 0

    def cut(self, number: int) -> None:
        """Do nothing."""

    def make_ready(self, index: int) -> None:
        """Do nothing."""

    def part(self, index: int) -> Timeline:
        """Return a part."""
        return self._only(lambda frame: frame.filter(self._owner(frame) == index))

    def around(self, index: int, start_ns: int, end_ns: int) -> Timeline:
        """Return what overlaps a time and is not of a part."""
        overlaps = (pl.col("end_ns") > start_ns) & (pl.col("start_ns") < end_ns)
        return self._only(lambda frame: frame.filter(self._owner(frame) != index).filter(overlaps))

    def along(self, batch: int, parts: Sequence[int] | None = None) -> Timeline:
        """Return some parts, or all, of some ranks."""
        tasks = self.timeline.tasks.filter(pl.col("rank").is_in(self._batches[batch]))
        if parts is not None:
            tasks = tasks.filter(self._owner(tasks).is_in(parts))
        return Timeline(tasks, self.ranks, self.run)

    def during(self, ranks: Sequence[int], start_ns: int, end_ns: int) -> pl.DataFrame:
        """Return the tasks of some ranks that overlap a time."""
        return self.timeline.slice(ranks=ranks, start_ns=start_ns, end_ns=end_ns).tasks

    def counters(self) -> pl.DataFrame:
        """Return its counters."""
        return self.timeline.counters

    def _only(self, chosen: Callable[[pl.DataFrame], pl.DataFrame]) -> Timeline:
        tables = {
            name: chosen(frame)
            for name, frame in self.timeline.tables.items()
            if {"step", "start_ns"} <= {*frame.columns}
        }
        return Timeline(chosen(self.timeline.tasks), self.ranks, self.run, **tables)

    def _owner(self, frame: pl.DataFrame) -> pl.Series:
        """Return the part that each row is of."""
        if not len(self._opens):
            return pl.repeat(0, frame.height, dtype=pl.Int64, eager=True)
        began = np.searchsorted(self._opens, frame["start_ns"].to_numpy(), "right") - 1
        at = pl.Series(self._part_of[np.maximum(began, 0)])
        stepped = frame["step"].replace_strict(self._by_step, default=None, return_dtype=pl.Int64)
        return frame.select(pl.coalesce(stepped, at)).to_series()
