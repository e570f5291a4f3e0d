"""What every command that reads traces has in common: its arguments, and reading."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, cast

import click
from rich.text import Text

from bubblescope.cli.console import Bar, err
from bubblescope.cli.option_sections import READING, in_section
from bubblescope.cli.option_types import NUMBERS, Parsed
from bubblescope.cli.worker_options import chosen, with_workers
from bubblescope.recording.attempts import ALL
from bubblescope.render.text.sections import inventory
from bubblescope.sources import load

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bubblescope.engine import Engine
    from bubblescope.model.timeline import Timeline
    from bubblescope.schedules.plan import Plan
    from bubblescope.sources.source import LoadOptions

NO_TASKS: Final = 3
"""Exit code where traces were read but hold neither tasks nor work of a device."""


ENOUGH: Final = 4_000_000
"""Tasks that are read of a dataset unless --steps says otherwise: they fit into a few GiB."""


_OPTION: Final = in_section(READING)


def word_kind(text: str) -> tuple[str, str]:
    """Read what a word means, "Compute=forward"."""
    word, equals, kind = text.rpartition("=")
    if not (equals and word and kind):
        raise ValueError(f"{text!r} is not like Compute=forward")
    return word, kind


def attempt(text: str) -> int | str:
    """Read which attempt of a recording is meant."""
    if text != ALL and not text.isdecimal():
        raise ValueError(f"{text!r} is neither the number of an attempt nor {ALL!r}")
    return text if text == ALL else int(text)


def _among(wanted: Sequence[range] | None, present: list[int]) -> list[int] | None:
    """Return the numbers that are there of each range, or its first, to be refused, if none is."""
    if wanted is None:
        return None
    chosen: list[int] = []
    for part in wanted:
        chosen += [number for number in present if number in part] or [part.start]
    return chosen


def paths_argument() -> Callable[[Any], Any]:
    """Return the argument that names the traces."""
    return click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path())


def reading(command: Any) -> Any:
    """Add the options that every command that reads traces has."""
    for option in reversed(
        (
            click.option(
                "--steps", cls=_OPTION, type=NUMBERS, help="Only these steps: 3 or 2:5 or 0,4:6."
            ),
            click.option("--ranks", cls=_OPTION, type=NUMBERS, help="Only these ranks."),
            click.option(
                "--names",
                cls=_OPTION,
                multiple=True,
                metavar="REGEX|FILE.toml",
                help="Meaning of your own range names: a pattern with groups (?P<kind>...) and any "
                "of microbatch, chunk, stage, step, rank, peer; or a file of such patterns. May be "
                "repeated.",
            ),
            click.option(
                "--kind",
                "kinds",
                cls=_OPTION,
                multiple=True,
                type=Parsed("word", word_kind),
                metavar="WORD=KIND",
                help="What a word means that --names captures as the kind: Compute=forward. May be "
                "repeated.",
            ),
            click.option(
                "--source",
                cls=_OPTION,
                metavar="FORMAT",
                help="Trace format, if it should not be detected.",
            ),
            click.option(
                "--run",
                cls=_OPTION,
                type=int,
                metavar="K",
                help="Which run, from 0, of logs that hold several; the last by default.",
            ),
            click.option(
                "--attempt",
                cls=_OPTION,
                type=Parsed("attempt", attempt),
                metavar="N|all",
                help="Which start of a recorded job, or all as one run; the last by default.",
            ),
            click.option(
                "--clock",
                cls=_OPTION,
                type=click.Choice(["raw", "auto", "solve"]),
                default="auto",
                show_default=True,
                help="Correct the clocks of several hosts by dependencies between their tasks: never, "
                "where these show the clocks to be wrong, or always.",
            ),
            click.option(
                "--unlimited",
                cls=_OPTION,
                is_flag=True,
                help="Read compressed traces that unpack to an implausible size; else refused.",
            ),
            click.option("-q", "--quiet", is_flag=True, help="No progress and no notes."),
        ),
    ):
        command = option(command)
    return with_workers(command)


def plan(path: str) -> Plan:
    """Read a schedule from PyTorch's CSV."""
    from bubblescope.schedules import torch_csv  # noqa: PLC0415  few commands are given one

    return torch_csv.read(path)


planned = click.option(
    "--plan",
    "also",
    multiple=True,
    type=Parsed("plan", plan),
    metavar="FILE.csv",
    help="A schedule of your own besides the known ones, as PyTorch's CSV, named as its file is. May "
    "be repeated.",
)

with_kernels = click.option(
    "--kernels",
    "unfolding",
    is_flag=True,
    help="Tasks unfold into the kernels that ran in them (key u).",
)

NO_KERNELS: Final = (
    "it holds no kernels: only traces of devices do (PyTorch profiler, Nsight, rocpd, Ascend)"
)


def has_kernels(timeline: Timeline, paths: tuple[str, ...]) -> bool:
    """Say whether traces that were read for their kernels hold any; print a sentence if not."""
    if timeline.activities.height:
        return True
    err.print(Text(f"{', '.join(paths)}: {NO_KERNELS}"), soft_wrap=True)
    return False


def read(
    paths: tuple[str, ...],
    *,
    quiet: bool,
    engine: Engine | None = None,
    **options: Any,
) -> Timeline:
    """Read the traces as the options of `reading` say.

    Args:
        paths: The traces.
        quiet: Whether not to show progress.
        engine: Where to read, if the options do not say it any more.
        options: The others.
    """
    with Bar(quiet=quiet) as bar, engine or chosen(options) as workers:
        how = cast("LoadOptions", options)
        how["engine"] = workers
        how["progress"] = bar
        how["kinds"] = dict(how.get("kinds") or ())
        how.setdefault("enough", ENOUGH)
        timeline = load(*paths, **how)
    steps, ranks = options.get("steps"), options.get("ranks")
    if steps is not None or ranks is not None:
        present = timeline.ranks["rank"].to_list()
        timeline = timeline.slice(steps=_among(steps, timeline.steps), ranks=_among(ranks, present))
    return timeline


def read_kernels(paths: tuple[str, ...], **options: Any) -> Timeline:
    """Read traces with their kernels; leave, saying what they do hold, if there are none."""
    timeline = read(paths, activities=True, **options)
    if not timeline.activities.height:
        err.print(inventory(timeline))
        has_kernels(timeline, paths)
        sys.exit(NO_TASKS)
    return timeline


def need_tasks(timeline: Timeline) -> None:
    """Leave, naming the traces and saying what they do hold, if there is nothing to show."""
    if len(timeline) or timeline.budget.height:
        return
    err.print(inventory(timeline))
    first, *more = [origin.path for origin in timeline.run.origins] or ["the traces"]
    named = f"{first} and {len(more)} more" if more else first
    err.print(Text(f"{named}: nothing to show"), soft_wrap=True)
    for notice in timeline.run.warnings:
        err.print(Text(notice.message))
    sys.exit(NO_TASKS)
