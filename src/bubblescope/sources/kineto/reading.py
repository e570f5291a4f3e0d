"""From the PyTorch profiler traces of all ranks to the timeline of their run."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope.model.bounds import RANKS, UNDECODABLE
from bubblescope.model.errors import SourceError, quoted
from bubblescope.model.groups import merged
from bubblescope.model.kinds import TRANSFERS, Kind
from bubblescope.model.provenance import ONE_STEP, Contents, Notice, clocks_unchecked
from bubblescope.model.timeline_tables import RANK_SCHEMA
from bubblescope.model.timing import DEVICE, HOST
from bubblescope.sources import numbering
from bubblescope.sources.assembly import assembled
from bubblescope.sources.clock_shift import shifted
from bubblescope.sources.copies import refuse_copies
from bubblescope.sources.device_spending import NOTHING, Spent, joined, spent
from bubblescope.sources.inventory import name_shapes
from bubblescope.sources.kineto.collector import Collector, Events
from bubblescope.sources.kineto.document import Header, Losses, read_document
from bubblescope.sources.kineto.operator_flops import counted
from bubblescope.sources.kineto.recorder_marks import told_by_marks
from bubblescope.sources.parallel import read_each
from bubblescope.sources.plausibility import (
    EPOCH_2000_NS,
    implausible_clock,
    impossible_times,
    repeated_work,
    without_repeated_work,
)
from bubblescope.sources.projection import Projection, losses, project
from bubblescope.sources.separate_runs import refuse_steps_twice
from bubblescope.sources.structure.unmarked import HOW_ALONE
from bubblescope.sources.unnamed_tasks import Untold, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bubblescope.model.progress import Progress
    from bubblescope.model.timeline import Timeline
    from bubblescope.names.parser import NameParser
    from bubblescope.sources.source import ReadOptions

    _Numbered = tuple[pl.DataFrame, dict[str, str], list[Notice]]
    _Number = Callable[[pl.DataFrame], _Numbered]

_RANK_IN_NAME: Final = re.compile(r"(?:^|[^a-zA-Z])rank[-_]?(\d+)", re.IGNORECASE)
_WORKER_NAME: Final = re.compile(r"^(?P<host>.+?)_(?P<pid>\d+)\.(?:\d+\.)?pt\.trace\.json")
_AXES: Final = {
    "dp": ("data_parallel", "mesh_dp"),
    "tp": ("tensor_model_parallel", "mesh_tp"),
    "cp": ("context_parallel", "mesh_cp"),
}
"""Parts of the process group descriptions of Megatron-LM and of PyTorch's device meshes."""


def read_traces(paths: Sequence[Path], options: ReadOptions) -> Timeline:
    """Read the traces of one run, one or several for each rank.

    Raises:
        SourceError: A trace is damaged beyond use, or two traces of one rank contradict.
    """
    traces = read_each(
        _Reader(options.names, options.activities, options.unlimited),
        paths,
        options,
        what="reading traces",
    )
    ranks, how_rank = _ranks(traces)
    refuse_copies(path for path, trace in zip(paths, traces, strict=True) if trace.window_ns[1])
    traces, how_step = _recorded_apart(_counted_on(traces, ranks), ranks)
    table = _rank_table(traces, ranks)
    tasks, markers, counters, executed = (
        _shifted(traces, ranks, frames)
        for frames in (
            [trace.projection.tasks for trace in traces],
            [trace.projection.markers for trace in traces],
            [trace.counters for trace in traces],
            [trace.executed for trace in traces],
        )
    )
    return assembled(
        "kineto",
        [(trace.version, trace.path) for trace in traces],
        tasks,
        table,
        notices=(
            *_clock_notices(traces),
            *_file_notices(traces),
            *_unread(traces),
            *_task_notices(traces),
            *_blank(traces),
        ),
        contents=_contents(traces, ranks),
        world=max((trace.world for trace in traces), default=0),
        nothing=lambda: _no_tasks(traces),
        number=lambda tasks: _in_windows(
            partial(numbering.number, tasks, passes=options.names.passes),
            markers,
            _shifted(traces, ranks, [_window(trace) for trace in traces]),
        ),
        inferred=_inferred(traces)
        | ({"rank": how_rank} if how_rank else {})
        | ({"step": how_step} if how_step else {}),
        spent=_spent(traces, ranks),
        executed=executed,
        tables={
            "counters": counters,
            "groups": merged(pl.concat([trace.group_table for trace in traces])),
        },
        schedule=_declared(traces, "schedule", "pp_type", kind=str),
        microbatches=_declared(traces, "n_microbatches", "microbatch_num", kind=int),
    )


