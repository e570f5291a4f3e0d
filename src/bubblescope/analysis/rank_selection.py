"""Which of many ranks to look at: those that are odd, those like them, and their pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from bubblescope.analysis.rank_standing import Standing, alike
from bubblescope.model import units
from bubblescope.model.provenance import Notice
from bubblescope.model.timeline_tables import PIPELINE

if TYPE_CHECKING:
    from bubblescope.model.timeline import Timeline


def with_fewer_ranks(timeline: Timeline, most: int) -> Timeline:
    """Return a run of about so many tasks at most, without the ranks that tell least.

    Kept are, as far as there is room: odd ranks, and one each that does the same and is not; the ranks
    of their pipelines, which they hold up; those that wait; and of the others some from the first to
    the last, evenly.

    Args:
        timeline: The run.
        most: Tasks, about; a rank is there whole or not at all.
    """
    if len(timeline) <= most:
        return timeline
    ranks = timeline.ranks["rank"].to_list()
    room = max(1, most * len(ranks) // len(timeline))
    standing = alike(timeline)
    odd = standing.of(Standing.ODD)
    like = standing.ranks.filter(pl.col("rank").is_in(odd))["like"].drop_nulls().to_list()
    held = timeline.ranks.filter(pl.col("rank").is_in(odd)).select(PIPELINE).unique()
    kin = timeline.ranks.join(held, on=PIPELINE, how="semi", nulls_equal=True)["rank"].to_list()
    kin = kin if len(kin) < len(ranks) else []
    first = [*dict.fromkeys([*odd, *like, *kin, *standing.of(Standing.WAITS)])][:room]
    rest = sorted({*ranks} - {*first})
    left = room - len(first)
    kept = sorted([*first, *(rest[at * len(rest) // left] for at in range(left))])
    text = (
        f"{len(kept)} of {len(ranks)} ranks are shown: "
        + (
            f"{units.listed('odd rank', odd)}, their pipelines, and others"
            if odd
            else "none is odd"
        )
        + "; --ranks names others"
    )
    few = timeline.slice(ranks=kept)
    return few.with_notices(Notice("sampled-ranks", text, len(ranks) - len(kept), len(ranks)))
