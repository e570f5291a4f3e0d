"""PaddlePaddle: job profiler lines in `workerlog.N` files, and the dygraph pipeline's own records.

The static-graph executor logs each job's start and stop as its stream passed them, in milliseconds
since 1970 (`paddle/fluid/framework/new_executor/standalone_executor.cc`). The dygraph pipeline
(`fleet/meta_parallel/pipeline_parallel.py`) writes a JSON line at each start and stop.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from bubblescope.model import units
from bubblescope.model.errors import SourceError
from bubblescope.model.kinds import COMPUTE_KINDS, LANE_OF, Kind
from bubblescope.model.provenance import Contents, NameShape, Notice, clocks_unchecked
from bubblescope.model.timeline_tables import RANK_SCHEMA
from bubblescope.model.timing import DEVICE, HOST
from bubblescope.sources import numbering
from bubblescope.sources.assembly import assembled, rank_in_name, refuse_doubles
from bubblescope.sources.copies import refuse_copies
from bubblescope.sources.inventory import absent
from bubblescope.sources.paddle_steps import GLOG_THREAD, JOB_MARK, STEP_MARK, numbered, step_ranges
from bubblescope.sources.parallel import read_each
from bubblescope.sources.plausibility import implausible_clock, impossible_times, possible

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bubblescope.model.progress import Progress
    from bubblescope.model.timeline import Timeline
    from bubblescope.sources.source import ReadOptions

_LOG: Final = re.compile(r"workerlog\.(\d+)")
_RECORD: Final = re.compile(r"profile_record_tmp_file_for_rank_(\d+)")
_MACHINE: Final = re.compile(r"machine(\d+)")

_JOB: Final = (
    r"^([0-9]{1,9})\), type = ([^, \n]{1,64}), micro_batch_id = ([0-9]{1,6}), "
    r"job_start_time = ([0-9]{1,13})\.([0-9]{6}), job_end_time = ([0-9]{1,13})\.([0-9]{6})(?:[^0-9]|$)"
)
"""std::to_string writes six decimals: with fewer, a number was cut short. (ASCII digits: a Unicode
class makes the search three times as slow.)"""
_WINDOW: Final = r"Schedule Profiler start at step ([0-9]{1,9}) and end at step ([0-9]{1,9})"
_JOB_KINDS: Final = {
    "forward": Kind.FORWARD,
    "backward": Kind.BACKWARD,
    "backward_b": Kind.BACKWARD_INPUT,
    "backward_w": Kind.BACKWARD_WEIGHT,
    "optimizer": Kind.OPTIMIZER,
    "recv_forward": Kind.RECV_FORWARD,
    "send_backward": Kind.SEND_BACKWARD,
}
"""Job types of the scheduling passes, without their chunk; any other (`lr`, `default`) is other."""
_TYPE: Final = re.compile(r"(.*?)(?:\(chunk([0-9]{1,4})\)|([0-9]{1,4}))?(?:_reduce)?")
_COMPUTE: Final = [kind.value for kind in COMPUTE_KINDS]
_STEP_SCHEMA: Final = {
    "rank": pl.Int32,
    "step": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}
_COLUMNS: Final = {
    "job": pl.Int64,
    "type": pl.String,
    "microbatch": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}


class PaddleSource:
    """Reads the worker logs of PaddlePaddle's schedule profiler, of one or many machines."""

    name = "paddle"
    summary = "PaddlePaddle worker logs (workerlog.N, machineK/workerlog.N) and dygraph records"

    def detect(self, path: Path) -> bool:
        """Claim files by the names that Paddle's launcher and pipeline give them."""
        return path.is_file() and bool(_LOG.fullmatch(path.name) or _RECORD.fullmatch(path.name))

    def read(self, paths: Sequence[Path], options: ReadOptions) -> Timeline:
        """Read the logs of one run.

        Raises:
            SourceError: A log cannot be read, two are of one rank, or it has no such run.
        """
        places = _places(paths)
        reader = _Reader(options.run)
        logs = read_each(reader, paths, options, what="reading worker logs", threads=True)
        # Records of the host are in whole milliseconds, which two ranks may share.
        timed = (log.jobs.height and log.timed == DEVICE for log in logs)
        refuse_copies(path for path, one in zip(paths, timed, strict=True) if one)
        machines = {place.machine for place in places}
        ranks = pl.DataFrame(
            [
                {
                    "rank": place.rank,
                    "host": "unknown" if place.machine is None else f"machine{place.machine}",
                    "device": place.device,
                    "timed": log.timed,
                }
                for place, log in zip(places, logs, strict=True)
            ],
            schema=RANK_SCHEMA,
        )
        # Workers are numbered from 0 without gaps; how many there are, no log says.
        world = max(place.rank for place in places) + 1
        tasks = pl.concat(
            log.jobs.with_columns(rank=pl.lit(place.rank, pl.Int32))
            for log, place in zip(logs, places, strict=True)
        )
        notices = [notice for log in logs for notice in log.notices]
        inferred = {}
        if len(machines) > 1:
            notices.append(clocks_unchecked(len(machines)))
            inferred["rank"] = "machine number times workers per machine, plus worker number"
        starts = {
            str(path): int(log.jobs["start_ns"].min())  # type: ignore[arg-type]  # integers
            for path, log in zip(paths, logs, strict=True)
            if log.jobs.height
        }
        if tasks.height:
            tasks, how_stage = numbering.number_stages(tasks)
            if how_stage:
                tasks, how_gaps = _past_missing(tasks, world)
                inferred["stage"] = how_stage + how_gaps
                ranks = numbering.with_stages(ranks, tasks)
        return assembled(
            "paddle",
            [(None, path) for path in paths],
            tasks,
            ranks,
            notices=[*notices, *implausible_clock(starts)],
            contents=(log.contents for log in logs),
            world=world,
            nothing=lambda: _no_tasks(logs),
            inferred=inferred,
        )


