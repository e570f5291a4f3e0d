"""Jobs on a Dask cluster: one that runs already, or one on this machine for as long as it is used.

Traps of Dask, and what is done about them: equal calls share a value while one of them lives, also when
the file that they read has changed (``pure=False``); results stay on workers until they are released;
everything that is submitted costs the client memory (a bounded number is in flight); Polars would start
a thread for each core in each worker; the dashboard listens on all interfaces (there is none); whoever
reaches a port of the cluster can run what he likes (TLS between the processes of one machine); a job is
blamed for the death of a worker that it merely waited on (it is tried again alone); `as_completed`
never gives back a job whose result was lost with its worker if, while the result is asked for, doing it
again fails (`_Run` waits by itself).
"""

from __future__ import annotations

import os
import pickle
import sys
import time
import warnings
from asyncio import CancelledError
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bubblescope.engine.job import deadly, perform, prepare, result
from bubblescope.engine.sizes import gigabytes
from bubblescope.model.errors import EngineError, reason
from bubblescope.model.machine import cores
from bubblescope.model.version import __version__

try:
    import cloudpickle
    from distributed import Client, Security, WorkerPlugin, get_worker
    from distributed import TimeoutError as TimedOutError  # in Python 3.10 asyncio's
    from distributed.comm import parse_address, resolve_address
    from distributed.scheduler import KilledWorker

    from bubblescope.engine.dask_scheduler import meant
    from bubblescope.engine.own_cluster import OwnCluster, Wanted
except ImportError as error:
    raise EngineError(
        f"Dask cannot be loaded ({reason(error)}); pip install 'bubblescope[dask]'"
    ) from None

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from os import PathLike

    from typing_extensions import Self

Job = TypeVar("Job")
Result = TypeVar("Result")

_CONNECT_S: Final = 20.0
"""How long to wait for a scheduler to answer, and for its file to be there."""

_WORKERS_S: Final = 60.0
"""How long to wait for workers where there are none, at the beginning or in between."""

_LOOK_S: Final = 2.0
"""How often to see how many workers there are."""

_AHEAD: Final = 4
"""Jobs in flight for each that runs: workers never wait for the client, nor the client for memory."""

_RETRIES: Final = 2
"""How often to try again what may pass, such as a file system that does not answer."""

_SILENT_S: Final = 120.0
"""After how long without a result to ask the scheduler whether there is one that nobody told of."""


