"""`bubblescope formats`."""

from __future__ import annotations

import click
from rich.text import Text

from bubblescope.cli.console import out
from bubblescope.cli.manners import example
from bubblescope.render.formats import FORMATS
from bubblescope.sources import SOURCES


@click.command(epilog=example("bubblescope formats"))
def formats() -> None:
    """List the formats that can be read and written."""
    for name, source in sorted(SOURCES.items()):
        said = Text.assemble((f"reads   {name:10} ", "none"), (source.summary, "none"))
        out.print(said, soft_wrap=True)
    for name, written in FORMATS.items():
        out.print(Text.assemble((f"writes  {name:10} ", "none"), (written.summary, "none")))
