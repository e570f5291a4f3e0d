"""torch.distributed.pipelining, all schedules.

Every schedule calls `forward_one_chunk`, `backward_one_chunk` and `backward_weight_one_chunk` of its
stages, with the micro-batch first, after it has waited for what they need; `backward_one_chunk` with
`full_backward=False` computes the input gradient only. What is sent and received comes from the
stages' `get_..._ops(microbatch)`, is started by the module's `_batch_p2p` and waited for by its
`_wait_batch_p2p`. Read in PyTorch 2.13.0.
"""

from __future__ import annotations

import functools
import time
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from bubblescope.model.kinds import Kind, Lane
from bubblescope.record.buffer import identity_of, kind_of, place_of
from bubblescope.record.integrations.evaluations import evaluation
from bubblescope.record.integrations.torch_groups import groups_of
from bubblescope.record.integrations.torch_weights import Weights
from bubblescope.recording.columns import WAITING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from bubblescope.record.recorder import Recorder
    from bubblescope.record.session import Session

_OPERATIONS: Final = {
    "get_fwd_recv_ops": Kind.RECV_FORWARD,
    "get_fwd_send_ops": Kind.SEND_FORWARD,
    "get_bwd_recv_ops": Kind.RECV_BACKWARD,
    "get_bwd_send_ops": Kind.SEND_BACKWARD,
}
_RECEIVES: Final = (Kind.RECV_FORWARD, Kind.RECV_BACKWARD)
_PLACE: Final = "_bubblescope_place"
_WAITED_NS: Final = 50_000
"""How long a send is waited for at least to be worth a task: most have long been done."""


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
        stage.perform_reduce_grad, identity_of(Kind.COLLECTIVE)
    )
    schedule = module._PipelineSchedule  # noqa: SLF001
    schedule._maybe_compute_loss = session.timed(  # noqa: SLF001
        schedule._maybe_compute_loss,  # noqa: SLF001
        _loss(session),
    )
    for name, kind in _OPERATIONS.items():
        setattr(stage, name, _placed(getattr(stage, name), kind, session))
    module._batch_p2p = _started(module._batch_p2p, session)  # type: ignore[attr-defined]  # noqa: SLF001
    module._wait_batch_p2p = _awaited(  # type: ignore[attr-defined]  # noqa: SLF001
        module._wait_batch_p2p,  # noqa: SLF001
        session,
    )


def _stepping(step: Callable[..., Any], session: Session) -> Callable[..., Any]:
    evaluate = evaluation(step, session)
    weights = Weights()

    @functools.wraps(step)
    def begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _evaluates(self):
            return evaluate(self, *args, **kwargs)
        session.use("torch")
        _introduce(self, session)
        session.begin_round(self._n_microbatches, changed=weights.changed())
        try:
            with session.following():
                result = step(self, *args, **kwargs)
        except Exception:
            session.spoil_round()
            raise
        if not session.rounds.told:
            _note(weights, self, session)
        return result

    return begin


def _evaluates(schedule: Any) -> bool:
    """Say whether a step is an evaluation: `schedule.eval` takes one that is to leave out backwards.

    A schedule that never has backwards, for it has no loss, is recorded: inference in a pipeline.
    """
    trains = getattr(schedule, "_loss_fn", None) is not None
    return trains and not getattr(schedule, "_has_backward", True)


def _note(weights: Weights, schedule: Any, session: Session) -> None:
    """Remember what a schedule's weights are now."""
    try:
        weights.note(stage.submod for stage in _stages(schedule))
    except Exception as error:  # noqa: BLE001  the job goes on
        session.fail(error)


def _stages(schedule: Any) -> Any:
    return getattr(schedule, "_stages", None) or [schedule._stage]  # noqa: SLF001