class DaskEngine:
    """Runs jobs on a Dask cluster.

    Args:
        workers: How many worker processes of a cluster of our own; one for each core if None.
        memory: How many bytes of memory each of them may have; its share of the machine's if None.
        address: Of a scheduler that runs, or a cluster.
        file: Of a scheduler that runs.

    Raises:
        EngineError: The arguments contradict each other.
    """

    def __init__(
        self,
        workers: int | None,
        memory: int | None,
        address: Any,
        file: str | PathLike[str] | None,
    ) -> None:
        self._scheduler = meant(address, file)
        if self._scheduler is not None and (workers is not None or memory is not None):
            raise EngineError(
                f"the Dask scheduler {self._scheduler.place} ({self._scheduler.said_by}) has workers "
                "of its own; leave --workers and --worker-memory out"
            )
        self._cores = cores()
        self._processes = workers or self._cores
        self._memory = memory
        self._cluster: Any = None
        self._client: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def workers(self) -> int:
        """How many jobs run at once; connects to a cluster that runs, to ask it."""
        if self._scheduler is None:
            return self._processes
        return sum(self._connected().nthreads().values())

    def sends(self, count: int, size: int, *, threads: bool = False) -> bool:  # noqa: ARG002
        """Say that jobs are for the cluster, if there are any: who asks for one means to use it."""
        return count > 0

    def close(self) -> None:
        """Leave the cluster, and end it if it is our own."""
        client, cluster = self._client, self._cluster
        self._client = self._cluster = None
        for one in (client, cluster):
            if one is not None:
                with suppress(OSError, TimedOutError):
                    one.close()

    def see(self, folder: str) -> bool:
        """Say whether all workers see a folder, those of a cluster that may be elsewhere."""
        return all(self._connected().run(os.path.isdir, folder).values())

    def run(
        self,
        work: Callable[[Job], Result],
        jobs: Sequence[Job],
        *,
        name: Callable[[Job], str] = str,
        apart: bool = False,  # noqa: ARG002  it always is
    ) -> Iterator[tuple[int, Result]]:
        """Run every job; see `Engine.run`."""
        if not jobs:
            return
        run = _Run(self._connected(), self._place(), cloudpickle.dumps(work), jobs, name)
        killed = yield from run.do(deque(range(len(jobs))))
        poison: list[int] = []
        for index in killed:
            poison += yield from run.do(deque([index]))
        if poison:
            raise deadly([name(jobs[index]) for index in poison])

    def _place(self) -> str:
        """Return what messages call the cluster."""
        if self._scheduler is None:
            return "the Dask cluster of this run"
        return f"the Dask scheduler {self._scheduler.place} ({self._scheduler.said_by})"

    def _connected(self) -> Any:
        """Return the client, connected to a cluster that has workers of our own version."""
        if self._client is None or self._client.status != "running":
            self.close()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of versions, which are asked below
                try:
                    self._client = self._own() if self._scheduler is None else self._given()
                    _need_workers(self._client, self._place())
                    _need_versions(self._client, self._place())
                except BaseException:
                    self.close()
                    raise
        return self._client

    def _given(self) -> Any:
        """Connect to a cluster that runs."""
        assert self._scheduler is not None  # noqa: S101
        if self._scheduler.cluster is not None:
            return Client(self._scheduler.cluster, timeout=_CONNECT_S, set_as_default=False)
        address = self._scheduler.address(_CONNECT_S)
        # First, for a client that could not even try is hard to be rid of.
        try:
            resolve_address(address)
            if parse_address(address)[0] == "tls":
                Security().get_connection_args("client")["ssl_context"].get_ca_certs()
        except (OSError, ValueError) as error:
            raise EngineError(f"{self._place()} has no such address ({reason(error)})") from None
        except AttributeError:
            raise EngineError(
                f"{self._place()} speaks TLS, and Dask's configuration here names no certificates "
                "(distributed.comm.tls, docs/scale.md)"
            ) from None
        try:
            return Client(address, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            raise EngineError(
                f"{self._place()} does not answer within {_CONNECT_S:.0f} s ({reason(error)}); check "
                "that it runs, can be reached from here, and speaks the same protocol (tcp or tls)"
            ) from None

    def _own(self) -> Any:
        """Start a cluster on this machine."""
        threads = max(1, self._cores // self._processes)
        try:
            self._cluster = OwnCluster(Wanted(self._processes, self._memory, threads))
            ready = self._cluster.ready
            client = Client(
                ready.address,
                security=Security(require_encryption=True, **ready.security),
                timeout=_CONNECT_S,
                set_as_default=False,
            )
            client.register_plugin(_Ours())
        except (OSError, RuntimeError, EngineError) as error:
            memory = f" of {gigabytes(self._memory)}" if self._memory else ""
            raise EngineError(
                f"{self._processes} workers{memory} cannot be started ({reason(error)})"
            ) from None
        return client


class _Ours(WorkerPlugin):  # type: ignore[misc]
    """Prepares a worker of a cluster of our own, one that was started again as well."""

    def setup(self, worker: Any) -> None:  # noqa: ARG002
        """Do what other workers of this machine do."""
        prepare()


class _Run:
    """The jobs of one run.

    Args:
        client: Where they run.
        place: What messages call it.
        work: What is to be done, pickled.
        jobs: What it is to be done to.
        name: What messages call a job.
    """

    def __init__(
        self,
        client: Any,
        place: str,
        work: bytes,
        jobs: Sequence[Any],
        name: Callable[[Any], str],
    ) -> None:
        self._client = client
        self._place = place
        self._work = work
        self._jobs = jobs
        self._name = name
        self._threads = 1
        self._looked = self._staffed = -_LOOK_S
        self._heard = time.monotonic()
        self._over: set[str] = set()
        self._done: SimpleQueue[tuple[Any, Any, BaseException | None]] = SimpleQueue()

    def do(self, todo: deque[int]) -> Generator[tuple[int, Any], None, list[int]]:
        """Run the jobs of `todo`, and return those whose workers died more often than is allowed."""
        flying: dict[Any, int] = {}
        killed: list[int] = []
        try:
            while todo or flying:
                self._look(flying)
                if todo and len(flying) <= _AHEAD * self._threads // 2:
                    started = self._start(todo, _AHEAD * self._threads - len(flying))
                    flying.update(started)
                    for future in started:
                        self._client.loop.add_callback(self._await, future)
                try:
                    future, value, error = self._done.get(timeout=_LOOK_S)
                except Empty:
                    continue
                self._heard = time.monotonic()
                index = flying.pop(future)
                future.release()
                del future
                if isinstance(error, KilledWorker):
                    killed.append(index)
                elif error is not None:
                    raise self._error(index, error)
                else:
                    yield index, result(pickle.loads(value))  # noqa: S301  by workers of ours
                    del value
            return killed
        finally:
            if flying:
                with suppress(OSError, TimedOutError, RuntimeError):
                    self._client.cancel(list(flying), force=True)

    async def _await(self, future: Any) -> None:
        """Wait for a job in the client's thread, and say what became of it.

        What it raised and what asking for its result raised are told apart here, where nothing changes
        the future's status in between: a result can be lost again as long as it is asked for.
        """
        value = error = None
        try:
            value = await future
        except (Exception, CancelledError) as raised:  # noqa: BLE001  whatever the job raised
            error = raised if future.status == "error" else self._lost()
        self._done.put((future, value, error))

    def _start(self, todo: deque[int], most: int) -> dict[Any, int]:
        """Submit some of what is to be done."""
        chosen = [todo.popleft() for _ in range(min(most, len(todo)))]
        packed = [cloudpickle.dumps(self._jobs[index]) for index in chosen]
        futures = self._client.map(
            _perform, packed, work=self._work, pure=False, retries=_RETRIES, batch_size=len(packed)
        )
        return dict(zip(futures, chosen, strict=True))

    def _look(self, flying: Iterable[Any]) -> None:
        """See how many threads the workers have, now and then.

        Raises:
            EngineError: There have been none for long, or a job is over and nobody told.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        with suppress(OSError):  # of a scheduler that is lost; its jobs say so
            self._threads = sum(self._client.nthreads().values())
            if now - self._heard > _SILENT_S:
                self._heard = now
                self._ask(flying)
        if self._threads or self._staffed < 0:
            self._staffed = now
        elif now - self._staffed > _WORKERS_S:
            raise _no_workers(self._place)
        self._threads = max(1, self._threads)

    def _ask(self, flying: Iterable[Any]) -> None:
        """Raise if a job was over when last asked, and is over, and is still waited for here."""
        keys = [future.key for future in flying]
        over = set(self._client.run_on_scheduler(_over, keys))
        if over & self._over and self._done.empty():
            raise self._lost()
        self._over = over

    def _lost(self) -> EngineError:
        return EngineError(
            f"{self._place} was lost, or gave the work up; what it had not done is not done"
        )

    def _error(self, index: int, error: BaseException) -> BaseException:
        """Return what to raise for a job that has no result."""
        if isinstance(error, MemoryError):
            return EngineError(
                f"{self._name(self._jobs[index])}: takes more memory than a worker has; give workers "
                "more (--worker-memory)"
            )
        return error


def _perform(job: bytes, work: bytes) -> bytes:
    """Do one job on a worker, with as many threads of Polars as the worker has of Dask.

    The result is pickled here: if a worker had too little memory to send it, Dask would blame nobody,
    and have the job done and its result sent again without end.
    """
    return pickle.dumps(perform(work, job, get_worker().state.nthreads), protocol=5)


def _over(keys: Sequence[str], dask_scheduler: Any) -> list[str]:
    """Return the jobs that a scheduler has nothing to do for any more: done, failed or forgotten."""
    tasks = dask_scheduler.tasks
    return [key for key in keys if key not in tasks or tasks[key].state in {"memory", "erred"}]


def _need_workers(client: Any, place: str) -> None:
    try:
        client.wait_for_workers(1, timeout=_WORKERS_S)
    except (TimedOutError, OSError):
        raise _no_workers(place) from None


def _no_workers(place: str) -> EngineError:
    return EngineError(
        f"{place} has had no workers for {_WORKERS_S:.0f} s; start some, or wait until the queue has"
    )


def _about() -> tuple[str, str]:
    """Return the versions of Python and of bubblescope here."""
    return f"{sys.version_info.major}.{sys.version_info.minor}", __version__


def _need_versions(client: Any, place: str) -> None:
    """Raise if the scheduler or a worker could not understand what it is sent."""
    python, ours = _about()
    remedy = f"install bubblescope {ours} with Python {python} there"
    try:
        found = {"its scheduler": client.run_on_scheduler(_about)}
    except ImportError as error:
        raise EngineError(f"{place} cannot load bubblescope ({reason(error)}); {remedy}") from None
    found |= {
        f"its worker {address}": said
        for address, said in client.run(_about, on_error="return").items()
    }
    for who, said in found.items():
        if isinstance(said, BaseException):
            raise EngineError(
                f"{place}: {who} cannot load bubblescope ({reason(said)}); {remedy}"
            ) from None
        if said != (python, ours):
            raise EngineError(
                f"{place}: {who} has bubblescope {said[1]} with Python {said[0]}; {remedy}"
            )
