"""The options that ask what a run would be if something were different."""

from __future__ import annotations

import re
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

import click

from bubblescope.analysis.idle.causes import ADDED
from bubblescope.analysis.whatif_device import REMOVABLE
from bubblescope.cli.values import Parsed
from bubblescope.schedules import named

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bubblescope.analysis.together import Change
    from bubblescope.analysis.whatif import Question
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


def _several(flag: str, name: str, kind: Any, metavar: str, meaning: str) -> Any:
    """Return an option that may be repeated: each time, it is another change."""
    return click.option(flag, name, multiple=True, type=kind, metavar=metavar, help=meaning)


_QUESTIONS: Final[dict[str, Any]] = {
    "causes": _several(
        "--without",
        "causes",
        click.Choice([*(cause.value for cause in ADDED), *(use.value for use in REMOVABLE)]),
        "CAUSE",
        "Without a cause of `bubblescope why`, such as 'stage imbalance' or 'host pause', or without a "
        "class of what devices spend time on, such as communication or host_data.",
    ),
    "never_late": click.option(
        "--host-never-late",
        "never_late",
        is_flag=True,
        help="With a host that always launches in time, inside of tasks as well.",
    ),
    "kernels": _several(
        "--kernel",
        "kernels",
        Parsed("kernel", _kernel),
        "REGEX=X",
        "Kernels whose name matches X times as long, such as 'flash_bwd=0.5'.",
    ),
    "healthy": _several("--healthy", "healthy", int, "RANK", "With this rank healthy."),
    "stages": _several(
        "--stage", "stages", Parsed("factor", _factor), "S=X", "Stage S X times as long."
    ),
    "scaled": _several(
        "--rank", "scaled", Parsed("factor", _factor), "R=X", "Rank R X times as long."
    ),
    "moves": _several(
        "--move", "moves", Parsed("move", _move), "K@I:J", "K layers from stage I to J."
    ),
    "layers": click.option(
        "--layers",
        type=Parsed("layers", _layers),
        metavar="N,N,...",
        help="Layers of each stage as it is, for --move and --partition.",
    ),
    "partition": click.option(
        "--partition",
        type=Parsed("layers", _layers),
        metavar="N,N,...",
        help="Layers of each stage as it would be.",
    ),
    "microbatches": _several("--microbatches", "microbatches", int, "M", "M micro-batches a step."),
    "schedules": _several(
        "--schedule",
        "schedules",
        str,
        "NAME",
        "Another schedule, one of `bubblescope schedules`, or one of --plan, by the name of its file.",
    ),
    "chunks": click.option(
        "--chunks", type=int, metavar="V", help="Its chunks on each device; 2 by default."
    ),
}
"""The options that ask something, by the names of their values."""


def asking(command: Any) -> Any:
    """Add the options that ask what a run would be if something were different."""
    for option in reversed(_QUESTIONS.values()):
        command = option(command)
    return command


beside = click.option(
    "--with",
    "set_beside",
    metavar="ideal|plan|SCHEDULE",
    help="What to set above the run, on the same axis of time: its own tasks without waiting, its "
    "schedule as it is planned, or another of `bubblescope schedules`.",
)


each = click.option("--each", is_flag=True, help="Ask one by one, not all changes at once.")


def one_question(options: dict[str, Any], plans: Sequence[Plan]) -> Question | None:
    """Take the options of `asking` out of a command's; return what they ask, all changes at once.

    Raises:
        click.UsageError: Layers are to move, but it is not said how many each stage has.
    """
    asked = questions(options, plans, one_by_one=False)
    return asked[0] if asked else None


def questions(
    options: dict[str, Any], plans: Sequence[Plan], *, one_by_one: bool
) -> list[Question]:
    """Take the options of `asking` out of a command's, and return what they ask.

    Those about kernels make the command read them.

    Args:
        options: Of the command.
        plans: Schedules that can be named besides the known ones.
        one_by_one: Ask about each change by itself, not about all at once.

    Raises:
        click.UsageError: Layers are to move, but it is not said how many each stage has.
    """
    options["activities"] = bool(options["kernels"])
    own = {plan.name: plan for plan in plans}
    options["schedules"] = [own.get(name) or named(name).name for name in options["schedules"]]
    changes = list(_changes(**{name: options.pop(name) for name in _QUESTIONS}))
    if one_by_one or len(changes) < 2:
        return [methodcaller(*change) for change in changes]
    return [methodcaller("together", *changes)]


def _changes(
    *,
    causes: tuple[str, ...],
    never_late: bool,
    kernels: tuple[tuple[str, float], ...],
    healthy: tuple[int, ...],
    stages: tuple[tuple[int, float], ...],
    scaled: tuple[tuple[int, float], ...],
    moves: tuple[tuple[int, int, int], ...],
    layers: list[int] | None,
    partition: list[int] | None,
    microbatches: tuple[int, ...],
    schedules: list[str | Plan],
    chunks: int | None,
) -> Iterator[Change]:
    if (moves or partition) and layers is None:
        flag = "--move" if moves else "--partition"
        raise click.UsageError(f"{flag} needs --layers, how many layers each stage has")
    yield from _each("without", [(cause,) for cause in causes])
    yield from _each("host_never_late", [()] * never_late)
    yield from _each("kernels", kernels)
    yield from _each("scaled", [("stage", *one) for one in stages])
    yield from _each("scaled", [("rank", *one) for one in scaled])
    yield from _each("healthy", [(rank,) for rank in healthy])
    yield from _each("moved", [(*move, layers) for move in moves])
    yield from _each("partitioned", [(partition, layers)] if partition else [])
    yield from _each("microbatches", [(count,) for count in microbatches])
    yield from _each("schedule", [(name, chunks) for name in schedules])


def _each(method: str, asked: Iterable[tuple[Any, ...]]) -> Iterator[Change]:
    """Return the calls of a method, each with its arguments."""
    for arguments in asked:
        yield (method, *arguments)
