"""`bubblescope why`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bubblescope.cli.console import Bar, out, print_json, warn
from bubblescope.cli.help_text import asked, lang_option
from bubblescope.cli.in_pieces import in_pieces
from bubblescope.cli.manners import example, json_option
from bubblescope.cli.reading import need_tasks, paths_argument, planned, read, reading
from bubblescope.cli.workers import Sectioned
from bubblescope.model import language
from bubblescope.render.text.why import Explanation

if TYPE_CHECKING:
    from bubblescope.schedules.plan import Plan


@click.command(cls=Sectioned, epilog=example("bubblescope why traces"))
@paths_argument()
@json_option
@click.option(
    "--all", "everything", is_flag=True, help="Every rank, gap and, in JSON, every stretch."
)
@lang_option(help="Language of what is printed; by default that of the environment.")
@planned
@reading
def why(
    paths: tuple[str, ...],
    as_json: bool,
    everything: bool,
    also: tuple[Plan, ...],
    **options: Any,
) -> None:
    """Explain why devices are idle, and what to do about it."""
    quiet = options["quiet"]
    spoken = asked() or (language.ENGLISH if as_json else language.current())
    parts = in_pieces(paths, options, also=also, explained=True)
    if parts is not None:
        timeline, found = parts.drawn, Explanation.of_pieces(parts, spoken)
    else:
        timeline = read(paths, **options)
        need_tasks(timeline)
        with Bar(quiet=quiet) as bar:
            found = Explanation.of(timeline, also=also, language=spoken, progress=bar)
    if as_json:
        print_json(found.to_dict(gaps=everything))
        return
    out.print(found.shown(everything=everything), crop=False)
    warn(timeline, quiet=quiet)
