"""Files made from a timeline, one module per format. None of them analyses anything."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from bubblescope.errors import BubblescopeError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from bubblescope.timeline import Timeline

__all__ = ["FORMATS", "Format", "export"]


class Format(msgspec.Struct, frozen=True):
    """One output format.

    Attributes:
        module: Module with the function that writes it, imported when first used.
        function: Name of that function, called with a timeline and a path.
        suffix: Usual ending of its files.
        summary: What it is for.
    """

    module: str
    function: str
    suffix: str
    summary: str


FORMATS: Final[Mapping[str, Format]] = MappingProxyType(
    {
        "perfetto": Format("perfetto", "write", ".pftrace", "https://ui.perfetto.dev"),
        "chrome": Format("chrome", "write", ".trace.json", "Chrome trace-event viewers"),
        "html": Format("html", "write", ".html", "any browser, offline"),
        "svg": Format("svg", "write", ".svg", "papers and slides"),
        "parquet": Format(
            "tables", "write_parquet", ".bubbles.parquet", "programs; bubblescope reads it back"
        ),
        "csv": Format("tables", "write_csv", ".csv", "spreadsheets"),
        "json": Format("tables", "write_json", ".json", "programs"),
    },
)
"""Every output format by name."""


def export(timeline: Timeline, name: str, path: Path) -> Path:
    """Write a timeline in the format of that name; return the path.

    Raises:
        BubblescopeError: There is no format of that name.
        OSError: The file cannot be written; what was there before is left as it was.
    """
    if name not in FORMATS:
        raise BubblescopeError(
            f"{name!r} is no output format; the formats are {', '.join(FORMATS)}"
        )
    chosen = FORMATS[name]
    write = getattr(import_module(f"{__name__}.{chosen.module}"), chosen.function)
    write(timeline, path)
    return path
