"""What some devices spent some time on."""

from __future__ import annotations

from typing import Any

import msgspec

from bubblescope.model.budget import HIDDEN, HOST, IDLE, Use


class Spending(msgspec.Struct, frozen=True):
    """What some devices spent some time on, in nanoseconds.

    Attributes:
        total_ns: All of it: compute_ns, communication_exposed_ns, copy_exposed_ns and idle_ns.
        compute_ns: Kernels that compute were running.
        graphs_ns: The part of it in which only graphs ran that were recorded as a whole: the devices
            may have communicated or idled in them.
        communication_exposed_ns: Kernels that communicate were, and none that compute.
        communication_hidden_ns: Both were; it is part of compute_ns.
        copy_exposed_ns: Nothing but copies was running.
        copy_hidden_ns: Copies were running beneath something else.
        idle_ns: Nothing was running.
        idle: Class -> idle time, those that occur, in the order of `model.budget.IDLE`.
    """

    total_ns: int
    compute_ns: int
    graphs_ns: int
    communication_exposed_ns: int
    communication_hidden_ns: int
    copy_exposed_ns: int
    copy_hidden_ns: int
    idle_ns: int
    idle: dict[Use, int]

    @classmethod
    def of(cls, spent: dict[Use, int], graphs_ns: int = 0) -> Spending:
        """Sum up what was spent on each use, and on graphs as part of what computes."""
        idle: dict[Use, int] = {use: spent[use] for use in IDLE if spent.get(use)}
        parts = [spent.get(use, 0) for use in (Use.COMPUTE, Use.COMMUNICATION, Use.COPY)]
        hidden = [spent.get(use, 0) for use in HIDDEN]
        rest = sum(idle.values())
        return cls(
            total_ns=sum(parts) + rest,
            compute_ns=parts[0],
            graphs_ns=graphs_ns,
            communication_exposed_ns=parts[1],
            communication_hidden_ns=hidden[0],
            copy_exposed_ns=parts[2],
            copy_hidden_ns=hidden[1],
            idle_ns=rest,
            idle=idle,
        )

    @property
    def host_late_ns(self) -> int:
        """Idle time for which the host launched late, whatever it did instead."""
        return sum(self.idle.get(use, 0) for use in HOST)

    def lost_ns(self, use: Use) -> int:
        """Return the time of a class that is not computing."""
        busy = {
            Use.COMMUNICATION: self.communication_exposed_ns,
            Use.COPY: self.copy_exposed_ns,
        }
        return busy.get(use, self.idle.get(use, 0))

    def share(self, part_ns: int) -> float | None:
        """Return a part as a share of the whole; None if there is no time at all."""
        return part_ns / self.total_ns if self.total_ns else None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name != "idle"}
        idle = [{"class": use.value, "idle_ns": time} for use, time in self.idle.items()]
        return {**fields, "idle": idle}
