"""Whether times are those of devices, or of the host that launches their work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model import units

if TYPE_CHECKING:
    from typing import Any

DEVICE: Final = "device"
HOST: Final = "host"
MIXED: Final = "mixed"

TIMED_DTYPE: Final = pl.Enum([DEVICE, HOST])
"""The type of `timed` in `Timeline.ranks`: what the times of a rank's tasks are of, null if unknown."""


def timed(ranks: pl.DataFrame) -> str | None:
    """Return what the times of a run are of.

    Args:
        ranks: As in `Timeline.ranks`.

    Returns:
        "device", "host", "mixed" where ranks differ, or None where it is not known of all.

    >>> timed(pl.DataFrame({"timed": ["device", "host"]})), timed(pl.DataFrame({"timed": ["host"]}))
    ('mixed', 'host')
    """
    found: set[Any] = set(ranks["timed"].to_list())
    if {DEVICE, HOST} <= found:
        return MIXED
    return found.pop() if len(found) == 1 else None


def on_host(ranks: pl.DataFrame) -> str | None:
    """Return in a few words whose times are the host's; None if those of no rank are known to be.

    >>> on_host(pl.DataFrame({"rank": [0, 1], "timed": ["host", "device"]}))
    'host times on rank 0'
    """
    host = ranks.filter(pl.col("timed") == HOST)["rank"].to_list()
    if not host:
        return None
    if len(host) == ranks.height:
        return "host times"
    return f"host times on {units.listed('rank', host)}"
