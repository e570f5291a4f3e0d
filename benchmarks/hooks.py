"""What does recording a task cost the job, through each framework's hooks?

    python benchmarks/hooks.py [--rounds 100] [--beside OTHER/src]

Each is timed in three ways that take turns in one process, in short runs: bare; with hooks that are
empty, which is what a framework and Python charge for being hooked at all; and recorded. The least of
the runs is what the machine can do when nothing else disturbs it. CPU is that of the whole process,
with the writer's thread, as far as it is done by then, and with beginning and ending the step.
With `--beside`, a second process does the same with another version of the package, in turn with the
first.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope.record.session import Session

TASKS = 512
"""Tasks of a run, which is one step."""
WRITTEN_S = 0.005
"""After which what a step recorded has been written, mostly."""
WAYS = ("bare", "empty", "recorded")

PIPELINING = """
class Stage:
    stage_index = 0
    is_last = False
    def forward_one_chunk(self, microbatch, args, kwargs=None, save_forward_output=True):
        return microbatch
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
class Tensor: pass
def forward_step(step, data, model, microbatches, input, store, config): return [Tensor()], 0
def backward_step(input_tensor, output_tensor, output_tensor_grad, config): return [Tensor()]
def forward_backward_pipelining_without_interleaving(*, model, num_microbatches, run): run()
forward_backward_pipelining_with_interleaving = forward_backward_pipelining_without_interleaving
forward_backward_no_pipelining = forward_backward_pipelining_without_interleaving
def get_forward_backward_func(): return forward_backward_pipelining_without_interleaving
"""


def stand_in(source: str) -> Any:
    """Return a module that has what a framework's integration looks for, and does nothing."""
    module = ModuleType("framework")
    exec(source, vars(module))
    return module


