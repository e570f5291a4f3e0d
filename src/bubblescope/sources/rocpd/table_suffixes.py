"""What the tables of each part of a rocpd file end in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from bubblescope.sources.sqlite_head import table_names

if TYPE_CHECKING:
    from pathlib import Path

_OWN: Final = re.compile(
    r"rocpd_(?:info_node|info_process|info_agent|region|kernel_dispatch|memory_copy)(|_[0-9a-fA-F_]+)"
)
"""Tables that no other format has: AMD's older tools write a `rocpd_string` of their own."""


def suffixes(path: Path) -> list[str]:
    """Return what the tables of each part of a file end in; none if it is no rocpd file."""
    found = (_OWN.fullmatch(name) for name in table_names(path))
    return sorted({match[1] for match in found if match})
