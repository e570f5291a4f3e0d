"""`bubblescope why`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from bubblescope.cli.console import Bar, Said, say
from bubblescope.cli.help_conventions import example, json_option
from bubblescope.cli.help_text import asked
from bubblescope.cli.in_pieces import in_pieces
from bubblescope.cli.option_sections import Sectioned
from bubblescope.cli.reading import need_tasks, paths_argument, planned, read, reading
from bubblescope.model import language
from bubblescope.render.json import pretty
from bubblescope.render.text.why import Explanation

if TYPE_CHECKING:
    from bubblescope.analysis.pieces.study_of_pieces import Found
    from bubblescope.schedules.plan import Plan


@click.command(cls=Sectioned, epilog=example("bubblescope why traces"))
@paths_argument()
@json_option
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Show every rank and gap; in JSON, every stretch of idle time.",
)
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
    of_parts = partial(_said, spoken=spoken, as_json=as_json, everything=everything)
    answered = in_pieces(paths, options, of_parts, also=also, explained=True)
    if answered is None:
        timeline = read(paths, **options)
        need_tasks(timeline)
        with Bar(quiet=quiet) as bar:
            found = Explanation.of(timeline, also=also, language=spoken, progress=bar)
        answered = _answered(found, as_json=as_json, everything=everything)
    say(answered, quiet=quiet)


def _said(found: Found, *, spoken: str, as_json: bool, everything: bool) -> Said:
    """Explain a run that was looked at in parts; worked out where they are."""
    explained = Explanation.of_pieces(found, spoken)
    return _answered(explained, as_json=as_json, everything=everything)


def _answered(found: Explanation, *, as_json: bool, everything: bool) -> Said:
    if as_json:
        return Said(pretty(found.to_dict(gaps=everything)))
    warnings = tuple(notice.message for notice in found.timeline.run.warnings)
    return Said(found.shown(everything=everything), warnings)
