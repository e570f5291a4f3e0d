"""bubblescope, the profiler for pipeline-parallel training.

>>> import bubblescope
>>> timeline = bubblescope.load("trace.sqlite")        # doctest: +SKIP
>>> timeline.report()                                  # doctest: +SKIP
>>> timeline.to_html("timeline.html")                  # doctest: +SKIP
"""

from __future__ import annotations

from bubblescope.errors import (
    BubblescopeError,
    NamesError,
    RecorderError,
    SourceError,
    TimelineError,
)
from bubblescope.sources import load
from bubblescope.timeline import Timeline, concat
from bubblescope.vocabulary import Kind, Lane

__version__ = "0.1.0"

__all__ = [
    "BubblescopeError",
    "Kind",
    "Lane",
    "NamesError",
    "RecorderError",
    "SourceError",
    "Timeline",
    "TimelineError",
    "__version__",
    "concat",
    "load",
]
