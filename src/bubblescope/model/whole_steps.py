"""What a rank is in, from the start of a step to the start of its next: the classes and their words.

Reports take whole steps apart by these, and so do `bubblescope watch` and the metrics of a running job.
"""

from __future__ import annotations

from typing import Final

from bubblescope.model.kinds import COMPUTE_KINDS, Kind

PASSES: Final = "forward and backward"
OTHER: Final = "other tasks"
UNRECORDED: Final = "in no task"

ORDER: Final[dict[str, tuple[Kind, ...]]] = {
    PASSES: tuple(COMPUTE_KINDS),
    "optimizer": (Kind.OPTIMIZER,),
    "garbage collection": (Kind.GC,),
    "data loading": (Kind.DATA,),
    "collectives": (Kind.COLLECTIVE,),
    "receiving": (Kind.RECV_FORWARD, Kind.RECV_BACKWARD),
    "sending": (Kind.SEND_FORWARD, Kind.SEND_BACKWARD),
}
"""What a rank is in, and the kinds of tasks that are it. Where tasks overlap, the first counts; then
tasks of kind `other` beside the compute lane, by their names; then what else was recorded."""

NAMES: Final = 8
"""Names of tasks beside the passes that are told apart."""
