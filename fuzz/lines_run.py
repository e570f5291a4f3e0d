"""Which lines of bubblescope run for the first time: what makes an input worth more mutations."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import bubblescope

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

_PACKAGE: Final = str(Path(bubblescope.__file__).parent)
_ROOMS: Final = tuple(
    f"{_PACKAGE}/{room}/"
    for room in ("sources", "recording", "names", "model", "clocks", "schedules")
)
"""Where damage is met. What analyses has few branches for each of its lines."""


class LinesRun:
    """Notes lines that were not run before.

    A function is watched until all of its lines were run, so that this soon costs little.
    """

    def __init__(self) -> None:
        self._left: dict[CodeType, set[int]] = {}
        self.found: set[tuple[str, int]] = set()
        """Those that were run since it was last emptied."""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is run in this thread."""
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)

    def _called(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        code = frame.f_code
        left = self._left.get(code)
        if left is None:
            ours = code.co_filename.startswith(_ROOMS)
            left = {line for _, _, line in code.co_lines() if line} if ours else set()
            self._left[code] = left
        return self._ran if left else None

    def _ran(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "line":
            code, line = frame.f_code, frame.f_lineno
            left = self._left[code]
            if line in left:
                left.discard(line)
                self.found.add((code.co_filename[len(_PACKAGE) + 1 :], line))
        return self._ran
