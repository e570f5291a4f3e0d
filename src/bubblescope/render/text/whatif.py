"""What a run would have taken, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.text import Text

from bubblescope.analysis import whatif
from bubblescope.model import units
from bubblescope.render.text.face import Face
from bubblescope.render.text.sections import narrow_table

if TYPE_CHECKING:
    from rich.console import RenderableType

_CLOSE, _NEAR = 0.01, 0.05
_MEANING: Final = "± is how far the same method is from the measured step when nothing is changed"


class Predictions(Face, whatif.Predictions, frozen=True, eq=False):
    """What `bubblescope whatif` prints."""

    def shown(self, *, everything: bool = False) -> RenderableType:
        """Return the answers to be printed; there are never too many."""
        del everything
        now = f"now {units.duration(self.step_ns)} a step, from first forward to last backward"
        if not self.predictions:
            return Group(Text(now), Text("nothing that was tried would make it faster"))
        table = narrow_table("a step", "less", "a micro-batch", "±")
        table.add_column("with")
        table.add_column("needs", style="dim")
        for one in self.predictions:
            first = one is self.predictions[0] and len(self.predictions) > 1
            table.add_row(
                units.duration(one.predicted_ns),
                units.duration(one.saved_ns),
                f"{-100 * one.saved_share:+.2f} %",
                Text(units.percent(one.error), _style(one.error)),
                one.change,
                one.needs,
                style="bold" if first else "",
            )
        return Group(Text(now), Text(), table, Text(), Text(_MEANING, "dim"))

    def headline(self) -> str:
        """Return the first answer in one line."""
        if not self.predictions:
            return "nothing that was tried would make it faster"
        first = self.predictions[0]
        return (
            f"{first.change}: {units.duration(first.predicted_ns)} instead of "
            f"{units.duration(self.step_ns)} a step, ± {units.percent(first.error)}"
        )


def _style(error: float) -> str:
    return "green" if error <= _CLOSE else "yellow" if error <= _NEAR else "red"
