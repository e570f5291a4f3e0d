"""The part of a run that is in sight, small enough to send at every movement.

Where there are more tasks than the screen has pixels, those that fill no pixel are merged: all of a
kind in a pixel become one that is as long as they are together. The viewer draws the mean of what is
in each pixel, so its picture by kind is the same as with all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from bubblescope.render.html.data import Places
from bubblescope.render.html.packing import CHANGE, packed
from bubblescope.render.html.schema import Part

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from bubblescope.model.arrays import Ints
    from bubblescope.render.html.data import PageData
    from bubblescope.render.html.schema import Extent, Row, TableInSight

_WHOLE: Final = 200_000
"""Tasks up to which all that are in sight are sent."""

_EFFORT: Final = 1
"""How hard to compress what only travels within one machine."""


class Sight(msgspec.Struct, frozen=True):
    """What a viewer shows.

    Attributes:
        start_ns: Time at the left edge of the first pixel, since the run's first start.
        per_pixel_ns: Time that a pixel covers.
        columns: Pixels.
        ranks: Ranks in sight, as positions on the page.
        lanes: Names of the lanes in sight.
        unfolded: Those of the ranks whose kernels are in sight.
        shift_ns: By how much the lanes of another run are moved.
    """

    start_ns: float
    per_pixel_ns: float
    columns: int
    ranks: frozenset[int]
    lanes: frozenset[str]
    unfolded: frozenset[int] = frozenset()
    shift_ns: int = 0

    def on(self, row: Row) -> Sight:
        """Return the same on the clock of a row's lane."""
        shift_ns = _shift_ns(row, self)
        return (
            msgspec.structs.replace(self, start_ns=self.start_ns - shift_ns) if shift_ns else self
        )

    @property
    def end_ns(self) -> float:
        """Time at the right edge of the last pixel."""
        return self.start_ns + self.columns * self.per_pixel_ns


class Chosen(NamedTuple):
    """What is sent of a row, in the order of time.

    Attributes:
        ids: Rows of the table; of merged ones the first.
        start_ns, end_ns: When they are drawn, since the run's first start.
        merged: How many each stands for; 0 where it is itself.
    """

    ids: Ints
    start_ns: Ints
    end_ns: Ints
    merged: Ints

    def later(self, by_ns: int) -> Chosen:
        """Return the same, drawn later."""
        return self._replace(start_ns=self.start_ns + by_ns, end_ns=self.end_ns + by_ns)


