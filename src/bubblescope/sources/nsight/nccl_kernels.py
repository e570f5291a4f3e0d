"""Communicator and operation of each communication kernel, by the call to NCCL that launched it.

A call launches its kernel itself, unless it stands between ncclGroupStart and ncclGroupEnd: then
ncclGroupEnd launches what all of them need, in as few kernels as it can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.model.device_time import NONE
from bubblescope.model.groups import Group, merged, tabled
from bubblescope.sources.attribution import (
    Annotations,
    Known,
    attributed,
    enclosing,
    launched_in_order,
    only,
)
from bubblescope.sources.nsight.communicators import MEMBERS, communicator_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.sources.capture import Capture
    from bubblescope.sources.nsight.communicators import Communication


class Nccl(msgspec.Struct, frozen=True):
    """What an export tells of its communicators.

    Attributes:
        members: Frame with the columns of `MEMBERS`.
        groups: The communicators that are known of: those that kernels are of, with their roles.
    """

    members: pl.DataFrame
    groups: tuple[Group, ...]


NO_NCCL: Final = Nccl(pl.DataFrame(schema=MEMBERS), ())


class _Calls(NamedTuple):
    """What one call launches, itself or for others: the operations, and the communicators."""

    operations: frozenset[str]
    communicators: frozenset[str | None]

    def operation(self) -> str | None:
        """Return the one operation; sends and receives together may be anything."""
        operation: str | None = only(set(self.operations))
        return operation


def told_by_calls(capture: Capture, nccl: Communication) -> tuple[Capture, Nccl]:
    """Tell the operation, communicator and role of each communication kernel of an export.

    Args:
        capture: The export; threads have ids of their own, whatever their process.
        nccl: Its calls to NCCL.
    """
    rows, launched = launched_in_order(capture)
    if not len(rows):
        return capture, NO_NCCL
    launching, every = _launching(nccl.calls)
    row = enclosing(launched, launching)
    calls = np.append(launching["calls"].to_numpy(), NONE)[row]
    sizes = dict(
        nccl.members.group_by("communicator")
        .agg(pl.col("size").unique())
        .filter(pl.col("size").list.len() == 1)
        .select("communicator", pl.col("size").list.first())
        .iter_rows()
    )

    def known(_: int, call: int) -> Known:
        if call < 0:
            return Known()
        name = only(set(every[call].communicators))
        group = name and Group(name=name, size=sizes.get(name), how="communicator", backend="nccl")
        return Known(every[call].operation(), None, group or None)

    names = capture.ranges["name"].unique()
    annotations = Annotations(capture.ranges, pl.DataFrame({"name": names, "text": names}))
    changed, roles = attributed(capture, rows, launched, calls, known, annotations)
    return changed, Nccl(nccl.members, tuple(roles.values()))


def _launching(calls: pl.DataFrame) -> tuple[pl.DataFrame, list[_Calls]]:
    """Return the calls that launch, as spans by start, and what they launch.

    Returns:
        Frame with thread, start_ns, end_ns and calls, an index into the list.
    """
    begins, ends = (pl.col("call") == f"ncclGroup{what}" for what in ("Start", "End"))
    change = begins.cast(pl.Int32) - ends.cast(pl.Int32)
    level = pl.col("change").cum_sum()
    # Of a group that began before the capture did, only the end is there.
    deep = calls.sort("thread", "start_ns", maintain_order=True).with_columns(change=change)
    deep = deep.with_columns(
        depth=(level - level.cum_min().clip(upper_bound=0)).over("thread")
    ).with_columns(closes=ends & (pl.col("depth") == 0))
    # All calls up to the end that closes their group have its number.
    deep = deep.with_columns(
        batch=pl.col("closes").cast(pl.Int64).cum_sum().shift(1, fill_value=0).over("thread")
    )
    single = deep.filter(pl.col("operation").is_not_null(), pl.col("depth") == 0).select(
        "thread",
        "start_ns",
        "end_ns",
        operations=pl.concat_list("operation"),
        communicators=pl.concat_list("communicator"),
    )
    grouped = (
        deep.filter(pl.col("operation").is_not_null(), pl.col("depth") > 0)
        .group_by("thread", "batch")
        .agg(
            operations=pl.col("operation").unique().sort(),
            communicators=pl.col("communicator").unique().sort(nulls_last=True),
        )
    )
    closing = deep.filter("closes").join(grouped, on=["thread", "batch"]).select(single.columns)
    spans = (
        pl.concat([single, closing])
        .drop_nulls("end_ns")
        .sort("start_ns", "end_ns", descending=[False, True])
    )
    distinct = spans.select("operations", "communicators").unique(maintain_order=True)
    numbered = spans.join(
        distinct.with_row_index("calls"),
        on=["operations", "communicators"],
        nulls_equal=True,
        maintain_order="left",
    )
    return numbered.with_columns(pl.col("calls").cast(pl.Int64)), [
        _Calls(frozenset(operations), frozenset(communicators))
        for operations, communicators in distinct.iter_rows()
    ]


def groups_of_run(exports: Sequence[Nccl], places: pl.DataFrame) -> pl.DataFrame:
    """Return the communicators of a run, with the columns of `GROUP_SCHEMA`.

    Args:
        exports: What each export tells of them.
        places: Frame with export (its index), process, device and rank.
    """
    members = pl.concat(
        [pl.DataFrame(schema={**MEMBERS, "export": pl.Int32})]
        + [
            one.members.with_columns(export=pl.lit(index, pl.Int32))
            for index, one in enumerate(exports)
        ]
    )
    here = ["export", "process"]
    by_device = places.select(*here, "device", global_rank="rank")
    # A call that does not say its device is of the process's only one.
    alone = by_device.filter(pl.len().over(here) == 1).select(*here, of_process="global_rank")
    members = (
        members.join(by_device, on=[*here, "device"], how="left")
        .join(alone, on=here, how="left")
        .with_columns(
            global_rank=pl.coalesce(
                "global_rank", pl.when(pl.col("device").is_null()).then("of_process")
            )
        )
    )
    groups = communicator_groups(members)
    known = {
        name: (tuple(ranks) if ranks is not None else None, size)
        for name, ranks, size in groups.select("name", "ranks", "size").iter_rows()
    }
    of_kernels = []
    for group in (one for export in exports for one in export.groups):
        ranks, size = known.get(group.name, (None, group.size))
        of_kernels.append(msgspec.structs.replace(group, ranks=ranks, size=size))
    return merged(pl.concat([groups, tabled(of_kernels)]))
