"""What steps of a run without a pipeline would take, by what its devices spend their time on.

A device's step is the sum of its budget (`bubblescope.model.budget`), so without some of that it is as
much shorter. With h the time that goes, and c the exposed communication, of rank r in a step of
length s:

* one device: s - h. Of a host that is never late, between that with h the time that it was late and
  its calls took, and with the starts of launched work in h too.
* several devices that communicate: exposed communication contains waiting for the slowest, and how
  much of it would be left is not known. Between max over r of (s - h - c), where nobody waits any more,
  or max s - the sum over r of h if that is longer (no path through the step loses more than goes on all
  ranks together), and max over r of (s - h), where each waits as long as it did. Ranks that are late in
  turns, each waiting for the others, would gain less than that.
* the same where nearly all of that is in collectives of which it is known who waits for whom: the run
  is replayed without h (`bubblescope.analysis.coupled_ranks`). Of faster kernels, h is what they leave
  to no other computation or copy, also beneath a collective; at least, what is after the last
  operation that waited on any rank for its host to launch it.
* where exposed communication itself goes, waiting and all: max over r of (s - h).
* where ranks that come late to collectives have as much to do before each as others have: the run is
  replayed so, with some others to take after.

The time in which a host waits for other ranks itself (`Use.RANK_WAIT`) is part of c as well. What a
host did once a blocking call had returned goes with that, not with the call
(`bubblescope.model.budget.is_spent_on`).
"""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from bubblescope.analysis.arrivals import arrivals, late, over_steps
from bubblescope.analysis.coupled_ranks import CoupledRanks, Replay, chance_ns
from bubblescope.analysis.device_budget import LABELS, budget, recorded
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.inside_tasks import FasterKernels
from bubblescope.analysis.prediction import (
    AS_QUICKEST,
    AT_ONCE,
    GAPS_IN_LINE,
    HOST_AHEAD,
    HOST_SOONER,
    IN_TIME,
    MORE_HIDDEN,
    NEEDS,
    NO_WAITING,
    NOT_AHEAD,
    Prediction,
    all_of,
    ranked,
)
from bubblescope.analysis.remedies import needs_of
from bubblescope.analysis.step_lengths import is_one_step, warm_up, whole
from bubblescope.model import units
from bubblescope.model.budget import HIDDEN, HOST, IDLE, Use, is_spent_on
from bubblescope.model.errors import ScheduleError, TimelineError
from bubblescope.model.met_collectives import met
from bubblescope.model.provenance import Notice

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from bubblescope.analysis.combined_changes import Change
    from bubblescope.analysis.device_budget import Budget
    from bubblescope.model.timeline import Timeline

STEP: Final = "step"
CAPTURE: Final = "capture"

_WAITS: Final = (Use.COMMUNICATION, Use.RANK_WAIT)
"""What contains waiting for other ranks."""

REMOVABLE: Final = (Use.COMMUNICATION, Use.COPY, *IDLE)
"""Classes of the budget that a run can be asked to be without."""

_KNOWN: Final = tuple(use for use in REMOVABLE if use in NEEDS)
"""Those of which it is known what would be rid of them."""

