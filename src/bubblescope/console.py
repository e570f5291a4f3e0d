"""The terminal: where commands print, and how they show progress, warnings and files written."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from bubblescope.plain import utf8, visible, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from rich.console import ConsoleOptions, RenderableType
    from rich.segment import Segment

    from bubblescope.timeline import Timeline

__all__ = ["LONGEST", "Bar", "PlainConsole", "err", "out", "warn", "writable", "writing", "wrote"]

_PATIENCE_S: Final = 1.0

LONGEST: Final = 4_000
"""Characters that are shown of one text."""


class PlainConsole(Console):
    """A console that shows text as text, and of a very long one its beginning."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render something, and what it is made of in turn."""
        if isinstance(renderable, str):
            renderable = self.render_str(renderable)
        if isinstance(renderable, Text):
            renderable = _shown(renderable)
        return super().render(renderable, options)

    def render_lines(self, renderable: RenderableType, *arguments: Any, **options: Any) -> Any:
        """Render the cells of tables, which come this way."""
        if isinstance(renderable, Text):
            renderable = _shown(renderable)
        return super().render_lines(renderable, *arguments, **options)


def _shown(text: Text) -> Text:
    said = text.plain
    clean = visible(said)
    if clean == said and len(said) <= LONGEST:
        return text
    shown = text.copy()
    shown.plain = clean
    if len(said) > LONGEST:
        shown.truncate(LONGEST)
        shown.append(f"… ({len(said):,} characters)")
    return shown


out = PlainConsole(highlight=False, markup=False)
err = PlainConsole(stderr=True, highlight=False, markup=False)


class Bar:
    """Draws progress on the error stream, if that is a terminal and work takes over a second."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=err,
            transient=True,
        )
        self._start = threading.Timer(_PATIENCE_S, self._bar.start)
        self._start.daemon = True

    def begin(self, what: str, total: int | None) -> None:
        """Start a phase, of an unknown extent if `total` is None; a phase before it is over."""
        for task in self._bar.task_ids:
            self._bar.remove_task(task)
        self._bar.add_task(what, total=total)

    def advance(self, amount: int = 1) -> None:
        """Move on."""
        for task in self._bar.task_ids:
            self._bar.advance(task, amount)

    def __enter__(self) -> Bar:
        if err.is_terminal:
            self._start.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._start.cancel()
        self._bar.stop()


def warn(timeline: Timeline, *, quiet: bool) -> None:
    """Print the warnings of a timeline on the error stream."""
    if not quiet:
        for notice in timeline.run.warnings:
            err.print(Text.assemble(("warning  ", "yellow"), notice.message))


def writable(path: Path) -> Path:
    """Return the path of a file to write.

    Raises:
        click.UsageError: It is a folder, or its folder does not exist.
    """
    if not utf8(path):
        raise click.UsageError(f"{whole(str(path))} is no UTF-8; give the file another name")
    if path.is_dir():
        raise click.UsageError(f"{path} is a folder; name a file to write")
    if not path.parent.exists():
        raise click.UsageError(f"{path.parent} does not exist; make it first")
    return path


@contextmanager
def writing(path: Path, *, quiet: bool) -> Iterator[None]:
    """Show that something is going on while a file is written."""
    with Bar() as bar:
        if not quiet:
            bar.begin(f"writing {path.name}", None)
        yield


def wrote(path: Path) -> None:
    """Say that a file was written, and how large it is."""
    out.print(Text(f"wrote {path} ({path.stat().st_size / 1e6:.2f} MB)"), soft_wrap=True)
