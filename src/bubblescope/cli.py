"""The command line: parse, call, print.

Exit codes: 0 done; 1 a bug in bubblescope, or a condition of `compare --fail-if` holds; 2 the input or
the command cannot be used; 3 the traces were read but hold no pipeline tasks; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
import msgspec
from click.shell_completion import get_completion_class
from rich.table import Table
from rich.text import Text

import bubblescope
from bubblescope import exports, units
from bubblescope.commands.ascend import ascend
from bubblescope.commands.compare import compare
from bubblescope.commands.paddle import paddle
from bubblescope.commands.reading import (
    NO_TASKS,
    need_tasks,
    paths_argument,
    planned,
    read,
    reading,
)
from bubblescope.commands.simulate import schedules, simulate
from bubblescope.commands.stragglers import stragglers
from bubblescope.commands.whatif import whatif
from bubblescope.commands.why import why
from bubblescope.console import Bar, err, out, warn, writable, writing, wrote
from bubblescope.errors import BubblescopeError
from bubblescope.progress import SILENT
from bubblescope.report import Report, inventory
from bubblescope.schedules import LINEAR, torch_csv
from bubblescope.sources import find, load, sources

if TYPE_CHECKING:
    from bubblescope.timeline import ClockReport


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(bubblescope.__version__, prog_name="bubblescope")
def cli() -> None:
    """The profiler for pipeline-parallel training.

    PATH is a trace file, a folder, several of them, or a glob pattern, all of one run; the format
    is detected.
    """


@cli.command()
@paths_argument()
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/report.md).")
@click.option("--all", "everything", is_flag=True, help="Show every rank, step and departure.")
@planned
@reading
def report(
    paths: tuple[str, ...], as_json: bool, everything: bool, plans: tuple[Path, ...], **options: Any
) -> None:
    """Print the bubble rates of a run, and which definition each number follows."""
    also = [torch_csv.read(plan) for plan in plans]
    timeline = read(paths, **options)
    if as_json:
        found = Report.of(timeline, also=also)
        click.echo(msgspec.json.format(msgspec.json.encode(found.to_dict())).decode())
    else:
        out.print(Report.of(timeline, limit=sys.maxsize if everything else 24, also=also))
    if not len(timeline):
        sys.exit(NO_TASKS)


@cli.command()
@paths_argument()
@click.option("-o", "--output", type=click.Path(path_type=Path), help="HTML file to write.")
@click.option("--open/--no-open", "show", default=True, help="Open it in a browser (default).")
@click.option("--title", help="Heading of the page.")
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
    """Write the interactive timeline as one HTML file, and open it."""
    also = [torch_csv.read(plan) for plan in plans]
    timeline = read(paths, **options)
    need_tasks(timeline)
    target = _target(paths, output, ".html")
    with writing(target, quiet=options["quiet"]):
        timeline.to_html(target, title=title, also=also)
    warn(timeline, quiet=options["quiet"])
    wrote(target)
    if show and not _open(target):
        out.print("no browser here: open the file in one; it needs no network")


@cli.command()
@paths_argument()
@click.option(
    "--to", "fmt", required=True, type=click.Choice(list(exports.FORMATS)), help="Format."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write.")
@reading
def export(paths: tuple[str, ...], fmt: str, output: Path | None, **options: Any) -> None:
    """Write a run for another program: Perfetto, Chrome, a table or a picture."""
    timeline = read(paths, **options)
    need_tasks(timeline)
    target = _target(paths, output, exports.FORMATS[fmt].suffix)
    with writing(target, quiet=options["quiet"]):
        exports.export(timeline, fmt, target)
    warn(timeline, quiet=options["quiet"])
    wrote(target)


@cli.command()
@paths_argument()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@reading
def info(paths: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Say what traces are: format, hosts, ranks, steps, what was inferred, what was lost."""
    timeline = read(paths, **options)
    run = timeline.run
    if as_json:
        said = {
            **msgspec.to_builtins(run),
            "ranks": timeline.ranks.to_dicts(),
            "steps": timeline.steps,
            "tasks": len(timeline),
        }
        click.echo(msgspec.json.format(msgspec.json.encode(said)).decode())
        return
    out.print(Text(repr(timeline)))
    for origin in run.origins:
        version = f" {origin.version}" if origin.version else ""
        out.print(Text(f"{origin.path}: {origin.format}{version}"))
    if run.contents:
        out.print(inventory(timeline))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("rank", "host", "process", "device", "stages"):
        table.add_column(column)
    for row in timeline.ranks.iter_rows(named=True):
        stages = ", ".join(map(str, row["stages"] or [])) or "?"
        cells = (units.optional(row[key]) for key in ("rank", "host", "process", "device"))
        table.add_row(*map(Text, cells), stages)
    out.print(table)
    if timeline.steps:
        out.print(f"steps {timeline.steps[0]} to {timeline.steps[-1]} ({len(timeline.steps)})")
    for field, how in run.inferred.items():
        out.print(Text.assemble(("inferred  ", "cyan"), f"{field}: {how}"))
    for line in _certificate(run.clock):
        out.print(Text.assemble(("clock  ", "cyan"), line), soft_wrap=True)
    warn(timeline, quiet=False)


