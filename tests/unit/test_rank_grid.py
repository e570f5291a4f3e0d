from __future__ import annotations

import polars as pl
import pytest

from bubblescope.model.groups import GROUP_SCHEMA
from bubblescope.model.timeline_tables import RANK_SCHEMA
from bubblescope.sources.rank_grid import groups_of_grid


def table(rows):
    columns = {name: RANK_SCHEMA[name] for name in ("rank", "stages", "dp", "tp", "cp")}
    frame = pl.DataFrame(rows, schema=columns, orient="row")
    return frame.with_columns(
        pl.lit(None, kind).alias(name) for name, kind in RANK_SCHEMA.items() if name not in columns
    ).select(*RANK_SCHEMA)


def grid(pp, dp, tp):
    """Megatron's order: tensor fastest, then data, then the pipeline."""
    return [
        (stage * dp * tp + replica * tp + shard, [stage], replica, shard, 0)
        for stage in range(pp)
        for replica in range(dp)
        for shard in range(tp)
    ]


def test_groups_lie_along_the_axes():
    found = groups_of_grid(table(grid(2, 2, 2)))
    assert dict(found.schema) == GROUP_SCHEMA
    assert found.select("role", "ranks", "size").rows() == [
        ("dp", [0, 2], 2),
        ("dp", [1, 3], 2),
        ("dp", [4, 6], 2),
        ("dp", [5, 7], 2),
        ("pp", [0, 4], 2),
        ("pp", [1, 5], 2),
        ("pp", [2, 6], 2),
        ("pp", [3, 7], 2),
        ("tp", [0, 1], 2),
        ("tp", [2, 3], 2),
        ("tp", [4, 5], 2),
        ("tp", [6, 7], 2),
    ]
    assert set(found["how"]) == {"coordinates"}


def test_a_pipeline_alone_is_one_group_in_the_order_of_its_stages():
    rows = [(0, [2, 10], None, None, None), (1, [1, 11], None, None, None)]
    assert groups_of_grid(table(rows)).select("role", "ranks").rows() == [("pp", [1, 0])]


@pytest.mark.parametrize(
    "rows",
    [
        grid(2, 2, 2)[1:],  # the first is missing
        grid(2, 2, 2)[:-1],
        grid(2, 2, 2)[::2],
        [(rank, [0], 0, 0, 0) for rank in range(2)],  # two at one place
        [(0, None, None, None, None), (1, None, None, None, None)],
        [],
    ],
)
def test_without_a_whole_grid_there_are_none(rows):
    assert not groups_of_grid(table(rows)).height
