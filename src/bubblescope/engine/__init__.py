"""Where independent pieces of work run: in processes of this machine, or on a Dask cluster.

An engine runs one function over many jobs and hands each result over as soon as it is there. It knows
nothing of traces. What it promises whatever it runs on: a bounded number of jobs is in flight, so the
memory of the process that asks does not grow with their number; a worker that dies costs no more than
what it was doing; a job that kills every worker that tries it is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from bubblescope.engine.sizes import byte_count
from bubblescope.model.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from os import PathLike

    from typing_extensions import Self

Job = TypeVar("Job")
Result = TypeVar("Result")

MODES: Final = ("local", "dask")
"""What `engine` can make."""


class Engine(Protocol):
    """Runs jobs side by side; a context manager, which gives back what it holds."""

    @property
    def workers(self) -> int:
        """How many jobs run at once; 1 if they run in this process, one after the other."""

    def sends(self, count: int, size: int, *, threads: bool = False) -> bool:
        """Say whether jobs are for workers, or would be done sooner by the process that has them.

        Args:
            count: How many jobs there are.
            size: How many bytes they read in all.
            threads: Whether threads of this process can do them side by side.
        """

    def run(
        self,
        work: Callable[[Job], Result],
        jobs: Sequence[Job],
        *,
        name: Callable[[Job], str] = str,
        apart: bool = False,
    ) -> Iterator[tuple[int, Result]]:
        """Run every job, and yield each with what came of it as it ends, in any order.

        A job may be run more than once, even if its first run came to its end: after the death of a
        worker, or of a connection. So `work` writes what it writes aside and renames it.

        Args:
            work: What is to be done; picklable, as jobs and results are.
            jobs: What it is to be done to.
            name: What messages call a job.
            apart: Whether none is to be done in this process, whose memory then stays small.

        Yields:
            Index of the job, and its result, of which the engine keeps nothing.

        Raises:
            Exception: What `work` raised first; the other jobs are cancelled.
            EngineError: Jobs cannot be done: their workers died each time they were tried, which is
                said when all others are done, or the cluster cannot be reached, or no longer.
        """

    def see(self, folder: str) -> bool:
        """Say whether all workers see a folder of this machine, or of a file system that they share."""

    def close(self) -> None:
        """End what was started; the engine starts anew if it is used again."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def engine(
    mode: str = "local",
    *,
    workers: int | None = None,
    worker_memory: int | str | None = None,
    scheduler: str | Any = None,
    scheduler_file: str | PathLike[str] | None = None,
) -> Engine:
    """Make an engine; it starts nothing before it is used.

    Args:
        mode: "local" for processes of this machine, "dask" for a Dask cluster.
        workers: How many processes to start; one for each core if None.
        worker_memory: Memory of each of them, in bytes or as "8GB"; if None, what there is, which a
            Dask cluster on this machine divides among its workers.
        scheduler: Address of a Dask cluster that is running, such as "tcp://10.0.0.1:8786"; or the
            cluster itself, such as a `dask_jobqueue.SLURMCluster`, with the certificates that it has.
        scheduler_file: File of it, as `dask scheduler --scheduler-file` writes. If neither is given,
            what `bubblescope.engine.dask_scheduler` says; if that is none, a cluster on this machine.

    Raises:
        EngineError: The arguments contradict each other, or Dask is not installed.
    """
    if workers is not None and workers < 1:
        raise EngineError(f"{workers} workers cannot be started; give at least 1")
    memory = byte_count(worker_memory)
    if mode == "dask":
        from bubblescope.engine.dask_engine import DaskEngine  # noqa: PLC0415  slow, an extra

        return DaskEngine(workers, memory, scheduler, scheduler_file)
    if mode != "local":
        raise EngineError(f"{mode!r} is no way to run; the ways are {' and '.join(MODES)}")
    if scheduler is not None or scheduler_file is not None:
        raise EngineError("a scheduler is Dask's: it needs --mode dask (in Python, mode='dask')")
    from bubblescope.engine.local import LocalEngine  # noqa: PLC0415  as above

    return LocalEngine(workers, memory)
