"""What steps of a run without a pipeline would take, by what its devices spend their time on.

A device's step is the sum of its budget (`bubblescope.model.budget`), so without some of that it is as
much shorter, within the bounds of `bubblescope.analysis.shorter_steps`, which says how ranks that wait
for each other are replayed. Of that what goes:

* a host that is never late: between the time that it was late and its calls took, and that with the
  starts of launched work.
* faster kernels: what they leave to no other computation or copy, also beneath a collective; at least,
  what is after the last operation that waited on any rank for its host to launch it.

Where ranks that come late to collectives have as much to do before each as others have, the run is
replayed so, with some others to take after.

What a host did once a blocking call had returned goes with that, not with the call
(`bubblescope.model.budget.is_spent_on`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.analysis.arrivals import late
from bubblescope.analysis.coupled_ranks import chance_ns
from bubblescope.analysis.device_steps import DEVICE, PLACE, DeviceSteps
from bubblescope.analysis.device_words import LABELS
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.inside_tasks import FasterKernels
from bubblescope.analysis.prediction import (
    AS_QUICKEST,
    AT_ONCE,
    HOST_AHEAD,
    HOST_SOONER,
    IN_TIME,
    MORE_HIDDEN,
    NEEDS,
    NOT_AHEAD,
    Prediction,
    all_of,
    ranked,
)
from bubblescope.analysis.remedies import Needs
from bubblescope.analysis.shorter_steps import WAITS, Gone, ReplayedSteps, bounded
from bubblescope.model import units
from bubblescope.model.budget import HOST, IDLE, Use
from bubblescope.model.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from bubblescope.analysis.combined_changes import Change
    from bubblescope.model.provenance import Notice
    from bubblescope.model.timeline import Timeline

REMOVABLE: Final = (Use.COMMUNICATION, Use.COPY, *IDLE)
"""Classes of the budget that a run can be asked to be without."""

_KNOWN: Final = tuple(use for use in REMOVABLE if use in NEEDS)
"""Those of which it is known what would be rid of them."""

_NAMED: Final = 3
"""Ranks that come late, of which it is asked what a step would take were they as others."""
_LIKE: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Which others late ranks take after, from the one with least to do to that with most."""


def class_of(name: str) -> Use:
    """Return a class of the budget by its name.

    Raises:
        ScheduleError: It is none, or none that a run could be without.
    """
    known = [use.value for use in REMOVABLE]
    if name not in known:
        raise ScheduleError(
            f"a run cannot be without {str(name)!r}; without {', '.join(known)} it can"
        )
    return Use(name)


