"""`bubblescope export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bubblescope.cli.console import warn, writing, wrote
from bubblescope.cli.help_conventions import example
from bubblescope.cli.option_sections import Sectioned
from bubblescope.cli.output_files import output_path
from bubblescope.cli.pictures import file_format, of_pictures, options_of
from bubblescope.cli.reading import need_tasks, paths_argument, planned, read, read_kernels, reading
from bubblescope.cli.whatif_options import beside
from bubblescope.facade import write
from bubblescope.render.formats import FORMATS

if TYPE_CHECKING:
    from bubblescope.schedules.plan import Plan


@click.command(
    cls=Sectioned,
    epilog=example(
        "bubblescope export traces -o run.pftrace",
        "bubblescope export traces -o figure.pdf --look paper --width column",
    ),
)
@paths_argument()
@click.option(
    "--to",
    "fmt",
    type=click.Choice(list(FORMATS)),
    help="Format; what the ending of the file stands for by default.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write.")
@click.option(
    "--kernels",
    is_flag=True,
    help="Of a trace, table or page: with every kernel, copy and fill of the devices; a CSV then has "
    "these in place of the tasks.",
)
@of_pictures
@beside
@planned
@reading
def export(
    paths: tuple[str, ...],
    fmt: str | None,
    output: Path | None,
    set_beside: str | None,
    also: tuple[Plan, ...],
    **options: Any,
) -> None:
    """Write a run for another program, or as a picture or table."""
    fmt = file_format(fmt, output)
    if fmt is None:
        raise click.UsageError("name what to write: a format with --to, or a file with -o")
    given = options_of(fmt, options, "kernels")
    timeline = read_kernels(paths, **options) if "kernels" in given else read(paths, **options)
    need_tasks(timeline)
    target = output_path(paths, output, FORMATS[fmt].suffix)
    with writing(target, quiet=options["quiet"]) as bar:
        write(timeline, target, to=fmt, beside=set_beside, also=also, progress=bar, **given)
    warn(timeline, quiet=options["quiet"])
    wrote(target)
