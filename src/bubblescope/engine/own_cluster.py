"""A Dask cluster of this machine for as long as somebody wants it, in a process of its own.

    python -m bubblescope.engine.own_cluster

What keeps account of all jobs would otherwise be in the client, whose memory is to stay small however
many there are. The process is told on its standard input what cluster is wanted (`Wanted`), says on its
standard output where it is (`Ready`) or why it is not, and ends, and all workers with it, when its
standard input does: when the client has done, or was killed.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any, Final

import dask
import msgspec
from distributed import LocalCluster, Security
from distributed.core import Status

from bubblescope.engine.job import settings
from bubblescope.model.decoders import prepared
from bubblescope.model.errors import EngineError, reason

_LOOK_S: Final = 2.0
"""How often to see whether workers are gone for good."""

_END_S: Final = 20.0
"""How long a cluster may take to end by itself."""

_NEVER: Final = "1000 days"

_GONE: Final = {Status.closed, Status.failed}

_ALLOWED_DEATHS: Final = 1
"""Of workers that a job was given to; then the client tries it alone."""

_ARENAS: Final = "MALLOC_ARENA_MAX"
"""How many parts glibc divides memory into. A worker of Dask does its work in a thread, which else has
a part of its own, where no large array lies where another was (`bubblescope.model.memory`)."""

_UNSEEN: Final[dict[str, Any]] = {
    # What it tells over HTTP, which asks nobody who he is.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    # Who looks a hundred times a second what each worker is doing takes a twentieth of its time; who
    # looks fifty times whether it still answers, and twice how the machine is, a fiftieth of a core.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.tick.cycle": "5s",
    "distributed.admin.system-monitor.interval": "5s",
}
"""Settings of Dask by which a cluster shows nothing of itself: nobody is there to see it."""


class Wanted(msgspec.Struct, frozen=True):
    """A cluster that is wanted.

    Attributes:
        workers: How many worker processes, each for one job at a time.
        memory: How many bytes of memory each of them may have; its share of the machine's if None.
        threads: How many threads Polars has in each.
    """

    workers: int
    memory: int | None
    threads: int


class Ready(msgspec.Struct, frozen=True):
    """A cluster that runs, or why there is none.

    Attributes:
        address: Of its scheduler.
        security: What Dask's `Security` is to be told to speak with it: certificates in no file.
        problem: Why it cannot be started.
    """

    address: str = ""
    security: dict[str, str] = {}
    problem: str = ""


class OwnCluster:
    """The process of a cluster, as its client sees it.

    Args:
        wanted: What cluster.

    Attributes:
        process: It.
        ready: Where the cluster is.

    Raises:
        EngineError: It cannot be started.
    """

    def __init__(self, wanted: Wanted) -> None:
        inherited = {  # workers find what the client finds, and are set as it is
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "DASK_INTERNAL_INHERIT_CONFIG": dask.config.serialize(dask.config.config),
            _ARENAS: os.environ.get(_ARENAS, "1"),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | inherited,
            start_new_session=True,  # what a terminal interrupts is the client, which says so
        )
        try:
            self.ready = self._begun(wanted)
        except BaseException:
            self.close()
            raise

    def _begun(self, wanted: Wanted) -> Ready:
        assert self.process.stdin is not None  # noqa: S101
        assert self.process.stdout is not None  # noqa: S101
        with suppress(BrokenPipeError):  # what it died of is said below
            self.process.stdin.write(msgspec.json.encode(wanted) + b"\n")
            self.process.stdin.flush()
        said = self.process.stdout.readline()
        if not said:
            raise EngineError(f"its process ended with {self.process.wait()}")
        ready = msgspec.json.decode(said, type=prepared(Ready))
        if ready.problem:
            raise EngineError(ready.problem)
        return ready

    def close(self) -> None:
        """End the cluster."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()  # workers end with it
            self.process.wait()


def _serve() -> None:
    """Be the cluster that standard input asks for, until that ends."""
    asked = sys.stdin.buffer.readline()
    if not asked:
        return
    wanted = msgspec.json.decode(asked, type=prepared(Wanted))
    answers = os.dup(1)
    os.dup2(2, 1)  # what workers print is no answer
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    with dask.config.set(_UNSEEN):  # also workers that replace others later
        try:
            cluster = _started(wanted)
        except (OSError, RuntimeError) as error:
            _answer(answers, Ready(problem=reason(error)))
            return
        with cluster:
            _answer(answers, _ready(cluster))
            while not ended.wait(_LOOK_S):
                cluster.mend(wanted.workers)


def _answer(stream: int, ready: Ready) -> None:
    # A client that was interrupted meanwhile, or killed, hears nothing.
    with suppress(BrokenPipeError), open(stream, "wb") as answer:
        answer.write(msgspec.json.encode(ready) + b"\n")


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.buffer.read()
    ended.set()


class _Cluster(LocalCluster):  # type: ignore[misc]  # which is Any to mypy
    """A cluster on this machine that gives up no worker while that is started anew.

    Some seconds after a worker died, Dask closes it unless it is there: also if it came back and died
    again of the next job, or is slow to start on a busy machine. The job that it does then is taken for
    what killed it, and blamed if that happens twice.
    """

    def _update_worker_status(self, op: str, msg: Any) -> None:
        with dask.config.set({"distributed.deploy.lost-worker-timeout": _NEVER}):
            super()._update_worker_status(op, msg)

    def mend(self, workers: int) -> None:
        """Replace workers that are gone for good.

        What watches over a worker gives up if it dies while it is started, as it may of a job that
        waits for it.
        """
        for name in [name for name, one in list(self.workers.items()) if one.status in _GONE]:
            self.workers.pop(name, None)
        if len(self.workers) < workers:
            self.scale(workers)


def _started(wanted: Wanted) -> _Cluster:
    return _Cluster(
        n_workers=wanted.workers,
        threads_per_worker=1,
        memory_limit=wanted.memory or "auto",
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        worker_dashboard_address="127.0.0.1:0",  # else old ones listen to anybody
        security=Security.temporary(),
        silence_logs=logging.CRITICAL,
        scheduler_kwargs={"allowed_failures": _ALLOWED_DEATHS, "dashboard": False},
        env=settings(wanted.threads),
    )


def _ready(cluster: _Cluster) -> Ready:
    said = ("tls_ca_file", "tls_client_cert", "tls_client_key")
    return Ready(
        cluster.scheduler_address, {name: getattr(cluster.security, name) for name in said}
    )


if __name__ == "__main__":
    _serve()
