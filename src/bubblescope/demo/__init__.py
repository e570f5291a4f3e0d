"""A real pipeline-parallel training run on one machine, with nothing but NumPy.

Every stage is a process that holds some layers of a multi-layer perceptron; activations and
gradients go through pipes; the backward of ZB-H1 is really split; the loss really falls and the
weights end up equal to those of training in one process. bubblescope's own recorder records it.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bubblescope.demo.model import Data, Stage, loss_and_gradient
from bubblescope.demo.worker import Links, work
from bubblescope.errors import BubblescopeError
from bubblescope.progress import SILENT, Progress
from bubblescope.schedules import SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Options", "Result", "contention_note", "reference", "run"]

_MOST_STAGES: Final = 64
_PATIENCE_S: Final = 60.0
_THREADS: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


class Options(msgspec.Struct, frozen=True):
    """What to train, and how.

    Attributes:
        schedule: One of `bubblescope.schedules.SCHEDULES`.
        stages: Number of pipeline stages, each a process.
        microbatches: Micro-batches per step.
        steps: Training steps.
        sleep_compute_ms: Stretch every forward, input gradient and weight gradient to this many
            milliseconds by sleeping, so that stages do not contend for the machine's cores.
        width: Features of every layer.
        layers: Layers per stage.
        samples: Samples per micro-batch.
        rate: Learning rate.
        seed: Seed of weights and data.

    Raises:
        BubblescopeError: An option is out of range.
    """

    schedule: str = "1f1b"
    stages: int = 4
    microbatches: int = 8
    steps: int = 6
    sleep_compute_ms: float | None = None
    width: int = 384
    layers: int = 2
    samples: int = 192
    rate: float = 4.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise BubblescopeError(
                f"{self.schedule!r} is no schedule of the demo; use one of {', '.join(SCHEDULES)}",
            )
        for name in ("stages", "microbatches", "steps", "width", "layers", "samples"):
            if getattr(self, name) < 1:
                raise BubblescopeError(
                    f"the demo needs {name} of at least 1, not {getattr(self, name)}"
                )
        if self.stages > _MOST_STAGES:
            raise BubblescopeError(
                f"the demo runs at most {_MOST_STAGES} stages, not {self.stages}"
            )
        if self.sleep_compute_ms is not None and self.sleep_compute_ms <= 0:
            raise BubblescopeError(
                f"sleep-compute must be more than 0 ms, not {self.sleep_compute_ms:g}"
            )


class Result(msgspec.Struct, frozen=True):
    """How the training went.

    Attributes:
        losses: Mean loss of each step.
        weights: Weights and biases of all layers, in order.
        seconds: Wall time from the first step's start to the last one's end.
        stages: Number of processes.
        cores: Cores they could use.
        contention: More processes computed than there were cores for.
    """

    losses: list[float]
    weights: list[NDArray[np.float32]]
    seconds: float
    stages: int
    cores: int
    contention: bool


def run(options: Options, folder: Path, progress: Progress = SILENT) -> Result:
    """Train in a pipeline of processes, recording every task into `folder`.

    Recordings that the folder holds already are removed.

    Raises:
        BubblescopeError: A stage failed; the others are stopped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("rank*.bubbles"):
        old.unlink()
    spawn = multiprocessing.get_context("spawn")
    between = [spawn.Pipe() for _ in range(options.stages - 1)]
    start = spawn.Barrier(options.stages)
    processes, reports = [], []
    with _one_thread_each():
        for stage in range(options.stages):
            report, parent = spawn.Pipe(duplex=False)
            links = Links(
                before=between[stage - 1][1] if stage else None,
                after=between[stage][0] if stage < options.stages - 1 else None,
                parent=parent,
                start=start,
            )
            process = spawn.Process(
                target=work,
                args=(options, stage, folder, links),
                daemon=True,
                name=f"stage {stage}",
            )
            process.start()
            parent.close()
            processes.append(process)
            reports.append(report)
    for pair in between:  # the children have their own; an end that nobody holds closes the pipe
        for end in pair:
            end.close()
    began = time.monotonic()
    try:
        losses, weights = _follow(options, reports, progress)
    finally:
        for process in processes:
            process.join(timeout=1)
            if process.is_alive():
                process.kill()
                process.join()
    cores = len(os.sched_getaffinity(0))
    return Result(
        losses=losses,
        weights=weights,
        seconds=time.monotonic() - began,
        stages=options.stages,
        cores=cores,
        contention=options.sleep_compute_ms is None and options.stages > cores,
    )


