"""`bubblescope stragglers`."""

from __future__ import annotations

from typing import Any

import click

from bubblescope.cli.console import out, print_json
from bubblescope.cli.reading import need_tasks, paths_argument, read, reading
from bubblescope.cli.workers import Sectioned
from bubblescope.render.text.stragglers import Stragglers


@click.command(cls=Sectioned)
@paths_argument()
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/stragglers.md).")
@click.option("--all", "everything", is_flag=True, help="Show every operation, worker and step.")
@reading
def stragglers(paths: tuple[str, ...], as_json: bool, everything: bool, **options: Any) -> None:
    """Say what slow operations, stages and workers cost a job.

    The job is replayed as if nothing took longer than is usual for its type, and then with one
    type, stage, replica or worker as slow as it was.
    """
    timeline = read(paths, **options)
    need_tasks(timeline)
    found = Stragglers.of(timeline)
    if as_json:
        print_json(found.to_dict())
    else:
        out.print(found.shown(everything=everything, quiet=options["quiet"]), crop=False)
