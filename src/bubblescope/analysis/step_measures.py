"""The measures of one run, step by step, for a comparison with another.

Idle time by cause has a noise of its own. The ledger of a run takes costs that are typical of all its
steps, so what it calls inherent is the same in each, however the costs scatter; the ledger of a single
step takes that step's. Each cause is given the larger of both scatters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.changes import OVERALL, RATES, UNSTEPPED, Measured
from bubblescope.analysis.idle.ledger import ledger
from bubblescope.analysis.idle.notable_rank import notable
from bubblescope.analysis.pipeline_phase import (
    cut_steps_of,
    lacking_ranks,
    pipeline_phase,
    torn_steps,
)
from bubblescope.analysis.rates import BubbleRates, bubble_rates
from bubblescope.analysis.schedule.recognise import Recognition, recognise
from bubblescope.analysis.study import may_be_pipeline
from bubblescope.model import intervals, units
from bubblescope.model.errors import ScheduleError
from bubblescope.model.ordering import in_order
from bubblescope.model.provenance import Notice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.analysis.bootstrap import Floats
    from bubblescope.analysis.idle.slow_ranks import SlowRank
    from bubblescope.model.timeline import Timeline
    from bubblescope.schedules.plan import Plan

_CLOCKLESS: Final = ("busy", "span")
_SHAPE: Final = ("devices", "chunks", "placement", "splits_backward")
"""What is known of the pipeline where its schedule is."""

_OUTLYING: Final = 3 * 1.4826
"""Median absolute deviations that make three standard deviations of normal noise."""

_SLOWER: Final = 1.05
_SINGLES: Final = 16
"""Steps, evenly chosen, whose own ledgers tell the noise of causes."""


class Side(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one of the runs is.

    Attributes:
        paths: Where it was read from.
        schedule: As recognised, else as declared, else None.
        ranks: Its ranks.
        devices, stages, microbatches, chunks: Of the pipeline; null where unknown.
        placement: How stages are placed; null where unknown.
        splits_backward: Whether weight gradients are tasks of their own; null where unknown.
        steps: Steps that were compared; null stands for a run without.
        left_out: Steps that were not, since they were not recorded whole.
        pipelined: Whether it may be a pipeline, as against whole models on devices.
        timed: What its times are of: "device", "host" or "mixed"; null where it is not known.
    """

    paths: tuple[str, ...]
    schedule: str | None
    ranks: tuple[int, ...]
    devices: int | None
    stages: int | None
    microbatches: int | None
    chunks: int | None
    placement: str | None
    splits_backward: bool | None
    steps: tuple[int | None, ...]
    left_out: tuple[int, ...]
    pipelined: bool = True
    timed: str | None = None


class StepMeasures(NamedTuple):
    """The measures of a run, and what was noticed about it.

    Attributes:
        side: What the run is.
        equals: Names of the schedules that it may have followed.
        measured: The measures of its tasks.
        stages: Frame with rank and stages, those that it worked on.
        explained: Whether causes are known.
        notes: What to know before believing any of it.
    """

    side: Side
    equals: frozenset[str | None]
    measured: Measured
    stages: pl.DataFrame
    explained: bool
    notes: list[Notice]


