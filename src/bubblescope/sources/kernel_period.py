"""Steps that nothing marks, told by kernels that come again in the same order.

A job does the same in every step, so the sequence of its kernels' names has a period. So has a single
step: its layers are alike. The steps are the longest period, and it is believed to be of steps only if
it is made of parts that repeat themselves, as layers do, if an optimizer's kernels are in it, or if it
is of very many sorts of kernels: otherwise it may be one layer of a capture shorter than a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bubblescope.model.arrays import Ints, Mask

REPEATS: Final = 3
"""How often a period has to come, whole, to be believed."""
_FEWEST: Final = 12
"""Kernels of the shortest period that may be a step."""
_COVERED: Final = 0.7
"""Share of the kernels that lie in whole periods, at least."""
_EXPLAINED: Final = 0.98
"""Share of the kernels that a period explains if it is better than a multiple of it: what a job does
now and then, such as writing the loss down, makes that one of several steps."""
_ALIKE: Final = 0.95
"""Share of a period's kernels that are those of the usual one, at least."""
_WINDOWS: Final = (1, 4, 16, 64)
"""Lengths of the sequences of kernels that are looked for, in kernels."""
_TRIED: Final = 40
"""Candidates that are looked at in earnest."""
_PART: Final = 6
"""Kernels of the shortest part of a step that counts as a layer."""
_PART_NAMES: Final = 3
"""Different names among them, at least: many copies in a row are no layers."""
_MANY_NAMES: Final = 60
"""Different names of kernels that no single layer has: a transformer's have about 30."""
_PART_COVERED: Final = 0.25
"""Share of a step that its layers make up, at least: a forward's are a third of a training step."""

_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_ODD: Final = np.uint64(0xD6E8FEB86659FD93)


class Period(NamedTuple):
    """A sequence of kernels that comes again and again.

    Attributes:
        starts: Where each begins among the kernels, ascending; the last may be cut off.
        kernels: How many the usual one has.
        whole: How many of them are whole.
        alike: Share of the kernels of these that are those of the usual one.
        explained: Share of all kernels that are in whole ones, and those of the usual one; but for what
            a capture holds of a step at its beginning and its end.
    """

    starts: Ints
    kernels: int
    whole: int
    alike: float
    explained: float


def steps_of_kernels(names: Ints, optimizing: Mask, gap_ns: Ints) -> Period | None:
    """Return the steps that the names of a device's kernels tell.

    Args:
        names: Numbers that kernels of one name share, for n kernels in the order of their launches.
        optimizing: Whether each is known to be an optimizer's.
        gap_ns: How long before each nothing was launched.

    Returns:
        None if nothing repeats that can be believed to be a step.
    """
    marks = np.flatnonzero(optimizing)
    best: Period | None = None
    for anchors, size, reached in _candidates(names, _FEWEST, _COVERED):
        # A shorter period is a better one if it leaves next to nothing unexplained.
        if best is not None and (
            size * 2 > best.kernels or reached < _EXPLAINED * len(names) - size
        ):
            continue
        usual = _usual(names, anchors, size)
        inside = marks[(marks >= usual) & (marks < usual + size)] - usual
        believed = len(inside) > 0 if len(marks) else _has_parts(names[usual : usual + size])
        if not believed:
            continue
        offset = _begin(inside, gap_ns, anchors, size, len(names))
        found = _judged(names, _starts(names, anchors, size, usual, offset), size, usual)
        if found is None or (best is not None and found.explained < _EXPLAINED):
            continue
        best = found
    return best


def _has_parts(names: Ints) -> bool:
    """Say whether a sequence of kernels is of a whole step: of many sorts, or with layers in it."""
    if len(np.unique(names)) >= _MANY_NAMES:
        return True
    sums = _sums(names)
    for anchors, size, _ in _candidates(names, _PART, _PART_COVERED):
        begin = anchors[:-1][np.diff(anchors) == size]
        if len(begin) < REPEATS or len(np.unique(names[begin[0] : begin[0] + size])) < _PART_NAMES:
            continue
        alike = np.unique(sums[begin + size] - sums[begin], return_counts=True)[1].max()
        if alike >= REPEATS and alike * size >= _PART_COVERED * len(names):
            return True
    return False


def _hashes(names: Ints, windows: tuple[int, ...]) -> dict[int, NDArray[np.uint64]]:
    """Return, for each length, a hash of as many names from each position on."""
    found, length = {}, 1
    value = _mixed(names.astype(np.uint64))
    while length <= windows[-1]:
        if length in windows and len(value):
            found[length] = value
        value = _mixed(value[:-length] * _ODD + value[length:])
        length *= 2
    return found


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values + np.uint64(1)) * _MIX
    return values ^ (values >> np.uint64(29))


