"""`bubblescope stragglers`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from bubblescope.cli.console import Bar, Said, say
from bubblescope.cli.help_conventions import example, json_option
from bubblescope.cli.in_pieces import stragglers_in_pieces
from bubblescope.cli.option_sections import Sectioned
from bubblescope.cli.reading import need_tasks, paths_argument, read, reading
from bubblescope.render.json import pretty
from bubblescope.render.text.stragglers import Stragglers, slowed

if TYPE_CHECKING:
    from bubblescope.analysis.stragglers.replayed import Slowed
    from bubblescope.render.text.stragglers_in_collectives import LateRanks


@click.command(cls=Sectioned, epilog=example("bubblescope stragglers traces --all"))
@paths_argument()
@json_option
@click.option("--all", "everything", is_flag=True, help="Show every operation, worker and step.")
@reading
def stragglers(paths: tuple[str, ...], as_json: bool, everything: bool, **options: Any) -> None:
    """Measure what slow operations, stages and workers cost a job.

    The job is replayed as if nothing took longer than is usual for its type, and then with one
    type, stage, replica or worker as slow as it was. Without a pipeline: which ranks come late
    to collectives, why, and what a step would take were they as the others.
    """
    quiet = options["quiet"]
    of_parts = partial(_said, as_json=as_json, everything=everything, quiet=quiet)
    answered = stragglers_in_pieces(paths, options, of_parts)
    if answered is None:
        timeline = read(paths, **options)
        need_tasks(timeline)
        with Bar(quiet=quiet) as bar:
            found = slowed(timeline, progress=bar)
        answered = _answered(found, as_json=as_json, everything=everything, quiet=quiet)
    say(answered)


def _said(found: Slowed, *, as_json: bool, everything: bool, quiet: bool) -> Said:
    """Return what is said of a run that was looked at in parts; worked out where they are."""
    slow = Stragglers.of_pieces(found)
    return _answered(slow, as_json=as_json, everything=everything, quiet=quiet)


def _answered(
    found: Stragglers | LateRanks, *, as_json: bool, everything: bool, quiet: bool
) -> Said:
    return Said(
        pretty(found.to_dict()) if as_json else found.shown(everything=everything, quiet=quiet)
    )
