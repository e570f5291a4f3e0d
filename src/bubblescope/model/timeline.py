"""The data model: a table of tasks, a table of ranks, and where they came from.

Sources make a `Timeline`; analyses and renderings take one. Nothing in it depends on a vendor.
"""

from __future__ import annotations

import base64
import io
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope.model.arrays import in_blocks
from bubblescope.model.bounds import LONGEST_NS, RANKS, TIMES_NS
from bubblescope.model.column_types import UnfitError, typed
from bubblescope.model.counters import in_force
from bubblescope.model.errors import TimelineError, quoted
from bubblescope.model.files import replacing
from bubblescope.model.kinds import Kind, Lane
from bubblescope.model.ordering import in_order
from bubblescope.model.parquet import UNREADABLE
from bubblescope.model.provenance import Notice, Run
from bubblescope.model.saved_timelines import opened
from bubblescope.model.timeline_tables import RANK_SCHEMA, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from bubblescope.model.arrays import Ints
    from bubblescope.model.saved_timelines import Saved

KIND_DTYPE: Final = pl.Enum([kind.value for kind in Kind])
LANE_DTYPE: Final = pl.Enum([lane.value for lane in Lane])

TASK_SCHEMA: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "kind": KIND_DTYPE,
    "stage": pl.Int32(),
    "chunk": pl.Int16(),
    "microbatch": pl.Int32(),
    "pair_stage": pl.Int32(),
    "pair_chunk": pl.Int16(),
    "pair_microbatch": pl.Int32(),
    "lane": LANE_DTYPE,
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "busy_ns": pl.Int64(),
    "host_start_ns": pl.Int64(),
    "host_end_ns": pl.Int64(),
    "peer": pl.Int32(),
    "certainty": pl.Float32(),
    "name": pl.String(),
}
"""Columns of `Timeline.tasks`, in order. `docs/model.md` says what each one means."""

_TASK_REQUIRED = ("rank", "kind", "lane", "start_ns", "end_ns", "name")
_RANK_REQUIRED = ("rank", "host")

_TASK_RULES: Final[tuple[tuple[str, pl.Expr], ...]] = (
    ("end_ns is not before start_ns", pl.col("end_ns") >= pl.col("start_ns")),
    ("busy_ns is not negative", pl.col("busy_ns") >= 0),
    ("busy_ns fits in the task", pl.col("busy_ns") <= pl.col("end_ns") - pl.col("start_ns")),
    (
        "host_end_ns is not before host_start_ns",
        pl.col("host_end_ns") >= pl.col("host_start_ns"),
    ),
    *(
        (f"{column} is not negative", pl.col(column) >= 0)
        for column in ("rank", "stage", "chunk", "microbatch", "peer")
    ),
    *(
        (f"{column} is below {RANKS:,}", pl.col(column) < RANKS)
        for column in ("rank", "stage", "microbatch", "pair_stage", "pair_microbatch", "peer")
    ),
    *(
        (f"{column} is within 146 years of zero", pl.col(column).is_between(-TIMES_NS, TIMES_NS))
        for column in ("start_ns", "end_ns", "host_start_ns", "host_end_ns")
    ),
    ("certainty is a probability", pl.col("certainty").is_between(0, 1)),
    (
        "only a forward_backward task has a pair",
        pl.all_horizontal(pl.col("pair_stage", "pair_chunk", "pair_microbatch").is_null())
        | (pl.col("kind") == Kind.FORWARD_BACKWARD.value),
    ),
)


