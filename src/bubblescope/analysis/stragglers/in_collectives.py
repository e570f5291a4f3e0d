"""Which ranks come late to collectives, and what that costs, of runs without a pipeline to replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope.analysis.device_budget import budget
from bubblescope.analysis.lateness import explained
from bubblescope.analysis.picture_data import pictured
from bubblescope.analysis.prediction import Prediction
from bubblescope.analysis.stragglers import SCHEMA
from bubblescope.analysis.whatif_device import DeviceWhatIf
from bubblescope.model.errors import ScheduleError, TimelineError
from bubblescope.model.kinds import Kind
from bubblescope.model.progress import SILENT
from bubblescope.model.timing import timed

if TYPE_CHECKING:
    from typing_extensions import Self

    from bubblescope.analysis.device_budget import Budget
    from bubblescope.analysis.lateness import LateRank
    from bubblescope.analysis.picture_data import Pictured
    from bubblescope.model.progress import Progress
    from bubblescope.model.provenance import Notice
    from bubblescope.model.timeline import Timeline

_ASKED: Final = 12
"""Late ranks of which it is asked what a step would take were each as others are."""

_NOT_ASKED: Final = f"only the latest {_ASKED} ranks are asked about"
_OF_PIPELINES: Final[dict[str, Any]] = {
    "own_work": None,
    "beside": None,
    "slowdown": None,
    "launch_slowdown": None,
    "base_ns": None,
    "no_delay_ns": None,
    "ideal_ns": None,
    "operations": [],
    "stages": [],
    "replicas": [],
    "workers": [],
    "slow_rank": None,
    "persistence": None,
    "last_stage": None,
    "worst_workers": None,
    "steps": [],
}
"""Keys of the schema that replays of a pipeline tell, without one."""


class LateRanks(msgspec.Struct, frozen=True, eq=False):
    """Which ranks of a run come late to collectives, so that the others wait for them.

    Attributes:
        timeline: The run.
        budget: What its devices spent their time on.
        late: The ranks that come late, the latest first.
        healthy: Late rank -> what a step would take had it as much to do between collectives as others
            have. Not known of those that are missing; the latest `_ASKED` are asked about.
        together: What a step would take were all of them so; None if it is not known, or none is late.
        unknown: Late rank -> why it is not known of it, in words.
        together_unknown: The same of all of them; None if it is known, or none is late.
        span, open, step_ns: As of `DeviceWhatIf`.
        notices: What is to be known of the steps.
    """

    timeline: Timeline
    budget: Budget
    late: tuple[LateRank, ...]
    healthy: dict[int, Prediction]
    together: Prediction | None
    unknown: dict[int, str]
    together_unknown: str | None
    span: str
    open: bool
    step_ns: int
    notices: tuple[Notice, ...]

    @classmethod
    def of(cls, timeline: Timeline, *, progress: Progress = SILENT) -> Self:
        """Find out which ranks come late.

        Args:
            timeline: The run.
            progress: Is told what is being worked out.

        Raises:
            TimelineError: Its ranks cannot be compared; the message says why.
        """
        progress.begin("matching collectives")
        spent = budget(timeline)
        if spent is None or not spent.arrivals.height or not _alike(timeline):
            raise TimelineError(
                "there is no pipeline to replay (no forward of a known stage), and which ranks come "
                f"late to collectives is not known either: {_why_not(timeline, spent)}"
            )
        late = explained(spent, alike=True)
        asked = DeviceWhatIf(timeline)
        ranks = [one.late.rank for one in late]
        progress.begin("replaying steps without late ranks")
        said = {rank: _healthy(asked, rank) for rank in ranks[:_ASKED]}
        said |= dict.fromkeys(ranks[_ASKED:], _NOT_ASKED)
        together = _healthy(asked, *ranks) if ranks else None
        return cls(
            timeline,
            spent,
            tuple(late),
            {rank: one for rank, one in said.items() if isinstance(one, Prediction)},
            together if isinstance(together, Prediction) else None,
            {rank: one for rank, one in said.items() if isinstance(one, str)},
            together if isinstance(together, str) else None,
            asked.span,
            asked.open,
            asked.step_ns,
            asked.notices,
        )

    @property
    def arrivals(self) -> pl.DataFrame:
        """Who waited for whom in whole steps, as `bubblescope.analysis.arrivals.over_steps` has it."""
        return self.budget.arrivals

    @property
    def warnings(self) -> tuple[Notice, ...]:
        """What the reader must know: of the steps, and what reading the traces warned of."""
        return (*self.notices, *self.timeline.run.warnings)

    def pictured(self) -> list[Pictured]:
        """Return what its picture shows: the first step."""
        return [pictured(self.timeline, max_steps=1)]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, following the schema `SCHEMA`."""
        return {
            "schema": SCHEMA,
            "timed": timed(self.timeline.ranks),
            "model": "collectives",
            **_OF_PIPELINES,
            "span": self.span,
            "step_ns": self.step_ns,
            "late_ranks": [self._late(one) for one in self.late],
            "late_together": self.together and self.together.to_dict(),
            "late_together_unknown": self.together_unknown,
            "collectives": self.arrivals.to_dicts(),
            "notices": msgspec.to_builtins(self.notices),
            "warnings": msgspec.to_builtins(self.timeline.run.warnings),
        }

    def _late(self, found: LateRank) -> dict[str, Any]:
        healthy = self.healthy.get(found.late.rank)
        return {
            "rank": found.late.rank,
            "collectives": found.late.collectives,
            "last": found.late.last,
            "late_share": found.late.share,
            "class": found.use and found.use.value,
            "more_share": found.more if found.use else None,
            "healthy": healthy and healthy.to_dict(),
            "healthy_unknown": self.unknown.get(found.late.rank),
        }


def replays(timeline: Timeline) -> bool:
    """Say whether a run has a pipeline to replay: forwards, and ranks that state their stages."""
    forwards = timeline.tasks["kind"] == Kind.FORWARD.value
    stated = timeline.ranks["stages"].list.len() > 0
    return bool(forwards.any()) and (bool(stated.any()) or timeline.run.unplaced is not None)


def _alike(timeline: Timeline) -> bool:
    """Say whether all ranks hold the same stages, or none holds any."""
    held = timeline.ranks.select(pl.col("stages").fill_null([])).n_unique()
    return timeline.run.unplaced is None and held == 1


def _healthy(asked: DeviceWhatIf, *ranks: int) -> Prediction | str:
    """Return what a step would take were ranks as others are; or why that is not known."""
    try:
        return asked.healthy(*ranks)
    except ScheduleError as error:
        return str(error)


def _why_not(timeline: Timeline, spent: Budget | None) -> str:
    """Say why the ranks of a run cannot be compared."""
    if spent is None:
        return "the traces hold no work of devices"
    here, world = timeline.ranks.height, timeline.run.world
    if here == 1:
        return "there is the trace of one rank only"
    if not _alike(timeline):
        return "ranks hold different stages, and so do different work"
    if world is not None and world > here:
        return f"{world - here} of {world} ranks have no trace here, and others may wait for these"
    if not timeline.operations.height:
        return "the traces hold no collectives of devices"
    return (
        "no collectives of whole steps could be matched across ranks, whose kernels would have to be "
        "equally many and to end together"
    )
