"""What the page says of another run that stands below the one it shows, in the words of `compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.analysis.device_budget import budget
from bubblescope.model.plain_text import cut
from bubblescope.render.html import schema
from bubblescope.render.html.summary import idle_share, rank_rates
from bubblescope.render.text.change_rows import cells
from bubblescope.render.text.compare_words import NOISE, TITLES, headline, name_of, parts, said_of

if TYPE_CHECKING:
    from bubblescope.analysis.changes import Change
    from bubblescope.analysis.compare import Comparison
    from bubblescope.analysis.pairing import Pairing
    from bubblescope.analysis.view import Against

_LABEL: Final = 400
"""Letters of what a run is called."""

_SCALED: Final = 0.95
"""Share of the changes that the scale of colours holds."""

_RANKED: Final = 6
"""Reasons that stand beside the verdict."""

_TITLES: Final = {
    **TITLES,
    "device": ("Device", "of a rank in a step, from its start to the next one's"),
    "detail": ("Exposed and idle time in detail", "of a rank"),
}


def against_of(against: Against, ranks: pl.DataFrame, origin_ns: int) -> schema.Against:
    """Return what changed from the run that is shown, A, to the other, B.

    Args:
        against: Both runs.
        ranks: Those of A in the order of the page, with rank and position.
        origin_ns: Where the page begins.
    """
    comparison, pairing = against.comparison, against.pairing
    step = comparison.find("overall", "step")
    other = dict(pairing.ranks.iter_rows())
    found = [against.bubbles.per_rank.get(other.get(rank, -1)) for rank in ranks["rank"]]
    devices = budget(comparison.runs[1])
    noise = any(change.interval for change in comparison.changes)
    sides = zip(comparison.labels, (comparison.before, comparison.after), strict=True)
    return schema.Against(
        sides=[schema.Side(label=cut(label, _LABEL), said=said_of(side)) for label, side in sides],
        headline=headline(comparison),
        step=_change(step) if step and comparison.comparable else None,
        ranked=_ranked(comparison),
        tables=[
            schema.ChangeTable(title=title, of=of, changes=[_change(one) for one in changes])
            for group, (title, of) in _TITLES.items()
            if (changes := comparison.group(group))
        ],
        differs=[f"{what}: A {mine}, B {its}" for what, mine, its in comparison.differs],
        notes=[note.message for note in comparison.notes],
        noise=NOISE if noise else None,
        scale=_scale(against),
        pairs=[
            schema.Pair(step=step, other=number, shift=shift_ns, end=end_ns - origin_ns)
            for step, number, shift_ns, end_ns in _ended(pairing).iter_rows()
        ],
        rates=[rank_rates(rates) for rates in found],
        idle=[
            None if devices is None else idle_share(devices.per_rank.get(other.get(rank, -1)))
            for rank in ranks["rank"]
        ],
    )


def _scale(against: Against) -> list[int]:
    """Return a tenth, half and all of a round length that 95 % of the changes do not exceed."""
    length = pl.col("end_ns") - pl.col("start_ns")
    mine = against.comparison.runs[0].tasks.select(length).to_series()
    its = against.pairing.timeline.tasks.select(length).to_series()
    pairs = against.pairing.tasks
    change = (its.gather(pairs["other"]) - mine.gather(pairs["task"])).abs()
    most = int(change.filter(change > 0).quantile(_SCALED, "lower") or 1)
    power = max(10, 10 ** (len(str(most)) - 1))  # so that all edges are whole
    last = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= most)
    return [last // 10, last // 2, last]


def latest_ns(pairing: Pairing) -> int:
    """Return where the last of B's steps ends when each begins where its step of A does."""
    return max(_ended(pairing)["end_ns"], default=0)


def _ended(pairing: Pairing) -> pl.DataFrame:
    """Return the steps of a pairing with end_ns, where B's end if they begin where A's do."""
    ends = pairing.timeline.tasks.group_by("step").agg(pl.col("end_ns").max())
    return pairing.steps.join(
        ends, on="step", nulls_equal=True, maintain_order="left"
    ).with_columns(pl.col("end_ns") + pl.col("shift_ns"))


def _ranked(comparison: Comparison) -> list[schema.Change]:
    """Return what the change of a step is made of: what is certain first, then the largest."""
    changed = [one for one in parts(comparison) if one.difference]
    changed.sort(key=lambda one: (one.certain is False, -abs(one.difference or 0)))
    return [_change(one, name_of(one)) for one in changed[:_RANKED]]


def _change(change: Change, name: str | None = None) -> schema.Change:
    before, after, rise, relative, _ = cells(change)
    return schema.Change(
        group=change.group,
        name=name or change.name,
        before=before,
        after=after,
        rise=rise,
        relative=relative,
        difference=change.difference,
        certain=change.certain,
    )
