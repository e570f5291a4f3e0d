"""How a command was given what it read, for another to be given the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from bubblescope.cli.option_sections import Sectioned

if TYPE_CHECKING:
    from collections.abc import Iterable

_GIVEN: Final = "bubblescope.given"
_READING: Final = frozenset(
    {"names", "kinds", "source", "run", "attempt", "clock", "steps", "ranks", "also"}
)
"""Options of `reading` and `planned` that decide what is read, and as what."""


class Repeatable(Sectioned):
    """A command that remembers the arguments that it was given, before they were read."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments."""
        ctx.meta[_GIVEN] = list(args)
        return super().parse_args(ctx, args)


def read_again() -> list[str]:
    """Return the paths and options with which another command reads what the present one does.

    The present command is a `Repeatable`.
    """
    context = click.get_current_context()
    given, _, _ = context.command.make_parser(context).parse_args(list(context.meta[_GIVEN]))
    options = [
        part
        for param in context.command.params
        if param.name in _READING
        for value in _all(given.get(param.name))
        for part in (param.opts[-1], value)
    ]
    return [*given["paths"], *options]


def _all(value: Any) -> Iterable[str]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else value
