"""What the communication kernels of a PyTorch trace carry out, in which group, and what for.

PyTorch puts a `record_param_comms` operator around every call to NCCL (ProcessGroupNCCL.cpp). What is
known of the call stands, since 2024, in its arguments and, copied by Kineto, in those of the kernels
that it launched; before that, in its inputs at most. Sends and receives that are batched are launched
together after their operators have ended, by a kernel without arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from bubblescope.model.device_time import NONE
from bubblescope.names.communication_kernels import communication_kernel
from bubblescope.sources.attribution import (
    Annotations,
    Known,
    Launched,
    attributed,
    enclosing,
    launched_in_order,
    only,
)
from bubblescope.sources.capture import Capture, Comm
from bubblescope.sources.kineto.call_arguments import Said, said
from bubblescope.sources.kineto.process_groups import RankGroups

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bubblescope.model.arrays import Ints
    from bubblescope.model.groups import Group

_OPERATOR: Final = "record_param_comms"
_BETWEEN_TWO: Final = ("send", "recv")
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
        if _OPERATOR in names:
            rows = [row for row, name in enumerate(names) if name == _OPERATOR]
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
        rows, launched = launched_in_order(capture)
        if not len(rows):
            return capture, groups.table()
        kernels = capture.work["comm"][rows].to_numpy()
        calls, around = self._around(kernels, launched, transfers)
        sorts, told = list(self._sorts), list(self._said)

        def known(sort: int, call: int) -> Known:
            of = [told[one] for one in calls[call]] if call >= 0 else []
            return _agreed(sorts[sort][1], of, groups)

        names = pl.DataFrame(
            {"name": range(len(capture.host_names)), "text": capture.host_names},
            schema={"name": capture.host.schema["name"], "text": pl.String},
        )
        annotations = Annotations(capture.host, names)
        changed, roles = attributed(
            capture, rows, launched, around, known, annotations, groups.world
        )
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
        mute = np.array([not one.tells_group for _, one in self._sorts], bool)[sorts]
        found = np.where(mute, number, NONE)
        batches = mute & (row < 0) & np.array([_may_send(name) for name, _ in self._sorts])[sorts]
        if not batches.any():
            return list(sets), found
        between_two = np.array([one.operation in _BETWEEN_TWO for one in self._said], bool)
        free = between_two[operators["said"].to_numpy()]
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


def _may_send(name: str) -> bool:
    """Say whether a kernel may carry out sends and receives: RCCL's does not say what it does."""
    family = communication_kernel(name)
    return family is not None and "ccl" in family.library and family.operation in {"sendrecv", None}


def _agreed(own: Said, calls: list[Said], groups: RankGroups) -> Known:
    """Return what a kernel and the calls that it carries out agree on."""
    every = [own] if own.tells_group or not calls else calls
    found = [groups.of(one) for one in every]
    operations = {one.operation for one in every}
    peers = {_peer(one, group) for one, group in zip(every, found, strict=True)}
    both = operations == {*_BETWEEN_TWO}
    return Known(
        own.operation or ("sendrecv" if both else only(operations)),
        own.peer if own.peer is not None else only(peers),
        only(set(found)),
    )


def _peer(one: Said, group: Group | None) -> int | None:
    if one.peer is not None or one.operation not in _BETWEEN_TWO or one.local_peer is None:
        return one.peer
    ranks = group.ranks if group and group.ranks else ()
    return ranks[one.local_peer] if one.local_peer < len(ranks) else None
