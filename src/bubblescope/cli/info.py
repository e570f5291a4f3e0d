"""`bubblescope info`."""

from __future__ import annotations

from typing import Any

import click

from bubblescope.cli.console import answer, warn
from bubblescope.cli.manners import example, json_option
from bubblescope.cli.reading import paths_argument, read, reading
from bubblescope.cli.workers import Sectioned
from bubblescope.render.text.info import Info


@click.command(cls=Sectioned, epilog=example("bubblescope info traces"))
@paths_argument()
@json_option
@click.option("--all", "everything", is_flag=True, help="Show every trace, process and rank.")
@reading
def info(paths: tuple[str, ...], as_json: bool, everything: bool, **options: Any) -> None:
    """Describe traces: format, hosts, ranks, steps, what was lost."""
    timeline = read(paths, **options)
    answer(Info.of(timeline), as_json=as_json, everything=everything)
    if not as_json:
        warn(timeline, quiet=False)
