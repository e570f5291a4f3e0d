"""What there is of the machine that this process runs on."""

from __future__ import annotations

import os


def cores() -> int:
    """Return how many processors this process may use, or, where no system says, how many there are."""
    if hasattr(os, "sched_getaffinity"):  # Linux, and some others
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
