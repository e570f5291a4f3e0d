"""What a profiler sees of a rank that `device_maker` simulated, and the truth about that."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from device_maker import Operation, Rank

SUMS = (
    "total_ns",
    "compute_ns",
    "graphs_ns",
    "communication_exposed_ns",
    "communication_hidden_ns",
    "copy_exposed_ns",
    "idle_ns",
)


GRAPH = "graph"
"""The category of graphs that a profiler records as a whole."""


def record(rank: Rank) -> None:
    """Drop what a profiler does not see: rows that are lost, and what begins outside of its time.

    Some of what computes may be graphs, of which it does not see more than when they ran.
    """
    low, high = 0, 1 << 62
    if rank.mode.cut:
        second = [index for index, (_, first) in enumerate(rank.moments) if first][2]
        fair = [at for at, _ in rank.moments[1:second] if _fair(rank, at)]
        low = rank.rng.choice(fair or [0])
        high = rank.rng.choice([at for at, first in rank.moments[second:] if not first])
    rank.calls = [it for it in rank.calls if low <= it.start < high and not it.lost]
    rank.operations = [it for it in rank.operations if low <= it.start < high]
    rank.ranges = [it for it in rank.ranges if low <= it.start < high]
    if rank.mode.graphs:
        for it in rank.operations:
            if (it.sort, it.cat) == ("compute", "kernel") and rank.rng.random() < rank.mode.graphs:
                it.cat = GRAPH
    rank.ranges.sort(key=lambda it: (it.start, -it.end))
    for it in rank.ranges:
        it.end = min(it.end, high)


def _fair(rank: Rank, low: int) -> bool:
    """Say whether the device has the same gaps in a capture that begins at `low`, while it is busy.

    What has started by then is not in the capture. Where that alone kept the device busy, there would
    be a gap that no cause was put in for.
    """
    dry = max(it.end for it in rank.operations if it.call.start < low)
    seen = [it for it in rank.operations if low <= it.start < dry]
    busy_until = min((it.start for it in seen), default=dry)
    for it in sorted(seen, key=lambda it: (it.start, -it.call.start)):
        if it.start > busy_until and it.call.start >= low:  # where none is so, the gap is unlinked
            return False
        busy_until = max(busy_until, it.end)
    return busy_until >= dry


def account(rank: Rank) -> dict[str, Any]:
    """Run the device once more and book each nanosecond, for the capture and for its steps.

    A step is the device's from when the first operation starts that was launched in it.
    """
    linked = {call.correlation for call in rank.calls}
    steps = {it.name for it in rank.ranges if it.name.startswith("ProfilerStep#")}
    books: defaultdict[int | None, Counter[str]] = defaultdict(Counter)
    running: Counter[str] = Counter()
    step: int | None = None
    last: int | None = None
    for now in sorted({time for it in rank.operations for time in (it.start, it.end)}):
        started = [it for it in rank.operations if it.start == now]
        if last is not None:
            for book in {None, step}:
                books[book].update(_spent(running, started, now - last, linked))
        ended = [it for it in rank.operations if it.end == now]
        running.update(it.sort for it in started)
        running.subtract(it.sort for it in ended)
        running.update(it.cat for it in started if it.cat == GRAPH)
        running.subtract(it.cat for it in ended if it.cat == GRAPH)
        for it in started:
            if it.call.correlation in linked and f"ProfilerStep#{it.step}" in steps:
                assert it.step is not None
                step = it.step if step is None else max(step, it.step)
        last = now
    capture = books.pop(None)
    return {
        "rank": rank.number,
        "capture": _page(capture),
        "steps": [{"step": key, **_page(book)} for key, book in sorted(books.items())],
    }


def _spent(
    running: Counter[str], started: list[Operation], length: int, linked: set[int]
) -> dict[str, int]:
    """Return what some time went to, before operations started and while others were running."""
    if running["compute"]:
        hidden = length if running["communication"] else 0
        graphs = length if running["compute"] == running[GRAPH] else 0
        spent = {"total_ns": length, "compute_ns": length, "graphs_ns": graphs}
        return {**spent, "communication_hidden_ns": hidden}
    if running["communication"] or running["copy"]:
        sort = "communication" if running["communication"] else "copy"
        return {"total_ns": length, f"{sort}_exposed_ns": length}
    ended_by = min(started, key=lambda it: it.call.start)
    causes = {"unlinked": length}
    if ended_by.call.correlation in linked:
        assert ended_by.idle is not None
        assert sum(ended_by.idle.values()) == length, "a gap that nobody put in"
        causes = ended_by.idle
    return {"total_ns": length, "idle_ns": length, **causes}


def _page(book: Counter[str]) -> dict[str, Any]:
    """Return a book's sums, and its idle time by class."""
    idle = {key: value for key, value in book.items() if key not in SUMS and value}
    return {key: book[key] for key in SUMS} | {"idle": idle}
