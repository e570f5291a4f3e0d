from __future__ import annotations

import gzip
import json

import pytest

from bubblescope.model.groups import GROUP_SCHEMA, Group, merged
from bubblescope.sources.kineto.process_groups import configured_groups, group_of_call, groups_of
from places import SHARED

CUT = f"[{', '.join(map(str, range(30)))}, ...]"


def entry(name, ranks, size=None, **more):
    return {"pg_name": name, "pg_size": size or len(ranks), "ranks": ranks} | more


def test_the_header_of_today():
    config = [
        entry("0", [0, 1, 2, 3], pg_desc="default_pg", backend_config="cuda:nccl"),
        entry("1", [2, 3], pg_desc="mesh_tp", backend_config="cpu:gloo,cuda:nccl"),
        entry("2", [3], pg_desc="undefined", backend_config="cuda:nccl"),
    ]
    found = groups_of(config, 4)
    assert dict(found.schema) == GROUP_SCHEMA
    assert found.rows() == [
        ("0", [0, 1, 2, 3], 4, "world", "description", "default_pg", "cuda:nccl"),
        ("1", [2, 3], 2, "tp", "description", "mesh_tp", "cpu:gloo,cuda:nccl"),
        ("2", [3], 1, None, None, None, "cuda:nccl"),
    ]


def test_headers_of_2023():
    config = [
        {"pg_name": "0", "uid": 0, "backend_config": "cuda:nccl", "pg_size": 2, "ranks": [0, 1]},
        {
            "pg_name": "1",
            "backend_config": "cuda:nccl",
            "ranks": [],
            "group_size": 4,
            "group_count": 2,
        },
        {"pg_name": "2", "ranks": [0, 2], "group_size": 2},
        {"pg_name": "3", "ranks": []},
    ]
    found = groups_of(config, 4)
    assert found["ranks"].to_list() == [[0, 1], [0, 1, 2, 3], [0, 2], [0, 1, 2, 3]]
    assert found["role"].to_list() == [None] * 4
    assert groups_of(config)["ranks"].to_list() == [[0, 1], None, [0, 2], None]
    assert groups_of(config)["size"].to_list() == [2, 4, 2, None]


def test_a_header_written_by_kineto_alone_has_texts():
    [group] = configured_groups([entry("0", "[4, 6]", 2, pg_desc="mesh_dp")]).values()
    assert (group.ranks, group.role) == ((4, 6), "dp")
    [group] = configured_groups([entry("0", CUT, 64)]).values()
    assert (group.ranks, group.size) == (None, 64)


@pytest.mark.parametrize("ranks", [[0, 1, "..."], [0, 1], [0, 0, 1], ["a", 1, 2], None, [0, 1, -1]])
def test_ranks_that_cannot_be_trusted_are_unknown(ranks):
    [group] = configured_groups([entry("0", ranks, 3)], 8).values()
    assert (group.ranks, group.size) == (None, 3)


@pytest.mark.parametrize("config", [None, {}, "x", [None, 3, {}], [{"pg_name": None}]])
def test_what_is_no_header(config):
    assert configured_groups(config, 4) == {}
    assert groups_of(config, 4).is_empty()


def test_a_call_that_tells_all():
    group = group_of_call("3", "EXPERT_MODEL_PARALLEL_GROUP", "[0, 1, 2, 3]", 4)
    assert group == Group(
        "3", (0, 1, 2, 3), 4, "ep", "description", "EXPERT_MODEL_PARALLEL_GROUP", None
    )


def test_a_cut_list_is_completed_only_from_what_is_sure():
    assert group_of_call("1", "undefined", CUT, 64).ranks is None
    assert group_of_call("1", "undefined", CUT, 64).size == 64
    assert group_of_call("1", None, CUT, 64, start=0, stride=1).ranks == tuple(range(64))
    assert group_of_call("1", None, CUT, 64, start=0, stride=2).ranks is None
    assert group_of_call("1", None, CUT, 64, start=0).ranks is None
    assert group_of_call("1", None, CUT, None, start=0, stride=1).ranks is None
    assert group_of_call("1", None, "[]", 3, start=8, stride=8).ranks == (8, 16, 24)
    assert group_of_call("1", None, None, 1, start=5).ranks == (5,)
    assert group_of_call("1", None, "[0, x]", 2).ranks is None


def test_a_call_is_completed_from_the_header():
    ranks = list(range(0, 128, 2))
    known = configured_groups([entry("1", ranks, pg_desc="mesh_dp", backend_config="cuda:nccl")])
    group = group_of_call("1", None, "[0, 2, ...]", 64, configured=known)
    assert group.ranks == tuple(ranks)
    assert (group.role, group.backend) == ("dp", "cuda:nccl")
    # Another size or other ranks: not that group.
    assert group_of_call("1", None, "[0, 2, ...]", 32, configured=known).ranks is None
    other = group_of_call("1", None, "[0, 1]", 2, configured=known)
    assert (other.ranks, other.role) == ((0, 1), None)


def test_calls_that_tell_little():
    assert group_of_call(None, None, None, None) is None
    assert group_of_call("", "", "", None) is None
    assert group_of_call(None, None, None, 8) == Group(size=8)
    assert group_of_call("7", None, "[0, 1]", 3) == Group("7", size=3)
    assert group_of_call("7", None, [1, 2], "2") == Group("7", (1, 2), 2)


def test_a_real_header():
    path = SHARED / "communication" / "tp8_symm" / "eager_trace.json.gz"
    if not path.exists():
        pytest.skip("the shared traces are not here")
    info = json.loads(gzip.decompress(path.read_bytes()))["distributedInfo"]
    found = groups_of(info["pg_config"], info["world_size"])
    assert found.height == 15
    assert found["size"].to_list().count(1) == 8
    whole = found.filter(size=8)
    assert whole["ranks"].unique().to_list() == [list(range(8))]
    assert whole.height == 7
    assert whole["role"].to_list() == ["world", *[None] * 6]
    assert merged(found).height == 15
