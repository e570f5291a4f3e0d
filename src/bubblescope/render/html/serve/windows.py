"""The part of a run that is in sight, small enough to send at every movement.

Where there are more tasks than the screen has pixels, those that fill no pixel are merged: all of a
kind in a pixel become one that is as long as they are together, and waits for as long. The viewer draws
the mean of what is in each pixel, so its picture by kind is the same as with all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from bubblescope.model.ordering import stretches_of
from bubblescope.render.html.data import Places
from bubblescope.render.html.packing import CHANGE, WAITS, packed
from bubblescope.render.html.schema import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from bubblescope.model.arrays import Ints, Mask
    from bubblescope.render.html.data import PageData
    from bubblescope.render.html.schema import Extent, TableInSight

_WHOLE: Final = 200_000
"""Tasks up to which all that are in sight are sent."""

_WAITED: Final = WAITS[0]

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
        idle: Those of the ranks whose idle time is in sight; None for all.
    """

    start_ns: float
    per_pixel_ns: float
    columns: int
    ranks: frozenset[int]
    lanes: frozenset[str]
    unfolded: frozenset[int] = frozenset()
    shift_ns: int = 0
    idle: frozenset[int] | None = None

    @property
    def end_ns(self) -> float:
        """Time at the right edge of the last pixel."""
        return self.start_ns + self.columns * self.per_pixel_ns

    @property
    def idling(self) -> frozenset[int]:
        """Ranks whose idle time is in sight."""
        return self.ranks if self.idle is None else self.ranks & self.idle


class Chosen(NamedTuple):
    """What is sent of a table, row by row and each in the order of time.

    Attributes:
        ids: Rows of the table; of merged ones the first.
        start_ns, end_ns: When they are drawn, since the run's first start.
        merged: How many each stands for; 0 where it is itself.
        waited_ns: How long each waits.
        counts: How many there are in each row.
    """

    ids: Ints
    start_ns: Ints
    end_ns: Ints
    merged: Ints
    waited_ns: Ints
    counts: Ints


class Drawn(NamedTuple):
    """What of a table is drawn: times since the run's first start, colours, and what is merged already.

    Attributes:
        start_ns, end_ns: Times.
        codes: What is of the same colour.
        merged: How many each stands for; 0 where it is itself.
        waited_ns: How long each waits as it begins, as far as is known.
    """

    start_ns: Ints
    end_ns: Ints
    codes: Ints
    merged: Ints
    waited_ns: Ints

    @classmethod
    def of(cls, frame: pl.DataFrame, code: str, origin_ns: int) -> Drawn:
        """Take what is drawn out of a table whose column `code` tells colours apart."""
        none = np.zeros(frame.height, np.int64)
        colours = frame[code]
        listed = isinstance(colours.dtype, pl.Enum)
        number = colours.to_physical() if listed else colours.rank("dense")
        return cls(
            (frame["start_ns"] - origin_ns).to_numpy(),
            (frame["end_ns"] - origin_ns).to_numpy(),
            number.cast(pl.Int64).to_numpy(),
            frame["merged"].cast(pl.Int64).to_numpy() if "merged" in frame.columns else none,
            frame[_WAITED].clip(0).to_numpy() if _WAITED in frame.columns else none,
        )

    def moved(self, those: Mask, by_ns: int) -> Drawn:
        """Return the same, some of it drawn later."""
        later = those * np.int64(by_ns)
        return self._replace(start_ns=self.start_ns + later, end_ns=self.end_ns + later)


