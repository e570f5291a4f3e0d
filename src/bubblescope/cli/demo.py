"""`bubblescope demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.text import Text

from bubblescope import demo as training
from bubblescope.cli.console import Bar, out, wrote
from bubblescope.cli.help_conventions import example
from bubblescope.cli.option_types import SCHEDULE
from bubblescope.cli.output_files import open_page
from bubblescope.demo.options import Options
from bubblescope.facade import write
from bubblescope.render.text.report import Report
from bubblescope.schedules import LINEAR
from bubblescope.sources import load


@click.command(epilog=example("bubblescope demo --schedule zb-h1 --sleep-compute 5"))
@click.option(
    "--schedule",
    type=SCHEDULE,
    default="1f1b",
    show_default=True,
    metavar=f"[{'|'.join(LINEAR)}]",
    help="Pipeline schedule.",
)
@click.option(
    "--stages", default=4, metavar="P", show_default=True, help="Pipeline stages, each a process."
)
@click.option(
    "--microbatches", default=8, metavar="M", show_default=True, help="Micro-batches per step."
)
@click.option("--steps", default=6, metavar="N", show_default=True, help="Training steps.")
@click.option(
    "--sleep-compute",
    "sleep_compute_ms",
    type=float,
    metavar="MS",
    help="Stretch each task to this many milliseconds by sleeping, so that stages do not contend.",
)
@click.option(
    "--stage-work",
    metavar="X,X,...",
    help="With --sleep-compute: how much longer the tasks of each stage are, such as 1,1,0.5,1.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("bubblescope-demo"),
    show_default=True,
    help="Folder for the recordings and the page.",
)
@click.option("--open/--no-open", "show", default=True, help="Open the page (default).")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def demo(output: Path, show: bool, quiet: bool, stage_work: str | None, **options: Any) -> None:
    """Train a small pipeline here, record it, and show the result."""
    chosen = Options(stage_work=_numbers(stage_work), **options)
    with Bar(quiet=quiet) as bar:
        result = training.run(chosen, output, bar)
    timeline = load(output)
    out.print(Report.of(timeline))
    out.print(
        f"trained {chosen.steps} steps in {result.seconds:.1f} s; "
        f"loss {result.losses[0]:.4f} to {result.losses[-1]:.4f}"
    )
    if note := training.contention_note(result):
        out.print(Text.assemble(("note  ", "yellow"), note))
    page = output / "timeline.html"
    write(timeline, page, to="html", title=f"bubblescope demo, {chosen.schedule}")
    wrote(page)
    if show and not open_page(page.resolve().as_uri()):
        out.print("no browser here: open the file in one; it needs no network")


def _numbers(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise click.UsageError(f"--stage-work {text!r} is not like 1,1,0.5,1") from None