class Timeline:
    """Every task of a run on every device, on one clock.

    Args:
        tasks: Frame with the columns of `TASK_SCHEMA`; missing nullable columns are filled with
            null. Sorted by rank, lane and start on the way in.
        ranks: Frame with the columns of `RANK_SCHEMA`, one row per rank; if None, a row per rank
            in `tasks` with the host "unknown".
        run: Provenance and warnings.
        counters: What was measured beside the tasks, such as memory in use: a table of those below.
        tables: Frames of the other tables that `bubblescope.model.timeline_tables.TABLES` names, each
            with the columns of its schema; those left out are empty. Sorted on the way in. `step_times`
            are the steps, each from its start to the next's; `budget` what the devices spent every
            nanosecond on; `operations` the kernels that communicate; `activities` all kernels, if they
            were asked for; `flops` what operators executed; `groups` the groups of processes that
            communicate.

    Raises:
        TimelineError: A column is missing, unknown or of the wrong type, or a row breaks a rule;
            the message names the table, the row (as given) and the rule.

    All times are integer nanoseconds on the run's common clock.
    """

    __slots__ = (
        "activities",
        "budget",
        "counters",
        "flops",
        "groups",
        "operations",
        "ranks",
        "remembered",
        "run",
        "step_times",
        "tasks",
    )

    tasks: pl.DataFrame
    ranks: pl.DataFrame
    run: Run
    counters: pl.DataFrame
    step_times: pl.DataFrame
    budget: pl.DataFrame
    operations: pl.DataFrame
    flops: pl.DataFrame
    activities: pl.DataFrame
    groups: pl.DataFrame
    remembered: dict[Callable[..., Any], Any]  # see `bubblescope.model.cached_results`

    def __init__(
        self,
        tasks: pl.DataFrame,
        ranks: pl.DataFrame | None = None,
        run: Run | None = None,
        counters: pl.DataFrame | None = None,
        **tables: pl.DataFrame | None,
    ) -> None:
        self._take(tasks, ranks, run, {"counters": counters, **tables}, checks=True)

    @classmethod
    def of_checked(
        cls, tasks: pl.DataFrame, ranks: pl.DataFrame, run: Run, **tables: pl.DataFrame
    ) -> Timeline:
        """Return a timeline of rows that timelines of these ranks had: rules are not tried again.

        Args:
            tasks: As of the constructor; likewise the others.
            ranks: Likewise.
            run: Likewise.
            **tables: Likewise.
        """
        made = cls.__new__(cls)
        made._take(tasks, ranks, run, tables, checks=False)  # noqa: SLF001  it is ours
        return made

    @staticmethod
    def refuse(tasks: pl.DataFrame, ranks: pl.DataFrame, **tables: pl.DataFrame) -> None:
        """Try the rules on rows of which several timelines will be made, by `of_checked`.

        Looking at a table takes some milliseconds whether it has a hundred rows or a hundred thousand.

        Args:
            tasks: As of the constructor; likewise the others.
            ranks: Likewise.
            **tables: Likewise.

        Raises:
            TimelineError: They break a rule.
        """
        beside = {name: table.empty() for name, table in TABLES.items()}
        for name, frame in tables.items():
            beside[name] = _conform(frame, TABLES[name].schema, TABLES[name].required, name)
        _check(
            _conform(tasks, TASK_SCHEMA, _TASK_REQUIRED, "tasks"),
            _conform(ranks, RANK_SCHEMA, _RANK_REQUIRED, "ranks"),
            beside,
        )

    def _take(
        self,
        tasks: pl.DataFrame,
        ranks: pl.DataFrame | None,
        run: Run | None,
        tables: Mapping[str, pl.DataFrame | None],
        *,
        checks: bool,
    ) -> None:
        """Take tables of which a timeline is made, in their order, with all columns."""
        tasks = _conform(tasks, TASK_SCHEMA, _TASK_REQUIRED, "tasks")
        if ranks is None:
            ranks = tasks.select(pl.col("rank").unique()).with_columns(host=pl.lit("unknown"))
        ranks = _conform(ranks, RANK_SCHEMA, _RANK_REQUIRED, "ranks")
        if unknown := set(tables) - set(TABLES):
            raise TypeError(f"a timeline has no table {min(unknown)}")
        beside = {}
        for name, table in TABLES.items():
            frame = tables.get(name)
            if frame is None:
                beside[name] = table.empty()
            else:
                beside[name] = _conform(frame, table.schema, table.required, name)
        if checks:
            _check(tasks, ranks, beside)
        self.remembered = {}
        self.tasks = _unfilled(in_order(tasks, "rank", "lane", "start_ns", "end_ns"))
        self.ranks = ranks.sort("rank")
        self.run = run.encodable() if run is not None else Run()
        for name, frame in beside.items():
            ordered = frame.sort(TABLES[name].order, maintain_order=True) if len(frame) else frame
            setattr(self, name, ordered)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Timeline):
            return NotImplemented
        return (
            self.tasks.equals(other.tasks)
            and self.ranks.equals(other.ranks)
            and self.run == other.run
            and all(frame.equals(other.tables[name]) for name, frame in self.tables.items())
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name != "remembered"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self.remembered = {}

    __hash__ = None  # type: ignore[assignment]  # frames are mutable: equal by value, never a key

    def __len__(self) -> int:
        return self.tasks.height

    def __repr__(self) -> str:
        return (
            f"Timeline({self.tasks.height} tasks, {self.ranks.height} ranks, "
            f"{len(self.steps)} steps, {self.duration_ns / 1e6:.3f} ms)"
        )

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """The tables beside tasks and ranks, by name."""
        return {name: getattr(self, name) for name in TABLES}

    @property
    def steps(self) -> list[int]:
        """The training steps that have tasks, ascending; if no task has one, those of the devices."""
        of_tasks: list[int] = self.tasks["step"].drop_nulls().unique().sort().to_list()
        return of_tasks or self.step_times["step"].unique().sort().to_list()

    @property
    def start_ns(self) -> int:
        """Start of the first task, or 0 if there is none."""
        return int(self.tasks["start_ns"].min() or 0)  # type: ignore[arg-type]

    @property
    def end_ns(self) -> int:
        """End of the last task, or 0 if there is none."""
        return int(self.tasks["end_ns"].max() or 0)  # type: ignore[arg-type]

    @property
    def duration_ns(self) -> int:
        """From the first start to the last end."""
        return self.end_ns - self.start_ns

    @property
    def extent_ns(self) -> int:
        """From the first to the last moment of tasks and devices."""
        edges = [frame for frame in (self.tasks, self.budget) if frame.height]
        if not edges:
            return 0
        low = min(int(frame["start_ns"].min()) for frame in edges)  # type: ignore[arg-type]
        return max(int(frame["end_ns"].max()) for frame in edges) - low  # type: ignore[arg-type]

    def of_rows(self, rows: Ints) -> Timeline:
        """Return some of its tasks with all ranks, and nothing of the other tables.

        They keep the rules that all kept, so these are not looked at again.

        Args:
            rows: Which, ascending.
        """
        part = copy(self)
        part.remembered = {}
        part.tasks = self.tasks[rows]
        for name, table in self.tables.items():
            setattr(part, name, table.clear())
        return part

    def slice(
        self,
        *,
        steps: Iterable[int] | None = None,
        ranks: Iterable[int] | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> Timeline:
        """Return the part of the timeline that meets every given condition.

        Counters are kept for the time of the given steps and window; what held at its beginning
        becomes a sample there.

        Args:
            steps: Keep tasks of these steps.
            ranks: Keep these ranks and their tasks.
            start_ns: Keep tasks that end after this moment.
            end_ns: Keep tasks that start before this moment. The window [start_ns, end_ns) is
                half open; a task that overlaps it is kept whole, never cut.

        Raises:
            TimelineError: A step or rank is not in the timeline.
        """
        tasks, kept, tables = self.tasks, self.ranks, self.tables
        counters = tables.pop("counters")
        if steps is not None:
            wanted = among("step", steps, self.steps)
            tasks = tasks.filter(pl.col("step").is_in(wanted))
            tables = _chosen(tables, "step", wanted)
            if counters.height and tasks.height and self.run.common_clock:
                first, last = tasks.select(pl.min("start_ns"), pl.max("end_ns")).row(0)
                counters = in_force(counters, first, last)
        if ranks is not None:
            wanted = among("rank", ranks, self.ranks["rank"].to_list())
            tasks = tasks.filter(pl.col("rank").is_in(wanted))
            kept = kept.filter(pl.col("rank").is_in(wanted))
            counters = counters.filter(pl.col("rank").is_in(wanted))
            tables = _chosen(tables, "rank", wanted)
        tasks, tables = _between(tasks, tables, start_ns, end_ns)
        return Timeline(
            tasks, kept, self.run, counters=in_force(counters, start_ns, end_ns), **tables
        )

    def with_notices(self, *notices: Notice) -> Timeline:
        """Return the same timeline with more warnings."""
        return self.with_run(self.run.warned(*notices))

    def with_run(self, run: Run) -> Timeline:
        """Return the same timeline, of which something else is known."""
        return self.described(self.ranks, run)

    def described(self, ranks: pl.DataFrame, run: Run) -> Timeline:
        """Return the same tasks at the same times, of which something else is known.

        Args:
            ranks: The same ranks in the same places, as `ranks`.
            run: As `run`.
        """
        other = copy(self)  # whose tables have been checked
        other.ranks, other.run = ranks, run.encodable()
        other.remembered = self.remembered
        return other

    def save(self, path: str | Path) -> Path:
        """Write everything to one Parquet file; `Timeline.load` gives an equal timeline back.

        The tasks are the table; the ranks and the run are JSON in the file's key-value metadata,
        and the other tables, those that are not empty, Parquet in base64. So any Parquet reader opens
        the tasks.

        Raises:
            OSError: The file cannot be written; one that was there is as it was.
        """
        path = Path(path)
        metadata = {
            "bubblescope.version": "1",
            "bubblescope.ranks": msgspec.json.encode(self.ranks.to_dicts()).decode(),
            "bubblescope.run": msgspec.json.encode(self.run).decode(),
        }
        for name, frame in self.tables.items():
            if frame.height:
                buffer = io.BytesIO()
                frame.write_parquet(buffer)
                metadata[f"bubblescope.{name}"] = base64.b64encode(buffer.getbuffer()).decode()
        whole = io.BytesIO()  # Polars does not say what was wrong with a disk
        self.tasks.write_parquet(whole, metadata=metadata)
        with replacing(path) as partial, whole.getbuffer() as content:
            partial.write_bytes(content)
        return path

    @classmethod
    def load(cls, path: str | Path) -> Timeline:
        """Read a file that `save` wrote.

        Raises:
            SourceError: The file is missing, damaged, or not a timeline bundle.
        """
        return _of_saved(opened(path))


def task_columns(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of a frame that tasks have, without what a source needed besides."""
    return frame.select([column for column in TASK_SCHEMA if column in frame.columns])


def concat(timelines: Sequence[Timeline]) -> Timeline:
    """Put timelines of different ranks on one page; they must share a clock.

    Raises:
        TimelineError: There is nothing to join, or two timelines hold the same rank.
    """
    if not timelines:
        raise TimelineError("nothing to concatenate: give at least one timeline")
    if len(timelines) == 1:
        return timelines[0]
    owner: dict[int, Timeline] = {}
    for timeline in timelines:
        for rank in timeline.ranks["rank"].to_list():
            if rank in owner:
                raise TimelineError(
                    f"rank {rank} is claimed by two traces: {_origin(owner[rank])} and "
                    f"{_origin(timeline)}; leave one of them out",
                )
            owner[rank] = timeline
    return _one_of(timelines, len(owner))


def _of_saved(file: Saved) -> Timeline:
    try:
        return Timeline(file.tasks, file.ranks, file.run, **file.tables)
    except (TimelineError, *UNREADABLE) as error:
        raise file.broken(error) from None


def together(files: Sequence[Saved]) -> Timeline:
    """Return several saved timelines as one, as `concat` does of each by itself.

    Looking at a table takes some milliseconds whether it has a hundred rows or a hundred thousand. So
    the rules are tried on the rows of all files at once, and on each file by itself only where one
    breaks a rule, to say which.

    Args:
        files: At least one.

    Raises:
        SourceError: A file breaks a rule.
        TimelineError: Two have the same rank.
    """
    whole = _at_once(files) if len(files) > 1 else None
    return concat([_of_saved(file) for file in files]) if whole is None else whole


def _at_once(files: Sequence[Saved]) -> Timeline | None:
    """Return several files as one timeline; None if they must be looked at one by one."""
    ranks = [file.ranks["rank"].to_list() for file in files]
    own = all(file.told() <= {*mine} for file, mine in zip(files, ranks, strict=True))
    count = sum(map(len, ranks))
    if not own or len(set().union(*ranks)) < count:
        return None
    try:
        return _one_of(files, count)
    except (TimelineError, *UNREADABLE):  # of columns that differ, for one
        return None


def _one_of(parts: Sequence[Timeline] | Sequence[Saved], ranks: int) -> Timeline:
    """Return one timeline of parts that have so many ranks, each its own."""
    names = dict.fromkeys(name for part in parts for name in part.tables)
    return Timeline(
        pl.concat([part.tasks for part in parts]),
        pl.concat([part.ranks for part in parts]),
        joined([part.run for part in parts], ranks),
        **{
            name: pl.concat([part.tables[name] for part in parts if name in part.tables])
            for name in names
        },
    )


def joined(runs: Sequence[Run], ranks: int) -> Run:
    """Return what is known of several traces together, which are of so many ranks in all."""
    common = all(run.common_clock for run in runs)
    inferred: dict[str, str] = {}
    for run in runs:
        inferred |= run.inferred
    return Run(
        origins=tuple(dict.fromkeys(origin for run in runs for origin in run.origins)),
        schedule=agreed(run.schedule for run in runs),
        microbatches=agreed(run.microbatches for run in runs),
        world=_world(runs, ranks),
        inferred=inferred,
        warnings=tuple(dict.fromkeys(notice for run in runs for notice in run.warnings)),
        notes=tuple(dict.fromkeys(notice for run in runs for notice in run.notes)),
        contents=tuple(content for run in runs for content in run.contents),
        common_clock=common,
        host_clocks=not common and all(run.common_clock or run.host_clocks for run in runs),
        attempts=tuple(attempt for run in runs for attempt in run.attempts),
        resumed=tuple(sorted({step for run in runs for step in run.resumed})),
    )


def _world(runs: Sequence[Run], ranks: int) -> int | None:
    """Return how many ranks the run of several traces has, as far as they tell."""
    told = [run.world for run in runs if run.world is not None]
    return max(ranks, *told) if told else None


def agreed(values: Iterable[Any]) -> Any:
    """Return the one value that all who state one agree on, else None."""
    stated = {value for value in values if value is not None}
    return stated.pop() if len(stated) == 1 else None


def _chosen(
    tables: dict[str, pl.DataFrame], column: str, wanted: Sequence[int]
) -> dict[str, pl.DataFrame]:
    """Return the rows of some steps or ranks, of the tables that tell them apart."""
    return {
        name: frame.filter(pl.col(column).is_in(wanted)) if column in frame.columns else frame
        for name, frame in tables.items()
    }


def _between(
    tasks: pl.DataFrame, tables: dict[str, pl.DataFrame], start_ns: int | None, end_ns: int | None
) -> tuple[pl.DataFrame, dict[str, pl.DataFrame]]:
    """Return what overlaps a window, whole."""
    inside = [pl.lit(value=True)]
    whole = start_ns is None and end_ns is None
    if start_ns is not None:
        inside.append(pl.col("end_ns") > start_ns)
    if end_ns is not None:
        inside.append(pl.col("start_ns") < end_ns)
    kept = {
        name: frame.filter(inside) if "start_ns" in frame.columns else frame
        for name, frame in tables.items()
    }
    if not whole and "flops" in kept:
        # It is known of steps alone when they were executed.
        kept["flops"] = kept["flops"].join(kept["step_times"], on=["rank", "step"], how="semi")
    return tasks.filter(inside), kept


def _origin(timeline: Timeline) -> str:
    paths = ", ".join(origin.path for origin in timeline.run.origins)
    return paths or "a timeline made in memory"


def among(what: str, wanted: Iterable[int], present: Sequence[int]) -> list[int]:
    """Return the numbers that are wanted, each of which must be present.

    Raises:
        TimelineError: One is not.
    """
    chosen = list(wanted)
    if absent := sorted(set(chosen) - set(present)):
        held = f"{present[0]}..{present[-1]}" if present else "none"
        raise TimelineError(f"{what} {absent[0]} is not in the timeline, which holds {held}")
    return chosen


def table_of(timeline: Timeline, name: str) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return a table of a timeline, and which of its columns never lack a value.

    Raises:
        TimelineError: It has no such table.
    """
    of = {"tasks": _TASK_REQUIRED, "ranks": _RANK_REQUIRED} | {
        table: TABLES[table].required for table in TABLES
    }
    if name not in of:
        raise TimelineError(f"a timeline has no table {name!r}; it has {', '.join(of)}")
    return getattr(timeline, name), of[name]


def _conform(
    frame: pl.DataFrame,
    schema: Mapping[str, pl.DataType],
    required: Sequence[str],
    table: str,
) -> pl.DataFrame:
    """Give a frame exactly the columns of a schema, refusing what cannot be converted exactly."""
    if missing := [column for column in required if column not in frame.columns]:
        raise TimelineError(f"{table}: column {missing[0]} is missing")
    if unknown := [column for column in frame.columns if column not in schema]:
        raise TimelineError(
            f"{table}: column {unknown[0]} is unknown; the columns are {', '.join(schema)}",
        )
    conformed = (
        frame.clone()
        if [*frame.schema.items()] == [*schema.items()]
        else _converted(frame, schema, table)
    )
    for name in required:
        if conformed[name].has_nulls():
            row = conformed[name].is_null().arg_true()[0]
            raise TimelineError(f"{table} row {row}: {name} must not be null")
    return conformed


_MANY: Final = 1 << 17
"""Rows from which on columns of nothing are worth a thought."""


def _unfilled(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame of which columns without any value take no memory, nor do rows chosen of them."""
    if frame.height < _MANY:
        return frame
    empty = (name for name in frame.columns if frame[name].null_count() == frame.height)
    return frame.with_columns(pl.lit(None, frame.schema[name]).alias(name) for name in empty)


def _converted(frame: pl.DataFrame, schema: Mapping[str, pl.DataType], table: str) -> pl.DataFrame:
    """Return the columns of a schema; what a frame lacks is null."""
    columns = []
    for name, dtype in schema.items():
        if name not in frame.columns:
            columns.append(pl.Series(name, [None], dtype).new_from_index(0, frame.height))
            continue
        column = frame[name]
        if column.dtype != dtype:
            if column.dtype.is_float() and not dtype.is_float():  # times lose digits in floats
                raise TimelineError(f"{table}: column {name} must be {dtype}, not {column.dtype}")
            try:
                column = typed(column, dtype)
            except UnfitError as error:
                where = f"{table}: column" if error.row is None else f"{table} row {error.row}:"
                raise TimelineError(f"{where} {error.problem}") from None
        columns.append(column)
    return pl.DataFrame(columns)


def _check(tasks: pl.DataFrame, ranks: pl.DataFrame, beside: dict[str, pl.DataFrame]) -> None:
    """Enforce the rules that span columns or tables. A null satisfies every rule."""
    broken = [(~rule).fill_null(value=False).alias(text) for text, rule in _TASK_RULES]
    found = pl.concat([block.select(broken).select(pl.all().any()) for block in in_blocks(tasks)])
    for text, rule in _TASK_RULES:
        if found[text].any():
            row = int(tasks.select((~rule).fill_null(value=False)).to_series().arg_true()[0])
            said = _show(tasks, row, rule.meta.root_names())
            raise TimelineError(f"tasks row {row}: the rule is that {text}, but {said}")
    _check_bounds(tasks, ranks)
    if ranks["rank"].n_unique() < len(ranks):
        row = int(ranks["rank"].is_duplicated().arg_true()[-1])
        raise TimelineError(f"ranks row {row}: rank {ranks['rank'][row]} appears twice")
    for name, table in {"tasks": tasks, **beside}.items():
        if "rank" not in table.columns or not len(table):
            continue
        strangers = (~table["rank"].is_in(ranks["rank"].implode())).arg_true()
        if len(strangers):
            row = int(strangers[0])
            raise TimelineError(f"{name} row {row}: rank {table['rank'][row]} is not in ranks")
    for name, table in beside.items():
        _check_rows(name, table)
    counters = beside["counters"]
    if len(counters) and not counters["value"].is_finite().all():
        row = int((~counters["value"].is_finite()).arg_true()[0])
        raise TimelineError(
            f"counters row {row}: the rule is that value is finite, but it is "
            f"{counters['value'][row]}"
        )


def _check_rows(name: str, table: pl.DataFrame) -> None:
    """Refuse rows of a table beside the tasks that end before they start, or last less than no time."""
    if not table.height:
        return
    moments = TABLES[name].moments
    rules = [
        (f"{column} is within 146 years of zero", pl.col(column).is_between(-TIMES_NS, TIMES_NS))
        for column in moments
    ]
    lengths = [name for name in table.columns if name.endswith("_ns") and name not in moments]
    rules += [(f"{column} is not negative", pl.col(column) >= 0) for column in lengths]
    if "end_ns" in moments:
        length = pl.col("end_ns") - pl.col("start_ns")
        rules.append(("end_ns is not before start_ns", length >= 0))
        rules.append(("it is no longer than two years", length <= LONGEST_NS))
        rules += [(f"{column} fits in it", pl.col(column) <= length) for column in lengths]
    broken = table.select((~rule).fill_null(value=False).alias(text) for text, rule in rules)
    for column in broken.iter_columns():
        if column.any():
            row = int(column.arg_true()[0])
            raise TimelineError(f"{name} row {row}: the rule is that {column.name}")


def _check_bounds(tasks: pl.DataFrame, ranks: pl.DataFrame) -> None:
    """Refuse what tables as long as it would fill the memory, or sums would not hold."""
    if tasks.height:
        first_ns, last_ns = tasks.select(pl.min("start_ns"), pl.max("end_ns")).row(0)
        length_ns = last_ns - first_ns
        if length_ns > LONGEST_NS:
            raise TimelineError(f"tasks: the first and the last are {length_ns:,} ns apart")
    stages = ranks["stages"].filter(ranks["stages"].list.len() > 0).explode()
    for what, places in (("rank", ranks["rank"]), ("stage", stages)):
        odd = places.filter(~places.is_between(0, RANKS - 1).fill_null(value=False))
        if len(odd):
            raise TimelineError(f"ranks: {what} is {odd[0]}, where 0 to {RANKS - 1:,} may be")


def _show(tasks: pl.DataFrame, row: int, columns: Collection[str]) -> str:
    """Return what a row has in the columns of a rule, and what tells which task it is."""
    shown = [name for name in tasks.columns if name in {*columns, "rank", "step", "kind"}]
    values = tasks.select(shown).row(row, named=True)
    return "it is " + ", ".join(
        f"{key}={quoted(value)}" for key, value in values.items() if value is not None
    )
