"""Where this rank stands, and what it holds of its pipeline in a step: stages, and order of work."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import LANE_OF_KIND, PAIRED, identity_of, pack_identity
from bubblescope.record.integrations.torch_groups import FRAMEWORK
from bubblescope.recording.rows import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.record.integrations.torch_groups import Groups
    from bubblescope.record.recorder import Recorder
    from bubblescope.record.session import Session

_STATE: Final = "megatron.core.parallel_state"
_DIMENSIONS: Final = {
    "pp": ("pp", "pipeline_model"),
    "dp": ("dp", "data"),
    "tp": ("tp", "tensor_model"),
    "cp": ("cp", "context"),
    "ep": ("ep", "expert_model"),
    "etp": ("expt_tp", "expert_tensor"),
    "edp": ("expt_dp", "expert_data"),
}
"""Coordinate -> what its group is called in a `ProcessGroupCollection`, and in the functions of the
state that all versions have."""


class Work(NamedTuple):
    """A micro-batch on one of this rank's model chunks."""

    chunk: int
    microbatch: int


class Pass(NamedTuple):
    """A micro-batch, and where its forward and its backward belong, packed; None if nobody looked."""

    work: Work
    forward: bytes | None = None
    backward: bytes | None = None


class Layout:
    """What this rank holds of its pipeline in a step.

    Args:
        models: Its model chunks.
        stages: Their global virtual stages.
        rank: Its place in the pipeline.
        ranks: How many ranks the pipeline has.
        microbatches: How many run in the step.

    Attributes:
        chunks: Identity of a model chunk -> its number.
        works: The micro-batches of each chunk.
        passes: The same with where the passes of each belong.
        stages: Global virtual stages, by chunk.
        ranks: How many ranks the pipeline has.
        backwards: All backwards, in the order that is expected.
        arrivals: Whether it is an activation, and no gradient -> what comes from other ranks, in the
            order that is expected.
    """

    def __init__(
        self,
        models: Sequence[Any],
        stages: Sequence[int],
        rank: int,
        ranks: int,
        microbatches: int,
    ) -> None:
        self.chunks = {id(model): number for number, model in enumerate(models)}
        self.works = [[Work(chunk, i) for i in range(microbatches)] for chunk in range(len(models))]
        self.stages = stages
        self.ranks = ranks
        last = len(models) - 1
        forwards = _forwards(self.works, max(_in_a_row(models[0]) or ranks, 1))
        self.backwards = [self.works[last - chunk][microbatch] for chunk, microbatch in forwards]
        # The first stage of all receives no activation, and the last no gradient.
        self.arrivals = {
            True: [work for work in forwards if rank or work.chunk],
            False: [work for work in self.backwards if rank < ranks - 1 or work.chunk < last],
        }
        self._places: dict[Any, bytes] = {}
        self.passes = [
            [
                Pass(one, *(self.place(kind, one) for kind in (Kind.FORWARD, Kind.BACKWARD)))
                for one in works
            ]
            for works in self.works
        ]

    def place(self, kind: Kind, work: Work | None, *, chunk: int = 0, peer: Any = None) -> bytes:
        """Return where a task belongs, packed.

        Args:
            kind: What the task does.
            work: Its chunk and micro-batch; None if that is not known.
            chunk: Its chunk, if the work is not known.
            peer: Other rank of a send or receive; what is no number is not known.
        """
        peer = peer if isinstance(peer, int) else None
        key = kind, work, chunk, peer
        place = self._places.get(key)
        if place is None:
            chunk, microbatch = (chunk, None) if work is None else work
            place = self._places[key] = identity_of(
                kind,
                stage=self.stages[chunk],
                chunk=chunk if len(self.stages) > 1 else None,
                microbatch=microbatch,
                peer=peer,
            )
        return place

    def overlapped(self, ahead: Work, back: Work) -> bytes:
        """Return where a forward overlapped with a backward belongs, packed."""
        several = len(self.stages) > 1
        return pack_identity(
            self.stages[ahead.chunk],
            ahead.chunk if several else UNKNOWN,
            ahead.microbatch,
            UNKNOWN,
            self.stages[back.chunk],
            back.chunk if several else UNKNOWN,
            back.microbatch,
            PAIRED,
            LANE_OF_KIND[PAIRED],
        )


class Step:
    """The step that runs now; only `Pipeline` changes it.

    Args:
        session: Records it.

    Attributes:
        training: Whether a step runs, and is no evaluation.
        layout: What this rank holds in it. There is one whenever there is a recorder.
    """

    layout: Layout

    def __init__(self, session: Session) -> None:
        self.training = False
        self._session = session

    @property
    def recorder(self) -> Recorder | None:
        """What records, if there is a step of training now that is to be recorded."""
        recorder = self._session.recorder
        if not self.training or recorder is None or not recorder.recording:
            return None
        return recorder


def _forwards(works: Sequence[Sequence[Work]], group: int) -> list[Work]:
    """Return all forwards in order: a group of micro-batches on each chunk, then the next group."""
    return [
        work
        for first in range(0, len(works[0]), group)
        for of_chunk in works
        for work in of_chunk[first : first + group]
    ]


def _in_a_row(model: Any) -> int | None:
    """Return how many micro-batches in a row a chunk runs in an interleaved schedule, if it says so."""
    while not hasattr(model, "config") and hasattr(model, "module"):
        model = model.module
    size = getattr(getattr(model, "config", None), "microbatch_group_size_per_vp_stage", None)
    return size if isinstance(size, int) else None


def pipeline_place(communicator: Any) -> tuple[int, int]:
    """Return this rank's place in its pipeline, and how many ranks that has.

    Args:
        communicator: The schedule's `P2PCommunicator`; None in versions without.
    """
    group = getattr(communicator, "pp_group", None)
    if group is not None:
        return group.rank(), group.size()
    state = sys.modules[_STATE]
    return (
        state.get_pipeline_model_parallel_rank(),
        state.get_pipeline_model_parallel_world_size(),
    )


def coordinates(groups: Any, known: Groups) -> dict[str, int]:
    """Return this rank's coordinates, as far as they are known.

    Args:
        groups: The schedule's own process groups; None if it has none.
        known: Is told of the groups.
    """
    state = sys.modules.get(_STATE)
    found = {}
    for name, (field, usual) in _DIMENSIONS.items():
        group = getattr(groups, field, None)
        # Without its group, the state asserts instead of answering; some versions lack some groups.
        with suppress(Exception):
            group = getattr(state, f"get_{usual}_parallel_group")() if group is None else group
            known.used(group, name, FRAMEWORK)
        ask = getattr(state, f"get_{usual}_parallel_rank", None) if group is None else group.rank
        with suppress(Exception):
            found[name] = int(ask())  # type: ignore[misc]  # None is suppressed as well
    return found


def neighbours(communicator: Any) -> tuple[Any, Any]:
    """Return the next rank of the pipeline and the one before.

    Args:
        communicator: The `P2PCommunicator` that sends and receives; None in versions without.
    """
    if hasattr(communicator, "next_rank"):
        return communicator.next_rank, communicator.prev_rank
    return neighbour(following=True), neighbour(following=False)


def neighbour(*, following: bool) -> Any:
    """Return the next rank of the pipeline, or the one before."""
    state = sys.modules[_STATE]
    if following:
        return state.get_pipeline_model_parallel_next_rank()
    return state.get_pipeline_model_parallel_prev_rank()
