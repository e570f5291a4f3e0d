"""One job, as a worker does it."""

from __future__ import annotations

import os
import pickle
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bubblescope.model.errors import BubblescopeError, EngineError
from bubblescope.model.machine import seldom_collect
from bubblescope.model.memory import ALLOCATOR, OF_WORKERS, allocator_options, reuse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

THREADS: Final = "POLARS_MAX_THREADS"
"""Says how many threads Polars has in a process; it is asked when Polars is imported, once.

One for each core in each of many processes would be in each other's way."""

_NAMED: Final = 3
"""How many jobs a message names."""

_working: ContextVar[bool] = ContextVar("working", default=False)


class Failure(msgspec.Struct, frozen=True):
    """A job that was done as far as it can be: it ended in a sentence, as it would each time.

    It travels as a result, so that nothing tries again what cannot succeed.
    """

    error: BubblescopeError


def settings(threads: int) -> dict[str, str]:
    """Return the environment of a worker that has so many threads; what the user sets stands."""
    return {
        THREADS: os.environ.get(THREADS, str(threads)),
        ALLOCATOR: allocator_options(OF_WORKERS),
    }


def prepare() -> None:
    """Prepare a process that does nothing but jobs: it keeps memory, and seldom looks for garbage."""
    seldom_collect()
    reuse()


def working() -> bool:
    """Say whether this is a job of an engine, which has its share of the machine already."""
    return _working.get()


def perform(work: bytes, job: bytes, threads: int | None = None) -> Any:
    """Do one job.

    This module imports no Polars, and what is to be done travels as bytes: so the number of threads
    is known before Polars is.

    Args:
        work: The function, pickled.
        job: Its argument, pickled.
        threads: How many threads Polars has here, if it is not said already; as many as it likes if
            None.

    Returns:
        What the function returns, or the `Failure` that it ended in.
    """
    if threads is not None:
        os.environ.setdefault(THREADS, str(threads))
    token = _working.set(True)
    try:
        return _loaded(work)(pickle.loads(job))  # noqa: S301  by who runs this process
    except BubblescopeError as error:
        return Failure(error)
    finally:
        _working.reset(token)


@lru_cache(maxsize=4)
def _loaded(work: bytes) -> Callable[[Any], Any]:
    return pickle.loads(work)  # type: ignore[no-any-return]  # noqa: S301  as above


def result(outcome: Any) -> Any:
    """Return what a job returned, or raise what it ended in."""
    if isinstance(outcome, Failure):
        raise outcome.error
    return outcome


def deadly(names: Sequence[str]) -> EngineError:
    """Return the error that jobs killed each worker that tried them."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return EngineError(
        f"{', '.join(names[:_NAMED])}{more}: each worker that tried it died, in the end with nothing "
        "else to do; if it was out of memory, give workers more (--worker-memory) or use fewer "
        "(--workers), else leave the input out"
    )
