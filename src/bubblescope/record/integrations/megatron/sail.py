"""Sail's zero-bubble fork of Megatron-LM.

Its runtime goes through a list of nodes, which say all that there is to know: what to do, the chunk,
the micro-batch, and `layer_group_idx`, the global virtual stage. Forwards and backwards are Megatron's
`forward_step` and `backward_step`, inside `schedule_f_impl` and `schedule_b_impl`. Weight gradients
wait in `WeightGradStore`, of which `pop` computes the oldest of a chunk and `clear` all that are left,
at once. With sequences in slices, each slice counts as a micro-batch. Read and run at commit 39f2c18 of
https://github.com/sail-sg/zero-bubble-pipeline-parallelism.
"""

from __future__ import annotations

import functools
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Final

from bubblescope.model.kinds import Kind
from bubblescope.record.integrations.megatron.functions import replace
from bubblescope.record.integrations.megatron.pipeline import pipeline_of
from bubblescope.record.integrations.megatron.placement import Work, neighbour

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType

    from bubblescope.record.session import Session

_KINDS: Final = {
    "F": Kind.FORWARD,
    "B": Kind.BACKWARD_INPUT,
    "BW": Kind.BACKWARD,
    "R": Kind.RECOMPUTE,
    "SEND_FORWARD": Kind.SEND_FORWARD,
    "SEND_BACKWARD": Kind.SEND_BACKWARD,
}
"""Value of a node's type -> what it is."""


def runtime(module: ModuleType, session: Session) -> None:
    """Record all schedules of the zero-bubble runtime."""
    nodes = _Nodes(module, session)
    replace(module, {"get_zero_bubble_forward_backward_func": nodes.choosing})
    stepping = functools.partial(pipeline_of(session).stepping, describe=nodes.describe)
    replace(module.SchedNodeRuntime, {"__call__": stepping})
    replace(
        module.TrainingIteration,
        {
            # They wait for their input, and then call `forward_step` or `backward_step`.
            "schedule_f_impl": functools.partial(nodes.giving, receive=Kind.RECV_FORWARD),
            "schedule_b_impl": functools.partial(nodes.giving, receive=Kind.RECV_BACKWARD),
            "schedule_r": nodes.recompute,
            "flush": nodes.flush,
        },
    )
    store = module.WeightGradStore
    for name, one in (("pop", nodes.pop), ("clear", nodes.clear)):
        method = getattr(store, name)
        setattr(store, name, classmethod(one(method.__func__)))


