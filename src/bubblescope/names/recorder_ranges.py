"""The names under which our own recorder shows its tasks to vendors' profilers (NVTX, mstx)."""

from __future__ import annotations

import re
from typing import Any, Final

from bubblescope.model.kinds import Kind
from bubblescope.names.parsed import ParsedName

MARK_PREFIX: Final = "bubblescope:"
"""What the names of our recorder's marks begin with."""

_MARK: Final = re.compile(r"bubblescope:(\w+)((?: \w+=-?\d+)*)")
_FIELD: Final = re.compile(r"(\w+)=(-?\d+)")


def mark_name(kind: Kind, **numbers: int | None) -> str:
    """Return the name under which our recorder shows a task to vendor profilers (NVTX, mstx).

    The numbers are called as in `ParsedName`; those that are None are left out.

    >>> mark_name(Kind.FORWARD, step=2, microbatch=5)
    'bubblescope:forward step=2 microbatch=5'
    """
    said = "".join(f" {key}={value}" for key, value in numbers.items() if value is not None)
    return f"{MARK_PREFIX}{kind.value}{said}"


class _RecorderRanges:
    beginnings = MARK_PREFIX

    def parse(self, name: str) -> list[ParsedName]:
        found = _MARK.fullmatch(name)
        if found is None:
            return []
        fields = {key: int(value) for key, value in _FIELD.findall(found[2])}
        if found[1] == "step":
            return [ParsedName(None, step=fields.get("step"), rank=fields.get("rank"))]
        try:
            kind = Kind(found[1])
        except ValueError:
            return []
        known = ParsedName.__struct_fields__[1:]
        said: dict[str, Any] = {key: value for key, value in fields.items() if key in known}
        return [ParsedName(kind, **said)]


GRAMMAR: Final = _RecorderRanges()
