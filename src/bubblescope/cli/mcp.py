"""`bubblescope mcp`."""

from __future__ import annotations

from pathlib import Path

import click

from bubblescope.agents import protocol
from bubblescope.cli.help_conventions import example


@click.command(epilog=example("bubblescope mcp .", "bubblescope mcp --skill"))
@click.argument(
    "folders",
    nargs=-1,
    metavar="[FOLDER]...",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
)
@click.option("--skill", is_flag=True, help="Print how to use the tools, as an Agent Skill.")
def mcp(folders: tuple[Path, ...], skill: bool) -> None:
    """Answer AI agents over the Model Context Protocol.

    It communicates over standard input and output. Only traces below the FOLDERs can be read;
    without a FOLDER, all files that you can read yourself. Nothing is written.
    """
    if skill:
        click.echo(protocol.skill(), nl=False)
        return
    protocol.serve(folders)