class Windows:
    """Cuts what is in sight out of what a page would hold.

    Args:
        data: All of it.
        places: Which rows of it can come into sight; all if left out.
    """

    def __init__(self, data: PageData, places: Places | None = None) -> None:
        self._data = data
        self._rows, self._gaps, self._kernels = data.places() if places is None else places
        self._task_times = _times(data.tasks, data.origin_ns)
        self._gap_times = _times(data.gaps, data.origin_ns)
        self._kernel_times = _times(data.kernels, data.origin_ns)
        self._kinds, self._causes, self._uses = (
            column.rank("dense").cast(pl.Int64).to_numpy()
            for column in (data.tasks["kind"], data.gaps["cause"], data.kernels["use"])
        )
        if data.told.against is not None:
            scale = data.told.against.scale
            self._kinds = self._kinds * 2 * (len(scale) + 1) + _classes(data, scale)
        own = data.tasks.with_row_index("at").drop_nulls("task").sort("task")
        self._at = own["at"].cast(pl.Int64).to_numpy()  # of each row of the timeline's tasks
        source = self._at[data.links["source"].to_numpy()]
        order = np.argsort(source, kind="stable")
        self._links = data.links[order]
        self._sources = source[order]

    @property
    def places(self) -> Places:
        """Which rows of tasks, gaps and kernels there are, for a page that holds none of them yet."""
        return Places(
            rows=[replace(row, first=0, to=0) for row in self._rows],
            gaps=[replace(row, first=0, to=0) for row in self._gaps],
            kernel_rows=[replace(row, first=0, to=0) for row in self._kernels],
        )

    def cut(self, sight: Sight) -> bytes:
        """Return what is in sight: the length of a `schema.Part` as JSON, the part, and the tables.

        All tasks, gaps and kernels have their number among all of the run as `id`.
        """
        spans = [
            _span(self._task_times, row, sight.on(row))
            if row.rank in sight.ranks and row.lane in sight.lanes
            else (0, 0)
            for row in self._rows
        ]
        gap_spans = [
            _span(self._gap_times, row, sight) if row.rank in sight.ranks else (0, 0)
            for row in self._gaps
        ]
        whole = sum(last - first for first, last in spans) <= _WHOLE
        chosen = [
            _chosen(self._task_times, self._kinds, span, sight.on(row), whole=whole).later(
                _shift_ns(row, sight)
            )
            for row, span in zip(self._rows, spans, strict=True)
        ]
        idle = [
            _chosen(self._gap_times, self._causes, span, sight, whole=whole) for span in gap_spans
        ]
        kernel_spans = [
            _span(self._kernel_times, row, sight) if row.rank in sight.unfolded else (0, 0)
            for row in self._kernels
        ]
        all_kernels = sum(last - first for first, last in kernel_spans) <= _WHOLE
        ran = [
            _chosen(self._kernel_times, self._uses, span, sight, whole=all_kernels)
            for span in kernel_spans
        ]
        tasks, gaps, kernels = _joined(chosen), _joined(idle), _joined(ran)
        part = replace(
            self._data,
            # What refers to a task means the task itself, not what it was merged to.
            tasks=self._drawn(self._data.tasks, tasks).with_columns(
                task=pl.when(pl.Series(tasks.merged) == 0).then("task")
            ),
            gaps=self._drawn(self._data.gaps, gaps),
            links=self._linked(spans if whole else []),
            kernels=self._drawn(self._data.kernels, kernels),
            communication=self._communicated(tasks),
        )
        tables = dict(part.tables_in_sight())
        roots = self._at[part.gaps["root"].to_numpy()] if len(gaps.ids) else gaps.ids
        chosen_of: dict[TableInSight, Chosen] = {"tasks": tasks, "gaps": gaps, "kernels": kernels}
        for name, sent_of in chosen_of.items():
            tables[name] = tables[name].with_columns(
                id=pl.Series(sent_of.ids), merged=pl.Series(sent_of.merged)
            )
        if CHANGE in part.tasks.columns:
            tables["tasks"] = tables["tasks"].with_columns(change=part.tasks[CHANGE].fill_null(0))
        tables["gaps"] = tables["gaps"].with_columns(root_id=pl.Series(roots))
        sent = {name: packed(frame, _EFFORT) for name, frame in tables.items()}
        text = msgspec.json.encode(
            Part(
                complete=whole and all_kernels,
                rows=[len(part.ids) for part in chosen],
                gaps=[len(part.ids) for part in idle],
                kernels=[len(part.ids) for part in ran],
                columns={name: table.columns for name, table in sent.items()},
                sizes={name: len(table.data) for name, table in sent.items()},
            )
        )
        return b"".join(
            (len(text).to_bytes(4, "little"), text, *(table.data for table in sent.values()))
        )

    def _drawn(self, table: pl.DataFrame, chosen: Chosen) -> pl.DataFrame:
        """Return rows of a table with the times at which they are drawn."""
        origin_ns = self._data.origin_ns
        return table[chosen.ids].with_columns(
            start_ns=pl.Series(chosen.start_ns, dtype=pl.Int64) + origin_ns,
            end_ns=pl.Series(chosen.end_ns, dtype=pl.Int64) + origin_ns,
        )

    def _communicated(self, tasks: Chosen) -> pl.DataFrame:
        """Return what communicated in those of the chosen tasks that are themselves."""
        at = self._data.communication["at"].to_numpy()
        own = np.flatnonzero(tasks.merged == 0)
        first, last = (np.searchsorted(at, tasks.ids[own], side) for side in ("left", "right"))
        count = last - first
        rows = np.arange(count.sum()) + np.repeat(first - np.cumsum(count) + count, count)
        place = pl.Series(np.repeat(own, count), dtype=pl.Int64)
        sent: pl.DataFrame = self._data.communication[rows]
        return sent.with_columns(at=place)

    def _linked(self, spans: Iterable[tuple[int, int]]) -> pl.DataFrame:
        """Return the links whose source is among some tasks."""
        parts = [
            self._links.slice(first, last - first)
            for first, last in (np.searchsorted(self._sources, span).tolist() for span in spans)
            if first < last
        ]
        return pl.concat(parts) if parts else self._links.clear()


def _shift_ns(row: Row, sight: Sight) -> int:
    """Return by how much later a row is drawn than its times say."""
    return sight.shift_ns if row.lane == "against" else 0


