"""Why a device was idle, told by the operation that ends the gap.

Until the call that launches it begins, the host is late; while that call runs, the launch is on its
way; what is left is the latency of a launch if it is short. Otherwise the operation waited: for an
event, if its stream had been told to wait for one, or else for something that the trace does not show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.model.budget import LATENCY_NS, Use, overlaps
from bubblescope.model.device_time import NONE, innermost, owner_at
from bubblescope.sources.capture import ANNOTATED, BLOCKED, DATA, GC, OPERATOR, OPTIMIZER, PYTHON

if TYPE_CHECKING:
    from bubblescope.model.arrays import Ints, Mask
    from bubblescope.sources.capture import Capture

_USE_OF: Final = {
    ANNOTATED: Use.HOST_UNKNOWN,
    PYTHON: Use.HOST_PYTHON,
    OPERATOR: Use.HOST_OPERATOR,
    DATA: Use.HOST_DATA,
    OPTIMIZER: Use.HOST_OPTIMIZER,
    GC: Use.HOST_GC,
}
_UNKNOWN: Final = -1


class Parts(NamedTuple):
    """Stretches of a device's time.

    Attributes:
        start_ns, end_ns: Their edges.
        use: What each is spent on: index into the members of `Use`.
        detail: Index of what names it, or `NONE`.
    """

    start_ns: Ints
    end_ns: Ints
    use: Ints
    detail: Ints

    @classmethod
    def of(cls, start: Ints, end: Ints, use: Use | Ints, detail: Ints | None = None) -> Parts:
        """Return the stretches that are not empty."""
        kept = start < end
        codes = np.full(len(start), CODE[use], np.int64) if isinstance(use, Use) else use
        named = np.full(len(start), NONE, np.int64) if detail is None else detail
        return cls(start[kept], end[kept], codes[kept], named[kept])


CODE: Final = {use: code for code, use in enumerate(Use)}


class Gaps(NamedTuple):
    """The idle time of one device, and what ends each stretch of it.

    Attributes:
        start_ns, end_ns: Their edges.
        launch_ns, launched_ns: When the call began and ended that launched what ends each, in host
            time; `NONE` if that is not known.
        thread: The thread that made the call.
        stream: The stream of what ends each; `NONE` if not known.
        before_ns: When the operation before it on that stream was launched; `NONE` if there is none.
    """

    start_ns: Ints
    end_ns: Ints
    launch_ns: Ints
    launched_ns: Ints
    thread: Ints
    stream: Ints
    before_ns: Ints

    def chosen(self, rows: Mask | Ints) -> Gaps:
        """Return some of the gaps."""
        return Gaps(*(column[rows] for column in self))


def judge(gaps: Gaps, capture: Capture, process: int) -> list[Parts]:
    """Cut gaps by why the device was idle.

    Args:
        gaps: Those of one device.
        capture: What the trace recorded.
        process: The process that drives the device.

    Returns:
        Stretches that together are the gaps; their details are indices into `Capture.host_names`.
    """
    linked = gaps.launch_ns != NONE
    lost = gaps.chosen(~linked)
    known = gaps.chosen(linked)
    host = _Host(capture, process)
    start, end = known.start_ns, known.end_ns
    begun = np.clip(known.launch_ns, start, end)
    done = np.clip(known.launched_ns, begun, end)
    late = begun > start
    waited = np.flatnonzero(end - done >= LATENCY_NS)
    short = np.ones(len(start), bool)
    short[waited] = False
    return [
        Parts.of(lost.start_ns, lost.end_ns, Use.UNLINKED),
        host.late(start[late], begun[late], known.thread[late]),
        Parts.of(begun, done, Use.LAUNCH_CALL),
        Parts.of(done[short], end[short], Use.LATENCY),
        host.waiting(done[waited], end[waited], known.chosen(waited)),
    ]


class _Host:
    """What the threads of one process did."""

    def __init__(self, capture: Capture, process: int) -> None:
        mine = pl.col("process") == process
        host = capture.host.filter(mine, pl.col("end_ns") > pl.col("start_ns")).sort("start_ns")
        blocked = pl.col("doing") == BLOCKED
        self._blocked = host.filter(blocked)
        self._doing = host.filter(~blocked)
        self._waits = None if capture.waits is None else capture.waits.filter(mine)

    def late(self, start: Ints, end: Ints, thread: Ints) -> Parts:
        """Say what the host did in stretches in which it had to launch and did not.

        It was blocked if the launching thread was in a blocking call as the stretch began. Otherwise
        what that thread did for the most part counts. Other threads do not: the main one, say, is in
        Python all the while that autograd's own thread runs a backward.
        """
        use = np.full(len(start), CODE[Use.HOST_UNKNOWN], np.int64)
        name = np.full(len(start), NONE, np.int64)
        for one in np.unique(thread):
            rows = np.flatnonzero(thread == one)
            call = _inside(self._blocked.filter(thread=one), start[rows])
            found = call != NONE
            use[rows[found]], name[rows[found]] = CODE[Use.HOST_AFTER_SYNC], call[found]
            rows = rows[~found]
            use[rows], name[rows] = self._mostly(one, start[rows], end[rows])
        return Parts.of(start, end, use, name)

    def _mostly(self, thread: int, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Return what a thread did for most of each stretch, and its name."""
        use = np.full(len(start), CODE[Use.HOST_UNKNOWN], np.int64)
        name = np.full(len(start), NONE, np.int64)
        doing = self._doing.filter(
            pl.col("thread") == thread, pl.col("end_ns") > (start.min() if len(start) else 0)
        )
        if not doing.height or not len(start):
            return use, name
        # Later ones are painted over those before: what tells more over what tells less.
        doing = doing.sort("doing", "start_ns", maintain_order=True)
        edges, owner = innermost(doing["start_ns"].to_numpy(), doing["end_ns"].to_numpy())
        low = np.maximum(np.searchsorted(edges, start, side="right") - 1, 0)
        gap, segment = overlaps(low, np.searchsorted(edges, end, side="left"))
        began = np.maximum(edges[segment], start[gap])
        ended = np.minimum(np.append(edges[1:], edges[-1])[segment], end[gap])
        held = owner[segment]
        codes = np.append(doing["doing"].to_numpy(), _UNKNOWN)[held]
        names = np.append(doing["name"].to_numpy(), NONE)[held]
        spent = (
            pl.DataFrame({"gap": gap, "doing": codes, "name": names, "ns": ended - began})
            .filter(pl.col("ns") > 0)
            .with_columns(all=pl.col("ns").sum().over("gap", "doing"))
        )
        nothing = pl.DataFrame({"gap": np.arange(len(start)), "whole": end - start}).join(
            spent.filter(pl.col("doing") != _UNKNOWN).group_by("gap").agg(pl.col("ns").sum()),
            on="gap",
            how="left",
        )
        idle = nothing["whole"].to_numpy() - nothing["ns"].fill_null(0).to_numpy()
        most = (
            spent.filter(pl.col("doing") != _UNKNOWN)
            .sort("gap", "all", "doing", "ns", "name", descending=[False, True, True, True, False])
            .unique("gap", keep="first", maintain_order=True)
        )
        rows = most["gap"].to_numpy()
        more = most["all"].to_numpy() >= idle[rows]
        rows = rows[more]
        table = np.array([CODE[_USE_OF[code]] for code in sorted(_USE_OF)], np.int64)
        use[rows] = table[most["doing"].to_numpy()[more] - min(_USE_OF)]
        name[rows] = most["name"].to_numpy()[more]
        return use, name

    def waiting(self, start: Ints, end: Ints, gaps: Gaps) -> Parts:
        """Say what operations waited for that were launched and did not start.

        The call in which the launching thread, or else any, was blocked meanwhile is named as evidence.
        """
        use = np.full(len(start), CODE[Use.UNTRACED], np.int64)
        name = np.full(len(start), NONE, np.int64)
        if len(start) and self._blocked.height:
            middle = start + (end - start) // 2
            for one in np.unique(gaps.thread):
                rows = np.flatnonzero(gaps.thread == one)
                name[rows] = _inside(self._blocked.filter(thread=one), middle[rows])
            others = np.flatnonzero(name == NONE)
            name[others] = _inside(self._blocked, middle[others])
        if self._waits is not None:
            for (stream,), waits in self._waits.group_by("stream"):
                rows = np.flatnonzero(gaps.stream == stream)
                told = np.append(NONE, waits["start_ns"].sort().to_numpy())
                last = told[np.searchsorted(told[1:], gaps.launch_ns[rows], side="right")]
                waited = (last != NONE) & (last >= gaps.before_ns[rows])
                use[rows[waited]] = CODE[Use.EVENT_WAIT]
        return Parts.of(start, end, use, name)


def _inside(calls: pl.DataFrame, moments: Ints) -> Ints:
    """Return the name of the call that each moment lies in, or `NONE`."""
    held = owner_at(moments, calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy())
    return np.append(calls["name"].to_numpy(), NONE)[held].astype(np.int64)
