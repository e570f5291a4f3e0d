"""Jobs in processes of this machine."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections import Counter, deque
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bubblescope.engine.job import deadly, perform, prepare, result, settings, working
from bubblescope.engine.sizes import gigabytes
from bubblescope.model.errors import EngineError
from bubblescope.model.machine import cores

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from typing_extensions import Self

Job = TypeVar("Job")
Result = TypeVar("Result")

_TOGETHER: Final = 2
"""How often a job is tried beside others: when a process dies, nobody knows of which that ran."""

_WORTHWHILE_BYTES: Final = 1 << 26
"""To read less than this takes less time than to start a process."""

RESTARTED: Final = "A worker (was restarted|stopped) while some jobs were given to the executor"
"""How loky begins to say that it replaced a worker that had come to hold more memory; a pattern."""

_IDLE_S: Final = 30
"""After so long without work, processes end; what asks again before finds them started."""

_LOOK_S: Final = 1.0
"""How often processes look whether the one that started them is still there."""

_LEAK: Final = "LOKY_MAX_MEMORY_LEAK_SIZE"
_NO_LEAK: Final = "1e18"
"""How many bytes more than after its first job a process may hold before loky starts another instead:
it holds memory that the next job uses again, and to start takes a second of work."""


class LocalEngine:
    """Runs jobs in as many processes as there are cores, or in this one if one would do.

    Args:
        workers: How many processes; one for each core if None.
        memory: How many bytes of memory each may have; any number if None.
    """

    def __init__(self, workers: int | None = None, memory: int | None = None) -> None:
        available = cores()
        self.workers = 1 if working() else workers or available
        self._threads = max(1, available // self.workers)
        self._memory = memory
        self._processes = 0  # as many as were started, so that a single job ends none of the others

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: idle processes end by themselves, and may be of use until then."""

    def sends(self, count: int, size: int, *, threads: bool = False) -> bool:
        """Say whether processes would be quicker, or the only ones to keep to a limit of memory."""
        if self._memory is not None:
            return True
        return min(count, self.workers) > 1 and size >= _WORTHWHILE_BYTES and not threads

    def see(self, folder: str) -> bool:  # noqa: ARG002
        """Say that all workers see a folder: they are on this machine."""
        return True

    def run(
        self,
        work: Callable[[Job], Result],
        jobs: Sequence[Job],
        *,
        name: Callable[[Job], str] = str,
        apart: bool = False,
    ) -> Iterator[tuple[int, Result]]:
        """Run every job; see `Engine.run`."""
        alone = self.workers < 2 or len(jobs) < 2
        if alone and self._memory is None and (not apart or working()):
            for index, job in enumerate(jobs):
                yield index, work(job)
            return
        import cloudpickle  # noqa: PLC0415  slow, and only work for other processes needs it

        packed = cloudpickle.dumps(work)
        every = _Jobs(packed, jobs, cloudpickle.dumps)
        todo = deque(range(len(jobs)))
        single: list[int] = []
        tried: Counter[int] = Counter()
        try:
            while todo:
                processes = min(self.workers, len(todo))
                died = yield from self._until_death(every, todo, processes, 2 * processes)
                for index in died:
                    tried[index] += 1
                    (todo if tried[index] < _TOGETHER else single).append(index)
            poison: list[int] = []
            for index in single:
                poison += yield from self._until_death(every, deque([index]), 1, 1)
        except _OutOfMemoryError as error:
            raise EngineError(
                f"{name(jobs[error.index])}: takes more memory than the "
                f"{gigabytes(self._memory or 0)} of a worker; give workers more (--worker-memory)"
            ) from None
        if poison:
            raise deadly([name(jobs[index]) for index in poison])

    def _until_death(
        self, every: _Jobs, todo: deque[int], processes: int, at_once: int
    ) -> Generator[tuple[int, Any], None, list[int]]:
        """Run the jobs of `todo` until a process dies, and return those that it may have died of."""
        from concurrent.futures.process import BrokenProcessPool  # noqa: PLC0415  slow

        from loky import get_reusable_executor  # noqa: PLC0415  as above

        # Parts of datasets are mapped into workers, which loky takes for a leak: where memory is
        # limited, it replaces those.
        warnings.filterwarnings("ignore", RESTARTED, UserWarning)
        environment = settings(self._threads)
        if self._memory is None:
            environment[_LEAK] = os.environ.get(_LEAK, _NO_LEAK)
        self._processes = max(self._processes, processes)
        executor = get_reusable_executor(
            self._processes,
            timeout=_IDLE_S,
            env=environment,
            initializer=_begin,
            initargs=(self._memory, os.getpid()),
        )
        flying: dict[Future[Any], int] = {}
        whole = False
        try:
            while todo or flying:
                try:
                    while todo and len(flying) < at_once:
                        flying[executor.submit(perform, *every[todo[0]])] = todo[0]
                        todo.popleft()
                except BrokenProcessPool:
                    return sorted(flying.values())
                done, _ = wait(flying, return_when=FIRST_COMPLETED)
                broken = [one for one in done if isinstance(one.exception(), BrokenProcessPool)]
                done.difference_update(broken)
                while done:
                    one = done.pop()
                    index = flying.pop(one)
                    if isinstance(one.exception(), MemoryError):
                        raise _OutOfMemoryError(index)
                    yield index, result(one.result())
                if broken:
                    return sorted(flying.values())
            whole = True
            return []
        finally:
            if not whole:  # what still runs is for nobody
                executor.shutdown(wait=True, kill_workers=True)


class _Jobs:
    """Jobs as they travel: each is pickled when it is its turn."""

    def __init__(self, work: bytes, jobs: Sequence[Any], pickled: Callable[[Any], bytes]) -> None:
        self._work, self._jobs, self._pickled = work, jobs, pickled

    def __getitem__(self, index: int) -> tuple[bytes, bytes]:
        return self._work, self._pickled(self._jobs[index])


class _OutOfMemoryError(Exception):
    """A job was refused memory.

    Args:
        index: Which.
    """

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def _begin(memory: int | None, asking: int) -> None:
    """Prepare this process for jobs.

    Args:
        memory: How many bytes it may have; any number if None.
        asking: The process that asks for them.
    """
    threading.Thread(target=_end_with, args=(asking,), daemon=True).start()
    if memory is not None:
        import resource  # noqa: PLC0415  POSIX only, and reading without a limit must work everywhere

        memory = min(memory, sys.maxsize)  # beyond which no process has any
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    prepare()


def _end_with(parent: int) -> None:
    """End this process when its parent is gone, killed perhaps: what it finds out is for nobody.

    Else one that has found more than fits into a pipe would wait for ever for somebody to read it.
    """
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)
