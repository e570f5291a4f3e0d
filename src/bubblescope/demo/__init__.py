"""A real pipeline-parallel training run on one machine, with nothing but NumPy.

Every stage is a process that holds some layers of a multi-layer perceptron; activations and
gradients go through pipes; the backward of ZB-H1 is really split; the loss really falls and the
weights end up equal to those of training in one process. bubblescope's own recorder records it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from bubblescope.demo.worker import Links, work
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.machine import cores
from bubblescope.model.progress import SILENT, Progress
from bubblescope.record import claims

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.context import SpawnProcess
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from bubblescope.demo.options import Options

_THREADS: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


class Result(msgspec.Struct, frozen=True):
    """How the training went.

    Attributes:
        losses: Mean loss of each step.
        weights: Weights and biases of all layers, in order.
        seconds: Wall time from the common start of all stages to the end of the last step.
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
    """Train in a pipeline of processes, recording every task into an attempt of its own in `folder`.

    However this ends, no process is left.

    Raises:
        BubblescopeError: A stage failed; the others are stopped.
        OSError: The folder cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _pipeline(options, claims.make(folder).folder) as stages:
        losses, weights, seconds = _follow(options, stages, progress)
    available = cores()
    return Result(
        losses=losses,
        weights=weights,
        seconds=seconds,
        stages=options.stages,
        cores=available,
        contention=options.sleep_compute_ms is None and options.stages > available,
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


class _Started(NamedTuple):
    """A stage's process, and the pipe on which it reports and is told to begin."""

    process: SpawnProcess
    reports: Connection


@contextmanager
def _pipeline(options: Options, folder: Path) -> Iterator[list[_Started]]:
    """Start the processes of all stages; on an error inside kill them, else wait for their end."""
    spawn = multiprocessing.get_context("spawn")
    between = [spawn.Pipe() for _ in range(options.stages - 1)]
    befores = [None, *(end for _, end in between)]
    afters = [*(end for end, _ in between), None]
    started: list[_Started] = []
    try:
        with _one_thread_each(), _uninterrupted():
            for stage, (before, after) in enumerate(zip(befores, afters, strict=True)):
                ours, theirs = spawn.Pipe()
                process = spawn.Process(
                    target=work,
                    args=(options, stage, folder, Links(before, after, theirs)),
                    daemon=True,
                    name=f"stage {stage}",
                )
                process.start()
                started.append(_Started(process, ours))
                # The child has its own. A pipe tells of a death only if nobody else holds its end.
                for end in (before, after, theirs):
                    if end is not None:
                        end.close()
        yield started
    except BaseException:
        for process, _ in started:
            process.kill()
        raise
    finally:
        for process, reports in started:
            process.join()
            reports.close()


def _follow(
    options: Options,
    stages: Sequence[_Started],
    progress: Progress,
) -> tuple[list[float], list[NDArray[np.float32]], float]:
    """Let all stages begin at once, and listen until they are done.

    Returns:
        The loss of each step, the weights in order, and the seconds that the steps took.

    Raises:
        BubblescopeError: A stage failed.
    """
    progress.begin("training", options.steps)
    losses: list[float] = []
    weights: dict[int, list[NDArray[np.float32]]] = {}
    messages = _messages(stages)
    for _ in stages:
        next(messages)  # each stage's first word is that it is ready
    for _, reports in stages:
        with suppress(OSError):  # it is dead by now, which is its next message
            reports.send("begin")
    began = ended = time.monotonic()
    for stage, what, value in messages:
        if what == "done":
            weights[stage] = value
            continue
        ended = time.monotonic()
        if stage == options.stages - 1:
            losses.append(value)
            progress.advance()
    return losses, [array for stage in sorted(weights) for array in weights[stage]], ended - began


def _messages(stages: Sequence[_Started]) -> Iterator[tuple[int, str, Any]]:
    """Yield what the stages say, with the stage, until the last is done.

    This waits as long as it takes: a stage that dies closes its pipe.

    Raises:
        BubblescopeError: A stage failed. Its neighbours, who lose it, are not taken for the cause.
    """
    listening = {reports: stage for stage, (_, reports) in enumerate(stages)}
    orphans: dict[int, str] = {}
    done: set[int] = set()
    while listening:
        ready = wait(list(listening))
        for reports, stage in list(listening.items()):
            if reports not in ready:
                continue
            try:
                what, value = reports.recv()
            except (EOFError, OSError):  # reset, if the stage died before it read our last word
                del listening[reports]
                if stage not in done and stage not in orphans:
                    raise _failure(stage, _fate(stages[stage].process)) from None
                continue
            if what == "failed":
                raise _failure(stage, value)
            if what == "orphaned":
                orphans[stage] = value
                continue
            if what == "done":
                done.add(stage)
            yield stage, what, value
    for stage, value in orphans.items():
        raise _failure(stage, f"it lost a neighbour ({value})")


def _failure(stage: int, why: str) -> BubblescopeError:
    return BubblescopeError(f"stage {stage} of the demo failed: {why}")


def _fate(process: SpawnProcess) -> str:
    """Say how a process ended that said nothing itself."""
    process.join()
    code = process.exitcode or 0
    if code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process ended early, with status {code}"


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put Ctrl-C off, and make processes started inside deaf to it: it is the parent's to handle.

    A terminal sends it to all of them, and each would print a traceback.
    """
    resource_tracker.ensure_running()  # spawning starts it otherwise, and it lifts the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
