"""Which ranks come late to collectives, and what those do longer, as findings."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.analysis.arrivals import Late, late
from bubblescope.analysis.finding import Finding
from bubblescope.model.budget import IDLE, Use

if TYPE_CHECKING:
    from collections.abc import Collection

    from bubblescope.analysis.device_budget import Budget, Spending

LATE: Final = "late_ranks"
"""Key of the advice about exposed communication that is waiting for ranks which come late."""

_EXPLAINS: Final = 0.5
"""Share of how late a rank comes above which what it does longer may be why."""
_MOST: Final = 3
"""Ranks that are named."""


def late_ranks(budget: Budget) -> list[Finding]:
    """Return how much of exposed communication is waiting, and which ranks come late."""
    arrivals, steps = budget.arrivals, budget.in_steps.spending
    if not arrivals.height or not steps.communication_exposed_ns:
        return []
    waits, kernels = arrivals.select(pl.col("exposed_waits_ns", "collectives").sum()).row(0)
    values = {"waiting_share": waits / steps.communication_exposed_ns, "count": kernels}
    named = late(arrivals, budget.stepped_ns)
    return [
        Finding("evidence", "waiting", values),
        *(_finding(one, budget, {other.rank for other in named}) for one in named[:_MOST]),
    ]


def _finding(one: Late, budget: Budget, named: Collection[int]) -> Finding:
    values = {
        "rank": one.rank,
        "last": one.last,
        "of": one.collectives,
        "late_share": one.share,
    }
    others = [rank for rank in budget.arrivals["rank"] if rank not in named]
    longer = _longer(budget, one.rank, others) if others else None
    if longer is None or longer[1] < _EXPLAINS * one.share:
        return Finding("evidence", "late_rank", values)
    use, more = longer
    return Finding("evidence", "late_rank_by", {**values, "longer_share": more, "loss": use})


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
