"""Takes the ranges that name actions out of a Kineto trace.

    python markless_strip.py TRACE... FOLDER

Writes each trace without `PP:` ranges, as torch's schedules make them, and without the ranges that
Megatron and others name passes with, as if they had never been, into a folder that is made.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = re.compile(r"TRUTH:|PP:|(Forward|Backward) \d+$")
"""What names of ranges begin with that name an action."""


def without(document: dict[str, Any], is_taken_out: Callable[[str], Any]) -> dict[str, Any]:
    """Return a trace without some of its ranges, its events numbered as if they had never been."""
    kept = [
        event
        for event in document["traceEvents"]
        if not (event.get("cat") == "user_annotation" and is_taken_out(event["name"]))
    ]
    for name in ("Ev Idx", "External id"):
        numbers = sorted({event["args"][name] for event in kept if name in event.get("args", ())})
        first = min(numbers, default=0)
        new = {number: first + i for i, number in enumerate(numbers)}
        kept = [
            {**event, "args": {**event["args"], name: new[event["args"][name]]}}
            if name in event.get("args", ())
            else event
            for event in kept
        ]
    return {**document, "traceEvents": kept}


def read(path: Path) -> dict[str, Any]:
    """Return a trace, packed or not."""
    packed = path.read_bytes()
    document: dict[str, Any] = json.loads(
        gzip.decompress(packed) if path.suffix == ".gz" else packed
    )
    return document


def write(document: dict[str, Any], path: Path) -> None:
    """Write a trace, packed."""
    with gzip.open(path, "wt", compresslevel=6) as file:
        json.dump(document, file)


def main() -> None:
    *traces, folder = map(Path, sys.argv[1:])
    folder.mkdir(parents=True)
    for trace in traces:
        name = trace.name.removesuffix(".gz") + ".gz"
        write(without(read(trace), MARK.match), folder / name)
        sys.stdout.write(f"{folder / name}\n")


if __name__ == "__main__":
    main()