class _Trace(msgspec.Struct, frozen=True):
    """One file, read: everything but its events.

    Attributes:
        path: The file.
        version: Version of its schema.
        rank: Rank that it or its name states.
        world: Number of ranks that it states, or 0.
        host: Machine that it or its name states.
        process: Process id.
        base_ns: What to add to its times to make them absolute.
        window_ns: First start and last end of its events, absolute.
        on_device: Whether it holds device work, not operators alone.
        unread: Category -> number of its events, of those that bubblescope does not read.
        inferred: What was told of its tasks by other things than their names -> how.
        blank: Whether its tasks are no more than steps, or one.
        counted: Whether the numbers of its steps are a count of those in it.
        untimed: Number of ranges that name tasks, where none of them could be timed.
        projection: Its tasks.
        spent: What its devices spent their time on.
        executed: Its operators that multiply matrices, with the columns of
            `bubblescope.sources.kineto.operator_flops.COUNTED`.
        device_name: What its device calls itself, or None.
        counters: Samples of its counters, in its own time.
        contents: What it holds.
        group_table: Its process groups, with the columns of `GROUP_SCHEMA`.
        groups: The same as its header has them.
        declared: What the job declared as `pp_info`.
        losses: What could not be read.
        impossible: Events dropped because their times cannot be.
        repeated: Kernels, copies and fills dropped because they were there again.
    """

    path: str
    version: str | None
    rank: int | None
    world: int
    host: str | None
    process: int | None
    base_ns: int | None
    window_ns: tuple[int, int]
    on_device: bool
    unread: dict[str, int]
    inferred: dict[str, str]
    blank: bool
    counted: bool
    untimed: int
    projection: Projection
    spent: Spent
    executed: pl.DataFrame
    device_name: str | None
    counters: pl.DataFrame
    contents: Contents
    group_table: pl.DataFrame
    groups: list[dict[str, Any]]
    declared: dict[str, Any]
    losses: Losses
    impossible: int
    repeated: int

    @property
    def place(self) -> tuple[str, int | None]:
        """What tells the process from others: its host and number, or else the file alone."""
        return (self.path, None) if self.process is None else (self.host or "", self.process)


