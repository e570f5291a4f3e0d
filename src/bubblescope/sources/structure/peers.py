"""Stages of inferred passes by the peers of messages: where each forward and each backward was sent.

A forward is sent to the rank of the stage behind, a backward to the rank of the stage before; what is
sent nowhere was handed on within the rank, or made at an end of the pipeline. Chunks of a rank are
numbered in the order of their stages (`chunks`), so that a walk from rank to rank that takes the next
chunk of each passes through the stages in their order. It may pass through a rank whose trace is
missing: those around it name it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from bubblescope.model.kinds import BACKWARDS, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

_HOW: Final = "ranks that forwards and backwards were sent to"
_HOW_PAST: Final = _HOW + "; no trace of rank {}"

_MOSTLY: Final = 0.5
"""Share of a stage's passes of one kind that must have been sent to one rank, for that to be the next.
A rank sends the results of several chunks, and two of them may be sent before either is told."""


class _Links(NamedTuple):
    """Where the passes of one rank and chunk were sent; None for nowhere."""

    forward: int | None
    backward: int | None


_Place = tuple[int, int]
"""A rank and one of its chunks: a stage."""


def stages_of_peers(tasks: pl.DataFrame) -> tuple[pl.DataFrame, str | None]:
    """Number the stages of inferred passes by where they were sent.

    Args:
        tasks: Frame with rank, kind, chunk, microbatch, stage, and, where passes were inferred, graph
            and sent_to.

    Returns:
        The tasks, and how stages were found; None if nothing was sent to a rank that is known, or what
        was sent where is not the way through a pipeline.
    """
    if "sent_to" not in tasks.columns or tasks["sent_to"].null_count() == tasks.height:
        return tasks, None
    if tasks["stage"].is_not_null().any():
        return tasks, None
    links = _links(tasks)
    ways = [way for place in sorted(links) if (way := _walk(place, links)) is not None]
    reached = [place for way in ways for place in way if place in links]
    if len(set(reached)) < len(reached) or set(reached) != set(links):
        return tasks, None
    found = pl.DataFrame(
        [(*place, stage) for way in ways for stage, place in enumerate(way) if place in links],
        schema={"rank": tasks.schema["rank"], "place": pl.Int64, "found": pl.Int32},
        orient="row",
    )
    inferred = pl.col("graph").is_not_null()
    placed = (
        tasks.with_columns(place=place_of_pass())
        .join(found, on=["rank", "place"], how="left", maintain_order="left")
        .with_columns(stage=pl.when(inferred).then("found"))
        .drop("place", "found")
    )
    missing = sorted({rank for way in ways for rank, chunk in way if (rank, chunk) not in links})
    how = _HOW_PAST.format(", ".join(map(str, missing))) if missing else _HOW
    return placed, how


def place_of_pass() -> pl.Expr:
    """Return the chunk of each inferred pass; null if it is of one of several, and not known which.

    Passes of ranks with one chunk have none.
    """
    several = pl.col("chunk").is_not_null().any()
    return pl.when(several).then("chunk").otherwise(0).cast(pl.Int64)


def _links(tasks: pl.DataFrame) -> dict[_Place, _Links]:
    """Return where the passes of each stage were sent, of those stages of which passes are numbered."""
    numbered = tasks.filter(
        pl.col("graph").is_not_null(), pl.col("microbatch").is_not_null()
    ).with_columns(place=place_of_pass())
    sent = {
        kind: _sent(numbered.filter(pl.col("kind").is_in(names)))
        for kind, names in (
            ("forward", [Kind.FORWARD.value]),
            ("backward", [kind.value for kind in BACKWARDS]),
        )
    }
    places = numbered.select("rank", "place").drop_nulls().unique().sort("rank", "place").rows()
    return {
        place: _Links(sent["forward"].get(place), sent["backward"].get(place)) for place in places
    }


def _sent(passes: pl.DataFrame) -> Mapping[_Place, int]:
    """Return the rank that most passes of each stage were sent to."""
    counts = passes.group_by("rank", "place", "sent_to").len()
    most = counts.filter(
        pl.col("len") > _MOSTLY * pl.col("len").sum().over("rank", "place")
    ).drop_nulls("sent_to")
    return {(rank, place): to for rank, place, to, _ in most.iter_rows()}


def _walk(start: _Place, links: Mapping[_Place, _Links]) -> list[_Place] | None:
    """Return the way of a micro-batch forward from a stage, through all stages from there.

    Returns:
        None if the stage is not the first, or something was sent elsewhere than the way goes.
    """
    if start[1] != 0 or links[start].backward is not None:
        return None
    chunks = max(chunk for _, chunk in links) + 1
    way, visits = [start], {start[0]: 1}
    while True:
        rank, _ = way[-1]
        onward = _next(way[-1], links, chunks)
        if onward is None:
            break
        place = (onward, visits.get(onward, 0))
        back = links[place].backward if place in links else None
        known = place in links or onward not in {rank for rank, _ in links}
        agrees = back in ({None, rank} if onward != rank else {None})
        if not known or place[1] >= chunks or (place in links and not agrees):
            return None
        if place in links and back is None and onward != rank and way[-1] not in links:
            return None  # neither side says that one follows the other
        visits[onward] = place[1] + 1
        way.append(place)
    whole = all(visits[rank] == chunks for rank in visits)
    return way if whole and len(way) > 1 else None


def _next(place: _Place, links: Mapping[_Place, _Links], chunks: int) -> int | None:
    """Return the rank of the stage behind a stage; None for the last.

    Args:
        place: The stage.
        links: Where passes were sent.
        chunks: Stages of each rank.
    """
    rank, chunk = place
    if place in links:
        onward = links[place].forward
        if onward is None and (rank, chunk + 1) in links:
            return rank  # it hands on to itself
        return onward
    # Of a rank whose trace is missing, those say it that send their backwards there.
    behind = sorted((at for at, link in links.items() if link.backward == rank), key=_by_chunk)
    before = sum(link.forward == rank for link in links.values())
    # Twice as many stages as are entered from outside, and left: the rank at the turn of a V.
    if len(behind) == before == chunks - 1 == 1:
        return rank if chunk == 0 else behind[0][0]
    return behind[chunk][0] if chunk < len(behind) else None


def _by_chunk(place: _Place) -> tuple[int, int]:
    return place[1], place[0]
