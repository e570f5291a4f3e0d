"""Looks at a run in parts, one after the other: what is known of it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from bubblescope.analysis.phase import together
from bubblescope.analysis.pieces import looks
from bubblescope.model.arrays import give_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bubblescope.analysis.phase import StepFacts
    from bubblescope.analysis.pieces.given import Pieces, Runs


class Looking:
    """What looks at the parts of a run, and knows what the looks before found.

    Args:
        pieces: The run.
        run: What runs the looks, each at one part.

    Attributes:
        pieces: The run.
        told: What parts are told of the whole.
    """

    def __init__(self, pieces: Pieces, run: Runs) -> None:
        self.pieces = pieces
        self.told: looks.Told = {}
        self._run = run

    def look(
        self, look: Callable[[looks.OfPart], Any], more: Any = None, at: Iterable[int] | None = None
    ) -> list[Any]:
        """Look at each part, or at some, and return what comes of it, by part."""
        parts = range(len(self.pieces.parts)) if at is None else at
        return self.done(look, [self.part(index, more) for index in parts])

    def done(self, look: Callable[[Any], Any], jobs: Sequence[Any]) -> list[Any]:
        """Return what comes of looks, in their order."""
        found = [None] * len(jobs)
        for index, made in self._run(look, jobs):
            found[index] = made
        give_back()
        return found

    def part(self, index: int, more: Any = None) -> looks.OfPart:
        """Return what a look at a part is told; `more` is what it needs besides."""
        return looks.OfPart(self.pieces, index, self.told, more)

    def at(self, step: int | None) -> int:
        """Return the part that has a step."""
        parts = enumerate(self.pieces.parts)
        return next(index for index, steps in parts if step in steps or not steps)

    def pipelines(self, facts: StepFacts) -> pl.DataFrame:
        """Return what `bubblescope.analysis.phase.pipelines` does of the whole run."""
        step = facts.overlapping
        if step is None:
            return together(facts.ranks)
        [found] = self.look(looks.split, step[0], [self.at(step[0])])
        return pl.DataFrame(found)
