"""PaddlePaddle: its dygraph pipelines, and the job profiler of its static graphs.

The dygraph pipelines (`fleet.meta_parallel`) run one step by `forward_backward_pipeline`, which calls
`_forward_step` and `_backward_step` with the `chunk_id`, each chunk's in the order of micro-batches;
DualPipeV is DeepSeek's. All transfers go through one `_p2p_helper`. Under a static graph the executor
runs a plan of jobs, and writes when each began and ended to its standard error if it is told to, which
`bubblescope` reads. Read in PaddlePaddle 3.3.1.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import LANE_OF_KIND, PAIRED, identity_of, pack_identity
from bubblescope.record.claims import claim
from bubblescope.record.coordinates import coordinates
from bubblescope.record.integrations.evaluations import evaluation
from bubblescope.record.integrations.paddle_groups import memberships
from bubblescope.record.integrations.two_chunks import Names, TwoChunks
from bubblescope.record.job_log import warn
from bubblescope.record.profiler_api import Switch, switch
from bubblescope.recording.rows import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from bubblescope.record.session import Session

_NAMES: Final = Names(
    "_{}_compute",
    "current_{}_acc_id",
    ("comm_forward_ops", "comm_backward_ops"),
    "overlapped_forward_backward",
)
_LOG: Final = re.compile(r"workerlog\.[0-9]+")
_FOREVER: Final = 999_999_999
"""The last step of a window that has none: the largest number that a log's reader expects."""


def pipelines(module: ModuleType, session: Session) -> None:
    """Record the steps of all dygraph pipelines but DualPipeV."""
    base, step = module.PipelineParallel, session.shared(_Step)
    forward = session.timed(base._forward_step, step.forward)  # noqa: SLF001
    backward = session.timed(base._backward_step, step.backward)  # noqa: SLF001
    overlapping: Any = getattr(module, "PipelineParallelWithInterleave", None)
    for pipeline in vars(module).values():
        if isinstance(pipeline, type) and issubclass(pipeline, base):
            _steps(pipeline, session, step.begin)
    base._forward_step, base._backward_step = forward, backward  # noqa: SLF001
    if hasattr(overlapping, "_forward_backward_helper"):  # older ones overlap nothing
        overlapping._forward_backward_helper = session.timed(  # noqa: SLF001
            overlapping._forward_backward_helper,  # noqa: SLF001
            step.pair,
        )


def dualpipev(module: ModuleType, session: Session) -> None:
    """Record the steps of Paddle's DualPipeV."""
    pipe = module.DualPipeVParallel
    chunks = TwoChunks(session, _NAMES, lambda _, peer: int(peer))
    chunks.record(pipe, module.WeightGradStore)

    def begin(pipeline: Any) -> None:
        stages = _stages(pipeline)
        chunks.begin(stages)
        _introduce(pipeline, stages, session)

    _steps(pipe, session, begin)


def transfers(module: ModuleType, session: Session) -> None:
    """Record what is sent and received."""
    step = session.shared(_Step)
    helper = module._p2p_helper  # noqa: SLF001

    @functools.wraps(helper)
    def transfer(*args: Any, **kwargs: Any) -> Any:
        recorded = helper
        for place in step.transfers(module, *args, **kwargs):
            recorded = session.timed(recorded, lambda *_, _is=place, **__: _is)
        return recorded(*args, **kwargs)

    module._p2p_helper = transfer  # type: ignore[attr-defined]  # noqa: SLF001


def optimizer(module: ModuleType, session: Session) -> None:
    """Record the optimizer's steps, with the gradients' reduction in them."""
    hybrid = module.HybridParallelOptimizer
    hybrid.step = session.timed(hybrid.step, lambda *_, **__: identity_of(Kind.OPTIMIZER))


def executor(module: ModuleType, session: Session) -> None:
    """Let the executor profile the jobs of the steps to record, and put its logs to the recording."""
    profiler = _JobProfiler(session, module)
    standalone = module._StandaloneExecutor  # noqa: SLF001
    theirs = standalone.run
    if "enable_job_schedule_profiler" not in inspect.signature(theirs).parameters:
        raise AttributeError("its executor has no job profiler")

    @functools.wraps(theirs)
    def run(
        self: Any,
        feed_names: Any,
        return_numpy: bool = True,
        enable_job_schedule_profiler: bool = False,
    ) -> Any:
        wanted = profiler.wants(self) or enable_job_schedule_profiler
        return theirs(self, feed_names, return_numpy, wanted)

    standalone.run = run


