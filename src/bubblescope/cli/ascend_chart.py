"""`bubblescope ascend pp-chart`, in place of the `pp_chart` recipe of msprof-analyze."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import click
from rich.text import Text

from bubblescope.cli.console import Bar, err, out, print_json, warn
from bubblescope.cli.help_conventions import example
from bubblescope.cli.help_text import SpokenGroup
from bubblescope.cli.option_types import Parsed
from bubblescope.cli.reading import NO_TASKS
from bubblescope.model.errors import SourceError
from bubblescope.model.provenance import Notice
from bubblescope.names.parser import NameParser
from bubblescope.render.artefacts import step_task_info
from bubblescope.sources import find
from bubblescope.sources.ascend.profile import issued_within
from bubblescope.sources.ascend.reading import assemble, ranks_of, read_profiles
from bubblescope.sources.source import ReadOptions

if TYPE_CHECKING:
    import polars as pl

    from bubblescope.model.timeline import Timeline
    from bubblescope.sources.ascend.profile import Profile

_BESIDE: Final = ("profiler_info*.json", "profiler_metadata.json", "*.db")
"""What MindStudio Insight opens beside the database."""


def _ranks(text: str) -> list[int] | None:
    """Take a list of ranks apart; None for all."""
    if text.strip() == "all":
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"{text!r} is not like 0,1,2,3 or all")
    return [int(part) for part in parts]


class _DefaultsToCluster(SpokenGroup):
    """Takes options without a command for those of `cluster`, as msprof-analyze does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command's name before them."""
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = ["cluster", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_DefaultsToCluster, epilog=example("bubblescope ascend pp-chart -d profiles"))
def ascend() -> None:
    """Write what Ascend's own tools make of NPU profiles."""


def _shared(command: Any) -> Any:
    """Add the options of both commands."""
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="No progress and no notes."),
        click.option(
            "--names", metavar="REGEX|FILE.toml", help="Meaning of range names of your own."
        ),
        click.option(
            "--detailed",
            is_flag=True,
            help="On classic pipelines, name micro-batches, and weight gradients apart from backwards.",
        ),
        click.option("--in-place", is_flag=True, help="Write into the profiles themselves."),
        click.option(
            "-d",
            "--profiling_path",
            "folder",
            required=True,
            type=click.Path(path_type=Path),
            help="Folder of the *_ascend_pt or *_ascend_ms profiles.",
        ),
    ):
        command = option(command)
    return command


@ascend.command("pp-chart", epilog=example("bubblescope ascend pp-chart -d profiles"))
@_shared
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the copy that the chart is written into; DIR_pp_chart by default.",
)
def pp_chart(folder: Path, output: Path | None, in_place: bool, **options: Any) -> None:
    """Write the pipeline chart that MindStudio Insight shows.

    That is StepTaskInfo and the links of transfers.

    docs/ascend.md lists what it does better than msprof-analyze's pp_chart.
    """
    if in_place and output is not None:
        raise click.UsageError("--in-place writes into the profiles, --output beside them")
    _chart(folder, None if in_place else output or _beside(folder), **options)


@ascend.command(
    "cluster",
    epilog=example("bubblescope ascend cluster -m pp_chart -d profiles"),
    context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help", "-H"]},
)
@_shared
@click.option("-m", "--mode", default="all", help="pp_chart, the only mode supported.")
@click.option(
    "-o",
    "--output_path",
    "output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for cluster_analysis_output, the copy that the chart is written into; without it, "
    "that is DIR_pp_chart.",
)
@click.option(
    "--rank_list",
    "ranks",
    type=Parsed("ranks", _ranks),
    default="all",
    metavar="N,N,...",
    help="Only these ranks' databases.",
)
@click.option("--step_id", type=int, metavar="STEP", help="Only this step of the profiler's.")
@click.option("--export_type", help="Ignored: a chart is written into the databases.")
@click.option("--parallel_mode", help="Ignored: one process does it.")
@click.option("--force", is_flag=True, help="Ignored: owner, size and rights are not checked.")
@click.option("--agent", is_flag=True, help="Print one JSON object and nothing else.")
@click.argument("others", nargs=-1, type=click.UNPROCESSED)
def cluster(
    folder: Path,
    mode: str,
    output: Path | None,
    in_place: bool,
    ranks: list[int] | None,
    step_id: int | None,
    agent: bool,
    others: tuple[str, ...],
    **options: Any,
) -> None:
    """Do what `msprof-analyze cluster -m pp_chart` does.

    It takes the same options. Unlike it, this writes into a copy of the profiles; --in-place writes
    into them.
    """
    if mode != "pp_chart":
        raise click.UsageError(
            f"-m {mode} is not made here, only -m pp_chart; msprof-analyze makes the others"
        )
    quiet = options.pop("quiet") or agent
    if not quiet:
        _say_what_has_no_meaning(others, {name: options[name] for name in _MEANINGLESS})
    if output is not None:
        output /= "cluster_analysis_output"
    target = None if in_place else output or _beside(folder)
    kept = {name: value for name, value in options.items() if name not in _MEANINGLESS}
    message = _chart(folder, target, quiet=quiet, ranks=ranks, step=step_id, **kept)
    if agent:
        print_json({"status": "success", "code": 0, "message": message, "suggestion": ""})


