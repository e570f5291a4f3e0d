"""Runs that lie in several exports, each of some processes of one host, become one timeline.

Profilers that trace whole processes (Nsight Systems, rocprofv3) leave such exports. What is each
vendor's own, its schema, its clocks and the advice where something is missing, stays with its source.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope.model.counters import COUNTER_SCHEMA
from bubblescope.model.errors import SourceError
from bubblescope.model.kinds import Kind
from bubblescope.model.provenance import Contents, Notice
from bubblescope.model.timing import DEVICE
from bubblescope.sources import numbering
from bubblescope.sources.assembly import assembled
from bubblescope.sources.clock_shift import shifted
from bubblescope.sources.device_spending import joined, spent
from bubblescope.sources.emit_nvtx import parts
from bubblescope.sources.inventory import name_shapes
from bubblescope.sources.projection import losses, project
from bubblescope.sources.unnamed_tasks import tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bubblescope.model.timeline import Timeline
    from bubblescope.names.parser import NameParser
    from bubblescope.sources.capture import Capture
    from bubblescope.sources.device_spending import Spent
    from bubblescope.sources.projection import Projection

UNKNOWN: Final = -1
"""Stands for a process or correlation id that a row does not have; no real one is negative."""

_PLACE: Final = ("export", "process", "device")
"""What identifies a rank within the traces: device ordinals are each process's own, since
CUDA_VISIBLE_DEVICES renumbers them."""


DEVICE_NAMES: Final = {"process": pl.Int64, "device": pl.Int32, "device_name": pl.String}
"""What the devices of processes call themselves; null where that is not known."""


class Export(msgspec.Struct, frozen=True):
    """What one export says of itself; its events are a `Capture`.

    Attributes:
        path: Where it lies, as the user named it.
        host: Machine name; "unknown" if it does not say.
        version: Version of the program or schema that wrote it.
        counts: Frame with process, device (null for host events), what ("kernels", "calls", ...)
            and count.
        names: Frame with process, name and count of its ranges.
        counters: Frame with process, device, name, unit, time_ns and value, in its own time.
        device_names: Frame with the columns of `DEVICE_NAMES`.
        options: As of `Contents`.
    """

    path: str
    host: str
    version: str | None
    counts: pl.DataFrame
    names: pl.DataFrame
    counters: pl.DataFrame
    device_names: pl.DataFrame
    options: tuple[str, ...]


def pid(process: int) -> int:
    """Return the operating system's process id of a process key, which holds it in its low bits."""
    return process & 0xFFFFFF


def counted(events: pl.DataFrame, what: str) -> pl.DataFrame:
    """Count the rows of each process, and of each of its devices for work on devices."""
    device = "device" if "device" in events.columns else pl.lit(None, pl.Int32).alias("device")
    found = events.group_by("process", device).agg(count=pl.len())
    return found.select("process", "device", "count", what=pl.lit(what))


_BESIDE: Final = (Kind.OPTIMIZER, Kind.COLLECTIVE, Kind.DATA, Kind.GC, Kind.OTHER)
"""Kinds of tasks that other jobs than pipelines have as well."""


def of_pipeline(kind: Kind) -> bool:
    """Say whether ranges of a kind are a pipeline's: passes and transfers between its stages."""
    return kind not in _BESIDE


class Clues(msgspec.Struct, frozen=True):
    """What tells phases where no range names a pass.

    Attributes:
        ranges: Frame with the columns of `emitted.EMITTED`.
        engine_threads: Threads that are autograd's by their names.
    """

    ranges: pl.DataFrame
    engine_threads: pl.Series


class Made(msgspec.Struct, frozen=True):
    """What was made of the events of one export.

    Attributes:
        projection: Its tasks.
        spent: What its devices spent their time on.
        inferred: What was told of its tasks by other things than their names -> how.
        named: Whether names of ranges told its tasks.
        untimed: Number of ranges that name tasks, where none of them could be timed.
    """

    projection: Projection
    spent: Spent
    inferred: dict[str, str]
    named: bool
    untimed: int


