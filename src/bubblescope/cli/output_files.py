"""Where commands write, and showing what they wrote."""

from __future__ import annotations

import html
import os
import sys
import tempfile
import webbrowser
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from bubblescope.cli.console import writable
from bubblescope.sources import find

if TYPE_CHECKING:
    from collections.abc import Iterator

_REDIRECT: Final = (
    '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
    '<meta http-equiv="refresh" content="0; url={0}"><title>bubblescope</title><a href="{0}">{0}</a>'
)


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


@contextmanager
def redirect(address: str) -> Iterator[str]:
    """Yield the address of a file that leads to another address, while the file is there.

    Nobody else may read it, but everybody on a machine sees with which arguments a browser is started.
    """
    with tempfile.TemporaryDirectory(prefix="bubblescope-") as private:  # of mode 0700
        page = Path(private) / "open.html"
        page.write_text(_REDIRECT.format(html.escape(address)), encoding="utf-8")
        yield page.as_uri()
