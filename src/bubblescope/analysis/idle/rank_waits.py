"""When hosts waited for other ranks themselves, by what their devices did meanwhile.

A device waits for a result that comes through the host's memory, and for a collective that hosts do
among themselves, just as it waits for a launch that is late: its host launches nothing until then. But
what made it wait is the other rank, or the way from there, and no slow host. Copies between passes
from and to pageable memory, which keep the host as well, are part of that way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model.budget import Use
from bubblescope.model.cached_results import remembered

if TYPE_CHECKING:
    from bubblescope.model.timeline import Timeline

_RESULT: Final = "(?i)recv"
_ON_THE_WAY: Final = "^(?:DtoH|HtoD) pageable"


def rank_waits_in(budget: pl.DataFrame) -> pl.DataFrame:
    """Return when hosts waited for other ranks, or copies kept them, outside of passes.

    Args:
        budget: As `Timeline.budget`.

    Returns:
        Frame with rank, start_ns, end_ns and of_result: whether for a result or on its way, or in a
        collective.
    """
    if not budget.height:
        schema = {name: budget.schema[name] for name in ("rank", "start_ns", "end_ns")}
        return pl.DataFrame(schema=schema | {"of_result": pl.Boolean})
    alone = pl.col("spent_ns") == pl.col("end_ns") - pl.col("start_ns")  # no sum of several
    waits = pl.col("use") == Use.RANK_WAIT.value
    copies = (pl.col("use") == Use.COPY.value) & pl.col("detail").str.contains(_ON_THE_WAY)
    of_result = copies | pl.col("detail").str.contains(_RESULT)
    return budget.filter(alone, waits | copies.fill_null(value=False)).select(
        "rank", "start_ns", "end_ns", of_result=of_result.fill_null(value=False)
    )


@remembered
def rank_waits(timeline: Timeline) -> pl.DataFrame:
    """Return `rank_waits_in` of a run; of a part of a run, what is of the whole run."""
    return rank_waits_in(timeline.budget)
