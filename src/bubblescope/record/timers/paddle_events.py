"""A clock that times tasks by Paddle's CUDA events."""

from __future__ import annotations

import sys
from typing import Any

from bubblescope.record.timers.events import CudaTimer


class PaddleTimer(CudaTimer):
    """CUDA events of Paddle, on its current stream.

    Args:
        device: Something with the `Event` and `synchronize` of `paddle.device`, which is the default.
    """

    def __init__(self, device: Any = None) -> None:
        super().__init__(device or sys.modules["paddle"].device)
