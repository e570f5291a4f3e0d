"""The part of a run that is in sight, small enough to send at every movement.

Where there are more tasks than the screen has pixels, only those are sent that a pixel shows: the
viewer draws what is at each pixel's centre and nothing else, so its picture is the same as with all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from bubblescope.render.html.data import Places
from bubblescope.render.html.packing import packed
from bubblescope.render.html.schema import Part

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bubblescope.model.arrays import Ints
    from bubblescope.render.html.data import PageData
    from bubblescope.render.html.schema import Extent

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
    """

    start_ns: float
    per_pixel_ns: float
    columns: int
    ranks: frozenset[int]
    lanes: frozenset[str]
    unfolded: frozenset[int] = frozenset()

    @property
    def end_ns(self) -> float:
        """Time at the right edge of the last pixel."""
        return self.start_ns + self.columns * self.per_pixel_ns

    @property
    def centres_ns(self) -> np.ndarray:
        """Time at the centre of each pixel."""
        return self.start_ns + (np.arange(self.columns) + 0.5) * self.per_pixel_ns


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
            _span(self._task_times, row, sight)
            if row.rank in sight.ranks and row.lane in sight.lanes
            else (0, 0)
            for row in self._rows
        ]
        gap_spans = [
            _span(self._gap_times, row, sight) if row.rank in sight.ranks else (0, 0)
            for row in self._gaps
        ]
        whole = sum(last - first for first, last in spans) <= _WHOLE
        chosen = [_chosen(self._task_times, span, sight, whole=whole) for span in spans]
        idle = [_chosen(self._gap_times, span, sight, whole=whole) for span in gap_spans]
        kernel_spans = [
            _span(self._kernel_times, row, sight) if row.rank in sight.unfolded else (0, 0)
            for row in self._kernels
        ]
        all_kernels = sum(last - first for first, last in kernel_spans) <= _WHOLE
        ran = [_chosen(self._kernel_times, span, sight, whole=all_kernels) for span in kernel_spans]
        ids, gap_ids, kernel_ids = _joined(chosen), _joined(idle), _joined(ran)
        part = replace(
            self._data,
            tasks=self._data.tasks[ids],
            gaps=self._data.gaps[gap_ids],
            links=self._linked(spans if whole else []),
            kernels=self._data.kernels[kernel_ids],
        )
        tables = dict(part.tables_in_sight())
        roots = self._at[part.gaps["root"].to_numpy()] if len(gap_ids) else gap_ids
        tables["tasks"] = tables["tasks"].with_columns(id=pl.Series(ids))
        tables["gaps"] = tables["gaps"].with_columns(
            id=pl.Series(gap_ids), root_id=pl.Series(roots)
        )
        tables["kernels"] = tables["kernels"].with_columns(id=pl.Series(kernel_ids))
        sent = {name: packed(frame, _EFFORT) for name, frame in tables.items()}
        text = msgspec.json.encode(
            Part(
                complete=whole and all_kernels,
                rows=[len(part) for part in chosen],
                gaps=[len(part) for part in idle],
                kernels=[len(part) for part in ran],
                columns={name: table.columns for name, table in sent.items()},
                sizes={name: len(table.data) for name, table in sent.items()},
            )
        )
        return b"".join(
            (len(text).to_bytes(4, "little"), text, *(table.data for table in sent.values()))
        )

    def _linked(self, spans: Iterable[tuple[int, int]]) -> pl.DataFrame:
        """Return the links whose source is among some tasks."""
        parts = [
            self._links.slice(first, last - first)
            for first, last in (np.searchsorted(self._sources, span).tolist() for span in spans)
            if first < last
        ]
        return pl.concat(parts) if parts else self._links.clear()


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


def _chosen(times: tuple[Ints, Ints], span: tuple[int, int], sight: Sight, *, whole: bool) -> Ints:
    """Return what to send of a row: all, or if that is more than there are pixels what they show."""
    first, last = span
    if whole or last - first <= sight.columns:
        return np.arange(first, last)
    start, end = times
    centres = sight.centres_ns
    at = first + np.searchsorted(end[first:last], centres, side="right")
    there = at < last
    at, when = at[there], centres[there]
    return np.unique(at[start[at] <= when])


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
