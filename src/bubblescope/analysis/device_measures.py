"""What a run's devices did, step by step, for a comparison with another run.

A step lasts from its start to that of the next one (`Timeline.step_times`). The last of a rank has no
such end: its time stops where the recording does, so it counts only where there is no other. What its
time was spent on is that of `Timeline.budget`. A run without steps is one step, as long as its capture.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import polars as pl

from bubblescope.analysis.changes import UNSTEPPED, Measured
from bubblescope.analysis.device_budget import recorded
from bubblescope.analysis.device_words import LABELS
from bubblescope.analysis.numbered_names import summed_up
from bubblescope.analysis.step_lengths import is_one_step, whole
from bubblescope.model.budget import BUDGET_SCHEMA, BUSY, HIDDEN, HOST, IDLE, Use
from bubblescope.model.timeline import Timeline

STEP: Final = "step"
IDLING: Final = "idle"
HOST_LATE: Final = "host late"

_HIDDEN: Final = {
    Use.COMMUNICATION_HIDDEN: "hidden communication",
    Use.COPY_HIDDEN: "hidden copies",
}
_SUMS: Final[dict[str, tuple[Use, ...]]] = {
    **{LABELS[use]: (use,) for use in BUSY},
    **{label: (use,) for use, label in _HIDDEN.items()},
    IDLING: IDLE,
    HOST_LATE: HOST,
    **{LABELS[use]: (use,) for use in IDLE},
}
"""What is measured of a step's time, and the classes that make it up."""

NAMES: Final = (
    STEP,
    LABELS[Use.COMPUTE],
    LABELS[Use.COMMUNICATION],
    _HIDDEN[Use.COMMUNICATION_HIDDEN],
    LABELS[Use.COPY],
    _HIDDEN[Use.COPY_HIDDEN],
    IDLING,
    HOST_LATE,
    *(LABELS[use] for use in IDLE),
)
"""The measures of devices, in the order in which they are shown."""

PARTS: Final = tuple(LABELS[use] for use in (*BUSY, *IDLE))
"""Those that add up to a step."""

BY_ROLE: Final = f"{LABELS[Use.COMMUNICATION]}: "
"""What the name of exposed communication of one role begins with."""

_UNKNOWN_ROLE: Final = "role unknown"
_MEASURES: Final = {
    "group": pl.String(),
    "name": pl.String(),
    "step": pl.Int32(),
    "part": pl.Float64(),
    "whole": pl.Float64(),
}


class DeviceMeasures(NamedTuple):
    """What the devices of a run did.

    Attributes:
        measured: Measures of the groups "device", "overall" and "rank".
        details: Measures of the group "detail": operators, calls, operations and kinds of copy.
        steps: The steps that were measured; null stands for a run without.
        left_out: Those that were not: they have no end.
        still_open: Whether those that were measured have no end.
        lengths_ns: How long each of the steps was, mean over ranks.
        spent: Whether it is known what time was spent on.
        roles: Whether exposed communication is known by role; null if there is none.
    """

    measured: Measured
    details: Measured
    steps: tuple[int | None, ...]
    left_out: tuple[int, ...]
    still_open: bool
    lengths_ns: tuple[float, ...]
    spent: bool
    roles: bool | None


def has_steps(timeline: Timeline) -> bool:
    """Return whether it is known when the steps of a run's devices began."""
    return timeline.step_times.height > 0 and not is_one_step(timeline.run)


def as_one_step(timeline: Timeline) -> Timeline:
    """Return the same run without steps, to be measured as a whole."""
    without = {
        name: frame.with_columns(step=pl.lit(None, frame.schema["step"]))
        for name, frame in timeline.tables.items()
        if name != "step_times" and "step" in frame.columns
    }
    tables = {**timeline.tables, "step_times": timeline.step_times.clear(), **without}
    tasks = timeline.tasks.with_columns(step=pl.lit(None, pl.Int32))
    return Timeline(tasks, timeline.ranks, timeline.run, **tables)


def device_measures(timeline: Timeline) -> DeviceMeasures | None:
    """Measure what devices did, step by step.

    Returns:
        None if the traces tell neither when steps began nor what devices did.
    """
    windows = _windows(timeline)
    if not windows.height:
        return None
    kept = whole(windows)
    still_open = bool(kept["open"].any())
    budget = timeline.budget.with_columns(pl.col("step").fill_null(UNSTEPPED))
    if not has_steps(timeline):
        budget = budget.with_columns(step=pl.lit(UNSTEPPED, pl.Int32))
    spent = budget.join(kept.select("rank", "step"), on=["rank", "step"], how="semi")
    devices = budget.select("rank", "device").unique().group_by("rank").agg(devices=pl.len())
    ranks = (
        kept.join(devices, on="rank", how="left")
        .group_by("step")
        .agg(ranks=pl.col("devices").sum())
        .sort("step")
    )
    lengths = (
        recorded(kept, budget, "rank", "step")
        .group_by("step")
        .agg(part=pl.col("recorded_ns").sum(), whole=pl.len())
    )
    frames = [_named(lengths, group, STEP) for group in ("device", "overall")] + [
        _spent(spent, ranks),
        _by_rank(spent, devices, kept),
    ]
    clock = timeline.run.clock
    rate_error = clock.rate_error if clock else 0.0
    steps = ranks["step"].to_list()
    communicated = spent.filter(pl.col("use") == Use.COMMUNICATION.value)["role"]
    return DeviceMeasures(
        measured=Measured(pl.concat(frames), ranks, rate_error=rate_error),
        details=Measured(_details(spent, ranks), ranks, rate_error=rate_error),
        steps=tuple(None if step == UNSTEPPED else step for step in steps),
        left_out=tuple(sorted({*windows["step"]} - {*steps})),
        still_open=still_open and has_steps(timeline),
        lengths_ns=tuple(lengths.sort("step").select(pl.col("part") / pl.col("whole")).to_series()),
        spent=spent.height > 0,
        roles=bool(communicated.is_not_null().any()) if len(communicated) else None,
    )


