"""DeepSpeed's PipelineEngine and DualPipeVEngine.

A schedule yields instructions, and `_exec_schedule` runs each by the function that the engine's
`_INSTRUCTION_MAP` holds for its class. Instructions name a buffer, not a micro-batch; but a stage runs
forwards and backwards, sends and receives each in the order of micro-batches. Those of DualPipeV say
the `phase`, which of the rank's two stages they are of, and only queue what is sent and received, which
`CommitP2P` then does. Read in DeepSpeed 0.19.8.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import identity_of
from bubblescope.record.integrations.evaluations import evaluation
from bubblescope.record.integrations.torch_groups import FRAMEWORK, groups_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from bubblescope.record.session import Session

_MAP: Final = "_INSTRUCTION_MAP"
_KINDS: Final = {
    "LoadMicroBatch": Kind.DATA,
    "ForwardPass": Kind.FORWARD,
    "BackwardPass": Kind.BACKWARD,
    "SendActivation": Kind.SEND_FORWARD,
    "RecvActivation": Kind.RECV_FORWARD,
    "SendGrad": Kind.SEND_BACKWARD,
    "RecvGrad": Kind.RECV_BACKWARD,
    "ReduceTiedGrads": Kind.COLLECTIVE,
    "ReduceGrads": Kind.COLLECTIVE,
    "OptimizerStep": Kind.OPTIMIZER,
}
"""Instruction -> what it does; any other is other work."""

_ROLES: Final = {"pipe": "pp", "data": "dp", "model": "tp"}
"""Axis of a grid -> role of the groups along it."""
_COMMIT: Final = "CommitP2P"
_DOWNSTREAM: Final = (Kind.SEND_FORWARD, Kind.RECV_BACKWARD)
_UPSTREAM: Final = (Kind.RECV_FORWARD, Kind.SEND_BACKWARD)
_OF_A_STEP: Final = (Kind.COLLECTIVE, Kind.OPTIMIZER, Kind.OTHER)


def engine(module: ModuleType, session: Session) -> None:
    """Record `train_batch` of all pipeline engines as steps, and `eval_batch` as evaluations."""
    pipeline = module.PipelineEngine
    theirs = pipeline._exec_schedule  # noqa: SLF001  what it runs has no other name
    sums_loss = pipeline._aggregate_total_loss  # noqa: SLF001
    evaluates = pipeline.eval_batch
    getattr(pipeline, _MAP)
    session.used_by(pipeline, "deepspeed")

    @functools.wraps(theirs)
    def exec_schedule(self: Any, pipe_schedule: Any) -> Any:
        if not module.torch.is_grad_enabled():
            return theirs(self, pipe_schedule)
        _introduce(self, pipe_schedule, session)
        session.begin_step()
        recorder = session.recorder
        if recorder is None or not recorder.recording:
            return theirs(self, pipe_schedule)
        own = vars(self)
        before = own.get(_MAP)
        try:
            step = _Step(self, pipe_schedule, session)
            own[_MAP] = {
                instruction: step.recorded(instruction.__name__, function)
                for instruction, function in getattr(self, _MAP).items()
            }
        except Exception as error:  # noqa: BLE001  the job goes on
            session.fail(error)
            return theirs(self, pipe_schedule)
        try:
            return theirs(self, pipe_schedule)
        finally:
            if before is None:
                del own[_MAP]
            else:
                own[_MAP] = before

    pipeline._exec_schedule = exec_schedule  # noqa: SLF001
    pipeline.eval_batch = evaluation(evaluates, session)
    # Here every stage waits for the last one's loss.
    pipeline._aggregate_total_loss = session.timed(  # noqa: SLF001
        sums_loss, lambda *_, **__: identity_of(Kind.COLLECTIVE)
    )


def _introduce(engine: Any, schedule: Any, session: Session) -> None:
    """Tell the session what the engine knows of itself."""
    try:
        grid = engine.grid
        topology = grid.topology()
        place = topology.get_coord(engine.global_rank)
        if session.recorder is None:
            _group(topology, engine.global_rank, session)
        session.about(
            rank=engine.global_rank,
            stages=_stages(engine, schedule),
            schedule=type(schedule).__name__,
            microbatches=schedule.micro_batches,
            device=getattr(engine.device, "index", None),
            pp=getattr(place, "pipe", None),
            dp=getattr(place, "data", None),
            tp=getattr(place, "model", None),
            first_step=getattr(engine, "global_steps", None),
        )
    except Exception as error:  # noqa: BLE001  the job goes on
        session.fail(error)


def _group(topology: Any, rank: int, session: Session) -> None:
    """Tell of the groups along the axes of the engine's grid."""
    for axis in topology.get_axis_names():
        for ranks in topology.get_axis_comm_lists(axis):
            if rank in ranks:
                groups_of(session).tell(_ROLES.get(axis), ranks, FRAMEWORK, description=axis)