class _Reader(msgspec.Struct, frozen=True):
    """Reads one file; runs in any process.

    Attributes:
        names: What range names mean.
        activities: Whether to keep the kernels.
        unlimited: Whether to read a packed file however much it unpacks to.
    """

    names: NameParser
    activities: bool = False
    unlimited: bool = False

    def __call__(self, path: Path, progress: Progress) -> _Trace:
        header, lost, events = self._read(path, progress)
        self._refuse_several(path, events)
        again = 0
        if events.on_device:
            capture, again = without_repeated_work(events.capture)
            events = msgspec.structs.replace(events, capture=capture)
        projection = project(events.capture, self.names)
        told = Untold(events.capture, projection, {}, blank=False)
        if _of_whole_models(projection.tasks):
            tasks = projection.tasks.with_columns(
                stage=pl.when(pl.col("kind").is_in(_PASSES)).then(0).otherwise("stage")
            )
            projection = msgspec.structs.replace(projection, tasks=tasks)
            how = {"kind": _HOW_BANNERS, "stage": HOW_ALONE}
            told = Untold(events.capture, projection, how, blank=False)
        if not projection.pipelined:
            told = tell(
                [(0, events)],
                events.capture,
                self.names,
                on_device=events.on_device,
                world=_whole((header.distributed or {}).get("world_size")) or 1,
            )
        stated = _WORKER_NAME.match(path.name)
        if stated and events.process not in (None, int(stated["pid"])):
            stated = None  # such as worker0_step_12, which names no machine
        distributed = header.distributed or {}
        host = header.host or (stated["host"] if stated else None)
        ranges = events.capture.ranges
        base_ns = header.base_ns or 0
        extent = [frame["start_ns"] for frame in (ranges, events.capture.work) if frame.height]
        low = min((int(times.min()) for times in extent), default=0)  # type: ignore[arg-type]
        high = max((int(times.max()) for times in extent), default=0)  # type: ignore[arg-type]
        return _Trace(
            path=str(path),
            version=None if header.schema is None else str(header.schema),
            rank=_rank(distributed, path),
            world=_whole(distributed.get("world_size")) or 0,
            host=host,
            process=events.process,
            base_ns=_base(header, low),
            window_ns=(low + base_ns, high + base_ns),
            on_device=events.on_device,
            unread=events.unread,
            inferred=told.how,
            blank=told.blank,
            counted=told.counted,
            untimed=0 if projection.tasks.height else projection.ranges,
            projection=(
                msgspec.structs.replace(told.projection, owners=None)  # as long as the kernels
                if events.on_device
                else _without_kernels(told.projection)
            ),
            spent=(
                spent(
                    events.capture,
                    told.projection.tasks,
                    told.projection.markers,
                    told.projection.owners,
                )
                if events.on_device
                else NOTHING
            ),
            executed=counted(_executed(events)),
            device_name=_device_name(header.devices, events.devices),
            counters=events.counters,
            contents=Contents(
                path=str(path),
                host=host,
                process=events.process,
                devices=events.devices,
                counts=events.counts,
                names=name_shapes(events.names, self.names.parse),
                options=_options(header, events),
            ),
            group_table=events.groups,
            groups=_entries(distributed.get("pg_config")),
            declared=_declaration(header.declared),
            losses=lost,
            impossible=events.impossible,
            repeated=again,
        )

    def _read(self, path: Path, progress: Progress) -> tuple[Header, Losses, Events]:
        """Decode the file."""
        collector = Collector(kernels=self.activities)
        header, lost = read_document(
            path, lambda _: collector.take, progress, unlimited=self.unlimited
        )
        events = told_by_marks(collector.finish(header.distributed or {}), self.names)
        return header, lost, events

    def _refuse_several(self, path: Path, events: Events) -> None:
        """Refuse a trace merged of several processes: their correlation ids are not told apart."""
        marking = [
            pid for pid, names in events.named_by.items() if any(map(self.names.parse, names))
        ]
        if len(marking) > 1:
            raise SourceError(
                path,
                f"holds pipeline ranges of {len(marking)} processes ({quoted(marking[0])}, "
                f"{quoted(marking[1])}, "
                "...): it was merged; give the trace that each process wrote",
            )
        homes = {process for process, _ in events.places}
        if len(homes) > 1 and any(process != device for process, device in events.places):
            raise SourceError(
                path,
                f"holds kernels of {len(homes)} processes whose numbers are not those of devices: it "
                "was merged of several traces; give the trace that each process wrote",
            )


def _options(header: Header, events: Events) -> tuple[str, ...]:
    """Return the options of torch.profiler that a trace states, or shows, to have been on."""
    stated = {name for name in ("with_stack", "record_shapes") if getattr(header, name)}
    return tuple(sorted(stated | events.options))


