"""The clocks that what happened allows: linear programmes, solved by HiGHS.

A clock's correction is a straight line over its own time, given by its values at both ends of the
capture, or a single value where clocks are taken not to drift. Each pair of moments says that the
corrected effect does not precede the corrected cause: a linear inequality. Of all clocks that satisfy
them we take the one with which, summed over pairs of clocks, the fastest transfer takes longest: it
then takes equally long both ways between any two clocks that are free against each other, which is the
assumption of NTP, whose filter, too, trusts only the samples with the least delay (RFC 5905, section
10). Whatever the truth, it satisfies the inequalities; so the least and the greatest correction that
do bound the error.

Moments that are about the same, such as the ends of a collective on all ranks, bound nothing. But of
all clocks that are possible, those are taken with which such moments are the least apart.

Stamps are whole nanoseconds, so an effect that followed at once may be stamped a nanosecond before its
cause. By so much every inequality may be missed; else the truth, too, would violate some.

There are as many inequalities as messages, and few matter: those that a solution violates are added to
the programme until none is left (Kelley, "The Cutting-Plane Method for Solving Convex Programs", 1960).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from bubblescope.model.arrays import blocks
from bubblescope.model.clock_errors import MAX_DRIFT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    _Floats = NDArray[np.float64]
    _Ints = NDArray[np.int64]

_US: Final = 1_000.0
"""The programmes are in microseconds."""
_FAR: Final = 1e8
"""No correction is that many microseconds, and ten times the capture, from a clock's rough place."""
ROUNDING_NS: Final = 1
"""What is violated by no more is rounding: two stamps, each rounded to a whole nanosecond."""
_ROUNDING: Final = ROUNDING_NS / _US
_EXACT: Final = 1e-6
"""What a solution is off by in arithmetic alone."""
_NUDGE: Final = 0.381966
"""What is added before corrected times are rounded down. Any one number keeps them in order; solutions
are whole nanoseconds or simple fractions of one, and this keeps clear of those."""
_LATEST: Final = np.iinfo(np.int64).max
_ROUNDS: Final = 50
_PARTS: Final = 8
"""Parts of the capture, of each of which the tightest pairs are looked at together."""
_KNOWN: Final = 0.5
"""Drift is known if what was observed leaves this share of what the oscillators may do."""


class Moments(NamedTuple):
    """Pairs of moments, one element per pair: `before` on clock `a`, `after` on clock `b`.

    Times are of the clocks themselves, in nanoseconds; clocks are numbered from 0. Where `together`,
    neither must come before the other, but they are about the same; nowhere if it is left out.
    """

    a: _Ints
    b: _Ints
    before_ns: _Ints
    after_ns: _Ints
    together: NDArray[np.bool_] | None = None


class Clocks(msgspec.Struct, frozen=True):
    """How to correct clocks, one element per clock.

    Attributes:
        origin_ns: The moment on each clock from which its correction counts.
        length_ns: How long the correction holds.
        rough_ns: Where the clock is roughly: what is added to its times, but for the line.
        line_ns: What is added besides at the origin and `length_ns` later, 2 x clocks, in fractions of
            nanoseconds; a straight line in between.
        error_ns: How far a correction may be off against clock 0.
        raw_error_ns: How far the clock is off at most if it is not corrected.
        rate_error: How far the clocks' rates may be off against that of clock 0, as a share.
        drifts: Whether drift was corrected.
    """

    origin_ns: Any
    length_ns: Any
    rough_ns: Any
    line_ns: Any
    error_ns: Any
    raw_error_ns: Any
    rate_error: float
    drifts: bool

    @property
    def ends_ns(self) -> _Ints:
        """The corrections at the origin and `length_ns` later, 2 x clocks."""
        ends: _Ints = self.rough_ns + np.floor(self.line_ns + _NUDGE).astype(np.int64)
        return ends

    def correction(self, clock: _Ints, time_ns: _Ints) -> _Ints:
        """Return what to add to times of clocks.

        Corrected times are rounded down, all alike, which leaves them in order: what follows its cause
        by less than a nanosecond does not come before it.
        """
        if not self.drifts:  # both ends are the same
            return np.array(self.ends_ns[0])[clock]
        moved = np.empty(len(time_ns), np.int64)
        begin, rise = self.line_ns[0], self.line_ns[1] - self.line_ns[0]
        for block in blocks(len(time_ns)):
            own = clock[block]
            beside = (time_ns[block] - self.origin_ns[own]) / self.length_ns[own]
            beside *= rise[own]
            beside += begin[own]
            beside += _NUDGE
            moved[block] = np.floor(beside, out=beside)
            moved[block] += self.rough_ns[own]
        return moved

    def slack(self, moments: Moments) -> _Ints:
        """Return by how much each corrected effect follows its cause."""
        after = moments.after_ns + self.correction(moments.b, moments.after_ns)
        before = moments.before_ns + self.correction(moments.a, moments.before_ns)
        slack: _Ints = after - before
        return slack


