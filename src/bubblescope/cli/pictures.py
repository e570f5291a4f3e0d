"""The options of the commands that write pictures and other files of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from bubblescope.model.units import joined
from bubblescope.render.formats import FORMATS, agree, format_of

if TYPE_CHECKING:
    from pathlib import Path

_OPTIONS: Final = {
    "width": click.option(
        "--width",
        metavar="LENGTH",
        help="Of a picture: 84mm, 3.3in, 240pt, 1600px, or column (3.3in) or page (7in). 1600px by "
        "default, and page with --look paper.",
    ),
    "look": click.option(
        "--look",
        type=click.Choice(["full", "paper"]),
        help="Of a picture: all that is known (default), or devices and micro-batches only, as papers "
        "show schedules.",
    ),
    "title": click.option("--title", help="Of a picture or page: what stands above it."),
    "dpi": click.option(
        "--dpi", type=float, metavar="N", help="Of a PNG picture: pixels per inch; 300 by default."
    ),
}
"""The options that pictures have, by name."""


def of_pictures(command: Any) -> Any:
    """Add the options that pictures have."""
    for option in reversed(_OPTIONS.values()):
        command = option(command)
    return command


def file_format(fmt: str | None, output: Path | None) -> str | None:
    """Return the format to write: as asked for, or what the file's ending stands for, or None.

    Raises:
        BubblescopeError: The file has the ending of another format, or of none.
    """
    if output is None:
        return fmt
    if fmt is None:
        return format_of(output)
    agree(output, fmt)
    return fmt


def options_of(fmt: str | None, options: dict[str, Any], *more: str) -> dict[str, Any]:
    """Take the options of `of_pictures` out of a command's, and return those that were given.

    Args:
        fmt: The format to write, if anything is written.
        options: Of the command.
        more: Names of other options that formats have.

    Raises:
        click.UsageError: The format has no such option.
    """
    asked = {name: options.pop(name) for name in (*_OPTIONS, *more)}
    given = {name: value for name, value in asked.items() if value not in (None, False)}
    for name in given:
        if fmt is None:
            raise click.UsageError(
                f"--{name} is for a file; name one with -o, or its format with --to"
            )
        if name not in FORMATS[fmt].options:
            having = [to for to, known in FORMATS.items() if name in known.options]
            raise click.UsageError(f"--{name} is for --to {joined(having)}, not for {fmt}")
    return given
