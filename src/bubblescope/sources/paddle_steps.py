"""PaddlePaddle: the steps that older versions log, as NVTX ranges named by the step's number.

With `FLAGS_auto_parallel_profiler` every range that is pushed and popped is a line of the log
(`paddle/fluid/platform/device/gpu/cuda/cuda_profiler.cc`), those of operators too. A pop does not say
of what: ranges nest, in each thread. Steps are those that `paddle.profiler.utils._nvprof_range` pushes;
for steps before the profiled ones it pops and has pushed nothing.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from bubblescope.model.provenance import Notice

JOB_MARK: Final = "Profiler Info: Job ("
"""What the line of a job holds."""
STEP_MARK: Final = "NVTX range "
"""What a line of a range holds."""
GLOG_THREAD: Final = r"([0-9]+) [0-9A-Za-z_./+-]+:[0-9]+\] $"
"""The thread, in what stands before a message of glog."""

_EVENT: Final = r"^(push|pop)(?:: ([^\n]{1,256}?))?, time: ([0-9]{1,13})\.([0-9]{6})(?:[^0-9]|$)"
_STEP: Final = "^[0-9]{1,9}$"


def step_ranges(path: str, text: str) -> tuple[pl.DataFrame, list[Notice]]:
    """Return the steps of a log.

    Args:
        path: The log, for the notices.
        text: What is in it.

    Returns:
        Frame with step, start_ns and end_ns (UTC), in the order of the log, and, of the log's job lines
        counted from 0, the `first` within the step and the first `after` it. A step whose end is
        missing is left out, with a notice.
    """
    pieces = pl.DataFrame({"text": pl.Series([text]).str.split(STEP_MARK).explode()})
    events = (
        pieces.with_columns(
            thread=pl.col("text").str.tail(96).str.extract(GLOG_THREAD).shift(1).fill_null(""),
            jobs=pl.col("text").str.count_matches(JOB_MARK, literal=True).cum_sum().shift(1),
            event=pl.col("text").str.head(320).str.extract_groups(_EVENT),
        )
        .slice(1)
        .with_columns(
            pl.col("event").struct.rename_fields(["event", "name", "ms", "rest"]),
        )
        .unnest("event")
        .drop_nulls("event")
        .with_columns(
            at_ns=pl.col("ms").cast(pl.Int64) * 1_000_000 + pl.col("rest").cast(pl.Int64),
            change=pl.when(event=pl.lit("push")).then(1).otherwise(-1),
        )
    )
    height = pl.col("change").cum_sum().over("thread")
    ground = pl.min_horizontal(height.cum_min().over("thread"), 0)
    pushed = pl.col("change") > 0
    steps = (
        # A push is followed by its own pop among the events of its depth.
        events.with_columns(depth=height - ground + (~pushed).cast(pl.Int32))
        .with_columns(
            end_ns=pl.col("at_ns").shift(-1).over("thread", "depth"),
            after=pl.col("jobs").shift(-1).over("thread", "depth"),
        )
        .filter(pushed & pl.col("name").str.contains(_STEP))
    )
    closed = steps.drop_nulls("end_ns")
    notices = []
    if lost := steps.height - closed.height:
        text = f"{lost} of {steps.height} steps of {path} have no end in it; those are not shown"
        notices.append(Notice("open-steps", text, lost, steps.height))
    return closed.select(
        pl.col("name").cast(pl.Int32).alias("step"),
        pl.col("at_ns").alias("start_ns"),
        "end_ns",
        first=pl.col("jobs").cast(pl.Int64),
        after=pl.col("after").cast(pl.Int64),
    ), notices


def numbered(jobs: pl.DataFrame, ranges: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Give jobs the numbers of the steps that their lines stand in; the others count on from these.

    Args:
        jobs: Frame with `at`, which job line of the log it is, from 1 and ascending, and `step`, as
            counted.
        ranges: As `step_ranges` returns it.

    Returns:
        The jobs, and of the ranges those that hold some: step, start_ns and end_ns.
    """
    said = (
        jobs.select(at=pl.col("at").cast(pl.Int64) - 1)
        .join_asof(ranges.select(pl.all().name.prefix("of_")), left_on="at", right_on="of_first")
        .select(pl.when(pl.col("at") < pl.col("of_after")).then("of_step"))
        .to_series()
    )
    ahead = (said - jobs["step"]).forward_fill().backward_fill().fill_null(0)
    held = ranges.filter(pl.col("step").is_in(said.drop_nulls().implode()))
    return jobs.with_columns(step=pl.col("step") + ahead), held.select("step", "start_ns", "end_ns")