_MATCHED: Final = 0.95
"""Share of exposed communication in matched collectives from which on ranks are replayed."""
_NAMED: Final = 3
"""Ranks that come late, of which it is asked what a step would take were they as others."""
_LIKE: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Which others late ranks take after, from the one with least to do to that with most."""

_DEVICE: Final = ("rank", "device")
_PLACE: Final = (*_DEVICE, "step")


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


class _Gone(NamedTuple):
    """What goes of the time of ranks.

    Attributes:
        known: Frame with rank, start_ns and end_ns: where it is known when.
        in_sums: Frame with step and spent_ns: where it is known how much only; None if nowhere.
    """

    known: pl.DataFrame
    in_sums: pl.DataFrame | None = None


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
        budget = timeline.budget.filter(~pl.col("use").is_in([use.value for use in HIDDEN]))
        if not budget.height:
            raise TimelineError("the traces hold no kernels, so they do not show what devices did")
        self._timeline = timeline
        self._activities = timeline.activities if activities is None else activities
        in_steps = budget["step"].is_not_null().any() and not is_one_step(timeline.run)
        self.span = STEP if in_steps else CAPTURE
        times = timeline.step_times
        if in_steps:
            place, budget = ["rank", "step"], budget.drop_nulls("step")
            steps = budget.select(place).unique().join(times, on=place, how="left")
            # Ranks wait for each other: what a step takes is known where it is known of them all.
            known = whole(steps.with_columns(pl.col("open").any().over("step")))
            self.open = bool(known["open"].any())
            budget = budget.join(known, on=place, how="semi", maintain_order="left")
        else:
            self.open = False
            # What came before all that was taken as one step is of the same capture.
            budget = budget.with_columns(step=pl.lit(None, budget.schema["step"]))
        self._budget = budget
        self._steps = budget.group_by(_PLACE).agg(length_ns=pl.col("spent_ns").sum())
        self._coupled = self._steps.n_unique(_DEVICE) > 1
        self.step_ns = self._mean(pl.col("length_ns").max())
        self._error = self._off(times)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What is to be known of the steps that are asked about."""
        longest = self._steps.group_by("step").agg(pl.col("length_ns").max())
        found = warm_up(dict(longest.drop_nulls("step").iter_rows()))
        if found is None:
            return ()
        text = (
            f"step {found.step} takes {units.duration(found.length_ns)}, {found.factor:.2f} times the "
            f"median of the others, {units.duration(found.median_ns)}, as where kernels are loaded and "
            "memory is allocated first; it makes means over steps longer: leave it out with --steps"
        )
        return (Notice("warm-up", text),)

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
        needs = needs_of(uses[0], lambda: self._spent_in_all)
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
        windows = self._windows()
        saved = faster.saved(windows)
        most = saved if works is None else works.saved(windows)
        removed = windows.with_columns(
            removed_ns=pl.Series(saved.least_ns), most_ns=pl.Series(most.most_ns)
        )
        gone = None
        if works is not None and self._is_matched:
            free = windows.with_columns(free_ns=pl.Series(faster.free_ns(windows)))
            gone = (_Gone(self._once_free(works.gone(), free)), _Gone(works.gone()))
        change = f"kernels of {pattern!r} take {factor:g} times as long"
        return self._removed(change, HOST_AHEAD, removed, gone=gone)

    def _of_works(self, faster: FasterKernels, pattern: str, factor: float) -> FasterKernels | None:
        """Return the same kernels beside those that compute or copy alone, of ranks that communicate.

        A collective covers what is done beneath it only as long as it waits for others.

        Returns:
            None on a single device, and if some of the kernels communicate.
        """
        if not self._coupled or "use" not in self._activities.columns:
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
            windows: As of `_windows`, and free_ns, from when on each waits no more.
        """
        clock = self._waiting.clock_ns
        ahead = pl.col("rank").replace_strict(clock, return_dtype=pl.Int64)
        held = pl.when(pl.col("free_ns") > pl.col("start_ns")).then(pl.col("free_ns") - ahead)
        begin = pl.max_horizontal("start_ns", held.max().over("step") + ahead)
        placed = gone.sort("start_ns").join_asof(
            windows.with_columns(begin_ns=begin).sort("start_ns"),
            on="start_ns",
            by=_DEVICE,
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
        coupled = self._waiting
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
            self._mean_of(coupled.like_others(ranks, like, most=most))
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
            self._error + share,
            chance=share,
        ).down_to(best, all_of(AS_QUICKEST, MORE_HIDDEN if coupled.hides else ""))

    @cached_property
    def _waiting(self) -> CoupledRanks:
        """Return the run as ranks that wait for each other."""
        found = met(self._timeline)
        first = self._timeline.operations.group_by("rank").agg(pl.col("start_ns").min())
        windows = self._windows().group_by("rank").agg(pl.col("start_ns").min())
        begun = pl.concat([first, windows]).group_by("rank").agg(pl.col("start_ns").min())
        return CoupledRanks(found, dict(begun.iter_rows()))

    def _mean_of(
        self, replay: Replay, in_sums: pl.DataFrame | None = None, *, sure: bool = True
    ) -> int:
        """Return how long a step is in a run that was replayed.

        Args:
            replay: The run.
            sure: Whether it would be just so, and not as short at best. One rank may then be too early
                where a step begins, and not where it ends: the mean step of any rank is no longer for
                that, and the mean of the longest ones no shorter.
            in_sums: Frame with step and spent_ns: what goes as well, nobody knows when; no path through
                a step loses more than all of it.
        """
        windows = self._windows()
        rank, *times = (windows[name].to_numpy() for name in ("rank", "start_ns", "until_ns"))
        start, until = replay.moved_ns(rank, times)
        sooner = pl.Series((times[1] - times[0]) - (until - start))
        found = self._steps.join(
            windows.select(*_PLACE, sooner_ns=sooner), on=_PLACE, how="left", nulls_equal=True
        )
        more = pl.lit(0).alias("more_ns")
        if in_sums is not None:
            sums = in_sums.group_by("step").agg(pl.col("spent_ns").sum().alias("more_ns"))
            found = found.join(sums, on="step", how="left", nulls_equal=True)
            more = pl.col("more_ns").fill_null(0)
        left = pl.col("length_ns") - pl.col("sooner_ns")
        if sure:
            return self._mean((left - more).max(), found)
        return round(found.group_by(_DEVICE).agg((left - more).mean().alias("of"))["of"].max())  # type: ignore[arg-type]

    @cached_property
    def _arrivals(self) -> pl.DataFrame:
        """Who waited for whom, as `bubblescope.analysis.arrivals.over_steps` returns it."""
        found = arrivals(self._timeline)
        if self.span == CAPTURE:
            found = found.with_columns(step=pl.lit(None, pl.Int32))
        return over_steps(found, self._steps)

    @cached_property
    def _is_matched(self) -> bool:
        """Whether nearly all exposed communication is in collectives of which it is known who waits."""
        exposed = pl.col("use") == Use.COMMUNICATION.value
        spent = int(self._budget.filter(exposed)["spent_ns"].sum())
        known = int(self._arrivals["exposed_ns"].sum())
        return spent > 0 and known >= _MATCHED * spent

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
        present = set(self._budget.select(pl.coalesce("then", "use")).to_series().unique())
        for use in _KNOWN:
            if use.value in present:
                yield ("without", use)
        if sum(use.value in present for use in HOST) > 1:
            yield ("host_never_late",)
        whole_ns = int(self._steps["length_ns"].sum())
        for one in late(self._arrivals, whole_ns / self._steps["rank"].n_unique())[:_NAMED]:
            yield ("healthy", one.rank)

    @cached_property
    def _spent_in_all(self) -> Budget | None:
        """What the devices spent their time on."""
        return budget(self._timeline)

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
        removed = self._spent(least, "removed_ns").join(
            self._spent(most, "most_ns"), on=_PLACE, how="full", coalesce=True, nulls_equal=True
        )
        waits = [use for use in _WAITS if use not in least]
        gone = None
        if Use.COMMUNICATION in waits and self._is_matched:
            gone = (self._located(least), self._located(most))
        return self._removed(change, needs, removed, waits=waits, best_if=best_if, gone=gone)

    def _spent(self, uses: Collection[Use], name: str) -> pl.DataFrame:
        """Return what each device's step spent on some uses, under a name."""
        rows = self._budget.filter(is_spent_on(uses))
        return rows.group_by(_PLACE).agg(pl.col("spent_ns").sum().alias(name))

    def _removed(
        self,
        change: str,
        needs: str,
        removed: pl.DataFrame,
        *,
        waits: Collection[Use] = _WAITS,
        best_if: str = HOST_SOONER,
        gone: tuple[_Gone, _Gone] | None = None,
    ) -> Prediction:
        """Return what is left of the steps.

        Args:
            change: What is different.
            needs: What that takes.
            removed: Frame with rank, device, step, removed_ns and most_ns: by how much each would be
                shorter, at least and at most.
            waits: What stays of what contains waiting for other ranks.
            best_if: What has to be so for the most to go.
            gone: What goes, at least and at most, if it is known who waits for whom meanwhile.
        """
        of = self._steps
        waiting = self._spent(waits, "waiting_ns")
        for spent in (removed.select(*_PLACE, "removed_ns", "most_ns"), waiting):
            of = of.join(spent, on=_PLACE, how="left", nulls_equal=True)
        of = of.with_columns(pl.col("removed_ns", "most_ns", "waiting_ns").fill_null(0))
        length, most = pl.col("length_ns"), pl.col("most_ns")
        predicted = self._mean((length - pl.col("removed_ns")).max(), of)
        best, conditions = (length - most).max(), []
        if (of["most_ns"] > of["removed_ns"]).any():
            conditions.append(best_if)
        if self._coupled and (Use.COMMUNICATION in waits or waiting.height):
            alone = (length - most - pl.col("waiting_ns")).max()
            best = pl.max_horizontal(alone, length.max() - most.sum())
        shortest = self._mean(best, of)
        if gone is not None:
            least, much = gone
            predicted = min(predicted, self._mean_of(self._waiting.without(least.known)))
            hides = self._waiting.hides
            at_best = self._waiting.without(much.known, most=True)
            sooner = self._mean_of(at_best, much.in_sums, sure=not hides)
            shortest = max(shortest, sooner)
            conditions += [] if much.in_sums is None else [GAPS_IN_LINE]
            conditions += [MORE_HIDDEN] if hides else []
        elif self._coupled and (Use.COMMUNICATION in waits or waiting.height):
            conditions.append(NO_WAITING)
        return Prediction(
            change,
            needs,
            self.step_ns,
            predicted,
            1 - predicted / self.step_ns if self.step_ns else 0.0,
            self._error,
        ).down_to(shortest, all_of(*conditions))

    def _located(self, uses: Collection[Use]) -> _Gone:
        """Return what was spent on some classes."""
        rows = self._budget.filter(is_spent_on(uses), pl.col("spent_ns") > 0)
        known = pl.col("spent_ns") == pl.col("end_ns") - pl.col("start_ns")
        in_sums = rows.filter(~known)
        return _Gone(rows.filter(known), in_sums if in_sums.height else None)

    def _mean(self, of_devices: pl.Expr, steps: pl.DataFrame | None = None) -> int:
        """Return the mean over steps of what an expression makes of a step's devices."""
        of = self._steps if steps is None else steps
        return round(of.group_by("step").agg(of_devices.alias("of"))["of"].mean())  # type: ignore[arg-type]

    def _off(self, times: pl.DataFrame) -> float:
        """Return how far sums of the budget are from steps as they were measured, as a share."""
        known = times.filter(pl.col("step").is_in(self._steps["step"].implode()))
        if self.span == CAPTURE or not known.height:
            return 0.0
        known = recorded(known, self._budget, "rank", "step")
        length = pl.col("recorded_ns").max().alias("of")
        measured = float(known.group_by("step").agg(length)["of"].mean())  # type: ignore[arg-type]
        return abs(self.step_ns / measured - 1) if measured else 0.0

    def _windows(self) -> pl.DataFrame:
        """Return the time of each device's steps: rank, device, step, start_ns and until_ns."""
        places = self._budget.group_by(_PLACE).agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        if self.span == STEP:
            times = self._timeline.step_times.select("rank", "step", "start_ns", "end_ns")
            places = places.select(_PLACE).join(times, on=["rank", "step"])
        return places.rename({"end_ns": "until_ns"})


def _no_pipeline(said: str) -> str:
    return (
        f"the run has no pipeline (no passes of several stages are known): {said}; what-if can "
        "leave out a class of its devices' time, have the host never late, or have faster kernels"
    )