def _executed(events: Events) -> pl.DataFrame:
    """Return the operators, and launched: whether a device did what was called in them.

    Those are left out that call what no device did, as where they are recorded into a graph.
    """
    capture, products = events.capture, events.products
    if not products.height:
        return products
    calls = capture.launches.select("thread", "start_ns", "correlation").sort("start_ns")
    done = calls.join(capture.work, on="correlation", how="semi", maintain_order="left")
    found = products.sort("start_ns")
    for some, name in ((calls, "called_ns"), (done, "launched_ns")):
        moments = some.select("thread", "start_ns", pl.col("start_ns").alias(name))
        found = found.join_asof(
            moments, on="start_ns", by="thread", strategy="forward", check_sortedness=False
        )
    called, launched = (
        (pl.col(name) < pl.col("end_ns")).fill_null(value=False)
        for name in ("called_ns", "launched_ns")
    )
    return found.filter(launched | ~called).with_columns(launched=launched)


def _without_kernels(projection: Projection) -> Projection:
    """Return tasks that the host alone timed: what its operators took is no time of kernels."""
    unknown = pl.lit(None, pl.Int64)
    return msgspec.structs.replace(projection, tasks=projection.tasks.with_columns(busy_ns=unknown))


_PASSES: Final = [Kind.FORWARD.value, Kind.BACKWARD.value]
_BANNER: Final = r"^## \w+ ##$"
_HOW_BANNERS: Final = (
    "passes named as Meta's trainers do (## forward ##), which hold the whole model on each rank"
)


def _of_whole_models(tasks: pl.DataFrame) -> bool:
    """Say whether passes are those of trainers that know no pipeline: banners, and no transfers."""
    passes = tasks.filter(pl.col("kind").is_in(_PASSES))
    moves = tasks["kind"].is_in([kind.value for kind in TRANSFERS]).any()
    return bool(passes.height and passes["name"].str.contains(_BANNER).all() and not moves)


def _inferred(traces: Sequence[_Trace]) -> dict[str, str]:
    """Return what was told of the tasks of any trace by other things than names, and how."""
    ways: dict[str, dict[str, None]] = {}
    for trace in traces:
        for field, how in trace.inferred.items():
            ways.setdefault(field, {})[how] = None
    return {field: "; ".join(how) for field, how in ways.items()}


def _base(header: Header, first_ns: int) -> int | None:
    """Return what makes times absolute: stated, or nothing if they are absolute as they stand.

    Since 2024 times count from `baseTimeNanoseconds`; before that, from 1970.
    """
    if header.base_ns is not None:
        return header.base_ns
    return 0 if first_ns > EPOCH_2000_NS else None


def _rank(distributed: dict[str, Any], path: Path) -> int | None:
    stated = _whole(distributed.get("rank"))
    found = _RANK_IN_NAME.search(path.name)
    return _whole(int(found[1])) if stated is None and found else stated


def _device_name(properties: list[Any] | None, used: Sequence[int]) -> str | None:
    """Return what all devices that ran something call themselves; None if they differ."""
    told = [one for one in properties or [] if isinstance(one, dict)]
    names = {
        one["id"]: one["name"]
        for one in told
        if isinstance(one.get("id"), int) and isinstance(one.get("name"), str)
    }
    found = {names.get(device) or None for device in used}
    return found.pop() if len(found) == 1 else None


def _entries(value: Any) -> list[dict[str, Any]]:
    """Return the entries of a list that are objects; none if it is no list."""
    return [one for one in value if type(one) is dict] if isinstance(value, list) else []


def _whole(value: Any) -> int | None:
    """Return what can be a rank or a number of ranks, or None."""
    return value if type(value) is int and 0 <= value < RANKS else None


def _declaration(declared: Any) -> dict[str, Any]:
    """Return the job's `pp_info`, which `add_metadata` leaves as JSON inside JSON."""
    for _ in range(2):
        if isinstance(declared, str):
            try:
                declared = msgspec.json.decode(declared)
            except UNDECODABLE:
                return {}
    return declared if isinstance(declared, dict) else {}


def _declared(traces: Sequence[_Trace], *keys: str, kind: type) -> Any:
    """Return what all traces that say so agree on."""
    said = {
        trace.declared[key]
        for trace in traces
        for key in keys
        if isinstance(trace.declared.get(key), kind)
    }
    return said.pop() if len(said) == 1 else None


