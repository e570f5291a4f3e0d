"""From the rocpd files of all processes to the timeline of their run."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import msgspec

from bubblescope.model import units
from bubblescope.model.provenance import Notice
from bubblescope.sources.parallel import read_each
from bubblescope.sources.plausibility import impossible_times
from bubblescope.sources.process_exports import (
    UNKNOWN,
    Maker,
    Makings,
    chosen_of,
    no_tasks,
    one_run,
)
from bubblescope.sources.rocpd.database import Part, RocpdExport, read_part
from bubblescope.sources.rocpd.table_suffixes import suffixes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bubblescope.model.progress import Progress
    from bubblescope.model.timeline import Timeline
    from bubblescope.sources.source import ReadOptions

_ADVICE: Final = "record with `rocprofv3 --runtime-trace --marker-trace`"


def read_files(paths: Sequence[Path], options: ReadOptions) -> Timeline:
    """Read all files of one run.

    Raises:
        SourceError: A file is damaged, or two are of one process.
    """
    # A damaged file may show no tables: reading it says what is wrong.
    chosen = [(path, suffix) for path in paths for suffix in suffixes(path) or [""]]
    reader = _Reader(Maker(options.names, several=len(chosen) > 1), options.activities)
    read = read_each(reader, chosen, options, what="reading files", path=itemgetter(0))
    made = chosen_of([one for _, one in read])
    exports = _told_apart([export for export, _ in read])
    machines = len({export.machine for export in exports})
    return one_run(
        "rocpd",
        exports,
        made,
        options.names,
        offsets=[0] * len(exports),
        work="kernels and copies",
        nothing=lambda: no_tasks(
            exports,
            made,
            kind="ROCTX",
            timed=_ADVICE,
            unknown="; see them with `bubblescope names` and describe yours with --names",
            none=f"; {_ADVICE} and mark the job's tasks",
        ),
        notices=(
            *_no_common_clock(machines),
            *_without_calls(exports),
            *_without_copies(exports),
            *_impossible(exports),
        ),
        common_clock=machines == 1,
        host_clocks=machines > 1,
    )


class _Reader(msgspec.Struct, frozen=True):
    """Reads one process of a file; runs anywhere.

    Attributes:
        maker: Makes tasks of its events.
        activities: Whether to keep the kernels.
    """

    maker: Maker
    activities: bool

    def __call__(self, file: tuple[Path, str], progress: Progress) -> tuple[RocpdExport, Makings]:
        path, suffix = file
        part = Part(path, suffix, progress)
        progress.begin(f"reading {path.name}", part.size())
        export, capture, clues = read_part(part, named=self.activities)
        return export, self.maker.make(capture, clues)


def _told_apart(exports: list[RocpdExport]) -> list[RocpdExport]:
    """Give machines of one name, as those of containers may be, names of their own."""
    machines = Counter(host for host, _ in {(export.host, export.machine) for export in exports})
    return [
        msgspec.structs.replace(export, host=f"{export.host}-{export.machine[:8]}")
        if machines[export.host] > 1
        else export
        for export in exports
    ]


def _no_common_clock(machines: int) -> list[Notice]:
    if machines == 1:
        return []
    text = (
        f"the clocks of the {machines} machines count from when each was booted: unless they are "
        "aligned by dependencies between tasks, times of different machines must not be compared"
    )
    return [Notice("no-common-clock", text)]


def _without_calls(exports: list[RocpdExport]) -> list[Notice]:
    """Warn of processes whose kernels cannot be told to belong to any range."""
    held = [
        set(of_one["what"])
        for export in exports
        for (process,), of_one in export.counts.group_by("process")
        if process != UNKNOWN
    ]
    marked = [whats for whats in held if "ranges" in whats and whats & {"kernels", "copies"}]
    lost = sum("calls" not in whats for whats in marked)
    if not lost:
        return []
    text = (
        f"{lost} of {len(marked)} processes were recorded without the calls that launch kernels, so "
        f"their kernels are in no task; {_ADVICE}"
    )
    return [Notice("no-launching-calls", text, lost, len(marked))]


def _without_copies(exports: list[RocpdExport]) -> list[Notice]:
    """Warn of copies that were asked for and not recorded: devices seem idle meanwhile."""
    calls = sum(export.copying for export in exports)
    if not calls:
        return []
    text = (
        f"{units.count(calls, 'call')} of hipMemcpy left no copy in the traces, so devices seem idle "
        "while they copy; record with `rocprofv3 --memory-copy-trace` too"
    )
    return [Notice("no-copies", text, calls)]


def _impossible(exports: list[RocpdExport]) -> list[Notice]:
    return [
        notice
        for export in exports
        for notice in impossible_times(
            export.impossible, export.events, "kernels and copies", export.path
        )
    ]
