"""`bubblescope watch`."""

from __future__ import annotations

import contextlib
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
import polars as pl
from rich.console import Group
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from bubblescope import units
from bubblescope.commands.reading import NO_TASKS
from bubblescope.console import out
from bubblescope.record.tail import Tail
from bubblescope.sections import table_of
from bubblescope.vocabulary import COMPUTE_KINDS, Lane

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from bubblescope.record.tail import News, Recording

__all__ = ["Progress", "picture", "watch"]

_STEPS: Final = 10
"""Steps that figures are about: the last ones that all of the ranks have."""
_KEPT: Final = 2 * _STEPS
"""Steps kept of each rank, for ranks are not all equally far."""
_RANKS: Final = 32
"""Ranks shown at most."""
_ABOVE: Final = 9
"""Lines of a picture that are no ranks."""
_WIDTH: Final = 32
"""Characters of a bar."""
_SILENT_S: Final = 10.0
_SILENT_STEPS: Final = 5
"""Seconds, and lengths of a step, after which a rank of which nothing comes is silent."""
_NAMED: Final = 4
"""Silent ranks and unreadable files named."""

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
    problems: list[str]


class Progress:
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
            rate=1 - busy_ns / whole_ns if whole_ns else None,
            definition="makespan" if one_clock else "span",
            ranks=ranks,
            stages=stages,
            silent=self._silent(period_ns, closed),
            closed=closed,
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
            .agg(
                idle=1 - pl.col("busy_ns").sum() / pl.col("whole_ns").sum(),
                busy_ns=pl.col("busy_ns").mean(),
            )
        )
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
    reached = pl.col("end_ns").cum_max().shift(1).over(keys)
    return (
        tasks.sort("start_ns")
        .with_columns(from_ns=pl.max_horizontal("start_ns", reached))
        .group_by(keys)
        .agg(
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            busy_ns=(pl.col("end_ns") - pl.col("from_ns")).clip(lower_bound=0).sum(),
        )
    )


