"""Why a device was idle, told by the operation that ends the gap.

Until the call that launches it begins, the host is late; while that call runs, the launch is on its
way; what is left is the latency of a launch if it is short. Otherwise the operation waited: for an
event, if its stream had been told to wait for one, or else for something that the trace does not show.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.model.budget import LATENCY_NS, Use
from bubblescope.model.device_time import NONE, innermost, owner_at
from bubblescope.model.intervals import overlaps, reached_ns
from bubblescope.model.ordering import stretches_of
from bubblescope.names.host_ranges import awaits, calls_ranks
from bubblescope.sources.capture import (
    ANNOTATED,
    BLOCKED,
    DATA,
    EXCHANGE,
    GC,
    OPERATOR,
    OPTIMIZER,
    PYTHON,
    RUNTIME,
    SYSTEM,
)
from bubblescope.sources.stretch_sums import CODE, Bulk, Parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bubblescope.model.arrays import Ints, Mask
    from bubblescope.sources.capture import Capture

_USE_OF: Final = {
    ANNOTATED: Use.HOST_UNKNOWN,
    SYSTEM: Use.HOST_SYSTEM,
    EXCHANGE: Use.RANK_WAIT,
    PYTHON: Use.HOST_PYTHON,
    OPERATOR: Use.HOST_OPERATOR,
    DATA: Use.HOST_DATA,
    OPTIMIZER: Use.HOST_OPTIMIZER,
    RUNTIME: Use.HOST_CALL,
    GC: Use.HOST_GC,
}
_UNKNOWN: Final = -1

SILENT_NS: Final = 100_000_000
"""How long a process is silent at least where its profiler may have been off."""

_MANY: Final = 100
"""How many events it would have left in that time, at its rate."""

BY_DRIVER: Final = NONE - 1
"""Stands for the call where none launches anything: the driver goes on moving pages of unified memory
to a device."""

BY_TOUCH: Final = NONE - 2
"""The same where it begins to, or moves them to the host: the host touched or prefetched them just
then. Until then it did something else, and had the device do nothing."""

_OF_NO_CALL: Final = {NONE: Use.UNLINKED, BY_DRIVER: Use.PAGES, BY_TOUCH: Use.HOST_UNKNOWN}


class Calls(NamedTuple):
    """The calls of one process that may have launched something.

    Attributes:
        start_ns, end_ns: When each began and ended, in host time; the end is not before the start.
        thread: The thread that made it.
    """

    start_ns: Ints
    end_ns: Ints
    thread: Ints


class Gaps(NamedTuple):
    """The idle time of one device, and what ends each stretch of it.

    Attributes:
        start_ns, end_ns: Their edges, ascending.
        call: The call that launched what ends each, `NONE` if not known, `BY_DRIVER` or `BY_TOUCH`.
        stream: The stream of what ends each; `NONE` if not known. None if it does not matter.
        before_ns: When the operation before it on that stream was launched; `NONE` if there is none.
            None if it does not matter.
    """

    start_ns: Ints
    end_ns: Ints
    call: Ints
    stream: Ints | None
    before_ns: Ints | None

    def chosen(self, rows: Mask | Ints) -> Gaps:
        """Return some of the gaps."""
        stream, before = (
            None if column is None else column[rows] for column in (self.stream, self.before_ns)
        )
        return Gaps(self.start_ns[rows], self.end_ns[rows], self.call[rows], stream, before)


def judge(gaps: Gaps, calls: Calls, host: Host) -> Iterator[Bulk | Parts]:
    """Cut gaps by why the device was idle.

    Most gaps are short, and end with something launched long before. Nothing but their length matters,
    so that what takes time is only done for the others.

    Args:
        gaps: Those of one device, or some that follow each other.
        calls: What may have launched what ends them.
        host: What the host did meanwhile.

    Yields:
        Pieces that together are the gaps; their details are indices into `Capture.host_names`.
    """
    linked = gaps.call >= 0
    known = gaps
    if not linked.all():
        for call, use in _OF_NO_CALL.items():
            of = gaps.call == call
            yield Bulk.of(use, gaps.start_ns[of], gaps.end_ns[of])
        known = gaps.chosen(linked)
    done = calls.end_ns[known.call]
    slow = np.flatnonzero(done > known.start_ns)  # what ends these was not launched before them
    np.clip(done, known.start_ns, known.end_ns, out=done)
    if len(slow):
        of, start = known.call[slow], known.start_ns[slow]
        begun = np.clip(calls.start_ns[of], start, known.end_ns[slow])
        yield Bulk.of(Use.LAUNCH_CALL, begun, done[slow])
        late = np.flatnonzero(begun > start)
        start, begun, thread = start[late], begun[late], calls.thread[of[late]]
        if (begun - start >= SILENT_NS).any():
            low, high = _both(start, begun, *host.silences(calls))
            yield Bulk.of(Use.SILENT, low, high)
            rest, begun = np.sort(np.append(start, high)), np.sort(np.append(begun, low))
            thread = thread[np.searchsorted(start, rest, side="right") - 1]
            kept = rest < begun
            start, begun, thread = rest[kept], begun[kept], thread[kept]
        yield from host.late(start, begun, thread)
    waited = np.flatnonzero(known.end_ns - done >= LATENCY_NS)
    if len(waited):
        waiting = known.chosen(waited)
        launched = Calls(*(column[waiting.call] for column in calls))
        yield host.waiting(done[waited], waiting, launched)
        done[waited] = known.end_ns[waited]
    yield Bulk.of(Use.LATENCY, done, known.end_ns)


class Host:
    """What the threads of one process did.

    Args:
        capture: What the trace recorded.
        process: The process.
    """

    def __init__(self, capture: Capture, process: int) -> None:
        self._capture, self._process = capture, process
        self._threads: dict[int, tuple[_Blocked, _Did]] = {}
        self._silences: tuple[Ints, Ints] | None = None

    @cached_property
    def _told(self) -> pl.DataFrame:
        """What all threads did, by start: it may be most of a trace, so it is sorted only if needed."""
        lasting = pl.col("end_ns") > pl.col("start_ns")
        told = self._capture.host.lazy().filter(pl.col("process") == self._process, lasting)
        return told.drop("process").sort("start_ns").collect()

    @cached_property
    def _exchanges(self) -> pl.DataFrame:
        """The exchanges with other ranks, as those of the threads that asked for them.

        Gloo works on a collective in a thread that does nothing else, right after an operator of the
        thread that asked for it.
        """
        exchanges = self._told.filter(doing=EXCHANGE)
        if not exchanges.height:
            return exchanges
        names = self._capture.host_names
        asking = [number for number, name in enumerate(names) if calls_ranks(name)]
        others = self._told.filter(pl.col("doing") != EXCHANGE)
        asked = others.filter(pl.col("doing") == OPERATOR, pl.col("name").is_in(asking))
        own = pl.col("thread").is_in(others["thread"].unique().implode())
        asker = pl.when(own).then("thread").otherwise(pl.coalesce("asker", "thread"))
        return (
            exchanges.join_asof(asked.select("start_ns", asker="thread"), on="start_ns")
            .with_columns(thread=asker)
            .drop("asker")
        )

    @cached_property
    def _awaiting(self) -> Mask:
        """Which of `Capture.host_names` are functions that may wait for other ranks."""
        return np.array([awaits(name) for name in self._capture.host_names], bool)

    @cached_property
    def _unseen(self) -> Mask:
        """Which of `Capture.host_names` may have had devices do what the trace does not show."""
        unseen, names = self._capture.unseen, self._capture.host_names
        if not unseen:  # as in most traces, which may have a million names
            return np.zeros(len(names), bool)
        return np.array([name in unseen for name in names], bool)

    @cached_property
    def _blocked(self) -> pl.DataFrame:
        """The calls in which threads were blocked."""
        return self._told.filter(doing=BLOCKED)

    def silences(self, calls: Calls) -> tuple[Ints, Ints]:
        """Return when a profiler may have been off, disjoint and ascending.

        That is where nothing at all of the process is in the trace for long, though at the rate of the
        rest of the trace there would be much. Only traces that may say when their profiler was on, and
        do not, are doubted.

        Args:
            calls: Those of the process.
        """
        if self._silences is None:
            recorded = self._capture.recorded
            if recorded is None or recorded.height:
                self._silences = np.zeros(0, np.int64), np.zeros(0, np.int64)
            else:
                self._silences = self._without_events(calls)
        return self._silences

    def _without_events(self, calls: Calls) -> tuple[Ints, Ints]:
        """Return when nothing of the process is in the trace for as long as `silences` asks for."""
        start, end = (
            np.concatenate([self._told[name].to_numpy(), times])
            for name, times in (("start_ns", calls.start_ns), ("end_ns", calls.end_ns))
        )
        order = np.argsort(start, kind="stable")
        since, until = reached_ns(end[order])[1:], start[order][1:]
        long = until - since >= SILENT_NS
        since, until = since[long], until[long]
        heard = int(end.max() - start.min() - (until - since).sum()) if len(since) else 0
        much = (until - since) * (len(start) / max(heard, 1)) >= _MANY
        return since[much], until[much]

    def late(self, start: Ints, end: Ints, thread: Ints) -> Iterator[Bulk | Parts]:
        """Say what the host did in stretches in which it had to launch and did not.

        It waited for other ranks if the launching thread did for the most part: with whatever it was
        busy before, it could not have launched. Else it was blocked if that thread was in a blocking
        call as the stretch began. Otherwise what it did for the most part counts. Other threads do not:
        the main one, say, is in Python all the while that autograd's own thread runs a backward.

        Without the call, the host would have launched sooner by the length of the call at most. What
        exceeds that is told apart, with what the thread did then for the most part.
        """
        for one in _distinct(thread):
            rows = np.flatnonzero(thread == one)
            yield from self._of_thread(one, start[rows], end[rows])

    def _of_thread(self, thread: int, start: Ints, end: Ints) -> Iterator[Bulk | Parts]:
        """Say what one thread did in stretches of time."""
        if thread not in self._threads:
            told = self._told.filter(pl.col("thread") == thread, pl.col("doing") != EXCHANGE)
            exchanges = self._exchanges.filter(thread=thread)
            awaiting = np.empty(0, bool)
            if exchanges.height:
                told = pl.concat([told, exchanges]).sort("start_ns")
                awaiting = self._awaiting
            did = _did(told, awaiting)
            self._threads[thread] = (_Blocked.of(self._blocked.filter(thread=thread)), did)
        calls, did = self._threads[thread]
        call = calls.did.names_at(start)
        blocked = np.flatnonzero(call != NONE)
        if (did.doing == EXCHANGE).any():
            mostly = _mostly(did, start[blocked], end[blocked])
            blocked = blocked[mostly.use != CODE[Use.RANK_WAIT]]
        unseen = self._unseen[call[blocked]]
        sooner = start[blocked] + calls.lengths_at(start[blocked])
        until = np.where(unseen, end[blocked], np.minimum(sooner, end[blocked]))
        uses = np.where(unseen, CODE[Use.UNTRACED], CODE[Use.HOST_AFTER_SYNC])
        yield _named(start[blocked], until, uses, call[blocked])
        longer = until < end[blocked]
        then = _mostly(did, until[longer], end[blocked][longer])
        yield then._replace(use=np.full_like(then.use, CODE[Use.HOST_AFTER_SYNC]), then=then.use)
        several = np.setdiff1d(did.changing(start, end), blocked)
        yield _mostly(did, start[several], end[several])
        # The thread did one thing all through every other stretch.
        end = end.copy()
        for rows in (blocked, several):
            end[rows] = start[rows]
        yield Bulk(start, end, did.since_ns, _uses(did.doing), did.name)

    def waiting(self, start: Ints, gaps: Gaps, calls: Calls) -> Parts:
        """Say what operations waited for that were launched and did not start.

        The call in which the launching thread, or else any, was blocked meanwhile is named as evidence.

        Args:
            start: From when on each was ready.
            gaps: What they ended.
            calls: What launched each.
        """
        end = gaps.end_ns
        use = np.full(len(start), CODE[Use.UNTRACED], np.int64)
        name = np.full(len(start), NONE, np.int64)
        if len(start) and self._blocked.height:
            middle = start + (end - start) // 2
            for one in _distinct(calls.thread):
                rows = np.flatnonzero(calls.thread == one)
                name[rows] = _inside(self._blocked.filter(thread=one), middle[rows])
            others = np.flatnonzero(name == NONE)
            name[others] = _inside(self._blocked, middle[others])
        told = self._capture.waits
        if told is not None and gaps.stream is not None and gaps.before_ns is not None:
            for (stream,), waits in told.filter(process=self._process).group_by("stream"):
                rows = np.flatnonzero(gaps.stream == stream)
                begun = np.append(NONE, waits["start_ns"].sort().to_numpy())
                last = begun[np.searchsorted(begun[1:], calls.start_ns[rows], side="right")]
                waited = (last != NONE) & (last >= gaps.before_ns[rows])
                use[rows[waited]] = CODE[Use.EVENT_WAIT]
        return _named(start, end, use, name)


def _both(start: Ints, end: Ints, since: Ints, until: Ints) -> tuple[Ints, Ints]:
    """Return the stretches that two series of them share, each disjoint and ascending."""
    at, of = overlaps(
        np.searchsorted(until, start, side="right"), np.searchsorted(since, end, side="left")
    )
    return np.maximum(start[at], since[of]), np.minimum(end[at], until[of])


def _named(start: Ints, end: Ints, use: Ints, name: Ints) -> Parts:
    none = np.full(len(start), NONE)
    return Parts(start, end, use, name, none, none)


class _Did(NamedTuple):
    """What one thread did, moment by moment.

    Attributes:
        since_ns: Moments, ascending, the first before all others.
        doing, name: What it did from each of them on, `_UNKNOWN` for nothing known, and its name.
    """

    since_ns: Ints
    doing: Ints
    name: Ints

    def names_at(self, times: Ints) -> Ints:
        """Return the names of what it did at some times, which are ascending, or `NONE`."""
        low = np.searchsorted(self.since_ns, times[0], side="right") - 1
        high = np.searchsorted(self.since_ns, times[-1], side="right")
        first = np.searchsorted(times, self.since_ns[low + 1 : high])
        return np.repeat(self.name[low:high], np.diff(first, prepend=0, append=len(times)))

    def changing(self, start: Ints, end: Ints) -> Ints:
        """Return in which of some stretches, disjoint and ascending, it did several things."""
        low = np.searchsorted(self.since_ns, start[0], side="right")
        moments = self.since_ns[low : np.searchsorted(self.since_ns, end[-1])]
        row = np.searchsorted(start, moments) - 1  # the last that begins before each
        return np.unique(row[end[row] > moments])


_NEVER: Final = 1 << 62


class _Blocked(NamedTuple):
    """In which calls one thread was blocked.

    Attributes:
        did: The innermost, moment by moment.
        start_ns, end_ns: The outermost, ascending.
    """

    did: _Did
    start_ns: Ints
    end_ns: Ints

    @classmethod
    def of(cls, told: pl.DataFrame) -> _Blocked:
        """Return them, given a frame with the columns of `HOST` by start."""
        start, end = told["start_ns"].to_numpy(), told["end_ns"].to_numpy()
        edges, owner = innermost(start, end)
        name = np.append(told["name"].to_numpy(), NONE)[np.append(NONE, owner)].astype(np.int64)
        since, doing = np.append(-_NEVER, edges), np.where(name == NONE, _UNKNOWN, BLOCKED)
        first = np.flatnonzero(start >= reached_ns(end))
        until = np.maximum.reduceat(end, first) if len(first) else end
        return cls(_Did(since, doing, name), start[first], until)

    def lengths_at(self, times: Ints) -> Ints:
        """Return how long the outermost call is that each of some times, which lie in one, is in."""
        row = np.searchsorted(self.start_ns, times, side="right") - 1
        return self.end_ns[row] - self.start_ns[row]


def _did(told: pl.DataFrame, awaiting: Mask) -> _Did:
    """Return what a thread did: the innermost of the sort that tells the most.

    An exchange may go on in the background. If Python is shown, its thread waits for it only in a
    function that waits.

    Args:
        told: Frame with the columns of `HOST`, by start.
        awaiting: Which names are such functions; empty where there is no exchange.
    """
    sorts = [told.filter(doing=code) for code in _USE_OF]
    found = [innermost(one["start_ns"].to_numpy(), one["end_ns"].to_numpy()) for one in sorts]
    since = np.unique(np.concatenate([np.array([-_NEVER]), *(edges for edges, _ in found)]))
    doing, name = np.full(len(since), _UNKNOWN, np.int64), np.full(len(since), NONE, np.int64)
    for code, one, (edges, owner) in zip(_USE_OF, sorts, found, strict=True):
        held = np.append(NONE, owner)[np.searchsorted(edges, since, side="right")]
        rows = np.flatnonzero(held != NONE)
        if code == PYTHON and len(awaiting):
            waits = awaiting[one["name"].to_numpy()[held[rows]]] & (doing[rows] == EXCHANGE)
            rows = rows[~waits]
        doing[rows], name[rows] = code, one["name"].to_numpy()[held[rows]]
    return _Did(since, doing, name)


def _uses(doing: Ints) -> Ints:
    """Return what a device's time is spent on that waits for a thread that does this."""
    codes = [*_USE_OF, _UNKNOWN]
    table = np.empty(max(codes) + 2, np.int64)  # the last stands for `_UNKNOWN`
    table[codes] = [CODE[use] for use in (*_USE_OF.values(), Use.HOST_UNKNOWN)]
    uses: Ints = table[doing]
    return uses


