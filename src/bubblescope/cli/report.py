"""`bubblescope report`."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from bubblescope.analysis.efficiency import Workload
from bubblescope.analysis.mfu import CONVENTIONS
from bubblescope.cli.console import Bar, Said, answer, said, say
from bubblescope.cli.help_conventions import example, json_option
from bubblescope.cli.in_pieces import in_pieces
from bubblescope.cli.option_sections import Sectioned
from bubblescope.cli.reading import NO_TASKS, paths_argument, planned, read, reading
from bubblescope.render.text.report import Report

if TYPE_CHECKING:
    from bubblescope.analysis.pieces.study_of_pieces import Found
    from bubblescope.schedules.plan import Plan


@click.command(
    cls=Sectioned,
    epilog=example(
        "bubblescope report traces", "bubblescope report node*.sqlite --json > report.json"
    ),
)
@paths_argument()
@json_option
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Show every rank, every step and every departure from the schedule.",
)
@click.option(
    "--model",
    type=click.Path(),
    metavar="FILE.json",
    help="For MFU: the model's config.json of Hugging Face, or Megatron's arguments as JSON.",
)
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="Tokens of a step over all devices, if Megatron's arguments do not state them.",
)
@click.option(
    "--seq-length",
    "sequence_length",
    type=click.IntRange(min=1),
    metavar="N",
    help="Tokens of a sequence, if Megatron's arguments do not state them.",
)
@click.option(
    "--convention",
    type=click.Choice([*CONVENTIONS]),
    default="megatron",
    show_default=True,
    help="How to count the model's FLOPs (docs/report.md).",
)
@click.option(
    "--peak",
    type=float,
    metavar="FLOPS",
    help="Dense FLOPs per second of one device, such as 989e12, if its name is unknown.",
)
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    metavar="N",
    help="Devices of the job, if there are not traces of all.",
)
@planned
@reading
def report(
    paths: tuple[str, ...],
    as_json: bool,
    everything: bool,
    also: tuple[Plan, ...],
    model: str | None,
    tokens: int | None,
    sequence_length: int | None,
    convention: str,
    peak: float | None,
    devices: int | None,
    **options: Any,
) -> None:
    """Print the bubble rates of a run, each with its definition."""
    workload = Workload.of(
        model=model,
        tokens=tokens,
        sequence_length=sequence_length,
        convention=convention,
        peak=peak,
        devices=devices,
    )
    asked = model or tokens or peak or devices  # MFU needs what operators executed, all of it
    of_parts = partial(_said, as_json=as_json, everything=everything)
    parts = None if asked else in_pieces(paths, options, of_parts, also=also, explained=False)
    if parts is not None:
        say(parts)
        return
    timeline = read(paths, **options)
    with Bar(quiet=options["quiet"]) as bar:
        found = Report.of(timeline, also=also, workload=workload, progress=bar)
    answer(found, as_json=as_json, everything=everything)
    if not len(timeline) and found.budget is None:
        sys.exit(NO_TASKS)


def _said(found: Found, *, as_json: bool, everything: bool) -> Said:
    """Return the report of a run that was looked at in parts; worked out where they are."""
    return said(Report.of_pieces(found), as_json=as_json, everything=everything)
