"""The terminal: where commands print, and how they show progress, warnings and files written."""

from __future__ import annotations

import os
import threading
import zlib
from codecs import getincrementaldecoder
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from rich.text import Text

from bubblescope.model.plain_text import utf8, whole
from bubblescope.render.json import pretty
from bubblescope.render.text.plain_console import PlainConsole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from rich.console import RenderableType
    from rich.progress import Progress

    from bubblescope.model.timeline import Timeline
    from bubblescope.render.text.face import Answer

_PATIENCE_S: Final = 1.0
_PIECE: Final = 1 << 20
"""Characters of JSON that are printed at once; what is shorter is not compressed."""

out = PlainConsole()
err = PlainConsole(stderr=True)


class Bar:
    """Draws progress on the error stream, if somebody watches it and work takes over a second.

    Args:
        quiet: Whether to draw nothing.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._bar = None if quiet or not _watched() else _progress()

    def begin(self, what: str, total: int | None = None) -> None:
        """Start a phase, of an unknown extent if `total` is None; a phase before it is over."""
        if self._bar is not None:
            for task in self._bar.task_ids:
                self._bar.remove_task(task)
            self._bar.add_task(what, total=total)

    def advance(self, amount: int = 1) -> None:
        """Move on."""
        if self._bar is not None:
            for task in self._bar.task_ids:
                self._bar.advance(task, amount)

    def __enter__(self) -> Bar:
        if self._bar is not None:
            self._start = threading.Timer(_PATIENCE_S, self._bar.start)
            self._start.daemon = True
            self._start.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._start.cancel()
            if self._bar.live.is_started:  # else a line's end would be printed for nothing
                self._bar.stop()


def _watched() -> bool:
    """Say whether the error stream is a terminal, and not that of a build that nobody watches.

    Rich also takes a pipe for a terminal, where colours are forced.
    """
    return err.file.isatty() and not err.is_dumb_terminal and not os.environ.get("CI")


def _progress() -> Progress:
    """Return a bar, which is not drawn yet."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415  slow, and only terminals need it

    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    return Progress(*columns, console=err, transient=True)


class Compressed(msgspec.Struct, frozen=True):
    """Long JSON on its way between processes: a tenth of its length, and printed piece by piece."""

    content: bytes

    def pieces(self) -> Iterator[str]:
        """Yield the text."""
        unpacking, decoding = zlib.decompressobj(), getincrementaldecoder("utf-8")()
        rest = self.content
        while rest:
            yield decoding.decode(unpacking.decompress(rest, _PIECE))
            rest = unpacking.unconsumed_tail
        yield decoding.decode(unpacking.flush(), final=True)


class Said(msgspec.Struct, frozen=True):
    """An answer as it is printed.

    Attributes:
        shown: To be laid out by a console; a string is JSON, and stays as it is.
        warnings: What is to be said beside it.
    """

    shown: RenderableType | Compressed
    warnings: tuple[str, ...] = ()


def said(found: Answer, *, as_json: bool = False, everything: bool = False) -> Said:
    """Return an answer as it is printed; see `answer`."""
    return Said(pretty(found.to_dict()) if as_json else found.shown(everything=everything))


def compressed(answered: Said) -> Said:
    """Return the same to be sent elsewhere: JSON that is long is compressed."""
    if not isinstance(answered.shown, str) or len(answered.shown) < _PIECE:
        return answered
    return msgspec.structs.replace(
        answered, shown=Compressed(zlib.compress(answered.shown.encode(), 1))
    )


def answer(found: Answer, *, as_json: bool = False, everything: bool = False) -> None:
    """Print an answer.

    Args:
        found: The answer.
        as_json: As JSON.
        everything: All of it, however long.
    """
    say(said(found, as_json=as_json, everything=everything))


def say(answered: Said, *, quiet: bool = True) -> None:
    """Print an answer, and its warnings unless `quiet`."""
    if isinstance(answered.shown, str):
        click.echo(answered.shown)
    elif isinstance(answered.shown, Compressed):
        for piece in answered.shown.pieces():
            click.echo(piece, nl=False)
        click.echo()
    else:
        out.print(answered.shown, crop=False)
        warned(answered.warnings, quiet=quiet)


def print_json(value: Any) -> None:
    """Print plain values as JSON."""
    click.echo(pretty(value))


def warn(timeline: Timeline, *, quiet: bool) -> None:
    """Print the warnings of a timeline on the error stream."""
    warned([notice.message for notice in timeline.run.warnings], quiet=quiet)


def warned(warnings: Iterable[str], *, quiet: bool) -> None:
    """Print warnings on the error stream."""
    if not quiet:
        for text in warnings:
            err.print(Text.assemble(("warning  ", "yellow"), text))


def writable(path: Path) -> Path:
    """Return the path of a file to write.

    Raises:
        click.UsageError: It is a folder, or its folder does not exist.
    """
    if not utf8(path):
        raise click.UsageError(f"{whole(str(path))} is not valid UTF-8; give the file another name")
    if path.is_dir():
        raise click.UsageError(f"{path} is a folder; name a file to write")
    if not path.parent.exists():
        raise click.UsageError(f"{path.parent} does not exist; make it first")
    return path


@contextmanager
def writing(path: Path, *, quiet: bool) -> Iterator[Bar]:
    """Show what is going on while a file is written; what writes it may tell the bar more.

    Where the file is a pipe, its reader may have had enough: that is no error.
    """
    with Bar(quiet=quiet) as bar, suppress(BrokenPipeError):
        bar.begin(f"writing {path.name}")
        yield bar


def wrote(path: Path) -> None:
    """Say that a file was written, and how large it is."""
    out.print(Text(f"wrote {path} ({path.stat().st_size / 1e6:.2f} MB)"), soft_wrap=True)
