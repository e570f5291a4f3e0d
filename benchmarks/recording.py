"""What recording costs a job, what a kill leaves of it, and how long watching 1,024 ranks takes."""

from __future__ import annotations

import argparse
import functools
import gc
import io
import random
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from test_record_kill import TASKS as KILLED_TASKS
from test_record_kill import THREADS, kill_once
from test_watch import header, tasks

from bubblescope import record
from bubblescope.analysis.live import RunningJob
from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import identity_of
from bubblescope.record.integrations import megatron, torch_pipelining
from bubblescope.record.session import Session, current
from bubblescope.record.settings import Settings
from bubblescope.recording.file import Sink
from bubblescope.recording.follow import Tail
from bubblescope.render.text.watch import picture

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from bubblescope.recording.rows import Rows

CALLS, ROUNDS = 4000, 60
FORWARD = Kind.FORWARD  # members of an enumeration are slow to look up
BLOCK, TASKS_A_STEP, STEP_S = 4, 64, 0.1
WRITTEN_S = 0.3
"""After which what was recorded has been written."""
RANKS, STEPS, SECOND = 1024, 30, 1_000_000_000


class Stage:
    """Something whose method a framework would call for each micro-batch."""

    stage_index = 0

    def forward(self, microbatch: int) -> int:
        """Do nothing."""
        return microbatch


def place(stage: Stage | Work, microbatch: int) -> bytes:
    """Say where a call belongs, as the integrations do."""
    return identity_of(FORWARD, stage=stage.stage_index, microbatch=microbatch)


def passed_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the median and its 95 % interval, by the bootstrap."""
    drawn = np.random.default_rng(1).choice(values, (10_000, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(np.median(values)), float(low), float(high)


def cost_of_a_record() -> None:
    known = identity_of(Kind.FORWARD, microbatch=0)
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Settings(out=folder, timer="cpu"))
        session.on_step(lambda _: None)  # so that every step is written at its end
        ways = {
            "bare call": Stage.forward,
            "empty wrapper": passed_on(Stage.forward),
            "recorded, place packed before": session.timed(Stage.forward, lambda *_: known),
            "recorded": session.timed(Stage.forward, place),
        }
        took: dict[str, list[float]] = {name: [] for name in ways}
        stage = Stage()
        gc.disable()
        for _ in range(ROUNDS):
            for name, function in ways.items():
                session.begin_step()
                time.sleep(0.02)  # until the last step is written
                began = time.perf_counter_ns()
                for i in range(CALLS):
                    function(stage, i % 64)
                took[name].append((time.perf_counter_ns() - began) / CALLS)
        gc.enable()
        session.close()
    bare, empty = np.array(took["bare call"]), np.array(took["empty wrapper"])
    print(
        f"{'ns a call':32}{'least':>8}{'median':>8}   beyond bare (95 %)     beyond an empty wrapper"
    )
    for name, values in took.items():
        line = f"{name:32}{min(values):8.0f}{median(values):8.0f}"
        for base in (bare, empty):
            middle, low, high = interval(np.array(values) - base)
            line += f"   {middle:6.0f} ({low:.0f} to {high:.0f})"
        print(line)


PIPELINING = """
class Stage:
    stage_index = 0
    def forward_one_chunk(self, microbatch): return microbatch
    backward_one_chunk = backward_weight_one_chunk = perform_reduce_grad = forward_one_chunk
    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = forward_one_chunk
_PipelineStageBase = Stage
class PipelineScheduleSingle:
    def step(self): pass
    def _maybe_compute_loss(self): pass
