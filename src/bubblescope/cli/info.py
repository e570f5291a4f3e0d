"""`bubblescope info`."""

from __future__ import annotations

from typing import Any

import click

from bubblescope.cli.console import answer, warn
from bubblescope.cli.reading import paths_argument, read, reading
from bubblescope.cli.workers import Sectioned
from bubblescope.render.text.info import Info


@click.command(cls=Sectioned)
@paths_argument()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@reading
def info(paths: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Say what traces are: format, hosts, ranks, steps, what was inferred, what was lost."""
    timeline = read(paths, **options)
    answer(Info.of(timeline), as_json=as_json)
    if not as_json:
        warn(timeline, quiet=False)
