"""What came of work and stays with the workers, so that who asked holds no more than its name.

What many parts of a run tell may be a row for each rank and step, of millions. Workers write it into a
folder that all of them see; where there is no such folder, it travels.
"""

from __future__ import annotations

import pickle
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from uuid import uuid4

from bubblescope.model.memory import give_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from typing_extensions import Self

Value = TypeVar("Value")

_SHARED: Final = 4
"""Things that many jobs are given at any time: the run, and what all of them are told."""


class Held(Generic[Value]):
    """What came of work: a file of it, or itself.

    Args:
        value: Itself; None if it is in a file.
        place: The file.
        shared: Whether many jobs are given it, none of which changes it: then a worker reads it once.
    """

    __slots__ = ("_place", "_shared", "_value")

    def __init__(
        self, value: Value | None = None, place: Path | None = None, *, shared: bool = False
    ) -> None:
        self._value = value
        self._place = place
        self._shared = shared

    def __reduce__(self) -> tuple[Any, ...]:
        return (_shared if self._shared else Held), (self._value, self._place)

    @classmethod
    def of(cls, value: Value, folder: Path | None) -> Self:
        """Hold something: in a folder, or here if there is none, or no room in it."""
        if folder is None or value is None:
            return cls(value)
        place = folder / f"{uuid4().hex}.held"
        try:
            with place.open("wb") as file:
                pickle.dump(value, file, protocol=5)
        except OSError:
            place.unlink(missing_ok=True)
            return cls(value)
        return cls(None, place)

    @property
    def nothing(self) -> bool:
        """Whether it is None."""
        return self._value is None and self._place is None

    @property
    def shared(self) -> Held[Value]:
        """The same, for many jobs, none of which changes it."""
        return Held(self._value, self._place, shared=True)

    def got(self) -> Value:
        """Return it; of a file, anew each time, unless it is shared."""
        if self._place is None:
            return self._value  # type: ignore[return-value]  # None is a value
        return (_read_once if self._shared else _read)(self._place)  # type: ignore[no-any-return]


def _shared(value: Any, place: Path | None) -> Held[Any]:
    return Held(value, place, shared=True)


def _read(place: Path) -> Any:
    with place.open("rb") as file:
        return pickle.load(file)  # noqa: S301  written by a worker of ours


_read_once = lru_cache(maxsize=_SHARED)(_read)


def opened(given: Any) -> Any:
    """Return what work is given with what is held in it, also in tuples and lists within."""
    if isinstance(given, Held):
        return given.got()
    if isinstance(given, tuple) and hasattr(given, "_make"):
        return given._make(opened(one) for one in given)
    if isinstance(given, tuple | list):
        return type(given)(opened(one) for one in given)
    return given


class Holder:
    """Has work done of which what comes is held where it is done.

    Args:
        run: Does it: `bubblescope.engine.Engine.run`, or the like.
        folder: Where it is held; None if it is to travel.
    """

    def __init__(
        self,
        run: Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[tuple[int, Any]]],
        folder: Path | None = None,
    ) -> None:
        self._run = run
        self._folder = folder

    def hold(self, work: Callable[[Any], Any], jobs: Sequence[Any]) -> list[Held[Any]]:
        """Do work on each of some jobs, which may name what is held; return what comes of each."""
        return self._done(partial(_holding, work, self._folder), jobs)

    def put(self, work: Callable[..., tuple[Any, ...]], *given: Any) -> tuple[Held[Any], ...]:
        """Put together what is held; return the things that come of it, each held by itself."""
        [made] = self._done(partial(_gathering, work, self._folder), [given])
        return made  # type: ignore[no-any-return]

    def ask(self, work: Callable[..., Any], *given: Any) -> Any:
        """Return something small that is worked out of what is held."""
        [made] = self._done(partial(_asking, work), [given])
        return made

    def _done(self, work: Callable[[Any], Any], jobs: Sequence[Any]) -> list[Any]:
        found = [None] * len(jobs)
        for index, made in self._run(work, jobs):
            found[index] = made
        give_back()
        return found


def _holding(work: Callable[[Any], Any], folder: Path | None, job: Any) -> Held[Any]:
    return Held.of(work(opened(job)), folder)


def _gathering(
    work: Callable[..., tuple[Any, ...]], folder: Path | None, job: Any
) -> tuple[Held[Any], ...]:
    return tuple(Held.of(one, folder) for one in work(*opened(job)))


def _asking(work: Callable[..., Any], job: Any) -> Any:
    return work(*opened(job))