PipelineScheduleMulti = _PipelineSchedule = PipelineScheduleSingle
def _batch_p2p(operations): pass
def _wait_batch_p2p(works): pass
"""
MEGATRON = """
def forward_step(step, data, model, microbatches, input, store, config): return OUT
def backward_step(input_tensor, output_tensor, output_tensor_grad, config): return OUT
def forward_backward_pipelining_without_interleaving(*, model, num_microbatches, run): run()
forward_backward_pipelining_with_interleaving = forward_backward_pipelining_without_interleaving
forward_backward_no_pipelining = forward_backward_pipelining_without_interleaving
def get_forward_backward_func(): return forward_backward_pipelining_without_interleaving
"""


def stand_in(source: str) -> Any:
    module = ModuleType("framework")
    module.OUT = [SimpleNamespace()]  # type: ignore[attr-defined]
    exec(source, vars(module))
    return module


def through_torch_pipelining(session: Session | None) -> float:
    """Return the nanoseconds that a forward takes."""
    module = stand_in(PIPELINING)
    if session is not None:
        torch_pipelining.schedules(module, session)
        session.begin_step()
    stage, forward = module.Stage(), module.Stage.forward_one_chunk
    began = time.perf_counter_ns()
    for i in range(CALLS):
        forward(stage, i % 64)
    return (time.perf_counter_ns() - began) / CALLS


def through_megatron(session: Session | None) -> float:
    """Return the nanoseconds that a forward or a backward takes, over many steps."""
    state = ModuleType("megatron.core.parallel_state")
    state.get_pipeline_model_parallel_rank = lambda: 1  # type: ignore[attr-defined]
    state.get_pipeline_model_parallel_world_size = lambda: 4  # type: ignore[attr-defined]
    sys.modules[state.__name__] = state
    model = SimpleNamespace(parameters=lambda: iter(()))
    module = stand_in(MEGATRON)
    if session is not None:
        megatron.schedules(module, session)
    took = []

    def run() -> None:
        forward, backward = module.forward_step, module.backward_step
        began = time.perf_counter_ns()
        for _ in range(TASKS_A_STEP // 2):
            forward(None, None, model, 1, None, None, None)
            backward(None, module.OUT, None, None)
        took.append((time.perf_counter_ns() - began) / TASKS_A_STEP)

    for _ in range(CALLS // TASKS_A_STEP):
        module.forward_backward_pipelining_without_interleaving(
            model=model, num_microbatches=TASKS_A_STEP // 2, run=run
        )
    return median(took)


def cost_through_hooks() -> None:
    """Time passes that do nothing, with and without a framework's hooks."""
    gc.disable()
    for name, once in (
        ("torch.distributed.pipelining", through_torch_pipelining),
        ("Megatron-LM core", through_megatron),
    ):
        differences = []
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                session = Session(Settings(out=folder, timer="cpu"))
                differences.append(once(session) - once(None))
                session.close()
        middle, low, high = interval(np.array(differences))
        print(f"through the hooks of {name}: {middle:.0f} ns a task ({low:.0f} to {high:.0f})")
    gc.enable()


