"""Findings as sentences, in each language that `bubblescope.model.language` knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.words import english
from bubblescope.model import units
from bubblescope.model.language import template

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bubblescope.analysis.finding import Finding

_TABLES: Final[dict[str, Mapping[Any, str]]] = {
    "use": english.USES,
    "loss": english.LOSSES,
    "bound": english.BOUNDS,
    "reason": english.REASONS,
    "place": english.PLACES,
    "pause": english.PAUSES,
    "what": english.SPENT,
    "option": {},
}
"""Values that are words themselves, by the name of the value."""
_UNITS: Final[dict[str, Callable[[Any], str]]] = {
    "ns": units.duration,
    "share": units.percent,
    "tenth": lambda share: f"{100 * share:.1f} %",
    "whole": lambda share: f"{100 * share:.0f} %",
}
"""How a value is written, by how its name ends."""


def cause_name(cause: Cause, language: str) -> str:
    """Return the name of a cause."""
    return template(english.CAUSES[cause][0], language)


def word(sort: str, value: Any, language: str) -> str:
    """Return the word for a cause, or for a value of "use", "bound", "reason", "place" or "pause".

    What a table lacks, such as the name that a job gives a pause, is a word as it is.
    """
    if isinstance(value, Cause):
        return cause_name(value, language)
    return template(_TABLES[sort].get(value, value), language)


def meaning(cause: Cause, language: str) -> str:
    """Return one line on what a cause is."""
    return template(english.CAUSES[cause][1], language)


def heading(key: str, language: str) -> str:
    """Return the heading of a table or column."""
    return template(english.HEADINGS[key], language)


def note(key: str, language: str, **values: Any) -> str:
    """Return what is printed beside a table."""
    return english.one(template(english.NOTES[key], language).format(**_written(values, language)))


def sentence(finding: Finding, language: str) -> str:
    """Return a finding as a sentence."""
    words = template(english.SENTENCES[finding.role, finding.key], language)
    return english.one(words.format(**_written(finding.values, language)))


def _written(values: dict[str, Any], language: str) -> dict[str, str]:
    return {key: _value(key, value, language) for key, value in values.items()}


def _value(key: str, value: Any, language: str) -> str:
    if value is None:
        return note("schedule", language) if key == "schedule" else "–"
    if isinstance(value, Cause) or key in _TABLES:
        return word(key, value, language)
    if isinstance(value, dict):
        return note("task" if value["step"] is not None else "bare_task", language, **value)
    unit = key.rpartition("_")[2]
    if unit in _UNITS:
        return _UNITS[unit](value)
    if unit == "times":
        return f"{value:.2f} {note('times', language)}"
    return f"{value:,}" if key in ("count", "early") else str(value)
