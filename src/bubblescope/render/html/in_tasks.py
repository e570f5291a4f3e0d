"""What devices did in each task: how long they computed, communicated and copied, and in which groups.

All are sums of the device's budget (docs/device.md), of which no row reaches over the edge of a task,
as `bubblescope.sources.device_spending` cuts it. Of ranks with several devices it is not known on which
a task ran.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.model.budget import Use
from bubblescope.model.kinds import Lane
from bubblescope.model.plain_text import cut
from bubblescope.names.group_roles import ROLES
from bubblescope.render.html import schema
from bubblescope.render.html.packing import SUMS, WAITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bubblescope.model.arrays import Ints
    from bubblescope.model.timeline import Timeline

_UNKNOWN: Final = -1
_TEXT: Final = 200
"""Letters of the name of an operation or a role that the page holds."""

_SUMS: Final = dict(zip(SUMS, (Use.COMPUTE, Use.COMMUNICATION, Use.COPY), strict=True))
_SIDES: Final = {"exposed_ns": Use.COMMUNICATION, "hidden_ns": Use.COMMUNICATION_HIDDEN}
_COLUMNS: Final = ("at", "of", *_SIDES)
NOTHING: Final = pl.DataFrame(schema=dict.fromkeys(_COLUMNS, pl.Int64))
"""`Communication.table` where nothing is known to have communicated."""


class _Rank(NamedTuple):
    """The tasks of a rank, and what its device spent time on, by start."""

    at: Ints
    start_ns: Ints
    end_ns: Ints
    spent: pl.DataFrame

    def sums(self, of: pl.Expr | bool) -> Ints:
        """Return how long the device did something in each task, in ns."""
        chosen = self.spent.filter(of)
        moment, value = (chosen[name].to_numpy() for name in ("start_ns", "spent_ns"))
        sums = np.append(0, np.cumsum(value))
        first, last = (np.searchsorted(moment, edge) for edge in (self.start_ns, self.end_ns))
        between: Ints = sums[last] - sums[first]
        return between


def _ranks(tasks: pl.DataFrame, budget: pl.DataFrame) -> Iterator[_Rank]:
    """Yield the ranks of one device each."""
    measured = pl.col("task").is_not_null() & (pl.col("lane") == Lane.COMPUTE.value)
    own = tasks.select("rank", "start_ns", "end_ns", measured.alias("own")).with_row_index("at")
    for (rank,), spent in budget.sort("start_ns").group_by("rank", maintain_order=True):
        if spent["device"].n_unique() == 1:
            mine = own.filter(pl.col("own") & (pl.col("rank") == rank))
            at, start_ns, end_ns = (mine[name].to_numpy() for name in ("at", "start_ns", "end_ns"))
            yield _Rank(at, start_ns, end_ns, spent)


def sums_in_tasks(tasks: pl.DataFrame, budget: pl.DataFrame) -> dict[str, pl.Series]:
    """Return how long the device computed, communicated and copied in each task, -1 if unknown.

    Communication and copies are those that are exposed.

    Args:
        tasks: In any order: rank, task (null for what was not measured), lane, start_ns and end_ns.
        budget: As `Timeline.budget`.
    """
    found = {name: np.full(tasks.height, _UNKNOWN, np.int64) for name in _SUMS}
    for rank in _ranks(tasks, budget):
        for name, use in _SUMS.items():
            found[name][rank.at] = rank.sums(pl.col("use") == use.value)
    return {name: pl.Series(values) for name, values in found.items()}


def waits_in_tasks(
    tasks: pl.DataFrame, waits: pl.DataFrame, ranks: pl.DataFrame
) -> dict[str, pl.Series]:
    """Return how long collectives waited for whom, with the columns of `packing.WAITS`.

    Args:
        tasks: As `packing.arranged` returns them.
        waits: As `bubblescope.analysis.arrivals.kernels_waited` returns them.
        ranks: With rank and position.

    Returns:
        Nothing where it is known of none.
    """
    if not waits.height:
        return {}
    place = ["rank", "start_ns", "end_ns"]
    positions = ranks.select(awaited="rank", position=pl.col("position").cast(pl.Int64))
    known = waits.unique(place).join(positions, on="awaited", how="left")
    beside = pl.col("task").is_not_null() & (pl.col("lane") == Lane.COMM.value)
    own = tasks.select(*place, beside.alias("own")).with_row_index("at").filter("own")
    found = own.join(known, on=place)
    columns = dict.fromkeys(WAITS, pl.Series(dtype=pl.Int64))
    for name, column in zip(WAITS, ("waits_ns", "position", "off_ns"), strict=True):
        values = np.full(tasks.height, _UNKNOWN, np.int64)
        values[found["at"].to_numpy()] = found[column].fill_null(_UNKNOWN).to_numpy()
        columns[name] = pl.Series(values)
    return columns


class Communication(NamedTuple):
    """What communicated in the tasks of a page.

    Attributes:
        table: One row for each task and each of the operations that ran in it, by task: at (row among
            the page's tasks), of (which operation, a place in `kinds`), exposed_ns and hidden_ns.
        kinds: The operations, each with the role of its group.
    """

    table: pl.DataFrame
    kinds: list[schema.Communicating]

    @classmethod
    def of(cls, tasks: pl.DataFrame, budget: pl.DataFrame) -> Communication:
        """Sum up what communicated in tasks.

        Args:
            tasks: As `packing.arranged` returns them.
            budget: As `Timeline.budget`.
        """
        uses = [use.value for use in _SIDES.values()]
        moved = budget.filter(pl.col("use").is_in(uses)).select("role", "detail").unique()
        kinds = moved.sort("role", "detail", nulls_last=True)
        parts = [NOTHING]
        for rank in _ranks(tasks, budget) if kinds.height else ():
            for of, (role, detail) in enumerate(kinds.iter_rows()):
                same = pl.col("role").eq_missing(role) & pl.col("detail").eq_missing(detail)
                sums = {
                    name: rank.sums(same & (pl.col("use") == use.value))
                    for name, use in _SIDES.items()
                }
                there = sums["exposed_ns"] + sums["hidden_ns"] > 0
                columns = {name: values[there] for name, values in {"at": rank.at, **sums}.items()}
                part = pl.DataFrame(columns).with_columns(of=pl.lit(of))
                parts.append(part.select(pl.col(_COLUMNS).cast(pl.Int64)))
        return cls(
            pl.concat(parts).sort("at", "of"),
            [
                schema.Communicating(
                    role=None if role is None else cut(role, _TEXT),
                    said=_said(role),
                    operation=None if detail is None else cut(detail, _TEXT),
                )
                for role, detail in kinds.iter_rows()
            ],
        )


def _said(role: str | None) -> str:
    """Say what a group is for, in a few words."""
    if role is None:
        return "group not told by the trace"
    known = ROLES.get(role)
    return cut(role.replace("_", " and "), _TEXT) if known is None else known.partition(":")[0]


def groups_of(timeline: Timeline) -> list[schema.Group]:
    """Return the groups of several ranks whose role is known, each once."""
    known = timeline.groups.filter(pl.col("role").is_not_null(), pl.col("ranks").list.len() > 1)
    unique = known.unique(["role", "ranks"], maintain_order=True)
    return [
        schema.Group(role=cut(role, _TEXT), ranks=ranks)
        for role, ranks in unique.select("role", "ranks").iter_rows()
    ]


def communication_columns(table: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of the page's table of what communicated, as of `Communication.table`."""
    return table.select(
        task_step=pl.Series(np.diff(table["at"].to_numpy(), prepend=0)),
        of="of",
        exposed="exposed_ns",
        hidden="hidden_ns",
    )
