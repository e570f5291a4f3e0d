"""`bubblescope ascend pp-chart`, in place of the `pp_chart` recipe of msprof-analyze."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.text import Text

from bubblescope.cli.console import Bar, err, out, warn
from bubblescope.cli.reading import NO_TASKS
from bubblescope.model.errors import SourceError
from bubblescope.model.progress import SILENT
from bubblescope.model.provenance import Notice
from bubblescope.names.parser import NameParser
from bubblescope.render.artefacts import step_task_info
from bubblescope.sources import find
from bubblescope.sources.ascend import assemble, ranks_of, read_profiles
from bubblescope.sources.source import ReadOptions

if TYPE_CHECKING:
    from bubblescope.model.timeline import Timeline
    from bubblescope.sources.ascend.profile import Profile

_BESIDE: Final = ("profiler_info*.json", "profiler_metadata.json", "*.db")
"""What MindStudio Insight opens beside the database."""


@click.group()
def ascend() -> None:
    """Make what Ascend's own tools make of NPU profiles."""


@ascend.command("pp-chart")
@click.option(
    "-d",
    "--profiling_path",
    "folder",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder of the *_ascend_pt or *_ascend_ms profiles.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the copy that the chart is written into; DIR_pp_chart by default.",
)
@click.option("--in-place", is_flag=True, help="Write into the profiles themselves.")
@click.option(
    "--detailed",
    is_flag=True,
    help="On classic pipelines, name micro-batches and tell weight gradients from backwards.",
)
@click.option("--names", metavar="REGEX", help="Meaning of range names of your own.")
@click.option("-q", "--quiet", is_flag=True, help="No progress and no notes.")
def pp_chart(
    folder: Path,
    output: Path | None,
    in_place: bool,
    detailed: bool,
    names: str | None,
    quiet: bool,
) -> None:
    """Write the pipeline chart of MindStudio Insight: StepTaskInfo and the transfers' links.

    docs/ascend.md lists where it does better than msprof-analyze's pp_chart.
    """
    if in_place and output is not None:
        raise click.UsageError("--in-place writes into the profiles, --output beside them")
    traces = find([folder], "ascend").files
    with Bar() as bar:
        options = ReadOptions(names=NameParser(names), progress=SILENT if quiet else bar)
        profiles, notices = read_profiles(traces, options)
        timeline = assemble(profiles, notices, options.names)
    timeline = timeline.with_notices(*_unlinkable(profiles))
    warn(timeline, quiet=quiet)
    if not len(timeline):
        if quiet:
            err.print(Text("the profiles hold no pipeline tasks"))
        sys.exit(NO_TASKS)
    charts = _charts(timeline, profiles, detailed=detailed)
    if in_place:
        _write(charts)
        written = folder
    else:
        written = output or folder.resolve().with_name(f"{folder.resolve().name}_pp_chart")
        _write_copy(charts, folder, written)
    if not quiet:
        count = sum(rows.height for rows, _ in charts.values())
        linked = sum(links.height for _, links in charts.values())
        out.print(
            Text(
                f"wrote {count:,} rows and {linked:,} links into {len(charts)} databases under "
                f"{written}; open that folder in MindStudio Insight"
            ),
            soft_wrap=True,
        )


def _charts(
    timeline: Timeline, profiles: list[Profile], *, detailed: bool
) -> dict[Path, step_task_info.Chart]:
    ranks, _ = ranks_of(profiles)
    return {
        Path(profile.path): (
            step_task_info.rows(timeline, rank, detailed=detailed),
            step_task_info.links(profile.operations),
        )
        for profile, rank in zip(profiles, ranks, strict=True)
    }


def _unlinkable(profiles: list[Profile]) -> list[Notice]:
    """Return what keeps transfers from being drawn as arrows."""
    batched = ends = total = 0
    for profile in profiles:
        operations = profile.operations
        total += operations.height
        batched += int(operations["name"].str.contains("(?i)batchsendrecv").sum())
        known = operations.drop_nulls("way")
        ends += known.height - known.drop_nulls(["source", "target"]).height
    notices = []
    if not total:
        text = (
            "the profiles hold no communication operators, so transfers have no links; profile at "
            "Level1 or above"
        )
        notices.append(Notice("no-communication", text))
    if batched:
        text = (
            f"{batched} of {total} communication operators are batched sends and receives, which the "
            "profiler does not tell apart; they have no link"
        )
        notices.append(Notice("unlinkable-transfers", text, batched, total))
    if ends:
        text = (
            f"{ends} of {total} communication operators are sends or receives whose other end is "
            "not in the profile; they have no link"
        )
        notices.append(Notice("transfers-without-ends", text, ends, total))
    return notices


def _write(charts: dict[Path, step_task_info.Chart]) -> None:
    try:
        step_task_info.write(charts)
    except sqlite3.Error as error:
        paths = ", ".join(str(path) for path in list(charts)[:3])
        raise SourceError(
            paths, f"could not be written, and is as it was ({error}); close what has it open"
        ) from None


def _write_copy(charts: dict[Path, step_task_info.Chart], folder: Path, copy: Path) -> None:
    """Copy what MindStudio Insight opens and write there; on failure nothing is left behind."""
    if copy.exists() and any(copy.iterdir()):
        raise click.UsageError(f"{copy} is there already; delete it or name another with --output")
    base = folder.resolve() if folder.is_dir() else folder.resolve().parent
    existed = copy.exists()
    try:
        copied = {}
        for path, chart in charts.items():
            target = copy / path.resolve().relative_to(base)
            _copy_profile(path, target)
            copied[target] = chart
        _write(copied)
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        if existed:
            copy.mkdir()
        raise


def _copy_profile(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    for source, into in ((path.parent, target.parent), (path.parent.parent, target.parent.parent)):
        for pattern in _BESIDE:
            for one in source.glob(pattern):
                if one.is_file() and one != path and not (into / one.name).exists():
                    shutil.copyfile(one, into / one.name)
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:  # its newest rows are in the log
        with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(target)) as new:
            old.backup(new)
    else:
        shutil.copyfile(path, target)