class Conflict(NamedTuple):
    """Pairs of moments that no clocks satisfy.

    Attributes:
        excess_ns: By how much they contradict each other.
        pairs: Indices of the pairs.
    """

    excess_ns: int
    pairs: tuple[int, ...]


def solve(
    moments: Moments, count: int, *, drift: bool, extent: tuple[_Ints, _Ints] | None = None
) -> Clocks | Conflict:
    """Return how to correct some clocks that all bound each other from both sides.

    Args:
        moments: What must come before what.
        count: Number of clocks.
        extent: The first and the last moment of each clock for which its correction must hold; those
            of `moments` if left out.
        drift: Whether clocks may drift. Corrections then have the error that this leaves, but are
            straight lines only if that is known well enough, or nothing else satisfies all pairs.
    """
    frame = _Frame(moments, count, extent)
    rigid = _Model(frame, drift=False)
    conflict = rigid.fit()
    if not drift:
        return conflict or frame.clocks(rigid, rigid)
    loose = _Model(frame, drift=True)
    if (contradiction := loose.fit()) is not None:
        return contradiction
    if conflict is not None:
        return frame.clocks(loose, loose)
    return frame.clocks(loose if loose.knows_drift() else rigid, loose)


_PRIMAL: Final = 4
"""How HiGHS numbers the simplex method that goes from one possible solution to a better one."""


class _Frame:
    """Moments in small numbers: clocks roughly in place, times as shares of the capture."""

    def __init__(self, moments: Moments, count: int, extent: tuple[_Ints, _Ints] | None) -> None:
        self.moments, self.count = moments, count
        clock = np.concatenate([moments.a, moments.b])
        times = np.concatenate([moments.before_ns, moments.after_ns])
        never = np.full(count, _LATEST)
        first, last = extent or (never, -never)
        self.origin_ns, until_ns = first.copy(), last.copy()
        np.minimum.at(self.origin_ns, clock, times)
        np.maximum.at(until_ns, clock, times)
        self.length_ns = np.maximum(until_ns - self.origin_ns, 1)
        self.shift_ns = self._rough()
        a, b, before, after, _ = moments
        self.share_a = (before - self.origin_ns[a]) / self.length_ns[a]
        self.share_b = (after - self.origin_ns[b]) / self.length_ns[b]
        need = (before + self.shift_ns[a]) - (after + self.shift_ns[b])
        self.need = need / _US
        # Both directions between two clocks are one pair of clocks.
        low, high = np.minimum(a, b), np.maximum(a, b)
        together = np.zeros(len(a), bool) if moments.together is None else moments.together
        pairs, self.pair = np.unique((low * count + high) * 2 + together, return_inverse=True)
        self.pairs = len(pairs)
        self.together = pairs % 2 == 1
        upward = np.zeros((self.pairs, 2), bool)
        upward[self.pair, (a < b).astype(int)] = True
        self.both_ways = upward.all(axis=1)

    def _rough(self) -> _Ints:
        """Put the clocks where the tightest pairs of a spanning tree have them."""
        a, b, before, after, _ = self.moments
        ways, way = np.unique(a * self.count + b, return_inverse=True)
        needs = np.full(len(ways), np.iinfo(np.int64).min)
        np.maximum.at(needs, way, before - after)
        tightest = {
            divmod(one, self.count): need
            for one, need in zip(ways.tolist(), needs.tolist(), strict=True)
        }
        neighbours: dict[int, set[int]] = {}
        for one, other in tightest:
            neighbours.setdefault(one, set()).add(other)
            neighbours.setdefault(other, set()).add(one)
        shift = {0: 0}
        walk = [0]
        for one in walk:
            for other in sorted(neighbours.get(one, ())):
                if other in shift:
                    continue
                least, most = tightest.get((one, other)), tightest.get((other, one))
                known = [
                    bound for bound in (least, None if most is None else -most) if bound is not None
                ]
                shift[other] = shift[one] + sum(known) // len(known)
                walk.append(other)
        return np.array([shift[clock] for clock in range(self.count)], np.int64)

    def clocks(self, chosen: _Model, bounds: _Model) -> Clocks:
        """Return the clocks of one model with the error that another one leaves."""
        line = np.stack(chosen.ends())
        low, high = bounds.bounds
        off = np.maximum(high - line, line - low).max(axis=0)
        raw = np.maximum(abs(high + self.shift_ns / _US), abs(low + self.shift_ns / _US)).max(
            axis=0
        )
        error, raw_error = (
            np.ceil(np.maximum(one, 0) * _US).astype(np.int64) + ROUNDING_NS for one in (off, raw)
        )
        error[0] = raw_error[0] = 0
        least, most = bounds.drift
        rate = (line[1] - line[0])[1:]
        rate_off = np.maximum(most - rate, rate - least) * _US / self.length_ns[1:]
        return Clocks(
            self.origin_ns,
            self.length_ns,
            self.shift_ns,
            line * _US,
            error,
            raw_error,
            rate_error=float(rate_off.max(initial=0)),
            drifts=chosen.drift_allowed,
        )


