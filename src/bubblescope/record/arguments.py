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
    parameters = inspect.signature(function).parameters
    parameter = parameters.get(name)
    if parameter is None or parameter.kind is parameter.KEYWORD_ONLY:
        position = sys.maxsize
    else:
        position = list(parameters).index(name)
    default = (
        None if parameter is None or parameter.default is parameter.empty else parameter.default
    )

    def take(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return args[position] if position < len(args) else kwargs.get(name, default)

    return take
