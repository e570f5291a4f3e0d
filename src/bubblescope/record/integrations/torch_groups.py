"""The communication groups of a job with PyTorch, and where this rank stands in them.

What is known of them comes from several sides, the surest first: a framework says which of its groups
is for what; the dimensions of a `DeviceMesh` have names; a process group may have a description
(`group_desc`: of a mesh's dimension "mesh_" and its name, of Megatron's groups words of its own); and
what uses a group says its role: a pipeline's stage, `DistributedDataParallel`, FSDP. Read in PyTorch
2.13.0.
"""

from __future__ import annotations

import functools
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bubblescope.names.group_roles import role_of_group
from bubblescope.record.coordinates import coordinates, replica_of
from bubblescope.record.integrations.torch_common import compiling
from bubblescope.recording.columns import Membership, runs_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

    from bubblescope.record.session import Session

FRAMEWORK: Final = "framework"
MESH: Final = "mesh"
DESCRIPTION: Final = "description"
USE: Final = "use"
_SUREST_FIRST: Final = (FRAMEWORK, MESH, USE)
"""Who tells of groups besides their own descriptions."""
_NO_DESCRIPTION: Final = ("", "undefined")
_WORLD: Final = "world"


def device_mesh(module: ModuleType, session: Session) -> None:
    """Learn from every mesh that is made, also by slicing, flattening and unflattening another."""
    groups = groups_of(session)
    mesh = module.DeviceMesh
    theirs = mesh.__init__

    @functools.wraps(theirs)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        theirs(self, *args, **kwargs)
        if session.recorder is None and not compiling():
            groups.see(self)

    mesh.__init__ = init


class Groups:
    """What is known of this process's groups, until the first step begins.

    Args:
        session: Asks for it then, and is told at once where the rank stands in its pipeline.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._told: dict[Membership, None] = {}
        session.ask(self.facts)

    def tell(
        self,
        role: str | None,
        ranks: Sequence[int],
        how: str,
        name: str | None = None,
        description: str | None = None,
    ) -> None:
        """Tell of a group.

        Args:
            role: In the vocabulary of `names.group_roles`; None if unknown.
            ranks: Global ranks in the group's own order.
            how: Who says so.
            name: What PyTorch calls the process group; None if not known.
            description: What it is called otherwise.
        """
        self._told[Membership(runs_of(ranks), role, name, how, description)] = None

    def used(self, group: Any, role: str, how: str = USE) -> None:
        """Tell that a process group is used in a role; None is that of all ranks."""
        with suppress(Exception):  # whatever a group lacks is not known of it
            distributed = sys.modules["torch.distributed"]
            group = distributed.group.WORLD if group is None else group
            self.tell(role, _ranks(group), how, name=str(group.group_name))

    def used_in(self, model: Any) -> None:
        """Tell of the groups over which a model's replicas or shards are spread."""
        with suppress(Exception):
            for part in model.modules():
                for group, role in _spread(part):
                    self.used(group, role)

    def see(self, mesh: Any) -> None:
        """Learn the groups along the dimensions of a `DeviceMesh` that this rank is part of."""
        with suppress(Exception):
            names, place = mesh.mesh_dim_names, mesh.get_coordinate()
            if names is None or place is None:
                return
            for dimension, name in enumerate(names):
                line = (*place[:dimension], slice(None), *place[dimension + 1 :])
                ranks = mesh.mesh[line].tolist()
                role = role_of_group(f"mesh_{name}")
                self.tell(role, ranks, MESH, description=f"mesh_{name}")
                if role == "pp":
                    self._session.pipeline = place[dimension], len(ranks)

    def coordinates(self) -> dict[str, int]:
        """Return this rank's coordinates, as `record.coordinates` has them."""
        found: dict[str, int] = self._known()[0]
        return found

    def replica(self, rank: int) -> int:
        """Return which replica a rank is part of, if no group of replicas is known."""
        return replica_of(rank, self._known()[1])

    def facts(self) -> dict[str, Any]:
        """Return what there is to tell of this rank; nothing where PyTorch has no groups."""
        found, groups = self._known()
        return {**found, "groups": [one for one in groups if len(one.ranks) > 1]}

    def _known(self) -> tuple[dict[str, int], list[Membership]]:
        """Return this rank's coordinates and its groups, each with what is surest of it."""
        with suppress(Exception):  # the rank is recorded without
            if (rank := _rank()) is not None:
                groups = list(_described())
                for told in sorted(self._told, key=lambda one: _SUREST_FIRST.index(one.how or USE)):
                    _add(groups, told)
                groups = [one for one in groups if rank in one.ranks]
                return coordinates(rank, groups), groups
        return {}, []


def groups_of(session: Session) -> Groups:
    """Return the groups of a session: what all hooks know of them together."""
    return session.shared(Groups)


def _add(rows: list[Membership], told: Membership) -> None:
    """Add what is told of a group to those that are known."""
    same = [
        at for at, row in enumerate(rows) if row.runs == told.runs and told.name in (None, row.name)
    ]
    if any(rows[at].role == told.role for at in same) or (same and told.role is None):
        return
    nameless = next((at for at in same if rows[at].role is None), None)
    if nameless is not None:
        row = rows[nameless]
        rows[nameless] = msgspec.structs.replace(
            row, role=told.role, how=told.how, description=row.description or told.description
        )
    elif told.how == USE and any(rows[at].role != _WORLD for at in same):
        return  # what it is called says more than that it is used for data
    else:
        # The group of all ranks serves as another's, or a rank's only one is its place in several.
        rows.append(msgspec.structs.replace(told, name=None))


def _described() -> Iterator[Membership]:
    """Yield the process groups that this process is part of, and what their descriptions say."""
    distributed = sys.modules["torch.distributed"]
    for group in list(distributed.distributed_c10d._world.pg_map):  # noqa: SLF001  no other list
        with suppress(Exception):
            description = str(getattr(group, "group_desc", ""))
            description = "" if description in _NO_DESCRIPTION else description
            role = role_of_group(description) if description else None
            yield Membership(
                runs_of(_ranks(group)),
                role,
                str(group.group_name),
                DESCRIPTION if role else None,
                description or None,
                str(distributed.get_backend(group)),
            )


def _spread(part: Any) -> Iterator[tuple[Any, str]]:
    """Yield the groups over which a module's replicas or shards are spread, and their roles."""
    kinds = {kind.__name__ for kind in type(part).__mro__}
    if "DistributedDataParallel" in kinds:
        yield part.process_group, "dp"
    elif "FullyShardedDataParallel" in kinds:
        whole = getattr(part.sharding_strategy, "name", "") == "NO_SHARD"
        yield part.process_group, "dp" if whole else "fsdp"
        if (outer := getattr(part, "_inter_node_pg", None)) is not None:
            yield outer, "dp"
    elif "FSDPModule" in kinds:
        state = part._get_fsdp_state()  # noqa: SLF001
        several = getattr(state, "_fsdp_param_groups", None)
        one = getattr(state, "_fsdp_param_group", None)
        for parameters in several or ([] if one is None else [one]):
            info = parameters.mesh_info
            for name, role in (("shard", "fsdp"), ("replicate", "dp")):
                if (group := getattr(info, f"{name}_process_group", None)) is not None:
                    yield group, role


def _ranks(group: Any) -> list[int]:
    """Return a process group's global ranks, in its own order."""
    ranks: list[int] = sys.modules["torch.distributed"].get_process_group_ranks(group)
    return ranks


def _rank() -> int | None:
    """Return this process's global rank; None if it is in no group."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank())