class Windows:
    """Cuts what is in sight out of what a page would hold.

    Where that is itself a part of a run, its tasks and gaps have their number in it as `id`, and gaps
    that of their root as `root_id`; where it is seen from afar, `merged` as in `schema.OPTIONAL`.

    Args:
        data: All of it.
        places: Which rows of it can come into sight; all if left out.
        exact: Whether tasks and gaps are themselves, and none are merged yet.
    """

    def __init__(self, data: PageData, places: Places | None = None, *, exact: bool = True) -> None:
        self._data = data
        self._exact = exact
        self._rows, self._gaps, self._kernels = data.places() if places is None else places
        self._task_times = Drawn.of(data.tasks, "kind", data.origin_ns)
        self._others = (data.tasks["lane"].cast(pl.String) == "against").to_numpy()
        if data.told.against is not None:
            changed = _classes(data, data.told.against.scale)
            self._task_times = self._task_times._replace(
                codes=self._task_times.codes * (1 + changed.max(initial=0)) + changed
            )
        self._gap_times = Drawn.of(data.gaps, "cause", data.origin_ns)
        self._kernel_times = Drawn.of(data.kernels, "use", data.origin_ns)
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

    def cut(self, sight: Sight, unexplained: Sequence[int] = ()) -> bytes:
        """Return what is in sight: the length of a `schema.Part` as JSON, the part, and the tables.

        All tasks, gaps and kernels have their number among all of the run as `id`.

        Args:
            sight: What is in sight.
            unexplained: As of `schema.Part`.
        """
        times = self._task_times
        if sight.shift_ns:
            times = times.moved(self._others, sight.shift_ns)
        spans = [
            _span(times, row, sight)
            if row.rank in sight.ranks and row.lane in sight.lanes
            else (0, 0)
            for row in self._rows
        ]
        idling = sight.idling
        gap_spans = [
            _span(self._gap_times, row, sight) if row.rank in idling else (0, 0)
            for row in self._gaps
        ]
        whole = self._exact and sum(last - first for first, last in spans) <= _WHOLE
        tasks = chosen(times, spans, sight, whole=whole)
        gaps = chosen(self._gap_times, gap_spans, sight, whole=whole)
        kernel_spans = [
            _span(self._kernel_times, row, sight) if row.rank in sight.unfolded else (0, 0)
            for row in self._kernels
        ]
        all_kernels = sum(last - first for first, last in kernel_spans) <= _WHOLE
        kernels = chosen(self._kernel_times, kernel_spans, sight, whole=all_kernels)
        drawn = self._drawn(self._data.tasks, tasks)
        # What refers to a task, and for whom it waited, is about itself, not what it was merged to.
        own = ["task", *(name for name in WAITS if name in drawn.columns)]
        alone, waited = pl.Series(tasks.merged) == 0, pl.Series(tasks.waited_ns)
        drawn = drawn.with_columns(pl.when(alone).then(pl.col(own)))
        if _WAITED in own:
            share = pl.when(~alone & (waited > 0)).then(waited)
            drawn = drawn.with_columns(share.otherwise(_WAITED).alias(_WAITED))
        part = replace(
            self._data,
            tasks=drawn,
            gaps=self._drawn(self._data.gaps, gaps),
            links=self._linked(spans if whole else []),
            kernels=self._drawn(self._data.kernels, kernels),
            communication=self._communicated(tasks),
        )
        tables = dict(part.tables_in_sight())
        chosen_of: dict[TableInSight, Chosen] = {"tasks": tasks, "gaps": gaps, "kernels": kernels}
        for name, sent_of in chosen_of.items():
            tables[name] = tables[name].with_columns(
                id=self._numbers(name, sent_of.ids), merged=pl.Series(sent_of.merged)
            )
        if CHANGE in part.tasks.columns:
            tables["tasks"] = tables["tasks"].with_columns(change=part.tasks[CHANGE].fill_null(0))
        tables["gaps"] = tables["gaps"].with_columns(root_id=self._roots(part.gaps))
        sent = {name: packed(frame, _EFFORT) for name, frame in tables.items()}
        text = msgspec.json.encode(
            Part(
                complete=whole and all_kernels,
                unexplained=list(unexplained),
                rows=tasks.counts.tolist(),
                gaps=gaps.counts.tolist(),
                kernels=kernels.counts.tolist(),
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

    def _numbers(self, name: TableInSight, ids: Ints) -> pl.Series:
        """Return the numbers that rows of a table have among all of the run."""
        frame = getattr(self._data, name)
        return frame["id"].gather(ids) if "id" in frame.columns else pl.Series(ids)

    def _roots(self, gaps: pl.DataFrame) -> pl.Series:
        """Return the numbers among all of the run of what gaps waited for in the end."""
        if "root_id" in gaps.columns:
            return gaps["root_id"]
        return pl.Series(self._at[gaps["root"].to_numpy()], dtype=pl.Int64)

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
        edges = np.array([span for span in spans if span[0] < span[1]], np.int64).reshape(-1, 2)
        parts = [
            self._links.slice(first, last - first)
            for first, last in np.searchsorted(self._sources, edges).tolist()
            if first < last
        ]
        return pl.concat(parts) if parts else self._links.clear()


def _classes(data: PageData, scale: list[int]) -> Ints:
    """Number tasks by how much they changed, so that only those are merged that look alike."""
    change = data.tasks[CHANGE].to_numpy()  # NaN where it is not known
    far = np.searchsorted([*scale, np.inf], np.abs(change), side="right")
    found: Ints = np.where(change < 0, -far, far) % (2 * (len(scale) + 1))
    return found


def _span(drawn: Drawn, row: Extent, sight: Sight) -> tuple[int, int]:
    """Return from where to where a row is in sight; within a row nothing overlaps."""
    start, end = drawn.start_ns, drawn.end_ns
    begin, stop = row.first, row.to
    first = begin + int(np.searchsorted(end[begin:stop], sight.start_ns, side="right"))
    last = begin + int(np.searchsorted(start[begin:stop], sight.end_ns, side="left"))
    return first, max(first, last)


def chosen(
    drawn: Drawn, spans: Sequence[tuple[int, int]] | Ints, sight: Sight, *, whole: bool
) -> Chosen:
    """Return what to send of rows of a page.

    Args:
        drawn: What is drawn of the table.
        spans: Where in it each row begins and ends, n x 2.
        sight: The pixels.
        whole: Whether to send all; else, of a row of more than there are pixels, what fills them.
    """
    firsts, lasts = np.asarray(spans, np.int64).reshape(-1, 2).T
    counts = lasts - firsts
    row = np.repeat(np.arange(len(spans)), counts)
    ids = np.arange(len(row)) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
    if len(row) and (firsts[1:] == lasts[:-1]).all():  # they are one stretch of the table
        start, end, codes, merged, waited = (column[firsts[0] :][: len(row)] for column in drawn)
    else:
        start, end, codes, merged, waited = (column[ids] for column in drawn)
    crowded = counts > sight.columns
    if whole or not crowded.any():
        return Chosen(ids, start, end, merged, waited, counts)
    # Of two that touch, the later one is drawn from the earlier one's end.
    began = start.copy()
    np.maximum(start[1:], end[:-1], out=began[1:])
    first = np.cumsum(counts)[:-1]  # of a row of the page
    first = first[first < len(row)]
    began[first] = start[first]
    came = np.clip(start + waited, began, end)
    left, middle, right = (
        (part - sight.start_ns) / sight.per_pixel_ns for part in (began, came, end)
    )
    fills = np.ceil(left) + 1 <= np.floor(right)
    if not crowded.all():
        fills |= ~crowded[row]
    kept = (ids[fills], start[fills], end[fills], merged[fills], waited[fills], row[fills])
    small: Any = ~fills if len(kept[0]) else slice(None)
    times = (left[small], middle[small], right[small])
    pieces = _merged(row[small], ids[small], times, codes[small], merged[small], sight)
    number, begin, stop, stands, waits, own = map(np.concatenate, zip(kept, pieces, strict=True))
    count = np.bincount(own, minlength=len(spans))
    later = (own[1:] > own[:-1]) | ((own[1:] == own[:-1]) & (begin[1:] >= begin[:-1]))
    if later.all():  # as mostly, where nothing fills a pixel
        return Chosen(number, begin, stop, stands, waits, count)
    order = np.lexsort((begin, own))
    number, begin, stop, stands, waits = (
        one[order] for one in (number, begin, stop, stands, waits)
    )
    return Chosen(number, begin, stop, stands, waits, count)


def _merged(
    row: Ints,
    ids: Ints,
    times: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
    codes: Ints,
    merged: Ints,
    sight: Sight,
) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
    """Merge what fills no pixel, by row, pixel and code.

    Args:
        row: Rows of the page.
        ids: Rows of the table, in each row of the page in the order of time.
        times: When they begin, wait no more, and end, in pixels.
        codes: What they are.
        merged: How many each stands for; 0 where it is itself.
        sight: The pixels.

    Returns:
        The first five of `Chosen`, and the row of each.
    """
    left, middle, right = times
    edge = np.floor(left) + 1
    before = np.minimum(right, edge) - left
    seen = np.flatnonzero(before > 0)
    beyond = np.flatnonzero(right > edge)  # what reaches into the next pixel, though not through it
    own, pixel, code, number, begin, length, waits, count = (
        np.concatenate((one if len(seen) == len(one) else one[seen], other[beyond]))
        for one, other in (
            (row, row),
            (edge - 1, edge),
            (codes, codes),
            (ids, ids),
            (left, edge),
            (before, right - edge),
            (np.minimum(middle, edge) - left, np.maximum(middle - edge, 0)),
            (np.maximum(merged, 1), np.zeros_like(merged)),  # it counts in its own pixel
        )
    )
    # Row, pixel and code as one number: what is merged is found by sorting what is nearly sorted.
    pixel = (pixel - pixel.min(initial=0)).astype(np.int64)
    pixels, colours = (1 + int(one.max(initial=0)) for one in (pixel, code))
    key = (own * pixels + pixel) * colours + code
    order = np.argsort(key, kind="stable")
    key = key[order]
    firsts = stretches_of(key)
    if not len(firsts):
        return ids[:0], ids[:0], ids[:0], ids[:0], ids[:0], row[:0]
    number, begin = (np.minimum.reduceat(one[order], firsts) for one in (number, begin))
    length, waits, count = (np.add.reduceat(one[order], firsts) for one in (length, waits, count))
    count = np.maximum(count, 1)
    # One after the other, from where the first of the pixel begins: there is room for all.
    of_pixel = key[firsts] // colours
    opens = stretches_of(of_pixel)
    several = np.diff(opens, append=len(firsts))
    turn = np.arange(len(firsts)) - np.repeat(opens, several)
    until = np.repeat(np.minimum.reduceat(begin, opens), several)
    passed = length.copy()
    for after in range(1, int(several.max())):
        those = np.flatnonzero(turn == after)
        passed[those] += passed[those - 1]
    until += passed
    start, end = (
        (sight.start_ns + times * sight.per_pixel_ns).round().astype(np.int64)
        for times in (until - length, until)
    )
    waited = (waits * sight.per_pixel_ns).round().astype(np.int64)
    return number, start, end, count, waited, of_pixel // pixels
