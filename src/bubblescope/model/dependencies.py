"""What feeds what: the way of every micro-batch from stage to stage, and its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from bubblescope.model.cached_results import remembered
from bubblescope.model.kinds import BACKWARDS, Kind, Lane
from bubblescope.model.ordering import combined, distinct, stretches
from bubblescope.model.timeline_tables import PIPELINE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bubblescope.model.arrays import Ints, Mask
    from bubblescope.model.timeline import Timeline

_FORWARD: Final = [Kind.FORWARD.value, Kind.FORWARD_BACKWARD.value]
_BACKWARD: Final = [kind.value for kind in BACKWARDS]
_SENDS: Final = [Kind.SEND_FORWARD.value, Kind.SEND_BACKWARD.value]
_RECEIVES: Final = [Kind.RECV_FORWARD.value, Kind.RECV_BACKWARD.value]
_PAIR: Final = Kind.FORWARD_BACKWARD.value

_NEEDED: Final = (
    *("rank", "step", "kind", "lane"),
    *("stage", "microbatch", "pair_stage", "pair_microbatch"),
)
"""Columns of tasks that tell what feeds what."""

_ROW_BITS: Final = 31
"""Of the number of a row."""

_NO_STEP: Final = np.iinfo(np.int32).min

_MANY: Final = 1 << 18
"""Tasks of which not all are looked at at once."""

_SPARSE: Final = 8
"""Keys that there may be for each that there is, before it is faster to sort them."""

_GROUPS: Final = 8
"""Groups of steps that are looked at one after the other: so much less memory is needed."""


def feeds(
    works: pl.DataFrame, within: tuple[str, ...] = (), *, held_once: bool | None = None
) -> pl.DataFrame:
    """Return each forward or backward beside the one on the next stage that needs its result.

    A forward feeds that of the stage after, a backward that of the stage before. Both halves of an
    overlapped pair count. Where several ranks work on the same micro-batch of a stage, the k-th of them
    is of the k-th pipeline. Works that are there twice are left out.

    Args:
        works: Frame with work (their numbers), rank, kind, stage, microbatch, pair_stage and
            pair_microbatch, and the columns that `within` names. What has no stage or no micro-batch
            feeds nothing.
        within: What both have in common besides, such as the step.
        held_once: Whether one rank alone holds each stage; None if that is not known yet.

    Returns:
        Frame with source and target (numbers of works), `backward`, whether the source is a backward,
        and stage and microbatch, which the source works on; in no order.
    """
    columns = ["work", "rank", *within, "stage", "microbatch"]
    paired = works.filter(pl.col("kind") == _PAIR)
    backwards = _known(works, _BACKWARD, columns)
    if paired.height:
        both = paired.with_columns(stage="pair_stage", microbatch="pair_microbatch")
        backwards = pl.concat([backwards, _known(both, [_PAIR], columns)])
    found = []
    for known, ahead in ((_known(works, _FORWARD, columns), 1), (backwards, -1)):
        copied = known.with_columns(copy=_copies(known, within, held_once=held_once))
        source, target = _following(*_keys(copied, (*within, "copy")), ahead)
        fed = known.select("microbatch", "stage", source="work")[source]
        found.append(
            fed.with_columns(target=known["work"].gather(target), backward=pl.lit(ahead < 0))
        )
    return pl.concat(found).select("microbatch", "source", "target", "backward", "stage")


def _known(works: pl.DataFrame, kinds: list[str], columns: list[str]) -> pl.DataFrame:
    """Return the works of some kinds of which it is known on what they work."""
    there = pl.col("stage").is_not_null() & pl.col("microbatch").is_not_null()
    return works.filter(pl.col("kind").is_in(kinds), there).select(columns)


def _copies(works: pl.DataFrame, within: tuple[str, ...], *, held_once: bool | None) -> pl.Expr:
    """Return which of the ranks that work on the same micro-batch of a stage each is of, from 1."""
    stage = [*(name for name in within if name != "step"), "stage"]
    if held_once is None:
        held_once = _held_once(distinct(works, *stage, "rank"))
    if held_once:
        return pl.lit(1, pl.UInt32)
    return pl.col("rank").rank("dense").over([*stage, "microbatch"])


def _held_once(held: pl.DataFrame) -> bool:
    """Say whether one rank alone holds each stage, given columns that tell stages apart, and rank."""
    return held.select(pl.exclude("rank")).n_unique() == held.height


def _keys(works: pl.DataFrame, within: tuple[str, ...]) -> tuple[Ints, int]:
    """Return a number for what each work has in common with others: that of the next stage is one more.

    Joining by it is many times as fast as by as many columns.

    Returns:
        The numbers, and one more than the greatest, those of stages next to these included.
    """
    names = (*within, "microbatch", "stage")
    return combined(*(_filled(works[name]) for name in names), room=1)


def _filled(column: pl.Series) -> Ints:
    """Return numbers, of which one that is else not there stands for what is unknown."""
    column = column.cast(pl.Int64)
    if column.has_nulls():
        column = column.fill_null((column.min() or 0) - 1)  # type: ignore[operator]
    return column.to_numpy()


def _following(key: Ints, size: int, ahead: int) -> tuple[Ints, Ints]:
    """Return the places of keys that are there once, and of those that are so many more.

    Args:
        key: The keys.
        size: One more than any, and than what follows any.
        ahead: How many more.
    """
    if size <= _SPARSE * len(key):
        once = np.bincount(key, minlength=size) == 1
        place = np.zeros(size, np.int64)
        place[key] = np.arange(len(key))
        source = np.flatnonzero(once[key] & once[key + ahead])
        return source, place[key[source] + ahead]
    # Sorted and looked up in their order, which is many times as fast as a join.
    order = np.argsort(key, kind="stable")
    keys = key[order]
    twice = np.zeros(len(keys), bool)
    twice[1:] = keys[1:] == keys[:-1]
    twice[:-1] |= twice[1:]
    order, keys = order[~twice], keys[~twice]
    at = np.minimum(np.searchsorted(keys, keys + ahead), max(len(keys) - 1, 0))
    there = keys[at] == keys + ahead
    return order[there], order[at[there]]


@remembered
def passes(timeline: Timeline) -> pl.DataFrame:
    """Return which tasks of a timeline feed which, as `feeds` has it.

    Pipelines that stand side by side are told apart by the ranks' data, tensor and context parallel
    coordinates.

    Returns:
        Frame with source and target, row numbers in `timeline.tasks`, and `backward`; sorted by source.
    """
    coordinates = timeline.ranks.select(
        "rank", pipeline=pl.struct(pl.col(PIPELINE).fill_null(-1)).rank("dense")
    )
    tasks = timeline.tasks.select(*_NEEDED)
    groups, held_once = _some_at_a_time(tasks, coordinates)
    ranks = coordinates["rank"].to_numpy()
    pipeline = np.zeros(int(ranks.max(initial=0)) + 1, np.uint32)
    pipeline[ranks] = coordinates["pipeline"].to_numpy()

    def fed_of(rows: NDArray[np.uint32]) -> pl.DataFrame:
        works = _rows_of(tasks, rows)
        works = works.with_columns(
            work=pl.Series(rows, dtype=pl.UInt32),
            pipeline=pl.Series(pipeline[works["rank"].to_numpy()], dtype=pl.UInt32),
        )
        within = ("step", "pipeline")
        return feeds(works, within, held_once=held_once).select("source", "target", "backward")

    fed = pl.concat(map(fed_of, groups))
    # Rows are less than 2^31: as one number, all columns are sorted at once.
    key = fed["source"].to_numpy().astype(np.int64)
    for name, bits in (("target", _ROW_BITS), ("backward", 1)):
        key <<= bits
        key |= fed[name].to_numpy()
    del fed
    key.sort()
    backward = pl.Series("backward", (key & 1).astype(bool))
    key >>= 1
    target = pl.Series("target", (key & ((1 << _ROW_BITS) - 1)).astype(np.uint32))
    key >>= _ROW_BITS
    return pl.DataFrame([pl.Series("source", key.astype(np.uint32)), target, backward])


def _rows_of(frame: pl.DataFrame, rows: NDArray[np.uint32]) -> pl.DataFrame:
    """Return rows of a frame, ascending, and a part of it as it is if they are one."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
        return frame[int(rows[0]) : int(rows[-1]) + 1]
    return frame[rows]


