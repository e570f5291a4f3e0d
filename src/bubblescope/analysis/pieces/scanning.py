"""Looks at a run in parts, one after the other: what is known of it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bubblescope.analysis.pieces import scans
from bubblescope.analysis.pipeline_phase import pipelines, step_facts, together
from bubblescope.engine.remote_results import Held, Holder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    import polars as pl

    from bubblescope.analysis.pieces.run_in_pieces import Pieces, Runs


class Looking(Holder):
    """What looks at the parts of a run, and knows where that is what the looks before found.

    What looks return, and what is put together of it, stays where they are taken: a row for each rank
    and step of a large run is more than the process that asks should hold.

    Args:
        pieces: The run.
        run: What runs the looks, each at one part.
        folder: Where workers hold what looks return; None if it is sent back and forth.

    Attributes:
        pieces: The run.
        parts: The steps of each part.
        batches: Number of batches of ranks.
        cuts: As of `Pieces`.
        told: What parts are told of the whole.
    """

    def __init__(
        self, pieces: Pieces | Held[Pieces], run: Runs, folder: Path | None = None
    ) -> None:
        super().__init__(run, folder)
        self.pieces = pieces if isinstance(pieces, Held) else Held.of(pieces, folder)
        self.parts, self.batches, self.cuts = self.ask(_outline, self.pieces)
        self.told: Held[scans.Told] = Held({})

    def look(
        self, look: Callable[[scans.OfPart], Any], more: Any = None, at: Iterable[int] | None = None
    ) -> list[Held[Any]]:
        """Look at each part, or at some, and return what comes of it, by part.

        Args:
            look: The look.
            more: What it needs besides.
            at: At which parts; at all if None.
        """
        numbers = range(len(self.parts)) if at is None else at
        pieces: Any = self.pieces.shared
        known: Any = self.told.shared
        return self.hold(look, [scans.OfPart(pieces, number, known, more) for number in numbers])

    def look_each(
        self, looks: Sequence[tuple[int, Callable[[scans.OfPart], Any], Any]]
    ) -> list[Held[Any]]:
        """Look at some parts, at each in its own way: its number, the look, and what that needs."""
        pieces: Any = self.pieces.shared
        known: Any = self.told.shared
        jobs = [scans.OfPart(pieces, number, known, (look, more)) for number, look, more in looks]
        return self.hold(_either, jobs)

    def at(self, step: int | None) -> int:
        """Return the part that has a step."""
        parts = enumerate(self.parts)
        return next(index for index, steps in parts if step in steps or not steps)

    def make_ready(self, at: Sequence[int] | None = None) -> None:
        """Have parts that are about to be looked at put in order, where they can be kept so.

        Args:
            at: Which parts; all if None.
        """
        if self._folder is None:
            return
        if at is None:
            pieces: Any = self.pieces.shared
            self.hold(_cut, [(pieces, number) for number in range(self.cuts)])
        self.look(_ready, at=at)

    def tell_pipelines(self) -> None:
        """Tell parts which pipelines there are, once they are told what whole steps tell."""
        step = self.ask(_overlapping, self.told)
        apart = [] if step is None else self.look(scans.split, step[0], [self.at(step[0])])
        [self.told] = self.put(_with_pipelines, self.told, apart)


def _either(job: scans.OfPart) -> Any:
    look, more = job.more
    return look(job._replace(more=more))


def _outline(pieces: Pieces) -> tuple[list[Sequence[int]], int, int]:
    return list(pieces.parts), pieces.batches, pieces.cuts


def _cut(job: tuple[Pieces, int]) -> None:
    pieces, number = job
    pieces.cut(number)


def _ready(job: scans.OfPart) -> None:
    job.pieces.make_ready(job.number)


def _overlapping(known: scans.Told) -> tuple[int | None] | None:
    step: tuple[int | None] | None = known[step_facts].overlapping
    return step


def _with_pipelines(known: scans.Told, apart: Sequence[pl.DataFrame]) -> tuple[scans.Told]:
    """Return what parts are told with what `pipelines` returns of all."""
    found = apart[0] if apart else together(known[step_facts].ranks)
    return ({**known, pipelines: found},)
