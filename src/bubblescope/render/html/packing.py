"""What the page shows, as tables in the order of the page, packed into little space."""

from __future__ import annotations

import base64
import zlib
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import polars as pl

from bubblescope.analysis.idle.explained_gaps import CAUSE_DTYPE
from bubblescope.model import intervals
from bubblescope.model.arrays import A_FEW, at_once, blocks_of_ranks, in_turn
from bubblescope.model.memory import give_back
from bubblescope.model.ordering import in_order, numbered, order_of_runs, stretches
from bubblescope.render.html import schema
from bubblescope.render.layout import LANE_ORDER, with_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence

    from bubblescope.analysis.idle.ledger import Ledger
    from bubblescope.analysis.rates import BubbleRates
    from bubblescope.model.arrays import Ints, Numbers
    from bubblescope.model.timeline import Timeline

_LANES: Final = (LANE_ORDER[0], "against", "ideal", "whatif", *LANE_ORDER[1:])
"""Lanes of a rank, top to bottom: what another run did, and what could have been, is below what was."""

LANE: Final = pl.Enum(_LANES)

_OF_TASKS: Final = (
    *("task", "overlaid", "rank", "step", "kind", "stage", "chunk", "microbatch"),
    *("pair_chunk", "pair_microbatch", "start_ns", "end_ns", "busy_ns", "host_start_ns"),
    *("peer", "name", "certainty"),
)
"""Columns of tasks that the page needs, besides their lane."""

_UNKNOWN: Final = -1

SUMS: Final = ("computing", "communicating", "copying")
"""Columns of how long the device did what in a task, if it is known of any: ns, or -1."""

Number = Literal["microbatch", "chunk"]
"""Columns of tasks that number what there are several of, in pairs by a column of their own."""

COUNTERPART: Final = "counterpart"
"""Column of where the same task of another run is."""

WAITS: Final = ("waited", "awaited", "off")
"""Columns of how long a collective waited for its last rank, which one that was by its position, and by
how much clocks may be off, if it is known of any: ns, or -1."""

_ABSENT: Final = {**dict.fromkeys((*SUMS, *WAITS), _UNKNOWN), COUNTERPART: 0}
"""What these columns hold of tasks of which nothing is known, as of what could have been."""

CHANGE: Final = "change_ns"
"""Column of how much longer a task is in another run."""

TASK_ROW: Final = ("position", "lane", "row")
"""What tells rows of tasks apart."""

GAPS: Final[dict[str, Any]] = {
    "position": pl.UInt32,
    "step": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "cause": CAUSE_DTYPE,
    "task": pl.Int32,
    "root": pl.Int32,
}
_PIECE: Final = 1 << 22
"""Bytes that are compressed at once, at most."""

_APART: Final = 1 << 18
"""Bytes of one kind from which on they are compressed apart from others."""

_SAMPLES: Final = 4
_SAMPLE: Final = 1 << 14
"""Bytes of each of some samples of a piece, which tell how best to compress it."""

_HARDLY: Final = 0.93
"""What of its size a sample keeps from which on compressing is not worth the time."""

_AS_GOOD: Final = 1.02
"""How many times as large what takes half the time may be."""

_LARGE: Final = 4
"""Bytes of a number from which on they travel apart."""

_WHOLE: Final = 3 << 20
"""Bytes that are written in base64 at once: threes, so that only the last are filled up."""

_AHEAD: Final = 4
"""Pieces that are there at once: enough for all processors of a small machine to have work."""

_LAST: Final = b"\x03\x00"
"""The block of no bytes that ends a stream of deflate."""

_TYPES: Final[dict[schema.NumberType, type[np.integer[Any]]]] = {
    "u8": np.uint8,
    "i16": np.int16,
    "i32": np.int32,
    "u32": np.uint32,
}


class Packed(NamedTuple):
    """A table in little space, and what is needed to read it.

    Attributes:
        data: All columns one after the other, each padded to eight bytes; compressed by deflate. Of
            numbers of four or eight bytes, the lowest of all are a column, then the second ones, and
            so on.
        columns: Name, type and length of each.
    """

    data: bytes
    columns: list[schema.Column]

    def text(self) -> Iterator[str]:
        """Yield the data in base64, as a page can hold it, piece by piece."""
        for at in range(0, len(self.data), _WHOLE):
            yield base64.b64encode(self.data[at : at + _WHOLE]).decode()


