"""Which traces are read together: as few as can be, and as many as make a file worth its name."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bubblescope.model.errors import SourceError
from bubblescope.sources.dataset.catalogue import Input

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bubblescope.sources import Found
    from bubblescope.sources.source import Source

BATCH: Final = 16
"""Traces of a part, if nobody says: what Dask costs a task is little beside reading them."""
_LETTERS: Final = 8


class Batch(NamedTuple):
    """Traces that one worker reads together.

    Attributes:
        source: Name of their format.
        inputs: The traces, in order.
    """

    source: str
    inputs: tuple[Input, ...]

    @property
    def paths(self) -> list[Path]:
        """The traces."""
        return [Path(one.path) for one in self.inputs]

    def __str__(self) -> str:
        first, *more = self.paths
        return f"{first}" + (f" and {len(more)} more" if more else "")

    def name(self, options: dict[str, str]) -> str:
        """Return a name for what is made of these traces, as they are now, with these options."""
        known = hashlib.blake2b(digest_size=_LETTERS)
        for text in (self.source, *map(repr, self.inputs), *map(repr, sorted(options.items()))):
            known.update(text.encode())
        return known.hexdigest()


def batches(found: Found, size: int) -> list[Batch]:
    """Return the traces in batches of about so many.

    Args:
        found: The traces.
        size: Traces of a batch; more where they can only be read together, which a source says by its
            method `together`. A source without one reads all of its traces at once.

    Raises:
        SourceError: A trace is damaged beyond use.
    """
    made = []
    for source, paths in found.traces:
        batch: list[Path] = []
        for group in together(source, paths):
            if batch and len(batch) + len(group) > size:
                made.append(_batch(source.name, batch))
                batch = []
            batch += group
        if batch:
            made.append(_batch(source.name, batch))
    return made


def together(source: Source, paths: list[Path]) -> list[list[Path]]:
    """Return traces in the smallest groups that can be read apart; see `ReadsApart`."""
    apart: Any = getattr(source, "together", None)  # other packages' sources need not have it
    return [paths] if apart is None else apart(paths)


def as_one(batches_: Iterable[Batch]) -> list[Batch]:
    """Return the same traces with all of a format in one batch."""
    inputs: dict[str, list[Input]] = defaultdict(list)
    for batch in batches_:
        inputs[batch.source] += batch.inputs
    return [Batch(source, tuple(sorted(those))) for source, those in inputs.items()]


def with_shared_ranks(batches_: Sequence[Batch], ranks: Sequence[Sequence[int]]) -> list[Batch]:
    """Return batches of which those that turned out to hold the same ranks are one.

    Args:
        batches_: The batches.
        ranks: The ranks of each.

    Raises:
        SourceError: Traces of several formats hold the same rank.
    """
    count = Counter(rank for held in ranks for rank in held)
    if not any(times > 1 for times in count.values()):
        return list(batches_)
    leader = list(range(len(batches_)))

    def first(at: int) -> int:
        while leader[at] != at:
            at = leader[at]
        return at

    owner: dict[int, int] = {}
    for at, held in enumerate(ranks):
        for rank in held:
            other = first(owner.setdefault(rank, at))
            if batches_[at].source != batches_[other].source:
                raise SourceError(
                    batches_[at].paths[0],
                    f"and other traces of this batch hold rank {rank}, and so do those of "
                    f"{batches_[other]}, which are of another format; leave one of them out",
                )
            leader[first(at)] = other
    merged: dict[int, list[Input]] = defaultdict(list)
    for at, batch in enumerate(batches_):
        merged[first(at)] += batch.inputs
    return [Batch(batches_[at].source, tuple(sorted(inputs))) for at, inputs in merged.items()]


def _batch(source: str, paths: Iterable[Path]) -> Batch:
    return Batch(source, tuple(map(input_of, paths)))


def input_of(path: Path) -> Input:
    """Return a trace with what tells whether it has changed."""
    files = (
        [path] if path.is_file() else [file for file in sorted(path.rglob("*")) if file.is_file()]
    )
    states = [file.stat() for file in files]
    return Input(
        str(path.absolute()),
        sum(state.st_size for state in states),
        max((state.st_mtime_ns for state in states), default=0),
    )
