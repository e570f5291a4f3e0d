"""`bubblescope kernels`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from bubblescope.analysis.kernels import BY, COLUMNS
from bubblescope.cli.console import Bar, Said, answer, said, say
from bubblescope.cli.help_conventions import example, json_option
from bubblescope.cli.in_pieces import kernels_in_pieces
from bubblescope.cli.option_sections import Sectioned
from bubblescope.cli.option_types import Parsed
from bubblescope.cli.reading import paths_argument, read_kernels, reading
from bubblescope.render.text.kernels import Kernels

if TYPE_CHECKING:
    from bubblescope.analysis.kernels import Counted


def _columns(text: str) -> tuple[str, ...]:
    """Read what rows are told apart by: "kind,name"."""
    found = tuple(part.strip() for part in text.split(","))
    if unknown := [part for part in found if part not in COLUMNS]:
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(COLUMNS)}")
    return found


@click.command(cls=Sectioned, epilog=example("bubblescope kernels traces --by stage,name"))
@paths_argument()
@click.option(
    "--by",
    type=Parsed("columns", _columns),
    metavar="COLUMN,...",
    help=f"Columns to group by: any of {', '.join(COLUMNS)}. By default "
    f"{','.join(BY)}; with --like, name.",
)
@click.option(
    "--like",
    multiple=True,
    metavar="PATH",
    help="Set another run beside it: what differs, the largest first. May be repeated for the "
    "traces of one run.",
)
@json_option
@click.option("--all", "everything", is_flag=True, help="Show every kernel and rank.")
@reading
def kernels(
    paths: tuple[str, ...],
    by: tuple[str, ...] | None,
    like: tuple[str, ...],
    as_json: bool,
    everything: bool,
    **options: Any,
) -> None:
    """Print which kernels ran, how long, and what makes a rank slow.

    Rows are kernels, copies and fills, by the stage and the kind of task that launched them; ranks
    are set against the median of their peers.
    """
    of_parts = partial(_said, as_json=as_json, everything=everything)
    parts = None if like else kernels_in_pieces(paths, options, of_parts, by)
    if parts is not None:
        say(parts)
        return
    timeline = read_kernels(paths, **options)
    other = read_kernels(like, **options) if like else None
    labels = (", ".join(paths), ", ".join(like))
    with Bar(quiet=options["quiet"]) as bar:
        bar.begin("adding up kernels")
        found = Kernels.of(timeline, by=by, like=other, labels=labels)
    answer(found, as_json=as_json, everything=everything)


def _said(found: Counted, *, as_json: bool, everything: bool) -> Said:
    """Return the kernels of a run that was looked at in parts; worked out where they are."""
    return said(Kernels.of_pieces(found), as_json=as_json, everything=everything)
