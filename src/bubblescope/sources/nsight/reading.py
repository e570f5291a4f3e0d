"""From the Nsight Systems exports of all hosts to the timeline of their run."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from bubblescope.model.errors import SourceError
from bubblescope.model.progress import SILENT
from bubblescope.model.provenance import Notice, clocks_unchecked
from bubblescope.sources.nsight.nccl_kernels import groups_of_run
from bubblescope.sources.nsight.read_export import NsightExport, read_export
from bubblescope.sources.nsight.tables import ParquetTables, SqliteExport
from bubblescope.sources.nsight.tool_names import REPORTS
from bubblescope.sources.parallel import read_each
from bubblescope.sources.plausibility import (
    impossible_times,
    repeated_work,
    without_impossible_work,
    without_repeated_work,
)
from bubblescope.sources.process_exports import Maker, Makings, chosen_of, no_tasks, one_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bubblescope.model.progress import Progress
    from bubblescope.model.timeline import Timeline
    from bubblescope.names.parser import NameParser
    from bubblescope.sources.capture import Capture
    from bubblescope.sources.process_exports import Clues
    from bubblescope.sources.source import ReadOptions

_MARKED: Final = (
    "put `bubblescope record --marks nvtx --` before the command that profiles it: `bubblescope record "
    "--marks nvtx -- nsys profile --trace=cuda,nvtx ... torchrun ...` (docs/nsight.md)"
)
"""The shortest way to a trace with pipeline tasks, for a job that is not to be edited."""
_RECORDED_NONE: Final = (
    "CUDA was traced, so that nothing ran on a device meanwhile, or nsys lost it: see its messages "
    "(Diagnostics Summary), and leave out other tools that trace the device"
)
_UNKNOWN: Final = (
    ". If some are forwards and backwards (`bubblescope names` lists them), describe them with "
    f"--names. If the job marks none, as with Megatron's --profile alone, {_MARKED}"
)


def read_exports(paths: Sequence[Path], options: ReadOptions) -> Timeline:
    """Read all exports of one run onto one clock.

    Raises:
        SourceError: An export is damaged, or a report cannot be exported.
    """
    chosen = _without_twins(paths)
    reader = _Reader(
        Maker(options.names, several=len(chosen) > 1), options.names, options.activities
    )
    read = read_each(reader, chosen, options, what="reading exports")
    exports = [export for export, _, _ in read]
    made = chosen_of([one for _, one, _ in read])
    offsets, notices = _offsets(exports)
    return one_run(
        "nsight",
        exports,
        made,
        options.names,
        offsets=offsets,
        work="kernels, copies and fills",
        nothing=lambda: no_tasks(
            exports,
            made,
            kind="NVTX",
            timed=_RECORDED_NONE
            if all("cuda" in export.options for export in exports)
            else "profile with `--trace=cuda,nvtx`",
            unknown=_UNKNOWN,
            none=f"; {_MARKED}",
        ),
        notices=(
            *notices,
            *(notice for _, _, dropped in read for notice in dropped),
            *_unplaced(exports),
            *_unowned(exports),
        ),
        groups=lambda places: groups_of_run([export.nccl for export in exports], places),
    )


def by_host(paths: Sequence[Path]) -> list[list[Path]]:
    """Return exports host by host; all together if one is a report, which only `nsys` can open.

    Raises:
        SourceError: An export is damaged.
    """
    if any(path.suffix in REPORTS for path in paths):
        return [list(paths)]
    hosts: dict[str, list[Path]] = {}
    for path in paths:
        kind = ParquetTables if path.is_dir() else SqliteExport
        said = kind(path, SILENT).texts("TARGET_INFO_SYSTEM_ENV", ["name", "value"])
        host = dict(said.iter_rows()).get("Hostname") or ""
        hosts.setdefault(host, []).append(path)
    return list(hosts.values())


def _without_twins(paths: Sequence[Path]) -> list[Path]:
    """Leave out reports whose export is there too: `nsys stats` leaves both side by side."""
    exported = {path.with_suffix("") for path in paths if path.suffix not in REPORTS}
    return [
        path for path in paths if path.suffix not in REPORTS or path.with_suffix("") not in exported
    ]


class _Reader(msgspec.Struct, frozen=True):
    """Reads one export; runs in any process.

    Attributes:
        maker: Makes tasks of its events.
        names: What range names mean.
        activities: Whether to keep the kernels.
    """

    maker: Maker
    names: NameParser
    activities: bool

    def __call__(
        self, path: Path, progress: Progress
    ) -> tuple[NsightExport, Makings, list[Notice]]:
        export, capture, clues = self._read(path, progress)
        total = capture.work.height
        capture, lost = without_impossible_work(capture)
        capture, again = without_repeated_work(capture)
        dropped = [
            *impossible_times(lost, total, "kernels, copies and fills", str(path)),
            *repeated_work(again, total, str(path)),
        ]
        return export, self.maker.make(capture, clues), dropped

    def _read(self, path: Path, progress: Progress) -> tuple[NsightExport, Capture, Clues]:
        """Open whichever container the export lies in and read it."""
        tables: SqliteExport | ParquetTables
        if path.is_dir():
            tables = ParquetTables(path, progress)
            progress.begin(f"reading {path.name}", tables.size())
            return read_export(tables, str(path), self.names, kernels=self.activities)
        with _as_sqlite(path, progress) as file:
            tables = SqliteExport(file, progress)
            progress.begin(f"reading {path.name}", tables.size())
            return read_export(tables, str(path), self.names, kernels=self.activities)


@contextmanager
def _as_sqlite(path: Path, progress: Progress) -> Iterator[Path]:
    """Yield the SQLite export of a report, made by the user's own `nsys` if there is none yet."""
    if path.suffix not in REPORTS:
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


def _offsets(exports: list[NsightExport]) -> tuple[list[int], list[Notice]]:
    """Return what to add to each export's times to put all on UTC, and what to be wary of."""
    notices = []
    if any(export.clock.utc_ns is None for export in exports):
        text = "times count from the start of the capture"
        if len(exports) > 1:
            text = "the exports are not aligned: bubble rates across them are meaningless"
        notices.append(Notice("no-absolute-time", f"an export has no absolute time, so {text}"))
        return [0] * len(exports), notices
    by_host: dict[str, list[NsightExport]] = {}
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


def _unowned(exports: list[NsightExport]) -> list[Notice]:
    """Say that device work of several processes cannot be told apart."""
    lost = sum(export.unowned for export in exports)
    if not lost:
        return []
    paths = [export.path for export in exports if export.unowned]
    text = (
        f"{lost} kernels, copies and fills of {', '.join(paths)} do not state their process "
        "(globalPid), though several processes used devices, so it is not known whose they are and no "
        "range is timed by them; export the reports again with a newer nsys, or give one export for "
        "each process"
    )
    return [Notice("unowned-work", text, lost)]


def _unplaced(exports: list[NsightExport]) -> list[Notice]:
    without = [export.path for export in exports if export.unplaced_metrics]
    if not without:
        return []
    text = (
        f"{len(without)} of {len(exports)} exports do not state which GPU each process used "
        f"({without[0]}), so GPU metrics were left out; newer versions of nsys record it"
    )
    return [Notice("unplaced-metrics", text, len(without), len(exports))]
