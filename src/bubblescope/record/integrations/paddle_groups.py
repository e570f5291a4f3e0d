"""Paddle's communication groups, which the grid of its hybrid parallelism tells."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from bubblescope.record.integrations.torch_groups import FRAMEWORK
from bubblescope.recording.columns import Membership, runs_of

_ROLES: Final = {
    "pipe": "pp",
    "data": "dp",
    "sharding": "fsdp",
    "model": "tp",
    "sep": "sp",
    "context": "cp",
    "expert": "ep",
}
"""What Paddle calls its groups, and what `names.group_roles` does."""


def memberships(grid: Any) -> list[Membership]:
    """Return the groups of several ranks that this rank is part of.

    Args:
        grid: The pipeline's; versions differ in which groups theirs know.
    """
    found = []
    for axis, role in _ROLES.items():
        with suppress(Exception):  # it has none of that sort, and some say so by an assertion
            ranks = [int(rank) for rank in getattr(grid, f"get_{axis}_parallel_group")().ranks]
            if len(ranks) > 1:
                found.append(Membership(runs_of(ranks), role, how=FRAMEWORK, description=axis))
    return found