def step_measures(label: str, whole: Timeline, also: Sequence[Plan] = ()) -> StepMeasures:
    """Measure a run, step by step; one that is no pipeline as `task_measures` does.

    Args:
        label: What to call it.
        whole: The run; steps at its ends that were not recorded whole are left out.
        also: Schedules to recognise besides the known ones.
    """
    timeline, left_out, notes = _recorded_whole(label, whole)
    recognition = recognise(timeline, also)
    if recognition is not None and recognition.devices == 1:
        return task_measures(whole, recognition.microbatches * recognition.rounds)
    if timeline.budget.height and not may_be_pipeline(timeline.run, recognition):
        return task_measures(whole)
    bubbles = bubble_rates(timeline)
    phase = pipeline_phase(timeline.tasks)
    causes, why, slow = _causes(timeline, recognition, phase["step"].unique().sort().to_list())
    if causes is None and not why and timeline.run.common_clock:
        return task_measures(whole)
    if slow is not None:
        notes.append(Notice("slow-rank", f"{label}: {slow}, in {slow.steps} of {slow.of} steps"))
    if why:
        text = f"why the ranks of {label} were idle is not known: {why}"
        notes.append(Notice("causes-unknown", text))
    if not timeline.run.common_clock:
        text = (
            f"the ranks of {label} share no clock, so how long its steps took, and with it idle "
            "times, is not known; only the bubble rate over each rank's own span is"
        )
        notes.append(Notice("no-common-clock", text))
    by_step = bubbles.table.group_by("step").agg(pl.col("makespan_ns").max()).sort("step")
    notes += slow_first_step(label, by_step["step"].to_list(), by_step["makespan_ns"].to_list())
    ranks = bubbles.table.group_by("step").agg(ranks=pl.len()).sort("step")
    ranks = ranks.with_columns(_numbered())
    off = bubbles.table.group_by("step").agg(pl.col("uncertain_ns").max())["uncertain_ns"].mean()
    side = Side(
        paths=tuple(origin.path for origin in timeline.run.origins),
        schedule=(recognition.schedule if recognition else None) or timeline.run.schedule,
        ranks=tuple(bubbles.per_rank),
        stages=None if phase["stage"].max() is None else int(phase["stage"].max()) + 1,  # type: ignore[arg-type]
        microbatches=(
            recognition.microbatches * recognition.rounds
            if recognition
            else timeline.run.microbatches
        ),
        **_shape(recognition),
        steps=tuple(bubbles.per_step),
        left_out=tuple(left_out),
    )
    return StepMeasures(
        side=side,
        equals=frozenset({side.schedule, *(recognition.equals if recognition else ())}),
        measured=Measured(
            _rows(timeline, phase, bubbles, causes),
            ranks,
            uncertain_ns=float(off or 0),  # type: ignore[arg-type]
            bubble_error=bubbles.overall.makespan_error or 0.0,
            rate_error=bubbles.rate_error,
        ),
        stages=phase.group_by("rank").agg(stages=pl.col("stage").drop_nulls().unique().sort()),
        explained=causes is not None,
        notes=notes,
    )


def _shape(recognition: Recognition | None) -> dict[str, Any]:
    return {name: getattr(recognition, name, None) for name in _SHAPE}


def task_measures(timeline: Timeline, microbatches: int | None = None) -> StepMeasures:
    """Measure the tasks of a run, step by step, as of devices that each run a whole model.

    Args:
        timeline: The run.
        microbatches: How many a step has.
    """
    tasks = _in_steps(timeline.tasks)
    table = bubble_rates(timeline).table
    ranks = tasks.group_by("step").agg(ranks=pl.col("rank").n_unique()).sort("step")
    known = OVERALL if timeline.run.common_clock else _CLOCKLESS
    overall = [_overall(table, name) for name in known if name not in RATES]
    rows = pl.concat(_as_rows(frame) for frame in [*overall, _kinds(tasks, ranks)])
    ranks = ranks.with_columns(_numbered())
    side = Side(
        paths=tuple(origin.path for origin in timeline.run.origins),
        schedule=None,
        ranks=tuple(timeline.ranks["rank"]),
        devices=None,
        stages=None,
        microbatches=microbatches,
        chunks=None,
        placement=None,
        splits_backward=None,
        steps=tuple(tasks["step"].unique().sort()),
        left_out=(),
        pipelined=False,
    )
    clock = timeline.run.clock
    return StepMeasures(
        side=side,
        equals=frozenset({None}),
        measured=Measured(rows, ranks, rate_error=clock.rate_error if clock else 0.0),
        stages=pl.DataFrame(schema={"rank": pl.Int32, "stages": pl.List(pl.Int32)}),
        explained=False,
        notes=[],
    )