def _some_at_a_time(
    tasks: pl.DataFrame, coordinates: pl.DataFrame
) -> tuple[list[NDArray[np.uint32]], bool | None]:
    """Return the rows of tasks of the compute lane, of a large run some steps at a time.

    Steps have nothing to do with each other, but for which of several ranks is of which pipeline where
    they hold the same stage: then all are needed at once.

    Args:
        tasks: Frame with `_NEEDED`.
        coordinates: Frame with rank and pipeline.

    Returns:
        The rows of each group of steps; and whether one rank alone holds each stage of its pipeline,
        None if that is not known.
    """
    compute = (tasks["lane"] == Lane.COMPUTE.value).to_numpy()
    if tasks.height > _MANY:
        stages = [
            distinct(tasks.select("rank", held=name), "rank", "held").drop_nulls()
            for name in ("stage", "pair_stage")
        ]
        held = pl.concat(stages).unique().join(coordinates, on="rank")
        step = tasks["step"].fill_null(_NO_STEP).to_numpy()
        if _held_once(held):
            known = distinct(tasks, "step")["step"].fill_null(_NO_STEP).sort().to_numpy()
            return [
                _places(compute & (step >= steps[0]) & (step <= steps[-1]))
                for steps in np.array_split(known, min(_GROUPS, len(known)))
            ], True
    return [_places(compute)], None