class _Model:
    """A linear programme over the clocks' corrections and the fastest transfer of each pair.

    Columns: the corrections at the origin, those at the end (of a drifting model), then for each
    pair of clocks how long its fastest transfer takes.
    """

    def __init__(self, frame: _Frame, *, drift: bool) -> None:
        self.drift_allowed = drift
        self._frame = frame
        self._ends = 2 if drift else 1
        self._fast = self._ends * frame.count
        import highspy  # noqa: PLC0415  # slow to load, and most runs have one clock.

        class Silent(highspy.Highs):
            """HiGHS, which prints its name when it is made (1.16), to where a report or JSON goes."""

            def enableCallbacks(self) -> None:  # noqa: N802  it is called so while it is made
                self.setOptionValue("output_flag", False)
                super().enableCallbacks()  # type: ignore[no-untyped-call]

        self._highs: Any = Silent()  # type: ignore[no-untyped-call]
        self._highs.setOptionValue("output_flag", False)
        columns = self._fast + frame.pairs
        far = _FAR + 10 * float(frame.length_ns.max()) / _US
        lower, upper = np.full(columns, -far), np.full(columns, far)
        for end in range(self._ends):
            lower[end * frame.count] = upper[end * frame.count] = 0  # clock 0 is the reference
        upper[self._fast :] = np.where(frame.both_ways, far, 0)
        self._lower, self._upper = lower, upper
        self._highs.addVars(columns, lower, upper)
        self._highs.changeObjectiveSense(highspy.ObjSense.kMaximize)
        if drift:
            self._limit_drift()
        self._used = np.zeros(len(frame.need), bool)
        self._add(self._tightest(np.zeros(len(frame.need))))
        self._solution = np.zeros(columns)

    def fit(self) -> Conflict | None:
        """Find the corrections, or pairs that contradict."""
        fast = slice(self._fast, None)
        # First: can all be satisfied? No pair of clocks may gain at the expense of another's.
        upper = self._upper.copy()
        upper[fast] = 0
        together = self._frame.together
        cost = np.zeros(len(upper))
        cost[fast] = ~together
        self._bound(self._lower, upper)
        self._settle(cost)
        lacking = np.where(together, 0, np.minimum(self._solution[fast], 0))
        if lacking.min(initial=0) < -_ROUNDING - _EXACT:
            return self._conflict()
        lower = self._lower.copy()
        lower[fast] = np.where(together, lower[fast], lacking - _EXACT)
        # What is about the same comes first: no transfers outweigh it that take longer one way.
        cost[fast] = np.where(together, len(together), 1)
        self._bound(lower, self._upper)
        self._settle(cost)
        return None

    def ends(self) -> tuple[_Floats, _Floats]:
        """Return the corrections at both ends."""
        count = self._frame.count
        begin = self._solution[:count]
        return begin, self._solution[count : 2 * count] if self.drift_allowed else begin

    def knows_drift(self) -> bool:
        """Say whether the capture is long enough to tell how fast clocks drift."""
        least, most = self.drift
        certain = (least > _EXACT).any() or (most < -_EXACT).any()
        known = ((most - least) / self._most_drift()[1:]).mean() < _KNOWN * 2
        return bool(certain or known)

    @cached_property
    def drift(self) -> tuple[_Floats, _Floats]:
        """By how much the corrections of all clocks but 0 grow at least, and at most."""
        count = self._frame.count
        if not self.drift_allowed:
            return np.zeros(count - 1), np.zeros(count - 1)
        self._free()
        most, least = (
            np.array(
                [
                    sign * self._most({clock: -sign, count + clock: sign})
                    for clock in range(1, count)
                ]
            )
            for sign in (1.0, -1.0)
        )
        return least, most

    def _most(self, costs: dict[int, float]) -> float:
        """Return the greatest value of a sum of columns."""
        for column, cost in costs.items():
            self._highs.changeColCost(column, cost)
        self._highs.run()
        most = float(self._highs.getInfo().objective_function_value)
        for column in costs:
            self._highs.changeColCost(column, 0.0)
        return most

    def _most_drift(self) -> _Floats:
        """Return how far each clock and another one may run apart over its part of the capture."""
        return 2 * MAX_DRIFT * self._frame.length_ns / _US + _EXACT

    @cached_property
    def bounds(self) -> tuple[_Floats, _Floats]:
        """The least and the greatest corrections at both ends, 2 x clocks."""
        count = self._frame.count
        low, high = np.zeros((2, count)), np.zeros((2, count))
        self._free()
        # From clock to clock little changes, and each solution begins where the last one was.
        for side, sign in ((high, 1.0), (low, -1.0)):
            for end in range(self._ends):
                for clock in range(1, count):
                    side[end, clock] = sign * self._most({end * count + clock: sign})
        if not self.drift_allowed:
            low[1], high[1] = low[0], high[0]
        return low, high

    def _free(self) -> None:
        """Ask for nothing but that all pairs are satisfied: transfers may take no time at all.

        What is about the same may be any time apart.
        """
        lower, upper = self._lower.copy(), self._upper.copy()
        fixed = np.where(self._frame.together, lower[self._fast :], -_ROUNDING - _EXACT)
        lower[self._fast :] = upper[self._fast :] = fixed
        self._bound(lower, upper)
        self._cost(np.zeros(len(lower)))
        # Only what is asked for changes from here on, so that each solution remains one.
        self._highs.setOptionValue("simplex_strategy", _PRIMAL)

    def _limit_drift(self) -> None:
        count = self._frame.count
        most = self._most_drift()[1:]
        clocks = np.arange(1, count)
        rows = len(clocks)
        index = np.stack([clocks, clocks + count], axis=1).ravel()
        value = np.tile([-1.0, 1.0], rows)
        self._rows(-most, most, index, value, 2)

    def _settle(self, cost: _Floats) -> None:
        """Solve, adding what the solution violates, until it violates nothing."""
        self._cost(cost)
        for _ in range(_ROUNDS):
            self._highs.run()
            self._solution = np.array(self._highs.getSolution().col_value)
            slack = self._slack()
            if slack.min(initial=0) >= -_EXACT:
                return
            self._add(self._tightest(slack) & (slack < -_EXACT))

    def _slack(self) -> _Floats:
        frame = self._frame
        begin, end = self.ends()
        a, b = frame.moments.a, frame.moments.b
        later = begin[b] + frame.share_b * (end - begin)[b]
        earlier = begin[a] + frame.share_a * (end - begin)[a]
        slack: _Floats = later - earlier - frame.need - self._solution[self._fast :][frame.pair]
        return slack

    def _tightest(self, slack: _Floats) -> NDArray[np.bool_]:
        """Mark the tightest unused pairs of moments in each part of the capture, by direction."""
        frame = self._frame
        part = np.minimum((frame.share_a * _PARTS).astype(np.int64), _PARTS - 1)
        upward = frame.moments.a < frame.moments.b
        key = (frame.pair * 2 + upward) * _PARTS + part
        order = np.lexsort([-frame.need, slack, key])
        first = np.ones(len(order), bool)
        first[1:] = np.diff(key[order]) != 0
        marked = np.zeros(len(order), bool)
        marked[order[first]] = True
        return marked & ~self._used

    def _add(self, marked: NDArray[np.bool_]) -> None:
        """Add pairs of moments to the programme: effect less cause is no less than is needed."""
        frame = self._frame
        chosen = np.flatnonzero(marked)
        if not len(chosen):
            return
        self._used[chosen] = True
        a, b = frame.moments.a[chosen], frame.moments.b[chosen]
        fast = self._fast + frame.pair[chosen]
        one = np.ones(len(chosen))
        if self.drift_allowed:
            share_a, share_b = frame.share_a[chosen], frame.share_b[chosen]
            index = [a, b, a + frame.count, b + frame.count, fast]
            value = [share_a - 1, 1 - share_b, -share_a, share_b, -one]
        else:
            index, value = [a, b, fast], [-one, one, -one]
        self._rows(
            frame.need[chosen],
            np.full(len(chosen), np.inf),
            np.stack(index, axis=1).ravel(),
            np.stack(value, axis=1).ravel(),
            len(index),
        )

    def _rows(
        self, lower: _Floats, upper: _Floats, index: _Ints, value: _Floats, each: int
    ) -> None:
        starts = np.arange(0, each * len(lower), each, dtype=np.int32)
        self._highs.addRows(
            len(lower), lower, upper, len(index), starts, index.astype(np.int32), value
        )

    def _bound(self, lower: _Floats, upper: _Floats) -> None:
        columns = np.arange(len(lower), dtype=np.int32)
        self._highs.changeColsBounds(len(columns), columns, lower, upper)

    def _cost(self, cost: _Floats) -> None:
        self._highs.changeColsCost(len(cost), np.arange(len(cost), dtype=np.int32), cost)

    def _conflict(self) -> Conflict:
        """Name the tightest pairs of moments of the clocks that contradict the most."""
        frame = self._frame
        lacking = np.where(frame.together, 0, self._solution[self._fast :])
        worst = int(lacking.argmin())
        slack = self._slack() + lacking[frame.pair]
        named: list[int] = []
        for upward in (True, False):
            own = np.flatnonzero(
                (frame.pair == worst) & ((frame.moments.a < frame.moments.b) == upward)
            )
            if len(own):
                named.append(int(own[slack[own].argmin()]))
        # What is lacking is shared by both directions between the two clocks.
        return Conflict(round(-2 * float(lacking[worst]) * _US), tuple(named))


