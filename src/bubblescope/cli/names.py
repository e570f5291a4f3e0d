"""`bubblescope names`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.text import Text

from bubblescope.cli.console import out
from bubblescope.cli.help_conventions import example
from bubblescope.cli.option_sections import Sectioned
from bubblescope.cli.reading import paths_argument, read, reading
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.files import replacing
from bubblescope.render.text.sections import narrow_table
from bubblescope.render.text.translated import Verbatim
from bubblescope.sources.structure.inferred_names_file import names_file


@click.command(cls=Sectioned, epilog=example("bubblescope names traces"))
@paths_argument()
@click.option("--all", "everything", is_flag=True, help="Show every name, not the top 40.")
@click.option(
    "--inferred",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.toml",
    help="Write the passes that no range names and that were inferred instead, to be corrected by hand "
    "and given with --names.",
)
@reading
def names(paths: tuple[str, ...], everything: bool, inferred: Path | None, **options: Any) -> None:
    """List the range names in a trace and what each is taken for."""
    if inferred is not None and inferred.exists():
        raise BubblescopeError(f"{inferred} exists already; name a new file")
    timeline = read(paths, **options)
    if inferred is not None:
        text = names_file(timeline)
        if text is None:
            raise BubblescopeError(
                "no pass was inferred: ranges name them all, or the traces hold none"
            )
        with replacing(inferred) as partial:
            partial.write_text(text, encoding="utf-8")
        out.print(f"wrote {inferred}")
        return
    shapes: dict[str, list[Any]] = {}
    for content in timeline.run.contents:
        for held in content.names:
            entry = shapes.setdefault(held.shape, [0, held.example, held.kind])
            entry[0] += held.count
    if not shapes:
        out.print("the trace holds no named ranges")
        return
    table = narrow_table("count")
    for column in ("name (# is any number)", "example", "taken for"):
        table.add_column(column, overflow="fold")
    ordered = sorted(shapes.items(), key=lambda item: (item[1][2] is None, -item[1][0], item[0]))
    shown = ordered if everything else ordered[:40]
    for shape, (count, seen, kind) in shown:
        table.add_row(f"{count:,}", Verbatim(shape), Verbatim(seen), kind or Text("–", "dim"))
    out.print(table)
    if len(shown) < len(ordered):
        out.print(Text(f"and {len(ordered) - len(shown)} more; --all shows them", "dim"))
