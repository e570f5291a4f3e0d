"""How Ascend's tools name what they write."""

from __future__ import annotations

import re
from typing import Final

FOLDER_SUFFIXES: Final = ("_ascend_pt", "_ascend_ms")
DATABASE: Final = re.compile(
    r"(?:ascend_(?:pytorch|mindspore)_profiler(?:_(?P<rank>\d+))?"
    r"|msprof_\d+|msmonitor_\d+_\d+_(?P<monitored>\d+))\.db"
)
