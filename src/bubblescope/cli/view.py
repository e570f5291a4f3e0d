"""`bubblescope view`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bubblescope.analysis.compare import Comparison
from bubblescope.analysis.fewer import with_fewer_ranks
from bubblescope.analysis.view import View
from bubblescope.cli.again import Repeatable, read_again
from bubblescope.cli.console import out, warn, writing, wrote
from bubblescope.cli.output import open_page, output_path
from bubblescope.cli.pictures import file_format
from bubblescope.cli.questions import asking, beside, one_question
from bubblescope.cli.reading import (
    has_kernels,
    need_tasks,
    paths_argument,
    planned,
    read,
    reading,
    with_kernels,
)
from bubblescope.render.html import page
from bubblescope.render.html.kernels import need_room

if TYPE_CHECKING:
    from bubblescope.schedules.plan import Plan


_PAGE: Final = 1_000_000
"""Tasks of a dataset that a page shows; more take long to write and to open."""


@click.command(cls=Repeatable)
@paths_argument()
@click.option("-o", "--output", type=click.Path(path_type=Path), help="HTML file to write.")
@click.option("--open/--no-open", "show", default=True, help="Open it in a browser (default).")
@click.option("--title", help="Heading of the page.")
@click.option(
    "--against",
    "other",
    type=click.Path(),
    metavar="B",
    help="Another run, whose ranks stand below those of the first: what each task gained or lost.",
)
@with_kernels
@asking
@beside
@planned
@reading
def view(
    paths: tuple[str, ...],
    output: Path | None,
    show: bool,
    title: str | None,
    other: str | None,
    unfolding: bool,
    set_beside: str | None,
    also: tuple[Plan, ...],
    **options: Any,
) -> None:
    """Write the interactive timeline as one HTML file, and open it.

    With a question, as `bubblescope whatif` answers them, each rank also has a lane of what it would
    have run: --without, --host-never-late, --kernel, --healthy, --stage, --rank, --move,
    --microbatches or --schedule. With --with, a schedule stands above the run. With --kernels, tasks
    unfold into the kernels that ran in them. With --against, the page shows what changed to another
    run, as `bubblescope compare` says it.
    """
    file_format("html", output)
    layers = options["layers"]
    question = one_question(options, also)
    options["activities"] |= unfolding
    timeline = read(paths, enough=_PAGE, **options)
    need_tasks(timeline)
    if any(one.code == "sampled-steps" for one in timeline.run.warnings):
        timeline = with_fewer_ranks(timeline, 2 * _PAGE)
    if unfolding:
        need_room(timeline)
        unfolding = has_kernels(timeline, paths)
    after = None if other is None else read((other,), **{**options, "activities": False})
    if after is not None:
        need_tasks(after)
    target = output_path(paths, output, ".html")
    with writing(target, quiet=options["quiet"]):
        labels = (", ".join(paths), other or "")
        against = (
            None if after is None else Comparison.of(timeline, after, labels=labels, also=also)
        )
        page.write(
            View.of(  # given up: it is large
                timeline,
                also=also,
                whatif=question,
                beside=set_beside,
                layers=layers,
                read_again=read_again(),
                against=against,
            ),
            target,
            title=title,
            kernels=unfolding,
        )
    warn(timeline, quiet=options["quiet"])
    wrote(target)
    if show and not open_page(target.resolve().as_uri()):
        out.print("no browser here: open the file in one; it needs no network")
