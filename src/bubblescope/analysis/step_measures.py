"""The measures of one run, step by step, for a comparison with another.

Idle time by cause has a noise of its own. The ledger of a run takes costs that are typical of all its
steps, so what it calls inherent is the same in each, however the costs scatter; the ledger of a single
step takes that step's. Each cause is given the larger of both scatters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.idle.ledger import ledger
from bubblescope.analysis.phase import pipeline_phase
from bubblescope.analysis.rates import BubbleRates, bubble_rates
from bubblescope.analysis.schedule.recognise import Recognition, recognise
from bubblescope.model import units
from bubblescope.model.errors import ScheduleError
from bubblescope.model.provenance import Notice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.analysis.bootstrap import Floats
    from bubblescope.model.timeline import Timeline
    from bubblescope.schedules.plan import Plan

OVERALL: Final = ("step", "busy", "idle", "bubble", "span")
"""StepMeasures of a run as a whole, in the order in which they are shown."""

RATES: Final = ("bubble", "span")
"""Those of them that are rates; all other measures are times."""

_CLOCKLESS: Final = ("busy", "span")
_SHAPE: Final = ("devices", "chunks", "placement", "splits_backward")
"""What is known of the pipeline where its schedule is."""

_OUTLYING: Final = 3 * 1.4826
"""Median absolute deviations that make three standard deviations of normal noise."""

_SLOWER: Final = 1.05
_SINGLES: Final = 16
"""Steps, evenly chosen, whose own ledgers tell the noise of causes."""

_UNSTEPPED: Final = -1


class Side(msgspec.Struct, frozen=True):
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


class StepMeasures(NamedTuple):
    """The measures of a run, and what was noticed about it.

    Attributes:
        side: What the run is.
        equals: Names of the schedules that it may have followed.
        rows: Frame with group, name, step, part and whole: a measure of a step is part / whole.
        ranks: Frame with step and ranks, their number.
        stages: Frame with rank and stages, those that it worked on.
        uncertain_ns: How far, on average, the makespan of a step may be off.
        bubble_error: The same of the bubble rate.
        rate_error: How far lengths of tasks may be off, as a share.
        explained: Whether causes are known.
        notes: What to know before believing any of it.
    """

    side: Side
    equals: frozenset[str | None]
    rows: pl.DataFrame
    ranks: pl.DataFrame
    stages: pl.DataFrame
    uncertain_ns: float
    bubble_error: float
    rate_error: float
    explained: bool
    notes: list[Notice]


def step_measures(label: str, whole: Timeline, also: Sequence[Plan] = ()) -> StepMeasures:
    """Measure a run, step by step.

    Args:
        label: What to call it.
        whole: The run; steps at its ends that were not recorded whole are left out.
        also: Schedules to recognise besides the known ones.
    """
    timeline, left_out, notes = _recorded_whole(label, whole)
    recognition = recognise(timeline, also)
    bubbles = bubble_rates(timeline)
    phase = pipeline_phase(timeline.tasks)
    causes, why = _causes(timeline, recognition, phase["step"].unique().sort().to_list())
    if why:
        text = f"why the ranks of {label} were idle is not known: {why}"
        notes.append(Notice("causes-unknown", text))
    if not timeline.run.common_clock:
        text = (
            f"the ranks of {label} share no clock, so how long its steps took, and with it idle "
            "times, is not known; only the bubble rate over each rank's own span is"
        )
        notes.append(Notice("no-common-clock", text))
    notes += _first_step(label, bubbles)
    ranks = bubbles.table.group_by("step").agg(ranks=pl.len()).sort("step")
    ranks = ranks.with_columns(_numbered())
    off = bubbles.table.group_by("step").agg(pl.col("uncertain_ns").max())["uncertain_ns"].mean()
    side = Side(
        paths=tuple(origin.path for origin in timeline.run.origins),
        schedule=(recognition.schedule if recognition else None) or timeline.run.schedule,
        ranks=tuple(bubbles.per_rank),
        stages=None if phase["stage"].max() is None else int(phase["stage"].max()) + 1,  # type: ignore[arg-type]
        microbatches=recognition.microbatches if recognition else timeline.run.microbatches,
        **{name: getattr(recognition, name, None) for name in _SHAPE},
        steps=tuple(bubbles.per_step),
        left_out=tuple(left_out),
    )
    return StepMeasures(
        side=side,
        equals=frozenset({side.schedule, *(recognition.equals if recognition else ())}),
        rows=_rows(timeline, phase, bubbles, causes),
        ranks=ranks,
        stages=phase.group_by("rank").agg(stages=pl.col("stage").drop_nulls().unique().sort()),
        uncertain_ns=float(off or 0),  # type: ignore[arg-type]
        bubble_error=bubbles.overall.makespan_error or 0.0,
        rate_error=bubbles.rate_error,
        explained=causes is not None,
        notes=notes,
    )


def _recorded_whole(label: str, timeline: Timeline) -> tuple[Timeline, list[int], list[Notice]]:
    """Leave out steps at the ends with fewer tasks than usual: the recording cut through them."""
    counts = pipeline_phase(timeline.tasks).group_by("step").agg(tasks=pl.len()).sort("step")
    if counts.height < 2:
        return timeline, [], []
    few = (counts["tasks"] < counts["tasks"].median()).to_list()
    steps = counts["step"].to_list()
    torn = [steps[at] for at in (0, -1) if few[at]]
    inner = [step for step, short in zip(steps[1:-1], few[1:-1], strict=True) if short]
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
) -> tuple[pl.DataFrame | None, str]:
    """Return step, cause and idle_ns, scattered as this module says, or what kept it from that."""
    try:
        known = ledger(timeline, recognition)
        if known is None:
            return None, ""
        causes = known.table["cause"].unique().sort().to_list()
        if len(steps) < 2:
            return known.table.select("step", "cause", "idle_ns"), ""
        own = _grid(known.table, steps, causes)
        chosen = np.unique(np.linspace(0, len(steps) - 1, _SINGLES).round().astype(int))
        alone = [_alone(timeline, steps[at]) for at in chosen]
    except ScheduleError as error:
        return None, str(error)
    singles = _grid(pl.concat(alone), [steps[at] for at in chosen], causes)
    nearest = np.abs(chosen[:, None] - np.arange(len(steps))).argmin(axis=0)
    off = singles[:, nearest] - singles[:, nearest].mean(axis=1, keepdims=True)
    noisier = (off.var(axis=1) > own.var(axis=1))[:, None]
    scattered = np.where(noisier, own.mean(axis=1, keepdims=True) + off, own)
    return pl.DataFrame(
        {
            "step": pl.Series(np.tile(steps, len(causes)), dtype=pl.Int32),
            "cause": np.repeat(np.array(causes, dtype=object), len(steps)),
            "idle_ns": scattered.ravel(),
        },
        schema_overrides={"cause": pl.String},
    ), ""


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


def _first_step(label: str, bubbles: BubbleRates) -> list[Notice]:
    """Note a first step that is far longer than the others, as that of a warm-up is."""
    by_step = bubbles.table.group_by("step").agg(pl.col("makespan_ns").max()).sort("step")
    length = by_step["makespan_ns"].drop_nulls().to_numpy()
    if len(length) < 3 or len(length) < by_step.height:
        return []
    usual = float(np.median(length[1:]))
    noise = _OUTLYING * float(np.median(np.abs(length[1:] - usual)))
    if length[0] <= max(usual * _SLOWER, usual + noise):
        return []
    steps = by_step["step"].to_list()
    option = f"--steps-{label.lower()} {steps[1]}:{steps[-1] + 1}"
    text = (
        f"step {steps[0]} of {label}, its first, took {length[0] / usual:.3g} times as long as the "
        f"others, as a warm-up does; {option} leaves it out"
    )
    return [Notice("slow-first-step", text)]


def _numbered() -> pl.Expr:
    """Return the step, with a number where a run has none."""
    return pl.col("step").fill_null(_UNSTEPPED)


def _rows(
    timeline: Timeline, phase: pl.DataFrame, bubbles: BubbleRates, causes: pl.DataFrame | None
) -> pl.DataFrame:
    """Return the measures of every step, as `StepMeasures.rows`."""
    tasks = timeline.tasks
    if tasks["step"].is_not_null().any():
        tasks = tasks.drop_nulls("step")
    length = (pl.col("end_ns") - pl.col("start_ns")).sum()
    idle, busy = pl.col("makespan_ns") - pl.col("busy_ns"), pl.col("busy_ns")
    ranks = bubbles.table.group_by("step").agg(whole=pl.len())
    table = bubbles.table
    overall = {
        "step": (pl.col("makespan_ns").sum(), pl.len()),
        "busy": (busy.sum(), pl.len()),
        "idle": (idle.sum(), pl.len()),
        "bubble": (idle.sum(), pl.col("makespan_ns").sum()),
        "span": ((pl.col("span_ns") - busy).sum(), pl.col("span_ns").sum()),
    }
    known = OVERALL if timeline.run.common_clock else _CLOCKLESS
    # Of an overlapped pair no one knows which half took how long, so it is a stage of its own.
    pair = pl.format("{} with {}", "stage", "pair_stage")
    frames = [
        *(
            table.group_by("step")
            .agg(part=overall[name][0], whole=overall[name][1])
            .with_columns(group=pl.lit("overall"), name=pl.lit(name))
            for name in known
        ),
        tasks.group_by("step", name="kind")
        .agg(part=length)
        .join(ranks, on="step", nulls_equal=True)
        .with_columns(group=pl.lit("kind")),
        phase.drop_nulls("stage")
        .group_by("step", name=pl.coalesce(pair, pl.col("stage").cast(pl.String)))
        .agg(part=length, whole=pl.col("rank").n_unique())
        .with_columns(group=pl.lit("stage")),
    ]
    if timeline.run.common_clock:
        frames.append(table.select("step", name="rank", part=idle, whole=1, group=pl.lit("rank")))
    if causes is not None:
        frames.append(
            causes.group_by("step", name="cause")
            .agg(part=pl.col("idle_ns").sum())
            .join(ranks, on="step", nulls_equal=True)
            .with_columns(group=pl.lit("cause"))
        )
    return pl.concat(
        frame.select(
            "group",
            pl.col("name").cast(pl.String),
            _numbered(),
            pl.col("part").cast(pl.Float64),
            pl.col("whole").cast(pl.Float64),
        )
        for frame in frames
    )
