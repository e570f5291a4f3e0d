"""What is done with memory that was freed, by the C library and by Polars' own allocator."""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


ALLOCATOR: Final = "_RJEM_MALLOC_CONF"
"""Sets Polars' allocator, jemalloc, which reads it when Polars is loaded."""

_OF_POLARS: Final = "dirty_decay_ms:500,muzzy_decay_ms:1000"
"""What Polars itself writes there when it is imported, before what is said already."""

OF_COMMANDS: Final = "narenas:1,muzzy_decay_ms:0,dirty_decay_ms:100"
"""How a command keeps what Polars has freed: in one place for all threads, so that what one has freed
another takes; for a tenth of a second, since what comes next may be NumPy's, which takes none of it;
and it counts as ours until it is returned, which costs no more time when done at once."""

OF_WORKERS: Final = "narenas:1,muzzy_decay_ms:0,dirty_decay_ms:10000,oversize_threshold:0"
"""How a worker does: what frames gave back, large ones too, is kept for ten seconds. The next job is
mostly like the last, and takes it again without the system having to clear it, a twentieth of all time
else."""


def allocator_options(ours: str) -> str:
    """Return what to set `ALLOCATOR` to: our options, then those of the user, of which the last count.

    What Polars wrote in a process that started this one was said by no user, and does not count; nor
    does what a command of ours said for itself.

    Args:
        ours: `OF_COMMANDS` or `OF_WORKERS`.
    """
    said = f",{os.environ.get(ALLOCATOR, '')},"
    for of_no_user in (_OF_POLARS, OF_COMMANDS, OF_WORKERS):
        said = re.sub(f"(?<=,){of_no_user}(?=,)", "", said)
    return ",".join([ours, *filter(None, said.split(","))])


def reuse() -> None:
    """Let large arrays lie where others were, for the rest of the process, until `give_back`.

    Else glibc asks the system for the memory of each and returns it with the array, and a third of all
    pages of a large run are made and cleared again for that. And each thread would keep what it has
    freed for itself: so it is for processes that are ours alone, and before they have threads.
    """
    if (options := _of_glibc("mallopt")) is not None:
        for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            options(option, _LARGE)
        options(_TOP_PAD, _AT_ONCE)
        options(_ARENA_MAX, 1)


_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
"""Options of `mallopt` as malloc.h numbers them."""
_LARGE: Final = 128 << 20
_AT_ONCE: Final = 16 << 20
"""Bytes above which an array has memory of its own, and by which the memory of the others grows."""


def give_back() -> None:
    """Return to the system what arrays took that are gone, before more is needed of another kind.

    glibc keeps it, in case as much is asked for again: after the many arrays of a large run, nearly as
    much as is in use. Looking for it takes some milliseconds.
    """
    if (trim := _of_glibc("malloc_trim")) is not None:
        trim(0)


@cache
def _of_glibc(name: str) -> Callable[..., int] | None:
    """Return a function of glibc's allocator; None where there is another C library."""
    if sys.platform != "linux":
        return None
    import ctypes  # noqa: PLC0415  commands that start at once ask for no memory

    return getattr(ctypes.CDLL(None), name, None)