class _Place(msgspec.Struct, frozen=True):
    """Where a log's worker ran."""

    rank: int
    machine: int | None
    device: int | None


class _Log(msgspec.Struct, frozen=True):
    """One log: its jobs with step, kind, lane, chunk and name, what to say of it, and what timed them.

    The executor's lines are written as the device's stream passes, the dygraph pipeline's records by
    the host.
    """

    jobs: pl.DataFrame
    contents: Contents
    notices: list[Notice]
    timed: str


def _past_missing(tasks: pl.DataFrame, world: int) -> tuple[pl.DataFrame, str]:
    """Leave room for the stages of workers that have no log, so that those of others do not shift.

    Stages were counted along the way of a micro-batch, which a worker without a log is on as well.
    Workers are stages in the order of their numbers, chunk by chunk, or in a V backwards through the
    next chunk. Where the workers with a log are evenly apart, and the micro-batch goes from one to the
    next without the time for a stage between them, or where the workers before them are as many, those
    without a log may as well be of other replicas: then nothing is changed, and it is said. Of one
    worker alone the stage stays unknown.

    Args:
        tasks: With the stages as counted.
        world: Number of workers, with or without a log.

    Returns:
        The tasks, and what to add to how stages were inferred.
    """
    workers = tasks["rank"].unique().sort()
    first, count = absent(workers.to_list(), world, units.MOST_LISTED)
    if not count:
        return tasks, ""
    missing = units.listed("worker", first, of=count)
    unknown = pl.lit(None, pl.Int32)
    if len(workers) == 1:
        return tasks.with_columns(stage=unknown), ""
    apart = set(workers.diff().drop_nulls().to_list())
    before = workers[0] >= len(workers) * workers.diff().drop_nulls()[0]
    if len(apart) == 1 and (before or (apart != {1} and not _room_between(tasks))):
        return tasks, f"; {missing}, without a log, taken to be of other replicas"
    found = []
    passes = tasks.drop_nulls("stage").with_columns(place=pl.col("chunk").fill_null(0))
    by_chunk = passes.select("rank", "place", "stage").unique().sort("stage")
    for index, (_, chunk) in enumerate(by_chunk.group_by("place", maintain_order=True)):
        if chunk["rank"].is_sorted():
            stage = pl.col("rank")
        elif chunk["rank"].is_sorted(descending=True):
            stage = world - 1 - pl.col("rank")
        else:
            return tasks.with_columns(stage=unknown), ""
        found.append(chunk.select("rank", "place", told=(index * world + stage).cast(pl.Int32)))
    placed = tasks.with_columns(place=pl.col("chunk").fill_null(0)).join(
        pl.concat(found), on=["rank", "place"], how="left", maintain_order="left"
    )
    counted = pl.when(pl.col("stage").is_not_null()).then("told")
    said = f"; {missing}, without a log, counted as stages"
    return placed.with_columns(stage=counted).drop("place", "told"), said


