"""What is measured of all steps of a run in parts, which every question about it asks first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from bubblescope.analysis.between_rounds import Rounds
from bubblescope.analysis.device_budget import Spent
from bubblescope.analysis.outside_passes import Names
from bubblescope.analysis.overview import Kinds, Overview
from bubblescope.analysis.pipeline_phase import StepFacts
from bubblescope.analysis.schedule.observe import Seen
from bubblescope.analysis.schedule.recognise import Departure, Followed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl
    from typing_extensions import Self


class Stored(Protocol):
    """Where what is worked out of a run is kept, such as beside it."""

    def found(self, name: str, kinds: Sequence[type]) -> Any:
        """Return what was kept; None if there is nothing.

        Args:
            name: Of it.
            kinds: What it is made of, as of `bubblescope.model.stored_values.decoded`.
        """

    def keep(self, name: str, value: Any, kinds: Sequence[type]) -> None:
        """Keep it."""


class Alone(NamedTuple):
    """What parts tell by themselves, put together.

    Attributes:
        overview: How much there is.
        lengths: How long tasks are.
        windows: As `bubblescope.analysis.step_lengths.step_windows` returns them.
        starts: As `bubblescope.analysis.wall_clock.step_starts` returns them.
        spent: What devices spent time on.
    """

    overview: Overview
    lengths: Kinds
    windows: pl.DataFrame
    starts: pl.DataFrame
    spent: Spent


class Measured(NamedTuple):
    """What is measured of all steps, with the known schedules.

    Attributes:
        facts: What whole steps tell.
        numbers: Which numbers tasks have.
        names: What ranks do beside the passes.
        pipelines: As `bubblescope.analysis.pipeline_phase.pipelines` returns it.
        rounds: What is taken out between the rounds of steps.
        alone: What parts tell by themselves.
        rates: As `bubblescope.analysis.rates.measured` returns it.
        kinds: How long tasks of each kind are, with medians.
        followed: How steps followed the plan; None if there is none.
        wall: What each rank was in in whole steps, as rank, what, spent_ns and phase_ns; None if that
            is not known.
    """

    facts: StepFacts
    numbers: Seen
    names: Names
    pipelines: pl.DataFrame
    rounds: Rounds
    alone: Alone
    rates: pl.DataFrame
    kinds: pl.DataFrame
    followed: Followed | None
    wall: pl.DataFrame | None

    @classmethod
    def found(cls, measures: Stored) -> Self | None:
        """Return what was kept, if anything was."""
        known: Self | None = measures.found(_STEPS, _KINDS)
        return known

    def keep(self, measures: Stored) -> None:
        """Keep it."""
        measures.keep(_STEPS, self, _KINDS)


_STEPS: Final = "steps"
_KINDS: Final = (
    *(Measured, Alone, StepFacts, Seen, Names, Rounds, Overview, Kinds, Spent, Followed),
    Departure,
)
"""What it is made of."""
