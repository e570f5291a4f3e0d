"""Runs whose ranks wait for each other in collectives, replayed with other work between those.

Of collective k of a rank, let s be when its kernel began, e when it ended, and x how long it ran while
nothing computed; the rest, h = e - s - x, hid beneath computation. Up to the next, the rank has work of
its own, w = s(k+1) - s(k) - x(k). With other work, it comes to the next at

    s(k+1) = s(k) + w + max(0, e(k) - s(k) - h(k)),    e(k) = max of s(k) over the ranks + its transfer

where the transfer is what was measured, e(k) - max of s(k). Unchanged, this gives what was measured.
Ranks wait for each other in these collectives alone. A kernel that was hidden throughout, x = 0, may be
able to hide more: h as it was is the least, and h + w(k) the most. Of work that goes, what was done
while a collective ran had hidden it, so h is less by that.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from typing_extensions import Self

    from bubblescope.model.arrays import Ints, Mask
    from bubblescope.model.met_collectives import Met


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


class Sums(NamedTuple):
    """How much of a rank's time goes, from the beginning up to any moment.

    Attributes:
        edges_ns: Moments between which all or none of it goes; n long.
        gone_ns: How much has gone up to each; n long.
    """

    edges_ns: Ints
    gone_ns: Ints

    @classmethod
    def of(cls, spent: pl.DataFrame, ahead_ns: int) -> Self:
        """Sum up stretches of time that do not overlap; see `CoupledRanks.without`.

        Args:
            spent: The stretches.
            ahead_ns: By how much their clock is ahead.
        """
        rows = spent.filter(pl.col("end_ns") > pl.col("start_ns")).sort("start_ns")
        edges = rows.select("start_ns", "end_ns").to_numpy().ravel() - ahead_ns
        length = np.diff(edges, prepend=edges[:1])
        length[::2] = 0
        return cls(edges, np.cumsum(length)) if len(edges) else cls(*NOTHING)

    def between(self, begin_ns: Ints, end_ns: Ints) -> Ints:
        """Return how much goes between moments."""
        begun, ended = (np.interp(ns, self.edges_ns, self.gone_ns) for ns in (begin_ns, end_ns))
        found: Ints = np.rint(ended - begun).astype(np.int64)
        return found


NOTHING: Final = Sums(np.zeros(1, np.int64), np.zeros(1, np.int64))


class Replay(NamedTuple):
    """A run whose ranks wait for each other, as it would be.

    Attributes:
        ranks: The r ranks, ascending.
        clock_ns: By how much each rank's clock is ahead of the one that the rest is on; r long.
        before: When each rank begins, comes to each collective and is done with its part; r arrays.
        after: The same, as it would be.
        gone: What goes of the time of each rank; r long.
    """

    ranks: Ints
    clock_ns: Ints
    before: list[Ints]
    after: list[Ints]
    gone: list[Sums]

    def moved_ns(self, ranks: Ints, times_ns: Sequence[Ints]) -> list[Ints]:
        """Return when moments would be.

        Args:
            ranks: Whose moments; n long.
            times_ns: Moments, each n long.
        """
        moved = [times.copy() for times in times_ns]
        order = np.argsort(ranks, kind="stable")
        own_of = np.split(order, np.searchsorted(ranks[order], self.ranks[1:]))
        for own, ahead, before, after, gone in zip(own_of, *self[1:], strict=True):
            reached, shift = np.maximum.accumulate(before), after - before
            for times in moved:
                at = times[own] - ahead
                by = np.rint(np.interp(at, reached, shift.astype(np.float64))).astype(np.int64)
                if gone is not NOTHING:  # between collectives it is known what goes before a moment
                    last = np.maximum(np.searchsorted(reached, at, side="right") - 1, 0)
                    come = np.maximum(last - 1, 0)  # when it came to the last one
                    known = shift[last] - gone.between(reached[come], at)
                    by = np.where(last % 2 == 0, known, by)
                times[own] += by
        return moved


class CoupledRanks:
    """A run whose ranks wait for each other.

    Args:
        met: Its collectives, as `bubblescope.model.met_collectives.met` has them.
        begun_ns: Rank -> some moment before its first collective, on its own clock.

    Attributes:
        met: As given.
        work_ns: Of each of `met`, what its m ranks have to do before its k collectives: m x k.
    """

    def __init__(self, met: Sequence[Met], begun_ns: Mapping[int, int]) -> None:
        self.met = met
        self.work_ns = [np.zeros_like(one.kernels.start_ns) for one in met]
        self._ranks = np.array(sorted(begun_ns), np.int64)
        self._clock_ns = _clocks(met, self._ranks)
        begun = np.array([begun_ns[rank] for rank in self._ranks.tolist()], np.int64)
        self._begun_ns = begun - self._clock_ns
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
        least = [layer.hidden_ns for layer in self._layers]
        self._hidden = {False: least, True: self._most_hidden(self._works, least)}
        self._measured = self._moments(self._works, least)

    @property
    def clock_ns(self) -> dict[int, int]:
        """By how much each rank's clock is ahead of the one that the rest is on."""
        return dict(zip(self._ranks.tolist(), self._clock_ns.tolist(), strict=True))

    @property
    def hides(self) -> bool:
        """Whether any kernel was hidden throughout, so that it may be able to hide more."""
        return any((layer.exposed_ns <= 0).any() for layer in self._layers)

    def _most_hidden(self, works: Sequence[Ints], hidden: Sequence[Ints]) -> list[Ints]:
        """Return how long kernels may be able to hide at most, by layer.

        Args:
            works: What ranks have to do before each layer.
            hidden: How long its kernels hide at least.
        """
        # After the last one it is not known how much there is to do.
        following = np.full(len(self._ranks), np.iinfo(np.int64).max // 2)
        found = []
        for layer, work, least in zip(*map(reversed, (self._layers, works, hidden)), strict=True):
            more = np.where(layer.exposed_ns > 0, 0, np.maximum(following[layer.rows], 0))
            found.append(least + more)
            following[layer.rows] = work
        return found[::-1]

    def like_others(self, late: Collection[int], like: float, *, most: bool = False) -> Replay:
        """Replay it with as much to do before each collective, and beneath it, as others have.

        Args:
            late: Ranks that have as much to do as another one of their group.
            like: Which one, by all that it has to do: 0 is the one with least, 1 that with most.
            most: Whether kernels hide as much as they may be able to.
        """
        some, works, hidden = np.isin(self._ranks, list(late)), [], []
        for layer, own, beneath in zip(self._layers, self._works, self._hidden[most], strict=True):
            taken = self._taken(layer.rows, some[layer.rows], like)
            works.append(np.take_along_axis(own, taken, 1))
            hidden.append(np.take_along_axis(beneath, taken, 1))
        after = self._moments(works, hidden)
        return Replay(self._ranks, self._clock_ns, self._measured, after, [NOTHING] * len(after))

    def without(self, spent: pl.DataFrame, *, most: bool = False) -> Replay:
        """Replay it without some of what ranks do between collectives, and beneath them.

        Args:
            spent: Frame with rank, start_ns and end_ns: stretches of time that go.
            most: Whether kernels hide as much as they may be able to.
        """
        own = spent.partition_by("rank", as_dict=True)
        gone = [
            Sums.of(own[(rank,)], ahead) if (rank,) in own else NOTHING
            for rank, ahead in zip(self._ranks.tolist(), self._clock_ns.tolist(), strict=True)
        ]
        starts = self._of_ranks([layer.start_ns for layer in self._layers])
        ends = self._of_ranks(
            [one.start_ns + one.exposed_ns + one.hidden_ns for one in self._layers]
        )
        before = (
            np.append(begun, own)[:-1] for begun, own in zip(self._begun_ns, starts, strict=True)
        )
        less, beneath = (
            self._of_layers([sums.between(*of) for sums, *of in zip(gone, *times, strict=True)])
            for times in ((before, starts), (starts, ends))
        )
        works = [
            np.maximum(work - part, np.minimum(work, 0))
            for work, part in zip(self._works, less, strict=True)
        ]
        # What went while a collective ran had hidden it.
        least = self._hidden[False]
        hidden = [own - part for own, part in zip(least, beneath, strict=True)]
        hidden = self._most_hidden(works, hidden) if most else hidden
        return Replay(
            self._ranks, self._clock_ns, self._measured, self._moments(works, hidden), gone
        )

    def _of_ranks(self, times: Sequence[Ints]) -> list[Ints]:
        """Return what is known of the ranks of each layer by rank, in order."""
        rows = [layer.rows for layer in self._layers]
        return _of_each(list(zip(rows, times, strict=True)), len(self._ranks))

    def _of_layers(self, times: Sequence[Ints]) -> list[Ints]:
        """Return what is known of each rank, in order, by layer."""
        rows = np.concatenate([layer.rows.ravel() for layer in self._layers])
        placed = np.empty(len(rows), np.int64)
        placed[np.argsort(rows, kind="stable")] = np.concatenate(times)
        bounds = np.cumsum([layer.rows.size for layer in self._layers])[:-1]
        parts = zip(self._layers, np.split(placed, bounds), strict=True)
        return [part.reshape(layer.rows.shape) for layer, part in parts]

    def _moments(self, works: Sequence[Ints], hidden: Sequence[Ints]) -> list[Ints]:
        """Return of each rank when it begins, comes to each collective and is done with its part."""
        done = self._begun_ns.copy()
        moments = [(np.arange(len(done)), done.copy())]
        for layer, work, beneath in zip(self._layers, works, hidden, strict=True):
            start = done[layer.rows] + work
            length = start.max(1, keepdims=True) + layer.transfer_ns - start
            done[layer.rows] = start + np.maximum(length - beneath, 0)
            moments += [(layer.rows, start), (layer.rows, done[layer.rows])]
        return _of_each(moments, len(done))

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


def _clocks(met: Sequence[Met], ranks: Ints) -> Ints:
    """Return by how much clocks are ahead, the median of what all collectives of a rank tell."""
    row = np.concatenate([np.searchsorted(ranks, one.ranks) for one in met] or [ranks[:0]])
    told = np.concatenate([one.clock_ns for one in met] or [ranks[:0]])
    ahead = pl.DataFrame({"row": row, "ahead": told}).group_by("row").agg(pl.col("ahead").median())
    found = np.zeros(len(ranks), np.int64)
    found[ahead["row"].to_numpy()] = np.rint(ahead["ahead"].to_numpy()).astype(np.int64)
    return found


def _of_each(moments: Sequence[tuple[Ints, Ints]], count: int) -> list[Ints]:
    """Return the moments of each of so many ranks, in the order given.

    Args:
        moments: Pairs of equal shape: which rank, and when.
        count: How many ranks there are.
    """
    row = np.concatenate([rows.ravel() for rows, _ in moments])
    times = np.concatenate([times.ravel() for _, times in moments])
    ends = np.cumsum(np.bincount(row, minlength=count))
    return np.split(times[np.argsort(row, kind="stable")], ends[:-1])


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
