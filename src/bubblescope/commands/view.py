"""`bubblescope view` and `bubblescope export`."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Any

import click

from bubblescope import exports
from bubblescope.commands.reading import need_tasks, paths_argument, planned, read, reading
from bubblescope.commands.whatif import asking, one_question
from bubblescope.console import out, warn, writable, writing, wrote
from bubblescope.schedules import torch_csv
from bubblescope.sources import find

__all__ = ["export", "open_page", "view"]


@click.command()
@paths_argument()
@click.option("-o", "--output", type=click.Path(path_type=Path), help="HTML file to write.")
@click.option("--open/--no-open", "show", default=True, help="Open it in a browser (default).")
@click.option("--title", help="Heading of the page.")
@asking
@planned
@reading
def view(
    paths: tuple[str, ...],
    output: Path | None,
    show: bool,
    title: str | None,
    plans: tuple[Path, ...],
    **options: Any,
) -> None:
    """Write the interactive timeline as one HTML file, and open it.

    With a question, as `bubblescope whatif` answers them, each rank also has a lane of what it would
    have run: --without, --healthy, --stage, --rank, --move, --microbatches or --schedule.
    """
    question = one_question(options)
    also = [torch_csv.read(plan) for plan in plans]
    timeline = read(paths, **options)
    need_tasks(timeline)
    target = _target(paths, output, ".html")
    with writing(target, quiet=options["quiet"]):
        timeline.to_html(target, title=title, also=also, whatif=question)
    warn(timeline, quiet=options["quiet"])
    wrote(target)
    if show and not open_page(target.resolve().as_uri()):
        out.print("no browser here: open the file in one; it needs no network")


@click.command()
@paths_argument()
@click.option(
    "--to", "fmt", required=True, type=click.Choice(list(exports.FORMATS)), help="Format."
)
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
@click.option("--dpi", type=float, help="Of a PNG picture: pixels per inch; 300 by default.")
@reading
def export(
    paths: tuple[str, ...],
    fmt: str,
    output: Path | None,
    width: str | None,
    look: str | None,
    dpi: float | None,
    **options: Any,
) -> None:
    """Write a run for another program: Perfetto, Chrome, a table or a picture."""
    asked = {"width": width, "look": look, "dpi": dpi}
    picture = {name: value for name, value in asked.items() if value is not None}
    for name in picture:
        if name not in exports.FORMATS[fmt].options:
            having = [to for to, format_ in exports.FORMATS.items() if name in format_.options]
            raise click.UsageError(f"--{name} is for --to {' and '.join(having)}, not for {fmt}")
    timeline = read(paths, **options)
    need_tasks(timeline)
    target = _target(paths, output, exports.FORMATS[fmt].suffix)
    with writing(target, quiet=options["quiet"]):
        exports.export(timeline, fmt, target, **picture)
    warn(timeline, quiet=options["quiet"])
    wrote(target)


def _target(paths: tuple[str, ...], output: Path | None, suffix: str) -> Path:
    """Return where to write: as asked, or named after the first trace, in the current folder."""
    traces = find(paths).files
    if output is None:
        stem = Path(paths[0]).resolve().name if len(paths) == 1 else traces[0].resolve().parent.name
        for ending in Path(stem).suffixes[::-1]:
            stem = stem.removesuffix(ending)
        output = Path(f"{stem or 'bubblescope'}{suffix}")
    writable(output)
    if any(output.exists() and output.samefile(trace) for trace in traces):
        raise click.UsageError(f"{output} is one of the traces; name another file to write")
    return output


def open_page(address: str) -> bool:
    """Open a page in a browser, and say whether there is one."""
    if sys.platform.startswith("linux") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        return False
    return webbrowser.open(address)
