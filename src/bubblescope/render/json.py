"""JSON as commands print it: nothing in it moves, colours or turns anything else."""

from __future__ import annotations

from typing import Any

import msgspec

from bubblescope.model.plain_text import inert_json


def pretty(value: Any) -> str:
    """Write plain values as JSON of several lines."""
    return inert_json(msgspec.json.format(msgspec.json.encode(value)).decode())
