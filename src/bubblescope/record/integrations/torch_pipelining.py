"""torch.distributed.pipelining, all schedules.

Every schedule calls `forward_one_chunk`, `backward_one_chunk` and `backward_weight_one_chunk` of its
stages, with the micro-batch first, after it has waited for what they need; `backward_one_chunk` with
`full_backward=False` computes the input gradient only. What is sent and received comes from the
stages' `get_..._ops(microbatch)`, is started by the module's `_batch_p2p` and waited for by its
`_wait_batch_p2p`. Read in PyTorch 2.13.0.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import identity_of, kind_of
from bubblescope.record.integrations.torch_groups import groups_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from bubblescope.record.session import Session

_OPERATIONS: Final = {
    "get_fwd_recv_ops": Kind.RECV_FORWARD,
    "get_fwd_send_ops": Kind.SEND_FORWARD,
    "get_bwd_recv_ops": Kind.RECV_BACKWARD,
    "get_bwd_send_ops": Kind.SEND_BACKWARD,
}
_RECEIVES: Final = (Kind.RECV_FORWARD, Kind.RECV_BACKWARD)
_PLACE: Final = "_bubblescope_place"


def schedules(module: ModuleType, session: Session) -> None:
    """Record the steps of all schedules, and the work of their stages."""
    for name in ("PipelineScheduleSingle", "PipelineScheduleMulti"):
        schedule = getattr(module, name)
        schedule.step = _stepping(schedule.step, session)
    stage = module._PipelineStageBase  # noqa: SLF001  it has no other name
    session.used_by(stage, "torch")
    stage.forward_one_chunk = session.timed(stage.forward_one_chunk, _places(Kind.FORWARD, session))
    stage.backward_one_chunk = session.timed(stage.backward_one_chunk, _backward(session))
    stage.backward_weight_one_chunk = session.timed(
        stage.backward_weight_one_chunk, _places(Kind.BACKWARD_WEIGHT, session)
    )
    stage.perform_reduce_grad = session.timed(
        stage.perform_reduce_grad, lambda *_, **__: identity_of(Kind.COLLECTIVE)
    )
    schedule = module._PipelineSchedule  # noqa: SLF001
    schedule._maybe_compute_loss = session.timed(schedule._maybe_compute_loss, _loss)  # noqa: SLF001
    for name, kind in _OPERATIONS.items():
        setattr(stage, name, _placed(getattr(stage, name), kind, session))
    module._batch_p2p = _started(module._batch_p2p, session)  # type: ignore[attr-defined]  # noqa: SLF001
    module._wait_batch_p2p = _awaited(  # type: ignore[attr-defined]  # noqa: SLF001
        module._wait_batch_p2p,  # noqa: SLF001
        session,
    )


def _stepping(step: Callable[..., Any], session: Session) -> Callable[..., Any]:
    evaluate = session.alone(step)

    @functools.wraps(step)
    def begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _evaluates(self):
            return evaluate(self, *args, **kwargs)
        session.use("torch")
        _introduce(self, session)
        session.begin_step()
        return step(self, *args, **kwargs)

    return begin


def _evaluates(schedule: Any) -> bool:
    """Say whether a step is an evaluation: `schedule.eval` takes one that is to leave out backwards.

    A schedule that never has backwards, for it has no loss, is recorded: inference in a pipeline.
    """
    trains = getattr(schedule, "_loss_fn", None) is not None
    return trains and not getattr(schedule, "_has_backward", True)


def _introduce(schedule: Any, session: Session) -> None:
    """Tell the session what the schedule knows of itself."""
    try:
        stages = getattr(schedule, "_stages", None) or [schedule._stage]  # noqa: SLF001
        device = getattr(stages[0].device, "index", None)
        session.about(
            stages=sorted(stage.stage_index for stage in stages),
            schedule=type(schedule).__name__,
            microbatches=schedule._n_microbatches,  # noqa: SLF001
            device=device,
        )
        if session.recorder is None:
            for stage in stages:
                groups_of(session).used(stage.group, "pp")
                groups_of(session).used_in(stage.submod)
    except Exception as error:  # noqa: BLE001  the job goes on
        session.fail(error)


def _places(kind: Kind, session: Session) -> Callable[..., bytes]:
    def place(stage: Any, microbatch: int, *_: Any, **__: Any) -> bytes:
        index = stage.stage_index
        return identity_of(kind, stage=index, chunk=session.chunk_of(index), microbatch=microbatch)

    return place


def _backward(session: Session) -> Callable[..., bytes]:
    whole, split = _places(Kind.BACKWARD, session), _places(Kind.BACKWARD_INPUT, session)

    def place(
        stage: Any,
        microbatch: int,
        loss: Any = None,
        full_backward: bool = True,
        *_: Any,
        **__: Any,
    ) -> bytes:
        del loss
        return (whole if full_backward else split)(stage, microbatch)

    return place


def _loss(
    _schedule: Any, stage: Any, _output: Any, _targets: Any, microbatch: int, *_: Any, **__: Any
) -> bytes | None:
    """The loss belongs to no forward, which has ended, and to no backward, which has not begun."""
    if not stage.is_last:
        return None
    return identity_of(Kind.OTHER, stage=stage.stage_index, microbatch=microbatch)


def _placed(get: Callable[..., Any], kind: Kind, session: Session) -> Callable[..., Any]:
    """Return a function that writes on operations which task they are."""

    @functools.wraps(get)
    def operations(stage: Any, microbatch: int) -> Any:
        made = get(stage, microbatch)
        try:
            index = stage.stage_index
            for operation in made:
                place = identity_of(
                    kind,
                    stage=index,
                    chunk=session.chunk_of(index),
                    microbatch=microbatch,
                    peer=operation.peer,
                )
                setattr(operation, _PLACE, place)
        except Exception as error:  # noqa: BLE001  the job goes on
            session.fail(error)
        return made

    return operations


class _Works(list[Any]):
    """Operations that were started, and which receives are among them."""

    receives: tuple[bytes, ...] = ()


def _started(batch: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """Return a function that records sends, from when they are issued until that is done."""

    @functools.wraps(batch)
    def start(operations: Any, *args: Any, **kwargs: Any) -> Any:
        places: set[bytes] = {getattr(operation, _PLACE, b"") for operation in operations} - {b""}
        begun = session.begin(place for place in places if not _receiving(place))
        try:
            works = _Works(batch(operations, *args, **kwargs))
        finally:
            session.end(begun)
        works.receives = tuple(place for place in places if _receiving(place))
        return works

    return start


def _awaited(wait: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """Return a function that records receives, as long as they are waited for.

    On a GPU, waiting for a receive makes the compute stream wait: marks on that stream before and
    after say how long it did.
    """

    @functools.wraps(wait)
    def waited(works: Any) -> Any:
        begun = session.begin(getattr(works, "receives", ()))
        try:
            return wait(works)
        finally:
            session.end(begun)

    return waited


def _receiving(place: bytes) -> bool:
    return kind_of(place) in _RECEIVES
