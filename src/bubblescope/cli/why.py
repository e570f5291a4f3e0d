"""`bubblescope why`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bubblescope.analysis.words import LANGUAGES
from bubblescope.cli.console import out, print_json, warn
from bubblescope.cli.in_pieces import in_pieces
from bubblescope.cli.reading import need_tasks, paths_argument, planned, read, reading
from bubblescope.cli.workers import Sectioned
from bubblescope.render.text.why import Explanation

if TYPE_CHECKING:
    from bubblescope.schedules.plan import Plan


@click.command(cls=Sectioned)
@paths_argument()
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/why.md).")
@click.option(
    "--all", "everything", is_flag=True, help="Every rank, gap and, in JSON, every stretch."
)
@click.option(
    "--lang",
    "language",
    type=click.Choice(LANGUAGES),
    default="en",
    show_default=True,
    help="Language of the sentences.",
)
@planned
@reading
def why(
    paths: tuple[str, ...],
    as_json: bool,
    everything: bool,
    language: str,
    also: tuple[Plan, ...],
    **options: Any,
) -> None:
    """Say why devices are idle: a cause for every nanosecond, and what to do about it."""
    quiet = options["quiet"]
    parts = in_pieces(paths, options, also=also, explained=True)
    if parts is not None:
        timeline, found = parts.drawn, Explanation.of_pieces(parts, language)
    else:
        timeline = read(paths, **options)
        need_tasks(timeline)
        found = Explanation.of(timeline, also=also, language=language)
    if as_json:
        print_json(found.to_dict(gaps=everything))
        return
    out.print(found.shown(everything=everything), crop=False)
    warn(timeline, quiet=quiet)
