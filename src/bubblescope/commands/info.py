"""`bubblescope info`, `bubblescope names` and `bubblescope formats`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.table import Table
from rich.text import Text

from bubblescope import exports, units
from bubblescope.commands.reading import paths_argument, read, reading
from bubblescope.console import out, warn
from bubblescope.report import inventory
from bubblescope.sources import sources

if TYPE_CHECKING:
    from bubblescope.timeline import ClockReport

__all__ = ["formats", "info", "names"]


@click.command()
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


@click.command()
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


@click.command()
def formats() -> None:
    """List the trace formats that can be read and the formats that can be written."""
    for name, source in sources().items():
        out.print(Text(f"reads   {name:10} {source.summary}"), soft_wrap=True)
    for name, known in exports.FORMATS.items():
        out.print(Text(f"writes  {name:10} {known.summary}"))
