"""One stage of the demo's pipeline, in a process of its own."""

from __future__ import annotations

import queue
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bubblescope.demo.network import Data, Stage, loss_and_gradient
from bubblescope.model.kinds import Kind
from bubblescope.record import CpuTimer, Recorder
from bubblescope.schedules import generate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

    from numpy.typing import NDArray

    from bubblescope.demo.options import Options

    Array = NDArray[np.float32]


class Links(NamedTuple):
    """A stage's pipes to its neighbours and to the parent process.

    Attributes:
        before: To the stage before; None on the first.
        after: To the stage after; None on the last.
        parent: Where to say that the stage is ready, be told to begin, and report steps, the final
            weights, or a failure.
    """

    before: Connection | None
    after: Connection | None
    parent: Connection


class _Neighbour:
    """The stage before or after.

    A thread sends to it, so that neighbours who both send large arrays never deadlock. Each neighbour
    has its own: one that is not receiving yet must not hold up what the other waits for.
    """

    def __init__(self, link: Connection, peer: int, recorder: Recorder, *, before: bool) -> None:
        self._link = link
        self._peer = peer
        self._recorder = recorder
        self._sends = Kind.SEND_BACKWARD if before else Kind.SEND_FORWARD
        self._receives = Kind.RECV_FORWARD if before else Kind.RECV_BACKWARD
        self._queue: queue.Queue[tuple[int, Any]] = queue.Queue()
        threading.Thread(target=self._send_all, daemon=True).start()

    def send(self, microbatch: int, array: Array) -> None:
        """Send an array before long."""
        self._queue.put((microbatch, np.ascontiguousarray(array).data))

    def receive(self, microbatch: int) -> Array:
        """Wait for the next array, samples by features, flat."""
        with self._recorder.task(self._receives, microbatch=microbatch, peer=self._peer):
            return np.frombuffer(self._link.recv_bytes(), np.float32)

    def drain(self) -> None:
        """Wait until everything has been sent."""
        self._queue.join()

    def _send_all(self) -> None:
        while True:
            microbatch, data = self._queue.get()
            # A neighbour that is gone is the parent's to notice and report.
            with (
                suppress(OSError),
                self._recorder.task(self._sends, microbatch=microbatch, peer=self._peer),
            ):
                self._link.send_bytes(data)
            self._queue.task_done()


def work(options: Options, stage: int, folder: Path, links: Links) -> None:
    """Train one stage and report to the parent; the target of the stage's process."""
    report: tuple[str, Any]
    try:
        report = "done", _Worker(options, stage, links).train(folder)
    except (EOFError, OSError) as error:
        report = "orphaned", f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001  whatever it is, the parent must hear of it
        report = "failed", f"{type(error).__name__}: {error}"
    with suppress(OSError):  # a parent that is gone needs no report
        links.parent.send(report)


class _Worker:
    def __init__(self, options: Options, stage: int, links: Links) -> None:
        self._options = options
        self._stage = stage
        self._links = links
        self._model = Stage(
            options.width, options.layers, first=stage * options.layers, seed=options.seed
        )
        # All of it now: a stage that made its data step by step would hold up the others.
        data = Data(options.seed, options.batch, options.width)
        microbatches = range(options.microbatches)
        self._inputs = [] if links.before else [data.inputs(i) for i in microbatches]
        self._targets = [] if links.after else [data.targets(i) for i in microbatches]

    def train(self, folder: Path) -> list[Array]:
        """Take all steps and return the weights."""
        options, stage, links = self._options, self._stage, self._links
        self._warm_up()
        recorder = Recorder(
            folder,
            rank=stage,
            stages=[stage],
            schedule=options.schedule,
            microbatches=options.microbatches,
            timer=CpuTimer(),
        )
        with recorder:
            before = after = None
            if links.before:
                before = _Neighbour(links.before, stage - 1, recorder, before=True)
            if links.after:
                after = _Neighbour(links.after, stage + 1, recorder, before=False)
            links.parent.send(("ready", None))
            links.parent.recv()
            for step in range(options.steps):
                with recorder.step(step):
                    loss = self._train_step(recorder, before, after)
                links.parent.send(("step", loss))
        return self._model.parameters()

    def _warm_up(self) -> None:
        """Run once what the first step would otherwise pay for: page faults, BLAS start-up."""
        options = self._options
        scratch = Stage(options.width, options.layers, 0, options.seed)
        y = scratch.forward(0, np.ones((options.batch, options.width), np.float32))
        scratch.backward_input(0, y)
        scratch.backward_weight(0)

    def _train_step(
        self,
        recorder: Recorder,
        before: _Neighbour | None,
        after: _Neighbour | None,
    ) -> float:
        options = self._options
        gradients: dict[int, Array] = {}
        loss = 0.0
        plan = generate(options.schedule, options.stages, options.microbatches)
        for kind, _, i, *_ in plan.order(self._stage):
            if kind is Kind.FORWARD:
                x = before.receive(i).reshape(-1, options.width) if before else self._inputs[i]
                with self._computing(recorder, kind, i):
                    y = self._model.forward(i, x)
                    if not after:
                        part, gradients[i] = loss_and_gradient(y, self._targets[i])
                        loss += part
                if after:
                    after.send(i, y)
            elif kind is Kind.BACKWARD_WEIGHT:
                with self._computing(recorder, kind, i):
                    self._model.backward_weight(i)
            else:
                if after:
                    gradients[i] = after.receive(i).reshape(-1, options.width)
                with self._computing(recorder, kind, i):
                    gradient = self._model.backward_input(i, gradients.pop(i))
                    if kind is Kind.BACKWARD:
                        self._model.backward_weight(i)
                if before:
                    before.send(i, gradient)
        for neighbour in filter(None, (before, after)):
            neighbour.drain()
        total = options.batch * options.microbatches
        with recorder.task(Kind.OPTIMIZER):
            self._model.optimize(options.rate, total)
        return loss / total

    @contextmanager
    def _computing(self, recorder: Recorder, kind: Kind, microbatch: int) -> Iterator[None]:
        """Record a compute task and, with `sleep_compute_ms`, stretch it to a fixed length.

        Forward, input gradient and weight gradient take one unit, the fused backward two, each as
        many times as the stage has work.
        """
        with recorder.task(kind, microbatch=microbatch):
            began = time.monotonic()
            yield
            if self._options.sleep_compute_ms is not None:
                units = 2.0 if kind is Kind.BACKWARD else 1.0
                work = self._options.stage_work
                units *= work[self._stage] if work else 1
                length = units * self._options.sleep_compute_ms / 1e3
                time.sleep(max(0.0, began + length - time.monotonic()))
