"""Which ranks others wait for in collectives, and what those do longer, as findings."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from bubblescope.analysis.finding import Finding
from bubblescope.model.budget import IDLE, Use

if TYPE_CHECKING:
    from collections.abc import Collection

    from bubblescope.analysis.device_budget import Budget, Spending

LATE: Final = "late_ranks"
"""Key of the advice about exposed communication that is waiting for ranks which come late."""

_LEAST: Final = 0.01
"""Share of its time below which it is not said that others wait for a rank alone."""
_APART: Final = 2.0
"""How many times as long as for most ranks others wait for one that is named."""
_MOST: Final = 3
"""Ranks that are named."""
_EXPLAINS: Final = 0.5
"""Share of how long others wait for a rank above which what it does longer may be why it comes last."""


def late_ranks(budget: Budget) -> list[Finding]:
    """Return how much of exposed communication is waiting, and which ranks others wait for."""
    arrivals, steps = budget.arrivals, budget.in_steps.spending
    if not arrivals.height or not steps.communication_exposed_ns:
        return []
    waits, kernels = arrivals.select(pl.col("exposed_waits_ns", "collectives").sum()).row(0)
    values = {"waiting_share": waits / steps.communication_exposed_ns, "count": kernels}
    late = _late(budget)
    return [
        Finding("evidence", "waiting", values),
        *(_finding(one, budget, {other.rank for other in late}) for one in late),
    ]


class _Late(NamedTuple):
    """A rank that others wait for alone."""

    rank: int
    last: int
    collectives: int
    alone_share: float  # of its time


def _late(budget: Budget) -> list[_Late]:
    """Return the ranks that others wait for much longer than for most, the longest first."""
    rows = budget.arrivals.select("rank", "last", "collectives", "alone_ns").rows()
    alone = {rank: alone_ns for rank, *_, alone_ns in rows}
    found = []
    for rank, last, collectives, alone_ns in rows:
        usual = median(other_ns for other, other_ns in alone.items() if other != rank)
        share = alone_ns / budget.stepped_ns
        if share >= _LEAST and alone_ns >= _APART * usual:
            found.append(_Late(rank, last, collectives, share))
    return sorted(found, key=lambda one: -one.alone_share)[:_MOST]


def _finding(late: _Late, budget: Budget, named: Collection[int]) -> Finding:
    values = {
        "rank": late.rank,
        "last": late.last,
        "of": late.collectives,
        "alone_share": late.alone_share,
    }
    others = [rank for rank in budget.arrivals["rank"] if rank not in named]
    longer = _longer(budget, late.rank, others) if others else None
    if longer is None or longer[1] < _EXPLAINS * late.alone_share:
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