def connected(a: _Ints, b: _Ints, count: int) -> _Ints:
    """Return for each clock the lowest that it is connected with, one way or the other."""
    label = np.arange(count)
    while True:  # every round at least halves the longest chain of labels
        lowest = label.copy()
        np.minimum.at(lowest, a, label[b])
        np.minimum.at(lowest, b, label[a])
        lowest = lowest[lowest]
        if (lowest == label).all():
            return label
        label = lowest


def bounding(a: _Ints, b: _Ints, count: int) -> Sequence[_Ints]:
    """Return the clocks of each group in which all bound each other from both sides, by the first.

    What comes before what bounds the difference of two clocks from one side; the other side is bounded
    if a chain of such pairs leads back: in a strongly connected group of clocks.
    """
    ways = np.unique(a * count + b)
    one, other = ways // count, ways % count
    back = np.isin(other * count + one, ways)
    label = connected(one[back], other[back], count)  # most traffic goes both ways
    links = np.unique(label[one[~back]] * count + label[other[~back]])
    ahead: dict[int, list[int]] = {}
    behind: dict[int, list[int]] = {}
    for link in links.tolist():
        start, end = divmod(link, count)
        if start != end:
            ahead.setdefault(start, []).append(end)
            behind.setdefault(end, []).append(start)
    # Kosaraju's algorithm: what reaches a clock, among those that are left, is in its group.
    seen: set[int] = set()
    order = [node for start in ahead for node in _reached(start, ahead, seen)]
    seen = set()
    for start in reversed(order):
        group = _reached(start, behind, seen)
        if len(group) > 1:
            label[np.isin(label, group)] = min(group)
    return [np.flatnonzero(label == one) for one in np.unique(label)]


def _reached(start: int, following: dict[int, list[int]], seen: set[int]) -> list[int]:
    """Return what can be reached from a node and was not seen, each after all that it leads to."""
    if start in seen:
        return []
    seen.add(start)
    done, walk = [], [(start, iter(following.get(start, ())))]
    while walk:
        node, rest = walk[-1]
        new = next((one for one in rest if one not in seen), None)
        if new is None:
            done.append(node)
            walk.pop()
        else:
            seen.add(new)
            walk.append((new, iter(following.get(new, ()))))
    return done
