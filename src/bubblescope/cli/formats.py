"""`bubblescope formats`."""

from __future__ import annotations

import click
from rich.text import Text

from bubblescope.cli.console import out
from bubblescope.render.formats import FORMATS
from bubblescope.sources import SOURCES


@click.command()
def formats() -> None:
    """List the trace formats that can be read and the formats that can be written."""
    for name, source in sorted(SOURCES.items()):
        out.print(Text(f"reads   {name:10} {source.summary}"), soft_wrap=True)
    for name, written in FORMATS.items():
        out.print(Text(f"writes  {name:10} {written.summary}"))
