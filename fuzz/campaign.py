"""A campaign: which inputs are tried, what came of them, and what they are worth."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import cycle
from random import Random
from typing import TYPE_CHECKING, Final

from fuzz.inputs import Input
from fuzz.trial import READ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fuzz.seeds import Target
    from fuzz.trial import Finding, Outcome

_FRESH: Final = 0.5
"""Share of the inputs that are made of a seed and not of one that led somewhere new."""
_AGAIN: Final = 50
"""Inputs that earlier campaigns kept with which one begins."""
_LONGEST: Final = 6
"""Mutations, one after the other: after more, little is left of what makes it a trace."""


@dataclass
class Tally:
    """What came of the inputs of a target."""

    verdicts: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    """Inputs with a finding of a kind."""
    seconds: float = 0.0
    mib: float = 0.0
    """The most that an input took."""

    @property
    def inputs(self) -> int:
        """How many were tried."""
        return self.verdicts.total()

    def add(self, outcome: Outcome) -> None:
        """Count what came of an input."""
        self.verdicts[outcome.verdict] += 1
        self.kinds.update({finding.kind for finding in outcome.findings})
        self.seconds = max(self.seconds, outcome.seconds)
        self.mib = max(self.mib, outcome.mib)


@dataclass
class Campaign:
    """Tries inputs and keeps those that led somewhere new, to go on from there.

    Attributes:
        targets: What is fuzzed.
        try_it: Tries an input.
        seed: Which inputs, of the many.
        kept: Target -> inputs that led to lines, refusals or notices that no other had led to.
        tallies: Target -> what came of its inputs.
        findings: What must not be -> the shortest known input that shows it, and what is known of it.
    """

    targets: Mapping[str, Target]
    try_it: Callable[[Input], Outcome]
    seed: int = 0
    kept: defaultdict[str, list[Input]] = field(default_factory=lambda: defaultdict(list))
    tallies: defaultdict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    findings: dict[tuple[str, str], tuple[Input, Finding]] = field(default_factory=dict)
    _lines: set[tuple[str, int]] = field(default_factory=set)
    _signs: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def inputs(self) -> Iterator[Input]:
        """Yield inputs without end, of each target in turn."""
        random = Random(self.seed)
        for target in cycle(self.targets):
            yield self._next(target, random)

    def start(self, kept: Sequence[Input]) -> None:
        """Try, without counting, every seed as it is and some of what earlier campaigns kept.

        Raises:
            ValueError: A seed is refused, or shows a fault.
        """
        for name, target in self.targets.items():
            for seed in target.seeds:
                one = Input(name, seed, ())
                outcome = self._looked_at(one)
                if outcome.verdict != READ or outcome.findings:
                    raise ValueError(f"{one} is no sound seed: {outcome}")
        known = [
            one
            for one in kept
            if one.target in self.targets and one.seed in self.targets[one.target].seeds
        ]
        for one in Random(self.seed).sample(known, min(len(known), _AGAIN)):
            self._looked_at(one)

    def step(self, one: Input) -> Outcome:
        """Try an input, and count it."""
        outcome = self._looked_at(one)
        self.tallies[one.target].add(outcome)
        return outcome

    def _looked_at(self, one: Input) -> Outcome:
        """Try an input; keep it if it is new, and note what it found."""
        outcome = self.try_it(one)
        signs = self._signs[one.target]
        if one.chain and (outcome.lines - self._lines or outcome.signs - signs):
            self.kept[one.target].append(one)
        self._lines |= outcome.lines
        signs |= outcome.signs
        for finding in outcome.findings:
            key = (finding.kind, finding.where)
            if key not in self.findings:
                self.findings[key] = (one, finding)
                self.findings[key] = self._shorter(one, finding)
        return outcome

    def _shorter(self, one: Input, finding: Finding) -> tuple[Input, Finding]:
        """Return the finding by an input of fewer mutations, if leaving some out leaves it."""
        at = 0
        while at < len(one.chain) and len(one.chain) > 1:
            fewer = one._replace(chain=one.chain[:at] + one.chain[at + 1 :])
            same = [it for it in self.try_it(fewer).findings if it[:2] == finding[:2]]
            if same:
                one, finding = fewer, same[0]
            else:
                at += 1
        return one, finding

    def _next(self, target: str, random: Random) -> Input:
        kept = self.kept[target]
        number = random.getrandbits(32)
        if kept and random.random() > _FRESH:
            # The latest are the least tried.
            one = kept[-1 - int(len(kept) * random.random() ** 2)]
            if len(one.chain) < _LONGEST:
                return one._replace(chain=(*one.chain, number))
        seed = random.choice([*self.targets[target].seeds])
        return Input(target, seed, (number,))