def _room_between(tasks: pl.DataFrame) -> bool:
    """Say whether a micro-batch takes as long from worker to worker as if a stage were between them.

    That is at least half of a forward; a transfer alone takes less.
    """
    forwards = tasks.filter(pl.col("kind") == Kind.FORWARD.value, pl.col("chunk").fill_null(0) == 0)
    first = forwards.filter(pl.col("microbatch") == 0, pl.col("step") == pl.col("step").min()).sort(
        "start_ns"
    )
    between = (first["start_ns"] - first["end_ns"].shift(1)).drop_nulls()
    length = (forwards["end_ns"] - forwards["start_ns"]).median()
    return bool(between.len() and (between >= length / 2).all())  # type: ignore[operator]


def machine_number(path: Path) -> int | None:
    """Return the machine whose folder (`machine3`) a log lies in, or None."""
    found = _MACHINE.fullmatch(path.parent.name)
    return int(found[1]) if found else None


def step_times(paths: Sequence[Path], run: int | None = None) -> pl.DataFrame:
    """Return the steps that older versions of Paddle log themselves, beside their jobs.

    Args:
        paths: The logs of one run.
        run: Which run of logs that hold several, counted from 0; the last if None.

    Returns:
        Frame with rank, step, start_ns and end_ns, on each machine's own clock; empty where the logs
        do not tell.

    Raises:
        SourceError: As `PaddleSource.read`.
    """
    logs = [path for path in paths if not _RECORD.fullmatch(path.name)]
    found = [pl.DataFrame(schema=_STEP_SCHEMA)]
    for path, place in zip(logs, _places(logs), strict=True):
        text = _text(path)
        if STEP_MARK in text:
            _, steps, _ = _jobs(path, text, run)
            found.append(steps.select(pl.lit(place.rank, pl.Int32).alias("rank"), pl.all()))
    return pl.concat(found)


def _places(paths: Sequence[Path]) -> list[_Place]:
    """Give each log its rank: that of its name, after all workers of the machines before it."""
    numbers = [rank_in_name(path, re.findall(r"\d+$", path.name)[0]) for path in paths]
    machines = [machine_number(path) for path in paths]
    first = min((machine for machine in machines if machine is not None), default=0)
    workers = max(numbers) + 1
    places = []
    for path, number, machine in zip(paths, numbers, machines, strict=True):
        record = _RECORD.fullmatch(path.name) is not None
        rank = number if machine is None or record else (machine - first) * workers + number
        rank = rank_in_name(path, str(rank))
        places.append(_Place(rank, machine, None if record else number))
    refuse_doubles(
        zip((place.rank for place in places), paths, strict=True),
        "give the logs of one run only, those of several machines in folders machine0, machine1, ...",
    )
    return places


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("latin-1")  # never fails; what matters is ASCII
    except OSError as error:
        raise SourceError(path, f"cannot be read ({error.strerror})") from None