def passed_on(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a function in the place of another costs that does nothing more."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def calls(function: Callable[..., Any], begin: Callable[[], object]) -> Callable[[], int]:
    """Return a function that makes calls as a schedule makes them, and returns the nanoseconds."""
    stage, inputs = SimpleNamespace(stage_index=0), ()

    def run() -> int:
        begin()
        began = time.perf_counter_ns()
        for i in range(TASKS):
            function(stage, i % 64, inputs)
        return time.perf_counter_ns() - began

    return run


def through_a_wrapper(session: Session) -> dict[str, Callable[[], int]]:
    """A function that is recorded, whose place in the pipeline is known before."""
    from bubblescope.model.kinds import Kind  # noqa: PLC0415  of the version that is measured
    from bubblescope.record.buffer import identity_of  # noqa: PLC0415

    known = identity_of(Kind.FORWARD, microbatch=0)

    def forward(_stage: Any, microbatch: int, _inputs: Any) -> int:
        return microbatch

    return {
        "bare": calls(forward, int),
        "empty": calls(passed_on(forward), int),
        "recorded": calls(session.timed(forward, lambda *_: known), session.begin_step),
    }


def through_torch_pipelining(session: Session) -> dict[str, Callable[[], int]]:
    """Forwards of torch.distributed.pipelining."""
    from bubblescope.record.integrations import torch_pipelining  # noqa: PLC0415

    bare, hooked = stand_in(PIPELINING), stand_in(PIPELINING)
    torch_pipelining.schedules(hooked, session)
    session.about(stages=[0])
    return {
        "bare": calls(bare.Stage.forward_one_chunk, int),
        "empty": calls(passed_on(bare.Stage.forward_one_chunk), int),
        "recorded": calls(hooked.Stage.forward_one_chunk, session.begin_step),
    }


def through_megatron(session: Session) -> dict[str, Callable[[], int]]:
    """Forwards and backwards of Megatron-LM core, on the second of four ranks."""
    from bubblescope.record.integrations import megatron  # noqa: PLC0415

    state = ModuleType("megatron.core.parallel_state")
    state.get_pipeline_model_parallel_rank = lambda: 1  # type: ignore[attr-defined]
    state.get_pipeline_model_parallel_world_size = lambda: 4  # type: ignore[attr-defined]
    sys.modules[state.__name__] = state
    modules = {way: stand_in(MEGATRON) for way in WAYS}
    for name in ("forward_step", "backward_step"):
        setattr(modules["empty"], name, passed_on(getattr(modules["empty"], name)))
    megatron.schedules(modules["recorded"], session)
    model = SimpleNamespace(parameters=lambda: iter(()))
    return {way: functools.partial(_megatron, module, model) for way, module in modules.items()}


def _megatron(module: Any, model: Any) -> int:
    forward, backward = module.forward_step, module.backward_step
    took = 0

    def step() -> None:
        nonlocal took
        made = []
        began = time.perf_counter_ns()
        for _ in range(4):
            output, _ = forward(None, None, model, 1, None, None, None)
            made.append(output)
        for _ in range(TASKS // 2 - 4):
            output, _ = forward(None, None, model, 1, None, None, None)
            made.append(output)
            backward(None, made.pop(0), None, None)
        for _ in range(4):
            backward(None, made.pop(0), None, None)
        took = time.perf_counter_ns() - began

    module.forward_backward_pipelining_without_interleaving(
        model=model, num_microbatches=TASKS // 2, run=step
    )
    return took


class _Called:
    """What a model calls in place of itself, as the integration has it, and does nothing more."""

    def __init__(self, model: Any) -> None:
        self._run = model._call_impl  # noqa: SLF001  what it calls without us

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)


def through_a_loop(_: Session) -> dict[str, Callable[[], int]]:
    """Forwards and backwards of a loop that is written by hand in PyTorch."""
    import torch  # noqa: PLC0415  if it is installed

    from bubblescope.record import hooks  # noqa: PLC0415

    torch.set_num_threads(1)
    bare, empty, model = (torch.nn.Linear(4, 4) for _ in WAYS)
    # What is called in their place, as the integration does; it follows what nobody trains as well.
    calls = {bare: None, empty: _Called(empty)}
    backward = torch.autograd.backward
    hooks.install("loop")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # so that its model is followed
    batch = torch.ones(1, 4)

    def run(called: Any, back: Callable[..., Any]) -> int:
        if called is not model:
            called._compiled_call_impl = calls[called]  # noqa: SLF001
        back(called(batch).sum())  # begins the step
        began = time.perf_counter_ns()
        for _ in range(TASKS // 2):
            back(called(batch).sum())
        took = time.perf_counter_ns() - began
        if called is model:
            optimizer.step()
        return took

    return {
        "bare": lambda: run(bare, backward),
        "empty": lambda: run(empty, passed_on(backward)),
        "recorded": lambda: run(model, torch.autograd.backward),
    }


def through_a_tensor(session: Session, *, inside: bool) -> dict[str, Callable[[], int]]:
    """A tensor's `to` that changes nothing, as models call it to be sure of a type: no task at all."""
    import torch  # noqa: PLC0415  if it is installed

    from bubblescope.record.integrations.torch_copies import Copies  # noqa: PLC0415  as above

    torch.set_num_threads(1)
    torch.cuda.is_initialized = lambda: True  # else there is nothing to copy to
    copies = session.shared(Copies)
    copies.loop = SimpleNamespace(inside=None, outside=None)
    tensor, kind, theirs = torch.ones(4), torch.float32, torch.Tensor.to

    def run(put: Callable[[], object]) -> int:
        copies._leave()  # noqa: SLF001  a step has begun since the last run, and it hooks in steps
        put()
        copies.loop.inside = tensor if inside else None
        for _ in range(2):  # the first of them lets Python get used to what is there now
            began = time.perf_counter_ns()
            for _ in range(TASKS):
                tensor.to(kind)
            took = time.perf_counter_ns() - began
        if put is replace:
            del torch.Tensor.to
        return took

    def replace() -> None:
        torch.Tensor.to = passed_on(theirs)

    return {
        "bare": lambda: run(int),
        "empty": lambda: run(replace),
        "recorded": lambda: run(session.begin_step),
    }


THROUGH = {
    "a function": through_a_wrapper,
    "torch.distributed.pipelining": through_torch_pipelining,
    "Megatron-LM core": through_megatron,
    "a loop of PyTorch": through_a_loop,
    "tensor.to, in a pass": functools.partial(through_a_tensor, inside=True),
    "tensor.to, between passes": functools.partial(through_a_tensor, inside=False),
}
OF_PYTORCH = {name: "torch_loop" for name in THROUGH if "PyTorch" in name} | {
    name: "torch_copies" for name in THROUGH if "tensor" in name
}
"""Those that need PyTorch, and which integration they measure."""


def work(which: str) -> None:
    """Time a run of each way whenever a line comes; answer with wall and CPU nanoseconds a task."""
    from bubblescope.record import session  # noqa: PLC0415
    from bubblescope.record.settings import Settings  # noqa: PLC0415

    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        ours = session.begin(Settings(out=folder, timer="cpu"))
        ours.on_step(lambda _: None)  # so that every step is written at its end
        runs = THROUGH[which](ours)
        gc.disable()
        for way in WAYS * 5:
            runs[way]()
        print("ready", flush=True)
        for _ in sys.stdin:
            gc.collect()
            took = {}
            for way in chance.sample(WAYS, len(WAYS)):
                cpu = time.process_time_ns()
                wall = runs[way]()
                if way == "recorded":
                    ours.begin_step()  # ends the step, which is written then
                time.sleep(WRITTEN_S)
                cpu = time.process_time_ns() - cpu
                took[way] = [wall / TASKS, cpu / TASKS]
            print(json.dumps(took), flush=True)
        ours.close()


def started(which: str, source: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--worker", which]
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def asked(process: subprocess.Popen[str]) -> dict[str, list[float]]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    found: dict[str, list[float]] = json.loads(process.stdout.readline())
    return found


def measured(
    which: str, sources: dict[str, str], rounds: int
) -> dict[tuple[str, str], list[list[float]]]:
    """Return what runs took, by version and way."""
    processes = {name: started(which, source) for name, source in sources.items()}
    took: dict[tuple[str, str], list[list[float]]] = {}
    for _ in range(rounds):
        for name, process in processes.items():
            for way, values in asked(process).items():
                took.setdefault((name, way), []).append(values)
    for process in processes.values():
        process.communicate()
    return took


def table(which: str, sources: dict[str, str], rounds: int) -> None:
    """Print what a task costs with each version, and what that is beyond the bare call."""
    took = measured(which, sources, rounds)
    wall = {key: figures(values, 0) for key, values in took.items()}
    cpu = {key: figures(values, 1) for key, values in took.items()}
    for way in WAYS:
        beyond = {
            name: [
                now - then
                for clock in (wall, cpu)
                for now, then in zip(clock[name, way], clock[name, "bare"], strict=True)
            ]
            for name in sources
        }
        for name, values in beyond.items():
            line = f"{which:30}{way:10}{name:8}" + "".join(f"{one:9.0f}" for one in wall[name, way])
            if way != "bare":
                line += "".join(f"{value:9.0f}" for value in values)
            if way == "recorded" and name == "now" and "before" in beyond:
                ratios = zip(values, beyond["before"], strict=True)
                line += "   ratios " + " ".join(f"{now / then:.2f}" for now, then in ratios)
            print(line, flush=True)


def figures(values: list[list[float]], clock: int) -> tuple[float, float]:
    """Return the least and the median of one of the clocks."""
    those = [one[clock] for one in values]
    return min(those), median(those)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--beside", metavar="OTHER/src")
    parser.add_argument("--only", choices=THROUGH)
    parser.add_argument("--worker", choices=THROUGH, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker)
        return
    sources = {"now": str(Path(__file__).parents[1] / "src")}
    if arguments.beside:
        sources["before"] = arguments.beside
    print(f"{'':48}{'ns a task':>18}{'beyond bare':>18}{'CPU beyond bare':>18}")
    print(f"{'':48}" + "    least   median" * 3)
    for which in [arguments.only] if arguments.only else THROUGH:
        if which in OF_PYTORCH and find_spec("torch") is None:
            print(f"{which}: PyTorch is not installed")
            continue
        measured = f"bubblescope/record/integrations/{OF_PYTORCH.get(which, '')}"
        if not all([*Path(source).glob(f"{measured}*")] for source in sources.values()):
            print(f"{which}: one of the versions does not record this")
            continue
        table(which, sources, arguments.rounds)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
