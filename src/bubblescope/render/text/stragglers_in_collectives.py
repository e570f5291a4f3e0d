"""Which ranks come late to collectives, as tables."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from bubblescope.analysis.device_steps import CAPTURE
from bubblescope.analysis.device_words import LABELS
from bubblescope.analysis.stragglers import in_collectives
from bubblescope.model import units
from bubblescope.model.budget import Use
from bubblescope.render.text.device import collectives_section
from bubblescope.render.text.face import Face
from bubblescope.render.text.sections import narrow_table, times_of, titled, warnings_of
from bubblescope.render.text.whatif import length, measured, style

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from bubblescope.analysis.lateness import LateRank
    from bubblescope.analysis.prediction import Prediction

_ROWS: Final = 12
_ABOUT: Final = (
    "later than half of the ranks, at least; what it takes were they as those that are not late; what "
    "they spend more of their time on than those"
)
_MEANING: Final = (
    "± is how far what it takes may be off, by the method and by how much what ranks do scatters"
)


class LateRanks(Face, in_collectives.LateRanks, frozen=True, eq=False):
    """What `bubblescope stragglers` prints of a run without a pipeline."""

    def shown(self, *, everything: bool = False, quiet: bool = False) -> RenderableType:
        """Return the tables to be printed.

        Args:
            everything: With all ranks.
            quiet: Without warnings.
        """
        limit = sys.maxsize if everything else _ROWS
        facts = f"{units.count(self.timeline.ranks.height, 'rank')} · no pipeline"
        late = Group(_table(self, limit), Text(_MEANING, "dim"), *_unknown(self, limit))
        said = Group(Text(self.headline()), Text(measured(self)))
        return Group(
            Text.assemble(("bubblescope  ", "bold"), facts),
            *times_of(self.timeline),
            Text(),
            Padding(said, (0, 0, 1, 2)),
            *([titled("Late ranks", late, _ABOUT)] if self.late else []),
            collectives_section(self.budget, limit),
            *([] if quiet else [warnings_of(self.warnings)]),
        )

    def headline(self) -> str:
        """Return the rank that comes latest in one line."""
        if not self.late:
            return f"no rank of {self.arrivals.height} comes late to collectives"
        one = self.late[0].late
        share = units.percent(one.share)
        return (
            f"rank {one.rank} comes {share} of the time later than half of the ranks, and last in "
            f"{one.last} of its {one.collectives:,} collectives"
        )


def _table(found: in_collectives.LateRanks, limit: int) -> Table:
    table = narrow_table(
        "rank", "late", "last in", "all" if found.span == CAPTURE else "a step", "±"
    )
    table.add_column("spend more on")  # words, which may wrap so that no number is cut
    for each in found.late[:limit]:
        one = each.late
        numbers = (str(one.rank), units.percent(one.share), f"{one.last} of {one.collectives:,}")
        table.add_row(*numbers, *_predicted(found.healthy.get(one.rank)), _longer(each))
    if len(found.late) > 1:
        table.add_row("together", "", "", *_predicted(found.together), "")
    return table


def _unknown(found: in_collectives.LateRanks, limit: int) -> list[Text]:
    """Say why what a step would take is not known, of each rank that is shown and of all together."""
    of_ranks = (found.unknown.get(each.late.rank) for each in found.late[:limit])
    why = dict.fromkeys((*of_ranks, found.together_unknown))
    return [Text.assemble(("unknown  ", "yellow"), reason) for reason in why if reason]


def _longer(found: LateRank) -> str:
    if found.use is None:
        return "–"
    use = "computation" if found.use is Use.COMPUTE else LABELS[found.use]
    return f"{use}: {units.percent(found.more)}"


def _predicted(one: Prediction | None) -> tuple[str, RenderableType]:
    """Return what it would take, and how far that may be off."""
    if one is None:
        return "unknown", "–"
    return length(one), Text(units.percent(one.error), style(one.error))