def _mostly(did: _Did, start: Ints, end: Ints) -> Parts:
    """Say what a thread did for most of each stretch of time."""
    low = np.searchsorted(did.since_ns, start, side="right") - 1
    stretch, segment = overlaps(low, np.searchsorted(did.since_ns, end))
    began = np.maximum(did.since_ns[segment], start[stretch])
    ended = np.minimum(np.append(did.since_ns[1:], _NEVER)[segment], end[stretch])
    doing, name = _longest(stretch, did.doing[segment], did.name[segment], ended - began)
    return _named(start, end, _uses(doing), name)


def _longest(gap: Ints, doing: Ints, name: Ints, length: Ints) -> tuple[Ints, Ints]:
    """Return what fills most of each gap, unless for longer nothing is known, and its longest piece.

    Args:
        gap: Numbers of gaps, from 0 on, ascending; each has a piece at least.
        doing: What fills each piece of a gap, or `_UNKNOWN`.
        name: The name of that.
        length: How long each piece is.
    """
    if not len(gap):
        return gap, gap
    first = stretches_of(gap)
    # The sort that tells the most comes first, so that it wins where two last equally long.
    sorts = [*reversed(_USE_OF), _UNKNOWN]
    spent = np.stack([np.add.reduceat(np.where(doing == one, length, 0), first) for one in sorts])
    most = np.array(sorts)[spent.argmax(axis=0)]
    mine = np.where(doing == most[gap], length, 0)
    longest = mine == np.maximum.reduceat(mine, first)[gap]
    named = np.minimum.reduceat(np.where(longest, name, np.iinfo(np.int64).max), first)
    return most, named


def _distinct(threads: Ints) -> list[int]:
    """Return the threads that there are."""
    if len(threads) and (threads == threads[0]).all():  # as in most traces: no need to sort them
        return [int(threads[0])]
    found: list[int] = np.unique(threads).tolist()
    return found


def _inside(calls: pl.DataFrame, moments: Ints) -> Ints:
    """Return the name of the call that each moment lies in, or `NONE`."""
    held = owner_at(moments, calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy())
    return np.append(calls["name"].to_numpy(), NONE)[held].astype(np.int64)
