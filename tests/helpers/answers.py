"""What a run answers, as plain values that can be set beside those of another run."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from bubblescope.model.errors import BubblescopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

QUESTIONS = ("info", "report", "why", "kernels", "stragglers", "whatif")
_PSEUDONYM = re.compile(r"[a-z]+-[0-9a-f]{16}(?:_\d+|_\*)?")


def answered(run: Any, questions: Sequence[str]) -> dict[str, Any]:
    """Return what a `Trace` answers to each question; a refusal is an answer too."""
    return {question: _answer(run, question) for question in questions}


def _answer(run: Any, question: str) -> Any:
    try:
        return json.loads(getattr(run, question)().to_json())
    except BubblescopeError as error:
        return str(error)


def ordered(value: Any) -> Any:
    """Return values without what chance decides: the order of equals, and last digits of sums."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: ordered(one) for key, one in sorted(value.items())}
    if isinstance(value, list):
        return sorted(map(ordered, value), key=json.dumps)
    return value


def restored(value: Any, dictionary: dict[str, str]) -> Any:
    """Return values with the text that each pseudonym stands for."""
    if isinstance(value, dict):
        return {restored(key, dictionary): restored(one, dictionary) for key, one in value.items()}
    if isinstance(value, list):
        return [restored(one, dictionary) for one in value]
    while isinstance(value, str):
        plain = _PSEUDONYM.sub(lambda found: dictionary.get(found[0], found[0]), value)
        if plain == value:
            break
        value = plain  # a sentence may say a path that holds the name of a host
    return value
