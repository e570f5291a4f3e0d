"""Compares the tasks that a reader inferred from traces without marks with what was true.

Only the table of tasks is looked at: by column names, not by the code that filled them.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import polars as pl

PASSES = ("forward", "backward", "backward_input", "backward_weight")
TASK, STEP, STAGE, MICROBATCH, PAIR = "task", "step", "stage", "microbatch", "pair"
NAMES = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "LoopedBFS": "looped-bfs",
    "Interleaved1F1B": "interleaved-1f1b",
    "InterleavedZeroBubble": "interleaved-zb",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipev",
    "ZB-H1": "zb-h1",
    "Megatron1F1B": "1f1b",
    "MegatronInterleaved": "interleaved-1f1b",
}
"""What the cases' schedules are called here. A job of another kind is no pipeline."""

ASPECTS = (TASK, STEP, STAGE, MICROBATCH, PAIR)
"""What is answered of a pass: that it is one and from when to when, its step, its stage, its
micro-batch, and which forward a backward is of."""

Window = tuple[int, int]


@dataclass(frozen=True)
class Action:
    """What really ran on a rank, from its first operator at `start` to the `end` of its last, in ns.

    Attributes:
        kinds: What it may be called. The first stage has no input gradient to compute, so that torch's
            `backward_weight` there is the whole backward, and either name is right.
        expected: Whether a reader can be asked for it: most of it is inside of what was traced.
        overlapped: From when to when it and another ran as an overlapped pair, if they did.
    """

    rank: int
    step: int
    stage: int
    microbatch: int
    kinds: frozenset[str]
    start: int
    end: int
    expected: bool = True
    overlapped: Window | None = None

    @property
    def forward(self) -> tuple[int, int, int, int]:
        """The forward that it is, or that it is the backward of."""
        return self.rank, self.step, self.stage, self.microbatch

    @property
    def is_forward(self) -> bool:
        return "forward" in self.kinds


@dataclass(frozen=True)
class Claim:
    """What a reader says ran on a rank from `start` to `end`, in ns; None is what it does not say.

    `overlapped` is true if it is said to have run as one of an overlapped pair in that time.
    """

    rank: int
    step: int | None
    stage: int | None
    microbatch: int | None
    kind: str
    start: int
    end: int
    probability: Mapping[str, float]
    overlapped: bool = False

    @property
    def forward(self) -> tuple[int, int, int | None, int] | None:
        """The forward that it is, or is said to be the backward of; None if it is not said."""
        if self.step is None or self.microbatch is None:
            return None
        return self.rank, self.step, self.stage, self.microbatch


