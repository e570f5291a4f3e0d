"""Which ranks come late to collectives, and what those do longer than others."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from bubblescope.analysis.arrivals import Late, late
from bubblescope.model.budget import IDLE, Use

if TYPE_CHECKING:
    from collections.abc import Collection

    from bubblescope.analysis.device_budget import Budget
    from bubblescope.analysis.spending import Spending

_EXPLAINS: Final = 0.5
"""Share of how late a rank comes above which what it does longer may be why."""


class LateRank(NamedTuple):
    """A rank that comes late, and what may be why.

    Attributes:
        late: Which, and how late.
        use: What it spends most time on beyond what ranks that are not late do; None if they cannot
            be compared, or if that is too little to explain how late it comes.
        more: How much more, as a share of the time.
    """

    late: Late
    use: Use | None = None
    more: float = 0.0


def explained(budget: Budget, *, alike: bool) -> list[LateRank]:
    """Return the ranks that come late, the latest first, and what they do longer.

    Args:
        budget: What devices spent their time on.
        alike: Whether all ranks do the same, so that what one does longer may be why it comes late.
    """
    named = late(budget.arrivals, budget.stepped_ns)
    others = set(budget.arrivals["rank"]) - {one.rank for one in named} if alike else set()
    return [_explained(one, budget, others) for one in named]


def _explained(one: Late, budget: Budget, others: Collection[int]) -> LateRank:
    if not others:
        return LateRank(one)
    use, more = _longer(budget, one.rank, others)
    return LateRank(one, use, more) if more >= _EXPLAINS * one.share else LateRank(one)


def _longer(budget: Budget, rank: int, others: Collection[int]) -> tuple[Use, float]:
    """Return what a rank spends most time on beyond what others do, and the share of its time."""
    own, usual = budget.per_rank[rank], [budget.per_rank[other] for other in others]
    more = {
        use: (_share(own, use) - median(_share(other, use) for other in usual))
        for use in (Use.COMPUTE, Use.COPY, *IDLE)
    }
    most = max(more, key=lambda use: more[use])
    return most, more[most]


def _share(spending: Spending, use: Use) -> float:
    spent = spending.compute_ns if use is Use.COMPUTE else spending.lost_ns(use)
    return spending.share(spent) or 0.0
