"""The verdict of a run, for a page's head: how much is idle, and what would help, most first."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bubblescope.analysis import words
from bubblescope.analysis.device_words import bound
from bubblescope.analysis.finding import Finding, row_of
from bubblescope.analysis.why import Explanation
from bubblescope.analysis.why.findings import OUTSIDE_ALONE
from bubblescope.model.errors import TimelineError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from bubblescope.analysis.finding import Shown
    from bubblescope.analysis.idle.causes import Cause
    from bubblescope.analysis.idle.shares import Shares
    from bubblescope.analysis.schedule.recognise import Recognition
    from bubblescope.analysis.standard_questions import Answer
    from bubblescope.analysis.study import Study
    from bubblescope.model.timeline import Timeline
    from bubblescope.schedules.plan import Plan

    _Place = Callable[[Shown], int | None]

_LANGUAGE: Final = "en"
_MOST: Final = 0.5
"""Share of the idle time beyond which that is most of it."""
_SLOW_RANK: Final = "slow_rank"
"""The advice about a slow rank."""
_OUTSIDE: Final = ("outside", OUTSIDE_ALONE)
"""What is said of what ranks do beside the pipeline."""
_UNSEEN: Final = ("causes_partial", "causes_unseen")
"""What is said where it is not known what ranks waited for."""
_UNRATED: Final = "_unrated"
"""What the same ends in where it names no rate, which stands before it here."""
_INHERENT: Final = "inherent"
"""The advice where all idle time is the schedule's own."""


class Remedy(msgspec.Struct, frozen=True):
    """What could be done about one thing that makes steps long.

    Attributes:
        cause: Of the idle time that it is about; None if it is about other time.
        saved_ns: What a step would be shorter by; None where that is not known.
        spent_ns: What it is of a step now, where not what it would save is known.
        headline: What to do, in a few words.
        evidence: What shows that, with numbers.
        advice: What to do, at length.
        task: Number of the task that shows it best, its row among the timeline's unless the run was
            looked at in parts; None if none does.
        key: Which advice it is.
    """

    cause: Cause | None
    saved_ns: int | None
    spent_ns: int | None
    headline: str
    evidence: str
    advice: str
    task: int | None
    key: str


class Verdict(msgspec.Struct, frozen=True, eq=False):
    """What a run comes to.

    Attributes:
        shares: What each cause costs a step; None without a pipeline.
        share: Of the time that is idle; None if that is not known.
        share_of: Of which time, as the sentence goes on after the number.
        said: What else belongs to that number.
        remedies: What would help, that which saves most first.
        inherent: Share of the idle time that the schedule would have in any case; None if that is not
            known.
    """

    shares: Shares | None
    share: float | None
    share_of: str
    said: str
    remedies: tuple[Remedy, ...]
    inherent: float | None = None

    @classmethod
    def of(cls, timeline: Timeline, study: Study, also: Sequence[Plan] = ()) -> Self:
        """Return the verdict of a run that was studied."""
        try:
            why = Explanation.of(timeline, also=also, known=study)
        except TimelineError as error:
            return cls.unknown(error)
        return cls.of_why(why, study, lambda shown: row_of(shown, timeline))

    @classmethod
    def unknown(cls, error: TimelineError) -> Self:
        """Return the verdict of a run that cannot be explained, which says why."""
        return cls(None, None, "", _sentence_of(str(error)), ())

    @classmethod
    def of_why(cls, why: Explanation, study: Study, place: Callable[[Shown], int | None]) -> Self:
        """Return the verdict of a run that was explained.

        Args:
            why: Why it was idle.
            study: What was worked out about it.
            place: Returns the number of a task that shows something; None if it has none.
        """
        findings = [finding for finding in why.findings if finding.role == "verdict"]
        inherent = None
        if why.shares is None:
            overall = why.budget.overall  # type: ignore[union-attr] # one of the two is there
            share = overall.share(overall.idle_ns)
            of, said = (
                "of the devices' time is idle.",
                f"{words.word('bound', bound(overall), _LANGUAGE)}.",
            )
        else:
            share = study.bubbles.overall.makespan
            of = "of the pipeline's time is idle." if share is not None else ""
            told = next(one for one in findings if "inherent_share" in one.values)
            said, inherent = _inherent(told, share), told.values["inherent_share"]
        remedies = sorted(_remedies(why, place), key=_turn)
        return cls(why.shares, share, of, said, tuple(remedies), inherent)

    def with_schedule(self, ran: Recognition | None, answers: Sequence[Answer]) -> Verdict:
        """Return the verdict with what another schedule would save, where most is the schedule's own.

        Of those that were asked about it is the one that surely saves most. It takes the place of what
        is said where none is known to.

        Args:
            ran: The schedule that the run followed.
            answers: What was asked of it.
        """
        others = [one for one in answers if _is_another_schedule(one, ran)]
        best = max(others, key=_surely_saved_ns, default=None)
        if best is None or _surely_saved_ns(best) <= 0 or (self.inherent or 0) <= _MOST:
            return self
        kept = [one for one in self.remedies if one.key != _INHERENT]
        remedies = sorted([*kept, _other_schedule(best)], key=_turn)
        return msgspec.structs.replace(self, remedies=tuple(remedies))


