"""`bubblescope view`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from bubblescope.analysis.rank_selection import with_fewer_ranks
from bubblescope.cli.console import out, warned, writing, wrote
from bubblescope.cli.help_conventions import example
from bubblescope.cli.output_files import open_page, output_path
from bubblescope.cli.page_options import Wanted, paged
from bubblescope.cli.pictures import file_format
from bubblescope.cli.source_arguments import Repeatable
from bubblescope.render.html import page
from bubblescope.render.html.kernels import need_room

_PAGE: Final = 1_000_000
"""Tasks of a dataset that a page shows; more take long to write and to open."""


@click.command(
    cls=Repeatable,
    epilog=example(
        "bubblescope view traces", "bubblescope view traces --steps 3 --schedule zb-v -o step3.html"
    ),
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="HTML file to write.")
@click.option("--open/--no-open", "show", default=True, help="Open it in a browser (default).")
@paged
def view(paths: tuple[str, ...], output: Path | None, show: bool, **options: Any) -> None:
    """Write the interactive timeline as one HTML file, and open it.

    With a change, as `bubblescope whatif` takes them, each rank has a second lane with what it would
    have run: --without, --host-never-late, --kernel, --healthy, --stage, --rank, --move,
    --microbatches or --schedule. With --with, a schedule stands above the run. With --kernels, tasks
    unfold into the kernels that ran in them. With --against, the page shows what differs in another
    run, as `bubblescope compare` does.
    """
    file_format("html", output)
    wanted = Wanted.of(paths, options, enough=_PAGE, median=True)
    timeline = wanted.timeline
    if any(one.code == "sampled-steps" for one in timeline.run.warnings):
        timeline = with_fewer_ranks(timeline, 2 * _PAGE)
        wanted = wanted._replace(timeline=timeline)
    if wanted.kernels:
        need_room(timeline)
    target = output_path(paths, output, ".html")
    warnings = [notice.message for notice in timeline.run.warnings]
    title, kernels, held = wanted.title, wanted.kernels, [wanted]
    del wanted, timeline  # they are large, and the page lets go of them once it can do without
    with writing(target, quiet=options["quiet"]) as bar:
        page.write(
            held.pop().view(bar, kept=False), target, title=title, kernels=kernels, progress=bar
        )
    warned(warnings, quiet=options["quiet"])
    wrote(target)
    if show and not open_page(target.resolve().as_uri()):
        out.print("no browser here: open the file in one; it needs no network")