class Makings(msgspec.Struct, frozen=True):
    """What can be made of one export; which counts is known once all are read.

    Attributes:
        pipelined: Whether names of its ranges tell passes of a pipeline.
        named: What was made of the names of its ranges; None if it cannot count.
        told: What was made where no names tell passes; None if names do, so that it cannot count.
    """

    pipelined: bool
    named: Made | None
    told: Made | None


class Maker(msgspec.Struct, frozen=True):
    """Makes tasks of exports, each by itself; runs in any process.

    Attributes:
        names: What range names mean.
        several: Whether there may be more than one export.
    """

    names: NameParser
    several: bool

    def make(self, capture: Capture, clues: Clues) -> Makings:
        """Make tasks of one export."""
        projection = project(capture, self.names)
        untimed = 0 if projection.tasks.height else projection.ranges
        pipelined = any(map(of_pipeline, map(Kind, projection.tasks["kind"].unique())))
        named = told = None
        if pipelined or self.several or not capture.work.height:
            named = _made(capture, projection, {}, named=True, untimed=untimed)
        if not pipelined and capture.work.height:
            found = tell(parts(capture, clues.ranges, clues.engine_threads), capture, self.names)
            told = _made(capture, found.projection, found.how, named=False, untimed=untimed)
        elif not pipelined:
            told = named
        return Makings(pipelined, named, told)


def _made(
    capture: Capture, projection: Projection, how: dict[str, str], *, named: bool, untimed: int
) -> Made:
    budget = spent(capture, projection.tasks, projection.markers, projection.owners)
    bare = msgspec.structs.replace(projection, owners=None)  # which are as long as the kernels
    return Made(bare, budget, how, named=named, untimed=untimed)


def chosen_of(makings: Sequence[Makings]) -> list[Made]:
    """Return what was made of each export.

    Names of passes are believed alone, wherever any export has some: others of the run then have the
    tasks that are named in them.
    """
    pipelined = any(one.pipelined for one in makings)
    chosen = [one.named if pipelined else one.told for one in makings]
    return [one for one in chosen if one is not None]


def no_tasks(
    exports: Sequence[Export],
    made: Sequence[Made],
    *,
    kind: str,
    timed: str,
    unknown: str,
    none: str,
) -> Notice:
    """Return why exports have no tasks of a pipeline.

    Args:
        exports: What each says of itself.
        made: What was made of the events of each.
        kind: What the vendor calls its ranges.
        timed: What to do where device work is missing.
        unknown: What to do where no range is known, as the sentence goes on.
        none: What to do where there are no ranges, as the sentence goes on.
    """
    if known := sum(one.untimed for one in made):
        return Notice(
            "no-device-work",
            f"no task could be timed: no device work is known to be launched in its {known} pipeline "
            f"ranges; {timed}",
            known,
            known,
        )
    if all(export.counts["device"].is_null().all() for export in exports):
        return Notice(
            "no-device-work", f"the traces hold no kernels, copies or fills of any device; {timed}"
        )
    ranges = sum(export.names["count"].sum() for export in exports)
    kinds = sum(export.names["name"].n_unique() for export in exports)
    said = (
        f"none of its {ranges} {kind} ranges ({kinds} different names) is one that bubblescope "
        f"knows{unknown}"
        if ranges
        else f"it has no {kind} ranges{none}"
    )
    return Notice("no-pipeline-ranges", f"no pipeline tasks were found: {said}")


