"""Writing charts into databases in a process of its own, which may be killed.

A process that loads little besides: it is forked from one that has loaded this, and used nothing of it.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from typing import TYPE_CHECKING

import polars as pl

from bubblescope.render.artefacts import step_task_info

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHART = {"name": ["FP"], "startNs": [0], "endNs": [1], "type": [0]}
LINKS = {"link": ["a_0_1_0"], "op_id": [1]}


def write(paths: list[Path]) -> None:
    step_task_info.write(dict.fromkeys(paths, (pl.DataFrame(CHART), pl.DataFrame(LINKS))))


def write_until(paths: list[Path], statement: int) -> None:
    """Write, and be killed before a statement, if there are so many."""
    left = iter(range(statement, -1, -1))

    def at_last(_statement: str) -> None:
        if next(left, None) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sqlite3.connect = traced(at_last)
    write(paths)


def traced(said: Callable[[str], None]) -> Callable[..., sqlite3.Connection]:
    """`sqlite3.connect`, telling of each statement."""
    plain = sqlite3.connect

    def connect(*arguments, **options):
        connection = plain(*arguments, **options)
        connection.set_trace_callback(said)
        return connection

    return connect
