"""Everything that the page shows of a run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import polars as pl

from bubblescope.analysis.device_budget import budget
from bubblescope.analysis.pairing import pairing
from bubblescope.analysis.pipeline_phase import phases
from bubblescope.analysis.rank_standing import Alike, alike
from bubblescope.analysis.rates import bubble_rates
from bubblescope.analysis.reference import IDEAL, reference
from bubblescope.analysis.standard_questions import LARGE, Questions
from bubblescope.analysis.study import study
from bubblescope.analysis.verdict import Verdict
from bubblescope.model.arrays import both
from bubblescope.model.dependencies import messages, passes
from bubblescope.model.errors import ScheduleError, TimelineError
from bubblescope.model.kinds import Lane
from bubblescope.model.memory import give_back
from bubblescope.model.progress import SILENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.analysis.compare import Comparison
    from bubblescope.analysis.device_budget import Budget
    from bubblescope.analysis.idle.ledger import Ledger
    from bubblescope.analysis.pairing import Pairing
    from bubblescope.analysis.picture_data import Reference
    from bubblescope.analysis.prediction import Prediction
    from bubblescope.analysis.predictions import Question
    from bubblescope.analysis.rates import BubbleRates
    from bubblescope.analysis.standard_questions import Answer
    from bubblescope.analysis.study import Study
    from bubblescope.model.progress import Progress
    from bubblescope.model.timeline import Timeline
    from bubblescope.schedules.plan import Plan


AGAINST: Final = "against"
"""The lane of the run that another is set against."""


class Against(msgspec.Struct, frozen=True, eq=False):
    """Another run that stands below the one that is shown, rank by rank.

    Attributes:
        comparison: What changed from the run that is shown, A, to the other, B.
        pairing: Which task of one is which of the other.
        bubbles: The bubble rates of B, in its own numbers.
    """

    comparison: Comparison
    pairing: Pairing
    bubbles: BubbleRates

    @classmethod
    def of(cls, comparison: Comparison) -> Against:
        """Find which tasks two runs that were compared have in common."""
        return cls(comparison, pairing(comparison), bubble_rates(comparison.runs[1]))


class View(msgspec.Struct, frozen=True, eq=False):
    """Everything that the page shows of a run.

    Attributes:
        timeline: The run.
        study: What was worked out about it.
        prediction: What would have been, to be shown beside it; None if nothing was asked.
        overlays: Lane -> what stands beside what was measured, where it is: "ideal" and "whatif", what
            could have been, and "against", what another run did.
        links: What feeds what, and which send meets which receive: frame with source and target, rows
            of the timeline's tasks.
        phases: As `bubblescope.analysis.pipeline_phase.phases` returns them.
        spread: As `spread_of` returns it.
        alike: Which ranks do alike what others do.
        verdict: What the run comes to.
        questions: What can be asked of it.
        answers: To what anybody would ask, as `Questions.standard` returns them.
        read_again: The arguments with which a command reads it: paths and options; None if it was not
            read as a command could.
        above: The one of the overlays that stands above all that was measured when the page opens; with
            None, each rank's stand below what was measured of it.
        reference: What that is, in words; None where `prediction` says it or nothing stands above.
        against: The other run, and what changed; None if the page shows one run.
        budget: What its devices spent their time on; None where its traces do not tell.
    """

    timeline: Timeline
    study: Study
    prediction: Prediction | None
    overlays: dict[str, Timeline]
    links: pl.DataFrame
    phases: pl.DataFrame
    spread: pl.DataFrame
    alike: Alike
    verdict: Verdict
    questions: Questions
    answers: Sequence[Answer] = ()
    read_again: Sequence[str] | None = None
    above: str | None = None
    reference: Reference | None = None
    against: Against | None = None
    budget: Budget | None = None

    @property
    def devices(self) -> Budget | None:
        """What its devices spent their time on, where the run is no pipeline.

        It has no bubbles then, but idle devices.
        """
        return None if self.study.pipelined else self.budget

    @classmethod
    def of(
        cls,
        timeline: Timeline,
        *,
        also: Sequence[Plan] = (),
        whatif: Question | None = None,
        beside: str | None = None,
        layers: Sequence[int] | None = None,
        read_again: Sequence[str] | None = None,
        against: Comparison | None = None,
        kept: bool = True,
        progress: Progress = SILENT,
    ) -> View:
        """Work out everything about a run that the page shows.

        Args:
            timeline: The run.
            also: Schedules to recognise besides the known ones.
            whatif: What to show beside what was measured, such as `lambda run: run.schedule("zb-v")`.
            beside: What to set the run below, as `bubblescope.analysis.reference.reference` has it.
            layers: How many layers each stage has, for what-ifs that move some.
            read_again: The arguments with which a command reads the run.
            against: What changed from the run to another, to be shown below it; None for one run.
            kept: Whether it is kept to be asked more. If not, the replays of a large run are let go of
                as soon as they have been asked what the page shows.
            progress: Is told what is being worked out.

        Raises:
            TimelineError: A what-if is asked for of a run whose ranks share no clock or that has no
                pipeline tasks.
            ScheduleError: The what-if makes no sense for the run.
        """
        asks = kept or whatif is not None or beside is not None
        known = study(timeline, also, progress, replayed=asks or len(timeline) <= LARGE)
        progress.begin("answering what-ifs")
        questions = Questions(timeline, known, layers)
        prediction = _answer(known, questions, whatif) if whatif else None
        overlays = {}
        if known.ideal is not None and known.ideal.timeline is not None:
            overlays["ideal"] = known.ideal.timeline
        if prediction is not None and prediction.timeline is not None:
            overlays["whatif"] = prediction.timeline(timeline)
        planned, above = None, None
        if beside is not None:
            planned = reference(timeline, beside, known, also)
            above = IDEAL if beside == IDEAL else "whatif"
            if above in overlays and above != IDEAL:
                raise ScheduleError(
                    "the page has one lane for an alternative: ask for a what-if or for "
                    f"{beside}, not both"
                )
            overlays[above] = planned.timeline
        other = None if against is None else Against.of(against)
        if other is not None:
            overlays[AGAINST] = other.pairing.timeline
        progress.begin("summing up")
        answers = questions.standard()

        def judged() -> Verdict:
            return Verdict.of(timeline, known, also).with_schedule(known.recognition, answers)

        verdict, sums = both(judged, partial(_Sums.of, timeline, known.ledger))
        give_back()
        return cls(
            timeline=timeline,
            study=known,
            prediction=prediction,
            overlays=overlays,
            links=sums.links,
            phases=sums.phases,
            spread=sums.spread,
            alike=sums.alike,
            verdict=verdict,
            questions=questions,
            answers=answers,
            read_again=read_again,
            above=above,
            reference=planned,
            against=other,
            budget=budget(timeline),
        )


class _Sums(NamedTuple):
    """What is seen of the tasks of a run, whatever they come to; as of `View`."""

    links: pl.DataFrame
    phases: pl.DataFrame
    spread: pl.DataFrame
    alike: Alike

    @classmethod
    def of(cls, timeline: Timeline, ledger: Ledger | None) -> Self:
        """Look at the tasks of a run that has this ledger."""
        tasks = timeline.tasks
        return cls(links_of(timeline), phases(tasks), spread_of(tasks), alike(timeline, ledger))


def _answer(known: Study, questions: Questions, question: Question) -> Prediction:
    if known.ledger is None:
        raise TimelineError(
            "a what-if needs a run with forwards and backwards whose ranks share a clock; "
            "--clock solve tries to align them"
        )
    return questions.run.ask(question)


def links_of(timeline: Timeline) -> pl.DataFrame:
    """Return what feeds what and which send meets which receive, as rows of the timeline's tasks."""
    return pl.concat(
        [
            passes(timeline).select("source", "target"),
            messages(timeline).select(source="send", target="receive"),
        ],
        how="vertical_relaxed",
    )


def spread_of(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return how long tasks take, by kind and stage, over all ranks and steps.

    Args:
        tasks: As in `Timeline.tasks`; those of the host are left out.

    Returns:
        Frame, for each kind and stage, ascending, an unknown stage last: kind (index into the kinds),
        stage, count, and in ns: least, low (first quartile), middle (median), high (third
        quartile), most and mean. Quartiles lie linearly between the two nearest lengths.
    """
    length = pl.col("end_ns") - pl.col("start_ns")
    figures = {
        "low": length.quantile(0.25, "linear"),
        "middle": length.median(),
        "high": length.quantile(0.75, "linear"),
        "mean": length.mean(),
    }
    return (
        tasks.select("kind", "stage", "lane", "start_ns", "end_ns")
        .filter(pl.col("lane") != Lane.HOST.value)
        .group_by(pl.col("kind").to_physical(), "stage")
        .agg(
            count=pl.len(),
            least=length.min(),
            **{name: figure.round().cast(pl.Int64) for name, figure in figures.items()},
            most=length.max(),
        )
        .select("kind", "stage", "count", "least", "low", "middle", "high", "most", "mean")
        .sort("kind", "stage", nulls_last=True)
    )
