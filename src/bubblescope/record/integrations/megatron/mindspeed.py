"""MindSpeed's schedules on top of Megatron's: DualPipeV, overlapped forwards and backwards, and others.

They take the place of Megatron's `forward_backward_...`, and most call its `forward_step` and
`backward_step`. DualPipeV and the overlap of experts have functions of their own, whose forward has the
backward of another micro-batch in it if it is given `extra_block_kwargs`; the backward of the last
stage's head is a call of its own, without a `model_graph`. Weight gradients wait in `WeightGradStore`
between `start_decouple` and `end_decouple`. Read at commit 028de58 of
https://github.com/Ascend/MindSpeed, for Megatron-LM's core 0.12.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from bubblescope.model.kinds import Kind
from bubblescope.record.arguments import taker
from bubblescope.record.integrations.megatron.functions import replace
from bubblescope.record.integrations.megatron.pipeline import Pipeline, pipeline_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from bubblescope.record.session import Session

_OVERLAP: Final = "extra_block_kwargs"
_TRANSFERS: Final = {
    "recv_forward": True,
    "recv_backward": False,
    "send_forward_recv_forward": True,
    "send_forward_recv_slave_forward": None,
}
"""Function -> whether it receives an activation; None if it receives what it sends. Those that only
send need not be known: what they send was made by a forward or a backward that was seen."""


def dualpipev(module: ModuleType, session: Session) -> None:
    """Record DualPipeV."""
    pipeline = pipeline_of(session)

    def stepping(run: Callable[..., Any]) -> Callable[..., Any]:
        return pipeline.stepping(run, functools.partial(_folded, pipeline))

    replace(
        module,
        {
            "forward_backward_pipelining_with_cutinhalf": stepping,
            "forward_step_no_model_graph": pipeline.compute.forward,
            "forward_step_with_model_graph": lambda step: _forward(step, pipeline),
            "backward_step_with_model_graph": lambda step: _backward(step, pipeline),
            **{
                name: functools.partial(_directing, activation=activation, pipeline=pipeline)
                for name, activation in _TRANSFERS.items()
            },
        },
    )


def overlap(module: ModuleType, session: Session) -> None:
    """Record schedules whose forwards and backwards overlap."""
    pipeline = pipeline_of(session)
    replace(
        module,
        {
            **dict.fromkeys(_schedules(module), pipeline.stepping),
            "forward_step": lambda step: _forward(step, pipeline),
            "backward_step": lambda step: _backward(step, pipeline),
        },
    )


def steps(module: ModuleType, session: Session) -> None:
    """Record the schedules that a module defines, and what it has instead of Megatron's functions."""
    pipeline = pipeline_of(session)
    recorded = {
        "forward_step": pipeline.compute.forward,
        "backward_step": pipeline.compute.backward,
        "_communicate": pipeline.communicating,
    }
    replace(
        module,
        {
            **dict.fromkeys(_schedules(module), pipeline.stepping),
            **{name: record for name, record in recorded.items() if name in _own(module)},
        },
    )


def transfers(module: ModuleType, session: Session) -> None:
    """Learn what overlapped forwards and backwards send and receive between them."""
    pipeline = pipeline_of(session)
    messages, progress, ways = pipeline.messages, pipeline.progress, _ways(pipeline)

    def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def helper(params: Any, *args: Any, **kwargs: Any) -> Any:
            if messages.folded and id(params) in ways:
                activation = ways[id(params)]
                work = progress.last(forward=activation)
                if work is not None:
                    # What one chunk sends to a rank, the other receives from there.
                    messages.sending = activation, work
                    messages.receiving = activation, 1 - work.chunk
            try:
                return function(params, *args, **kwargs)
            finally:
                messages.sending = messages.receiving = None

        return helper

    replace(module, {"p2p_comm_helper": recorded})


def weights(module: ModuleType, session: Session) -> None:
    """Record weight gradients, those of one backward at a time."""
    _weights(module.WeightGradStore, session, at_once=False)


def weights_at_once(module: ModuleType, session: Session) -> None:
    """Record weight gradients, those of all backwards that left theirs."""
    _weights(module.WeightGradStore, session, at_once=True)