def _certificate(clock: ClockReport | None) -> list[str]:
    """Say on what the clocks of several hosts rest."""
    if clock is None:
        return []
    evidence = (
        f"{clock.method}: {clock.constraints:,} pairs of moments in "
        f"{units.count(clock.groups, 'group')}, {clock.violations_before:,} violated as recorded, "
        f"{clock.violations_after:,} now; uncertain by up to ±{units.duration(clock.error_ns)}"
    )
    return [
        evidence,
        *(
            f"drift of {host}: {ppm:+.3g} parts per million"
            for host, ppm in clock.drift_ppm.items()
        ),
        *(f"tightest: {text}" for text in clock.tightest),
    ]


@cli.command()
@paths_argument()
@click.option("--all", "everything", is_flag=True, help="Show every name, not the top 40.")
@reading
def names(paths: tuple[str, ...], everything: bool, **options: Any) -> None:
    """List the range names of a trace and what each is taken for."""
    timeline = read(paths, **options)
    shapes: dict[str, list[Any]] = {}
    for content in timeline.run.contents:
        for held in content.names:
            entry = shapes.setdefault(held.shape, [0, held.example, held.kind])
            entry[0] += held.count
    if not shapes:
        out.print("the trace holds no named ranges")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("count", justify="right")
    for column in ("name (# is any number)", "example", "taken for"):
        table.add_column(column, overflow="fold")
    ordered = sorted(shapes.items(), key=lambda item: (item[1][2] is None, -item[1][0], item[0]))
    shown = ordered if everything else ordered[:40]
    for shape, (count, example, kind) in shown:
        table.add_row(f"{count:,}", Text(shape), Text(example), kind or Text("–", "dim"))
    out.print(table)
    if len(shown) < len(ordered):
        out.print(Text(f"and {len(ordered) - len(shown)} more; --all shows them", "dim"))


@cli.command()
@click.option("--schedule", type=click.Choice(LINEAR), default="1f1b", show_default=True)
@click.option("--stages", default=4, show_default=True, help="Pipeline stages, each a process.")
@click.option("--microbatches", default=8, show_default=True, help="Micro-batches per step.")
@click.option("--steps", default=6, show_default=True, help="Training steps.")
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
    """Train a small model in a real pipeline here, record it, and show the result."""
    from bubblescope import demo as training  # noqa: PLC0415  only this command needs it

    chosen = training.Options(stage_work=_numbers(stage_work), **options)
    with Bar() as bar:
        result = training.run(chosen, output, SILENT if quiet else bar)
    timeline = load(output)
    out.print(Report.of(timeline))
    out.print(
        f"trained {chosen.steps} steps in {result.seconds:.1f} s; "
        f"loss {result.losses[0]:.4f} to {result.losses[-1]:.4f}"
    )
    if note := training.contention_note(result):
        out.print(Text.assemble(("note  ", "yellow"), note))
    page = output / "timeline.html"
    timeline.to_html(page, title=f"bubblescope demo, {chosen.schedule}")
    wrote(page)
    if show and not _open(page):
        out.print("no browser here: open the file in one; it needs no network")


def _numbers(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise click.UsageError(f"--stage-work {text!r} is not like 1,1,0.5,1") from None


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script: eval "$(bubblescope completion bash)"."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(kind(cli, {}, "bubblescope", "_BUBBLESCOPE_COMPLETE").source())


@cli.command()
def formats() -> None:
    """List the trace formats that can be read and the formats that can be written."""
    for name, source in sources().items():
        out.print(Text(f"reads   {name:10} {source.summary}"), soft_wrap=True)
    for name, known in exports.FORMATS.items():
        out.print(Text(f"writes  {name:10} {known.summary}"))


cli.add_command(ascend)
cli.add_command(compare)
cli.add_command(paddle)
cli.add_command(schedules)
cli.add_command(simulate)
cli.add_command(whatif)
cli.add_command(why)
cli.add_command(stragglers)


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


def _open(path: Path) -> bool:
    if sys.platform.startswith("linux") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        return False
    return webbrowser.open(path.resolve().as_uri())


def main() -> NoReturn:
    """Run the command line; the only place that turns errors into exit codes."""
    try:
        code = cli.main(
            prog_name="bubblescope", complete_var="_BUBBLESCOPE_COMPLETE", standalone_mode=False
        )
    except BubblescopeError as error:
        _fail(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see `{context.command_path} --help`)" if context else ""
        _fail(error.format_message() + hint, 2)
    except click.Abort:
        _fail("interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}", 2)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> NoReturn:
    err.print(Text.assemble(("error  ", "bold red"), message), soft_wrap=True)
    sys.exit(code)