def _introduce(schedule: Any, session: Session) -> None:
    """Tell the session what the schedule knows of itself."""
    try:
        stages = _stages(schedule)
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
    known: dict[tuple[int, int], bytes] = {}
    stages, rounds = session.stages, session.rounds

    def place(stage: Any, microbatch: int, *_: Any, **__: Any) -> bytes:
        nonlocal stages
        if session.stages is not stages:  # what chunk a stage is may be another now
            stages = session.stages
            known.clear()
        key = index, number = stage.stage_index, rounds.first_microbatch + microbatch
        what = known.get(key)
        if what is None:
            chunk = session.chunk_of(index)
            what = known[key] = identity_of(kind, stage=index, chunk=chunk, microbatch=number)
        return what

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


def _loss(session: Session) -> Callable[..., bytes | None]:
    """The loss belongs to no forward, which has ended, and to no backward, which has not begun."""

    def place(
        _schedule: Any,
        stage: Any,
        _output: Any,
        _targets: Any,
        microbatch: int,
        *_: Any,
        **__: Any,
    ) -> bytes | None:
        if not stage.is_last:
            return None
        number = session.rounds.first_microbatch + microbatch
        return identity_of(Kind.OTHER, stage=stage.stage_index, microbatch=number)

    return place


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
                    microbatch=session.rounds.first_microbatch + microbatch,
                    peer=operation.peer,
                )
                setattr(operation, _PLACE, place)
        except Exception as error:  # noqa: BLE001  the job goes on
            session.fail(error)
        return made

    return operations


class _Works(list[Any]):
    """Operations that were started, and which task each of them is; none if they are one."""

    places: tuple[bytes, ...] = ()
    receives: tuple[bytes, ...] = ()


def _started(batch: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """Return a function that records sends, from when they are issued until that is done."""

    @functools.wraps(batch)
    def start(operations: Any, *args: Any, **kwargs: Any) -> Any:
        each = tuple(getattr(operation, _PLACE, b"") for operation in operations)
        places = set(each) - {b""}
        begun = session.begin(place for place in places if not _receiving(place))
        try:
            works = _Works(batch(operations, *args, **kwargs))
        finally:
            session.end(begun)
        works.receives = tuple(place for place in places if _receiving(place))
        works.places = each if len(works) == len(each) else ()
        return works

    return start


def _awaited(wait: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """Return a function that records receives, as long as they are waited for, and waiting for sends.

    On a GPU, waiting for a receive makes the compute stream wait: marks on that stream before and
    after say how long it did. There what is waited for together is one; on the host's clock it is
    waited for one by one, so that a send that nobody takes is told from a receive that nobody sends.
    """

    @functools.wraps(wait)
    def waited(works: Any) -> Any:
        recorder = session.recorder
        places = getattr(works, "places", ())
        if places and recorder is not None and recorder.plain:
            for place, those in groupby(zip(places, works, strict=True), key=itemgetter(0)):
                _wait_for(place, [work for _, work in those], recorder)
            return None
        begun = session.begin(getattr(works, "receives", ()))
        try:
            return wait(works)
        finally:
            session.end(begun)

    def _wait_for(place: bytes, works: list[Any], recorder: Recorder) -> None:
        receiving = bool(place) and _receiving(place)
        began = recorder.begin_task(place)
        wait(works)
        if not recorder.recording:
            return
        if receiving:
            recorder.end_task(place, began)
        elif time.monotonic_ns() - began[1] >= _WAITED_NS:
            recorder.end_task(_sending(place), began, WAITING)

    return waited


@functools.lru_cache(maxsize=1 << 12)
def _sending(place: bytes) -> bytes:
    """Return where waiting for a send belongs: to its micro-batch, of the stage that it is for."""
    if not place:
        return identity_of(Kind.OTHER, lane=Lane.COMM)
    of = place_of(place)
    ahead = 1 if kind_of(place) is Kind.SEND_FORWARD else -1
    return identity_of(
        Kind.OTHER,
        stage=of["stage"] + ahead,
        microbatch=of["microbatch"],
        peer=of["peer"],
        lane=Lane.COMM,
    )


def _receiving(place: bytes) -> bool:
    return kind_of(place) in _RECEIVES
