"""What the communication kernels of a PyTorch trace carry out, in which group, and what for.

PyTorch puts a `record_param_comms` operator around every call to NCCL (ProcessGroupNCCL.cpp). What is
known of the call stands, since 2024, in its arguments and, copied by Kineto, in those of the kernels
that it launched; before that, in its inputs at most. Sends and receives that are batched are launched
together after their operators have ended, by a kernel without arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.model.device_time import NONE, lookup
from bubblescope.names.communication_kernels import communication_kernel
from bubblescope.sources.capture import Capture, Comm
from bubblescope.sources.kineto.call_arguments import Said, said
from bubblescope.sources.kineto.process_groups import RankGroups
from bubblescope.sources.launch_annotations import Annotations, Launched, enclosing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bubblescope.model.arrays import Ints
    from bubblescope.model.groups import Group

_OPERATOR: Final = "record_param_comms"
_BETWEEN_TWO: Final = ("send", "recv")
_WORLD: Final = "world"
"""The role of a group of all ranks, which does not say what an operation is for."""
_CALLS: Final = {"thread": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "said": pl.Int64}


class CollectiveCalls:
    """Takes communication kernels and the operators around them, and keeps what they say."""

    def __init__(self) -> None:
        self._sorts: dict[tuple[str, Said], int] = {}
        self._said: dict[Said, int] = {}
        self._operators = [pl.DataFrame(schema=_CALLS)]

    def take_kernel(self, event: Any) -> int:
        """Return the number of the sort of a kernel: its index in `comms`."""
        return self._sorts.setdefault((event.name, said(event.args)), len(self._sorts))

    def take_operators(
        self, names: Sequence[str], events: Sequence[Any], start: Ints, end: Ints, thread: Ints
    ) -> None:
        """Take those of a batch of operators that are put around calls."""
        rows = [row for row, name in enumerate(names) if name == _OPERATOR]
        if rows:
            told = [said(events[row].args) for row in rows]
            numbers = [self._said.setdefault(one, len(self._said)) for one in told]
            columns = (thread[rows], start[rows], end[rows], np.array(numbers, np.int64))
            self._operators.append(pl.DataFrame(dict(zip(_CALLS, columns, strict=True))))

    def comms(self) -> tuple[Comm, ...]:
        """Return the sorts of kernels, as far as they say themselves what they are."""
        return tuple(Comm(name, None, one.peer, one.operation) for name, one in self._sorts)

    def attributed(
        self, capture: Capture, transfers: pl.DataFrame, distributed: Mapping[str, Any]
    ) -> tuple[Capture, pl.DataFrame]:
        """Tell operation, peer, group and role of each communication kernel by all that is known.

        Args:
            capture: The trace; its kernels are of the sorts that `comms` returns.
            transfers: Frame with thread, start_ns, end_ns and receives (or else sends) of operators
                between two ranks.
            distributed: The header's `distributedInfo`.

        Returns:
            The trace, with finer sorts of kernels; the groups that the header or kernels tell, with the
            columns of `GROUP_SCHEMA`.
        """
        groups = RankGroups(distributed)
        comm = capture.work["comm"].fill_null(NONE).to_numpy()
        rows = np.flatnonzero(comm >= 0)
        if not len(rows):
            return capture, groups.table()
        launched = _launched(capture, capture.work["correlation"].to_numpy()[rows])
        # By launch, for groups without a name are counted as they come.
        order = np.argsort(launched.at_ns, kind="stable")
        rows, launched = rows[order], Launched(*(column[order] for column in launched))
        calls, around = self._around(comm[rows], launched, transfers)
        names = pl.DataFrame(
            {"name": range(len(capture.host_names)), "text": capture.host_names},
            schema={"name": capture.host.schema["name"], "text": pl.String},
        )
        annotations = Annotations(capture.host, names)
        keys = np.stack([comm[rows], around, *annotations.around(launched)])
        distinct, first, number = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        kernels: dict[int, _Kernel] = {}
        sorts, told = list(self._sorts), list(self._said)
        for index in np.argsort(first).tolist():
            sort, call, operation, role = distinct[:, index].tolist()
            name, own = sorts[sort]
            of = [told[one] for one in calls[call]] if call >= 0 else []
            known = _agreed(own, of, groups)
            does = known.operation or annotations.operation(operation)
            family = communication_kernel(name)
            purpose = annotations.role(role, does or (family.operation if family else None))
            kernels[index] = _Kernel(name, does, known.peer, known.group, purpose)
        roles = _roles(kernels.values(), groups.world)
        found: dict[Comm, int] = {}
        codes = [
            found.setdefault(kernels[index].comm(roles), len(found))
            for index in range(len(kernels))
        ]
        comm[rows] = np.array(codes, comm.dtype)[number.reshape(-1)]
        work = capture.work.with_columns(comm=pl.Series(comm).replace(NONE, None))
        changed = msgspec.structs.replace(capture, work=work, comms=tuple(found))
        return changed, groups.table(roles)

    def _around(
        self, sorts: Ints, launched: Launched, transfers: pl.DataFrame
    ) -> tuple[list[tuple[int, ...]], Ints]:
        """Find the calls that kernels carry out which do not say their group themselves.

        Returns:
            Sets of calls, as indices of `_said`; for each kernel its set, or `NONE`.
        """
        operators = self._with_transfers(pl.concat(self._operators), transfers)
        row = enclosing(launched, operators)
        number = np.append(operators["said"].to_numpy(), NONE)[row]
        sets = {(one,): one for one in range(len(self._said))}
        mute = np.array([not one.tells_group for _, one in self._sorts])[sorts]
        found = np.where(mute, number, NONE)
        batches = mute & (row < 0) & np.array([_may_send(name) for name, _ in self._sorts])[sorts]
        if not batches.any():
            return list(sets), found
        between_two = np.array([one.operation in _BETWEEN_TWO for one in self._said])
        free = np.append(between_two, [False])[operators["said"].to_numpy()]
        free[row[row >= 0]] = False
        launches = pl.DataFrame(
            {"thread": launched.thread, "at": launched.at_ns, "kernel": np.arange(len(row))}
        )
        # A batch carries out what its thread called since the launch before it.
        together = (
            operators.filter(pl.Series(free))
            .select("thread", "said", at="end_ns")
            .sort("at")
            .join_asof(launches, on="at", by="thread", strategy="forward", check_sortedness=False)
            .drop_nulls("kernel")
            .group_by("kernel")
            .agg(pl.col("said").unique().sort())
        )
        for kernel, several in together.iter_rows():
            if batches[kernel]:
                found[kernel] = sets.setdefault(tuple(several), len(sets))
        return list(sets), found

    def _with_transfers(self, operators: pl.DataFrame, transfers: pl.DataFrame) -> pl.DataFrame:
        """Return the operators by start; those that do not say it send or receive as they lie."""
        operators, transfers = (
            spans.sort("start_ns", "end_ns", descending=[False, True])
            for spans in (operators, transfers)
        )
        begun = Launched(operators["thread"].to_numpy(), operators["start_ns"].to_numpy())
        inside = enclosing(begun, transfers)
        numbers, told = operators["said"].to_numpy().copy(), list(self._said)
        for row in np.flatnonzero(inside >= 0).tolist():
            one = told[numbers[row]]
            if one.operation is None:
                way = _BETWEEN_TWO[transfers["receives"][int(inside[row])]]
                one = one._replace(operation=way)
                numbers[row] = self._said.setdefault(one, len(self._said))
        return operators.with_columns(said=pl.Series(numbers, dtype=pl.Int64))


class _Known(NamedTuple):
    """What is known of a kernel by its arguments and by the calls that it carries out."""

    operation: str | None
    peer: int | None
    group: Group | None


class _Kernel(NamedTuple):
    """One sort of communication kernel, with the role that the host's ranges give it."""

    name: str
    operation: str | None
    peer: int | None
    group: Group | None
    purpose: str | None

    def comm(self, roles: Mapping[Group, Group]) -> Comm:
        """Return the sort, with the role of its group, if that tells more than its own."""
        group = self.group and roles.get(self.group, self.group)
        of_group = group.role if group else None
        role = (self.purpose or of_group) if of_group in {None, _WORLD} else of_group
        return Comm(self.name, None, self.peer, self.operation, group.name if group else None, role)