def _ranks(traces: Sequence[_Trace]) -> tuple[list[int], str | None]:
    """Return the rank of each trace, and how it was found unless they state it.

    Several traces may be windows of one rank's process.
    """
    stated = [trace.rank for trace in traces]
    if all(rank is None for rank in stated):
        place = _places(traces)
        order = sorted(traces, key=lambda trace: (trace.host or "", trace.process or 0))
        places = list(dict.fromkeys(place[trace.path] for trace in order))
        ranks = [places.index(place[trace.path]) for trace in traces]
        return ranks, "order of host name and process id"
    owner: dict[int, _Trace] = {}
    for trace in sorted(traces, key=lambda trace: trace.window_ns):
        if trace.rank is None:
            raise SourceError(
                trace.path,
                "does not state its rank, though other traces of the run do; put it in the file "
                "name (rank3.json) or leave the file out",
            )
        other = owner.get(trace.rank)
        if other is not None and (
            (other.process, other.host) != (trace.process, trace.host)
            or trace.window_ns[0] < other.window_ns[1]
        ):
            raise SourceError(
                trace.path,
                f"holds rank {trace.rank}, and so does {other.path}: two traces of one rank at "
                "the same time or of different processes; give only one of them",
            )
        if other is not None:
            _refuse_twice(trace, other)
        owner[trace.rank] = trace
    ranks = [trace.rank for trace in traces if trace.rank is not None]
    return ranks, None


def _refuse_twice(trace: _Trace, other: _Trace) -> None:
    """Refuse two traces of a process if both state a step of one number."""
    if trace.counted and other.counted:
        return
    steps, others = (one.projection.markers["step"].to_list() for one in (trace, other))
    refuse_steps_twice(trace.path, steps, other.path, others)


def _counted_on(traces: list[_Trace], ranks: Sequence[int]) -> list[_Trace]:
    """Count steps on from one trace of a rank to the next, where each counts its own.

    A trace in which nothing tells steps is one.

    Raises:
        SourceError: Ranks have not as many steps, so that nobody knows which is which.
    """
    several = max(Counter(ranks).values(), default=1) > 1
    counted = [trace.counted or not _tells_steps(trace) for trace in traces]
    if not several or not all(counted) or not any(trace.counted for trace in traces):
        return traces
    found, steps = {}, Counter[int]()
    for trace, rank in sorted(
        zip(traces, ranks, strict=True), key=lambda one: (one[1], one[0].window_ns)
    ):
        of = _numbered_from if trace.counted else _as_step
        found[trace.path] = of(trace, steps[rank])
        steps[rank] += trace.projection.markers["step"].n_unique() if trace.counted else 1
    few, most = min(steps.values()), max(steps.values())
    if few < most:
        raise SourceError(
            traces[0].path,
            f"was read with others that hold {few} steps of one rank and {most} of another, which "
            "nothing numbers: give traces of the same steps of all ranks",
        )
    return [found[trace.path] for trace in traces]


def _numbered_from(trace: _Trace, number: int) -> _Trace:
    """Return a trace whose steps are counted from a number on, not from 0."""
    step = pl.col("step") + number
    return msgspec.structs.replace(
        trace,
        projection=msgspec.structs.replace(
            trace.projection,
            tasks=trace.projection.tasks.with_columns(step),
            markers=trace.projection.markers.with_columns(step),
        ),
        spent=msgspec.structs.replace(trace.spent, windows=trace.spent.windows.with_columns(step)),
    )


def _recorded_apart(traces: list[_Trace], ranks: Sequence[int]) -> tuple[list[_Trace], str | None]:
    """Take the k-th trace of each rank for step k, if ranks have as many and nothing tells steps.

    A profiler that records again and again writes a trace each time; between two, nothing was recorded.

    Returns:
        The traces, and how their steps were found, if so.
    """
    often = set(Counter(ranks).values())
    if len(often) > 1 or often <= {1} or any(_tells_steps(trace) for trace in traces):
        return traces, None
    found, before = [], Counter[int]()
    for trace, rank in sorted(
        zip(traces, ranks, strict=True), key=lambda one: (one[1], one[0].window_ns)
    ):
        found.append(_as_step(trace, before[rank]))
        before[rank] += 1
    by_path = {trace.path: trace for trace in found}
    return [by_path[trace.path] for trace in traces], _HOW_APART


