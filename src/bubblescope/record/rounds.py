"""Which calls of a schedule are rounds of one step."""

from __future__ import annotations

from typing import Final

_PATIENT: Final = 32
"""Rounds after which a job that has an optimizer, but never made a step with it, makes no steps."""


class Rounds:
    """Counts the rounds of a step, and their micro-batches.

    A step ends with the optimizer's. Where a job calls its schedule several times before that, to
    accumulate gradients, these are rounds of one step, and the micro-batches of each are numbered on.
    A job that has no optimizer of PyTorch's, or makes no step with it for many rounds, has a step for
    each.

    Attributes:
        first_microbatch: Number, within the step, of the first micro-batch of the round.
        failed: Whether the round failed: the next takes its place.
    """

    def __init__(self) -> None:
        self.first_microbatch = 0
        self.failed = False
        self._size = self._count = 0
        self._optimizes = self._optimized = self._ever_optimized = False

    def made_optimizer(self) -> None:
        """Note that the job has made an optimizer."""
        self._optimizes = True

    def optimized(self) -> None:
        """Note that an optimizer has made a step, left it out, or thrown gradients away."""
        self._optimizes = self._optimized = self._ever_optimized = True

    def begin(self, microbatches: int, *, within: bool) -> bool:
        """Begin a round of so many micro-batches; say whether it is the first of a step.

        Args:
            microbatches: How many.
            within: Whether a step has begun.
        """
        if within and self.failed:  # that round again, or another in its place
            self.failed = False
            return False
        more = within and self._optimizes and not self._optimized
        more = more and (self._ever_optimized or self._count < _PATIENT)
        self.first_microbatch = self.first_microbatch + self._size if more else 0
        self._count = self._count + 1 if more else 1
        self._size, self._optimized = microbatches, False
        return not more
