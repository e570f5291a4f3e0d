"""Batches that a loop skips: it clears their gradients, and leaves the optimizer's step out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bubblescope.record.integrations.torch_loop.graph_origins import Origins

_USUAL: Final = 2
"""Steps in which a job has cleared no gradients, by which it shows that it mostly does not."""


class Skipping:
    """Says whether a batch was skipped when gradients are cleared, as where a loss is no number.

    It was where all is backward that went forward, and no gradient is left that an optimizer could use.
    But some jobs clear gradients within every step, as they compute them twice (SAM) or of each loss by
    itself. So this counts only where the first steps have shown that the job is none of these.
    """

    def __init__(self) -> None:
        self._usual = 0
        self._cleared = False
        """Whether gradients were cleared within this step."""

    def end_step(self) -> None:
        """Note that an optimizer has made its step."""
        self._usual += not self._cleared
        self._cleared = False

    def ends(self, cleared: Iterable[Any], trained: Iterable[Any], origins: Origins) -> bool:
        """Say whether a step ends as gradients are cleared within it.

        Args:
            cleared: The parameters whose gradients were cleared.
            trained: Those that optimizers hold.
            origins: Which forwards of the step are still to be backward.
        """
        if origins.last is None or origins.open:
            return False
        gone = set(map(id, cleared))
        if any(one.grad is not None and id(one) not in gone for one in trained):
            return False
        self._cleared = True
        return self._usual >= _USUAL
