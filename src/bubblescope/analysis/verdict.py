"""The verdict of a run, for a page's head: how much is idle, and what would help, most first."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bubblescope.analysis import words
from bubblescope.analysis.device_budget import bound
from bubblescope.analysis.finding import Finding, row_of
from bubblescope.analysis.why import Explanation
from bubblescope.model.errors import TimelineError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from bubblescope.analysis.finding import Shown
    from bubblescope.analysis.idle.causes import Cause
    from bubblescope.analysis.idle.shares import Shares
    from bubblescope.analysis.study import Study
    from bubblescope.model.timeline import Timeline
    from bubblescope.schedules.plan import Plan

    _Place = Callable[[Shown], int | None]

_LANGUAGE: Final = "en"


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
    """

    cause: Cause | None
    saved_ns: int | None
    spent_ns: int | None
    headline: str
    evidence: str
    advice: str
    task: int | None


class Verdict(msgspec.Struct, frozen=True, eq=False):
    """What a run comes to.

    Attributes:
        shares: What each cause costs a step; None without a pipeline.
        share: Of the time that is idle; None if that is not known.
        share_of: Of which time, as the sentence goes on after the number.
        said: What else belongs to that number.
        remedies: What would help, that which saves most first.
    """

    shares: Shares | None
    share: float | None
    share_of: str
    said: str
    remedies: tuple[Remedy, ...]

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
            said = _inherent(told, share)
        remedies = sorted(
            _remedies(why, place), key=lambda one: -(one.saved_ns or one.spent_ns or 0)
        )
        return cls(why.shares, share, of, said, tuple(remedies))


def _inherent(told: Finding, share: float | None) -> str:
    """Say how much of the idle time the schedule would have in any case."""
    part, schedule = told.values["inherent_share"], told.values["schedule"]
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
            if outside is not None and outside.role == "evidence"
        ]
    if not advised or not first.values:
        return []
    evidence = next((finding for finding in rest if finding.role == "evidence"), None)
    return [_remedy(place, first, advised[0], evidence)]


def _remedy(
    place: _Place, first: Finding, advice: Finding | None, evidence: Finding | None = None
) -> Remedy:
    values: dict[str, Any] = {**first.values, **(evidence.values if evidence else {})}
    advised = advice is not None and advice.role == "advice"
    key = advice.key if advice is not None and advised else first.key
    shown = evidence or first
    return Remedy(
        cause=values.get("cause"),
        saved_ns=max(0, values["saved_ns"]) if "saved_ns" in values else None,
        spent_ns=values.get(
            "per_step_ns", values.get("mean_ns") if first.key == "outside" else None
        ),
        headline=words.sentence(Finding("headline", key, values), _LANGUAGE),
        evidence=_evidence(shown, hidden=values.get("saved_ns", 1) <= 0),
        advice=words.sentence(advice, _LANGUAGE) if advice is not None and advised else "",
        task=place(shown.tasks[0]) if shown.tasks else None,
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