def _window(trace: _Trace) -> pl.DataFrame:
    """Return when the host was in the tasks of a trace, as a marker of a step without a number."""
    tasks, marker = trace.projection.tasks, trace.projection.markers.clear(1)
    begin, end = tasks["host_start_ns"].min(), tasks["host_end_ns"].max()
    marker = marker.with_columns(start_ns=pl.lit(begin, pl.Int64), end_ns=pl.lit(end, pl.Int64))
    return marker.drop_nulls(["start_ns", "end_ns"])


def _in_windows(number: _Number, markers: pl.DataFrame, windows: pl.DataFrame) -> _Numbered:
    """Number tasks, by windows if nothing else tells steps and ranks have several, and as many.

    Args:
        number: Numbers the tasks of all ranks, given markers of steps.
        markers: Those in the traces.
        windows: When each trace was recorded, likewise.
    """
    tasks, how, notices = number(markers)
    often = windows.group_by("rank").len()["len"].unique().to_list()
    if how.get("step") != ONE_STEP or len(often) != 1 or often == [1]:
        return tasks, how, notices
    tasks, how, notices = number(windows)
    return tasks, how | {"step": _HOW_APART}, notices


_HOW_APART: Final = "no sign of a step boundary: each trace of a rank taken as one step"


def _tells_steps(trace: _Trace) -> bool:
    """Say whether anything in a trace tells where steps begin: marks, passes or optimizers."""
    tasks = trace.projection.tasks
    signs = pl.col("step").is_not_null() | pl.col("kind").is_in([*_PASSES, Kind.OPTIMIZER.value])
    return bool(trace.projection.markers.height or tasks.filter(signs).height)


def _as_step(trace: _Trace, number: int) -> _Trace:
    """Return a trace all of which is one step, whose end was not recorded."""
    step = pl.lit(number, trace.projection.tasks.schema["step"])
    tasks = trace.projection.tasks.with_columns(step=step)
    table = trace.spent.table
    windows = table.group_by("process", "device").agg(
        pl.lit(number, pl.Int64).alias("step"),
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        open=pl.lit(value=True),
        host_ns=pl.lit(trace.window_ns[0] - (trace.base_ns or 0)),
    )
    return msgspec.structs.replace(
        trace,
        projection=msgspec.structs.replace(trace.projection, tasks=tasks),
        spent=msgspec.structs.replace(
            trace.spent, windows=windows.select(trace.spent.windows.columns)
        ),
    )


def _places(traces: Sequence[_Trace]) -> dict[str, tuple[str, int | None]]:
    """Return what tells each trace's process from others, by file.

    A process has one profiler at a time. So traces that overlap are of several processes of one number,
    as those of containers are, each of which has a 1; or they are one trace twice.

    Raises:
        SourceError: Two begin at the same nanosecond in the same process.
    """
    found: dict[str, tuple[str, int | None]] = {}
    last: dict[tuple[str, int | None], _Trace] = {}
    for trace in sorted(traces, key=lambda trace: trace.window_ns):
        other = last.get(trace.place)
        if other is not None and trace.window_ns[0] < other.window_ns[1]:
            if trace.window_ns[0] == other.window_ns[0]:
                raise SourceError(
                    trace.path,
                    f"begins with {other.path}, in the same process: if they are copies, give only one "
                    "of them; if they are of two ranks, put these in the file names (rank3.json)",
                )
            found[trace.path] = (trace.path, None)
            continue
        if other is not None:
            _refuse_twice(trace, other)
        found[trace.path] = trace.place
        last[trace.place] = trace
    return found


