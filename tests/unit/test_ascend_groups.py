from __future__ import annotations

import json

import pytest

from ascend_maker import Profile
from bubblescope.model.groups import GROUP_SCHEMA
from bubblescope.model.progress import SILENT
from bubblescope.sources.ascend.parallel_layout import Layout
from bubblescope.sources.ascend.profile import read_profile


def groups(tmp_path, *infos):
    profiles = []
    for rank, info in enumerate(infos):
        text = info if isinstance(info, str) else json.dumps(info)
        made = Profile(rank=rank, metadata={"parallel_group_info": text})
        profiles.append(read_profile(made.write(tmp_path / str(rank)), SILENT))
    return Layout(profiles, range(len(infos))).groups()


def entry(name, ranks, rank=0):
    return {"group_name": name, "group_rank": rank, "global_ranks": ranks}


def test_declared_groups_of_all_ranks(tmp_path):
    world = {"world": entry("default_group", [0, 1, 2, 3])}
    found = groups(
        tmp_path,
        world | {"a": entry("tp", [0, 1]), "b": entry("dp_cp", [0, 2])},
        world | {"a": entry("tp", [0, 1], 1), "c": entry("mp", [1, 3]), "d": entry("", [1])},
    )
    assert dict(found.schema) == GROUP_SCHEMA
    assert found.select("name", "ranks", "size", "role", "description").rows() == [
        ("world", [0, 1, 2, 3], 4, "world", "default_group"),
        ("a", [0, 1], 2, "tp", "tp"),
        ("b", [0, 2], 2, "dp_cp", "dp_cp"),
        ("c", [1, 3], 2, "tp_pp", "mp"),
        ("d", [1], 1, None, None),
    ]
    assert set(found["how"]) == {"parallel_group_info"}
    assert set(found["backend"]) == {"hccl"}


@pytest.mark.parametrize(
    "info", ["", "[1]", "{", {"a": 3}, {"a": {"group_name": 7, "global_ranks": ["x", 1 << 40]}}]
)
def test_nonsense_is_no_group_or_one_without_ranks(tmp_path, info):
    found = groups(tmp_path, info)
    assert found["ranks"].drop_nulls().is_empty()
    assert found["role"].drop_nulls().is_empty()


def test_profiles_without_groups(tmp_path):
    assert groups(tmp_path, {}, {}).is_empty()