def _recorded_whole(label: str, timeline: Timeline) -> tuple[Timeline, list[int], list[Notice]]:
    """Leave out steps that only some ranks have, and those of which tasks are missing.

    The recording cut through them, or lost tasks. If no step is on all ranks, they stay, and are not
    compared across ranks.
    """
    partial = lacking_ranks(timeline)
    others = [step for step in timeline.steps if step not in set(partial)]
    if partial and others:
        timeline, torn, notes = _recorded_whole(label, timeline.slice(steps=others))
        text = (
            f"{units.listed('step', partial)} of {label} left out: only some of the ranks have them"
        )
        notice = Notice("partial-steps", text, len(partial), len(partial) + len(others))
        return timeline, sorted([*torn, *partial]), [notice, *notes]
    counts = (
        pipeline_phase(timeline.tasks.select("kind", "lane", "step"))
        .group_by("step")
        .agg(tasks=pl.len())
        .sort("step")
    )
    if counts.height < 2:
        return timeline, [], []
    few = (counts["tasks"] < counts["tasks"].median()).to_list()
    steps = counts["step"].to_list()
    torn = sorted({*torn_steps(timeline.tasks), *cut_steps_of(timeline)})
    torn = torn if len(torn) < len(steps) else []
    inner = [
        step
        for step, short in zip(steps[1:-1], few[1:-1], strict=True)
        if short and step not in torn
    ]
    notes = []
    if torn:
        text = f"{units.listed('step', torn)} of {label} left out: not recorded whole"
        notes.append(Notice("torn-steps", text, len(torn), len(steps)))
        timeline = timeline.slice(steps=[step for step in steps if step not in torn])
    if inner:
        text = f"{units.listed('step', inner)} of {label} with fewer tasks than the others"
        notes.append(Notice("uneven-steps", text, len(inner), len(steps)))
    return timeline, torn, notes


def _causes(
    timeline: Timeline, recognition: Recognition | None, steps: list[int]
) -> tuple[pl.DataFrame | None, str, SlowRank | None]:
    """Return step, cause and idle_ns, scattered as this module says, or what kept it from that.

    The last is the rank that is slow, if one is.
    """
    try:
        known = ledger(timeline, recognition)
        if known is None:
            return None, "", None
        slow = notable(known)
        causes = known.table["cause"].unique().sort().to_list()
        if len(steps) < 2 or not causes:  # nothing scatters, or nothing was idle
            return known.table.select("step", "cause", "idle_ns"), "", slow
        own = _grid(known.table, steps, causes)
        chosen = np.unique(np.linspace(0, len(steps) - 1, _SINGLES).round().astype(int))
        alone = [_alone(timeline, steps[at]) for at in chosen]
    except ScheduleError as error:
        return None, str(error), None
    singles = _grid(pl.concat(alone), [steps[at] for at in chosen], causes)
    nearest = np.abs(chosen[:, None] - np.arange(len(steps))).argmin(axis=0)
    off = singles[:, nearest] - singles[:, nearest].mean(axis=1, keepdims=True)
    noisier = (off.var(axis=1) > own.var(axis=1))[:, None]
    scattered = np.where(noisier, own.mean(axis=1, keepdims=True) + off, own)
    frame = pl.DataFrame(
        {
            "step": pl.Series(np.tile(steps, len(causes)), dtype=pl.Int32),
            "cause": np.repeat(np.array(causes, dtype=object), len(steps)),
            "idle_ns": scattered.ravel(),
        },
        schema_overrides={"cause": pl.String},
    )
    return frame, "", slow


def _alone(timeline: Timeline, step: int) -> pl.DataFrame:
    """Return the ledger of a step as if it were the only one."""
    known = ledger(timeline.slice(steps=[step]), None)
    if known is None:
        raise ScheduleError("a step cannot be replayed on its own")
    return known.table


def _grid(table: pl.DataFrame, steps: list[int], causes: list[str]) -> Floats:
    """Return the idle time of each cause in each step: causes x steps."""
    grid = np.zeros((len(causes), len(steps)))
    sums = table.filter(pl.col("cause").is_in(causes)).group_by("step", "cause")
    total = sums.agg(pl.col("idle_ns").sum()).with_columns(
        row=pl.col("cause").replace_strict(causes, range(len(causes)), return_dtype=pl.Int64),
        at=pl.col("step").replace_strict(steps, range(len(steps)), return_dtype=pl.Int64),
    )
    grid[total["row"].to_numpy(), total["at"].to_numpy()] = total["idle_ns"].to_numpy()
    return grid


def slow_first_step(
    label: str, steps: Sequence[int | None], lengths_ns: Sequence[float | None]
) -> list[Notice]:
    """Note a first step that is far longer than the others, as that of a warm-up is."""
    length = np.array([one for one in lengths_ns if one is not None])
    if len(length) < 3 or len(length) < len(steps):
        return []
    usual = float(np.median(length[1:]))
    noise = _OUTLYING * float(np.median(np.abs(length[1:] - usual)))
    if length[0] <= max(usual * _SLOWER, usual + noise):
        return []
    option = f"--steps-{label.lower()} {steps[1]}:{(steps[-1] or 0) + 1}"
    text = (
        f"step {steps[0]} of {label}, its first, took {length[0] / usual:.3g} times as long as the "
        f"others, as a warm-up does; {option} leaves it out"
    )
    return [Notice("slow-first-step", text)]


