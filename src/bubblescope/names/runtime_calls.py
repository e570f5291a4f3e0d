"""Calls of a device's runtime, by what they tell of a host that makes them while the device idles."""

from __future__ import annotations

import re
from enum import Enum
from functools import cache
from typing import Final

_RUNTIMES: Final = r"(?:cuda|cu|hip|musa|mu|aclrt|ze|zeCommandQueue)"
_WAITS: Final = re.compile(_RUNTIMES + r"\w*Synchronize\w*")
_COPIES: Final = re.compile(_RUNTIMES + r"Memcpy\w*")
_LAUNCHES: Final = re.compile(_RUNTIMES + r"\w*(?:Launch|Memset|MemPrefetch)\w*")
_OTHERS: Final = re.compile(_RUNTIMES + r"[A-Z]\w*")
_MEMORY: Final = re.compile(_RUNTIMES + r"\w*(?:[Aa]lloc|Free|HostRegister|HostUnregister)\w*")


class Call(Enum):
    """What a call is for."""

    NOTHING = 0
    """It launches, or is none of the runtime."""
    WAITS = 1
    """It blocks its thread until the device is done."""
    COPIES = 2
    """A copy that is called asynchronous blocks if the host's memory is pageable, or a queue is full:
    it then takes long."""
    WORKS = 3
    """It does something itself: it allocates or frees memory, loads code, or sets up a stream. It may
    wait for the device besides, as cudaFree does."""


@cache
def what_for(name: str) -> Call:
    """Say what a call is for, by its name, with or without a version: cudaMemcpy_v3020.

    The behaviour of copies is that of "API synchronization behavior" in the CUDA Runtime API.
    """
    if _WAITS.fullmatch(name):
        return Call.WAITS
    if _COPIES.fullmatch(name):
        return Call.COPIES if "Async" in name else Call.WAITS
    if _OTHERS.fullmatch(name) and not _LAUNCHES.fullmatch(name):
        return Call.WORKS
    return Call.NOTHING


def is_of_memory(name: str) -> bool:
    """Say whether a call allocates or frees memory, or pins it."""
    return _MEMORY.fullmatch(name) is not None
