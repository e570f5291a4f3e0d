"""What a run would have taken, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from bubblescope.analysis import predictions
from bubblescope.analysis.device_steps import CAPTURE, STEP
from bubblescope.analysis.prediction import PIPELINE_PHASE
from bubblescope.model import units
from bubblescope.render.text.by_width import ByWidth
from bubblescope.render.text.face import Face
from bubblescope.render.text.sections import narrow_table, times_of, warnings_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bubblescope.analysis.prediction import Prediction
    from bubblescope.analysis.stragglers.in_collectives import LateRanks

_LONGEST: Final = len("interleaved-zb, 4 chunks")
"""Characters of the longest name of a schedule, which is not to be broken."""
_CLOSE, _NEAR = 0.01, 0.05
_MEANING: Final = (
    "± is how far the same method is from the measured step when nothing is changed, and for other "
    "schedules, partitions and devices also what chance and what was not measured may add"
)
_SPANS: Final = {
    PIPELINE_PHASE: " a step, from first forward to last backward",
    STEP: " a step, from its start to the next one's",
    CAPTURE: ", from a device's first operation to its last: the trace has no steps",
}


class Predictions(Face, predictions.Predictions, frozen=True, eq=False):
    """What `bubblescope whatif` prints."""

    def shown(self, *, everything: bool = False) -> RenderableType:
        """Return the answers to be printed; there are never too many."""
        del everything
        now = measured(self)
        times, left_out = times_of(self.timeline), warnings_of(self.notices)
        if not self.predictions:
            nothing = Text("nothing that was tried would make it faster")
            return Group(*times, Text(now), nothing, left_out)
        table = ByWidth(self._table(beside=True), self._table(beside=False))
        notes = (Text(_MEANING, "dim"), self._conditions())
        return Group(*times, Text(now), Text(), table, Text(), *notes, left_out)

    def _table(self, *, beside: bool) -> Table:
        """Return the answers, and what each needs `beside` it or, where lines are short, below it."""
        marks = self._marks()
        pipeline = self.span == PIPELINE_PHASE
        table = narrow_table("all" if self.span == CAPTURE else "a step")
        if len(marks) > 1:
            table.add_column("if")
        share = "a micro-batch" if beside else "a micro-\nbatch"
        for title in ("less", share if pipeline else "", "±"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("with", min_width=_LONGEST)
        if beside:
            table.add_column("needs", style="dim")
        for one in self.predictions:
            first = one is self.predictions[0] and len(self.predictions) > 1
            below = [Text.assemble(("needs: ", "dim"), (one.needs, "dim"))] if one.needs else []
            table.add_row(
                length(one),
                *([marks.get(one.best_if, "") if _is_range(one) else ""] if len(marks) > 1 else []),
                units.duration(one.saved_ns),
                units.change(-one.saved_share),
                Text(units.percent(one.error), style(one.error)),
                *([one.change, one.needs] if beside else [Group(one.change, *below)]),
                style="bold" if first else "",
            )
        return table

    def _marks(self) -> dict[str, str]:
        """Return a number for each condition of a range that is shown."""
        ranges = [one for one in self.predictions if one.best_if and _is_range(one)]
        conditions = dict.fromkeys(one.best_if for one in ranges)
        return {condition: str(number) for number, condition in enumerate(conditions, start=1)}

    def _conditions(self) -> RenderableType:
        """Return what has to be so for the shorter ends of ranges, a line each; nothing of none."""
        marks = self._marks()
        if len(marks) < 2:
            said = (f"the shorter end of a range is reached if {condition}" for condition in marks)
            return Group(*(Text(one, "dim") for one in said))
        lines = Table.grid(padding=(0, 1))
        for condition, mark in marks.items():
            lines.add_row(Text(mark, "dim"), Text(condition, "dim"))
        head = "the shorter end of a range is reached if all of this holds:"
        return Group(Text(head, "dim"), lines)

    def headline(self) -> str:
        """Return the first answer in one line."""
        if not self.predictions:
            return "nothing that was tried would make it faster"
        first = self.predictions[0]
        span = "" if self.span == CAPTURE else " a step"
        return (
            f"{first.change}: {length(first)} instead of "
            f"{units.duration(self.step_ns)}{span}, ± {units.percent(first.error)}"
        )


def measured(run: predictions.Predictions | LateRanks) -> str:
    """Return how long what is predicted is now, and what that is."""
    now = f"now {units.duration(run.step_ns)}{_SPANS[run.span]}"
    if run.span == STEP and run.timeline.budget["rank"].n_unique() > 1:
        now += ", on the rank that takes longest"
    return f"{now}, and more: no step's end is in the trace" if run.open else now


def length(one: Prediction) -> str:
    """Return what is predicted, as a range if it is one."""
    longest = units.duration(one.predicted_ns)
    if one.best_ns is None or not _is_range(one):
        return longest
    shortest = units.duration(one.best_ns)
    (number, unit), of_both = shortest.split(), longest.split()[-1]
    return f"{number if unit == of_both else shortest} to {longest}"


def _is_range(one: Prediction) -> bool:
    """Say whether two ends of a prediction can be told apart as they are written."""
    best = one.best_ns
    return best is not None and units.duration(best) != units.duration(one.predicted_ns)


def style(error: float) -> str:
    """Return the colour of an error, by how far off it is."""
    return "green" if error <= _CLOSE else "yellow" if error <= _NEAR else "red"
