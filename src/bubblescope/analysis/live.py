"""A job while it records: its last steps, the whole and the bubbles, its slowest stage, the ranks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.between_rounds import outside_rounds
from bubblescope.analysis.outside_passes import Names
from bubblescope.analysis.pipeline_phase import cut_of, went_through
from bubblescope.analysis.wall_clock import step_starts, taken_apart, whole_steps
from bubblescope.model import intervals
from bubblescope.model.intervals import idle_share
from bubblescope.model.kinds import COMPUTE_KINDS, Lane
from bubblescope.model.timing import HOST
from bubblescope.recording.failures import without_failed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bubblescope.model.arrays import Ints
    from bubblescope.recording.follow import News, Recording, Tail

_STEPS: Final = 10
"""Steps that figures are about: the last ones that all of the ranks have, with all passes."""
_KEPT: Final = 2 * _STEPS
"""Steps kept of each rank, for ranks are not all equally far."""
_OPEN: Final = 2
"""Steps of each rank of which tasks are kept."""
_SILENT_S: Final = 10.0
_SILENT_STEPS: Final = 5
"""Seconds, and lengths of a step, after which a rank of which nothing comes is silent."""

_TASKS: Final[dict[str, Any]] = {
    "rank": pl.Int32,
    "step": pl.Int32,
    "stage": pl.Int32,
    "microbatch": pl.Int32,
    "pair_stage": pl.Int32,
    "pair_microbatch": pl.Int32,
    "kind": pl.String,
    "lane": pl.String,
    "name": pl.String,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "host_start_ns": pl.Int64,
}
_EDGES: Final = ("rank", "start_ns", "end_ns")
_PHASES: Final[dict[str, Any]] = {"rank": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}
_TIMES: Final[dict[str, Any]] = {"start_ns": pl.Int64, "end_ns": pl.Int64, "busy_ns": pl.Int64}
_WINDOW: Final[dict[str, Any]] = {"start_ns": pl.Int64, "end_ns": pl.Int64}
_SPENT: Final[dict[str, Any]] = {"what": pl.String, "spent_ns": pl.Int64}
_PASSED: Final[dict[str, Any]] = {
    "stage": pl.Int32,
    "way": pl.String,
    "count": pl.UInt32,
    "size": pl.Int32,
}
_RANK_STEP: Final = ("rank", "step")
_STAGE_STEP: Final = ("rank", "step", "stage")


class WholeSteps(msgspec.Struct, frozen=True, eq=False):
    """What ranks were in, from the start of a step to the start of the next.

    Attributes:
        steps: Frame with rank, step, length_ns and phase_ns, how much of that was in the pipeline
            phase of a step; of the steps that all of the ranks have whole.
        spent: Frame with rank, step, what and spent_ns, as in `analysis.wall_clock`; of a rank and
            step, it adds up to length_ns.
    """

    steps: pl.DataFrame
    spent: pl.DataFrame

    @property
    def numbers(self) -> list[int]:
        """The steps, ascending."""
        return self.steps["step"].unique().sort().to_list()

    def of(self, step: int) -> WholeSteps:
        """Return one step."""
        return WholeSteps(self.steps.filter(step=step), self.spent.filter(step=step))

    def means(self) -> tuple[float, float]:
        """Return how long a step is, and how much of it pipeline phase; means over ranks and steps."""
        return tuple(self.steps.select(pl.col("length_ns", "phase_ns").mean()).row(0))

    def shares(self) -> pl.DataFrame:
        """Return what, mean_ns (of a rank and step), share, rank and most_ns; most first.

        `rank` is the one that is most in it, `most_ns` the mean of its steps.
        """
        count, whole = self.steps.height, self.steps["length_ns"].sum()
        steps = self.steps["step"].n_unique()
        return (
            self.spent.group_by("what", "rank")
            .agg(pl.col("spent_ns").sum())
            .sort("spent_ns", "rank", descending=[True, False])
            .group_by("what", maintain_order=True)
            .agg(
                mean_ns=pl.col("spent_ns").sum() / count,
                share=pl.col("spent_ns").sum() / whole,
                rank=pl.col("rank").first(),
                most_ns=pl.col("spent_ns").first() / steps,
            )
            .sort("mean_ns", "what", descending=[True, False])
        )


class Figures(msgspec.Struct, frozen=True, eq=False):
    """What a running job does.

    Attributes:
        steps: Steps that the figures are about, in order; none if no rank has one.
        left_out: Steps between these that lack forwards or backwards that others have.
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
        whole: The last steps, whole; None if no rank has begun a second one.
    """

    steps: list[int]
    left_out: list[int]
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
    whole: WholeSteps | None


def _on_host(recording: Recording) -> bool:
    return recording.header is not None and recording.header.timed == HOST


class RunningJob:
    """The last steps of every rank, kept as tasks arrive.

    Tasks are kept of each rank's last two steps only: more of the last may come, with which the one
    before ends. What earlier steps were is a few numbers each.
    """

    def __init__(self) -> None:
        self._of: dict[int, Recording] = {}
        self._utc: dict[tuple[str, str], int] = {}
        """Boot of a host -> its UTC minus its monotonic clock: one for all of its ranks."""
        self._open = pl.DataFrame(schema=_TASKS)
        self._steps = pl.DataFrame(schema=dict.fromkeys(_RANK_STEP, pl.Int32) | _TIMES)
        self._stages = pl.DataFrame(schema=dict.fromkeys(_STAGE_STEP, pl.Int32) | _TIMES)
        self._passed = pl.DataFrame(schema=dict.fromkeys(_RANK_STEP, pl.Int32) | _PASSED)
        """How many micro-batches went through stages."""
        self._windows = pl.DataFrame(schema=dict.fromkeys(_RANK_STEP, pl.Int32) | _WINDOW)
        self._spent = pl.DataFrame(schema=dict.fromkeys(_RANK_STEP, pl.Int32) | _SPENT)
        self._between = pl.DataFrame(schema={"step": pl.Int32} | _WINDOW)
        """Time between the rounds of steps, of all ranks."""
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
            held = ("_open", "_steps", "_stages", "_passed", "_windows", "_spent")
            for name in held:
                setattr(self, name, getattr(self, name).filter(~gone))
        if frames:
            columns = ["rank", "shift", "length"]
            origin = pl.DataFrame(origins, columns, orient="row")
            self._add(self._placed(pl.concat(frames), origin))

    def _claims(self, tail: Tail) -> Iterator[str]:
        """Note whose each recording is; yield what is wrong with some."""
        for folder, why in tail.unlisted.items():
            yield f"{folder} cannot be listed ({why})"
        for one in tail.recordings.values():
            if one.problem is not None:
                yield f"{one.path.name} {one.problem}"
            rank = None if one.header is None else one.header.rank
            if rank is not None and self._of.setdefault(rank, one) is not one:
                yield f"{one.path} is another recording of rank {rank}"

    def _placed(self, tasks: pl.DataFrame, origin: pl.DataFrame) -> pl.DataFrame:
        """Return tasks with rank and stage, in UTC."""
        whose = origin.select(
            pl.col("rank").cast(pl.Int32).repeat_by("length").explode(),
            shift=pl.col("shift").repeat_by("length").explode(),
        )
        work = pl.concat([tasks, whose], how="horizontal")
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
        paired = places.select("rank", pair_chunk="chunk", pair_known="known")
        return (
            work.join(places, on=["rank", "chunk"], how="left")
            .join(paired, on=["rank", "pair_chunk"], how="left")
            .join(single, on="rank", how="left")
            .select(
                "rank",
                "step",
                pl.coalesce("stage", "known", "only").alias("stage"),
                "microbatch",
                pl.coalesce("pair_stage", "pair_known", "only").alias("pair_stage"),
                "pair_microbatch",
                "kind",
                "lane",
                pl.coalesce("name", "kind").alias("name"),
                pl.col("start_ns", "end_ns", "host_start_ns") + pl.col("shift"),
            )
        )

    def _stages_of(self, rank: int) -> list[int]:
        header = self._of[rank].header
        return [] if header is None else header.stages or []

    def _add(self, new: pl.DataFrame) -> None:
        # Of a step that was left behind, a straggling task is too little to begin it again; so is one
        # that is kept because it ran on into the steps after.
        held = self._open.filter(_last_steps()).group_by("rank").agg(held=pl.col("step").min())
        there = pl.col("step") >= pl.col("held").fill_null(0)
        new = new.join(held, on="rank", how="left").filter(pl.col("step").is_null() | there)
        tasks = without_failed(pl.concat([self._open, new.drop("held")]))[0]
        touched = tasks.filter(pl.col("rank").is_in(new["rank"].unique().to_list()))
        self._open = tasks.filter(_of_last_steps())
        phase = tasks.filter(_passes()).join(held, on="rank", how="left").filter(there)
        work = phase.join(new.select("rank").unique(), on="rank", how="semi")
        self._steps = _renewed(self._steps, _times(work, _RANK_STEP), _RANK_STEP)
        numbered = work.filter(pl.col("microbatch").is_not_null())
        self._passed = _renewed(self._passed, went_through(numbered), _RANK_STEP)
        self._find_rounds(phase.drop("held"))
        staged = work.filter(pl.col("stage").is_not_null())
        self._stages = _renewed(self._stages, _times(staged, _STAGE_STEP), _STAGE_STEP)
        windows = (
            whole_steps(step_starts(touched))
            .join(held, on="rank", how="left")
            .filter(there)
            .drop("held")
        )
        if windows.height:
            spent = taken_apart(
                touched, windows, pl.DataFrame(schema=_PHASES), Names.of(touched).asides
            )
            self._windows = _renewed(self._windows, windows, _RANK_STEP)
            self._spent = _renewed(self._spent, spent, _RANK_STEP)

    def _find_rounds(self, work: pl.DataFrame) -> None:
        """Find out when nobody was in a round, in steps of which all tasks are still here."""
        headers = [one.header for one in self._of.values() if one.header is not None]
        declared = next((header.microbatches for header in headers if header.microbatches), None)
        if declared is None:
            return
        here = work.group_by("step").agg(pl.col("rank").n_unique())
        known = self._steps.group_by("step").agg(known=pl.len())
        whole = here.join(known, on="step").filter(pl.col("rank") >= pl.col("known"))
        phase = work.join(whole, on="step", how="semi").with_columns(pipeline=pl.lit(0, pl.Int32))
        found = outside_rounds(phase, declared).drop("pipeline")
        kept = self._between.join(whole, on="step", how="anti")
        kept = kept.join(self._steps, on="step", how="semi")
        self._between = pl.concat([kept, found])

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
        cut = cut_of(self._passed)
        whole = (pl.col("len") == pl.col("len").max()) & ~pl.col("step").is_in(cut)
        per_step = per_step.filter(whole).tail(_STEPS)
        one_clock = len({self._clock(rank) for rank in self._of}) <= 1
        length = pl.col("end_ns") - pl.col("start_ns")
        if one_clock and self._between.height:
            rest = self._between.group_by("step").agg(rest=length.sum())
            per_step = per_step.join(rest, on="step", how="left", maintain_order="left")
            length -= pl.col("rest").fill_null(0)
        measured = pl.col("len") * length if one_clock else pl.col("span_ns")
        busy_ns, whole_ns = per_step.select(pl.col("busy_ns").sum(), measured.sum()).row(0)
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
        steps = per_step["step"].to_list()
        return Figures(
            steps=steps,
            left_out=[number for number in cut if steps and steps[0] < number < steps[-1]],
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
            whole=self._whole(cut, one_clock=one_clock),
        )

    def _whole(self, cut: list[int], *, one_clock: bool) -> WholeSteps | None:
        """Return the last steps that all of the ranks have whole; none of those that lack passes."""
        held = self._windows.group_by("step").len().sort("step")
        whole = (pl.col("len") == pl.col("len").max()) & ~pl.col("step").is_in(cut)
        last = held.filter(whole).tail(_STEPS).select("step")
        if not last.height:
            return None
        windows = self._windows.join(last, on="step", how="semi")
        window = "step" if one_clock else _RANK_STEP  # a phase is one of all ranks, or of each
        phases = (
            self._steps.with_columns(
                pl.col("start_ns").min().over(window), pl.col("end_ns").max().over(window)
            )
            .sort("rank", "start_ns")
            .select(_EDGES)
        )
        between = self._between if one_clock else self._between.clear()
        between = phases.select(pl.col("rank").unique()).join(between, how="cross")
        of = _intervals(windows)
        phase_ns = intervals.covered_ns(_intervals(phases), of)
        phase_ns -= intervals.covered_ns(_intervals(between.sort("rank", "start_ns")), of)
        steps = windows.select(
            *_RANK_STEP,
            length_ns=pl.col("end_ns") - pl.col("start_ns"),
            phase_ns=pl.Series(phase_ns),
        )
        return WholeSteps(steps, self._spent.join(last, on="step", how="semi"))

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


def _intervals(frame: pl.DataFrame) -> tuple[Ints, Ints, Ints]:
    rank, start, end = (frame[name].to_numpy().astype(np.int64) for name in _EDGES)
    return rank, start, end


def _passes() -> pl.Expr:
    """Say which tasks are forwards and backwards of steps."""
    return (
        pl.col("step").is_not_null()
        & (pl.col("lane") == Lane.COMPUTE.value)
        & pl.col("kind").is_in([kind.value for kind in COMPUTE_KINDS])
    )


def _of_last_steps() -> pl.Expr:
    """Say which tasks are of a rank's last two steps, or ran on into them."""
    opens = pl.col("start_ns").filter(_last_steps()).min().over("rank")
    return _last_steps() | (pl.col("end_ns") > opens)


def _last_steps() -> pl.Expr:
    """Say which tasks are of a rank's last two steps."""
    number = pl.col("step").rank("dense", descending=True).over("rank")
    return (number <= _OPEN).fill_null(value=False)


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