@dataclass
class Score:
    """How many true passes were told, and how sure the reader was of what.

    Attributes:
        passes: True forwards and backwards that could be told.
        found: Those of which a task of their kind covers more than half, and they more than half of it.
        backwards: Those of `passes` that are backwards.
        paired: Backwards whose task and whose forward's task are of one and the same micro-batch.
        placed: Passes whose stage and whose micro-batch are right.
        wrong: Tasks of which something that is said is wrong.
        wrong_and_sure: Those of which something that is said with more than 50 % is wrong.
        tasks: Tasks that were looked at.
        answers: Each answer's probability and whether it is right, by aspect.
        whole: Each task's probability, the least of its answers', and whether all of them are right.
    """

    passes: int = 0
    found: int = 0
    backwards: int = 0
    paired: int = 0
    placed: int = 0
    wrong: int = 0
    wrong_and_sure: int = 0
    tasks: int = 0
    answers: list[tuple[str, float, bool]] = field(default_factory=list)
    whole: list[tuple[float, bool]] = field(default_factory=list)

    def add(self, other: Score) -> None:
        for name in (
            "passes", "found", "backwards", "paired", "placed", "wrong", "wrong_and_sure", "tasks"
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.answers += other.answers
        self.whole += other.whole


def truth(folder: Path) -> list[Action]:
    """Return the passes of a case, with the loss as a part of the last stage's forwards."""
    actions = json.loads((folder / "truth.json").read_text())["actions"]

    def places(kind: str, operators: Callable[[int], bool] = bool) -> dict[Any, Any]:
        return {
            _place(one): one
            for one in actions
            if one["kind"] == kind and operators(one["operators"])
        }

    losses = places("loss")
    nothing = places("backward_input", lambda operators: not operators)
    pairs: dict[tuple[int, int], Window] = {}
    for one in actions:
        if one["pair"] is not None and one["operators"]:
            name, span = (one["rank"], one["pair"]), (one["first_ns"], one["last_ns"])
            before = pairs.get(name, span)
            pairs[name] = min(before[0], span[0]), max(before[1], span[1])
    found = []
    for one in actions:
        if one["kind"] not in PASSES or not one["operators"]:
            continue
        place = _place(one)
        end = one["last_ns"]
        if one["kind"] == "forward" and place in losses:
            end = losses[place]["last_ns"]
        names = {one["kind"]}
        if one["kind"] == "backward_weight" and place in nothing:
            names.add("backward")
        pair = pairs.get((one["rank"], one["pair"]))
        found.append(Action(*place, frozenset(names), one["first_ns"], end, overlapped=pair))
    return found


def _place(one: Mapping[str, int]) -> tuple[int, int, int, int]:
    return one["rank"], one["step"], one["stage"], one["microbatch"]


def bubble(actions: Sequence[Action]) -> float:
    """Return the share of the ranks' time, from a step's first pass to its last, that is in none."""
    steps: dict[int, list[Action]] = {}
    for one in actions:
        steps.setdefault(one.step, []).append(one)
    busy = sum(one.end - one.start for one in actions)
    ranks = len({one.rank for one in actions})
    room = sum(
        max(one.end for one in mine) - min(one.start for one in mine) for mine in steps.values()
    )
    return 1 - busy / (ranks * room)


def seen(actions: Iterable[Action], windows: Mapping[int, Window]) -> list[Action]:
    """Return what is left of the passes in the windows, in ns, that the ranks' traces are of."""
    left = []
    for one in actions:
        if one.rank not in windows:
            continue
        first, last = windows[one.rank]
        start, end = max(one.start, first), min(one.end, last)
        if start < end:
            expected = one.expected and 2 * (end - start) > one.end - one.start
            left.append(replace(one, start=start, end=end, expected=expected))
    return left


def claims(tasks: pl.DataFrame, columns: Mapping[str, str]) -> list[Claim]:
    """Return what a table of tasks says of passes.

    Args:
        tasks: As `Timeline.tasks`.
        columns: Column of the probability of each of the `ASPECTS`. Where the table has no such
            column, or a null in it, the answer counts as given without doubt.
    """
    found = []
    for row in tasks.iter_rows(named=True):
        sure = {
            aspect: 1.0 if (value := row.get(columns.get(aspect, ""))) is None else value
            for aspect in ASPECTS
        }
        span = (row["start_ns"], row["end_ns"], sure)
        if row["kind"] in PASSES:
            place = (row["rank"], row["step"], row["stage"], row["microbatch"])
            found.append(Claim(*place, row["kind"], *span))
        elif row["kind"] == "forward_backward":
            place = (row["rank"], row["step"], row["stage"], row["microbatch"])
            found.append(Claim(*place, "forward", *span, overlapped=True))
            pair = (row["rank"], row["step"], row["pair_stage"], row["pair_microbatch"])
            found.append(Claim(*pair, "backward", *span, overlapped=True))
    return found


class Working:
    """When a rank worked: by it the length of a pass is measured, not by when its process was halted.

    A busy machine halts a process between any two of its operators, for longer than a pass takes.
    """

    def __init__(self, spans: Sequence[Window]) -> None:
        self.starts = [start for start, _ in spans]
        self.lengths = [end - start for start, end in spans]
        self.before = [0, *accumulate(self.lengths)]

    def until(self, at: int) -> int:
        """Return for how long the rank had worked by an instant, in ns."""
        place = bisect_right(self.starts, at) - 1
        if place < 0:
            return 0
        return self.before[place] + min(at - self.starts[place], self.lengths[place])

    def between(self, start: int, end: int) -> int:
        return self.until(end) - self.until(start) if start < end else 0


def working(folder: Path) -> dict[int, Working]:
    """Return when each rank of a case worked; nothing for cases that were never halted."""
    told = json.loads((folder / "truth.json").read_text()).get("working", [])
    return {rank: Working(spans) for rank, spans in enumerate(told)}


def score(
    actions: Sequence[Action],
    said: Sequence[Claim],
    worked: Mapping[int, Working] | None = None,
) -> Score:
    """Compare what is said with what is true, by the time that ranks worked if that is given.

    Steps may be numbered from anywhere: the shift that fits most of the tasks is taken.
    """
    matches = _matches(actions, said, worked or {})
    shifts = Counter(
        claim.step - match.step
        for claim, match in zip(said, matches, strict=True)
        if match is not None and claim.step is not None
    )
    shift = shifts.most_common(1)[0][0] if shifts else 0

    result = Score(
        passes=sum(one.expected for one in actions),
        backwards=sum(one.expected and not one.is_forward for one in actions),
        tasks=len(said),
    )
    told = {  # what the reader calls each forward
        match.forward: claim.forward
        for claim, match in zip(said, matches, strict=True)
        if match is not None and match.is_forward
    }
    true_of = {name: place for place, name in told.items() if name is not None}
    for claim, match in zip(said, matches, strict=True):
        right = _right(claim, match, shift, told, true_of)
        result.answers += [
            (aspect, claim.probability[aspect], answer) for aspect, answer in right.items()
        ]
        wrong = [claim.probability[aspect] for aspect, answer in right.items() if not answer]
        result.whole.append((min(claim.probability[aspect] for aspect in right), not wrong))
        result.wrong += bool(wrong)
        result.wrong_and_sure += any(one > 0.5 for one in wrong)
        if match is not None and match.expected:
            result.found += 1
            result.paired += right.get(PAIR, False)
            result.placed += right.get(STAGE, False) and right.get(MICROBATCH, False)
    return result


def _right(
    claim: Claim,
    match: Action | None,
    shift: int,
    told: Mapping[Any, Any],
    true_of: Mapping[Any, Any],
) -> dict[str, bool]:
    """Return which of the answers that a claim gives are right."""
    if match is None:
        return {TASK: False}
    right = {TASK: True}
    if claim.step is not None:
        right[STEP] = claim.step - shift == match.step
    if claim.stage is not None:
        right[STAGE] = claim.stage == match.stage
    if claim.microbatch is not None:
        right[MICROBATCH] = claim.microbatch == match.microbatch
    if not match.is_forward and claim.forward is not None:
        name = claim.forward
        if name == told.get(match.forward):
            right[PAIR] = True
        elif name in true_of:  # it is given the name of another forward
            right[PAIR] = False
    return right


def _wall(start: int, end: int) -> int:
    return max(0, end - start)


def _matches(
    actions: Sequence[Action], said: Sequence[Claim], worked: Mapping[int, Working]
) -> list[Action | None]:
    """Return the pass that each claim tells, of which no two claims tell the same."""
    lanes: dict[int, list[Action]] = {}
    for one in sorted(actions, key=lambda one: (one.start, one.end)):
        lanes.setdefault(one.rank, []).append(one)
    bounds = {
        rank: ([one.start for one in lane], [one.end for one in lane])
        for rank, lane in lanes.items()
    }
    candidates = []
    for number, claim in enumerate(said):
        if claim.rank not in lanes:
            continue
        starts, ends = bounds[claim.rank]
        length = worked[claim.rank].between if claim.rank in worked else _wall
        for place in range(bisect_right(ends, claim.start), bisect_left(starts, claim.end)):
            one = lanes[claim.rank][place]
            start, end = (claim.overlapped and one.overlapped) or (one.start, one.end)
            both = length(max(start, claim.start), min(end, claim.end))
            most = max(length(start, end), length(claim.start, claim.end))
            if claim.kind in one.kinds and 2 * both > most:
                candidates.append((both, number, one))
    found: list[Action | None] = [None] * len(said)
    taken = set()
    for _, number, one in sorted(candidates, key=lambda each: -each[0]):
        if found[number] is None and one not in taken:
            found[number] = one
            taken.add(one)
    return found
