"""Everything that is worked out about a run before it is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bubblescope.analysis.idle.ledger import Ledger, ledger
from bubblescope.analysis.idle.ledger_by_steps import ledger_in_turn
from bubblescope.analysis.idle.notable_rank import notable
from bubblescope.analysis.rates import BubbleRates, bubble_rates
from bubblescope.analysis.schedule.ideal import Ideal, ideal, no_ideal
from bubblescope.analysis.schedule.recognise import Recognition, recognise
from bubblescope.model.errors import TimelineError
from bubblescope.model.memory import give_back
from bubblescope.model.progress import SILENT
from bubblescope.model.provenance import STEPS_DISAGREE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.analysis.idle.slow_ranks import SlowRank
    from bubblescope.model.progress import Progress
    from bubblescope.model.provenance import Run
    from bubblescope.model.timeline import Timeline
    from bubblescope.schedules.plan import Plan


class Study(msgspec.Struct, frozen=True):
    """What is known of a run.

    Attributes:
        recognition: The schedule that it followed; None if no operation of it can be placed.
        ideal: A perfect run of that schedule; None if there is none.
        bubbles: Its bubble rates.
        ledger: Why its ranks were idle; None if they share no clock or it has no pipeline tasks.
        pipelined: Whether the run may be a pipeline, as `may_be_pipeline` has it.
    """

    recognition: Recognition | None
    ideal: Ideal | None
    bubbles: BubbleRates
    ledger: Ledger | None
    pipelined: bool

    @property
    def slow_rank(self) -> SlowRank | None:
        """The slowest rank, if it is `notable`."""
        return None if self.ledger is None else notable(self.ledger)


def study(
    timeline: Timeline,
    also: Sequence[Plan] = (),
    progress: Progress = SILENT,
    *,
    replayed: bool = True,
    explained: bool = True,
    placed: bool = True,
) -> Study:
    """Recognise a run's schedule, replay it, measure the run beside it, and explain what was idle.

    Args:
        timeline: The run.
        also: Schedules to try besides the known ones.
        progress: Is told what is being worked out.
        replayed: Whether replays are asked for afterwards. If not, those of a large run are not kept.
        explained: Whether causes are asked for what they cost and what shows them.
        placed: Whether tasks are asked for where a perfect run has them.
    """
    progress.begin("recognising the schedule")
    recognition = recognise(timeline, also)
    progress.begin("replaying the schedule")
    best = ideal(timeline, recognition, placed=placed) if recognition else None
    give_back()
    if recognition is not None and not (replayed or recognition.departed):
        recognition = recognition.without_evidence()  # of the order of tasks, which is the plan's
    progress.begin("measuring bubbles")
    bare = (best.steps, best.own) if best else ()
    bubbles = bubble_rates(timeline, *bare, no_ideal=no_ideal(recognition))
    give_back()
    progress.begin("explaining idle time")
    if replayed:
        found = ledger(timeline, recognition)
    else:
        found = ledger_in_turn(timeline, recognition, explained=explained)
    pipelined = found is not None and may_be_pipeline(timeline.run, recognition)
    return Study(recognition, best, bubbles, found, pipelined)


def may_be_pipeline(run: Run, recognition: Recognition | None) -> bool:
    """Say whether a run may be a pipeline: whether it is not known to run whole models on devices.

    Passes that only the trace's structure tells, without stages, are no sign of one.
    """
    if recognition is not None:
        return recognition.devices > 1
    return "kind" not in run.inferred


def ledger_of(known: Study, timeline: Timeline) -> Ledger:
    """Return a run's ledger, for what cannot be answered without one.

    Raises:
        TimelineError: The run has no pipeline tasks, or its ranks share no clock, or it is not known
            which stages they run.
    """
    if (why := timeline.run.unplaced) is not None:
        raise TimelineError(
            f"which stages the ranks run is unknown ({why}), and so is which task waited for which; "
            "give the traces of all ranks, or have the job's passes marked (`bubblescope record`)"
        )
    if known.ledger is not None:
        return known.ledger
    if timeline.run.common_clock:
        raise TimelineError(
            "the traces hold neither forwards and backwards nor work of devices, so there is no idle "
            "time to explain; if ranges of theirs are forwards or backwards (`bubblescope names` lists "
            "them), describe them with --names"
        )
    if timeline.ranks.height == 1:
        raise TimelineError(
            "there is the trace of one rank only, and its steps share no clock, so it is unknown which "
            "task waited for which; give the traces of all ranks"
        )
    solved = timeline.run.clock is not None
    if solved or any(one.code == STEPS_DISAGREE for one in timeline.run.warnings):
        raise TimelineError(
            "the ranks share no clock, so it is unknown which task waited for which; the warnings say "
            "why: give the traces of all ranks, on one clock"
        )
    raise TimelineError(
        "the ranks share no clock, so it is unknown which task waited for which; --clock solve "
        "tries to find one"
    )