class DeviceWhatIf:
    """Answers questions about a run without a pipeline.

    Args:
        timeline: The run.
        activities: What its devices ran, for questions about kernels; as in
            `bubblescope.analysis.inside_tasks.FasterKernels`.

    Attributes:
        span: What is predicted: `STEP`, each from its start to the next one's, or `CAPTURE`, from the
            first operation of a device to its last, of a run without steps.
        open: Whether the ends of all steps are missing, so that they are longer than what is known.
        step_ns: How long it is: the mean over steps of the longest among the devices. Steps whose end
            was not recorded on all ranks are left out, unless there are no others.
    """

    def __init__(self, timeline: Timeline, activities: pl.DataFrame | None = None) -> None:
        self._activities = timeline.activities if activities is None else activities
        self._timeline = timeline
        self._needs = Needs(timeline)
        self._steps = DeviceSteps(timeline)
        self._replayed = ReplayedSteps(timeline, self._steps)
        self.span, self.open = self._steps.span, self._steps.open
        self.step_ns = self._steps.step_ns

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What is to be known of the steps that are asked about."""
        return self._steps.notices

    def host_never_late(self) -> Prediction:
        """Answer what it would have taken had the host always launched in time.

        Between a latency as it was, and none: `bubblescope.analysis.prediction.NOT_AHEAD`.
        """
        ahead = (NOT_AHEAD, (*NOT_AHEAD, Use.LATENCY))
        return self._without("the host never late", HOST_AHEAD, *ahead, best_if=AT_ONCE)

    def without(self, *what: Use | Cause | str) -> Prediction:
        """Answer what it would have taken without some classes of the device's time.

        Raises:
            ScheduleError: It is none of `REMOVABLE`.
        """
        for one in what:
            if one in [cause.value for cause in Cause]:
                raise ScheduleError(_no_pipeline(f"{Cause(one).value} is a cause of bubbles"))
        uses = [class_of(one) for one in what]
        change = "without " + " and ".join(LABELS[use] for use in uses)
        needs = self._needs.of(uses[0])
        return self._without(change, needs, uses, uses)

    def kernels(self, pattern: str, factor: float) -> Prediction:
        """Answer what it would have taken had kernels taken so many times as long.

        Args:
            pattern: A regular expression that their names match.
            factor: 0.5 for half as long; 1 at most.

        Raises:
            ScheduleError: No kernel matches, or kernels are not known.
        """
        faster = FasterKernels(self._activities, pattern, factor)
        works = self._of_works(faster, pattern, factor)
        windows = self._steps.windows
        saved = faster.saved(windows)
        most = saved if works is None else works.saved(windows)
        removed = windows.with_columns(
            removed_ns=pl.Series(saved.least_ns), most_ns=pl.Series(most.most_ns)
        )
        gone = None
        if works is not None and self._replayed.are_matched:
            free = windows.with_columns(free_ns=pl.Series(faster.free_ns(windows)))
            gone = (Gone(self._once_free(works.gone(), free)), Gone(works.gone()))
        change = f"kernels of {pattern!r} take {factor:g} times as long"
        return self._removed(change, HOST_AHEAD, removed, gone=gone)

    def _of_works(self, faster: FasterKernels, pattern: str, factor: float) -> FasterKernels | None:
        """Return the same kernels beside those that compute or copy alone, of ranks that communicate.

        A collective covers what is done beneath it only as long as it waits for others.

        Returns:
            None on a single device, and if some of the kernels communicate.
        """
        if not self._steps.several or "use" not in self._activities.columns:
            return None
        others = self._activities.filter(pl.col("use") != Use.COMMUNICATION.value)
        with suppress(ScheduleError):  # all of them communicate
            works = FasterKernels(others, pattern, factor)
            return works if works.less_ns == faster.less_ns else None
        return None

    def _once_free(self, gone: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
        """Return what goes of each step once no rank waits for its host to launch anything any more.

        Args:
            gone: What goes, as `FasterKernels.gone` has it.
            windows: As of `DeviceSteps.windows`, and free_ns, from when on each waits no more.
        """
        clock = self._replayed.ranks.clock_ns
        ahead = pl.col("rank").replace_strict(clock, return_dtype=pl.Int64)
        held = pl.when(pl.col("free_ns") > pl.col("start_ns")).then(pl.col("free_ns") - ahead)
        begin = pl.max_horizontal("start_ns", held.max().over("step") + ahead)
        placed = gone.sort("start_ns").join_asof(
            windows.with_columns(begin_ns=begin).sort("start_ns"),
            on="start_ns",
            by=DEVICE,
            check_sortedness=False,
        )
        return (
            placed.drop_nulls("until_ns")
            .select(
                "rank",
                start_ns=pl.max_horizontal("start_ns", "begin_ns"),
                end_ns=pl.min_horizontal("end_ns", "until_ns"),
            )
            .filter(pl.col("start_ns") < pl.col("end_ns"))
        )

    def healthy(self, *ranks: int) -> Prediction:
        """Answer what it would have taken had ranks had as much to do before collectives as others.

        It is a range over which of the others they take after.

        Raises:
            ScheduleError: It is not known what others have to do, or how much that scatters.
        """
        coupled = self._replayed.ranks
        known = {rank for one in coupled.met for rank in one.ranks.tolist()}
        for rank in ranks:
            if rank not in known:
                raise ScheduleError(
                    f"no collectives of rank {rank} could be matched with those of others, which takes "
                    "the traces of all ranks of a group, so what others have to do is not known"
                )
        chance = chance_ns(coupled, ranks)
        if chance is None:
            raise ScheduleError(
                "a single step and one other rank do not tell how much the times of ranks scatter; "
                "record more steps"
            )
        lengths = sorted(
            self._replayed.mean_ns(coupled.like_others(ranks, like, most=most))
            for like in _LIKE
            for most in ((False, True) if coupled.hides else (False,))
        )
        best, longest = lengths[0], lengths[-1]
        share = chance / longest if longest else 0.0
        return Prediction(
            f"{units.listed('rank', sorted(ranks))} healthy",
            IN_TIME,
            self.step_ns,
            longest,
            1 - longest / self.step_ns if self.step_ns else 0.0,
            self._steps.error + share,
            chance=share,
        ).down_to(best, all_of(AS_QUICKEST, MORE_HIDDEN if coupled.hides else ""))

    def together(self, *changes: Change) -> Prediction:
        """Answer what it would have taken with several changes at once: without several classes.

        Args:
            changes: Each the name of a method of this class and its arguments.

        Raises:
            ScheduleError: One of them makes no sense for the run, or they do not go together.
        """
        if len(changes) == 1:
            name, *arguments = changes[0]
            answer: Prediction = getattr(self, name)(*arguments)
            return answer
        names = {name for name, *_ in changes}
        if names == {"healthy"}:
            return self.healthy(*dict.fromkeys(rank for _, rank in changes))
        if names != {"without"}:
            raise ScheduleError(
                "in a run without a pipeline, a host that is never late, healthy ranks and faster "
                "kernels cannot be combined with other changes; ask about them one at a time"
            )
        return self.without(*dict.fromkeys(one for _, *some in changes for one in some))

    def ask(self, question: Callable[[DeviceWhatIf], Prediction]) -> Prediction:
        """Answer a question."""
        return question(self)

    def advice(self, memory: float | None = None) -> list[Prediction]:
        """Return what would make a step shorter, by what it saves at least, most first."""
        del memory  # of activations: there is no schedule to choose
        asked: list[tuple[Change, ...]] = [(change,) for change in self.remedies()]
        healthy = [change for (change,) in asked if change[0] == "healthy"]
        if len(healthy) > 1:
            asked.append(tuple(healthy))
        found = []
        for changes in asked:
            with suppress(ScheduleError):  # what is not known is no advice
                found.append(self.together(*changes))
        return ranked(found)

    def remedies(self) -> Iterator[Change]:
        """Yield what advice asks: without each class that is there, the host never late, and so on."""
        present = set(self._steps.budget.select(pl.coalesce("then", "use")).to_series().unique())
        for use in _KNOWN:
            if use.value in present:
                yield ("without", use)
        if sum(use.value in present for use in HOST) > 1:
            yield ("host_never_late",)
        lengths = self._steps.lengths
        of_rank_ns = int(lengths["length_ns"].sum()) / lengths["rank"].n_unique()
        for one in late(self._replayed.arrivals, of_rank_ns)[:_NAMED]:
            yield ("healthy", one.rank)

    def _only_pipelines(self, *_: object, **__: object) -> Prediction:
        raise ScheduleError(_no_pipeline("stages, schedules and micro-batches cannot change"))

    scaled = moved = microbatches = schedule = _only_pipelines

    def _without(
        self,
        change: str,
        needs: str,
        least: Collection[Use],
        most: Collection[Use],
        best_if: str = HOST_SOONER,
    ) -> Prediction:
        """Return what is left without some classes of time, at least and at most; see `_removed`."""
        removed = self._steps.spent(least, "removed_ns").join(
            self._steps.spent(most, "most_ns"),
            on=PLACE,
            how="full",
            coalesce=True,
            nulls_equal=True,
        )
        waits = [use for use in WAITS if use not in least]
        gone = None
        if Use.COMMUNICATION in waits and self._replayed.are_matched:
            gone = (Gone.spent_on(least, self._steps), Gone.spent_on(most, self._steps))
        return self._removed(change, needs, removed, waits=waits, best_if=best_if, gone=gone)

    def _removed(
        self,
        change: str,
        needs: str,
        removed: pl.DataFrame,
        *,
        waits: Collection[Use] = WAITS,
        best_if: str = HOST_SOONER,
        gone: tuple[Gone, Gone] | None = None,
    ) -> Prediction:
        """Return what is left of the steps.

        Args:
            change: What is different.
            needs: What that takes.
            removed: By how much each step would be shorter, as of `bounded`.
            waits: What stays of what contains waiting for other ranks.
            best_if: What has to be so for the most to go.
            gone: What goes, at least and at most, if it is known who waits for whom meanwhile.
        """
        left = bounded(self._steps, removed, best_if, waits)
        if gone is not None:
            left = self._replayed.within(left, *gone)
        return Prediction(
            change,
            needs,
            self.step_ns,
            left.longest_ns,
            1 - left.longest_ns / self.step_ns if self.step_ns else 0.0,
            self._steps.error,
        ).down_to(left.shortest_ns, left.best_if)


def _no_pipeline(said: str) -> str:
    return (
        f"the run has no pipeline (no passes of several stages are known): {said}; what-if can "
        "leave out a class of its devices' time, have the host never late, or have faster kernels"
    )