def packed(table: pl.DataFrame | Iterable[pl.Series], effort: int = 1) -> Packed:
    """Pack columns of numbers, whole ones each in the smallest type that holds it.

    The higher bytes of most large numbers are alike, and the lower ones are not: so they travel apart,
    as Blosc's shuffle does it, and each is compressed as suits it, in half the time and to less.

    Args:
        table: The columns; those that are made one after the other need not all be there at once.
        effort: How hard to compress, from 1 to 9.
    """
    columns: list[schema.Column] = []

    def parts() -> Iterator[memoryview]:
        for column in table.iter_columns() if isinstance(table, pl.DataFrame) else table:
            values = column.to_numpy()
            code, dtype = _smallest(values)
            columns.append(schema.Column(name=column.name, type=code, length=len(values)))
            for part in _planes(np.ascontiguousarray(values, dtype)):
                yield part.data
                yield memoryview(bytes(-len(part) % 8))

    return Packed(deflated(parts(), effort), columns)


def _planes(values: np.ndarray) -> Iterable[np.ndarray]:
    """Return numbers as bytes: of large ones the lowest of all, then the second ones, and so on."""
    of_all, size = values.view(np.uint8), values.dtype.itemsize
    return [of_all] if size < _LARGE else np.ascontiguousarray(of_all.reshape(-1, size).T)


def deflated(parts: Iterable[memoryview], effort: int) -> bytes:
    """Return compressed data as `zlib.compress` does, large pieces at once on as many processors.

    Pieces of deflate end at a byte if they are flushed, and then are one stream when they are put
    together (RFC 1951, section 3.2.4), as pigz does; around it are zlib's header and checksum (RFC
    1950). Of what is to be compressed only some pieces are there at a time.

    Args:
        parts: The data, one part after the other, in bytes.
        effort: From 1 to 9.
    """
    checksum, body = 1, [zlib.compress(b"", effort)[:2]]

    def added_up() -> Iterator[memoryview]:
        nonlocal checksum
        for piece in _pieces(parts):
            checksum = zlib.adler32(piece, checksum)
            yield piece

    body += in_turn(lambda piece: _squeezed(piece, *_suited(piece, effort)), added_up(), _AHEAD)
    return b"".join([*body, _LAST, checksum.to_bytes(4, "big")])


def _squeezed(piece: memoryview, effort: int, strategy: int) -> bytes:
    stream = zlib.compressobj(effort, wbits=-zlib.MAX_WBITS, strategy=strategy)
    return stream.compress(piece) + stream.flush(zlib.Z_SYNC_FLUSH)


