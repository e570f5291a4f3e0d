"""Kernels that move data between devices, told by the names of their libraries."""

from __future__ import annotations

import re
from typing import Final

_LIBRARIES: Final = re.compile(r"nccl|rccl|hccl|nvshmem|msccl|deep_?ep", re.IGNORECASE)


def is_communication_kernel(name: str) -> bool:
    """Say whether a kernel moves data between devices, judged by its library's name."""
    return _LIBRARIES.search(name) is not None
