"""Traces that lack what traces in the wild lack: versions of a Kineto trace, each by a seed.

A version is made of all ranks of a case at once, so that what is cut is cut at one instant. Each says
which ranks are left and from when to when they were traced, for the truth to be cut by.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

Documents = dict[int, dict[str, Any]]
Windows = dict[int, tuple[int, int]]

SHAPES = ("Concrete Inputs", "Input type", "Input Strides", "Input Dims")
COMMUNICATION = ("c10d::", "gloo:", "nccl:", "record_param_comms")
BACKWARD = "autograd::engine::evaluate_function"


def read(folder: Path) -> Documents:
    """Return a case's traces by rank, parsed."""
    found = {}
    for path in sorted(folder.glob("rank*.json.gz")):
        rank = int(path.name.removeprefix("rank").removesuffix(".json.gz"))
        found[rank] = msgspec.json.decode(gzip.decompress(path.read_bytes()))
    return found


def write(documents: Documents, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for rank, document in documents.items():
        packed = gzip.compress(msgspec.json.encode(document), compresslevel=1)
        (folder / f"rank{rank}.json.gz").write_bytes(packed)


def windows(documents: Documents) -> Windows:
    """Return from when to when each rank was traced, in ns on the traces' absolute clock."""
    found = {}
    for rank, document in documents.items():
        spans = [_span(event) for event in document["traceEvents"] if _is_work(event)]
        base = document["baseTimeNanoseconds"]
        if spans:
            first, last = min(start for start, _ in spans), max(end for _, end in spans)
            found[rank] = (base + round(first * 1000), base + round(last * 1000))
    return found


def _is_work(event: dict[str, Any]) -> bool:
    return event["ph"] == "X" and event.get("cat") in ("cpu_op", "user_annotation")


def _span(event: dict[str, Any]) -> tuple[float, float]:
    """Return an event's first and last instant, in µs since its trace's base."""
    return event["ts"], event["ts"] + event.get("dur", 0)


def _each(
    documents: Documents, change: Callable[[dict[str, Any]], dict[str, Any] | None]
) -> Documents:
    """Return the traces with each event changed, or left out where nothing comes back."""
    return {
        rank: {
            **document,
            "traceEvents": [
                new for event in document["traceEvents"] if (new := change(event)) is not None
            ],
        }
        for rank, document in documents.items()
    }


def _without(event: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    if "args" not in event:
        return event
    return {**event, "args": {k: v for k, v in event["args"].items() if k not in names}}


def _cut(documents: Documents, low: float, high: float) -> Documents:
    """Keep what begins and ends between two instants of the traced time, as shares of it."""
    spans = [
        _span(event)
        for document in documents.values()
        for event in document["traceEvents"]
        if _is_work(event)
    ]
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    begin, end = (first + share * (last - first) for share in (low, high))

    def inside(event: dict[str, Any]) -> dict[str, Any] | None:
        if event["ph"] == "M":
            return event
        start, stop = _span(event)
        return event if begin <= start and stop <= end else None

    return _each(documents, inside)


def late(documents: Documents, dice: random.Random) -> Documents:
    """The profiler began in the middle of a step."""
    return _cut(documents, dice.uniform(0.1, 0.6), 1)


def early(documents: Documents, dice: random.Random) -> Documents:
    """The profiler ended in the middle of a step."""
    return _cut(documents, 0, dice.uniform(0.4, 0.9))


def thinned(share: float) -> Callable[[Documents, random.Random], Documents]:
    """Lose operators, and the arrows at them, as full buffers do."""

    def change(documents: Documents, dice: random.Random) -> Documents:
        lost = set()

        def kept(event: dict[str, Any]) -> dict[str, Any] | None:
            if event.get("cat") == "cpu_op" and event["ph"] == "X" and dice.random() < share:
                lost.add((event["pid"], event["ts"]))
                return None
            return event

        left = _each(documents, kept)
        arrows = {
            (event["pid"], event["id"])
            for document in left.values()
            for event in document["traceEvents"]
            if event.get("cat") == "fwdbwd" and (event["pid"], event["ts"]) in lost
        }
        return _each(
            left,
            lambda event: (
                None
                if event.get("cat") == "fwdbwd" and (event["pid"], event["id"]) in arrows
                else event
            ),
        )

    return change


def missing_rank(documents: Documents, dice: random.Random) -> Documents:
    """The trace of one rank was not copied."""
    gone = dice.choice(sorted(documents))
    left = {rank: document for rank, document in documents.items() if rank != gone}
    return left or documents


def without_numbers(documents: Documents, _dice: random.Random) -> Documents:
    """No operator has its sequence number."""
    return _each(documents, lambda event: _without(event, ("Sequence number", "Fwd thread id")))


def without_arrows(documents: Documents, _dice: random.Random) -> Documents:
    """There are no flow events from forwards to backwards."""
    return _each(documents, lambda event: None if event.get("cat") == "fwdbwd" else event)


def without_both(documents: Documents, dice: random.Random) -> Documents:
    return without_arrows(without_numbers(documents, dice), dice)


def without_shapes(documents: Documents, _dice: random.Random) -> Documents:
    """Operators' inputs, and so the peers of messages, were not recorded."""
    return _each(documents, lambda event: _without(event, SHAPES))


def without_communication(documents: Documents, _dice: random.Random) -> Documents:
    """No messages are seen."""
    return _each(
        documents,
        lambda event: None if event["name"].startswith(COMMUNICATION) else event,
    )


def without_ranges(documents: Documents, _dice: random.Random) -> Documents:
    """There are no ranges of steps, of the optimizer, or of the library that communicates."""
    return _each(documents, lambda event: None if event.get("cat") == "user_annotation" else event)


def one_thread(documents: Documents, _dice: random.Random) -> Documents:
    """All threads of a process, and all processes, go by one number."""
    return _each(
        documents, lambda event: {**event, "pid": 1, "tid": 1} if "tid" in event else event
    )


def own_thread(documents: Documents, _dice: random.Random) -> Documents:
    """Backwards run in autograd's own thread, as they do where there is a GPU."""
    changed = {}
    for rank, document in documents.items():
        spans = sorted(
            _span(event)
            for event in document["traceEvents"]
            if event.get("cat") == "cpu_op" and event["name"].startswith(BACKWARD)
        )
        starts, ends = [start for start, _ in spans], [end for _, end in spans]
        changed[rank] = _moved(document, starts, ends)
    return changed


def _moved(document: dict[str, Any], starts: list[float], ends: list[float]) -> dict[str, Any]:
    """Return a trace with the events in these spans, which do not overlap, in another thread."""
    events, place = [], 0
    for event in sorted(document["traceEvents"], key=lambda event: event.get("ts", 0)):
        while place < len(ends) and ends[place] < event.get("ts", 0):
            place += 1
        inside = place < len(ends) and event["ph"] != "M" and starts[place] <= event["ts"]
        events.append({**event, "tid": event["tid"] + 1} if inside else event)
    return {**document, "traceEvents": events}


VERSIONS: dict[str, Callable[[Documents, random.Random], Documents]] = {
    "backwards in their own thread": own_thread,
    "begins late": late,
    "ends early": early,
    "1 % of operators lost": thinned(0.01),
    "10 % of operators lost": thinned(0.1),
    "a rank missing": missing_rank,
    "no sequence numbers": without_numbers,
    "no flows": without_arrows,
    "neither": without_both,
    "no shapes": without_shapes,
    "no messages": without_communication,
    "no ranges": without_ranges,
    "threads merged": one_thread,
}
"""What becomes of the traces of a case, by name. The first is as good as what it is made of."""

SEEDED = (
    "begins late",
    "ends early",
    "1 % of operators lost",
    "10 % of operators lost",
    "a rank missing",
)
"""The versions that a seed changes."""
