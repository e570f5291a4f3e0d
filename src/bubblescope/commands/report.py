"""`bubblescope report`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from bubblescope.commands.reading import NO_TASKS, paths_argument, planned, read, reading
from bubblescope.console import out
from bubblescope.report import Report
from bubblescope.schedules import torch_csv

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["report"]


@click.command()
@paths_argument()
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/report.md).")
@click.option("--all", "everything", is_flag=True, help="Show every rank, step and departure.")
@planned
@reading
def report(
    paths: tuple[str, ...], as_json: bool, everything: bool, plans: tuple[Path, ...], **options: Any
) -> None:
    """Print the bubble rates of a run, and which definition each number follows."""
    also = [torch_csv.read(plan) for plan in plans]
    timeline = read(paths, **options)
    if as_json:
        found = Report.of(timeline, also=also)
        click.echo(msgspec.json.format(msgspec.json.encode(found.to_dict())).decode())
    else:
        out.print(Report.of(timeline, limit=sys.maxsize if everything else 24, also=also))
    if not len(timeline):
        sys.exit(NO_TASKS)