class _Nodes:
    """What the nodes of a schedule say.

    Args:
        module: The runtime's.
        session: Records it.
    """

    def __init__(self, module: ModuleType, session: Session) -> None:
        self._module = module
        self._pipeline = pipeline_of(session)
        self._step = self._pipeline.step
        self._session = session
        self._slices = 1
        self._weights: defaultdict[tuple[int, int], deque[Work]] = defaultdict(deque)

    def choosing(self, choose: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that chooses a schedule; the step begins where that knows its nodes."""

        @functools.wraps(choose)
        def chosen(*args: Any, **kwargs: Any) -> Any:
            return self._pipeline.leave(choose(*args, **kwargs))

        return chosen

    def describe(self, said: Mapping[str, Any], *_: int) -> dict[str, Any]:
        """Return what the nodes of a step say of it."""
        self._weights.clear()
        # It has transfers of its own; what passes Megatron's measures the links, before the first step.
        self._pipeline.messages.scheduled = False
        forwards = [node for node in said["schedule"] if node.type.value == "F"]
        stages = {node.chunk: node.layer_group_idx for node in forwards}
        self._slices = 1 + max(node.seq_split_idx for node in forwards)
        return {
            "stages": [stages[chunk] for chunk in sorted(stages)],
            "schedule": _schedule(self._module.get_args(), len(stages)),
            "microbatches": (1 + max(node.microbatch for node in forwards)) * self._slices,
        }

    def _work(self, node: Any) -> Work:
        return Work(node.chunk, node.microbatch * self._slices + node.seq_split_idx)

    def giving(self, function: Callable[..., Any], receive: Kind) -> Callable[..., Any]:
        """Return a function of a node so that what it waits for and runs is known from the node."""
        step, progress, compute = self._step, self._pipeline.progress, self._pipeline.compute

        @functools.wraps(function)
        def give(iteration: Any, node: Any, *args: Any, **kwargs: Any) -> Any:
            if step.recorder is None:
                return function(iteration, node, *args, **kwargs)
            try:
                kind, work = _KINDS[node.type.value], self._work(node)
                progress.given = kind, work
                if kind is Kind.BACKWARD_INPUT:
                    self._weights[node.chunk, node.seq_split_idx].append(work)
                if node.recv_peer_stage not in (None, node.stage):
                    following = node.recv_peer_stage == (node.stage + 1) % step.layout.ranks
                    peer = neighbour(following=following)
                    compute.begin_wait(step.layout.place(receive, work, peer=peer))
            except Exception as error:  # noqa: BLE001  the job goes on
                self._session.fail(error)
            try:
                return function(iteration, node, *args, **kwargs)
            finally:
                progress.given = None
                compute.end_wait()

        return give

    def recompute(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `schedule_r` so that it is recorded."""

        def place(_: Any, node: Any) -> bytes | None:
            if self._step.recorder is None:
                return None
            return self._step.layout.place(Kind.RECOMPUTE, self._work(node))

        return self._session.timed(function, place)

    def pop(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `pop` so that it is recorded, as the oldest weight gradients of a chunk."""

        def place(_: Any, chunk: int = 0, seq_split_idx: int = 0) -> bytes | None:
            waiting = self._weights[chunk, seq_split_idx]
            if self._step.recorder is None or not waiting:
                return None
            return self._step.layout.place(Kind.BACKWARD_WEIGHT, waiting.popleft())

        return self._session.timed(function, place)

    def clear(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `clear` so that it is recorded, without a micro-batch if it computes several."""

        def place(_: Any, model: Any, chunk: int = 0, seq_split_idx: int = 0) -> bytes | None:
            del model
            waiting = list(self._weights.pop((chunk, seq_split_idx), ()))
            if self._step.recorder is None or not waiting:
                return None
            work = waiting[0] if len(waiting) == 1 else None
            return self._step.layout.place(Kind.BACKWARD_WEIGHT, work, chunk=chunk)

        return self._session.timed(function, place)

    def flush(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `flush`, which issues transfers, so that its sends are recorded."""

        @functools.wraps(function)
        def flush(iteration: Any) -> Any:
            begun = self._session.begin(self._sends(iteration) if self._step.recorder else ())
            try:
                return function(iteration)
            finally:
                self._session.end(begun)

        return flush

    def _sends(self, iteration: Any) -> Iterator[bytes]:
        """Yield where each send that is issued now belongs."""
        for following, way in ((True, "SEND_NEXT"), (False, "SEND_PREV")):
            for node, _ in iteration.states.communication_batch[way]:
                peer = neighbour(following=following)
                yield self._step.layout.place(_KINDS[node.type.value], self._work(node), peer=peer)


def _schedule(args: Any, chunks: int) -> str:
    """Return the schedule that the fork's arguments choose, for so many model chunks on a rank."""
    if getattr(args, "num_seq_splits", 1) > 1:
        return "seq1f1b"
    if getattr(args, "enable_1f1b_v", False):
        return "1f1b-v"
    if getattr(args, "zero_bubble_v_schedule", False):
        memory = getattr(args, "zero_bubble_v_schedule_mem_setup", "zb")
        return {"half": "v-half", "min": "v-min"}.get(memory, "zb-v")
    if getattr(args, "enable_zero_bubble", False):
        return "zero-bubble"
    return "interleaved-1f1b" if chunks > 1 else "1f1b"
