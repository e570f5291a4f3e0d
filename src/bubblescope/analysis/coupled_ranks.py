"""Runs whose ranks wait for each other in collectives, replayed with other work between those.

Of collective k of a rank, let s be when its kernel began, e when it ended, and x how long it ran while
nothing computed; the rest, h = e - s - x, hid beneath computation. Up to the next, the rank has work of
its own, w = s(k+1) - s(k) - x(k). With other work, it comes to the next at

    s(k+1) = s(k) + w + max(0, e(k) - s(k) - h(k)),    e(k) = max of s(k) over the ranks + its transfer

where the transfer is what was measured, e(k) - max of s(k). Unchanged, this gives what was measured.
What is hidden stays as long as it was, and ranks wait for each other in these collectives alone.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from bubblescope.analysis.arrivals import Met
    from bubblescope.model.arrays import Ints, Mask


class _Layer(NamedTuple):
    """Collectives of c groups of m ranks each that have no rank in common.

    Attributes:
        places: Which of `CoupledRanks.met` each is of, and which of its; c long.
        rows: Which ranks of the run take part; c x m.
        start_ns: When each comes to it, as measured; c x m.
        transfer_ns: How long each takes once all have come; c x m.
        exposed_ns: How long each runs while nothing computes; c x m.
        hidden_ns: How long each hides beneath computation; c x m.
    """

    places: list[tuple[int, int]]
    rows: Ints
    start_ns: Ints
    transfer_ns: Ints
    exposed_ns: Ints
    hidden_ns: Ints


class CoupledRanks:
    """A run whose ranks wait for each other.

    Args:
        met: Its collectives, as `bubblescope.analysis.arrivals.met` has them.
        begun_ns: Rank -> some moment before its first collective.

    Attributes:
        met: As given.
        work_ns: Of each of `met`, what its m ranks have to do before its k collectives: m x k.
    """

    def __init__(self, met: Sequence[Met], begun_ns: Mapping[int, int]) -> None:
        self.met = met
        self.work_ns = [np.zeros_like(one.kernels.start_ns) for one in met]
        self._ranks = np.array(sorted(begun_ns), np.int64)
        self._begun_ns = np.array([begun_ns[rank] for rank in self._ranks.tolist()], np.int64)
        self._whole_ns = np.zeros(len(self._ranks), np.int64)
        self._layers = list(_layers(met, self._ranks))
        self._works: list[Ints] = []
        done = self._begun_ns.copy()
        for layer in self._layers:
            work = layer.start_ns - done[layer.rows]
            self._works.append(work)
            self._whole_ns[layer.rows] += work
            done[layer.rows] = layer.start_ns + layer.exposed_ns
            for (which, at), own in zip(layer.places, work, strict=True):
                self.work_ns[which][:, at] = own
        self._measured = self._replayed(np.zeros(len(self._ranks), bool), 0.0)

    def moved_ns(
        self, late: Collection[int], like: float, ranks: Ints, times_ns: Sequence[Ints]
    ) -> list[Ints]:
        """Return when moments would be if some ranks had as much to do as others.

        Args:
            late: Ranks that have as much to do as another one of their group before each collective,
                and beneath it.
            like: Which one, by all that it has to do: 0 is the one with least, 1 that with most.
            ranks: Whose moments; n long.
            times_ns: Moments, each n long.
        """
        replayed = self._replayed(np.isin(self._ranks, list(late)), like)
        moved = [times.copy() for times in times_ns]
        for rank, before, after in zip(self._ranks, self._measured, replayed, strict=True):
            own = np.flatnonzero(ranks == rank)
            reached = np.maximum.accumulate(before)
            shift = (after - before).astype(np.float64)
            for times in moved:
                times[own] += np.rint(np.interp(times[own], reached, shift)).astype(np.int64)
        return moved

    def _replayed(self, late: Mask, like: float) -> list[Ints]:
        """Return of each rank when it begins, comes to each collective and is done with its part."""
        done = self._begun_ns.copy()
        rows, moments = [np.arange(len(done))], [done.copy()]
        for layer, own in zip(self._layers, self._works, strict=True):
            work, hidden, slow = own, layer.hidden_ns, late[layer.rows]
            if slow.any():
                taken = self._taken(layer.rows, slow, like)
                work, hidden = (np.take_along_axis(of, taken, 1) for of in (work, hidden))
            start = done[layer.rows] + work
            length = start.max(1, keepdims=True) + layer.transfer_ns - start
            done[layer.rows] = start + np.maximum(length - hidden, 0)
            rows += [layer.rows.ravel()] * 2
            moments += [start.ravel(), done[layer.rows].ravel()]
        row = np.concatenate(rows)
        order = np.argsort(row, kind="stable")
        ends = np.cumsum(np.bincount(row, minlength=len(done)))
        return np.split(np.concatenate(moments)[order], ends[:-1])

    def _taken(self, rows: Ints, slow: Mask, like: float) -> Ints:
        """Return whose work each of the ranks of collectives does: another's if it is slow; c x m."""
        others = (~slow).sum(1, keepdims=True)
        # The others by what they have to do, and after them the slow ones.
        never = np.iinfo(np.int64).max
        order = np.argsort(np.where(slow, never, self._whole_ns[rows]), axis=1, kind="stable")
        at = np.rint(like * np.maximum(others - 1, 0)).astype(np.int64)
        own = np.broadcast_to(np.arange(rows.shape[1]), rows.shape)
        taken: Ints = np.where(slow & (others > 0), np.take_along_axis(order, at, 1), own)
        return taken