def _windows(timeline: Timeline) -> pl.DataFrame:
    """Return rank, step, start_ns, end_ns and open of each step; of each capture if there are none."""
    if has_steps(timeline):
        return timeline.step_times.with_columns(pl.col("open").fill_null(value=False))
    return (
        timeline.budget.group_by("rank")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .with_columns(step=pl.lit(UNSTEPPED, pl.Int32), open=pl.lit(value=True))
    )


def _named(frame: pl.DataFrame, group: str, name: str) -> pl.DataFrame:
    return _rows(frame.with_columns(group=pl.lit(group), name=pl.lit(name)))


def _rows(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(pl.col(name).cast(kind) for name, kind in _MEASURES.items())


def _spent(spent: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return measures of what all devices spent their time on."""
    classes = spent.group_by("step", "use").agg(part=pl.col("spent_ns").sum())
    overall = {"busy": BUSY, "idle": IDLE}
    members = [
        (group, name, use.value)
        for group, sums in (("device", _SUMS), ("overall", overall))
        for name, uses in sums.items()
        for use in uses
    ]
    schema = {"group": pl.String(), "name": pl.String(), "use": BUDGET_SCHEMA["use"]}
    named = pl.DataFrame(members, schema=schema, orient="row")
    by_role = spent.filter(pl.col("use") == Use.COMMUNICATION.value).select(
        "step",
        group=pl.lit("device"),
        name=pl.lit(BY_ROLE) + pl.col("role").fill_null(_UNKNOWN_ROLE),
        part="spent_ns",
    )
    parts = pl.concat(
        [classes.join(named, on="use").select("step", "group", "name", "part"), by_role]
    )
    sums = parts.group_by("step", "group", "name", maintain_order=True).agg(pl.col("part").sum())
    if spent.height:  # devices that are never idle were so for no time
        idling = (pl.col("group") == "overall") | (pl.col("name") == IDLING)
        always = named.filter(idling).select("group", "name")
    else:
        always = named.clear().select("group", "name")
    every = ranks.join(pl.concat([sums.select("group", "name"), always]).unique(), how="cross")
    return _rows(
        every.join(sums, on=["step", "group", "name"], how="left").with_columns(
            pl.col("part").fill_null(0), whole="ranks"
        )
    )


def _by_rank(spent: pl.DataFrame, devices: pl.DataFrame, kept: pl.DataFrame) -> pl.DataFrame:
    """Return how long each rank's devices were idle, mean over them."""
    idle = spent.filter(pl.col("use").is_in([use.value for use in IDLE]))
    sums = idle.group_by("rank", "step").agg(part=pl.col("spent_ns").sum())
    return _rows(
        kept.join(devices, on="rank")
        .join(sums, on=["rank", "step"], how="left")
        .with_columns(
            pl.col("part").fill_null(0),
            group=pl.lit("rank"),
            name=pl.col("rank").cast(pl.String),
            whole="devices",
        )
    )


_NUMBERED: Final = r", (?:seq|op_id) = \d+.*$|#\d+$"
"""What emit_nvtx adds to operators' names, and torch.profiler to those of steps."""


def _details(spent: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return how long each operator, call, operation or kind of copy took."""
    labels = {use.value: label for use, label in {**LABELS, **_HIDDEN}.items()}
    # What is numbered anew each time would be nothing that two runs, or steps, have in common.
    name = pl.col("detail").str.replace(_NUMBERED, "")
    label = pl.col("use").cast(pl.String).replace_strict(labels, return_dtype=pl.String)
    role = pl.format(", {}", "role").fill_null("")
    named = spent.drop_nulls("detail").with_columns(name)
    return _rows(
        summed_up(named, "role", counted=False)
        .filter(~pl.col("use").is_in([Use.COMPUTE.value, *(use.value for use in HIDDEN)]))
        .group_by("step", name=pl.format("{}: {}{}", label, "detail", role))
        .agg(part=pl.col("spent_ns").sum())
        .join(ranks, on="step")
        .sort("step", "name")  # so that those that change alike come in one order
        .with_columns(group=pl.lit("detail"), whole="ranks")
    )
