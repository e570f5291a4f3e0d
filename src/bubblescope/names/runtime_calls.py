"""Calls of a device's runtime in which the host waits for the device."""

from __future__ import annotations

import re
from enum import Enum
from functools import cache
from typing import Final

_RUNTIMES: Final = r"(?:cuda|cu|hip|musa|mu|aclrt|ze|zeCommandQueue)"
_WAITS: Final = re.compile(_RUNTIMES + r"\w*Synchronize\w*")
_COPIES: Final = re.compile(_RUNTIMES + r"Memcpy\w*")


class Blocks(Enum):
    """Whether a call blocks its thread until the device is done."""

    NEVER = 0
    ALWAYS = 1
    IF_LONG = 2
    """A copy that is called asynchronous blocks if the host's memory is pageable, or a queue is full:
    it then takes long."""


@cache
def blocks(name: str) -> Blocks:
    """Say whether a call blocks, by its name, with or without a version: cudaMemcpy_v3020.

    The behaviour of copies is that of "API synchronization behavior" in the CUDA Runtime API.
    """
    if _WAITS.fullmatch(name):
        return Blocks.ALWAYS
    if _COPIES.fullmatch(name):
        return Blocks.IF_LONG if "Async" in name else Blocks.ALWAYS
    return Blocks.NEVER
