"""One of two layouts, by how long a line is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.measure import Measurement

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult


class ByWidth:
    """What is shown in one layout where that fits without breaking its lines, else in another.

    Args:
        roomy: For lines that are long enough.
        narrow: For others.
    """

    def __init__(self, roomy: RenderableType, narrow: RenderableType) -> None:
        self.roomy = roomy
        self.narrow = narrow

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbroken = Measurement.get(console, options.update(max_width=10_000), self.roomy).maximum
        yield self.roomy if unbroken <= options.max_width else self.narrow