def _launched(capture: Capture, correlation: Ints) -> Launched:
    call = lookup(capture.launches["correlation"].to_numpy(), correlation)
    return Launched(
        *(
            np.append(capture.launches[column].to_numpy(), NONE)[call]
            for column in ("thread", "start_ns")
        )
    )


def _may_send(name: str) -> bool:
    """Say whether a kernel may carry out sends and receives: RCCL's does not say what it does."""
    family = communication_kernel(name)
    return family is not None and "ccl" in family.library and family.operation in {"sendrecv", None}


def _agreed(own: Said, calls: list[Said], groups: RankGroups) -> _Known:
    """Return what a kernel and the calls that it carries out agree on."""
    every = [own] if own.tells_group or not calls else calls
    found = [groups.of(one) for one in every]
    operations = {one.operation for one in every}
    peers = {_peer(one, group) for one, group in zip(every, found, strict=True)}
    both = operations == {*_BETWEEN_TWO}
    return _Known(
        own.operation or ("sendrecv" if both else _only(operations)),
        own.peer if own.peer is not None else _only(peers),
        _only(set(found)),
    )


def _peer(one: Said, group: Group | None) -> int | None:
    if one.peer is not None or one.operation not in _BETWEEN_TWO or one.local_peer is None:
        return one.peer
    ranks = group.ranks if group and group.ranks else ()
    return ranks[one.local_peer] if one.local_peer < len(ranks) else None


def _only(values: set[Any]) -> Any:
    """Return the one value that there is, or None."""
    [one] = values if len(values) == 1 else [None]
    return one


def _roles(kernels: Iterable[_Kernel], world: int | None) -> dict[Group, Group]:
    """Return each group that kernels are of, with its role: described, or else as they agree.

    What a group of all ranks is for is only known if all of its kernels say it: other things are often
    done in the default group as well.
    """
    purposes: dict[Group, set[str | None]] = {}
    for kernel in kernels:
        if kernel.group is not None:
            purposes.setdefault(kernel.group, set()).add(kernel.purpose)
    return {group: _with_role(group, told, world) for group, told in purposes.items()}


def _with_role(group: Group, purposes: set[str | None], world: int | None) -> Group:
    told = purposes if group.size in {None, world} else purposes - {None}
    role = _only(told)
    if group.role is not None or role is None:
        return group
    return msgspec.structs.replace(group, role=role, how="annotation")