def _rank_table(traces: Sequence[_Trace], ranks: list[int]) -> pl.DataFrame:
    of: dict[int, set[str]] = {}
    for trace, rank in zip(traces, ranks, strict=True):
        sorts = of.setdefault(rank, set())
        if trace.projection.tasks.height:
            sorts.add(DEVICE if trace.on_device else HOST)
    rows = {
        rank: {
            "rank": rank,
            "host": trace.host or "unknown",
            "process": trace.process,
            "device": trace.contents.devices[0] if len(trace.contents.devices) == 1 else None,
            "device_name": trace.device_name,
            "timed": next(iter(of[rank])) if len(of[rank]) == 1 else None,
            **_coordinates(trace, rank),
        }
        for trace, rank in zip(traces, ranks, strict=True)
    }
    return pl.DataFrame(list(rows.values()), schema=RANK_SCHEMA)


def _coordinates(trace: _Trace, rank: int) -> dict[str, int]:
    """Return the rank's place in its data-, tensor- and context-parallel groups."""
    found: dict[str, int] = {}
    for group in trace.groups:
        words, members = str(group.get("pg_desc", "")).lower(), group.get("ranks")
        if isinstance(members, list) and rank in members:
            for axis, signs in _AXES.items():
                if any(words.startswith(sign) for sign in signs):
                    found.setdefault(axis, members.index(rank))
    return found


def _shifted(
    traces: Sequence[_Trace], ranks: list[int], frames: Sequence[pl.DataFrame]
) -> pl.DataFrame:
    """Join the tasks, markers or counters of all traces, in absolute time."""
    parts = zip(_offsets(traces), ranks, frames, strict=True)
    return pl.concat(
        shifted(frame, offset).with_columns(rank=pl.lit(rank, pl.Int32))
        for offset, rank, frame in parts
    )


def _offsets(traces: Sequence[_Trace]) -> list[int]:
    """Return what makes each trace's times absolute; those that do not say share the others'."""
    base = max((trace.base_ns or 0 for trace in traces), default=0)
    return [base if trace.base_ns is None else trace.base_ns for trace in traces]


def _contents(traces: Sequence[_Trace], ranks: list[int]) -> list[Contents]:
    """Return what the traces hold, and where each stands on the run's clock."""
    parts = zip(_offsets(traces), ranks, traces, strict=True)
    return [
        msgspec.structs.replace(trace.contents, rank=rank, offset_ns=offset)
        for offset, rank, trace in parts
    ]


def _spent(traces: Sequence[_Trace], ranks: list[int]) -> Spent:
    parts = zip(_offsets(traces), ranks, traces, strict=True)
    return joined(
        [
            trace.spent.by_rank(offset, pl.DataFrame({"rank": [rank]}, schema={"rank": pl.Int32}))
            for offset, rank, trace in parts
        ]
    )


def _clock_notices(traces: Sequence[_Trace]) -> list[Notice]:
    """Return what to be wary of when times of several traces are compared."""
    notices = []
    unknown = [trace for trace in traces if trace.base_ns is None and trace.window_ns[1]]
    if unknown:
        lost, total = len(unknown), len(traces)
        text = (
            f"{lost} of {total} traces do not state when their clock began, so they are taken to share "
            "the others'"
        )
        if lost == total:
            whose = "the traces do" if total > 1 else "the trace does"
            text = f"{whose} not state when the clock began, so times count from an unknown moment"
        notices.append(Notice("no-absolute-time", text, lost, total))
    absolute = [trace for trace in traces if trace.base_ns is not None and trace.window_ns[1]]
    notices += implausible_clock({trace.path: trace.window_ns[0] for trace in absolute})
    hosts = {trace.host for trace in traces}
    if len(hosts) > 1:
        notices.append(clocks_unchecked(len(hosts)))
    return notices


