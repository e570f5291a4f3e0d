"""The causes of idle time."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Cause(str, Enum):
    """Why a device was idle."""

    WARM_UP = "warm-up"
    STEADY = "steady"
    COOL_DOWN = "cool-down"
    IMBALANCE = "stage imbalance"
    SLOW_RANK = "slow rank"
    VARIATION = "micro-batch variation"
    ORDER = "order departure"
    TRANSFER = "exposed transfer"
    PAUSE = "host pause"
    LAUNCH = "host launch"
    SEND = "blocked send"
    CODE = "host code"
    SYNC = "synchronisation"
    UNEXPLAINED = "unexplained"
    CLOCK = "clock uncertainty"


MEANINGS: Final = {
    Cause.WARM_UP: "inherent to the schedule, before a rank's first backward",
    Cause.STEADY: "inherent to the schedule, between its first backward and last forward",
    Cause.COOL_DOWN: "inherent to the schedule, after its last forward",
    Cause.IMBALANCE: "stages do not cost the same",
    Cause.SLOW_RANK: "a rank is slower than others at the same stage, or than in other steps",
    Cause.VARIATION: "micro-batches do not cost the same",
    Cause.ORDER: "tasks ran in another order than the schedule's",
    Cause.TRANSFER: "results on their way between ranks",
    Cause.PAUSE: "garbage collection, data loading, a checkpoint or an evaluation on the host",
    Cause.LAUNCH: "the host launched a task after it could have run",
    Cause.SEND: "a rank was sending, or waited until another took what it sent",
    Cause.CODE: "code of the job outside of its tasks ran before a task could",
    Cause.SYNC: "collectives and the optimizer",
    Cause.UNEXPLAINED: "a task began late, and the traces do not say why",
    Cause.CLOCK: "within what clocks of different hosts may be off",
}
"""One line for each cause, to be printed beside it."""

INHERENT: Final = (Cause.WARM_UP, Cause.STEADY, Cause.COOL_DOWN)
"""The causes that the schedule itself is."""

ADDED: Final = tuple(Cause)[3:]
"""The causes that add to what is inherent, in the order in which they are held responsible."""