def _places(mask: Mask) -> NDArray[np.uint32]:
    return np.flatnonzero(mask).astype(np.uint32)


@remembered
def messages(timeline: Timeline) -> pl.DataFrame:
    """Return each send beside its receive.

    Both are of the same step, direction, micro-batch and pair of ranks, and there are as many of one
    as of the other; of several, the k-th is taken for the k-th.

    Returns:
        Frame with send and receive, row numbers in `timeline.tasks`, `backward`, whether they carry
        gradients, and `turn` and `count`: which of how many it is.
    """
    key = ["step", "backward", "microbatch", "from", "to"]
    tasks = timeline.tasks
    if tasks["peer"].null_count() == tasks.height:  # most runs have none, and looking takes time
        return pl.DataFrame(schema=_MESSAGES)
    known = (
        tasks.select("rank", "step", "kind", "microbatch", "start_ns", "end_ns", "peer")
        .with_row_index("task")
        .filter(pl.col("microbatch").is_not_null(), pl.col("rank") != pl.col("peer"))
    )
    ends = []
    for kinds, at, names in (
        (_SENDS, "start_ns", {"rank": "from", "peer": "to"}),
        (_RECEIVES, "end_ns", {"rank": "to", "peer": "from"}),
    ):
        own = known.filter(pl.col("kind").is_in(kinds)).rename(names)
        end = own.with_columns(backward=pl.col("kind") == kinds[1])
        ends.append(with_turns(end, key, at).select("task", *key, "turn", "count"))
    one, other = ends
    return one.join(other, on=[*key, "turn", "count"], suffix="_met", nulls_equal=True).select(
        "turn", "count", send="task", receive="task_met", backward="backward"
    )


_MESSAGES: Final = {
    "turn": pl.Int64,
    "count": pl.Int64,
    "send": pl.UInt32,
    "receive": pl.UInt32,
    "backward": pl.Boolean,
}


def with_turns(frame: pl.DataFrame, key: list[str], at: str) -> pl.DataFrame:
    """Add `turn` and `count`: which of how many with the same key a row is, by time.

    Sorting is many times as fast as windows over as many columns.
    """
    ordered = frame.sort(*key, at, nulls_last=True)
    first = stretches(ordered, *key)
    sizes = np.diff(first, append=ordered.height)
    turn = np.arange(ordered.height) - np.repeat(first, sizes)
    return ordered.with_columns(
        pl.Series("turn", turn), pl.Series("count", np.repeat(sizes, sizes))
    )
