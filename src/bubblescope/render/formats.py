"""The files that can be made of a run, by name. None of those that write them analyses anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from bubblescope.model.errors import BubblescopeError
from bubblescope.model.registry import Registry, resolve
from bubblescope.model.units import joined

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Format(msgspec.Struct, frozen=True):
    """One output format.

    Another package adds one by declaring an object of this class as an entry point in the group
    ``bubblescope.exports``.

    Attributes:
        write: The function that writes it, or where that is ("package.module:function"), so that it
            is imported when first used; called with what it `takes`, a path and options.
        suffix: Usual ending of its files.
        summary: What it is for.
        options: Names of the function's options, all of which can be left out.
        takes: What is written: the `Timeline` alone, what a picture shows of it (`Pictured`), or all
            that was worked out for the page (`View`).
    """

    write: str | Callable[..., Any]
    suffix: str
    summary: str
    options: tuple[str, ...] = ()
    takes: Literal["timeline", "pictured", "view"] = "timeline"

    def writer(self) -> Callable[..., Any]:
        """Return the function that writes it."""
        found: Callable[..., Any] = (
            resolve(self.write) if isinstance(self.write, str) else self.write
        )
        return found


FORMATS: Final[Registry[Format]] = Registry(
    "bubblescope.exports",
    {
        "perfetto": Format(
            "bubblescope.render.traces.perfetto:write",
            ".pftrace",
            "https://ui.perfetto.dev",
            ("kernels",),
        ),
        "perfetto-tar": Format(
            "bubblescope.render.traces.perfetto_archive:write",
            ".perfetto.tar",
            "the same with the raw traces beside it, on one clock",
            ("kernels",),
        ),
        "chrome": Format(
            "bubblescope.render.traces.chrome:write",
            ".trace.json",
            "Chrome trace-event viewers",
            ("kernels",),
        ),
        "html": Format(
            "bubblescope.render.html.page:write",
            ".html",
            "any browser, offline",
            ("title", "kernels"),
            takes="view",
        ),
        "svg": Format(
            "bubblescope.render.picture.svg:write",
            ".svg",
            "papers and slides",
            ("width", "look", "title"),
            takes="pictured",
        ),
        "pdf": Format(
            "bubblescope.render.picture.pdf:write",
            ".pdf",
            "papers",
            ("width", "look", "title"),
            takes="pictured",
        ),
        "png": Format(
            "bubblescope.render.picture.png:write",
            ".png",
            "slides and documents",
            ("width", "look", "title", "dpi"),
            takes="pictured",
        ),
        "parquet": Format(
            "bubblescope.render.table_files:write_parquet",
            ".bubbles.parquet",
            "programs; bubblescope reads it back",
            ("kernels",),
        ),
        "csv": Format(
            "bubblescope.render.table_files:write_csv", ".csv", "spreadsheets", ("kernels",)
        ),
        "json": Format(
            "bubblescope.render.table_files:write_json", ".json", "programs", ("kernels",)
        ),
    },
)
"""Every output format by name."""


def checked(name: str, options: dict[str, Any]) -> Format:
    """Return a format that has these options.

    Raises:
        BubblescopeError: There is none of that name, or it has no such option.
    """
    if name not in FORMATS:
        raise BubblescopeError(
            f"{name!r} is not an output format; the formats are {', '.join(FORMATS)}"
        )
    chosen = FORMATS[name]
    for option in options:
        if option not in chosen.options:
            having = [other for other, known in FORMATS.items() if option in known.options]
            meant = f"it is an option of {joined(having)}" if having else "no format has it"
            raise BubblescopeError(f"{name} has no option {option}; {meant}")
    return chosen


def format_of(path: Path) -> str:
    """Return the name of the format that a file's ending stands for.

    Raises:
        BubblescopeError: It is the ending of none.
    """
    for name, known in sorted(FORMATS.items(), key=lambda item: -len(item[1].suffix)):
        if path.name.lower().endswith(known.suffix):
            return name
    raise BubblescopeError(
        f"{path.name} has the ending of no known format; name the format with --to"
    )


def picture_format_of(path: Path) -> str:
    """Return which picture a file's ending stands for: the name of a format; "svg" if it says nothing.

    Raises:
        BubblescopeError: It is the ending of something else than a picture.
    """
    pictures = {name: one.suffix for name, one in FORMATS.items() if one.takes == "pictured"}
    for name, suffix in pictures.items():
        if path.suffix.lower() == suffix:
            return name
    if _ending(path.name) in _endings():
        raise BubblescopeError(
            f"{path.name} has the ending of a {_ending(path.name)} file, but this writes a picture; "
            f"let it end in {joined([*pictures.values()], 'or')}"
        )
    return "svg"


def write_picture(shown: Any, path: Path, *, to: str | None = None, **options: Any) -> Path:
    """Draw runs that are pictured already.

    Args:
        shown: A `Pictured`, or several, which stand below each other.
        path: The file to write.
        to: Name of the format; by default, what the file's ending stands for.
        options: Those that the format has.
    """
    FORMATS[to or picture_format_of(path)].writer()(shown, path, **options)
    return path


def agree(path: Path, name: str) -> None:
    """Refuse to write a format to a file that is named as if it were something else.

    An ending that says nothing, such as that of a device, agrees with every format.

    Raises:
        BubblescopeError: The file has the ending of another format, or of one that nothing here writes.
    """
    suffix = FORMATS[name].suffix
    if _ending(path.name) in _endings() - {_ending(suffix)}:
        raise BubblescopeError(
            f"{path.name} has the ending of a {_ending(path.name)} file, but this writes {name}; "
            f"name it {path.stem.removesuffix(suffix)}{suffix}"
        )


_NEVER_WRITTEN: Final = frozenset(
    (
        *("jpg", "jpeg", "gif", "webp", "avif", "bmp", "tif", "tiff", "eps", "ps", "emf", "svgz"),
        *("gz", "bz2", "xz", "zst", "zip"),
        *("xls", "xlsx", "ods", "doc", "docx", "odt", "ppt", "pptx", "odp", "db", "sqlite"),
    )
)
"""Endings of pictures, compressed files and documents of which no format is one."""


def _ending(name: str) -> str:
    """Return what follows the last dot of a name; nothing if it has none."""
    _, dot, ending = name.rpartition(".")
    return ending.lower() if dot else ""


def _endings() -> frozenset[str]:
    """Return all endings that say what a file is."""
    return _NEVER_WRITTEN | {_ending(known.suffix) for _, known in FORMATS.items()}