def one_run(
    source: str,
    exports: Sequence[Export],
    made: Sequence[Made],
    names: NameParser,
    *,
    offsets: Sequence[int],
    work: str,
    nothing: Callable[[], Notice],
    notices: Iterable[Notice] = (),
    common_clock: bool = True,
    groups: Callable[[pl.DataFrame], pl.DataFrame] | None = None,
    **declared: Any,
) -> Timeline:
    """Return the timeline of all exports of a run.

    Args:
        source: Name of the format.
        exports: What each says of itself.
        made: What was made of the events of each.
        names: What range names mean.
        offsets: What to add to each export's times to put all on one clock, in nanoseconds.
        work: What the exports' device work consists of, in the plural.
        nothing: Says why there are no tasks of a pipeline, if there are none.
        notices: What was dropped, repaired or assumed before.
        common_clock: Whether the exports then share one.
        groups: Returns the communication groups, with the columns of `GROUP_SCHEMA`, given the place of
            each rank: a frame with export, process, device and rank.
        declared: As for `assembled`.

    Raises:
        SourceError: Two exports are of one process, or what they hold contradicts itself.
    """
    projections = [one.projection for one in made]
    if not any(one.named or one.projection.pipelined for one in made) and any(
        one.projection.tasks.height for one in made
    ):
        notices = (*notices, nothing())
    tasks, markers, counters = _gather(exports, projections, offsets)
    ranks, how_rank = _ranks(exports, tasks, markers)
    place = ranks.select(*_PLACE, "rank")
    markers = markers.drop("rank").join(place, on=_PLACE[:2])
    return assembled(
        source,
        # One file may hold several.
        list(dict.fromkeys((export.version, export.path) for export in exports)),
        tasks.drop("rank").join(place, on=_PLACE),
        _named(ranks, exports).select(
            "rank", "host", "device", "device_name", "stages", process="pid"
        ),
        notices=(*notices, *losses(projections, work), *_without_tasks(exports, tasks)),
        contents=(held for export in exports for held in _contents(export, names)),
        nothing=nothing,
        number=lambda tasks: numbering.number(
            tasks, markers, common_clock=common_clock, passes=names.passes
        ),
        inferred=_inferred(made) | ({"rank": how_rank} if how_rank else {}),
        spent=joined(
            [
                one.spent.by_rank(offsets[index], place.filter(export=index).drop("export"))
                for index, one in enumerate(made)
            ]
        ),
        tables={
            "counters": counters.join(place, on=_PLACE).select(*COUNTER_SCHEMA),
            **({"groups": groups(place)} if groups else {}),
        },
        common_clock=common_clock,
        timed=DEVICE,
        **declared,
    )


def _without_tasks(exports: Sequence[Export], tasks: pl.DataFrame) -> list[Notice]:
    """Return a warning if devices ran kernels, and no task is known of them, though it is of others."""
    if not tasks.height:
        return []
    worked = pl.concat(
        export.counts.drop_nulls("device")
        .filter(pl.col("process") != UNKNOWN, pl.col("what") == "kernels")
        .select(pl.lit(index, pl.Int32).alias("export"), "process", "device")
        .unique()
        for index, export in enumerate(exports)
    )
    lacking = worked.join(tasks, on=_PLACE, how="anti").sort(_PLACE)
    if not lacking.height:
        return []
    index, process, device = lacking.row(0)
    text = (
        f"{lacking.height} of {worked.height} devices ran kernels that no known range launched (device "
        f"{device} of process {pid(process)} on {exports[index].host} is the first): they are left "
        "out, and it is not known when others waited for them; trace and mark all processes alike"
    )
    return [Notice("devices-without-tasks", text, lacking.height, worked.height)]


def _inferred(made: Sequence[Made]) -> dict[str, str]:
    """Return what was told of the tasks of any export by other things than names, and how."""
    ways: dict[str, dict[str, None]] = {}
    for one in made:
        for field, how in one.inferred.items():
            ways.setdefault(field, {})[how] = None
    return {field: "; ".join(how) for field, how in ways.items()}


