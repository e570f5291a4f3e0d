"""Finding a parameter's value in a call's arguments."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def taker(function: Callable[..., Any], name: str) -> Callable[[Any, Any], Any]:
    """Return a function that finds a parameter's value in a call's arguments, or its default.

    Far cheaper than binding the whole signature in every call.

    Args:
        function: What is called.
        name: The parameter; if there is none of that name, it is looked for among named arguments.
    """
    parameter = inspect.signature(function).parameters.get(name)
    position = position_of(function, name)
    default = (
        None if parameter is None or parameter.default is parameter.empty else parameter.default
    )

    def take(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return args[position] if position < len(args) else kwargs.get(name, default)

    return take


def position_of(function: Callable[..., Any], name: str) -> int:
    """Return where a parameter is in a call's arguments by place; beyond all if it is never there."""
    parameters = inspect.signature(function).parameters
    if name not in parameters or parameters[name].kind is inspect.Parameter.KEYWORD_ONLY:
        return sys.maxsize
    return list(parameters).index(name)