def _steps(pipeline: Any, session: Session, begin: Callable[[Any], None]) -> None:
    """Make a class's own `forward_backward_pipeline` begin steps, and its `eval_batch` be recorded.

    Args:
        pipeline: The class.
        session: The session.
        begin: Called with the pipeline before each step.
    """
    evaluates = vars(pipeline).get("eval_batch")
    if evaluates is not None:
        pipeline.eval_batch = evaluation(evaluates, session)
    theirs = vars(pipeline).get("forward_backward_pipeline")
    if theirs is None:
        return
    signature, step = inspect.signature(theirs), session.shared(_Step)

    @functools.wraps(theirs)
    def forward_backward_pipeline(self: Any, *args: Any, **kwargs: Any) -> Any:
        said = signature.bind(self, *args, **kwargs).arguments
        # It may be no training; or a class may call that of its base.
        if said.get("forward_only") or said.get("static_scheduler") or step.running:
            return theirs(self, *args, **kwargs)
        session.use("paddle")
        try:
            begin(self)
        except Exception as error:  # noqa: BLE001  the job goes on
            session.fail(error)
        session.begin_step()
        step.running = True
        try:
            return theirs(self, *args, **kwargs)
        finally:
            step.running = False

    pipeline.forward_backward_pipeline = forward_backward_pipeline
    sums_loss = vars(pipeline).get("_broadcast_final_loss")
    if sums_loss is not None:
        pipeline._broadcast_final_loss = session.timed(  # noqa: SLF001  all wait for it
            sums_loss, lambda *_, **__: identity_of(Kind.COLLECTIVE) if step.running else None
        )


def _stages(pipeline: Any) -> list[int]:
    """Return the stages of this rank, by chunk."""
    stage, ranks = int(pipeline.stage_id), int(pipeline.num_stages)
    if any(one.__name__ == "DualPipeVParallel" for one in type(pipeline).__mro__):
        return [stage, 2 * ranks - 1 - stage]
    return [stage + ranks * chunk for chunk in range(getattr(pipeline, "num_model_chunks", 1))]


def _introduce(pipeline: Any, stages: list[int], session: Session) -> None:
    """Tell the session what the pipeline knows of itself."""
    try:
        grid = pipeline._hcg  # noqa: SLF001
        sharding = grid.get_sharding_parallel_world_size()
        rank, groups = int(grid.get_global_rank()), memberships(grid)
        device = str(sys.modules["paddle"].device.get_device()).partition(":")[2]
        known = {
            **coordinates(rank, groups),
            # Ranks that share out the optimizer's state are replicas too.
            "dp": grid.get_data_parallel_rank() * sharding + grid.get_sharding_parallel_rank(),
            "tp": grid.get_model_parallel_rank(),
        }
        session.about(
            rank=rank,
            stages=stages,
            schedule=type(pipeline).__name__,
            microbatches=int(pipeline.accumulate_steps),
            device=int(device) if device.isdigit() else None,
            groups=groups or None,
            **known,
        )
    except Exception as error:  # noqa: BLE001  the job goes on
        session.fail(error)