def _inherent(told: Finding, share: float | None) -> str:
    """Say how much of the idle time the schedule would have in any case."""
    part, schedule = told.values["inherent_share"], told.values["schedule"]
    if told.key.startswith(_UNSEEN):
        key = told.key.removesuffix(_UNRATED) + _UNRATED
        return words.sentence(Finding("verdict", key, told.values), _LANGUAGE)
    if part is None:
        return ""
    values = {"schedule": schedule, "inherent_share": part, "other_share": 1 - part}
    if share is None:
        return words.sentence(Finding("verdict", "of_it_unrated", values), _LANGUAGE)
    values = {
        "schedule": schedule,
        "inherent_tenth": part * share,
        "other_tenth": (1 - part) * share,
    }
    return words.sentence(Finding("verdict", "of_it", values), _LANGUAGE)


def _remedies(why: Explanation, place: _Place) -> list[Remedy]:
    """Put together what is said of each thing: the verdict, the evidence for it, and the advice."""
    made: list[Remedy] = []
    told: list[Finding] = []
    for finding in [*why.findings, Finding("verdict", "", {})]:
        if finding.role == "verdict" and told:
            made += _of(told, place)
            told = []
        told.append(finding)
    return made


def _of(told: list[Finding], place: _Place) -> list[Remedy]:
    """Return what a verdict and what belongs to it come to; what only tells shares is no remedy."""
    first, *rest = told
    advised = [finding for finding in rest if finding.role == "advice"]
    if first.key == "whole_step":
        return [
            _remedy(place, outside, advice)
            for outside, advice in pairwise([*rest, None])
            if outside is not None and outside.key in _OUTSIDE
        ]
    if not advised or not first.values:
        return []
    shown = [finding for finding in rest if finding.role == "evidence"]
    evidence = next((one for one in shown if one.key in _NAMING), shown[0] if shown else None)
    return [_remedy(place, first, advised[0], evidence)]


_NAMING: Final = ("late_rank", "late_rank_by")
"""Evidence that names a rank, which is shown in place of what comes before."""


def _remedy(
    place: _Place, first: Finding, advice: Finding | None, evidence: Finding | None = None
) -> Remedy:
    values: dict[str, Any] = {**first.values, **(evidence.values if evidence else {})}
    advised = advice is not None and advice.role == "advice"
    key = advice.key if advice is not None and advised else first.key
    shown, saved = evidence or first, values.get("saved_ns")
    return Remedy(
        cause=values.get("cause"),
        saved_ns=None if saved is None else max(0, saved),
        spent_ns=values.get(
            "per_step_ns", values.get("mean_ns") if first.key in _OUTSIDE else None
        ),
        headline=words.sentence(Finding("headline", key, values), _LANGUAGE),
        evidence=_evidence(shown, hidden=saved is not None and saved <= 0),
        advice=words.sentence(advice, _LANGUAGE) if advice is not None and advised else "",
        task=place(shown.tasks[0]) if shown.tasks else None,
        key=key,
    )


def _turn(remedy: Remedy) -> tuple[bool, int]:
    """Return what sorts remedies, that which saves most first.

    Before them comes a slow rank that others wait for inside of passes: what it costs is not known, but
    it makes all of them long.
    """
    known_ns = remedy.spent_ns if remedy.saved_ns is None else remedy.saved_ns
    return (known_ns is not None or remedy.key != _SLOW_RANK, -(known_ns or 0))


def _is_another_schedule(answer: Answer, ran: Recognition | None) -> bool:
    """Say whether it was asked for a schedule other than the one that ran."""
    if [name for name, *_ in answer.asked] != ["schedule"]:
        return False
    _, name, chunks = answer.asked[0]
    if ran is None or ran.plan is None:
        return True
    return (name, chunks or ran.plan.chunks) != (ran.schedule, ran.plan.chunks)


def _surely_saved_ns(answer: Answer) -> int:
    """Return what a step would be shorter by even if the prediction is off as far as it may be."""
    asked = answer.prediction
    return asked.step_ns - math.ceil(asked.predicted_ns * (1 + asked.error))


def _other_schedule(answer: Answer) -> Remedy:
    asked = answer.prediction
    values = {
        "change": asked.change,
        "needs": asked.needs,
        "step_ns": asked.step_ns,
        "predicted_ns": asked.predicted_ns,
        "error_share": asked.error,
    }
    needs = "schedule" if asked.needs else "schedule_as_is"
    return Remedy(
        cause=None,
        saved_ns=asked.step_ns - asked.predicted_ns,
        spent_ns=None,
        headline=words.sentence(Finding("headline", "schedule", values), _LANGUAGE),
        evidence=words.sentence(Finding("evidence", needs, values), _LANGUAGE),
        advice=words.sentence(Finding("advice", _INHERENT, {}), _LANGUAGE),
        task=None,
        key="schedule",
    )


def _evidence(shown: Finding, *, hidden: bool) -> str:
    if shown.key.startswith("inherent"):
        return ""  # the number's own sentence says it
    said = words.sentence(shown, _LANGUAGE)
    if hidden:
        return words.sentence(Finding("evidence", "hidden", {"shown": said}), _LANGUAGE)
    return said


def _sentence_of(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
