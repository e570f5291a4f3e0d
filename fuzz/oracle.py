"""What must hold of every answer, whatever the input was.

Each check yields a sentence for each thing that is wrong. None knows what the input should have said:
that is what makes them good for any.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from subprocess import CompletedProcess

DONE, FAILED, REFUSED, NOTHING = 0, 1, 2, 3
"""Exit codes of `bubblescope.cli`."""
_READING: Final = ("info", "report", "names")
"""Commands that refuse nothing but files; others may have nothing to say of what was read."""
_SHARES: Final = ("span", "longest_span", "makespan", "no_wait", "excess", "kernel_share")
_ROUNDING: Final = 1e-9
_LONGEST_SENTENCE: Final = 1200
_UNSEEN: Final = re.compile("[\0-\b\v-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What must not reach a terminal, as in tests/integration/test_hostile.py."""
_INNER: Final = re.compile(
    r"Traceback|\bpolars\b|PyO3|pyo3|panick|unwrap\(\)|RUST_|\bErrno\b|object at 0x|"
    r"(Value|Type|Key|Index|Attribute|Overflow|Zero|Compute|Schema|Shape|Operational)\w*Error"
)
"""What only programmers understand."""


def complaints(done: CompletedProcess[str], folder: Path) -> Iterator[str]:
    """Yield what is wrong with what a command printed.

    Args:
        done: The command, and what came of it.
        folder: The input.
    """
    if done.returncode not in {DONE, REFUSED, NOTHING}:
        yield f"exit code {done.returncode}"
    printed = done.stderr + ("" if "--json" in done.args else done.stdout)
    if unseen := _UNSEEN.findall(printed):
        yield f"{unseen[0]!r} reaches the terminal"
    if inner := _INNER.search(done.stderr):
        yield f"says {inner[0]!r}"
    if done.returncode == REFUSED:
        yield from _refusal(done.stderr)
        if done.args[1] in _READING and folder.name not in done.stderr:
            yield "refuses without the file's name"
    elif "--json" in done.args and done.stdout:
        said = parsed(done.stdout)
        if said is None:
            yield "what --json printed is not JSON"
        elif done.returncode == DONE:
            yield from _CONTRACTS.get(str(said.get("schema")), _no_contract)(said)


def parsed(text: str) -> Any:
    """Return what a command said; None if it is not JSON, which has neither NaN nor infinity."""
    try:
        return json.loads(text, parse_constant=lambda word: json.loads(f"not {word}"))
    except ValueError:
        return None


def _refusal(said: str) -> Iterator[str]:
    """A refusal is one sentence."""
    sentence = said.strip()
    if sentence.count("\n"):
        yield "refuses in more than one line"
    if len(sentence) > _LONGEST_SENTENCE:
        yield f"refuses in {len(sentence)} characters"


def _no_contract(_said: Any) -> Iterator[str]:
    yield from ()


def _report(said: Any) -> Iterator[str]:
    """Rates are in their range or null with the reason; times add up."""
    bubble = said.get("bubble")
    if bubble is not None:
        each = [
            bubble["overall"],
            *chain(*(bubble[f"per_{by}"] for by in ("rank", "step", "rank_step"))),
        ]
        for rates in each:
            yield from _rates(rates)
        for by in ("per_rank", "per_step", "per_rank_step"):
            for time in ("busy_ns", "idle_ns"):
                parts = [row[time] for row in bubble[by]]
                whole = bubble["overall"][time]
                if None not in (whole, *parts) and parts and sum(parts) != whole:
                    yield f"{by} {time} adds up to {sum(parts)}, not {whole}"
    if said.get("device") is not None:
        yield from _budgets(said)
    yield from _notices(said)
    why = said.get("why")
    if why:
        yield from _negative(why["causes"], "idle_ns", "a cause's idle time")
        if why["causes"] and not 0.999 < sum(row["share"] for row in why["causes"]) < 1.001:
            spent = sum(row["idle_ns"] for row in why["causes"])
            if spent:
                yield "shares of causes do not add up to 1"


def _rates(rates: dict[str, Any]) -> Iterator[str]:
    for name in (*_SHARES, "over_ideal"):
        rate = rates[name]
        if rate is None:
            if name not in rates["unknown"]:
                yield f"{name} is null for no reason"
        elif not 0 <= rate <= (1e18 if name == "over_ideal" else 1):
            yield f"{name} is {rate}"
    for time in ("busy_ns", "idle_ns", "makespan_ns"):
        if rates[time] is not None and rates[time] < 0:
            yield f"{time} is {rates[time]}"
    # What is busy is so in every step; the others are of those that are compared across ranks.
    rate, idle, makespan = (rates[name] for name in ("makespan", "idle_ns", "makespan_ns"))
    if None not in (rate, idle) and makespan and abs(rate - idle / makespan) > _ROUNDING:
        yield "makespan is not idle_ns / makespan_ns"


_CLASSES: Final = ("compute_ns", "communication_exposed_ns", "copy_exposed_ns", "idle_ns")


