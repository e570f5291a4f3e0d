"""Evaluations that a job notes itself, beside those of its recording."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bubblescope.model.timeline import Timeline

    Evaluation = tuple[int, int | None, int, int]
    """Rank, step that it follows (None before the first), and when it began and ended, in ns UTC."""

EDGE_NS = 20_000_000
"""How much later a task may begin, or earlier end, than its stamp, on a machine that is busy."""


def stamped(evaluate: Callable[[], object], rank: int, after: int | None) -> Evaluation:
    """Evaluate, and say when that was; if it fails, how it does is not looked at."""
    began = time.time_ns()
    with suppress(ArithmeticError):
        evaluate()
    return rank, after, began, time.time_ns()


def said_evaluations(output: str) -> list[Evaluation]:
    """Return those of a job's output that it says in lines such as `evaluated 1 0 1700 1800`."""
    lines = [line.split()[1:] for line in output.splitlines() if line.startswith("evaluated ")]
    return [(int(line[0]), *map(int, line[1:])) for line in lines]


def check_evaluations(timeline: Timeline, stamps: Iterable[Evaluation]) -> None:
    """Each evaluation is one task of the host, of the step that it follows, as long as it was."""
    tasks = timeline.tasks.sort("rank", "start_ns")
    found = tasks.filter(kind="other", name="evaluation", lane="host")
    stamps = sorted(stamps, key=lambda one: (one[0], one[2]))
    assert found.select("rank", "step").rows() == [one[:2] for one in stamps]
    for (rank, _, began, ended), (start, end) in zip(
        stamps, found.select("start_ns", "end_ns").iter_rows(), strict=True
    ):
        assert began - 1_000_000 <= start <= began + EDGE_NS
        assert ended - EDGE_NS <= end <= ended + 1_000_000
        inside = (pl.col("start_ns") < end) & (pl.col("end_ns") > start)
        assert tasks.filter(inside, pl.col("rank") == rank, pl.col("kind") != "gc").height == 1
