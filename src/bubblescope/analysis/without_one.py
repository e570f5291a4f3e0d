"""What a run would have taken without one of its causes of idle time, its replays no longer kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.prediction import PIPELINE_PHASE
from bubblescope.analysis.same_tasks import WITHOUT, of_same_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bubblescope.analysis.combined_changes import Change
    from bubblescope.analysis.idle.ledger import Ledger, Told
    from bubblescope.analysis.idle.measured_run import Replay
    from bubblescope.analysis.prediction import Prediction


class WithoutOne:
    """Answers what a run would have taken without one of its causes, as its ledger was told.

    Its replays are not kept: a question is answered as one of `WhatIf` is, and only to draw the answer
    the run is replayed again.

    Args:
        ledger: The run's ledger, with what was asked of its replays.

    Attributes:
        step_ns, span, open: As of `bubblescope.analysis.whatif.WhatIf`.
    """

    span = PIPELINE_PHASE
    open = False

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        shares = _told(ledger).shares
        self.step_ns = shares.step_ns
        self._saved_ns = {share.cause: share.last_ns for share in shares.shares}

    def ask(self, question: Callable[[WithoutOne], Prediction]) -> Prediction:
        """Answer a question."""
        return question(self)

    def together(self, change: Change) -> Prediction:
        """Answer what it would have taken with a change that is one of `remedies`."""
        cause = Cause(change[1])
        predicted = self.step_ns - self._saved_ns[cause]

        def replay() -> Replay:
            found = self._ledger.counterfactuals
            return found.with_causes(frozenset(found.present) - {cause})

        said, needs = f"without {cause.value}", WITHOUT.get(cause, "")
        return of_same_tasks(self._ledger, said, needs, (self.step_ns, predicted), replay)

    def remedies(self) -> Iterator[Change]:
        """Yield what can be asked."""
        yield from removed(self._ledger.present)


def _told(ledger: Ledger) -> Told:
    if ledger.told is None:
        raise ValueError("what causes cost was not asked for")
    return ledger.told


def removed(present: Sequence[Cause]) -> Iterator[Change]:
    """Yield the questions after a run without each of its causes that can be removed."""
    for cause in present:
        if cause not in (Cause.CLOCK, Cause.UNEXPLAINED):
            yield ("without", cause)
