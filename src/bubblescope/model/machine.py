"""What there is of the machine that this process runs on."""

from __future__ import annotations

import gc
import os
from typing import Final

_OBJECTS: Final = 200_000
"""New objects after which Python looks for garbage in cycles: what loading modules makes is none."""


def cores() -> int:
    """Return how many processors this process may use, or, where no system says, how many there are."""
    if hasattr(os, "sched_getaffinity"):  # Linux, and some others
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def seldom_collect() -> None:
    """Have Python look for garbage in cycles only seldom. For processes that are ours alone."""
    gc.set_threshold(_OBJECTS)