def _layers(met: Sequence[Met], ranks: Ints) -> Iterator[_Layer]:
    """Yield all collectives of a run, each after those that its ranks were in before."""
    every = (
        (last_ns, which, at)
        for which, one in enumerate(met)
        for at, last_ns in enumerate(one.kernels.start_ns.max(0).tolist())
    )
    rows = [np.searchsorted(ranks, one.ranks) for one in met]
    depth = np.zeros(len(ranks), np.int64)
    layers: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for _, which, at in sorted(every):
        own = rows[which]
        depth[own] = level = int(depth[own].max()) + 1
        layers.setdefault((level, len(own)), []).append((which, at))
    for _, places in sorted(layers.items()):
        columns = ([met[which].kernels[of][:, at] for which, at in places] for of in range(3))
        start, end, exposed = map(np.stack, columns)
        transfer = end - start.max(1, keepdims=True)
        held = np.stack([rows[which] for which, _ in places])
        yield _Layer(places, held, start, transfer, exposed, end - start - exposed)


_ERRORS: Final = 2.5
"""Standard errors that are allowed for."""


def chance_ns(coupled: CoupledRanks, late: Collection[int]) -> float | None:
    """Return by how much steps may be longer or shorter, as what ranks have to do scatters.

    What a rank would have to do that is as the others scatters as theirs does, s_k before collective k.
    As one more comes to it, the last comes later, by s_k times how much more the largest of so many
    normal numbers is than that of one less (Blom, 1958). And 2.5 standard errors of the difference of
    two runs of so many steps are allowed for, each the root of the sum of s_k squared.

    Args:
        coupled: The run.
        late: Ranks that would be as others are.

    Returns:
        A length of a step, in nanoseconds; None if it is not known how it scatters, as of one other
        rank in one step.
    """
    alike: dict[tuple[tuple[int, ...], int], list[Ints]] = {}
    for one, work in zip(coupled.met, coupled.work_ns, strict=True):
        alike.setdefault((tuple(one.ranks.tolist()), work.shape[1]), []).append(work)
    steps = len({one.step for one in coupled.met})
    found = 0.0
    for (ranks, _), works in alike.items():
        slow = np.isin(ranks, list(late))
        others = len(ranks) - int(slow.sum())
        if not slow.any() or not others:
            continue
        values = np.concatenate([work[~slow] for work in works])
        if len(values) < 2:
            return None
        scatter = values.std(0, ddof=1)
        more = _largest(len(ranks)) - _largest(others)
        errors = math.sqrt(2 * float((scatter**2).sum()) / len(works))
        found += len(works) / steps * (more * float(scatter.sum()) + _ERRORS * errors)
    return found


def _largest(count: int) -> float:
    """Return what the largest of so many standard normal numbers is, as expected."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
