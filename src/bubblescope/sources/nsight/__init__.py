"""Nsight Systems exports: `.sqlite`, `parquetdir`, and `.nsys-rep` where `nsys` is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model.counters import COUNTER_SCHEMA
from bubblescope.model.errors import SourceError
from bubblescope.model.provenance import Contents, Notice, clocks_unchecked
from bubblescope.sources import numbering
from bubblescope.sources.assembly import assembled
from bubblescope.sources.inventory import name_shapes
from bubblescope.sources.nsight.read_export import UNKNOWN, Export, pid, read_export
from bubblescope.sources.nsight.tables import EVENTS, ParquetTables, SqliteExport
from bubblescope.sources.projection import Capture, Projection, losses, project
from bubblescope.sources.sqlite import MAGIC, table_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bubblescope.model.progress import Progress
    from bubblescope.model.timeline import Timeline
    from bubblescope.names.parser import NameParser
    from bubblescope.sources.source import ReadOptions

_SIGNS: Final = (b"META_DATA_EXPORT", b"EXPORT_META_DATA", b"CUPTI_ACTIVITY_KIND", b"NVTX_EVENTS")
_HEAD: Final = 1 << 18
_REPORTS: Final = (".nsys-rep", ".qdrep")
_PLACE: Final = ("export", "process", "device")
"""What identifies a rank within the traces: device ordinals are each process's own, since
CUDA_VISIBLE_DEVICES renumbers them."""


class NsightSource:
    """Reads Nsight Systems exports, one or many, of one or many hosts."""

    name = "nsight"
    summary = "Nsight Systems exports (.sqlite, parquetdir folders, .nsys-rep)"

    def detect(self, path: Path) -> bool:
        """Recognise an export by its first bytes, a folder by its table of metadata."""
        if path.is_dir():
            return (path / "META_DATA_EXPORT.parquet").exists() or (
                path / "StringIds.parquet"
            ).exists()
        if path.suffix in _REPORTS:
            return True
        try:
            with path.open("rb") as file:
                head = file.read(_HEAD)
        except OSError:
            return False
        if not head.startswith(MAGIC):
            return False
        # The names of its tables usually lie in the first pages; SQLite knows where else.
        return any(sign in head for sign in _SIGNS) or bool(table_names(path) & {*EVENTS})

    def read(self, paths: Sequence[Path], options: ReadOptions) -> Timeline:
        """Read all exports of one run onto one clock.

        Raises:
            SourceError: An export is damaged, or a report cannot be exported.
        """
        exports, projections = [], []
        for path in _without_twins(paths):  # only one export's events are in memory at a time
            export, capture = _read(path, options.progress)
            exports.append(export)
            projections.append(project(capture, options.names))
        offsets, notices = _offsets(exports)
        tasks, markers, counters = _gather(exports, projections, offsets)
        ranks, how_rank = _ranks(exports, tasks, markers)
        place = ranks.select(*_PLACE, "rank")
        markers = markers.drop("rank").join(place, on=_PLACE[:2])
        return assembled(
            "nsight",
            [(export.version, export.path) for export in exports],
            tasks.drop("rank").join(place, on=_PLACE),
            ranks.select("rank", "host", "device", "stages", process="pid"),
            notices=(
                *notices,
                *_unplaced(exports),
                *losses(projections, "kernels, copies and fills"),
            ),
            contents=(held for export in exports for held in _contents(export, options.names)),
            nothing=lambda: _no_tasks(exports, projections),
            number=lambda tasks: numbering.number(tasks, markers),
            inferred={"rank": how_rank} if how_rank else {},
            counters=counters.join(place, on=_PLACE).select(*COUNTER_SCHEMA),
        )


def _without_twins(paths: Sequence[Path]) -> list[Path]:
    """Leave out reports whose export is there too: `nsys stats` leaves both side by side."""
    exported = {path.with_suffix("") for path in paths if path.suffix not in _REPORTS}
    return [
        path
        for path in paths
        if path.suffix not in _REPORTS or path.with_suffix("") not in exported
    ]


def _read(path: Path, progress: Progress) -> tuple[Export, Capture]:
    """Open whichever container the export lies in and read it."""
    tables: SqliteExport | ParquetTables
    if path.is_dir():
        tables = ParquetTables(path, progress)
        progress.begin(f"reading {path.name}", tables.size())
        return read_export(tables, str(path))
    with _as_sqlite(path, progress) as file:
        tables = SqliteExport(file, progress)
        progress.begin(f"reading {path.name}", tables.size())
        return read_export(tables, str(path))


@contextmanager
def _as_sqlite(path: Path, progress: Progress) -> Iterator[Path]:
    """Yield the SQLite export of a report, made by the user's own `nsys` if there is none yet."""
    if path.suffix not in _REPORTS:
        yield path
        return
    nsys = shutil.which("nsys")
    if nsys is None:
        raise SourceError(
            path,
            "is an Nsight Systems report, which only `nsys` can open, and `nsys` is not on the PATH; "
            f"run `nsys export --type sqlite {path.name}` where it is, and give the .sqlite file",
        )
    progress.begin(f"exporting {path.name} with nsys", None)
    with tempfile.TemporaryDirectory(prefix="bubblescope-") as folder:
        file = Path(folder) / f"{path.stem}.sqlite"
        done = subprocess.run(
            [nsys, "export", "--type=sqlite", f"--output={file}", "--force-overwrite=true", path],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not file.exists():
            said = (done.stderr or done.stdout).strip().splitlines()
            reason = said[-1] if said else f"exit code {done.returncode}"
            raise SourceError(path, f"could not be exported by `nsys export`: {reason}")
        yield file


def _offsets(exports: list[Export]) -> tuple[list[int], list[Notice]]:
    """Return what to add to each export's times to put all on UTC, and what to be wary of."""
    notices = []
    if any(export.clock.utc_ns is None for export in exports):
        text = "times count from the start of the capture"
        if len(exports) > 1:
            text = (
                "the exports are not aligned with each other: bubble rates across them mean nothing"
            )
        notices.append(Notice("no-absolute-time", f"an export has no absolute time, so {text}"))
        return [0] * len(exports), notices
    by_host: dict[str, list[Export]] = {}
    for export in exports:
        by_host.setdefault(export.host, []).append(export)
    if len(by_host) > 1:
        notices.append(
            clocks_unchecked(len(by_host)),
        )
    offsets = []
    for export in exports:
        clock, first = export.clock, by_host[export.host][0].clock
        offset = clock.utc_ns
        if clock.monotonic_ns is not None and first.monotonic_ns is not None:
            # One host, one monotonic clock: better than comparing its UTC at two moments.
            offset = (first.utc_ns or 0) + clock.monotonic_ns - first.monotonic_ns
        offsets.append(offset or 0)
    return offsets, notices


def _unplaced(exports: list[Export]) -> list[Notice]:
    without = [export.path for export in exports if export.unplaced_metrics]
    if not without:
        return []
    text = (
        f"{len(without)} of {len(exports)} exports do not say which GPU each process used "
        f"({without[0]}), so GPU metrics were left out; newer versions of nsys say it"
    )
    return [Notice("unplaced-metrics", text, len(without), len(exports))]


def _gather(
    exports: list[Export],
    projections: list[Projection],
    offsets: list[int],
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Put the tasks, step markers and counters of all exports into frames, in absolute time."""

    def shifted(frame: pl.DataFrame, index: int) -> pl.DataFrame:
        times = [name for name in frame.columns if name.endswith("_ns") and name != "busy_ns"]
        return frame.with_columns(pl.col(times) + offsets[index], export=pl.lit(index, pl.Int32))

    indices = range(len(exports))
    return (
        pl.concat([shifted(projections[index].tasks, index) for index in indices]),
        pl.concat([shifted(projections[index].markers, index) for index in indices]),
        pl.concat([shifted(exports[index].counters, index) for index in indices]),
    )


def _ranks(
    exports: list[Export],
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
    seen: dict[tuple[str, int, int], str] = {}
    for index, process, device in keyed:
        export = exports[index]
        other = seen.setdefault((export.host, pid(process), device), export.path)
        if other != export.path:
            raise SourceError(
                export.path,
                f"holds process {pid(process)}, device {device} of host {export.host}, and so does "
                f"{other}: two traces of one rank; give only one of them",
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


def _natural(text: str) -> list[tuple[int, str]]:
    """Sort key that puts node2 before node10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", text)]


def _no_tasks(exports: list[Export], projections: list[Projection]) -> Notice:
    if known := sum(projection.ranges for projection in projections):
        return Notice(
            "no-device-work",
            f"no task could be timed: no device work is known to be launched in its {known} pipeline "
            "ranges; profile with `--trace=cuda,nvtx`",
            known,
            known,
        )
    ranges = sum(export.names["count"].sum() for export in exports)
    kinds = sum(export.names["name"].n_unique() for export in exports)
    said = (
        f"none of its {ranges} NVTX ranges ({kinds} different names) is one that bubblescope knows; "
        "see them with `bubblescope names` and describe yours with --names"
        if ranges
        else "it has no NVTX ranges; profile with `--trace=cuda,nvtx` and mark the job's tasks"
    )
    return Notice("no-pipeline-ranges", f"no pipeline tasks were found: {said}")


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
            ),
        )
    return sorted(held, key=lambda content: content.process or 0)
