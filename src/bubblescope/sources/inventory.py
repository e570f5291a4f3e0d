"""Taking stock of what raw traces hold, before anything is made of it."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model import units
from bubblescope.model.kinds import COMPUTE_KINDS
from bubblescope.model.provenance import NameShape, Notice

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from bubblescope.model.timeline import Timeline
    from bubblescope.names.parsed import ParsedName
    from bubblescope.names.parser import NameParser

_SHOWN: Final = 5
"""How many of the names a warning lists."""

_ABSENT: Final = 8
"""How many of the missing ranks a warning lists."""


def name_shapes(
    names: pl.DataFrame, parse: Callable[[str], list[ParsedName]]
) -> tuple[NameShape, ...]:
    """Group range names that differ in their numbers only, most frequent first.

    Args:
        names: Frame with the distinct names and the `count` of each.
        parse: Says what a name is taken for.
    """
    shapes = (
        names.with_columns(shape=pl.col("name").str.replace_all(r"\d+", "#"))
        .sort("name")
        .group_by("shape", maintain_order=True)
        .agg(example=pl.col("name").first(), count=pl.col("count").sum())
        .sort("count", "shape", descending=[True, False])
    )
    return tuple(
        NameShape(shape, example, count, _kind(parse(example)))
        for shape, example, count in shapes.iter_rows()
    )


def _kind(parsed: list[ParsedName]) -> str | None:
    if not parsed:
        return None
    return ", ".join(said.kind.value if said.kind else "step marker" for said in parsed)


def unmatched(timeline: Timeline, names: NameParser) -> Notice | None:
    """Return a warning if a user's patterns match no range name of any trace."""
    counts: Counter[str] = Counter()
    known = set(timeline.tasks["name"].drop_nulls().unique())
    for content in timeline.run.contents:
        known |= {one.example for one in content.names}
        counts.update({one.shape: one.count for one in content.names})
    if not counts or any(own.matches(name) for own in names.own for name in known):
        return None
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    shown = ", ".join(f"{shape!r} ({count})" for shape, count in ordered[:_SHOWN])
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    text = f"--names matches none of the range names, which are, # being any number: {shown}{more}"
    return Notice("names-unmatched", text)


def missing_ranks(found: Collection[int], world: int | None) -> list[Notice]:
    """Return a warning if a job says that it has more ranks than there are traces.

    Args:
        found: Ranks that there are traces of.
        world: Number of ranks of the job, if it says.
    """
    first, count = absent(found, world or 0, _ABSENT)
    if not count:
        return []
    which = ", ".join(map(str, first)) + (", ..." if count > len(first) else "")
    text = f"{count} of {world} ranks have no trace here ({which}); rates over all ranks leave them out"
    return [Notice("missing-ranks", text, count, world)]


def ranks_without_passes(tasks: pl.DataFrame, ranks: Collection[int]) -> list[Notice]:
    """Return a warning if some ranks have no forward or backward, though others have.

    Args:
        tasks: Frame with rank and kind.
        ranks: Ranks that there are traces of.
    """
    passes = tasks.filter(pl.col("kind").is_in([kind.value for kind in COMPUTE_KINDS]))
    having = set(passes["rank"].unique())
    lacking = sorted({*ranks} - having)
    if not having or not lacking:
        return []
    text = (
        f"{units.listed('rank', lacking)}: no forward or backward is known, though others have some, "
        "so it is not known when others waited for what ran there; trace and mark all ranks alike"
    )
    return [Notice("ranks-without-passes", text, len(lacking), len(ranks))]


def absent(found: Collection[int], world: int, most: int) -> tuple[list[int], int]:
    """Return the first few ranks that a job says it has and of which there is nothing, and how many.

    What a job says may be any number: as many steps are taken as there are ranks, and a few.
    """
    known = {rank for rank in found if 0 <= rank < world}
    first = islice((rank for rank in range(world) if rank not in known), most)
    return list(first), world - len(known)
