"""What a recording holds: its columns, and what its first row says of the rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from bubblescope.model.bounds import RANKS, Amount, Device, Int64, Place, Time

if TYPE_CHECKING:
    from collections.abc import Sequence

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

HEADER: Final = "header"
"""Stands for the kind of task in a row that holds the header, as JSON in its name."""
BUSY: Final = "busy_ns"
WITH_BUSY: Final[dict[str, str]] = {**COLUMNS, BUSY: "int64"}
"""The same of a timer that sees kernels: how long any of a task's ran. Null for a task without."""


PERIOD_S: Final = 0.25
"""How long tasks wait, once they have ended, until they are written, if they are timed on the host;
others are written as their step ends."""

LOOP: Final = "loop"
"""What a training loop written by hand is called among frameworks."""
SPOILED: Final = "failed step"
"""Name of the row that says that what was recorded before it of the same step failed."""

WAITING: Final = "waiting for send"
"""Name of a task of kind other, among communication, in which a rank waited until a send was done; its
stage and micro-batch are those that it was for."""

SENT: Final = "send"
RECEIVED: Final = "receive"
"""Names of collectives that are what a rank sends to another, or receives from it, within a pass of a
loop of its own; the other is their peer. Whether these are collectives, as those of ring attention are,
or what stages of a pipeline send each other, shows when all ranks are read."""

UNTIMED: Final = "untimed "
"""Before these, the names of rows, one of each at most, that say that a rank does so in forwards,
though it is not recorded: it is only where the host's clock times, without marks."""


class Membership(msgspec.Struct, frozen=True, omit_defaults=True):
    """A communication group that a rank is part of.

    Attributes:
        runs: Its global ranks in the group's own order, as stretches of equal distance: first rank,
            distance, how many. Those of large jobs would otherwise fill the file's first row.
        role, name, how, description, backend: As in `Timeline.groups`.
    """

    runs: tuple[tuple[Place, Int64, Place], ...]
    role: str | None = None
    name: str | None = None
    how: str | None = None
    description: str | None = None
    backend: str | None = None

    def __post_init__(self) -> None:
        """Refuse ranks that none can be: they are told in few words, and may fill the memory."""
        ends = [first + step * (count - 1) for first, step, count in self.runs if count]
        if any(not 0 <= end < RANKS for end in ends) or sum(run[2] for run in self.runs) > RANKS:
            raise ValueError("a group has ranks that no job has")

    @property
    def ranks(self) -> tuple[int, ...]:
        """Its global ranks, in the group's own order."""
        return tuple(
            first + turn * step for first, step, count in self.runs for turn in range(count)
        )


def runs_of(ranks: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Return ranks as stretches of equal distance, as `Membership` has them."""
    runs: list[tuple[int, int, int]] = []
    for rank in ranks:
        first, step, count = runs[-1] if runs else (0, 0, 0)
        if count == 1:
            runs[-1] = first, rank - first, 2
        elif count > 1 and rank == first + step * count:
            runs[-1] = first, step, count + 1
        else:
            runs.append((rank, 1, 1))
    return tuple(runs)


class Header(msgspec.Struct, frozen=True):
    """What a recording says of its rank.

    Attributes:
        format: Version of this format.
        version: Version of bubblescope that recorded.
        rank, stages, host, process, device, pp, dp, tp, cp, ep, etp, edp: As in `Timeline.ranks`.
        boot: Identifies the host's boot; recordings of one boot share a monotonic clock.
        utc_ns: UTC minus the monotonic clock, when recording began.
        timer: Name of the timer.
        schedule, microbatches: As the job declared them.
        recorded_by: What recorded: the framework whose schedules the job used, "loop" for a loop of its
            own; None for marks set by hand.
        before: Tasks that were recorded before this file, which has a limit.
        groups: The communication groups that it is part of, of more than one rank.
        dropped: Tasks that were not written until here, for there were too many to be held. Where it
            changes, the header is repeated in the midst of the file.
        dropped_steps: The first and the last step that they were of; None if they were of none.
        elsewhere: Steps that the job had made until here in other threads than the one that is
            recorded. The header is repeated for that too, though not for each.
    """

    format: int
    version: str
    rank: Place
    stages: list[Place] | None
    host: str
    process: Amount
    device: Device | None
    boot: str
    utc_ns: Time
    timer: str
    schedule: str | None = None
    microbatches: Place | None = None
    dp: Place | None = None
    tp: Place | None = None
    cp: Place | None = None
    recorded_by: str | None = None
    before: Amount = 0
    pp: Place | None = None
    ep: Place | None = None
    etp: Place | None = None
    edp: Place | None = None
    groups: tuple[Membership, ...] = ()
    dropped: Amount = 0
    dropped_steps: tuple[Int64, Int64] | None = None
    elsewhere: Amount = 0

    def of_its_rank(self) -> Header:
        """Return what is the same in all headers of a recording."""
        return msgspec.structs.replace(self, before=0, dropped=0, dropped_steps=None, elsewhere=0)

    @property
    def timed(self) -> str | None:
        """What the times are of, as `timed` of `Timeline.ranks`: null of a timer that is not ours."""
        return _TIMED.get(self.timer)


_TIMED: Final = {"cpu": "host", "cuda": "device", "npu": "device", "cupti": "device"}
"""What the times of our timers are of, by their names; PyTorch's for ROCm and Paddle's are "cuda"."""