def _stages(engine: Any, schedule: Any) -> list[int]:
    """Return the stages of this rank, by phase: one, or two of a V."""
    stage, ranks = engine.grid.get_stage_id(), engine.num_stages
    folded = type(schedule).__name__ == "DualPipeVSchedule"
    return [stage, 2 * ranks - 1 - stage] if folded else [stage]


class _Step:
    """What the instructions of one step are, in the order in which they are run."""

    def __init__(self, engine: Any, schedule: Any, session: Session) -> None:
        self._session = session
        self._stages = _stages(engine, schedule)
        self._peers = [_peers(engine, way) for way in (1, -1)]
        self._commits = any(one.__name__ == _COMMIT for one in getattr(engine, _MAP))
        self._done: Counter[tuple[Kind, int]] = Counter()
        self._queued: list[bytes] = []

    def recorded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function of an instruction, of the class of that name, so that it is recorded."""
        kind = _KINDS.get(name, Kind.OTHER)
        if name == _COMMIT:
            return self._committing(function)
        if self._commits and kind in (*_DOWNSTREAM, *_UPSTREAM):
            return self._queueing(function, kind)
        if kind is Kind.OPTIMIZER:
            function = self._session.alone(function)
        return self._session.timed(function, lambda _, **said: self._place(kind, **said))

    def _place(self, kind: Kind, *, phase: int = 0, **_: Any) -> bytes:
        if kind in _OF_A_STEP:
            return identity_of(kind)
        microbatch = self._done[kind, phase]
        self._done[kind, phase] += 1
        return identity_of(
            kind,
            stage=self._stages[phase],
            chunk=phase if len(self._stages) > 1 else None,
            microbatch=microbatch,
            peer=self._peers[phase].get(kind),
        )

    def _queueing(self, function: Callable[..., Any], kind: Kind) -> Callable[..., Any]:
        """Return a function that notes which transfer it queues."""

        @functools.wraps(function)
        def queue(engine: Any, **said: Any) -> Any:
            try:
                self._queued.append(self._place(kind, **said))
            except Exception as error:  # noqa: BLE001  the job goes on
                self._session.fail(error)
            return function(engine, **said)

        return queue

    def _committing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is recorded as the transfers that were queued, all at once."""

        @functools.wraps(function)
        def commit(engine: Any, **said: Any) -> Any:
            transfers = function
            for place in self._queued:
                transfers = self._session.timed(transfers, lambda *_, _is=place, **__: _is)
            self._queued.clear()
            return transfers(engine, **said)

        return commit


def _peers(engine: Any, way: int) -> dict[Kind, int | None]:
    """Return the rank at the other end of each transfer, None where there is none.

    The way is 1 where activations go to the next rank, -1 where they come back.
    """
    here, ranks = engine.grid.get_stage_id(), engine.num_stages
    down, up = (
        int(engine.grid.stage_to_global(there)) if 0 <= there < ranks else None
        for there in (here + way, here - way)
    )
    return {**dict.fromkeys(_DOWNSTREAM, down), **dict.fromkeys(_UPSTREAM, up)}
