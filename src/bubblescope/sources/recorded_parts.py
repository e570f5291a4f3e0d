"""What the recordings of single ranks say, before they are put together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from bubblescope.recording.columns import LOOP

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from bubblescope.model.provenance import Run


class Part(msgspec.Struct, frozen=True):
    """What one rank's recording says on the clock of all.

    Attributes:
        path: The file.
        tasks: Frame with columns of tasks.
        rank: Its row of the table of ranks.
        run: Where it came from.
        closed: Whether the recorder ended the file.
    """

    path: Path
    tasks: pl.DataFrame
    rank: dict[str, Any]
    run: Run
    closed: bool

    @property
    def is_loop(self) -> bool:
        """Whether the job has a loop of its own, which says neither stages nor micro-batches."""
        return self.run.origins[0].recorded_by == LOOP

    @property
    def place_is_guessed(self) -> bool:
        """Whether nothing but the loop's own receives tells where the rank stands."""
        return self.is_loop and self.rank["pp"] is None
