"""Process groups of a PyTorch job, as one rank's trace tells them.

They stand in two places. The header's `distributedInfo.pg_config` lists the groups of this rank alone
(torch/profiler/profiler.py). And communication kernels carry what their `record_param_comms` operator
knew (pytorch/kineto, `libkineto/src/output_json.cpp`), where lists are cut after 30 elements:
"[0, 1, 2, ...]".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bubblescope.model.bounds import RANKS
from bubblescope.model.groups import Group, merged, tabled
from bubblescope.names.group_roles import role_of_group

if TYPE_CHECKING:
    import polars as pl

    from bubblescope.sources.kineto.call_arguments import Said

_UNSAID: Final = ("", "undefined")
"""What PyTorch calls a group that it was given no description of."""
_CUT: Final = "..."
_LARGEST: Final = RANKS
"""More ranks than this no group has, whatever is declared."""


def configured_groups(pg_config: Any, world_size: int | None = None) -> dict[str, Group]:
    """Return the groups of a trace's header by name, in its order.

    A group's name is unique within one rank's trace, and not beyond it.

    Args:
        pg_config: The decoded value of `distributedInfo.pg_config`: a list of dictionaries with
            `pg_name`; `pg_desc` (2024 and later); `backend_config`; `pg_size` or `group_size`; and
            `ranks`, a list, the text of one, perhaps cut, or an empty list, which stands for all
            ranks. Anything else is passed over.
        world_size: `distributedInfo.world_size`.
    """
    groups: dict[str, Group] = {}
    for one in pg_config if isinstance(pg_config, list) else []:
        if not isinstance(one, Mapping) or one.get("pg_name") is None:
            continue
        size = _number(one.get("pg_size", one.get("group_size")))
        members, cut = _listed(one.get("ranks"))
        if members == () and not cut and world_size and size in (None, world_size):
            members = tuple(range(world_size))
        name = str(one["pg_name"])
        groups.setdefault(
            name,
            _group(
                name,
                _text(one.get("pg_desc")),
                None if cut else members,
                size,
                _text(one.get("backend_config")),
            ),
        )
    return groups


def groups_of(pg_config: Any, world_size: int | None = None) -> pl.DataFrame:
    """Return the groups of a trace's header as a frame with the columns of `GROUP_SCHEMA`.

    Groups of one rank are kept. Where ranks are not all told, they are null; see `configured_groups`.
    """
    return tabled(configured_groups(pg_config, world_size).values())


def group_of_call(
    name: Any,
    description: Any,
    ranks: Any,
    size: Any,
    *,
    start: Any = None,
    stride: Any = None,
    configured: Mapping[str, Group] | None = None,
) -> Group | None:
    """Return the group that a communication kernel or operator says it belongs to.

    Call it once for each distinct combination of arguments: what an event does not have is None.

    Args:
        name: "Process Group Name".
        description: "Process Group Description".
        ranks: "Process Group Ranks", the text of a list, cut after 30 ranks.
        size: "Group size".
        start: "Global rank start"; only operators have it.
        stride: "Global rank stride"; only operators have it, and only of evenly spaced ranks.
        configured: Groups of this trace's header by name, from which ranks, description and backend
            are filled in.

    Returns:
        The group; None if the event says nothing of one.
    """
    title = str(name) if name not in (None, "") else None
    count = _number(size)
    members, cut = _listed(ranks)
    if cut or not members:
        spaced = _spaced(_number(start), _number(stride), count)
        # What is left of a cut list must agree.
        members = spaced if spaced and spaced[: len(members or ())] == (members or ()) else None
    said = _text(description)
    if title is None and said is None and members is None and count is None:
        return None
    group = _group(title, said, members, count)
    known = configured.get(title) if configured and title else None
    if known is None or (None not in (known.size, count) and known.size != count):
        return group
    if None not in (known.ranks, group.ranks) and known.ranks != group.ranks:
        return group
    return _group(
        title,
        said or known.description,
        group.ranks or known.ranks,
        count or known.size,
        known.backend,
    )


class RankGroups:
    """The groups that one rank's trace tells.

    Args:
        distributed: The header's `distributedInfo`; what is in it may be of any type.

    Attributes:
        world: Number of ranks of the job; None if unknown.
    """

    def __init__(self, distributed: Mapping[str, Any]) -> None:
        self.world = _number(distributed.get("world_size")) or None
        self._rank = _number(distributed.get("rank"))
        self._configured = configured_groups(distributed.get("pg_config"), self.world)
        self._known: dict[Any, Group | None] = {}
        self._unnamed: dict[int | None, int] = {}

    def of(self, said: Said) -> Group | None:
        """Return the group that an event is of; None if it says nothing of one.

        Where only an address or its ranks tell a group from others, it is named by its size and
        counted in the order of these calls: "8 ranks", "8 ranks (2)". Ranks that do the same thus give
        it the same name.
        """
        key = said._replace(operation=None, peer=None, local_peer=None)
        if key not in self._known:
            self._known[key] = self._named(key)
        return self._known[key]

    def sole_rank(self, local: int) -> int | None:
        """Return the rank that is the `local`-th of a group of which nothing else is known.

        A transfer's group is the pipeline's if the header describes one; of others, all must agree.
        """
        known = [one for one in self._configured.values() if one.ranks and len(one.ranks) > 1]
        pipelines = [one for one in known if one.role == "pp"]
        ends = {one.ranks[local] for one in pipelines or known if local < len(one.ranks or ())}  # type: ignore[index]
        return ends.pop() if len(ends) == 1 else None

    def _named(self, said: Said) -> Group | None:
        group = group_of_call(
            said.name,
            said.description,
            said.ranks,
            said.size,
            start=said.start,
            stride=said.stride,
            configured=self._configured,
        )
        if group is None:
            return None
        if group.ranks is None and group.size is not None:
            if group.size == self.world:
                group = msgspec.structs.replace(group, ranks=tuple(range(group.size)))
            elif group.size == 1 and self._rank is not None:
                group = msgspec.structs.replace(group, ranks=(self._rank,))
        if group.name is not None or (said.pointer is None and said.ranks is None):
            return group if group.name or group.description else None
        same = [one for one in self._configured.values() if one.ranks == group.ranks]
        if said.pointer is None and len(same) == 1:
            return same[0]
        count = self._unnamed[group.size] = self._unnamed.get(group.size, 0) + 1
        name = f"{group.size} rank{'s' * (group.size != 1)}{f' ({count})' * (count > 1)}"
        return msgspec.structs.replace(group, name=name)

    def table(self, roles: Mapping[Group, Group] | None = None) -> pl.DataFrame:
        """Return the groups of the header, and of the calls, with the columns of `GROUP_SCHEMA`.

        Args:
            roles: What to take for groups of which more is known.
        """
        called = [group for group in self._known.values() if group is not None]
        every = dict.fromkeys([*self._configured.values(), *called])
        return merged(tabled((roles or {}).get(group, group) for group in every))


def _group(
    name: str | None,
    description: str | None,
    ranks: tuple[int, ...] | None,
    size: int | None,
    backend: str | None = None,
) -> Group:
    if not ranks or (size is not None and size != len(ranks)) or len(set(ranks)) != len(ranks):
        ranks = None
    role = role_of_group(description) if description else None
    return Group(
        name=name,
        ranks=ranks,
        size=len(ranks) if ranks else size,
        role=role,
        how="description" if role else None,
        description=description,
        backend=backend,
    )


def _spaced(start: int | None, stride: int | None, size: int | None) -> tuple[int, ...] | None:
    """Return evenly spaced ranks; PyTorch gives no stride, or 0, to those that are not."""
    if start is None or not size or (size > 1 and not stride):
        return None
    return tuple(start + (stride or 0) * index for index in range(size))


def _listed(ranks: Any) -> tuple[tuple[int, ...] | None, bool]:
    """Return the ranks of a list or of its text, and whether more were cut off; None if no such."""
    if isinstance(ranks, str):
        ranks = [
            part.strip() for part in ranks.strip().removeprefix("[").removesuffix("]").split(",")
        ]
        ranks = [] if ranks == [""] else ranks
    if not isinstance(ranks, (list, tuple)):
        return None, False
    cut = _CUT in ranks
    found = [_number(one) for one in (ranks[: ranks.index(_CUT)] if cut else ranks)]
    members = tuple(one for one in found if one is not None)
    return (members if len(members) == len(found) else None), cut


def _number(value: Any) -> int | None:
    """Return a count or a rank: a whole number that is not negative, or its text."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:19])
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST
    return value if whole else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value not in _UNSAID else None