def reference(options: Options) -> Result:
    """Train the same model on the same data in this process, without a pipeline."""
    stages = [
        Stage(options.width, options.layers, stage * options.layers, options.seed)
        for stage in range(options.stages)
    ]
    data = Data(options.seed, options.samples, options.width)
    total = options.samples * options.microbatches
    losses = []
    began = time.monotonic()
    for step in range(options.steps):
        loss = 0.0
        for i in range(options.microbatches):
            x = data.inputs(step, i)
            for stage in stages:
                x = stage.forward(i, x)
            part, gradient = loss_and_gradient(x, data.targets(step, i))
            loss += part
            for stage in reversed(stages):
                gradient = stage.backward_input(i, gradient)
                stage.backward_weight(i)
        for stage in stages:
            stage.optimize(options.rate, total)
        losses.append(loss / total)
    return Result(
        losses=losses,
        weights=[array for stage in stages for array in stage.parameters()],
        seconds=time.monotonic() - began,
        stages=1,
        cores=len(os.sched_getaffinity(0)),
        contention=False,
    )


def contention_note(result: Result) -> str | None:
    """Return the sentence that an honest picture of contending stages needs, if they did."""
    if not result.contention:
        return None
    return (
        f"{result.stages} stages shared {result.cores} cores, so tasks took longer than on devices "
        "of their own and the bubble rates describe this machine; "
        "--sleep-compute 5 makes stages that do not contend"
    )


def _follow(
    options: Options,
    reports: list[Connection],
    progress: Progress,
) -> tuple[list[float], list[NDArray[np.float32]]]:
    """Listen to all stages until they are done or one fails."""
    progress.begin("training", options.steps)
    losses: list[float] = []
    weights: dict[int, Any] = {}
    orphans: dict[int, str] = {}
    silent: list[int] = []
    for stage, what, value in _messages(reports):
        if what == "failed":
            raise BubblescopeError(f"stage {stage} of the demo failed: {value}")
        if what == "done":
            weights[stage] = value
        elif what == "step" and stage == options.stages - 1:
            losses.append(value)
            progress.advance()
        elif what == "orphaned":
            orphans[stage] = value
        elif what == "ended" and stage not in weights and stage not in orphans:
            silent.append(stage)
    if silent:  # the one that went first; its neighbours only noticed
        raise BubblescopeError(f"stage {silent[0]} of the demo ended without a word")
    for stage, value in orphans.items():
        raise BubblescopeError(f"stage {stage} of the demo lost its neighbour ({value})")
    return losses, [array for stage in sorted(weights) for array in weights[stage]]


def _messages(reports: list[Connection]) -> Iterator[tuple[int, str, Any]]:
    """Yield what the stages say, with the stage, until each has closed its pipe ("ended")."""
    listening = {report: stage for stage, report in enumerate(reports)}
    while listening:
        ready = wait(list(listening), timeout=_PATIENCE_S)
        if not ready:
            raise BubblescopeError(f"the demo hangs: no stage spoke for {_PATIENCE_S:.0f} s")
        for report in reports:
            if report not in ready:
                continue
            try:
                what, value = report.recv()
            except EOFError:
                yield listening.pop(report), "ended", None
            else:
                yield listening[report], what, value


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let processes started inside compute on one thread: a stage stands for one device."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