class _Reader(msgspec.Struct, frozen=True):
    """Reads one log; runs in any process.

    Attributes:
        run: Which run of logs that hold several; the last if None.
    """

    run: int | None

    def __call__(self, path: Path, progress: Progress) -> _Log:  # noqa: ARG002  it is done at once
        text = _text(path)
        if _RECORD.fullmatch(path.name):
            return _read_records(path, text)
        jobs, _, notices = _jobs(path, text, self.run)
        total = jobs.height
        known = jobs.filter((pl.col("start_ns") > 0) & (pl.col("end_ns") > 0))
        if unknown := total - known.height:
            notices.append(
                Notice(
                    "unknown-times",
                    f"{unknown} of {total} jobs of {path} have no device times, as those have that "
                    "only communicate; they are not shown",
                    unknown,
                    total,
                ),
            )
        return _log(path, known, jobs["type"], notices, DEVICE)


def _jobs(
    path: Path, text: str, run: int | None
) -> tuple[pl.DataFrame, pl.DataFrame, list[Notice]]:
    """Return the jobs of one run in the order of the log, with their steps, and when those were."""
    # Pieces instead of lines: what another writer put before a record, or right behind it, is no harm.
    pieces = pl.DataFrame({"text": pl.Series([text]).str.split(JOB_MARK).explode()})
    fields = ["job", "type", "microbatch", "start", "start_rest", "end", "end_rest"]
    found = (
        pieces.with_columns(
            thread=pl.col("text").str.tail(96).str.extract(GLOG_THREAD).shift(1),
            at=pl.int_range(pl.len()),
            window=pl.when(pl.col("text").str.contains("Schedule Profiler start", literal=True))
            .then(pl.col("text").str.extract(_WINDOW, 0))
            .shift(1)
            .forward_fill(),
            record=pl.col("text").str.head(320).str.extract_groups(_JOB),
        )
        .drop("text")
        .slice(1)
        .with_columns(pl.col("record").struct.rename_fields(fields))
        .unnest("record")
    )
    broken = found["job"].is_null()
    varying = [name for name in ("thread", "window") if found[name].drop_nulls().n_unique() > 1]
    jobs = found.filter(~broken).with_columns(
        pl.col("job").cast(pl.Int64),
        pl.col("microbatch").cast(pl.Int32),
        start_ns=_from_ms("start"),
        end_ns=_from_ms("end"),
        run=sum(_changes(name) for name in varying) if varying else pl.lit(0),
    )
    notices = []
    if lost := int(broken.sum()):
        notices.append(
            Notice(
                "broken-lines",
                f"{lost} of {found.height} job lines of {path} are cut short or mixed with others, "
                "and were dropped",
                lost,
                found.height,
            )
        )
    jobs, more = _one_run(path, jobs, run)
    jobs, again = _once(path, jobs)
    more += again
    first = jobs["window"].drop_nulls().str.extract(r"(\d+)").cast(pl.Int32)
    jobs = _with_steps(jobs, first[0] if len(first) else 0)
    steps, unended = step_ranges(str(path), text)
    jobs, steps = numbered(jobs, steps)
    return jobs, steps, [*notices, *more, *unended]


def _once(path: Path, jobs: pl.DataFrame) -> tuple[pl.DataFrame, list[Notice]]:
    """Leave out lines that are there twice, as in logs that were copied together."""
    timed = pl.col("start_ns") > 0
    known = jobs.filter(timed)
    if known["start_ns"].n_unique() == known.height:
        return jobs, []
    again = timed & ~pl.struct("type", "microbatch", "start_ns", "end_ns").is_first_distinct()
    once = jobs.filter(~again)
    twice = jobs.height - once.height
    text = f"{twice} of {jobs.height} job lines of {path} are there twice; one of each was kept"
    return once, [Notice("repeated-lines", text, twice, jobs.height)] if twice else []