def _numbered() -> pl.Expr:
    """Return the step, with a number where a run has none."""
    return pl.col("step").fill_null(UNSTEPPED)


def _rows(
    timeline: Timeline, phase: pl.DataFrame, bubbles: BubbleRates, causes: pl.DataFrame | None
) -> pl.DataFrame:
    """Return the measures of every step, as `StepMeasures.rows`."""
    table = bubbles.table
    ranks = table.group_by("step").agg(ranks=pl.len())
    known = OVERALL if timeline.run.common_clock else _CLOCKLESS
    # Of an overlapped pair no one knows which half took how long, so it is a stage of its own.
    pair = pl.format("{} with {}", "stage", "pair_stage")
    frames = [
        *(_overall(table, name) for name in known),
        _kinds(_in_steps(timeline.tasks), ranks),
        phase.drop_nulls("stage")
        .group_by("step", name=pl.coalesce(pair, pl.col("stage").cast(pl.String)))
        .agg(part=_LENGTH, whole=pl.col("rank").n_unique())
        .with_columns(group=pl.lit("stage")),
    ]
    if timeline.run.common_clock:
        shared = table.drop_nulls("makespan_ns")
        frames.append(shared.select("step", name="rank", part=_IDLE, whole=1, group=pl.lit("rank")))
    if causes is not None:
        frames.append(
            causes.group_by("step", name="cause")
            .agg(part=pl.col("idle_ns").sum())
            .join(ranks, on="step", nulls_equal=True)
            .with_columns(group=pl.lit("cause"), whole="ranks")
        )
    return pl.concat(_as_rows(frame) for frame in frames)


_BUSY: Final = pl.col("busy_ns")
_IDLE: Final = pl.col("makespan_ns") - _BUSY
_LENGTH: Final = (pl.col("end_ns") - pl.col("start_ns")).sum()
_OVERALL: Final[dict[str, tuple[pl.Expr, pl.Expr]]] = {
    "step": (pl.col("makespan_ns").sum(), pl.len()),
    "busy": (_BUSY.sum(), pl.len()),
    "idle": (_IDLE.sum(), pl.len()),
    "bubble": (_IDLE.sum(), pl.col("makespan_ns").sum()),
    "span": ((pl.col("span_ns") - _BUSY).sum(), pl.col("span_ns").sum()),
}
"""Part and whole of the measures of a run as a whole, from the table of bubble rates."""


def _overall(table: pl.DataFrame, name: str) -> pl.DataFrame:
    part, whole = _OVERALL[name]
    if name not in _CLOCKLESS:  # not of steps that only some ranks have
        table = table.drop_nulls("makespan_ns")
    sums = table.group_by("step").agg(part=part, whole=whole)
    return sums.with_columns(group=pl.lit("overall"), name=pl.lit(name))


def _kinds(tasks: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return time in tasks of each kind; a moment in which a rank is in two of a kind counts once.

    Args:
        tasks: With or without steps.
        ranks: Frame with step and ranks, over how many of them to take the mean.
    """
    places = ("rank", "step", "kind", "start_ns")
    ordered = in_order(tasks.select(*places, "end_ns"), *places)
    fresh_ns = intervals.fresh_start_ns(*intervals.columns(ordered, "rank", "step", "kind"))
    return (
        ordered.with_columns(start_ns=pl.Series(fresh_ns))
        .group_by("step", name="kind")
        .agg(part=_LENGTH)
        .join(ranks, on="step", nulls_equal=True)
        .with_columns(group=pl.lit("kind"), whole="ranks")
    )


def _in_steps(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return the tasks of steps; all of them if there are no steps."""
    return tasks.drop_nulls("step") if tasks["step"].is_not_null().any() else tasks


def _as_rows(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(
        "group",
        pl.col("name").cast(pl.String),
        _numbered(),
        pl.col("part").cast(pl.Float64),
        pl.col("whole").cast(pl.Float64),
    )
