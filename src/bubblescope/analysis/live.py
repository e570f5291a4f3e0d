"""A job while it records: the bubble rate of its last steps, its slowest stage, the ranks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope.model import intervals
from bubblescope.model.intervals import idle_share
from bubblescope.model.kinds import COMPUTE_KINDS, Lane
from bubblescope.model.timing import HOST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bubblescope.recording.follow import News, Recording, Tail

_STEPS: Final = 10
"""Steps that figures are about: the last ones that all of the ranks have."""
_KEPT: Final = 2 * _STEPS
"""Steps kept of each rank, for ranks are not all equally far."""
_SILENT_S: Final = 10.0
_SILENT_STEPS: Final = 5
"""Seconds, and lengths of a step, after which a rank of which nothing comes is silent."""

_TASKS: Final[dict[str, Any]] = {
    "rank": pl.Int32,
    "step": pl.Int32,
    "stage": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}
_TIMES: Final[dict[str, Any]] = {"start_ns": pl.Int64, "end_ns": pl.Int64, "busy_ns": pl.Int64}
_RANK_STEP: Final = ("rank", "step")
_STAGE_STEP: Final = ("rank", "step", "stage")


class Figures(msgspec.Struct, frozen=True, eq=False):
    """What a running job does.

    Attributes:
        steps: Steps that the figures are about, in order; none if no rank has one.
        last_step: The highest number of a step.
        last_ns: UTC when the last forward or backward of it ended, nanoseconds.
        period_ns: From the end of one step to that of the next, on average; None of one step.
        rate: Bubble rate of the steps.
        definition: Which of the bubble rates that is.
        ranks: Frame with rank, stages, idle (the same rate for it alone), busy_ns (in a step, on
            average) and step (its last); in pipeline order.
        stages: Frame with stage and busy_ns (in a step, on average); slowest first.
        silent: Ranks from which nothing came for long, with the seconds.
        closed: Ranks whose recording was ended.
        host: Ranks whose times are the host's, not a device's, ascending.
        problems: What cannot be read, and why.
    """

    steps: list[int]
    last_step: int | None
    last_ns: int
    period_ns: float | None
    rate: float | None
    definition: str
    ranks: pl.DataFrame
    stages: pl.DataFrame
    silent: dict[int, float]
    closed: set[int]
    host: list[int]
    problems: list[str]


def _on_host(recording: Recording) -> bool:
    return recording.header is not None and recording.header.timed == HOST


class RunningJob:
    """The last steps of every rank, kept as tasks arrive.

    Tasks are kept of each rank's last step only: more of them may come. What earlier steps were is
    a few numbers each.
    """

    def __init__(self) -> None:
        self._of: dict[int, Recording] = {}
        self._utc: dict[tuple[str, str], int] = {}
        """Boot of a host -> its UTC minus its monotonic clock: one for all of its ranks."""
        self._open = pl.DataFrame(schema=_TASKS)
        self._steps = pl.DataFrame(schema=dict.fromkeys(_RANK_STEP, pl.Int32) | _TIMES)
        self._stages = pl.DataFrame(schema=dict.fromkeys(_STAGE_STEP, pl.Int32) | _TIMES)
        self._problems: list[str] = []

    def update(self, news: list[News], tail: Tail) -> None:
        """Take in what is new."""
        void = [rank for rank, one in self._of.items() if tail.recordings.get(one.path) is not one]
        for rank in void:
            del self._of[rank]
        self._problems = list(self._claims(tail))
        frames, origins = [], []
        for one, tasks, anew in news:
            header = one.header
            if header is None or self._of.get(header.rank) is not one:
                continue
            if anew:
                void.append(header.rank)
            if tasks.height:
                shift_ns = self._utc.setdefault((header.host, header.boot), header.utc_ns)
                frames.append(tasks)
                origins.append((header.rank, shift_ns, tasks.height))
        if void:
            gone = pl.col("rank").is_in(void)
            self._open, self._steps, self._stages = (
                frame.filter(~gone) for frame in (self._open, self._steps, self._stages)
            )
        if frames:
            columns = ["rank", "shift", "length"]
            origin = pl.DataFrame(origins, columns, orient="row")
            self._add(self._placed(pl.concat(frames), origin))

    def _claims(self, tail: Tail) -> Iterator[str]:
        """Note whose each recording is; yield what is wrong with some."""
        for one in tail.recordings.values():
            if one.problem is not None:
                yield f"{one.path.name} {one.problem}"
            rank = None if one.header is None else one.header.rank
            if rank is not None and self._of.setdefault(rank, one) is not one:
                yield f"{one.path} is another recording of rank {rank}"

    def _placed(self, tasks: pl.DataFrame, origin: pl.DataFrame) -> pl.DataFrame:
        """Return the forwards and backwards of steps, with rank and stage, in UTC."""
        whose = origin.select(
            pl.col("rank").cast(pl.Int32).repeat_by("length").explode(),
            shift=pl.col("shift").repeat_by("length").explode(),
        )
        work = pl.concat([tasks, whose], how="horizontal").filter(
            pl.col("step").is_not_null(),
            pl.col("lane") == Lane.COMPUTE.value,
            pl.col("kind").is_in([kind.value for kind in COMPUTE_KINDS]),
        )
        # A rank with one stage needs no chunk to tell it.
        held = [
            (rank, chunk if len(stages) > 1 else None, stage)
            for rank in origin["rank"]
            if (stages := self._stages_of(rank))
            for chunk, stage in enumerate(stages)
        ]
        schema = {"rank": pl.Int32, "chunk": pl.Int16, "known": pl.Int32}
        places = pl.DataFrame(held, schema, orient="row")
        single = places.filter(pl.col("chunk").is_null()).select("rank", only="known")
        return (
            work.join(places, on=["rank", "chunk"], how="left")
            .join(single, on="rank", how="left")
            .select(
                "rank",
                "step",
                pl.coalesce("stage", "known", "only").alias("stage"),
                pl.col("start_ns", "end_ns") + pl.col("shift"),
            )
        )

    def _stages_of(self, rank: int) -> list[int]:
        header = self._of[rank].header
        return [] if header is None else header.stages or []

    def _add(self, new: pl.DataFrame) -> None:
        # Of a step that was left behind, a straggling task is too little to begin it again.
        reached = self._open.group_by("rank").agg(reached=pl.col("step").max())
        new = new.join(reached, on="rank", how="left").filter(
            pl.col("step") >= pl.col("reached").fill_null(0)
        )
        tasks = pl.concat([self._open, new.drop("reached")])
        self._open = tasks.filter(pl.col("step") == pl.col("step").max().over("rank"))
        touched = tasks.filter(pl.col("rank").is_in(new["rank"].unique().to_list()))
        self._steps = _renewed(self._steps, _times(touched, _RANK_STEP), _RANK_STEP)
        staged = touched.filter(pl.col("stage").is_not_null())
        self._stages = _renewed(self._stages, _times(staged, _STAGE_STEP), _STAGE_STEP)

    def figures(self) -> Figures:
        """Return what the job does now."""
        per_step = (
            self._steps.group_by("step")
            .agg(
                pl.len(),
                busy_ns=pl.col("busy_ns").sum(),
                span_ns=(pl.col("end_ns") - pl.col("start_ns")).sum(),
                start_ns=pl.col("start_ns").min(),
                end_ns=pl.col("end_ns").max(),
            )
            .sort("step")
        )
        last = per_step.tail(1)
        per_step = per_step.filter(pl.col("len") == pl.col("len").max()).tail(_STEPS)
        one_clock = len({self._clock(rank) for rank in self._of}) <= 1
        length = pl.col("end_ns") - pl.col("start_ns")
        whole = pl.col("len") * length if one_clock else pl.col("span_ns")
        busy_ns, whole_ns = per_step.select(pl.col("busy_ns").sum(), whole.sum()).row(0)
        period_ns = None
        if per_step.height > 1:
            ends, numbers = per_step["end_ns"], per_step["step"]
            period_ns = (ends[-1] - ends[0]) / (numbers[-1] - numbers[0])
        ranks = self._per_rank(per_step.select("step", makespan_ns=length), one_clock=one_clock)
        stages = (
            self._stages.join(per_step.select("step"), on="step", how="semi")
            .group_by("stage")
            .agg(pl.col("busy_ns").mean())
            .sort("busy_ns", "stage", descending=[True, False])
        )
        closed = {rank for rank, one in self._of.items() if one.closed}
        return Figures(
            steps=per_step["step"].to_list(),
            last_step=last["step"][0] if last.height else None,
            last_ns=last["end_ns"][0] if last.height else 0,
            period_ns=period_ns,
            rate=idle_share(busy_ns, whole_ns),
            definition="makespan" if one_clock else "span",
            ranks=ranks,
            stages=stages,
            silent=self._silent(period_ns, closed),
            closed=closed,
            host=sorted(rank for rank, one in self._of.items() if _on_host(one)),
            problems=self._problems,
        )

    def _clock(self, rank: int) -> tuple[str, str]:
        header = self._of[rank].header
        return ("", "") if header is None else (header.host, header.boot)

    def _per_rank(self, steps: pl.DataFrame, *, one_clock: bool) -> pl.DataFrame:
        own = pl.col("end_ns") - pl.col("start_ns")
        rates = (
            self._steps.join(steps, on="step")
            .with_columns(whole_ns=pl.col("makespan_ns") if one_clock else own)
            .group_by("rank")
            .agg(pl.col("busy_ns", "whole_ns").sum(), mean_ns=pl.col("busy_ns").mean())
        )
        sums = rates.select("busy_ns", "whole_ns").iter_rows()
        idle = pl.Series("idle", [idle_share(busy, whole) for busy, whole in sums], pl.Float64)
        rates = rates.select("rank", idle, busy_ns="mean_ns")
        known = pl.DataFrame(
            {"rank": list(self._of), "stages": [self._stages_of(rank) for rank in self._of]},
            schema={"rank": pl.Int32, "stages": pl.List(pl.Int32)},
        )
        return (
            known.join(rates, on="rank", how="left")
            .join(self._steps.group_by("rank").agg(pl.col("step").max()), on="rank", how="left")
            .sort(pl.col("stages").list.first(), "rank", nulls_last=True)
        )

    def _silent(self, period_ns: float | None, closed: set[int]) -> dict[int, float]:
        patience_s = max(_SILENT_S, _SILENT_STEPS * (period_ns or 0) / 1e9)
        now_s = time.monotonic()
        waited = {rank: now_s - one.grown_s for rank, one in sorted(self._of.items())}
        return {
            rank: waited_s
            for rank, waited_s in waited.items()
            if waited_s > patience_s and rank not in closed
        }


def _times(tasks: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    """Return when each group began and ended, and how long any of its tasks ran."""
    ordered = tasks.sort(*keys, "start_ns")
    fresh_ns = intervals.fresh_start_ns(*intervals.columns(ordered, *keys))
    return (
        ordered.with_columns(busy_ns=pl.col("end_ns") - pl.Series(fresh_ns))
        .group_by(keys)
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("busy_ns").sum())
    )


def _renewed(known: pl.DataFrame, new: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    """Put new numbers in place of earlier ones, and forget those of steps long past."""
    both = pl.concat([known.join(new, on=keys, how="anti"), new.select(known.columns)])
    recent = pl.col("step").rank("dense", descending=True).over("rank") <= _KEPT
    return both.filter(recent)
