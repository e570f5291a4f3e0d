"""Where commands write, and showing what they wrote."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

import click

from bubblescope.cli.console import writable
from bubblescope.sources import find


def output_path(paths: tuple[str, ...], output: Path | None, suffix: str) -> Path:
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


def open_page(address: str) -> bool:
    """Open a page in a browser, and say whether there is one."""
    if sys.platform.startswith("linux") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        return False
    return webbrowser.open(address)