def _from_ms(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Int64) * 1_000_000 + pl.col(f"{name}_rest").cast(pl.Int64)


def _changes(name: str) -> pl.Expr:
    """Count how often a column has changed for good, leaving out where it is unknown.

    A value that comes once, or between two that are equal, is damage and no change.
    """
    often = pl.when(pl.len().over(name) > 1).then(name)
    known = pl.coalesce(often, pl.col(name).first()).forward_fill()
    before = known.shift(1)
    gone = pl.col("at").max().over(known).shift(1) < pl.col("at")
    new = pl.col("at").min().over(known) == pl.col("at")
    return ((known != before) & gone & new).fill_null(value=False).cum_sum()


def _one_run(
    path: Path, jobs: pl.DataFrame, wanted: int | None
) -> tuple[pl.DataFrame, list[Notice]]:
    """Keep one run: a launcher appends to the logs that are there."""
    runs = jobs["run"].unique(maintain_order=True)
    if wanted is not None and not 0 <= wanted < max(1, len(runs)):
        raise SourceError(path, f"has no run {wanted}: it holds {len(runs)}, counted from 0")
    if len(runs) < 2:
        return jobs, []
    chosen = len(runs) - 1 if wanted is None else wanted
    text = (
        f"{path} holds {len(runs)} runs, one appended to the other; run {chosen} was read, and "
        "--run chooses another"
    )
    return jobs.filter(pl.col("run") == runs[chosen]), [Notice("several-runs", text)]


def _with_steps(jobs: pl.DataFrame, first: int) -> pl.DataFrame:
    """Number the steps, from `first`.

    A step begins where the type of the log's first compute job comes for micro-batch 0; a receive
    is logged before the forward that it is for, and belongs to its step.
    """
    types = jobs["type"].unique().to_list()
    parsed = [_parsed(job) for job in types]
    jobs = jobs.with_columns(
        kind=pl.col("type").replace_strict(
            types, [kind.value for kind, _ in parsed], return_dtype=pl.String
        ),
        chunk=pl.col("type").replace_strict(
            types, [chunk for _, chunk in parsed], return_dtype=pl.Int16
        ),
    )
    passes = jobs.filter(pl.col("kind").is_in(_COMPUTE))
    leader = (passes if passes.height else jobs)["type"].head(1)
    begins = pl.col("type").is_in(leader.implode()) & (pl.col("microbatch") == 0)
    receives = pl.col("kind") == Kind.RECV_FORWARD.value
    step = first + (begins.cast(pl.Int32).cum_sum() - 1).clip(0)
    return jobs.with_columns(
        step=pl.when(~receives).then(step).backward_fill().forward_fill().fill_null(first)
    )


