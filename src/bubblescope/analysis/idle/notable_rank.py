"""The slow rank that holds up a run most: one answer for all who ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bubblescope.analysis.idle.causes import Cause

if TYPE_CHECKING:
    from bubblescope.analysis.idle.ledger import Ledger
    from bubblescope.analysis.idle.slow_ranks import SlowRank

LEAST: Final = 0.01
"""Share of the idle time below which a cause is not spoken of."""


def notable(ledger: Ledger) -> SlowRank | None:
    """Return the slowest rank of a run if it is worth a word; else None.

    It is if it is odd, and slow ranks make a hundredth of the idle time or it is slower in most steps:
    among a thousand ranks, what one does to its own pipeline is a small share of all. Of ranks that
    differ a little, or in turn, the slowest is no device to look at, whatever they make together.
    """
    found = slowest(ledger)
    if found is None:
        return None
    totals = dict(ledger.totals().select("cause", "share").iter_rows())
    lasts = found.stands_out or totals.get(Cause.SLOW_RANK.value, 0) >= LEAST
    return found if found.odd and lasts else None


def slowest(ledger: Ledger) -> SlowRank | None:
    """Return the slowest rank of a run, of `Ledger.slow_ranks`; None if there is none."""
    return ledger.slow_ranks[0] if ledger.slow_ranks else None
