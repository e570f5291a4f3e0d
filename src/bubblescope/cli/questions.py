"""The options that ask what a run would be if something were different."""

from __future__ import annotations

import re
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

import click

from bubblescope.analysis.idle.causes import ADDED, Cause
from bubblescope.schedules import SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bubblescope.analysis.whatif import Question


class Factor(click.ParamType):  # type: ignore[type-arg]  # generic in new versions only
    """A number and a factor: "2=0.5"."""

    name = "factor"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, float]:
        """Take it apart."""
        found = re.fullmatch(r"(\d+)=(\d+(?:\.\d*)?|\.\d+)", str(value).strip())
        if found is None:
            self.fail(f"{value!r} is not like 2=0.5", param, ctx)
        return int(found[1]), float(found[2])


class Move(click.ParamType):  # type: ignore[type-arg]  # generic in new versions only
    """How many layers go from where to where: "2@3:0"."""

    name = "move"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int, int]:
        """Take it apart."""
        found = re.fullmatch(r"(\d+)@(\d+):(\d+)", str(value).strip())
        if found is None:
            self.fail(f"{value!r} is not like 2@3:0, two layers from stage 3 to 0", param, ctx)
        return int(found[1]), int(found[2]), int(found[3])


class Layers(click.ParamType):  # type: ignore[type-arg]  # generic in new versions only
    """The layers of each stage: "8,8,8,6"."""

    name = "layers"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[int]:
        """Take it apart."""
        if isinstance(value, list):
            return value
        if not re.fullmatch(r"\d+(,\d+)*", str(value).strip()):
            self.fail(f"{value!r} is not like 8,8,8,6", param, ctx)
        return [int(number) for number in str(value).split(",")]


_QUESTIONS: Final[dict[str, Any]] = {
    "causes": click.option(
        "--without",
        "causes",
        multiple=True,
        type=click.Choice([cause.value for cause in ADDED]),
        metavar="CAUSE",
        help="Without a cause of `bubblescope why`, such as 'stage imbalance' or 'host pause'.",
    ),
    "healthy": click.option(
        "--healthy", multiple=True, type=int, metavar="RANK", help="With this rank healthy."
    ),
    "stages": click.option(
        "--stage",
        "stages",
        multiple=True,
        type=Factor(),
        metavar="S=X",
        help="Stage S X times as long.",
    ),
    "scaled": click.option(
        "--rank",
        "scaled",
        multiple=True,
        type=Factor(),
        metavar="R=X",
        help="Rank R X times as long.",
    ),
    "moves": click.option(
        "--move",
        "moves",
        multiple=True,
        type=Move(),
        metavar="K@I:J",
        help="K layers from stage I to J.",
    ),
    "layers": click.option(
        "--layers", type=Layers(), metavar="N,N,...", help="Layers of each stage, for --move."
    ),
    "microbatches": click.option(
        "--microbatches", multiple=True, type=int, metavar="M", help="M micro-batches a step."
    ),
    "schedules": click.option(
        "--schedule",
        "schedules",
        multiple=True,
        type=click.Choice(list(SCHEDULES)),
        metavar="NAME",
        help="Another schedule, one of `bubblescope schedules`.",
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


def one_question(options: dict[str, Any]) -> Question | None:
    """Take the options of `asking` out of a command's; return what they ask, which is at most one.

    Raises:
        click.UsageError: They ask for more.
    """
    asked = questions(options)
    if len(asked) > 1:
        raise click.UsageError(
            "the page has one lane for what could have been; ask for one change, not "
            f"{len(asked)} (bubblescope whatif answers several)"
        )
    return asked[0] if asked else None


def questions(options: dict[str, Any]) -> list[Question]:
    """Take the options of `asking` out of a command's, and return what they ask.

    Raises:
        click.UsageError: Layers are to move, but it is not said how many each stage has.
    """
    return list(_questions(**{name: options.pop(name) for name in _QUESTIONS}))


def _questions(
    *,
    causes: tuple[str, ...],
    healthy: tuple[int, ...],
    stages: tuple[tuple[int, float], ...],
    scaled: tuple[tuple[int, float], ...],
    moves: tuple[tuple[int, int, int], ...],
    layers: list[int] | None,
    microbatches: tuple[int, ...],
    schedules: tuple[str, ...],
    chunks: int | None,
) -> Iterator[Question]:
    if moves and layers is None:
        raise click.UsageError("--move needs --layers, how many layers each stage has")
    for cause in causes:
        yield methodcaller("without", Cause(cause))
    for stage, factor in stages:
        yield methodcaller("scaled", "stage", stage, factor)
    for rank, factor in scaled:
        yield methodcaller("scaled", "rank", rank, factor)
    for rank in healthy:
        yield methodcaller("healthy", rank)
    for count, source, target in moves:
        yield methodcaller("moved", count, source, target, layers)
    for count in microbatches:
        yield methodcaller("microbatches", count)
    for name in schedules:
        yield methodcaller("schedule", name, chunks)