def _suited(piece: memoryview, effort: int) -> tuple[int, int]:
    """Return with which effort and strategy of zlib to compress a piece, as samples of it tell.

    What hardly shrinks stays as it is; where nothing comes again, it is not looked for.
    """
    usual = effort, zlib.Z_DEFAULT_STRATEGY
    if len(piece) < _APART:
        return usual
    places = range(0, len(piece), len(piece) // _SAMPLES)[:_SAMPLES]
    sample = memoryview(b"".join(piece[at : at + _SAMPLE] for at in places))
    size = len(_squeezed(sample, *usual))
    if size > _HARDLY * len(sample):
        return 0, zlib.Z_DEFAULT_STRATEGY
    unseen = effort, zlib.Z_HUFFMAN_ONLY
    return unseen if len(_squeezed(sample, *unseen)) <= _AS_GOOD * size else usual


def _pieces(parts: Iterable[memoryview]) -> Iterator[memoryview]:
    """Yield the same bytes in pieces: those of a large part by themselves, of small ones together."""
    small: list[memoryview] = []
    held = 0
    for part in parts:
        if held and (len(part) >= _APART or held + len(part) > _PIECE):
            yield memoryview(b"".join(small))
            small, held = [], 0
        if len(part) < _APART:
            small.append(part)
            held += len(part)
            continue
        for at in range(0, len(part), _PIECE):
            yield part[at : at + _PIECE]
    if held:
        yield memoryview(b"".join(small))


def _smallest(values: np.ndarray) -> tuple[schema.NumberType, type[np.number[Any]]]:
    if values.dtype.kind == "f":
        return "f64", np.float64
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    for code, dtype in _TYPES.items():
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return code, dtype
    return "f64", np.float64


def extents(rows: pl.DataFrame, *place: str) -> list[dict[str, Any]]:
    """Return from where to where the rows of each place on the page go, which stand together."""
    begins = stretches(rows, *place)
    ends = np.append(begins, rows.height)[1:]
    found = rows.select(place)[begins].rename({"position": "rank"})
    return found.with_columns(pl.Series("from", begins), pl.Series("to", ends)).to_dicts()


def arranged(
    timeline: Timeline, overlays: MutableMapping[str, Timeline], ranks: pl.DataFrame
) -> pl.DataFrame:
    """Sort tasks by their place on the page, top to bottom and left to right.

    Args:
        timeline: What was measured.
        overlays: What stands beside it: the name of its lane -> its tasks, all of them compute tasks.
            They are large, and taken out.
        ranks: With rank and position.

    Returns:
        The columns of tasks that the page needs, with position (of the rank in `ranks`), lane as
        `LANE`, row, task (the row in the timeline's tasks, null for those of overlays), overlaid (the
        row in the overlay's tasks, null for what was measured), name as a categorical, and code: the
        number of that name, in the order in which names appear.
    """
    # Each is in order by itself, so that they are only put together.
    parts = [_in_rows(_measured(timeline.tasks.with_row_index("task")))]
    for lane in [*overlays]:
        tasks = overlays.pop(lane).tasks.with_row_index("overlaid")
        rows = _in_rows(tasks.with_columns(task=pl.lit(None, tasks.schema["overlaid"])))
        parts.append(rows.with_columns(lane=pl.lit(lane, LANE)))
        del tasks, rows
    give_back()
    return _top_to_bottom(parts, ranks)


def arranged_apart(runs: Mapping[int, pl.DataFrame], ranks: pl.DataFrame, by: str) -> pl.DataFrame:
    """Sort tasks of what could have run, each by their place on the page, one after the other.

    Args:
        runs: The number of each -> its tasks.
        ranks: With rank and position.
        by: The column of these numbers, which comes first in the order.

    Returns:
        As `arranged`, with that column; neither `task` nor `overlaid` is known.
    """
    tasks = pl.concat(
        [tasks.with_columns(pl.lit(number, pl.Int32).alias(by)) for number, tasks in runs.items()]
    )
    unknown = tasks.with_columns(task=pl.lit(None, pl.UInt32), overlaid=pl.lit(None, pl.UInt32))
    return _top_to_bottom([_in_rows(unknown, by)], ranks, by)


def arranged_among(
    tasks: pl.DataFrame, around: pl.DataFrame, ranks: pl.DataFrame
) -> tuple[pl.DataFrame, list[str]]:
    """Sort tasks of a part of a run by their place on the page.

    Args:
        tasks: Those of the part; `task` are rows of these.
        around: What else ranks were in meanwhile, beside which they have their rows.
        ranks: With rank and position.

    Returns:
        As `arranged`, and the names that `code` numbers.
    """
    own = _measured(tasks.with_row_index("task"))
    others = _measured(around.with_columns(task=pl.lit(None, own.schema["task"])))
    both = _top_to_bottom([_in_rows(pl.concat([own, others.select(own.columns)]))], ranks)
    names = both["name"].unique(maintain_order=True).cast(pl.String).to_list()
    return (both.drop_nulls("task") if others.height else both), names


def _measured(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return tasks with their numbers as ones that were measured."""
    return tasks.with_columns(overlaid=pl.lit(None, tasks.schema["task"]))


def _top_to_bottom(parts: list[pl.DataFrame], ranks: pl.DataFrame, *before: str) -> pl.DataFrame:
    """Put tasks that are in order, each in parts of their own, in the order of the page.

    Args:
        parts: As `_in_rows` returns them.
        ranks: With rank and position.
        before: Columns of numbers that come before the place on the page.
    """
    parts = [part.with_columns(position=_positions(part["rank"], ranks)) for part in parts]
    rows = pl.concat([part.select(pl.col(*before, *TASK_ROW).to_physical()) for part in parts])
    place, _ = numbered(*(values.to_numpy() for values in rows))
    order = order_of_runs(place)
    del rows, place
    give_back()
    tasks = _gathered(parts, order)
    return tasks.with_columns(code=_codes(tasks["name"]))


def _in_rows(tasks: pl.DataFrame, *apart: str) -> pl.DataFrame:
    """Return those columns of tasks that the page needs, with their rows; names are numbers inside.

    Args:
        tasks: The tasks.
        apart: Columns of numbers that tell apart what does not stand beside each other.
    """
    kept = tasks.select(*apart, *_OF_TASKS, pl.col("lane").cast(pl.String).cast(LANE)).with_columns(
        pl.col("name").cast(pl.Categorical), (pl.col("certainty") * 100).round().cast(pl.Int8)
    )
    blocks = list(blocks_of_ranks(kept))
    lanes = (*apart, "rank", "lane")
    return pl.concat(at_once(lambda block: with_rows(block, *lanes).drop("cut_ns"), blocks, A_FEW))


def task_columns(
    tasks: pl.DataFrame, origin_ns: int, row: tuple[str, ...] = TASK_ROW
) -> Iterator[pl.Series]:
    """Yield the columns of arranged tasks, each made in its turn.

    Starts are differences within a row of the page: small numbers, which compress well. Certainty is in
    per cent, and there only if any task was inferred.

    Args:
        tasks: As `arranged` returns them.
        origin_ns: Where the page begins.
        row: What tells their rows apart.
    """
    uncertain = tasks["certainty"].null_count() < tasks.height
    certainty = {"certainty": pl.col("certainty").fill_null(_UNKNOWN)} if uncertain else {}
    return _small(
        tasks,
        gap=_steps(tasks, row, origin_ns),
        length=pl.col("end_ns") - pl.col("start_ns"),
        busy=pl.col("busy_ns").fill_null(_UNKNOWN),
        lead=(pl.col("start_ns") - pl.col("host_start_ns"))
        .clip(lower_bound=_UNKNOWN)
        .fill_null(_UNKNOWN),
        kind=pl.col("kind").to_physical(),
        microbatch=pl.col("microbatch").fill_null(_UNKNOWN),
        chunk=pl.col("chunk").fill_null(_UNKNOWN),
        stage=pl.col("stage").fill_null(_UNKNOWN),
        step=pl.col("step").fill_null(_UNKNOWN),
        peer=pl.col("peer").fill_null(_UNKNOWN),
        pair=pl.col("pair_microbatch").fill_null(_UNKNOWN),
        pair_chunk=pl.col("pair_chunk").fill_null(_UNKNOWN),
        name=pl.col("code"),
        **certainty,
        **{
            name: pl.col(name).fill_null(no)
            for name, no in _ABSENT.items()
            if name in tasks.columns
        },
    )


def most_of(tasks: pl.DataFrame, number: Number) -> int:
    """Return one more than the greatest number of a micro-batch or chunk that tasks have, 0 if none."""
    greatest = tasks.select(pl.max_horizontal(pl.max(number, f"pair_{number}"))).item()
    return 0 if greatest is None else greatest + 1


def _small(frame: pl.DataFrame, **columns: pl.Expr | pl.Series) -> Iterator[pl.Series]:
    """Yield columns of integers, each made in its turn and in a small type."""
    for name, column in columns.items():
        values = frame.select(column).to_series().to_numpy()
        yield pl.Series(name, values.astype(_smallest(values)[1], copy=False))


def counterparts_of(tasks: pl.DataFrame, pairs: pl.DataFrame) -> pl.Series:
    """Return how many rows further the same task of the other run is, 0 where it has none.

    Args:
        tasks: Arranged tasks of two runs.
        pairs: Frame with task and other: rows of the tasks that were measured, and of those of the lane
            "against".
    """
    found = np.zeros(tasks.height, np.int64)
    own = _rows_of(tasks["task"])
    other = _rows_of(
        pl.select(pl.when(tasks["lane"] == "against").then(tasks["overlaid"])).to_series()
    )
    mine, its = own[pairs["task"].to_numpy()], other[pairs["other"].to_numpy()]
    found[mine], found[its] = its - mine, mine - its
    return pl.Series(COUNTERPART, found)


def changes_of(tasks: pl.DataFrame) -> pl.Series:
    """Return by how many ns each task is longer in B than in A, null where it has no counterpart.

    Args:
        tasks: Arranged tasks of two runs, A's above B's, with the column of `counterparts_of`.
    """
    length = (tasks["end_ns"] - tasks["start_ns"]).to_numpy()
    reach = tasks[COUNTERPART].to_numpy()
    change = np.sign(reach) * (length[np.arange(len(reach)) + reach] - length)
    return pl.Series(CHANGE, change).set(tasks[COUNTERPART] == 0, None)


def gaps_of(ledger: Ledger | None, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return the gaps by rank, top to bottom and left to right, with the rank's position.

    Where steps overlap, a moment that is idle in both stays with the gap that began first.
    """
    return (
        pl.DataFrame(schema=GAPS)
        if ledger is None
        else seen(gaps_in_order(ledger.gaps_by_part(), ranks))
    )


def gaps_in_order(parts: Iterable[pl.DataFrame], ranks: pl.DataFrame) -> pl.DataFrame:
    """Return rows of `Ledger.gaps` by rank, top to bottom and left to right, with its position."""
    placed = [
        part.select(*GAPS.keys() - {"position"}, position=_positions(part["rank"], ranks))
        for part in parts
    ]
    if not placed:
        return pl.DataFrame(schema=GAPS)
    # Those of a rank are by step: mostly by start then.
    gaps = in_order(
        _gathered(
            placed, order_of_runs(pl.concat([part["position"] for part in placed]).to_numpy())
        ),
        *("position", "start_ns", "end_ns"),
    ).select(GAPS.keys())
    give_back()
    return gaps


def seen(gaps: pl.DataFrame) -> pl.DataFrame:
    """Return what is seen of gaps in order: where steps overlap, the gap that began first."""
    fresh_ns = intervals.fresh_start_ns(*intervals.columns(gaps, "position"))
    gaps = gaps.with_columns(start_ns=pl.Series(fresh_ns))
    some = gaps["start_ns"] < gaps["end_ns"]
    return gaps if some.all() else gaps.filter(some)


def _positions(rank: pl.Series, ranks: pl.DataFrame) -> pl.Series:
    """Return where ranks are on the page."""
    known = ranks["rank"].to_numpy()
    place = np.zeros(int(known.max(initial=0)) + 1, np.int64)
    place[known] = ranks["position"].to_numpy()
    return pl.Series(rank.name, place[rank.to_numpy()], dtype=ranks.schema["position"])


def _gathered(parts: Sequence[pl.DataFrame], order: Ints) -> pl.DataFrame:
    """Return rows of frames that stand one after the other, and take the columns out of these.

    Such frames are large, so there are never two of all columns, and what is in order stays as it is.
    """
    rows, names, taking = pl.Series(order), parts[0].columns, Lock()
    if len(parts) == 1 and (order == np.arange(len(order))).all():
        return parts[0]

    def gathered(name: str) -> pl.Series | pl.Expr:
        with taking:
            columns = [part.drop_in_place(name) for part in parts]
        if len(order) and all(column.null_count() == len(column) for column in columns):
            return pl.lit(None, columns[0].dtype).alias(name)  # takes no memory
        return pl.concat(columns).gather(rows)

    found = at_once(gathered, names, A_FEW)
    there = pl.DataFrame([one for one in found if isinstance(one, pl.Series)])
    return there.with_columns(one for one in found if isinstance(one, pl.Expr)).select(names)


def gap_columns(gaps: pl.DataFrame, tasks: pl.DataFrame, origin_ns: int) -> pl.DataFrame:
    """Return the columns of gaps; `task` and `root` are rows of the arranged tasks, or -1."""
    found = _small(
        gaps,
        gap=_steps(gaps, ("position",), origin_ns),
        length=pl.col("end_ns") - pl.col("start_ns"),
        step=pl.col("step").fill_null(_UNKNOWN),
        cause=pl.col("cause").to_physical(),
        task_step=pl.Series(np.diff(rows_of(gaps["task"], tasks), prepend=0)),
        root=pl.Series(rows_of(gaps["root"], tasks)),
    )
    return pl.DataFrame([*found])


def link_columns(links: pl.DataFrame, tasks: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of those links of which both tasks are among the arranged ones."""
    source, target = (rows_of(links[side], tasks) for side in ("source", "target"))
    both = (source != _UNKNOWN) & (target != _UNKNOWN)
    # Rows are less than 2^31: as one number, both are sorted at once.
    ends = source[both].astype(np.int64)
    ends <<= 32
    ends |= target[both]
    del source, target, both
    ends.sort()
    source, target = (half.astype(np.int32) for half in (ends >> 32, ends & 0x7FFFFFFF))
    return pl.DataFrame({"source_step": np.diff(source, prepend=0), "reach": target - source})


def phase_columns(phases: pl.DataFrame, ranks: pl.DataFrame, origin_ns: int) -> pl.DataFrame:
    """Return the columns of the pipeline phases of each rank in each step, by rank and time."""
    return (
        phases.join(ranks.select("rank", "position"), on="rank")
        .sort("position", "start_ns", "step")
        .select(
            rank="position",
            step=pl.col("step").fill_null(_UNKNOWN),
            **{
                name: pl.col(f"{name}_ns") - origin_ns
                for name in ("start", "steady", "cool", "end")
            },
        )
    )


def cells_of(bubbles: BubbleRates, ranks: pl.DataFrame, steps: pl.Series) -> pl.DataFrame:
    """Return the columns of how busy each rank was in each step, by rank and step.

    Args:
        bubbles: The rates of the run.
        ranks: With rank and position.
        steps: The steps in the order of the page.

    Returns:
        Frame with rank, step (both as places on the page), busy and span; without rows where the
        makespan is not known, or tasks belong to no step.
    """
    return (
        bubbles.table.drop_nulls("makespan_ns")
        .join(ranks.select("rank", "position"), on="rank")
        .join(steps.to_frame("step").with_row_index("place"), on="step")
        .sort("position", "place")
        .select(rank="position", step="place", busy="busy_ns", span="makespan_ns")
    )


def rows_of(rows: pl.Series, tasks: pl.DataFrame) -> Numbers:
    """Return where among the arranged tasks rows of the timeline's tasks are; -1 if nowhere."""
    wanted = rows.cast(pl.Int32).fill_null(_UNKNOWN).to_numpy()
    found: Numbers = _rows_of(tasks["task"], int(wanted.max(initial=0)))[wanted]
    return found


def _rows_of(numbers: pl.Series, highest: int = 0) -> Numbers:
    """Return where each number is, -1 where it is not; null is none.

    One more than there are, so that the last, which -1 finds, is nowhere.
    """
    known = numbers.drop_nulls().to_numpy()
    at = np.full(max(int(known.max(initial=0)), highest) + 2, _UNKNOWN, np.int32)
    at[known] = numbers.is_not_null().arg_true().to_numpy()
    return at


def _steps(frame: pl.DataFrame, within: tuple[str, ...], first: int) -> pl.Series:
    """Return the differences of starts within rows that stand together, from `first` on."""
    steps = np.diff(frame["start_ns"].to_numpy(), prepend=first)
    turn = np.zeros(len(steps), bool)
    turn[:1] = True
    for name in within:
        values = frame[name].to_physical().to_numpy()
        turn[1:] |= values[1:] != values[:-1]
    begins = np.flatnonzero(turn)
    steps[begins] = frame["start_ns"].gather(begins).to_numpy() - first
    return pl.Series(steps)


def _codes(names: pl.Series) -> pl.Series:
    """Number categorical names in the order of their first appearance."""
    numbers = names.to_physical()
    found = numbers.unique(maintain_order=True).to_numpy()
    codes = np.zeros(int(found.max(initial=0)) + 1, np.uint32)
    codes[found] = np.arange(len(found), dtype=np.uint32)
    return pl.Series(codes[numbers.to_numpy()])
