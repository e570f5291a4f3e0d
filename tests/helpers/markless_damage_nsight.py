"""Exports of Nsight Systems that lack what exports in the wild lack, each by a seed.

A version is made of a copy of an export. Processes of made exports are the ranks, in the order of their
numbers; a reader numbers those that are left from 0.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    Damage = Callable[[sqlite3.Connection, random.Random], None]

KERNELS, CALLS, RANGES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
)
PROCESS = {KERNELS: "globalPid >> 24", CALLS: "globalTid >> 24", RANGES: "globalTid >> 24"}
"""What tells the process of a row, by table."""


def _tables(export: sqlite3.Connection) -> list[str]:
    held = {name for (name,) in export.execute("SELECT name FROM sqlite_master")}
    return [table for table in PROCESS if table in held]


def processes(export: sqlite3.Connection) -> list[int]:
    """Return what tells each process that ran kernels, in order."""
    found = export.execute(f"SELECT DISTINCT {PROCESS[KERNELS]} AS p FROM {KERNELS} ORDER BY p")
    return [number for (number,) in found]


def windows(path: Path, utc_ns: int) -> dict[int, tuple[int, int]]:
    """Return from when to when kernels of each process were traced, in ns of absolute time."""
    with closing(sqlite3.connect(path)) as export:
        rows = export.execute(
            f"SELECT {PROCESS[KERNELS]}, MIN(start), MAX(end) FROM {KERNELS} GROUP BY 1"
        ).fetchall()
    return {process: (utc_ns + start, utc_ns + end) for process, start, end in rows}


def damaged(source: Path, target: Path, damage: Damage, dice: random.Random) -> Path:
    """Write a damaged copy of an export."""
    shutil.copyfile(source, target)
    with closing(sqlite3.connect(target)) as export:
        damage(export, dice)
        export.commit()
    return target


def _instant(export: sqlite3.Connection, share: float) -> int:
    first, last = export.execute(f"SELECT MIN(start), MAX(end) FROM {KERNELS}").fetchone()
    return int(first + share * (last - first))


def late(export: sqlite3.Connection, dice: random.Random) -> None:
    """The capture began in the middle of a step."""
    at = _instant(export, dice.uniform(0.1, 0.6))
    for table in _tables(export):
        export.execute(f"DELETE FROM {table} WHERE start < ?", (at,))


def early(export: sqlite3.Connection, dice: random.Random) -> None:
    """The capture ended in the middle of a step."""
    at = _instant(export, dice.uniform(0.4, 0.9))
    for table in _tables(export):
        export.execute(f"DELETE FROM {table} WHERE end > ?", (at,))


def thinned(table: str, share: float) -> Damage:
    """Lose rows of a table, as full buffers do."""

    def change(export: sqlite3.Connection, dice: random.Random) -> None:
        if table in _tables(export):
            rows = export.execute(f"SELECT rowid FROM {table}").fetchall()
            lost = [row for row in rows if dice.random() < share]
            export.executemany(f"DELETE FROM {table} WHERE rowid = ?", lost)

    return change


def missing_rank(export: sqlite3.Connection, dice: random.Random) -> None:
    """One process was not traced."""
    gone = dice.choice(processes(export))
    for table in _tables(export):
        export.execute(f"DELETE FROM {table} WHERE {PROCESS[table]} = ?", (gone,))


def without_ranges(export: sqlite3.Connection, _dice: random.Random) -> None:
    """No NVTX was traced."""
    if RANGES in _tables(export):
        export.execute(f"DELETE FROM {RANGES}")


def without_calls(export: sqlite3.Connection, _dice: random.Random) -> None:
    """NCCL's own ranges, which name the peers of messages, were not traced."""
    if RANGES in _tables(export):
        export.execute(
            f"DELETE FROM {RANGES} WHERE textId IN (SELECT id FROM StringIds WHERE value LIKE 'nccl%')"
        )


def without_thread_names(export: sqlite3.Connection, _dice: random.Random) -> None:
    """Nothing says which threads are autograd's."""
    export.execute("DELETE FROM ThreadNames")


VERSIONS: dict[str, Damage] = {
    "begins late": late,
    "ends early": early,
    "1 % of kernels lost": thinned(KERNELS, 0.01),
    "10 % of kernels lost": thinned(KERNELS, 0.1),
    "1 % of ranges lost": thinned(RANGES, 0.01),
    "10 % of ranges lost": thinned(RANGES, 0.1),
    "a rank missing": missing_rank,
    "no ranges": without_ranges,
    "no calls of NCCL": without_calls,
    "no names of threads": without_thread_names,
}
"""What becomes of an export, by name."""

SEEDED = tuple(VERSIONS)[:7]
"""The versions that a seed changes."""
