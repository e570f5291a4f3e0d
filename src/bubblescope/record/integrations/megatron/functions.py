"""Putting recorded functions in the place of a framework's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bubblescope.record.job_log import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def replace(
    owner: Any, recorded: Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]]
) -> None:
    """Replace functions of a module or a class by recorded ones.

    If some are missing, that is one warning, and the others are recorded.

    Args:
        owner: The module or the class.
        recorded: Name of a function -> what makes it record.
    """
    missing = []
    for name, record in recorded.items():
        function = getattr(owner, name, None)
        if function is None:
            missing.append(name)
        else:
            setattr(owner, name, record(function))
    if missing:
        warn(
            f"bubblescope finds no {', '.join(missing)} in {owner.__name__}: this version is not "
            "supported, and what they do will be missing from the recording",
            stacklevel=3,
        )