class _Step:
    """What the calls of the pipeline's functions are in the step that runs."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._stages: list[int] = []
        self._done: Counter[tuple[Kind, int]] = Counter()
        self.running = False

    def begin(self, pipeline: Any) -> None:
        """Begin a step."""
        self._done.clear()
        self._stages = _stages(pipeline)
        _introduce(pipeline, self._stages, self._session)

    def _next(self, kind: Kind, chunk: int) -> tuple[int, int, int]:
        """Return stage, chunk and micro-batch of the next pass of a chunk, and count it."""
        done = self._done[kind, chunk]
        self._done[kind, chunk] += 1
        return self._stages[chunk], chunk if len(self._stages) > 1 else UNKNOWN, done

    def _pass(self, kind: Kind, chunk: int | None) -> bytes | None:
        if not self.running:
            return None
        stage, chunk, microbatch = self._next(kind, chunk or 0)
        return identity_of(kind, stage=stage, chunk=chunk, microbatch=microbatch)

    def forward(
        self,
        _: Any,
        input_tensor: Any,
        micro_dataset: Any,
        chunk_id: int | None = None,
        *__: Any,
        **___: Any,
    ) -> bytes | None:
        """Return the place of a forward, which has the loss in it."""
        del input_tensor, micro_dataset
        return self._pass(Kind.FORWARD, chunk_id)

    def backward(
        self,
        _: Any,
        input_tensor: Any,
        output_tensor: Any,
        output_tensor_grad: Any,
        chunk_id: int | None = None,
        *__: Any,
        **___: Any,
    ) -> bytes | None:
        """Return the place of a backward."""
        del input_tensor, output_tensor, output_tensor_grad
        return self._pass(Kind.BACKWARD, chunk_id)

    def pair(self, pipeline: Any, _: Any, forward: int, backward: int, *__: Any, **___: Any) -> Any:
        """Return the place of a forward and a backward that overlap.

        Where they do not, the pipeline calls one after the other, and they are recorded then.
        """
        if not self.running or not getattr(pipeline, "overlap_schedule_mode", False):
            return None
        chunk = pipeline._get_virtual_pp_rank  # noqa: SLF001
        return pack_identity(
            *self._next(Kind.FORWARD, chunk(forward, forward=True)),
            UNKNOWN,
            *self._next(Kind.BACKWARD, chunk(backward, forward=False)),
            PAIRED,
            LANE_OF_KIND[PAIRED],
        )

    def transfers(
        self,
        module: ModuleType,
        tensor_send_next: Any,
        tensor_send_prev: Any,
        recv_prev: bool,
        recv_next: bool,
        *_: Any,
        **__: Any,
    ) -> list[bytes]:
        """Return the places of what one call sends and receives."""
        recorder = self._session.recorder
        if not self.running or recorder is None or not recorder.recording:
            return []
        try:
            grid = module._hcg  # noqa: SLF001
            after, before = grid._get_p2p_next_rank(), grid._get_p2p_prev_rank()  # noqa: SLF001
            all_of_them = {
                Kind.SEND_FORWARD: (tensor_send_next is not None, after),
                Kind.SEND_BACKWARD: (tensor_send_prev is not None, before),
                Kind.RECV_FORWARD: (recv_prev, before),
                Kind.RECV_BACKWARD: (recv_next, after),
            }
            return [
                self._transfer(kind, int(peer))
                for kind, (there, peer) in all_of_them.items()
                if there
            ]
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)
            return []

    def _transfer(self, kind: Kind, peer: int) -> bytes:
        if len(self._stages) > 1:
            return identity_of(kind, peer=peer)  # of which chunk, the call does not say
        stage, _, microbatch = self._next(kind, 0)
        return identity_of(kind, stage=stage, microbatch=microbatch, peer=peer)


class _JobProfiler:
    """Counts the steps of a static graph's pipeline, and says which are to be profiled.

    Args:
        session: The session.
        module: Paddle's executor.
    """

    def __init__(self, session: Session, module: ModuleType) -> None:
        self._session = session
        self._module = module
        self._window = session._settings  # noqa: SLF001
        self._trains: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
        self._next = 0
        self._works = True
        self._profiler: Switch | None = None

    def wants(self, executor: Any) -> bool:
        """Say whether what an executor begins to run now is to be profiled.

        Raises:
            SystemExit: The last step to record has ended, and the job is to leave then.
        """
        window = self._window
        if not self._works or not self._is_training(executor):
            return False
        number, self._next = self._next, self._next + 1
        if self._profiler is not None and number == window.stop:
            self._profiler.off()
        if window.exit_after and number == window.stop:
            raise SystemExit(0)
        if number == window.start:
            link = _kept(Path(window.out), window.since_ns)
            if window.profiler_api:
                self._profiler = switch(link.parent if link else window.out)
                self._profiler.on()
            self._works = self._announce(kept=link is not None)
        return (
            self._works and number >= window.start and (window.stop is None or number < window.stop)
        )

    def _is_training(self, executor: Any) -> bool:
        """Say whether an executor's plan is a pipeline's step, and no start-up or evaluation."""
        if executor not in self._trains:
            try:
                types = {str(job.type()) for job in executor._plan.job_list()}  # noqa: SLF001
            except Exception as error:  # noqa: BLE001  the job goes on
                types = set()
                self._give_up(f"its executor's plan cannot be read ({error})")
            self._trains[executor] = any(name.startswith("backward") for name in types)
        return self._trains[executor]

    def _announce(self, *, kept: bool) -> bool:
        """Tell the log's reader the first step.

        Args:
            kept: Whether the recording shows the log.

        Returns:
            Whether there will be anything to read.
        """
        if not self._module.core.is_compiled_with_cuda():
            return self._give_up("only an executor with CUDA logs its jobs")
        start = self._window.start
        stop = _FOREVER if self._window.stop is None else self._window.stop
        # As `paddle.profiler.utils.switch_job_schedule_profiler` says it.
        sys.stderr.write(f"Schedule Profiler start at step {start} and end at step {stop}\n")
        sys.stderr.flush()
        if not kept:
            warn(
                "Paddle's executor logs its jobs to the standard error of each worker; keep those "
                "in files workerlog.0, workerlog.1, ... of one folder, which bubblescope reads",
                stacklevel=2,
            )
        return True

    def _give_up(self, why: str) -> bool:
        self._works = False
        warn(
            f"bubblescope cannot record Paddle's static graph: {why}; the job goes on without",
            stacklevel=2,
        )
        return False


def _kept(folder: Path, since_ns: int | None) -> Path | None:
    """Let a recording show the log that this worker's standard error goes to.

    Args:
        folder: The recording's.
        since_ns: As in `Settings`.

    Returns:
        The link to the log; None if there is none by the name that Paddle's launcher gives it.
    """
    try:
        log = Path("/proc/self/fd/2").readlink()
        if not _LOG.fullmatch(log.name):
            return None
        return claim(folder, f"{_machine()}{log.name}", since_ns, lambda link: link.symlink_to(log))
    except OSError:
        return None


def _machine() -> str:
    """Return the folder for a worker's log: that of its machine, if there are several."""
    told = os.environ.get
    if int(told("PADDLE_NNODES", "1")) < 2:
        return ""
    rank, workers = int(told("PADDLE_GLOBAL_RANK", "0")), int(told("PADDLE_LOCAL_SIZE", "1"))
    return f"machine{rank // workers}/"
