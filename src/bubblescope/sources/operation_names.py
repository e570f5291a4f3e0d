"""The operation names that ByteDance's job traces and veScale's ndtimeline share with Megatron.

veScale: `legacy/vescale/ndtimeline/handlers/local_timeline_handler.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model.errors import SourceError
from bubblescope.model.kinds import LANE_OF, Kind, Lane
from bubblescope.model.provenance import Contents
from bubblescope.sources.inventory import name_shapes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from bubblescope.model.provenance import Notice
    from bubblescope.names.parser import NameParser

_MORE: Final = {
    "optimizer": Kind.OPTIMIZER,
    "gc": Kind.GC,
    "cross-mesh-recv": Kind.OTHER,
    "cross-mesh-send": Kind.OTHER,
}
_COLLECTIVE: Final = ("all-reduce", "allreduce", "all-gather", "allgather", "reduce-scatter")
_AHEAD: Final = {
    Kind.SEND_FORWARD.value: 1,
    Kind.RECV_FORWARD.value: -1,
    Kind.SEND_BACKWARD.value: -1,
    Kind.RECV_BACKWARD.value: 1,
}


def operations(names: pl.Series, parser: NameParser) -> pl.DataFrame:
    """Return what each distinct operation name means: name, kind and lane.

    A name of several operations at once, such as "forward-send-backward-recv", has a row for each.
    """
    rows = [
        (name, kind.value, lane.value)
        for name in names.unique().sort().to_list()
        for kind, lane in _meaning(name, parser)
    ]
    schema = {"name": pl.String, "kind": pl.String, "lane": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _meaning(name: str, parser: NameParser) -> list[tuple[Kind, Lane]]:
    kinds = [said.kind for said in parser.parse(name) if said.kind is not None]
    if not kinds:
        if any(word in name for word in _COLLECTIVE):  # "embedding-grads-all-reduce" and the like
            kinds = [Kind.COLLECTIVE]
        elif name.startswith("optimizer"):
            kinds = [Kind.OPTIMIZER]
        else:
            kinds = [_MORE.get(name, Kind.OTHER)]
    moves = name.startswith("cross-mesh")
    return [(kind, Lane.COMM if moves else LANE_OF[kind]) for kind in kinds]


def contents(
    paths: Sequence[Path], tables: Sequence[pl.DataFrame], parser: NameParser
) -> tuple[Contents, ...]:
    """Take stock of tables of operations, each with a column `name`."""
    return tuple(
        Contents(
            path=str(path),
            host=None,
            process=None,
            counts={"operations": table.height},
            names=name_shapes(table.group_by("name").agg(count=pl.len()), parser.parse),
        )
        for path, table in zip(paths, tables, strict=True)
    )


def peers(tasks: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Fill the peer of sends and receives, where every rank has one stage.

    Args:
        tasks: Frame with rank and kind.
        ranks: Frame with rank, dp, tp and stages of each rank.
    """
    places = ranks.filter(pl.col("stages").list.len() == 1).select(
        "rank", "dp", "tp", device=pl.col("stages").list.first()
    )
    if places.height < ranks.height or places.select("dp", "tp", "device").is_duplicated().any():
        return tasks.with_columns(peer=pl.lit(None, pl.Int32))
    others = places.rename({"rank": "peer"})
    ahead = pl.col("kind").cast(pl.String).replace_strict(_AHEAD, default=None)
    return (
        tasks.join(places, on="rank", how="left", maintain_order="left")
        .with_columns(device=(pl.col("device") + ahead).cast(pl.Int32))
        .join(
            others,
            on=["dp", "tp", "device"],
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )
        .with_columns(peer=pl.when(ahead.is_not_null()).then("peer"))
        .drop("dp", "tp", "device")
    )


def together(
    read: Iterable[tuple[pl.DataFrame, list[Notice]]],
) -> tuple[list[pl.DataFrame], list[Notice]]:
    """Return the tables of operations of several files, and what is wrong with them."""
    tables, notices = [], []
    for table, more in read:
        tables.append(table)
        notices += more
    return tables, notices


def one_place_each(paths: Sequence[Path], table: pl.DataFrame, **more: pl.Expr) -> pl.DataFrame:
    """Return rank, dp and device of each rank in operations that have them, and what is asked for.

    Args:
        paths: Where the operations are from, for the message.
        table: The operations.
        more: Columns to work out besides, for each rank.

    Raises:
        SourceError: A rank has several places.
    """
    found = (
        table.group_by("rank")
        .agg(pl.col("dp", "device").first(), places=pl.struct("dp", "device").n_unique(), **more)
        .sort("rank")
    )
    odd = found.filter(pl.col("places") > 1)
    if odd.height:
        others = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
        raise SourceError(
            f"{paths[0]}{others}",
            f"rank {odd['rank'][0]} has several places in the pipeline; give the traces of one job",
        )
    return found
