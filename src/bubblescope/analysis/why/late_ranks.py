"""Which ranks come late to collectives, and what those do longer, as findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.analysis.finding import Finding
from bubblescope.analysis.lateness import explained

if TYPE_CHECKING:
    from bubblescope.analysis.device_budget import Budget
    from bubblescope.analysis.lateness import LateRank

LATE: Final = "late_ranks"
"""Key of the advice about exposed communication that is waiting for ranks which come late."""

_MOST: Final = 3
"""Ranks that are named."""


def late_ranks(budget: Budget, *, alike: bool) -> list[Finding]:
    """Return how much of exposed communication is waiting, and which ranks come late.

    Args:
        budget: What devices spent their time on.
        alike: As of `explained`.
    """
    arrivals, steps = budget.arrivals, budget.in_steps.spending
    if not arrivals.height or not steps.communication_exposed_ns:
        return []
    waits, kernels = arrivals.select(pl.col("exposed_waits_ns", "collectives").sum()).row(0)
    values = {"waiting_share": waits / steps.communication_exposed_ns, "count": kernels}
    named = explained(budget, alike=alike)[:_MOST]
    return [Finding("evidence", "waiting", values), *map(_finding, named)]


def _finding(found: LateRank) -> Finding:
    one = found.late
    values = {
        "rank": one.rank,
        "last": one.last,
        "of": one.collectives,
        "late_share": one.share,
    }
    if found.use is None:
        return Finding("evidence", "late_rank", values)
    longer = {"longer_share": found.more, "loss": found.use}
    return Finding("evidence", "late_rank_by", {**values, **longer})
