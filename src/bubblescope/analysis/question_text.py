"""Questions about a run as text: the options of `bubblescope whatif`, read and written.

A question is some changes, asked about all at once. The command line, the page and its server read
them here, so that a question of the page can be asked again as a command.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from bubblescope.model.errors import ScheduleError
from bubblescope.schedules import named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bubblescope.analysis.combined_changes import Change
    from bubblescope.schedules.plan import Plan

_NUMBER: Final = r"(\d+(?:\.\d*)?|\.\d+)"


def _factor(text: str) -> tuple[int, float]:
    found = re.fullmatch(rf"(\d+)={_NUMBER}", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not like 2=0.5")
    return int(found[1]), float(found[2])


def _kernel(text: str) -> tuple[str, float]:
    pattern, equals, factor = text.rpartition("=")
    if not equals or not pattern or not re.fullmatch(_NUMBER, factor.strip()):
        raise ValueError(f"{text!r} is not like 'flash_bwd=0.5'")
    return pattern, float(factor)


def _move(text: str) -> tuple[int, int, int]:
    found = re.fullmatch(r"(\d+)@(\d+):(\d+)", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not like 2@3:0, two layers from stage 3 to 0")
    return int(found[1]), int(found[2]), int(found[3])


def _layers(text: str) -> list[int]:
    if not re.fullmatch(r"\d+(,\d+)*", text.strip()):
        raise ValueError(f"{text!r} is not like 8,8,8,6")
    return [int(number) for number in text.split(",")]


def _whole(text: str) -> int:
    if not re.fullmatch(r"\d+", text.strip()):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


class Option(NamedTuple):
    """One option that asks something.

    Attributes:
        flag: What it is called.
        read: Makes a value of its text, and raises ValueError if that is none; None for an option that
            has no value.
        several: Whether it may be repeated: each time, it is another change.
    """

    flag: str
    read: Callable[[str], Any] | None
    several: bool = True


OPTIONS: Final = {
    "causes": Option("--without", str),
    "never_late": Option("--host-never-late", None, several=False),
    "kernels": Option("--kernel", _kernel),
    "healthy": Option("--healthy", _whole),
    "stages": Option("--stage", _factor),
    "scaled": Option("--rank", _factor),
    "moves": Option("--move", _move),
    "layers": Option("--layers", _layers, several=False),
    "partition": Option("--partition", _layers, several=False),
    "microbatches": Option("--microbatches", _whole),
    "schedules": Option("--schedule", lambda text: named(text).name),
    "chunks": Option("--chunks", _whole, several=False),
}
"""By the names of their values, as `changes` takes them."""


def changes(
    *,
    causes: Sequence[str] = (),
    never_late: bool = False,
    kernels: Sequence[tuple[str, float]] = (),
    healthy: Sequence[int] = (),
    stages: Sequence[tuple[int, float]] = (),
    scaled: Sequence[tuple[int, float]] = (),
    moves: Sequence[tuple[int, int, int]] = (),
    layers: list[int] | None = None,
    partition: list[int] | None = None,
    microbatches: Sequence[int] = (),
    schedules: Sequence[str | Plan] = (),
    chunks: int | None = None,
) -> list[Change]:
    """Return the changes that the values of the options stand for.

    Raises:
        ScheduleError: Layers are to move, but it is not said how many each stage has.
    """
    if (moves or partition) and layers is None:
        flag = OPTIONS["moves" if moves else "partition"].flag
        raise ScheduleError(f"{flag} needs --layers, how many layers each stage has")
    return [
        *_each("without", [(cause,) for cause in causes]),
        *_each("host_never_late", [()] * never_late),
        *_each("kernels", kernels),
        *_each("scaled", [("stage", *one) for one in stages]),
        *_each("scaled", [("rank", *one) for one in scaled]),
        *_each("healthy", [(rank,) for rank in healthy]),
        *_each("moved", [(*move, layers) for move in moves]),
        *_each("partitioned", [(partition, layers)] if partition else []),
        *_each("microbatches", [(count,) for count in microbatches]),
        *_each("schedule", [(name, chunks) for name in schedules]),
    ]


def read(text: str) -> list[Change]:
    """Return the changes that are asked for by options, written as on a command line.

    >>> read("--stage 2=0.5 --without 'slow rank'")
    [('without', 'slow rank'), ('scaled', 'stage', 2, 0.5)]

    Raises:
        ScheduleError: It cannot be read, or asks nothing.
    """
    values: dict[str, Any] = {}
    try:
        for name, value in _values(shlex.split(text)):
            values[name] = [*values.get(name, ()), value] if OPTIONS[name].several else value
    except ScheduleError:  # a sentence of its own, though it is a ValueError too
        raise
    except ValueError as error:
        raise ScheduleError(str(error)) from None
    asked = changes(**values)
    if not asked:
        raise ScheduleError("nothing is asked")
    return asked


def written(asked: Iterable[Change]) -> list[str]:
    """Return the options that ask for changes, as arguments of a command: what `read` reads.

    Schedules have to be given by name.

    >>> written([("moved", 1, 3, 0, [8, 8, 8, 8]), ("healthy", 6)])
    ['--move', '1@3:0', '--healthy', '6', '--layers', '8,8,8,8']
    """
    options = [option for name, *given in asked for option in _WRITTEN[name](*given)]
    once = {"--layers", "--chunks"}
    every = [option for option in options if option[0] not in once]
    last = {option[0]: option for option in options if option[0] in once}
    return [part for option in (*every, *last.values()) for part in option]


def _each(method: str, asked: Iterable[tuple[Any, ...]]) -> Iterator[Change]:
    """Return the calls of a method, each with its arguments."""
    for arguments in asked:
        yield (method, *arguments)


def _values(words: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield the options of a command line: names as of `OPTIONS`, and values."""
    by_flag = {option.flag: name for name, option in OPTIONS.items()}
    rest = iter(words)
    for word in rest:
        name = by_flag.get(word)
        if name is None:
            raise ValueError(f"{word!r} asks nothing; {', '.join(by_flag)} do")
        reader = OPTIONS[name].read
        if reader is None:
            yield name, True
            continue
        value = next(rest, None)
        if value is None:
            raise ValueError(f"{word} needs a value")
        yield name, reader(value)


def _decimal(factor: float) -> str:
    """Write a factor so that it is read as the same number, without an exponent."""
    return np.format_float_positional(factor, trim="-")


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _schedule(name: str, chunks: int | None = None) -> list[tuple[str, ...]]:
    return [("--schedule", name), *([] if chunks is None else [("--chunks", str(chunks))])]


_WRITTEN: Final[dict[str, Callable[..., list[tuple[str, ...]]]]] = {
    "without": lambda *what: [("--without", getattr(one, "value", one)) for one in what],
    "host_never_late": lambda: [("--host-never-late",)],
    "kernels": lambda pattern, factor: [("--kernel", f"{pattern}={_decimal(factor)}")],
    "healthy": lambda rank: [("--healthy", str(rank))],
    "scaled": lambda what, number, factor: [(f"--{what}", f"{number}={_decimal(factor)}")],
    "moved": lambda count, source, target, layers: [
        ("--move", f"{count}@{source}:{target}"),
        ("--layers", _listed(layers)),
    ],
    "partitioned": lambda others, layers: [
        ("--partition", _listed(others)),
        ("--layers", _listed(layers)),
    ],
    "microbatches": lambda count: [("--microbatches", str(count))],
    "schedule": _schedule,
}
"""How each change is asked for: by the name of its method, options of what it is given."""
