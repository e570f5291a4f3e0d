"""What another package may add to bubblescope: one of each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click
import polars as pl

import bubblescope
from bubblescope.model.kinds import Kind
from bubblescope.model.provenance import Origin, Run
from bubblescope.model.timeline import Timeline
from bubblescope.names.parsed import ParsedName
from bubblescope.render.formats import Format

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bubblescope.sources.source import ReadOptions


class ToySource:
    """Reads files of lines such as "0 ahead-3 100 250": rank, name, start and end in nanoseconds."""

    name = "toy"
    summary = "toy traces (.toy)"

    def detect(self, path: Path) -> bool:
        """Tell a toy trace by its ending."""
        return path.suffix == ".toy"

    def read(self, paths: Sequence[Path], options: ReadOptions) -> Timeline:
        """Read them; the grammars say what the names mean."""
        lines = [line.split() for path in paths for line in path.read_text().splitlines()]
        rows = []
        for rank, name, start, end in lines:
            [said] = options.names.parse(name)
            rows.append(
                {
                    "rank": int(rank),
                    "kind": said.kind.value,
                    "lane": "compute",
                    "stage": int(rank),
                    "microbatch": said.microbatch,
                    "step": 0,
                    "start_ns": int(start),
                    "end_ns": int(end),
                    "name": name,
                }
            )
        origins = tuple(Origin("toy", None, str(path)) for path in paths)
        return Timeline(pl.DataFrame(rows), run=Run(origins=origins))


class _ToyNames:
    beginnings = "ahead-|back-"

    def parse(self, name: str) -> list[ParsedName]:
        """Return what "ahead-3" or "back-3" stands for."""
        found = re.fullmatch(r"(ahead|back)-(\d+)", name)
        if found is None:
            return []
        kind = Kind.FORWARD if found[1] == "ahead" else Kind.BACKWARD
        return [ParsedName(kind, int(found[2]))]


GRAMMAR = _ToyNames()


def write_count(timeline: Timeline, path: Path, *, word: str = "tasks") -> Path:
    """Write how many tasks there are."""
    path.write_text(f"{len(timeline)} {word}\n", "utf-8")
    return path


COUNT = Format(write_count, ".count", "how many tasks there are", ("word",))


@click.command()
@click.argument("path")
def toy(path: str) -> None:
    """Count the tasks of a run."""
    click.echo(f"{len(bubblescope.load(path))} tasks, says another package")
