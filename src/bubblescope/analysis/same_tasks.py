"""What a replay of a run's own tasks says, and what it takes to be rid of what keeps them waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.prediction import Prediction
from bubblescope.model.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope.analysis.idle.ledger import Ledger
    from bubblescope.analysis.idle.measured_run import MeasuredRun, Replay

WITHOUT: Final = {
    Cause.IMBALANCE: "layers spread so that stages cost the same",
    Cause.SLOW_RANK: "other devices",
    Cause.VARIATION: "micro-batches of equal cost",
    Cause.ORDER: "tasks in the order of the schedule",
    Cause.TRANSFER: "transfers that nothing waits for",
    Cause.PAUSE: "garbage collection, data and checkpoints in the background",
    Cause.LAUNCH: "a host that keeps ahead of its device",
    Cause.SEND: "sends that nothing waits for",
    Cause.CODE: "code of the job that does not keep tasks waiting",
    Cause.SYNC: "collectives that nothing waits for",
    Cause.CLOCK: "clocks that agree",
}
"""What each cause of idle time takes to be gone."""


def of_same_tasks(
    ledger: Ledger, change: str, needs: str, times_ns: tuple[int, int], replay: Callable[[], Replay]
) -> Prediction:
    """Return what a replay of the same tasks says.

    It is played again to be drawn: of the many that advice is made of, none is kept.

    Args:
        ledger: Of the run.
        change: As of `Prediction`.
        needs: Likewise.
        times_ns: How long a step took, and takes in the replay.
        replay: Makes it.
    """
    measured, predicted = times_ns
    return Prediction(
        change,
        needs,
        measured,
        predicted,
        1 - predicted / measured if measured else 0.0,
        ledger.replay_error,
        lambda timeline: _moved(timeline, ledger.counterfactuals.run, replay()),
    )


def _moved(timeline: Timeline, run: MeasuredRun, replay: Replay) -> Timeline:
    """Return a run's pipeline tasks when a replay has them."""
    opens = run.opens_ns[run.step]
    unknown = pl.lit(None, pl.Int64)
    tasks = timeline.tasks[run.task].with_columns(
        start_ns=pl.Series(opens + replay.start_ns),
        end_ns=pl.Series(opens + replay.end_ns),
        busy_ns=unknown,
        host_start_ns=unknown,
        host_end_ns=unknown,
    )
    return Timeline.of_checked(tasks, timeline.ranks, timeline.run)
