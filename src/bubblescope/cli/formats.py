"""`bubblescope formats`."""

from __future__ import annotations

import click
from rich.text import Text

from bubblescope.cli.console import out
from bubblescope.cli.help_conventions import example
from bubblescope.render.formats import FORMATS
from bubblescope.sources import SOURCES


@click.command(epilog=example("bubblescope formats"))
def formats() -> None:
    """List the formats that can be read and written."""
    for name, source in sorted(SOURCES.items()):
        said = Text.assemble(
            ("reads   ", "none"), (f"{name:13} ", "none"), (source.summary, "none")
        )
        out.print(said, soft_wrap=True)
    for name, written in FORMATS.items():
        out.print(
            Text.assemble(("writes  ", "none"), (f"{name:13} ", "none"), (written.summary, "none"))
        )
