"""`bubblescope report`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from bubblescope.analysis.efficiency import Workload
from bubblescope.analysis.mfu import CONVENTIONS
from bubblescope.cli.console import answer
from bubblescope.cli.in_pieces import in_pieces
from bubblescope.cli.reading import NO_TASKS, paths_argument, planned, read, reading
from bubblescope.cli.workers import Sectioned
from bubblescope.render.text.report import Report

if TYPE_CHECKING:
    from bubblescope.schedules.plan import Plan


@click.command(cls=Sectioned)
@paths_argument()
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/report.md).")
@click.option("--all", "everything", is_flag=True, help="Show every rank, step and departure.")
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
    help="Tokens of a step over all devices, if Megatron's arguments do not say.",
)
@click.option(
    "--seq-length",
    "sequence_length",
    type=click.IntRange(min=1),
    metavar="N",
    help="Tokens of a sequence, if Megatron's arguments do not say.",
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
    help="Dense FLOPs per second of one device, such as 989e12, if its name does not tell.",
)
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    metavar="N",
    help="Devices of the job, if traces do not tell of all.",
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
    """Print the bubble rates of a run, and which definition each number follows."""
    workload = Workload.of(
        model=model,
        tokens=tokens,
        sequence_length=sequence_length,
        convention=convention,
        peak=peak,
        devices=devices,
    )
    asked = model or tokens or peak or devices  # MFU needs what operators executed, all of it
    parts = None if asked else in_pieces(paths, options, also=also, explained=False)
    if parts is not None:
        answer(Report.of_pieces(parts), as_json=as_json, everything=everything)
        return
    timeline = read(paths, **options)
    found = Report.of(timeline, also=also, workload=workload)
    answer(found, as_json=as_json, everything=everything)
    if not len(timeline) and found.budget is None:
        sys.exit(NO_TASKS)
