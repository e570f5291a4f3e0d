"""Which calls of a schedule are rounds of one step."""

from __future__ import annotations

from typing import Final

_PATIENT: Final = 32
"""Rounds after which a job that has an optimizer, but never made a step with it, makes no steps."""


class Rounds:
    """Counts the rounds of a step, and their micro-batches.

    A step ends with the optimizer's. Where a job calls its schedule several times before that, to
    accumulate gradients, these are rounds of one step, and the micro-batches of each are numbered on.
    Where none of PyTorch's optimizers has made a step, weights that have changed between two rounds,
    and gradients that are gone, show that another has. A job that shows neither has a step for each
    round: at once if it has no optimizer of PyTorch's, else after many rounds.

    Attributes:
        first_microbatch: Number, within the step, of the first micro-batch of the round.
        failed: Whether the round failed: the next takes its place.
    """

    def __init__(self) -> None:
        self.first_microbatch = 0
        self.failed = False
        self._size = self._count = 0
        self._optimizes = self._optimized = self._ever_optimized = self._ever_changed = False

    @property
    def told(self) -> bool:
        """Whether an optimizer of PyTorch's tells when a step ends."""
        return self._ever_optimized

    def made_optimizer(self) -> None:
        """Note that the job has made an optimizer."""
        self._optimizes = True

    def optimized(self) -> None:
        """Note that an optimizer has made a step, left it out, or thrown gradients away."""
        self._optimizes = self._optimized = self._ever_optimized = True

    def begin(self, microbatches: int, *, within: bool, changed: bool = False) -> bool:
        """Begin a round of so many micro-batches; say whether it is the first of a step.

        Args:
            microbatches: How many.
            within: Whether a step has begun.
            changed: Whether weights have changed since the last round, or gradients are gone; it counts
                only as long as no optimizer of PyTorch's tells.
        """
        if within and self.failed:  # that round again, or another in its place
            self.failed = False
            return False
        changed = changed and not self._ever_optimized
        self._ever_changed = self._ever_changed or changed
        sure = self._ever_optimized or self._ever_changed
        more = within and not self._optimized and not changed
        self._optimizes = self._optimizes and (sure or self._count < _PATIENT)
        more = more and (sure or self._optimizes)
        self.first_microbatch = self.first_microbatch + self._size if more else 0
        self._count = self._count + 1 if more else 1
        self._size, self._optimized = microbatches, False
        return not more