def _read_records(path: Path, text: str) -> _Log:
    """Read the dygraph pipeline's record: whole milliseconds, written where microseconds belong."""
    fields = (
        r'"name": "([FBW])([0-9]{1,6})(?:[^0-9]+([0-9]{1,4}))?".*?"ph": "([BE])".*?'
        r'"tid": ([0-9]{1,6})[^0-9].*?"ts": ([0-9]{1,16})(?:[^0-9]|$)'
    )
    lines = pl.DataFrame({"text": text.splitlines()}, schema={"text": pl.String})
    lines = lines.filter(pl.col("text").str.strip_chars() != "")
    names = ["letter", "microbatch", "chunk", "phase", "row", "ms"]
    marks = (
        lines.select(
            pl.col("text").str.extract_groups(fields).struct.rename_fields(names).alias("mark")
        )
        .unnest("mark")
        .drop_nulls("letter")
        .with_columns(pl.col("microbatch", "chunk", "row", "ms").cast(pl.Int64))
    )
    key = ["letter", "microbatch", "chunk"]
    ordered = marks.with_row_index("at").with_columns(
        until_ms=pl.col("ms").shift(-1).over(key),
        closed=(pl.col("phase").shift(-1).over(key) == "E").fill_null(value=False),
    )
    lowest = pl.col("chunk").fill_null(0) == pl.col("chunk").min().fill_null(0)
    begins = (pl.col("letter") == "F") & (pl.col("microbatch") == 0) & lowest
    jobs = ordered.filter(phase="B", closed=True).with_columns(
        kind=pl.col("letter").replace_strict(
            ["F", "B", "W"],
            [Kind.FORWARD.value, Kind.BACKWARD.value, Kind.BACKWARD_WEIGHT.value],
        ),
        type=pl.col("letter"),
        job=pl.col("microbatch"),
        # The row is the physical stage, which is the virtual one unless a rank holds several.
        stage=pl.when(pl.col("chunk").is_null()).then(pl.col("row") - 1).cast(pl.Int32),
        start_ns=pl.col("ms") * 1_000_000,
        end_ns=pl.col("until_ms") * 1_000_000,
        step=(begins.cast(pl.Int32).cum_sum() - 1).clip(0),
    )
    notices = [
        Notice(
            "coarse-times",
            f"{path} holds whole milliseconds of the host's clock, each taken after a "
            "synchronisation of the device that lengthens the step it measures",
        )
    ]
    if lost := lines.height - 2 * jobs.height:
        notices.append(
            Notice(
                "broken-lines",
                f"{lost} of {lines.height} lines of {path} have no counterpart or are damaged, and "
                "were dropped",
                lost,
                lines.height,
            )
        )
    return _log(path, jobs, jobs["type"], notices, HOST)


def _log(
    path: Path, jobs: pl.DataFrame, types: pl.Series, notices: list[Notice], timed: str
) -> _Log:
    """Turn jobs with known times into tasks."""
    total = jobs.height
    if total:
        jobs = jobs.filter(possible(int(jobs["start_ns"].median())))  # type: ignore[arg-type]
    notices += impossible_times(total - jobs.height, total, "jobs", str(path))
    lanes = {kind.value: lane.value for kind, lane in LANE_OF.items()}
    stage = pl.col("stage") if "stage" in jobs.columns else pl.lit(None, pl.Int32)
    tasks = jobs.select(
        "step",
        "kind",
        stage=stage,
        chunk=pl.col("chunk").cast(pl.Int16),
        microbatch=pl.when(pl.col("kind") != Kind.OPTIMIZER.value).then(
            pl.col("microbatch").cast(pl.Int32)
        ),
        lane=pl.col("kind").replace_strict(lanes),
        start_ns="start_ns",
        end_ns="end_ns",
        name=pl.concat_str("type", "job", separator="_"),
    )
    shapes = types.value_counts(sort=True).rename({types.name: "type"})
    names = tuple(
        NameShape(job, job, count, _parsed(job)[0].value)
        for job, count in shapes.sort("type").iter_rows()
    )
    contents = Contents(
        path=str(path), host=None, process=None, counts={"jobs": len(types)}, names=names
    )
    return _Log(tasks, contents, notices, timed)


def _parsed(job: str) -> tuple[Kind, int | None]:
    """Return what a job type means, and its chunk."""
    found = _TYPE.fullmatch(job)
    if found is None or found[1] not in _JOB_KINDS:
        return Kind.OTHER, None
    chunk = found[2] or found[3]
    return _JOB_KINDS[found[1]], int(chunk) if chunk else None


def _no_tasks(logs: list[_Log]) -> Notice:
    if jobs := sum(log.contents.counts["jobs"] for log in logs):
        return Notice(
            "no-device-times", f"none of the {jobs} jobs has device times: Paddle ran on the CPU"
        )
    return Notice(
        "no-pipeline-ranges",
        "no pipeline tasks were found: the logs hold no job profiler lines; run with "
        "job_schedule_profiler_start and job_schedule_profiler_end set, on GPUs",
    )
