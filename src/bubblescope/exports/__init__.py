"""Files made from a timeline, one module per format. None of them analyses anything."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

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
        options: Names of the function's other arguments, all of them optional.
    """

    module: str
    function: str
    suffix: str
    summary: str
    options: tuple[str, ...] = ()


FORMATS: Final[Mapping[str, Format]] = MappingProxyType(
    {
        "perfetto": Format("perfetto", "write", ".pftrace", "https://ui.perfetto.dev"),
        "chrome": Format("chrome", "write", ".trace.json", "Chrome trace-event viewers"),
        "html": Format("html", "write", ".html", "any browser, offline"),
        "svg": Format("svg", "write", ".svg", "papers and slides", ("width", "look")),
        "png": Format("png", "write", ".png", "slides and documents", ("width", "look", "dpi")),
        "parquet": Format(
            "tables", "write_parquet", ".bubbles.parquet", "programs; bubblescope reads it back"
        ),
        "csv": Format("tables", "write_csv", ".csv", "spreadsheets"),
        "json": Format("tables", "write_json", ".json", "programs"),
    },
)
"""Every output format by name."""


def export(timeline: Timeline, name: str, path: Path, **options: Any) -> Path:
    """Write a timeline in the format of that name; return the path.

    Args:
        timeline: What to write.
        name: One of `FORMATS`.
        path: The file to write.
        options: Those that the format has, such as the `width` of a picture.

    Raises:
        BubblescopeError: There is no format of that name, it has no such option, or a value is not
            one of the option's.
        OSError: The file cannot be written; what was there before is left as it was.
    """
    if name not in FORMATS:
        raise BubblescopeError(
            f"{name!r} is no output format; the formats are {', '.join(FORMATS)}"
        )
    chosen = FORMATS[name]
    for option in options:
        if option not in chosen.options:
            having = [other for other, format_ in FORMATS.items() if option in format_.options]
            meant = f"it is an option of {' and '.join(having)}" if having else "no format has it"
            raise BubblescopeError(f"{name} has no option {option}; {meant}")
    write = getattr(import_module(f"{__name__}.{chosen.module}"), chosen.function)
    write(timeline, path, **options)
    return path
