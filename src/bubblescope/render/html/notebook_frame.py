"""The page as a notebook shows it: in a frame of its own, with everything in it."""

from __future__ import annotations

import html
from typing import Final

_FRAME: Final = (
    '<iframe srcdoc="{page}" title="{title}" style="width:100%;height:{height}px;border:0" '
    'sandbox="allow-scripts allow-downloads allow-popups"></iframe>'
)
"""What is in it sees neither the notebook nor the cookies of its server: traces come from anybody."""


class FramedPage:
    """The interactive timeline, which a notebook shows below the cell that returns it.

    It needs neither a network nor a package of the notebook's: it is the page of `Trace.view`, saved
    with the notebook's output.

    Args:
        page: The page, as `bubblescope.render.html.page.render` returns it.
        height: Of the frame, in pixels.
        title: What screen readers call it.

    Attributes:
        page: The page's HTML.
        height: Of the frame, in pixels.
    """

    __slots__ = ("_title", "height", "page")

    def __init__(self, page: str, *, height: int = 640, title: str = "timeline") -> None:
        self.page = page
        self.height = height
        self._title = title

    def __repr__(self) -> str:
        megabytes = len(self.page.encode()) / 1e6
        return f"<{type(self).__name__}: {self._title}, {megabytes:.2f} MB; a notebook shows it>"

    def _repr_html_(self) -> str:
        return _FRAME.format(
            page=html.escape(self.page), title=html.escape(self._title), height=self.height
        )
