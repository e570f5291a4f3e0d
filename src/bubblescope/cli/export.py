"""`bubblescope export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bubblescope.cli.console import warn, writing, wrote
from bubblescope.cli.output import output_path
from bubblescope.cli.questions import beside
from bubblescope.cli.reading import need_tasks, paths_argument, planned, read, read_kernels, reading
from bubblescope.facade import write
from bubblescope.model.units import joined
from bubblescope.render.formats import FORMATS

if TYPE_CHECKING:
    from bubblescope.schedules.plan import Plan


@click.command()
@paths_argument()
@click.option("--to", "fmt", required=True, type=click.Choice(list(FORMATS)), help="Format.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write.")
@click.option(
    "--width",
    metavar="LENGTH",
    help="Of a picture: 84mm, 3.3in, 240pt, 1600px, or column (3.3in) or page (7in). 1600px by "
    "default, and page in the look of papers.",
)
@click.option(
    "--look",
    type=click.Choice(["full", "paper"]),
    help="Of a picture: all that is known (default), or devices and micro-batches only, as papers "
    "show schedules.",
)
@click.option(
    "--kernels",
    is_flag=True,
    help="Of a trace, table or page: with every kernel, copy and fill of the devices; a CSV then has "
    "these in place of the tasks.",
)
@click.option("--dpi", type=float, help="Of a PNG picture: pixels per inch; 300 by default.")
@beside
@planned
@reading
def export(
    paths: tuple[str, ...],
    fmt: str,
    output: Path | None,
    width: str | None,
    look: str | None,
    kernels: bool,
    dpi: float | None,
    set_beside: str | None,
    also: tuple[Plan, ...],
    **options: Any,
) -> None:
    """Write a run for another program: Perfetto, Chrome, a table or a picture."""
    asked = {"width": width, "look": look, "dpi": dpi, "kernels": kernels or None}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    for name in given:
        if name not in FORMATS[fmt].options:
            having = [to for to, format_ in FORMATS.items() if name in format_.options]
            raise click.UsageError(f"--{name} is for --to {joined(having)}, not for {fmt}")
    timeline = read_kernels(paths, **options) if kernels else read(paths, **options)
    need_tasks(timeline)
    target = output_path(paths, output, FORMATS[fmt].suffix)
    with writing(target, quiet=options["quiet"]):
        write(timeline, target, to=fmt, beside=set_beside, also=also, **given)
    warn(timeline, quiet=options["quiet"])
    wrote(target)
