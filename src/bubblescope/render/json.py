"""JSON as commands print it."""

from __future__ import annotations

from typing import Any

import msgspec


def pretty(value: Any) -> str:
    """Write plain values as JSON of several lines."""
    return msgspec.json.format(msgspec.json.encode(value)).decode()