def _gather(
    exports: Sequence[Export],
    projections: Sequence[Projection],
    offsets: Sequence[int],
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Put the tasks, step markers and counters of all exports into frames, on one clock."""

    def moved(frame: pl.DataFrame, index: int) -> pl.DataFrame:
        return shifted(frame, offsets[index]).with_columns(export=pl.lit(index, pl.Int32))

    indices = range(len(exports))
    return (
        pl.concat([moved(projections[index].tasks, index) for index in indices]),
        pl.concat([moved(projections[index].markers, index) for index in indices]),
        pl.concat([moved(exports[index].counters, index) for index in indices]),
    )


def _ranks(
    exports: Sequence[Export],
    tasks: pl.DataFrame,
    markers: pl.DataFrame,
) -> tuple[pl.DataFrame, str | None]:
    """Number the ranks: as step markers name them, else by host, device and process."""
    if tasks.height:
        places = tasks.select(_PLACE).unique()
    else:
        places = pl.concat(
            export.counts.drop_nulls("device")
            .filter(pl.col("process") != UNKNOWN)
            .select("process", "device", export=pl.lit(index, pl.Int32))
            .unique()
            for index, export in enumerate(exports)
        ).select(_PLACE)
    keyed = sorted(
        places.rows(),
        key=lambda place: (_natural(exports[place[0]].host), place[2], place[1], place[0]),
    )
    seen: dict[tuple[str, int, int], int] = {}
    for index, process, device in keyed:
        export = exports[index]
        other = seen.setdefault((export.host, pid(process), device), index)
        if other != index:
            raise SourceError(
                export.path,
                f"holds process {pid(process)}, device {device} of host {export.host}, and so does "
                f"{exports[other].path}: two traces of one rank; give only one of them",
            )
    ranks = pl.DataFrame(keyed, schema=places.schema, orient="row").with_columns(
        rank=pl.int_range(pl.len(), dtype=pl.Int32),
        host=pl.Series([exports[index].host for index, _, _ in keyed], dtype=pl.String),
        pid=pl.Series([pid(process) for _, process, _ in keyed], dtype=pl.Int64),
        stages=pl.lit(None, pl.List(pl.Int32)),
    )
    named = (
        pl.concat([frame.select(*_PLACE[:2], "rank") for frame in (tasks, markers)])
        .drop_nulls("rank")
        .unique()
    )
    matched = ranks.drop("rank").join(named, on=_PLACE[:2], how="left")
    if (
        matched.height == ranks.height
        and matched["rank"].null_count() == 0
        and matched["rank"].is_unique().all()
    ):
        ranks, how = matched.with_columns(pl.col("rank").cast(pl.Int32)), None
    else:
        how = "order of host name, device and process id"
    return ranks, how


def _named(ranks: pl.DataFrame, exports: Sequence[Export]) -> pl.DataFrame:
    """Add what the device of each rank calls itself."""
    names = [
        export.device_names.with_columns(export=pl.lit(index, pl.Int32))
        for index, export in enumerate(exports)
    ]
    return ranks.join(pl.concat(names).unique(_PLACE), on=_PLACE, how="left", maintain_order="left")


def _natural(text: str) -> list[tuple[int, str]]:
    """Sort key that puts node2 before node10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", text)]


def _contents(export: Export, names: NameParser) -> list[Contents]:
    """Take stock of each process: rows of each kind, devices, and the shapes of its range names."""
    held = []
    for (key,), counts in export.counts.group_by("process", maintain_order=True):
        if key == UNKNOWN:
            continue
        totals = counts.group_by("what", maintain_order=True).agg(pl.col("count").sum())
        held.append(
            Contents(
                path=export.path,
                host=export.host,
                process=pid(key),
                devices=tuple(counts["device"].drop_nulls().unique().sort()),
                counts=dict(totals.iter_rows()),
                names=name_shapes(export.names.filter(process=key), names.parse),
                options=export.options,
            ),
        )
    return sorted(held, key=lambda content: content.process or 0)