def _file_notices(traces: Sequence[_Trace]) -> list[Notice]:
    """Return what could not be read of each file."""
    notices = []
    for trace in traces:
        lost, name = trace.losses, trace.path
        if lost.torn:
            doubt = ": where devices seem idle, they may have worked" if trace.on_device else ""
            text = (
                f"{name} ends in the middle: its last {lost.torn_bytes} of {lost.size} bytes were "
                f"dropped, and events the profiler had still to write are missing{doubt}"
            )
            notices.append(Notice("torn-tail", text, lost.torn_bytes, lost.size))
        if lost.checksum:
            text = (
                f"{name} does not match its gzip checksum: it was damaged after it was written, and "
                "any number in it may be wrong"
            )
            notices.append(Notice("wrong-checksum", text))
        if lost.events:
            text = f"{lost.events} events of {name} are damaged and were dropped"
            notices.append(Notice("unreadable-events", text, lost.events))
        if lost.repaired:
            text = (
                f"{lost.repaired} events of {name} were not as PyTorch writes them (NaN, bad escapes "
                "or bytes, ids that are fractions) and were mended"
            )
            notices.append(Notice("repaired-events", text, lost.repaired))
        total = sum(trace.contents.counts.values())
        notices += impossible_times(trace.impossible, total, "events", name)
        notices += repeated_work(trace.repeated, total, name)
    return notices


def _task_notices(traces: Sequence[_Trace]) -> list[Notice]:
    on_device = [trace.projection for trace in traces if trace.on_device]
    on_host = [trace.projection for trace in traces if not trace.on_device]
    return losses(on_device, "kernels, copies and fills") + losses(on_host, "operators")


def _unread(traces: Sequence[_Trace]) -> list[Notice]:
    """Name the events of traces without a device's work that nobody reads: they may be a device's."""
    found: Counter[str] = Counter()
    for trace in traces:
        if not trace.on_device:
            found.update(trace.unread)
    if not found:
        return []
    events = ", ".join(f"{count:,} of {name}" for name, count in sorted(found.items()))
    text = (
        "no work of a device is known in traces that hold events which bubblescope does not read "
        f"({events})"
    )
    return [Notice("events-not-read", text, found.total())]


def _blank(traces: Sequence[_Trace]) -> list[Notice]:
    """Say what to do for more than steps, or one task, of each device."""
    blank = [trace for trace in traces if trace.blank]
    tasks = any(trace.projection.tasks.height for trace in traces)
    return [_no_tasks(blank)] if blank and tasks else []


_LOST: Final = (
    "none of them launched anything, or the profiler lost it, as where another tool traces the device "
    "too; if it did, trace again without that tool"
)
_ACTIVITIES: Final = ("ProfilerActivity.CPU", "ProfilerActivity.CUDA")


def _lacking(traces: Sequence[_Trace]) -> str:
    """Say what to do where nothing is known to have run in ranges that name tasks."""
    on = {option for trace in traces for option in trace.contents.options}
    if on.issuperset(_ACTIVITIES):
        return "put them around what launches the work, in its thread"
    return f"profile with activities=[{', '.join(_ACTIVITIES)}]"


def _no_tasks(traces: Sequence[_Trace]) -> Notice:
    if known := sum(trace.untimed for trace in traces):
        return Notice(
            "no-device-work",
            f"no task could be timed: nothing is known to have run in its {known} pipeline ranges; "
            f"{_lacking(traces)}",
            known,
            known,
        )
    calls = sum(trace.contents.counts.get("calls", 0) for trace in traces)
    if calls and not any(trace.on_device for trace in traces):
        return Notice(
            "no-device-work",
            f"the traces hold {calls:,} calls of a device's runtime, and nothing that a device did: "
            f"{_LOST}",
            calls,
            calls,
        )
    names = [shape for trace in traces for shape in trace.contents.names]
    said = (
        f"none of its {sum(shape.count for shape in names)} record_function ranges "
        f"({len({shape.shape for shape in names})} different names) is one that bubblescope knows; "
        "see them with `bubblescope names` and describe yours with --names"
        if names
        else "it has no record_function ranges; put `bubblescope record --marks torch --` before the "
        "command that profiles the job, or mark its forwards and backwards with them"
    )
    return Notice("no-pipeline-ranges", f"no pipeline tasks were found: {said}")
