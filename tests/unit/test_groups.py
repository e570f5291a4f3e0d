from __future__ import annotations

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from bubblescope.model.groups import GROUP_SCHEMA, Group, merged, tabled


def frame(*rows):
    return pl.DataFrame([dict(zip(GROUP_SCHEMA, row, strict=True)) for row in rows], GROUP_SCHEMA)


def group(name, ranks, size=None, role=None, how=None, description=None, backend=None):
    return (name, ranks, size or len(ranks), role, how, description, backend)


def test_groups_that_share_ranks_or_a_name_stay_apart():
    groups = frame(group("1", [0, 1]), group("2", [0, 1]), group("1", [2, 3]), group("1", [0, 1]))
    assert merged(groups).select("name", "ranks").rows() == [
        ("1", [0, 1]),
        ("2", [0, 1]),
        ("1", [2, 3]),
    ]


def test_the_surest_role_counts_and_gaps_are_filled():
    groups = frame(
        group("1", [0, 1], role="dp", how="inferred from operations"),
        group("1", [0, 1], backend="cuda:nccl"),
        group("1", [0, 1], role="tp", how="description", description="mesh_tp"),
    )
    assert merged(groups).rows() == [("1", [0, 1], 2, "tp", "description", "mesh_tp", "cuda:nccl")]


def test_contradicting_roles_are_none():
    groups = frame(
        group("1", [0, 1], role="dp", how="description"),
        group("1", [0, 1], role="tp", how="description"),
    )
    assert merged(groups)["role"].to_list() == [None]


def test_unknown_ranks_are_told_by_name_and_size():
    groups = frame(
        group("1", None, 64), group("1", None, 64), group("1", None, 32), group("1", [0, 1])
    )
    assert merged(groups).select("name", "ranks", "size").rows() == [
        ("1", None, 64),
        ("1", None, 32),
        ("1", [0, 1], 2),
    ]


def test_the_order_does_not_depend_on_who_speaks_first():
    groups = frame(
        group("10", [0, 1]),
        group("2", [0, 1], role="tp", how="description", description="a"),
        group("2", [0, 1], role="tp", how="description", description="b"),
        group("3", [10, 11], backend="x"),
        group("3", [10, 11], backend="y"),
        group("4", [2, 3]),
        group("0", [0, 1, 2, 3]),
        group("5", None, 2),
        group(None, None, 2),
    )
    once = merged(groups)
    for seed in range(5):
        assert_frame_equal(merged(groups.sample(fraction=1, shuffle=True, seed=seed)), once)
    assert once["name"].to_list() == ["0", "2", "10", "4", "3", "5", None]
    assert_frame_equal(merged(once), once)


@pytest.mark.parametrize("rows", [[], [group("0", [])], [group("0", [5])]])
def test_few_or_empty_groups(rows):
    found = merged(frame(*rows))
    assert found.height == len(rows)
    assert dict(found.schema) == GROUP_SCHEMA


def test_known_ranks_tell_the_size():
    groups = frame(("1", [0, 1], None, None, None, None, None), group("1", [0, 1]))
    assert merged(groups)["size"].to_list() == [2]


def test_groups_become_a_table():
    found = tabled([Group("1", (4, 5), 2, role="tp"), Group(size=64)])
    assert dict(found.schema) == GROUP_SCHEMA
    assert found["ranks"].to_list() == [[4, 5], None]
    assert tabled([]).schema == found.schema
