"""One stage of the demo's pipeline, in a process of its own."""

from __future__ import annotations

import queue
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from bubblescope.demo.model import Data, Stage, loss_and_gradient
from bubblescope.record import CpuTimer, Recorder
from bubblescope.schedules import SCHEDULES
from bubblescope.vocabulary import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

    from numpy.typing import NDArray

    from bubblescope.demo import Options

    Array = NDArray[np.float32]

__all__ = ["Links", "work"]


class Links:
    """A stage's pipes to its neighbours and to the parent process.

    Attributes:
        before: To the stage before; None on the first.
        after: To the stage after; None on the last.
        parent: Where to report steps, the final weights, or a failure.
        start: Barrier that all stages wait at before the first step.
    """

    def __init__(
        self,
        before: Connection | None,
        after: Connection | None,
        parent: Connection,
        start: Any,
    ) -> None:
        self.before = before
        self.after = after
        self.parent = parent
        self.start = start


class _Sender:
    """Sends arrays from a thread of its own, so that neighbours who both send never deadlock."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._queue: queue.Queue[tuple[Connection, Array, Kind, int, int]] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def send(self, link: Connection, array: Array, kind: Kind, microbatch: int, peer: int) -> None:
        self._queue.put((link, array, kind, microbatch, peer))

    def drain(self) -> None:
        """Wait until everything has been sent."""
        self._queue.join()

    def _run(self) -> None:
        while True:
            link, array, kind, microbatch, peer = self._queue.get()
            try:
                with self._recorder.task(kind, microbatch=microbatch, peer=peer):
                    link.send_bytes(np.ascontiguousarray(array).data)
            except OSError:
                pass  # the neighbour is gone, which the parent sees and reports
            finally:
                self._queue.task_done()


def work(options: Options, stage: int, folder: Path, links: Links) -> None:
    """Train one stage and report to the parent; the target of the stage's process."""
    try:
        _Worker(options, stage, links).train(folder)
    except (EOFError, OSError, threading.BrokenBarrierError) as error:
        links.parent.send(("orphaned", f"{type(error).__name__}: {error}"))
    except Exception as error:  # noqa: BLE001  whatever it is, the parent must hear of it
        links.parent.send(("failed", f"{type(error).__name__}: {error}"))


class _Worker:
    def __init__(self, options: Options, stage: int, links: Links) -> None:
        self._options = options
        self._stage = stage
        self._links = links
        self._model = Stage(
            options.width, options.layers, first=stage * options.layers, seed=options.seed
        )
        self._data = Data(options.seed, options.samples, options.width)

    def train(self, folder: Path) -> None:
        options = self._options
        self._warm_up()
        recorder = Recorder(
            folder,
            rank=self._stage,
            stages=[self._stage],
            schedule=options.schedule,
            microbatches=options.microbatches,
            timer=CpuTimer(),
        )
        with recorder:
            sender = _Sender(recorder)
            self._links.start.wait(timeout=60)
            for step in range(options.steps):
                with recorder.step(step):
                    loss = self._train_step(recorder, sender, step)
                self._links.parent.send(("step", loss))
        self._links.parent.send(("done", self._model.parameters()))

    def _warm_up(self) -> None:
        """Run once what the first step would otherwise pay for: page faults, BLAS start-up."""
        options = self._options
        scratch = Stage(options.width, options.layers, 0, options.seed)
        scratch.backward_input(0, scratch.forward(0, self._data.inputs(0, 0)))
        scratch.backward_weight(0)

    def _train_step(self, recorder: Recorder, sender: _Sender, step: int) -> float:
        options, links, stage = self._options, self._links, self._stage
        gradients: dict[int, Array] = {}
        loss = 0.0
        inputs, targets = self._load(recorder, step)
        for kind, i in SCHEDULES[options.schedule](options.stages, stage, options.microbatches):
            if kind is Kind.FORWARD:
                if links.before is None:
                    x = inputs[i]
                else:
                    with recorder.task(Kind.RECV_FORWARD, microbatch=i, peer=stage - 1):
                        x = self._receive(links.before)
                with self._computing(recorder, kind, i):
                    y = self._model.forward(i, x)
                    if links.after is None:
                        part, gradients[i] = loss_and_gradient(y, targets[i])
                        loss += part
                if links.after is not None:
                    sender.send(links.after, y, Kind.SEND_FORWARD, i, stage + 1)
            elif kind is Kind.BACKWARD_WEIGHT:
                with self._computing(recorder, kind, i):
                    self._model.backward_weight(i)
            else:
                if links.after is not None:
                    with recorder.task(Kind.RECV_BACKWARD, microbatch=i, peer=stage + 1):
                        gradients[i] = self._receive(links.after)
                with self._computing(recorder, kind, i):
                    gradient = self._model.backward_input(i, gradients.pop(i))
                    if kind is Kind.BACKWARD:
                        self._model.backward_weight(i)
                if links.before is not None:
                    sender.send(links.before, gradient, Kind.SEND_BACKWARD, i, stage - 1)
        sender.drain()
        total = options.samples * options.microbatches
        with recorder.task(Kind.OPTIMIZER):
            self._model.optimize(options.rate, total)
        return loss / total

    def _load(self, recorder: Recorder, step: int) -> tuple[list[Array], list[Array]]:
        """Make the step's inputs on the first stage and its targets on the last."""
        microbatches = range(self._options.microbatches)
        inputs: list[Array] = []
        targets: list[Array] = []
        if self._links.before is None or self._links.after is None:
            with recorder.task(Kind.DATA):
                if self._links.before is None:
                    inputs = [self._data.inputs(step, i) for i in microbatches]
                if self._links.after is None:
                    targets = [self._data.targets(step, i) for i in microbatches]
        return inputs, targets

    def _receive(self, link: Connection) -> Array:
        data = link.recv_bytes()
        return np.frombuffer(data, np.float32).reshape(-1, self._options.width)

    @contextmanager
    def _computing(self, recorder: Recorder, kind: Kind, microbatch: int) -> Iterator[None]:
        """Record a compute task and, with `sleep_compute_ms`, stretch it to a fixed length.

        Forward, input gradient and weight gradient take one unit, the fused backward two.
        """
        with recorder.task(kind, microbatch=microbatch):
            began = time.monotonic()
            yield
            if self._options.sleep_compute_ms is not None:
                units = 2 if kind is Kind.BACKWARD else 1
                length = units * self._options.sleep_compute_ms / 1e3
                time.sleep(max(0.0, began + length - time.monotonic()))
