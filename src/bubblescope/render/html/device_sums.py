"""What devices spent their time on, as the page shows it: the sums that `bubblescope report` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bubblescope.analysis.device_words import LABELS
from bubblescope.model.budget import BUSY, IDLE, Use
from bubblescope.model.plain_text import cut
from bubblescope.render.html import schema
from bubblescope.render.html.kernels import shown_use
from bubblescope.render.text.device import losses, tells_of_waiting, untold

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bubblescope.analysis.device_budget import Budget
    from bubblescope.analysis.spending import Spending

_TEXT: Final = 200
"""Letters of the name of an operation that the page holds."""
_MOST: Final = 24
"""Things that time is lost to that the page tells of."""


def devices_of(
    budget: Budget | None, ranks: Collection[int], steps: Collection[int]
) -> schema.Devices | None:
    """Return what devices spent their time on; None if that is not known.

    Args:
        budget: What they spent it on.
        ranks: In the order of the page.
        steps: Likewise.
    """
    if budget is None:
        return None
    idle = [use for use in IDLE if use in budget.overall.idle]
    count = max(1, _devices(budget))

    def times(spending: Spending | None) -> list[int] | None:
        return None if spending is None else _times(spending, idle)

    return schema.Devices(
        uses=[shown_use(use, LABELS[use]) for use in BUSY],
        idle=[LABELS[use] for use in idle],
        overall=_times(budget.overall, idle),
        step=[time // count for time in _times(budget.in_steps.spending, idle)],
        ranks=[times(budget.per_rank.get(rank)) for rank in ranks],
        steps=[times(budget.per_step.get(step)) for step in steps],
        open=[
            place
            for place, step in enumerate(steps)
            if step in budget.per_step.keys() - budget.whole_steps
        ],
        losses=[
            schema.Loss(
                name=LABELS[one.use],
                detail=cut(one.told, _TEXT),
                time=one.spent_ns,
                share=one.share,
            )
            for one in losses(budget)[:_MOST]
        ],
        untold=untold(budget),
        waits=_waits(budget, ranks),
    )


def _waits(budget: Budget, ranks: Collection[int]) -> list[schema.RankWaits]:
    """Return who waits for whom in collectives; nothing where hardly anybody does."""
    if not tells_of_waiting(budget):
        return []
    places = {rank: place for place, rank in enumerate(ranks)}
    return [
        schema.RankWaits(
            rank=places[row["rank"]],
            collectives=row["collectives"],
            last=row["last"],
            waits=row["exposed_waits_ns"] / budget.stepped_ns,
            late=row["late_ns"] / budget.stepped_ns,
        )
        for row in budget.arrivals.to_dicts()
    ]


def _times(spending: Spending, idle: Sequence[Use]) -> list[int]:
    return [
        spending.compute_ns,
        spending.communication_exposed_ns,
        spending.copy_exposed_ns,
        *(spending.idle.get(use, 0) for use in idle),
    ]


def _devices(budget: Budget) -> int:
    """Return of how many pairs of a rank and a step `Budget.in_steps` is; of ranks without steps."""
    whole = frozenset(budget.whole_steps)
    in_whole = sum(step in whole for _, step in budget.per_rank_step)
    return in_whole or len(budget.per_rank_step) or len(budget.per_rank)