def _budgets(said: Any) -> Iterator[str]:
    """Every nanosecond of a device has one class, and all of them are those of the devices."""
    whole = said["device"]
    totals: Counter[str] = Counter()
    for one in [whole, *said["devices"]]:
        for budget in (one["capture"], *one["steps"]):
            yield from _budget(budget)
    for one in said["devices"]:
        totals.update({name: one["capture"][name] for name in ("total_ns", *_CLASSES)})
    for name in ("total_ns", *_CLASSES):
        if totals[name] != whole["capture"][name]:
            yield f"{name} of the devices adds up to {totals[name]}, not {whole['capture'][name]}"


def _budget(budget: dict[str, Any]) -> Iterator[str]:
    if min(budget[name] for name in ("total_ns", *_CLASSES)) < 0:
        yield "a class of the budget is negative"
    if sum(budget[name] for name in _CLASSES) != budget["total_ns"]:
        yield "the budget's classes do not add up"
    if sum(row["idle_ns"] for row in budget["idle"]) != budget["idle_ns"]:
        yield "the budget's idle classes do not add up"
    yield from _negative(budget["idle"], "idle_ns", "a class's idle time")


def _why(said: Any) -> Iterator[str]:
    """Causes add up to the idle time, by cause and by rank and step."""
    causes = {row["cause"]: row["idle_ns"] for row in said["causes"]}
    if sum(causes.values()) != (said["idle_ns"] or 0):
        yield f"causes add up to {sum(causes.values())}, not {said['idle_ns']}"
    by_cause: defaultdict[str, int] = defaultdict(int)
    for row in said["per_rank_step"]:
        by_cause[row["cause"]] += row["idle_ns"]
    for cause in {*causes, *by_cause}:
        if causes.get(cause, 0) != by_cause[cause]:
            yield f"{cause} adds up to {by_cause[cause]} by rank and step, not {causes.get(cause, 0)}"
    if (outside := sum(row["idle_ns"] for row in said["outside"])) != (said["outside_ns"] or 0):
        yield f"outside adds up to {outside}, not {said['outside_ns']}"
    if said.get("gaps") is not None:
        yield from _gaps(said["gaps"], causes)
    yield from _negative(said["per_rank_step"], "idle_ns", "a cause's idle time")
    yield from _negative(said["losses"] or (), "spent_ns", "a loss")
    yield from _notices(said)


def _gaps(gaps: Any, causes: dict[str, int]) -> Iterator[str]:
    spent: defaultdict[str, int] = defaultdict(int)
    for gap in gaps:
        spent[gap["cause"]] += gap["end_ns"] - gap["start_ns"]
    if dict(spent) != {cause: ns for cause, ns in causes.items() if ns}:
        yield "gaps do not add up to their causes"
    if any(gap["end_ns"] < gap["start_ns"] for gap in gaps):
        yield "a gap ends before it begins"


def _negative(rows: Any, name: str, what: str) -> Iterator[str]:
    if any(row[name] < 0 for row in rows):
        yield f"{what} is negative"


def _notices(said: Any) -> Iterator[str]:
    """What is missing is counted: never less than nothing, never more than there was."""
    for notice in said["warnings"]:
        lost, total = notice["lost"], notice["total"]
        if lost is not None and lost < 0:
            yield f"{notice['code']} lost {lost}"
        if None not in (lost, total) and lost > total:
            yield f"{notice['code']} lost {lost} of {total}"


_CONTRACTS: Final = {"bubblescope.report/1": _report, "bubblescope.why/1": _why}


# Two answers beside each other.

_REPEATED: Final = "repeated-names"


def facts(said: Any) -> Any:
    """Return what of a report follows from numbers: not where traces were, or what was said."""
    kept = {key: value for key, value in said.items() if key not in {"warnings", "notes"}}
    return kept | {"run": {key: value for key, value in kept["run"].items() if key != "sources"}}


def noticed(said: Any) -> frozenset[tuple[Any, ...]]:
    """Return what a report says is missing or was made up."""
    return frozenset(
        (notice["code"], notice["lost"], notice["total"])
        for notice in (*said["warnings"], *said["notes"])
    ) | frozenset((key, None, None) for key in said["run"]["inferred"])


def differences(said: Any, again: Any) -> Iterator[str]:
    """Yield where a report differs from that of an input that says the same, or seems to."""
    one, other = facts(said), facts(again)
    if changed := [key for key in one if one[key] != other.get(key)]:
        yield f"changes without a word: {', '.join(changed)}"


def raised(said: Any, fewer: Any) -> Iterator[str]:
    """Yield the ranks whose busy time is more without the file of another.

    Where a report says that it cannot tell a step's passes from each other, another rank's file may
    have told it that they are of several steps.
    """
    if _REPEATED in {notice["code"] for notice in fewer["warnings"]}:
        return
    before, after = _busy(said), _busy(fewer)
    for rank in before.keys() & after.keys():
        if after[rank] > before[rank]:
            yield f"without another's file, a rank is busy for {after[rank]}, not {before[rank]}"


def _busy(said: Any) -> dict[tuple[Any, ...], int]:
    """Return the busy time of each rank whose identity does not depend on other files."""
    bubble = said.get("bubble")
    rows = {row["rank"]: row["busy_ns"] for row in bubble["per_rank"]} if bubble else {}
    return {
        (one["rank"], one["host"], one["process"], one["device"]): rows[one["rank"]]
        for one in said["ranks"]
        if rows.get(one["rank"]) is not None
    }