def _renewed(known: pl.DataFrame, new: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    """Put new numbers in place of earlier ones, and forget those of steps long past."""
    both = pl.concat([known.join(new, on=keys, how="anti"), new.select(known.columns)])
    recent = pl.col("step").rank("dense", descending=True).over("rank") <= _KEPT
    return both.filter(recent)


def picture(folder: Path, figures: Figures, room: int = _RANKS) -> RenderableType:
    """Return what is shown of a job.

    Args:
        folder: Where it records to.
        figures: What it does.
        room: Ranks that there are lines for.
    """
    parts: list[RenderableType] = [_heading(folder, figures)]
    if figures.steps:
        parts += [_rates(figures), _bars(figures, min(room, _RANKS))]
    parts += [Text(line, "yellow") for line in _complaints(figures)]
    return Group(*parts)


def _heading(folder: Path, figures: Figures) -> Text:
    if not figures.ranks.height:
        return Text(f"{folder} · no recordings yet", "dim")
    count = figures.ranks.height
    said = [f"{count:,} rank{'s' * (count > 1)}"]
    if figures.last_step is None:
        said.append("no step has ended yet")
    else:
        at = datetime.fromtimestamp(figures.last_ns / 1e9).astimezone()
        said.append(f"step {figures.last_step} at {at:%H:%M:%S}")
    if figures.period_ns:
        said.append(f"{60e9 / figures.period_ns:.3g} steps a minute")
    if len(figures.closed) == count:
        said.append("ended")
    return Text.assemble((str(folder), "bold"), " · ", " · ".join(said))


def _rates(figures: Figures) -> Text:
    steps = figures.steps
    over = f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
    lines = [
        Text.assemble(
            "bubble ", (units.percent(figures.rate), "bold"), f" {figures.definition}", f", {over}"
        )
    ]
    busy = figures.stages
    if busy.height > 1:
        slowest, busy_ns = busy.row(0)
        mean = busy["busy_ns"].mean()
        more = busy_ns / float(str(mean)) - 1
        lines.append(
            Text.assemble(
                "slowest stage ",
                (str(slowest), "bold"),
                f": busy {units.duration(round(busy_ns))} a step, {100 * more:.1f} % over the mean",
            )
        )
    return Text("\n").join([*lines, Text()])


def _bars(figures: Figures, room: int) -> RenderableType:
    ranks = figures.ranks
    cut = ranks.height > room
    if cut:
        ranks = ranks.sort("busy_ns", descending=True, nulls_last=True).head(room)
    staged = ranks["stages"].list.len().sum() > 0
    table = table_of("rank", *["stage"] * staged, "", "idle", "busy a step", "step", "")
    for rank, stages, idle, busy_ns, step in ranks.iter_rows():
        late = step is not None and step + 1 < (figures.last_step or 0)
        state = "ended" if rank in figures.closed else ""
        if rank in figures.silent:
            state = f"silent for {figures.silent[rank]:.0f} s"
        table.add_row(
            str(rank),
            *[", ".join(map(str, stages))] * staged,
            _bar(idle),
            units.percent(idle),
            units.duration(None if busy_ns is None else round(busy_ns)),
            Text("–" if step is None else str(step), "yellow" if late else ""),
            Text(state, "dim" if state == "ended" else "yellow"),
        )
    title = f"the {room} slowest of {figures.ranks.height:,} ranks" if cut else "ranks"
    return Group(Text(title, "bold"), Padding(table, (0, 0, 0, 2)))


def _bar(idle: float | None) -> Text:
    """Return a bar of which the idle share is pale."""
    if idle is None:
        return Text()
    busy = round((1 - idle) * _WIDTH)
    return Text.assemble(("█" * busy, "blue"), ("░" * (_WIDTH - busy), "dim"))


def _complaints(figures: Figures) -> list[str]:
    lines = figures.problems[:_NAMED]
    if more := len(figures.problems[_NAMED:]):
        lines.append(f"and {more:,} files more")
    if figures.silent:
        longest = sorted(figures.silent.items(), key=lambda one: -one[1])
        named = ", ".join(f"rank {rank} for {waited:.0f} s" for rank, waited in longest[:_NAMED])
        rest = f" and {len(longest) - _NAMED:,} more" * (len(longest) > _NAMED)
        lines.append(f"silent: {named}{rest}")
    return lines


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds from one picture to the next.",
)
@click.option("--once", is_flag=True, help="Print one picture and end.")
def watch(folder: Path, interval: float, *, once: bool) -> None:
    """Watch a job that is recording to FOLDER: bubble rate, slowest stage, idle time of each rank.

    Reads only what is new. Ends when all recordings have ended, or with Ctrl+C. Where the output is
    no terminal, the first lines are printed for every new step.
    """
    tail, progress = Tail(folder), Progress()
    if once:
        progress.update(tail.news(), tail)
        figures = progress.figures()
        out.print(picture(folder, figures))
        raise SystemExit(0 if figures.steps else NO_TASKS)
    live: Any = Live(console=out, auto_refresh=False) if out.is_terminal else None
    with contextlib.suppress(KeyboardInterrupt), live or contextlib.nullcontext():
        ended, told = False, None
        while True:
            began = time.monotonic()
            news = tail.news()
            progress.update(news, tail)
            figures = progress.figures()
            if live is not None:
                live.update(picture(folder, figures, max(4, out.height - _ABOVE)), refresh=True)
            elif figures.steps and figures.last_step != told:
                told = figures.last_step
                said = (_heading(folder, figures), _rates(figures))
                out.print(*said, sep="\n", soft_wrap=True)
            # Once more after all have ended: ranks may appear late.
            if ended and not news:
                break
            ended = bool(tail.recordings) and all(one.closed for one in tail.recordings.values())
            time.sleep(max(0.0, interval - (time.monotonic() - began)))