def _candidates(names: Ints, fewest: int, covered: float) -> list[tuple[Ints, int, int]]:
    """Return what may be periods, the longest first.

    Returns:
        For each where a sequence of kernels comes again, how far apart, and how many kernels lie
        between those of its places that are about that far apart.
    """
    total = len(names)
    tables = []
    if total < REPEATS * fewest:
        return []
    hashes = _hashes(names, _WINDOWS)
    for window, value in hashes.items():
        frame = pl.DataFrame({"hash": value}).with_row_index("at")
        often = frame.filter(pl.len().over("hash").is_between(REPEATS, total // fewest + 1))
        gaps = (
            often.with_columns(gap=pl.col("at").cast(pl.Int64).diff().over("hash"))
            .with_columns(usual=pl.col("gap").median().over("hash"))
            .with_columns(close=(pl.col("gap") - pl.col("usual")).abs() * 20 <= pl.col("usual"))
        )
        tables.append(
            gaps.group_by("hash")
            .agg(
                pl.col("usual").first(),
                pl.col("at").first().alias("first"),
                reached=pl.col("gap").filter("close").sum(),
            )
            .filter(
                pl.col("usual") >= fewest,
                pl.col("reached") + pl.col("usual") >= covered * total,
            )
            .with_columns(window=pl.lit(window))
        )
    found = pl.concat(tables).sort(
        "usual", "reached", "window", "first", descending=[True, True, False, False]
    )
    tried = found.unique(pl.col("usual").cast(pl.Int64), keep="first", maintain_order=True)
    return [
        (np.flatnonzero(hashes[window] == value), int(usual), int(reached + usual))
        for value, usual, reached, window in tried.head(_TRIED)
        .select("hash", "usual", "reached", "window")
        .iter_rows()
    ]


def _sums(names: Ints) -> NDArray[np.uint64]:
    """Return running sums whose differences tell which names a stretch of kernels has."""
    return np.concatenate([[np.uint64(0)], np.cumsum(_mixed(names.astype(np.uint64)))])


def _usual(names: Ints, anchors: Ints, size: int) -> int:
    """Return where the most common of the stretches between anchors, of about that size, begins."""
    sums, begin, end = _sums(names), anchors[:-1], anchors[1:]
    exact = np.flatnonzero(end - begin == size)
    if not len(exact):
        return int(begin[np.argmin(np.abs(end - begin - size))])
    _, first, counts = np.unique(
        sums[end[exact]] - sums[begin[exact]], return_index=True, return_counts=True
    )
    most = first[counts == counts.max()].min()
    return int(begin[exact[most]])


def _begin(inside: Ints, gap_ns: Ints, anchors: Ints, size: int, total: int) -> int:
    """Return how long after an anchor a step begins, in kernels.

    That is after the last of an optimizer's kernels; else at the first kernel of a capture that holds
    whole steps alone; else where the host usually waits longest.
    """
    if len(inside):
        ahead = np.diff(inside, append=inside[0] + size)
        return int(inside[np.argmax(ahead)] + 1) % size
    if abs(total - round(total / size) * size) * 50 <= size:
        return int(-anchors[0] % size)
    exact = anchors[:-1][np.diff(anchors) == size]
    if not len(exact):
        return 0
    return int(np.argmax(np.median(gap_ns[exact[:, None] + np.arange(size)], axis=0)))


def _starts(names: Ints, anchors: Ints, size: int, usual: int, offset: int) -> Ints:
    """Return where steps begin: that far behind each anchor, or before the next if that is alike."""
    sums = _sums(names)
    behind = np.append(anchors[1:], anchors[-1] + size)
    after = np.minimum(anchors + offset, len(names))
    usual_part, usual_rest = np.diff(sums[[usual, usual + offset, usual + size]])
    same = sums[after] - sums[anchors] == usual_part
    starts = np.where(same, after, np.maximum(behind - (size - offset), anchors))
    first = int(anchors[0]) + offset - size
    if first >= 0 and np.diff(sums[[first, anchors[0]]])[0] == usual_rest:
        starts = np.append(first, starts)
    elif anchors[0] and abs(first) * 50 <= size:
        starts = np.append(0, starts)
    return np.unique(starts[starts < len(names)])


def _judged(names: Ints, starts: Ints, size: int, usual: int) -> Period | None:
    """Return the period, if enough of its stretches are whole and alike."""
    ends = np.append(starts[1:], len(names))
    length = ends - starts
    stretch = np.repeat(np.arange(len(starts)), length)
    held = pl.DataFrame({"stretch": stretch, "name": names[starts[0] :]})
    expected = pl.DataFrame({"name": names[usual : usual + size]}).group_by("name").len("usual")
    shared = (
        held.group_by("stretch", "name")
        .len("held")
        .join(expected, on="name")
        .group_by("stretch")
        .agg(shared=pl.min_horizontal("held", "usual").sum())
    )
    common = np.zeros(len(starts), np.int64)
    common[shared["stretch"].to_numpy()] = shared["shared"].to_numpy()
    longer = np.maximum(length, size)
    whole = common >= _ALIKE * longer
    # A capture may begin and end within a step.
    inside = len(names) - (starts[0] if starts[0] < size else 0)
    inside -= length[-1] if not whole[-1] and length[-1] < size else 0
    if whole.sum() < REPEATS or length[whole].sum() < _COVERED * inside:
        return None
    alike = float(common[whole].sum() / longer[whole].sum())
    explained = float(common[whole].sum() / inside)
    return Period(starts, size, int(whole.sum()), alike, explained)
