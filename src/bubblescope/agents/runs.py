"""The runs that an agent has loaded, from folders that it may read."""

from __future__ import annotations

import glob
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bubblescope.facade import Trace, load
from bubblescope.model.errors import BubblescopeError
from bubblescope.sources import find

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.sources.source import LoadOptions

MOST: Final = 8
"""Runs that are held; the one that was asked about longest ago makes room."""


class Runs:
    """Loads runs and keeps them by a name.

    Args:
        allowed: Folders below which traces may lie; without any, all that the user may read.
    """

    def __init__(self, allowed: Sequence[Path] = ()) -> None:
        self._allowed = [folder.resolve() for folder in allowed]
        self._held: dict[str, Trace] = {}
        self._names = (f"run{number}" for number in count(1))

    def load(self, paths: Sequence[str], how: LoadOptions) -> tuple[str, Trace]:
        """Read a run; return what it is called from now on, and the run.

        Raises:
            BubblescopeError: A path is outside of what may be read, or no trace.
        """
        for path in paths:
            self._allow(_beginning(path))
        # What a pattern or a link leads to is known only now.
        for file in (
            find(paths, how.get("source"), how.get("attempt")).files if self._allowed else ()
        ):
            self._allow(file)
        run = load(paths, **how)
        name = next(self._names)
        self._held[name] = run
        for oldest in list(self._held)[:-MOST]:
            del self._held[oldest]
        return name, run

    def replace(self, name: str, run: Trace) -> Trace:
        """Let another run have a name, such as a part of it; return that."""
        self._held[name] = run
        return run

    def __getitem__(self, name: str) -> Trace:
        """Return a run by its name.

        Raises:
            BubblescopeError: There is none of that name.
        """
        if name not in self._held:
            held = ", ".join(self._held) or "none"
            raise BubblescopeError(f"{name!r} is no run that is loaded ({held} are); load it first")
        self._held[name] = run = self._held.pop(name)
        return run

    def _allow(self, path: Path) -> None:
        real = path.expanduser().resolve()
        if self._allowed and not any(real.is_relative_to(folder) for folder in self._allowed):
            folders = ", ".join(map(str, self._allowed))
            raise BubblescopeError(f"{path} is outside of what may be read here: {folders}")


def _beginning(path: str) -> Path:
    """Return a path up to where it becomes a pattern."""
    parts = Path(path).parts
    magic = next((at for at, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    return Path(*parts[: max(magic, 1)])
