"""One thing to say of a run: which sentence, with which numbers, and what shows it."""

from __future__ import annotations

from typing import Any

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """One sentence.

    Attributes:
        role: "verdict", "evidence" or "advice".
        key: Which sentence, as in `bubblescope.analysis.words`.
        values: The numbers and names in it; times end in `_ns`, shares in `_share`, factors in
            `_times`.
        tasks: Rows of the timeline's tasks that show it.
    """

    role: str
    key: str
    values: dict[str, Any]
    tasks: tuple[int, ...] = ()