def _weights(store: Any, session: Session, *, at_once: bool) -> None:
    pipeline = pipeline_of(session)
    step, progress, compute = pipeline.step, pipeline.progress, pipeline.compute

    def place(*_: Any, **__: Any) -> bytes | None:
        waiting = progress.weights
        # In a forward or a backward, they are part of it; and often there is nothing to compute.
        if step.recorder is None or compute.busy or not store.cache or not waiting:
            return None
        first, several = waiting.popleft(), at_once and bool(waiting)
        if at_once:
            waiting.clear()
        work = None if several else first
        return step.layout.place(Kind.BACKWARD_WEIGHT, work, chunk=first.chunk)

    store.pop = classmethod(session.timed(store.pop.__func__, place))
    progress.splits.append(lambda: bool(store.is_decoupleBlock))


@functools.cache
def _ways(pipeline: Pipeline) -> dict[int, bool]:
    """Return what the last overlapped forward and backward send and receive by.

    It is the identity of a transfer's parameters -> whether that is one of activations.
    """
    del pipeline
    return {}


def _own(module: ModuleType) -> list[str]:
    """Return the names of what a module defines itself."""
    return [
        name
        for name, one in vars(module).items()
        if getattr(one, "__module__", None) == module.__name__
    ]


def _schedules(module: ModuleType) -> list[str]:
    return [name for name in _own(module) if name.startswith("forward_backward_")]


def _folded(pipeline: Pipeline, said: Mapping[str, Any], rank: int, ranks: int) -> dict[str, Any]:
    """Return what a step of DualPipeV is: a rank holds a stage and, on the way back, its mirror."""
    del said
    pipeline.messages.folded = True
    return {
        "stages": [rank, 2 * ranks - 1 - rank],
        "schedule": "dualpipev",
    }


def _forward(step: Callable[..., Any], pipeline: Pipeline) -> Callable[..., Any]:
    """Return a forward so that it is recorded, with the backward in it if there is one."""
    running, progress, messages = pipeline.step, pipeline.progress, pipeline.messages
    ways = _ways(pipeline)
    model, overlapped = taker(step, "model"), taker(step, _OVERLAP)

    def place(args: Any, kwargs: Any) -> bytes:
        kind, work = progress.next_forward(model(args, kwargs))
        beside = overlapped(args, kwargs)
        if not beside:
            return running.layout.place(kind, work)
        ways.clear()
        ways[id(beside.get("pp_comm_params"))] = True
        ways[id(beside.get("bwd_pp_comm_params"))] = False
        mirror = 1 - work.chunk if messages.folded else None
        back = progress.next_backward(chunk=mirror)[1]
        return running.layout.overlapped(work, back)

    return pipeline.compute.computing(step, place, progress.note_forward)


def _backward(step: Callable[..., Any], pipeline: Pipeline) -> Callable[..., Any]:
    """Return a backward so that it is recorded; that of the last stage's head as other work."""
    running, progress = pipeline.step, pipeline.progress
    output, graph = taker(step, "output_tensor"), taker(step, "model_graph")
    is_head = [False]

    def place(args: Any, kwargs: Any) -> bytes:
        made = output(args, kwargs)
        is_head[0] = graph(args, kwargs) is None
        if is_head[0]:
            return running.layout.place(Kind.OTHER, progress.forward_of(made))
        return running.layout.place(*progress.next_backward(made))

    def note(result: Any) -> None:
        if not is_head[0]:
            progress.note_backward(result)

    return pipeline.compute.computing(step, place, note)


def _directing(
    function: Callable[..., Any], activation: bool | None, pipeline: Pipeline
) -> Callable[..., Any]:
    """Return a transfer of DualPipeV so that it is known what it receives.

    That is an activation of its chunk, or else a gradient; if `activation` is None, what its own tensor
    is, of the other chunk.
    """
    messages, origins = pipeline.messages, pipeline.origins
    chunk, tensor = taker(function, "model_chunk_id"), taker(function, "output_tensor")

    @functools.wraps(function)
    def direct(*args: Any, **kwargs: Any) -> Any:
        if activation is not None:
            messages.receiving = activation, chunk(args, kwargs)
        elif (made := origins.of(tensor(args, kwargs))) is not None:
            messages.receiving = made[0], 1 - made[1].chunk
        try:
            return function(*args, **kwargs)
        finally:
            messages.receiving = None

    return direct
