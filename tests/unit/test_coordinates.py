"""Where a rank stands, told by the groups that it is part of."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubblescope.names.group_roles import role_of_group
from bubblescope.record.coordinates import coordinates, replica_of
from bubblescope.recording.columns import Membership, runs_of
from full import examples

DIMENSIONS = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Those of a mesh; any order is possible but that replicas come before shards."""


def group(ranks, role=None, description=None):
    return Membership(
        runs_of(tuple(ranks)), role or role_of_group(description or ""), None, None, description
    )


def along(grid, place, axes, description):
    """Return the group of a rank along some axes of a grid, flattened."""
    index = tuple(slice(None) if axis in axes else at for axis, at in enumerate(place))
    return group(grid[index].ravel().tolist(), description=f"mesh_{description}")


def grids():
    sizes = st.tuples(*[st.integers(1, 3)] * len(DIMENSIONS))
    orders = st.permutations(DIMENSIONS).filter(
        lambda names: names.index("dp_replicate") < names.index("dp_shard")
    )
    return st.tuples(orders, sizes)


@settings(max_examples=examples(60), deadline=None)
@given(grids(), st.sampled_from(["dimensions", "shards with cp", "flattened", "batch"]))
def test_every_rank_of_a_mesh_knows_its_place(shape, way):
    names, sizes = shape
    axis = {name: at for at, name in enumerate(names)}
    grid = np.arange(np.prod(sizes)).reshape(sizes)
    shards = axis["dp_shard"]
    for place in product(*map(range, sizes)):
        rank = int(grid[place])
        groups = [along(grid, place, [axis[name]], name) for name in names if name != "dp_shard"]
        if way == "shards with cp":
            groups.append(along(grid, place, [shards, axis["cp"]], "dp_shard_cp"))
        else:
            groups.append(along(grid, place, [shards], "dp_shard"))
        if way in ("flattened", "batch"):
            name = "dp" if way == "flattened" else way
            groups.append(along(grid, place, [axis["dp_replicate"], shards], name))
        at = dict(zip(names, place, strict=True))
        replica = at["dp_replicate"] * sizes[shards] + at["dp_shard"]
        assert coordinates(rank, groups) == {
            "pp": at["pp"],
            "dp": replica,
            "cp": at["cp"],
            "tp": at["tp"],
        }


@settings(max_examples=examples(60), deadline=None)
@given(grids())
def test_ranks_that_share_a_replica_are_none_where_no_group_of_replicas_is_known(shape):
    """As where a mesh has the dimensions of a model only, and the job averages gradients itself."""
    names, sizes = shape
    within = [at for at, name in enumerate(names) if not name.startswith("dp")]
    grid = np.arange(np.prod(sizes)).reshape(sizes)
    replicas = np.moveaxis(grid, within, range(len(within))).reshape(
        *(sizes[at] for at in within), -1
    )
    for place in product(*map(range, sizes)):
        groups = [along(grid, place, [at], names[at]) for at in within]
        mine = replicas[tuple(place[at] for at in within)].tolist()
        assert replica_of(int(grid[place]), groups) == mine.index(grid[place])


def test_experts_have_a_grid_of_their_own():
    # torchtitan's: 2 replicas x 2 shards x 2 ranks of experts, each of which 2 ranks share.
    grid = np.arange(16).reshape(2, 2, 2, 2)
    for place in np.ndindex(grid.shape):
        names = ("dp_replicate", "efsdp", "ep", "etp")
        groups = [along(grid, place, [axis], name) for axis, name in enumerate(names)]
        found = coordinates(int(grid[place]), groups)
        assert (found["edp"], found["ep"], found["etp"]) == (place[0] * 2 + place[1], *place[2:])


def test_replicas_of_experts_that_are_no_shards():
    groups = [group([1, 5, 9], "edp"), group([0, 1], "ep")]
    assert coordinates(5, [groups[0]]) == {"edp": 1}
    assert coordinates(1, groups) == {"edp": 0, "ep": 1}


def test_what_contradicts_is_not_known():
    assert coordinates(1, [group([0, 1], "tp"), group([1, 2], "tp")]) == {}
    assert coordinates(1, [group([0, 1], "tp"), group([3, 2, 1], "tp")]) == {"tp": 2}


def test_shards_that_are_no_grid_with_context_parallel_ranks():
    for cp in ([0, 3], [0, 1, 3]):
        groups = [group([0, 1, 2, 3], "fsdp"), group(cp, "cp"), group([0, 4], "dp")]
        assert coordinates(0, groups) == {"cp": 0}


def test_groups_of_other_roles_and_of_none_tell_nothing():
    assert coordinates(0, [group([0, 1], "world"), group([0, 1]), group([0, 1], "dp_cp")]) == {}


@pytest.mark.parametrize(
    ("ranks", "runs"),
    [
        ((), ()),
        ((3,), ((3, 1, 1),)),
        (tuple(range(0, 4096, 8)), ((0, 8, 512),)),
        ((0, 1, 4, 5), ((0, 1, 2), (4, 1, 2))),
        ((3, 2, 1), ((3, -1, 3),)),
    ],
)
def test_ranks_are_written_as_stretches(ranks, runs):
    assert runs_of(ranks) == runs
    assert Membership(runs).ranks == ranks


@given(st.lists(st.integers(0, 40), unique=True))
def test_stretches_are_the_ranks(ranks):
    assert Membership(runs_of(ranks)).ranks == tuple(ranks)
