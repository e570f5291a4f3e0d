"""`bubblescope compare`: what changed between two runs, and a gate for continuous integration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.text import Text

from bubblescope.analysis.gate import condition, judge
from bubblescope.analysis.picture_data import pictured
from bubblescope.cli.console import Bar, err, out, print_json, writable, writing, wrote
from bubblescope.cli.help_conventions import example, json_option
from bubblescope.cli.option_sections import Sectioned
from bubblescope.cli.option_types import NUMBERS, Parsed
from bubblescope.cli.reading import need_tasks, planned, read, reading
from bubblescope.cli.worker_options import chosen
from bubblescope.model.errors import BubblescopeError
from bubblescope.render.formats import picture_format_of, write_picture
from bubblescope.render.text.compare import Comparison, verdict_line
from bubblescope.render.text.compare_markdown import markdown

if TYPE_CHECKING:
    from bubblescope.analysis.gate import Condition
    from bubblescope.engine import Engine
    from bubblescope.model.timeline import Timeline
    from bubblescope.schedules.plan import Plan

_FAILED: Final = 1
"""Exit code where a condition of `--fail-if` holds."""


def _page(_context: click.Context, _option: click.Parameter, output: Path | None) -> Path | None:
    """Refuse to write a page that no browser would take for one, or where nothing can be written."""
    if output is None:
        return None
    if output.suffix != ".html":
        raise click.BadParameter(f"it is a page, and {output} does not end in .html")
    writable(output)
    return output


@click.command(
    cls=Sectioned, epilog=example("bubblescope compare before after --fail-if 'step > +2%'")
)
@click.argument("before", metavar="A", type=click.Path())
@click.argument("after", metavar="B", type=click.Path())
@json_option
@click.option(
    "--to",
    type=click.Choice(["text", "markdown"]),
    default="text",
    show_default=True,
    help="What to print: text, or Markdown for the summary of a CI job.",
)
@click.option("--all", "everything", is_flag=True, help="Show every line of every table.")
@click.option(
    "--fail-if",
    "conditions",
    multiple=True,
    type=Parsed("condition", condition),
    metavar="EXPR",
    help="Exit with 1 if this certainly holds, such as 'bubble > +2%' or 'step > 1.5s'. "
    "May be repeated.",
)
@click.option(
    "--strict", is_flag=True, help="Also fail where a condition holds but may be due to noise."
)
@click.option("--steps-a", type=NUMBERS, help="Only these steps of A, whatever --steps says.")
@click.option("--steps-b", type=NUMBERS, help="Only these steps of B, whatever --steps says.")
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also draw both runs, A above B, on one scale of time: an SVG, PDF or PNG file.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE.html",
    callback=_page,
    help="Also write the interactive timeline of both runs, B's ranks below A's.",
)
@planned
@reading
def compare(
    before: str,
    after: str,
    as_json: bool,
    to: str,
    everything: bool,
    conditions: tuple[Condition, ...],
    strict: bool,
    steps_a: list[range] | None,
    steps_b: list[range] | None,
    picture: Path | None,
    output: Path | None,
    also: tuple[Plan, ...],
    **options: Any,
) -> None:
    """Show what changed between two runs, and whether it is noise.

    Each of A and B is a trace file, a folder or a quoted glob pattern.
    """
    if as_json and to != "text":
        raise click.UsageError("--json and --to markdown are two ways to print; choose one")
    if picture is not None:
        picture_format_of(writable(picture))
    with chosen(options) as engine:
        runs = [
            _read(path, steps, engine, options)
            for path, steps in ((before, steps_a), (after, steps_b))
        ]
    with Bar(quiet=options["quiet"]) as bar:
        comparison = Comparison.of(
            runs[0], runs[1], labels=(before, after), also=also, progress=bar
        )
    try:
        verdicts = [judge(one, comparison, strict=strict) for one in conditions]
    except BubblescopeError as error:  # what is asked cannot be answered by these runs
        raise click.UsageError(str(error)) from None
    if as_json:
        print_json({**comparison.to_dict(), "conditions": [one._asdict() for one in verdicts]})
    elif to == "markdown":
        click.echo(markdown(comparison, verdicts, everything=everything), nl=False)
    else:
        out.print(comparison.shown(everything=everything), crop=False)
    printed = to == "text" and not as_json
    if picture is not None:
        _draw(runs, picture, (before, after), quiet=not printed)
    _view(comparison, output, also, quiet=not printed)
    if not options["quiet"]:
        _warn(*runs)
    for verdict in verdicts:
        (out if printed else err).print(verdict_line(verdict), soft_wrap=True)
    if any(verdict.outcome == "failed" for verdict in verdicts):
        sys.exit(_FAILED)


def _read(
    path: str, steps: list[range] | None, engine: Engine, options: dict[str, Any]
) -> Timeline:
    timeline = read((path,), engine=engine, **{**options, "steps": steps or options["steps"]})
    need_tasks(timeline)
    return timeline


def _draw(runs: list[Timeline], picture: Path, labels: tuple[str, str], *, quiet: bool) -> None:
    drawn = [
        pictured(run, title=f"{letter}: {label}")
        for letter, label, run in zip("AB", labels, runs, strict=True)
        if len(run)
    ]
    if not drawn:
        raise click.UsageError("there are no tasks to draw, only what devices did")
    write_picture(drawn, picture)
    if not quiet:
        wrote(picture)


def _view(
    comparison: Comparison, output: Path | None, also: tuple[Plan, ...], *, quiet: bool
) -> None:
    if output is None:
        return
    from bubblescope.analysis.view import View  # noqa: PLC0415  only a page needs so much
    from bubblescope.render.html import page  # noqa: PLC0415

    with writing(output, quiet=quiet):
        page.write(View.of(comparison.runs[0], also=also, against=comparison), output)
    if not quiet:
        wrote(output)


def _warn(*timelines: Timeline) -> None:
    for label, timeline in zip("AB", timelines, strict=True):
        for notice in timeline.run.warnings:
            err.print(Text.assemble(("warning  ", "yellow"), f"{label}: {notice.message}"))
