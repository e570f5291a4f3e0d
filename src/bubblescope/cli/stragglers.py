"""`bubblescope stragglers`."""

from __future__ import annotations

from typing import Any

import click

from bubblescope.cli.console import Bar, out, print_json
from bubblescope.cli.in_pieces import stragglers_in_pieces
from bubblescope.cli.manners import example, json_option
from bubblescope.cli.reading import need_tasks, paths_argument, read, reading
from bubblescope.cli.workers import Sectioned
from bubblescope.render.text.stragglers import Stragglers


@click.command(cls=Sectioned, epilog=example("bubblescope stragglers traces --all"))
@paths_argument()
@json_option
@click.option("--all", "everything", is_flag=True, help="Show every operation, worker and step.")
@reading
def stragglers(paths: tuple[str, ...], as_json: bool, everything: bool, **options: Any) -> None:
    """Measure what slow operations, stages and workers cost a job.

    The job is replayed as if nothing took longer than is usual for its type, and then with one
    type, stage, replica or worker as slow as it was.
    """
    parts = stragglers_in_pieces(paths, options)
    if parts is not None:
        found = Stragglers.of_pieces(parts)
    else:
        timeline = read(paths, **options)
        need_tasks(timeline)
        with Bar(quiet=options["quiet"]) as bar:
            found = Stragglers.of(timeline, progress=bar)
    if as_json:
        print_json(found.to_dict())
    else:
        out.print(found.shown(everything=everything, quiet=options["quiet"]), crop=False)