def _classes(data: PageData, scale: list[int]) -> Ints:
    """Number tasks by how much they changed, so that only those are merged that look alike."""
    change = data.tasks[CHANGE].to_numpy()  # NaN where it is not known
    far = np.searchsorted([*scale, np.inf], np.abs(change), side="right")
    found: Ints = np.where(change < 0, -far, far) % (2 * (len(scale) + 1))
    return found


def _times(frame: pl.DataFrame, origin_ns: int) -> tuple[Ints, Ints]:
    """Return starts and ends since the origin."""
    return (
        (frame["start_ns"] - origin_ns).to_numpy(),
        (frame["end_ns"] - origin_ns).to_numpy(),
    )


def _span(times: tuple[Ints, Ints], row: Extent, sight: Sight) -> tuple[int, int]:
    """Return from where to where a row is in sight; within a row nothing overlaps."""
    start, end = times
    begin, stop = row.first, row.to
    first = begin + int(np.searchsorted(end[begin:stop], sight.start_ns, side="right"))
    last = begin + int(np.searchsorted(start[begin:stop], sight.end_ns, side="left"))
    return first, max(first, last)


def _chosen(
    times: tuple[Ints, Ints], codes: Ints, span: tuple[int, int], sight: Sight, *, whole: bool
) -> Chosen:
    """Return what to send of a row: all, or if that is more than there are pixels what fills them."""
    first, last = span
    ids = np.arange(first, last)
    start, end = (part[first:last] for part in times)
    if whole or last - first <= sight.columns:
        return Chosen(ids, start, end, np.zeros(len(ids), np.int64))
    # Of two that touch, the later one is drawn from the earlier one's end.
    began = start.copy()
    began[1:] = np.maximum(start[1:], end[:-1])
    left, right = ((part - sight.start_ns) / sight.per_pixel_ns for part in (began, end))
    fills = np.ceil(left) + 1 <= np.floor(right)
    pieces = _merged(ids[~fills], left[~fills], right[~fills], codes[first:last][~fills], sight)
    every = Chosen(
        np.concatenate([ids[fills], pieces.ids]),
        np.concatenate([start[fills], pieces.start_ns]),
        np.concatenate([end[fills], pieces.end_ns]),
        np.concatenate([np.zeros(fills.sum(), np.int64), pieces.merged]),
    )
    order = np.argsort(every.start_ns, kind="stable")
    return Chosen(*(part[order] for part in every))


def _merged(
    ids: Ints, left: NDArray[np.float64], right: NDArray[np.float64], codes: Ints, sight: Sight
) -> Chosen:
    """Merge what fills no pixel, by pixel and code.

    Args:
        ids: Rows of the table, in the order of time.
        left: When they begin, in pixels.
        right: When they end.
        codes: What they are.
        sight: The pixels.
    """
    edge = np.floor(left) + 1
    beyond = right > edge  # it reaches into the next pixel, though not through it
    pieces = pl.DataFrame(
        {
            "pixel": np.concatenate([edge - 1, edge[beyond]]).astype(np.int64),
            "code": np.concatenate([codes, codes[beyond]]),
            "id": np.concatenate([ids, ids[beyond]]),
            "left": np.concatenate([left, edge[beyond]]),
            "length": np.concatenate([np.minimum(right, edge) - left, (right - edge)[beyond]]),
        }
    ).filter(pl.col("length") > 0)
    merged = (
        pieces.group_by("pixel", "code")
        .agg(pl.col("id").min(), pl.col("left").min(), pl.col("length").sum(), count=pl.len())
        .sort("pixel", "code")
        # One after the other, from where the first of the pixel begins: there is room for all.
        .with_columns(
            until=pl.col("left").min().over("pixel") + pl.col("length").cum_sum().over("pixel")
        )
    )
    start, end = (
        (sight.start_ns + times.to_numpy() * sight.per_pixel_ns).round().astype(np.int64)
        for times in (merged["until"] - merged["length"], merged["until"])
    )
    return Chosen(merged["id"].to_numpy(), start, end, merged["count"].cast(pl.Int64).to_numpy())


def _joined(parts: list[Chosen]) -> Chosen:
    empty = np.empty(0, np.int64)
    columns = zip(Chosen(empty, empty, empty, empty), *parts, strict=True)
    return Chosen(*(np.concatenate(column) for column in columns))
