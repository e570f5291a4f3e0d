"""A console that shows text of traces as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.text import Text

from bubblescope.model import language
from bubblescope.model.plain_text import visible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, RenderableType
    from rich.segment import Segment

_LONGEST: Final = 4_000
"""Characters that are shown of one text."""


class PlainConsole(Console):
    """A console that shows text as text, and of a very long one its beginning.

    Args:
        options: Those of Rich's console.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render something, and what it is made of in turn."""
        if language.current() != language.ENGLISH:
            from bubblescope.render.text.translated import translated  # noqa: PLC0415  English needs none

            renderable = translated(renderable)
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
    if clean == said and len(said) <= _LONGEST:
        return text
    shown = text.copy()
    shown.plain = clean
    if len(said) > _LONGEST:
        shown.truncate(_LONGEST)
        shown.append(f"… ({len(said):,} characters)")
    return shown
