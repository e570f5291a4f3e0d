"""`bubblescope paddle`, in place of Paddle's `profiler_helper_static.py`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
import polars as pl
from rich.text import Text

from bubblescope.cli.console import Bar, err, out, warn, wrote
from bubblescope.cli.help_conventions import example
from bubblescope.cli.reading import NO_TASKS
from bubblescope.model.errors import SourceError
from bubblescope.render.artefacts import pipeline_profile as paddle_json
from bubblescope.sources import load
from bubblescope.sources.paddle_logs import machine_number, step_times


@click.command(epilog=example("bubblescope paddle --log_dir log_dir --devices 0,1,2,3"))
@click.option(
    "--devices",
    metavar="N,N,...",
    help="Workers to show; all that have a log by default.",
)
@click.option(
    "--log_dir",
    "--log-dir",
    "log_dir",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder of the workerlog.N files; the two JSON files are written there.",
)
@click.option(
    "--multi_machine",
    "--multi-machine",
    "multi_machine",
    is_flag=True,
    help="The logs lie in folders machine0, machine1, ... of that folder.",
)
@click.option("--run", type=int, metavar="K", help="Which run, from 0, of logs that hold several.")
@click.option("-q", "--quiet", is_flag=True, help="No progress and no notes.")
def paddle(
    devices: str | None, log_dir: Path, multi_machine: bool, run: int | None, quiet: bool
) -> None:
    """Write Paddle's pipeline_profile.json from its worker logs.

    Takes the options of Paddle's own profiler_helper_static.py; docs/paddle.md lists what
    it does better.
    """
    logs = _logs(log_dir, devices, multi_machine=multi_machine)
    with Bar(quiet=quiet) as bar:
        timeline = load(*logs, source="paddle", run=run, progress=bar)
    warn(timeline, quiet=quiet)
    if not len(timeline):
        if quiet:
            err.print(Text(f"{log_dir}: the logs hold no jobs with device times"), soft_wrap=True)
        sys.exit(NO_TASKS)
    steps = step_times(logs, run).join(timeline.ranks.select("rank", "clock_offset_ns"), on="rank")
    offset = pl.col("clock_offset_ns").fill_null(0)
    steps = steps.with_columns(pl.col("start_ns", "end_ns") + offset)
    for path in paddle_json.write(timeline, log_dir, steps):
        wrote(path)
    out.print("open the first in chrome://tracing, the second in https://ui.perfetto.dev")


def _logs(folder: Path, devices: str | None, *, multi_machine: bool) -> list[Path]:
    """Return the logs of the wanted devices, machine by machine."""
    if not folder.is_dir():
        raise SourceError(folder, "is not a folder; --log_dir must name that of the worker logs")
    folders = [folder]
    if multi_machine:
        numbered = [child / "x" for child in folder.iterdir() if child.is_dir()]
        found = {machine_number(path): path.parent for path in numbered}
        folders = [found[number] for number in sorted(key for key in found if key is not None)]
        if not folders:
            raise SourceError(folder, "has no folders machine0, machine1, ... for --multi_machine")
    if devices is None:
        logs = [path for one in folders for path in one.iterdir()]
        logs = [path for path in logs if re.fullmatch(r"workerlog\.\d+", path.name)]
        if not logs:
            raise SourceError(folder, "has no workerlog.N file")
        return logs
    wanted = [number.strip() for number in devices.split(",")]
    if not all(number.isdecimal() for number in wanted):
        raise click.UsageError(f"--devices {devices!r} is not like 0,1,2,3")
    return [one / f"workerlog.{int(number)}" for one in folders for number in wanted]
