"""The face that all answers have: a line, what a command prints, a page in a notebook, JSON.

What an answer is made of stands in `bubblescope.analysis`, how it is laid out in
`bubblescope.render.text`; there, an answer is the one with this face.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final, Protocol

from bubblescope.render.json import pretty
from bubblescope.render.text.plain_console import PlainConsole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from bubblescope.analysis.picture_data import Pictured

_WIDTH: Final = 110
"""Characters of a line in a notebook."""
_FONT: Final = "Menlo,Consolas,DejaVu Sans Mono,monospace"
_TEXT: Final = f'<pre style="line-height:1.25;font-family:{_FONT}">{{code}}</pre>'


class Answer(Protocol):
    """What an answer brings."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, with its schema."""

    def pictured(self) -> Sequence[Pictured]:
        """Return what its picture shows, top to bottom; nothing for none."""

    def shown(self, *, everything: bool = False) -> RenderableType:
        """Return what the command prints."""

    def headline(self) -> str:
        """Return it in one line."""


class Face:
    """How an answer shows itself; mixed into those of `bubblescope.analysis`."""

    __slots__ = ()

    def __rich__(self: Answer) -> RenderableType:
        return self.shown()

    def __str__(self: Answer) -> str:
        out = io.StringIO()
        PlainConsole(file=out, color_system=None).print(self.shown(), crop=False)
        return out.getvalue()

    def __repr__(self: Answer) -> str:
        return f"<{type(self).__name__}: {self.headline()}>"

    def _repr_html_(self: Answer) -> str:
        from bubblescope.render.picture import svg  # noqa: PLC0415  # a command draws none.

        panels = self.pictured()
        picture = svg.render(panels) if panels else ""
        console = PlainConsole(
            file=io.StringIO(),
            record=True,
            width=_WIDTH,
            force_jupyter=False,
            color_system="truecolor",
        )
        console.print(self.shown())
        return picture + console.export_html(inline_styles=True, code_format=_TEXT)

    def to_json(self: Answer) -> str:
        """Return the versioned JSON that the command prints with `--json`."""
        return pretty(self.to_dict())
