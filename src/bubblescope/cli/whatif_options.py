"""The options that ask what a run would be if something were different."""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

import click

from bubblescope.analysis.idle.causes import ADDED
from bubblescope.analysis.question_text import OPTIONS, changes
from bubblescope.analysis.whatif_device import REMOVABLE
from bubblescope.cli.option_types import Parsed
from bubblescope.schedules import named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.analysis.predictions import Question
    from bubblescope.schedules.plan import Plan


def _option(name: str, **how: Any) -> Any:
    """Return a command's option that asks something; its flag and how it is read are of `OPTIONS`."""
    flag, read, several = OPTIONS[name]
    if "type" not in how and read is not None:
        how["type"] = Parsed(how["metavar"].lower(), read)
    return click.option(flag, name, multiple=several, **how)


_QUESTIONS: Final[dict[str, Any]] = {
    "causes": _option(
        "causes",
        type=click.Choice([*(cause.value for cause in ADDED), *(use.value for use in REMOVABLE)]),
        metavar="CAUSE",
        help="Remove a cause of `bubblescope why`, such as 'stage imbalance' or 'host pause', or a "
        "class of what devices spend time on, such as communication or host_data.",
    ),
    "never_late": _option(
        "never_late",
        is_flag=True,
        help="The host always launches in time, inside of tasks as well.",
    ),
    "kernels": _option(
        "kernels",
        metavar="REGEX=X",
        help="Kernels whose name matches take X times as long, such as 'flash_bwd=0.5'.",
    ),
    "healthy": _option(
        "healthy", type=int, metavar="RANK", help="This rank is as fast as others at its stage."
    ),
    "stages": _option("stages", metavar="S=X", help="Stage S takes X times as long."),
    "scaled": _option("scaled", metavar="R=X", help="Rank R takes X times as long."),
    "moves": _option("moves", metavar="K@I:J", help="Move K layers from stage I to stage J."),
    "layers": _option(
        "layers",
        metavar="N,N,...",
        help="Layers of each stage at present, for --move and --partition.",
    ),
    "partition": _option("partition", metavar="N,N,...", help="Layers of each stage instead."),
    "microbatches": _option(
        "microbatches", type=int, metavar="M", help="M micro-batches in a step."
    ),
    "schedules": _option(
        "schedules",
        type=str,  # or the name of a --plan
        metavar="NAME",
        help="Another schedule: one of `bubblescope schedules`, or of --plan, by the name of its file.",
    ),
    "chunks": _option(
        "chunks",
        type=int,
        metavar="V",
        help="Chunks of the other schedule on each device; 2 by default.",
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
    help="Show above the run, on the same axis of time: its own tasks without waiting (ideal), its "
    "schedule as planned (plan), or another of `bubblescope schedules`.",
)


each = click.option(
    "--each", is_flag=True, help="Ask about the changes one at a time, not all at once."
)


def one_question(options: dict[str, Any], plans: Sequence[Plan]) -> Question | None:
    """Take the options of `asking` out of a command's; return what they ask, all changes at once.

    Raises:
        ScheduleError: Layers are to move, but it is not said how many each stage has.
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
        ScheduleError: Layers are to move, but it is not said how many each stage has.
    """
    options["activities"] = bool(options["kernels"])
    own = {plan.name: plan for plan in plans}
    options["schedules"] = [own.get(name) or named(name).name for name in options["schedules"]]
    asked = changes(**{name: options.pop(name) for name in _QUESTIONS})
    if one_by_one or len(asked) < 2:
        return [methodcaller(*change) for change in asked]
    return [methodcaller("together", *asked)]