def cost_through_a_loop() -> None:
    """Time a loop that is written by hand in PyTorch, if that is installed."""
    if find_spec("torch") is None:
        print("through a loop's hooks: PyTorch is not installed")
        return
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    batch = torch.ones(1, 4)

    differences = []
    with tempfile.TemporaryDirectory() as folder:
        record.instrument("loop", folder=folder, timer="cpu")
        bare, model = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # so that its model is followed
        recorded = torch.autograd.backward
        ways = ((bare, recorded.__wrapped__), (model, recorded))
        for _ in range(ROUNDS):
            model(batch).sum().backward()  # begins the step
            time.sleep(WRITTEN_S)
            took = []
            for called, backward in ways:
                began = time.perf_counter_ns()
                for _ in range(CALLS // 4):
                    backward(called(batch).sum())
                took.append((time.perf_counter_ns() - began) / (CALLS // 2))
            differences.append(took[1] - took[0])
            optimizer.step()
        current().close()  # type: ignore[union-attr]  # just begun
    middle, low, high = interval(np.array(differences))
    print(f"through the hooks of a loop: {middle:.0f} ns a task ({low:.0f} to {high:.0f})")


class Work:
    """Tasks of matrix products, so many that a step takes about `STEP_S`."""

    stage_index = 0

    def __init__(self) -> None:
        self._matrix = np.random.default_rng(0).random((192, 192))
        self._repeats = 1
        took = []
        for i in range(1000):
            began = time.perf_counter()
            self.forward(i)
            took.append(time.perf_counter() - began)
        self._repeats = max(1, round(STEP_S / TASKS_A_STEP / min(took)))

    def forward(self, _: int) -> None:
        """Do it."""
        for _i in range(self._repeats):
            self._matrix.dot(self._matrix)


CLOCKS = {
    "wall time": time.perf_counter_ns,
    "CPU time of the process, its writer with it": time.process_time_ns,
    "CPU time of the job's own thread": time.thread_time_ns,
}


def steps_of(work: Work, forward: Callable[..., Any], session: Session | None) -> list[float]:
    """Return the mean times of a block's steps, not all of which are written in; the first settles."""
    found = []
    for _ in range(BLOCK + 1):
        began = [clock() for clock in CLOCKS.values()]
        if session is not None:
            session.begin_step()
        for i in range(TASKS_A_STEP):
            forward(work, i)
        found.append([clock() - at for clock, at in zip(CLOCKS.values(), began, strict=True)])
    if session is not None:
        session.begin_step()
        time.sleep(WRITTEN_S)  # what is still to be written is not the next block's
    return [mean(values) for values in zip(*found[1:], strict=True)]


def cost_of_a_step(blocks: int) -> None:
    """Time blocks of steps with and without recording in turns, in an order drawn for each pair."""
    work = Work()
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Settings(out=folder, timer="cpu"))
        timed = session.timed(Work.forward, place)
        chance = random.Random(1)
        took: dict[bool, list[list[float]]] = {False: [], True: []}
        for _ in range(blocks):
            for recorded in chance.sample([False, True], 2):
                took[recorded].append(
                    steps_of(work, timed, session)
                    if recorded
                    else steps_of(work, Work.forward, None)
                )
        session.close()
    without, with_ = (np.array(took[recorded]) for recorded in (False, True))
    print(
        f"step of {np.median(without[:, 0]) / 1e6:.0f} ms with {TASKS_A_STEP} tasks, "
        f"{blocks} pairs of {BLOCK} steps:"
    )
    for clock, change in zip(CLOCKS, (100 * (with_ / without - 1)).T, strict=True):
        middle, low, high = interval(change)
        print(f"  {clock}: median change {middle:+.3f} % (95 %: {low:+.3f} to {high:+.3f} %)")


def kills(count: int) -> None:
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        left = [
            kill_once(Path(folder, str(number)), chance.uniform(0, 0.5)) for number in range(count)
        ]
    endings = {name: sum(one.notice == name for one in left) for name in ("unclosed", "torn-tail")}
    flushed, steps = (sum(values) for values in zip(*[one[:2] for one in left], strict=True))
    print(
        f"{count} kills, {THREADS} threads, {THREADS * KILLED_TASKS} tasks a step: {flushed:,} steps "
        f"flushed, 0 lost, {steps - flushed} more found whole; endings {endings}"
    )


def watching() -> None:
    def one(number: int) -> Rows:
        starts = range(number * SECOND, (number + 1) * SECOND, SECOND // 64)
        return tasks(*((number, at, at + SECOND // 80) for at in starts))

    with tempfile.TemporaryDirectory() as folder:
        files = [
            Sink(Path(folder, f"rank{rank:05d}.bubbles"), header(rank)) for rank in range(RANKS)
        ]
        tail, progress = Tail(Path(folder)), RunningJob()
        console = Console(file=io.StringIO(), width=120)
        took = []
        for number in range(STEPS):
            for file in files:
                file.write(one(number))
            began = time.perf_counter()
            progress.update(tail.news(), tail)
            console.print(picture(Path(folder), progress.figures()))
            took.append(time.perf_counter() - began)
        began = time.perf_counter()
        late, other = Tail(Path(folder)), RunningJob()
        other.update(late.news(), late)
        first = time.perf_counter() - began
        for file in files:
            file.close(complete=True)
    print(
        f"watch, {RANKS} ranks with 64 new tasks each: {median(took):.3f} s a picture "
        f"(most {max(took):.3f} s); begun after {STEPS} steps {first:.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--blocks", type=int, default=60)
    arguments = parser.parse_args()
    cost_of_a_record()
    cost_through_hooks()
    cost_through_a_loop()
    cost_of_a_step(arguments.blocks)
    watching()
    kills(arguments.kills)


if __name__ == "__main__":
    main()
