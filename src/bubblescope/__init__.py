"""bubblescope, the profiler for pipeline-parallel training.

>>> import bubblescope
>>> run = bubblescope.load("trace.sqlite")        # doctest: +SKIP
>>> run.report()                                  # doctest: +SKIP
>>> run.view("timeline.html")                     # doctest: +SKIP

Nothing is loaded before it is used: a job that records must not pay for what reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bubblescope.model.errors import (
    BubblescopeError,
    NamesError,
    RecorderError,
    ScheduleError,
    SourceError,
    TimelineError,
)
from bubblescope.model.kinds import Kind, Lane
from bubblescope.model.version import __version__

if TYPE_CHECKING:
    from bubblescope.facade import (
        Trace,
        compare,
        export,
        info,
        kernels,
        load,
        picture,
        report,
        show,
        simulate,
        stragglers,
        view,
        whatif,
        why,
    )
    from bubblescope.model.timeline import Timeline, concat

__all__ = [
    "BubblescopeError",
    "Kind",
    "Lane",
    "NamesError",
    "RecorderError",
    "ScheduleError",
    "SourceError",
    "Timeline",
    "TimelineError",
    "Trace",
    "__version__",
    "compare",
    "concat",
    "export",
    "info",
    "kernels",
    "load",
    "picture",
    "report",
    "show",
    "simulate",
    "stragglers",
    "view",
    "whatif",
    "why",
]


_MODEL = ("Timeline", "concat")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODEL:
        from bubblescope.model import timeline  # noqa: PLC0415  it loads Polars

        return getattr(timeline, name)
    from bubblescope import facade  # noqa: PLC0415  it loads all that reads

    return getattr(facade, name)


def __dir__() -> list[str]:
    return __all__
