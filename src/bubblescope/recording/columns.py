"""What a recording holds: its columns, and what its first row says of the rank."""

from __future__ import annotations

from typing import Final

import msgspec

FORMAT: Final = 1

COLUMNS: Final[dict[str, str]] = {
    "kind": "text",
    "lane": "text",
    "step": "int32",
    "stage": "int32",
    "chunk": "int16",
    "microbatch": "int32",
    "pair_stage": "int32",
    "pair_chunk": "int16",
    "pair_microbatch": "int32",
    "peer": "int32",
    "start_ns": "int64",
    "end_ns": "int64",
    "host_start_ns": "int64",
    "host_end_ns": "int64",
    "name": "text",
}
"""Columns of the stream and their types. Times are on the host's monotonic clock."""

BUSY: Final = "busy_ns"
WITH_BUSY: Final[dict[str, str]] = {**COLUMNS, BUSY: "int64"}
"""The same of a timer that sees kernels: how long any of a task's ran. Null for a task without."""


SPOILED: Final = "failed step"
"""Name of the row that says that what was recorded before it of the same step failed."""

WAITING: Final = "waiting for send"
"""Name of a task of kind other, among communication, in which a rank waited until a send was done; its
stage and micro-batch are those that it was for."""


class Header(msgspec.Struct, frozen=True):
    """What a recording says of its rank.

    Attributes:
        format: Version of this format.
        version: Version of bubblescope that recorded.
        rank, stages, host, process, device, dp, tp, cp: As in `Timeline.ranks`.
        boot: Identifies the host's boot; recordings of one boot share a monotonic clock.
        utc_ns: UTC minus the monotonic clock, when recording began.
        timer: Name of the timer.
        schedule, microbatches: As the job declared them.
        recorded_by: What recorded: the framework whose schedules the job used, "loop" for a loop of its
            own; None for marks set by hand.
        before: Tasks that were recorded before this file, which has a limit.
    """

    format: int
    version: str
    rank: int
    stages: list[int] | None
    host: str
    process: int
    device: int | None
    boot: str
    utc_ns: int
    timer: str
    schedule: str | None = None
    microbatches: int | None = None
    dp: int | None = None
    tp: int | None = None
    cp: int | None = None
    recorded_by: str | None = None
    before: int = 0

    @property
    def timed(self) -> str | None:
        """What the times are of, as `timed` of `Timeline.ranks`: null of a timer that is not ours."""
        return _TIMED.get(self.timer)


_TIMED: Final = {"cpu": "host", "cuda": "device", "npu": "device", "cupti": "device"}
"""What the times of our timers are of, by their names; PyTorch's for ROCm and Paddle's are "cuda"."""
