"""`bubblescope report`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from bubblescope.cli.console import answer
from bubblescope.cli.reading import NO_TASKS, paths_argument, planned, read, reading
from bubblescope.render.text.report import Report

if TYPE_CHECKING:
    from bubblescope.schedules.plan import Plan


@click.command()
@paths_argument()
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/report.md).")
@click.option("--all", "everything", is_flag=True, help="Show every rank, step and departure.")
@planned
@reading
def report(
    paths: tuple[str, ...], as_json: bool, everything: bool, also: tuple[Plan, ...], **options: Any
) -> None:
    """Print the bubble rates of a run, and which definition each number follows."""
    timeline = read(paths, **options)
    found = Report.of(timeline, also=also)
    answer(found, as_json=as_json, everything=everything)
    if not len(timeline) and found.budget is None:
        sys.exit(NO_TASKS)