_MEANINGLESS: Final = {
    "export_type": "the chart is in the databases",
    "parallel_mode": "it is one process",
    "force": "owner, size and rights of files are not checked",
}
"""Options of msprof-analyze that change nothing here, and why."""


def _say_what_has_no_meaning(others: tuple[str, ...], given: dict[str, Any]) -> None:
    notes = [f"--{name} changes nothing: {_MEANINGLESS[name]}" for name in given if given[name]]
    if others:
        notes.append(f"{' '.join(others)} changes nothing: it is no option of the pipeline chart")
    for note in notes:
        err.print(Text.assemble(("note  ", "yellow"), note))


def _beside(folder: Path) -> Path:
    """Return the folder for the copy where none is named."""
    whole = folder.resolve()
    return whole.with_name(f"{whole.name}_pp_chart")


def _chart(
    folder: Path,
    copy: Path | None,
    *,
    detailed: bool,
    names: str | None,
    quiet: bool,
    ranks: list[int] | None = None,
    step: int | None = None,
) -> dict[str, Any]:
    """Write the chart into a copy of the profiles, or into themselves if there is to be none.

    Returns:
        What was written: rows, links, databases and the folder.
    """
    traces = find([folder], "ascend").files
    with Bar(quiet=quiet) as bar:
        options = ReadOptions(names=NameParser(names), progress=bar)
        profiles, notices = read_profiles(traces, options)
        timeline = assemble(profiles, notices, options, device_work=False)
    timeline = timeline.with_notices(*_unlinkable(profiles))
    warn(timeline, quiet=quiet)
    if not len(timeline):
        if quiet:
            err.print(Text(f"{folder}: the profiles hold no pipeline tasks"), soft_wrap=True)
        sys.exit(NO_TASKS)
    charts = _of_ranks(_charts(timeline, profiles, step, detailed=detailed), profiles, ranks)
    if copy is None:
        _write(charts)
    else:
        _write_copy(charts, folder, copy)
    written = copy or folder
    rows = sum(rows.height for rows, _ in charts.values())
    linked = sum(links.height for _, links in charts.values())
    if not quiet:
        out.print(
            Text(
                f"wrote {rows:,} rows and {linked:,} links into {len(charts)} databases under "
                f"{written}; open that folder in MindStudio Insight"
            ),
            soft_wrap=True,
        )
    return {"rows": rows, "links": linked, "databases": len(charts), "folder": str(written)}


def _charts(
    timeline: Timeline, profiles: list[Profile], step: int | None, *, detailed: bool
) -> dict[Path, step_task_info.Chart]:
    """Return the chart of each database, of all steps or of one."""
    steps = timeline.steps
    if step is not None and step not in steps:
        raise click.UsageError(f"the profiles have no step {step}; they have {_listed(steps)}")
    shown = timeline if step is None else timeline.slice(steps=[step])
    ranks, _ = ranks_of(profiles)
    return {
        Path(profile.path): (
            step_task_info.rows(shown, rank, detailed=detailed),
            _links_within(profile, step),
        )
        for profile, rank in zip(profiles, ranks, strict=True)
    }


def _links_within(profile: Profile, step: int | None) -> pl.DataFrame:
    """Return the links of the transfers of a step, counted as in the whole run; of all without one."""
    links = step_task_info.links(profile.operations)
    return (
        links if step is None else links.join(issued_within(profile, step), on="op_id", how="semi")
    )


def _of_ranks(
    charts: dict[Path, step_task_info.Chart], profiles: list[Profile], wanted: list[int] | None
) -> dict[Path, step_task_info.Chart]:
    """Return the charts of some ranks; a rank that is not there is a note, unless all are."""
    if wanted is None:
        return charts
    numbers, _ = ranks_of(profiles)
    missing = [rank for rank in wanted if rank not in numbers]
    if len(missing) == len(wanted):
        raise click.UsageError(f"the profiles have none of these ranks, but {_listed(numbers)}")
    if missing:
        said = f"the profiles have no rank {_listed(missing)}"
        err.print(Text.assemble(("note  ", "yellow"), said))
    chosen = {path for path, rank in zip(charts, numbers, strict=True) if rank in wanted}
    return {path: chart for path, chart in charts.items() if path in chosen}


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


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
        raise click.UsageError(f"{copy} exists already; delete it or name another with -o")
    base = folder.resolve() if folder.is_dir() else folder.resolve().parent
    if copy.resolve().is_relative_to(base):
        raise click.UsageError(
            f"{copy} is within the profiles, and would be taken for some of them the next time; name a "
            "folder elsewhere, or write into the profiles themselves with --in-place"
        )
    copy.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place until all is there.
    with TemporaryDirectory(prefix=f".{copy.name}.", dir=copy.parent) as private:
        begun = Path(private) / copy.name
        begun.mkdir()
        copied = {}
        for path, chart in charts.items():
            target = begun / path.resolve().relative_to(base)
            _copy_profile(path, target)
            copied[target] = chart
        _write(copied)
        begun.replace(copy)


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
