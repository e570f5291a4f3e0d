"""Damage to JSON that stays JSON: values, keys, order and depth."""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fuzz.hostile import hostile

if TYPE_CHECKING:
    from random import Random

_DEEP: Final = (10, 200, 3000, 100_000)
_FEW: Final = 3
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\{(?P<held>(?=\s*"))?')
"""A text, or where an object begins; `held` is there if it is not empty."""
_UNKNOWN: Final = ("null", "1", '"x"', "[1]", '{"a": 1}')


class _Slot(NamedTuple):
    """Where a value stands."""

    holder: Any
    key: Any

    @property
    def value(self) -> Any:
        return self.holder[self.key]


def mutated(text: str, random: Random) -> str:
    """Return another JSON text.

    Raises:
        ValueError: It is none.
    """
    tree = json.loads(text)
    slots = _slots(tree)
    if not slots:
        return json.dumps(hostile(random, tree))
    if random.random() < 0.04:
        return _nested(tree, slots, random)
    for left in reversed(range(random.choice((1, 1, 1, _FEW)))):
        random.choice(_WAYS)(slots, random)
        slots = _slots(tree) if left else []
        if not slots:
            break
    separators = random.choice(((", ", ": "), (",", ":")))
    return json.dumps(tree, separators=separators, ensure_ascii=random.random() < 0.5)


def neutral(text: str, random: Random) -> str:
    """Return JSON that says the same to a digit: with a space more, or a key that nobody knows."""
    inside = [one.end() for one in _TOKEN.finditer(text) if one[0] == "{" and one["held"]]
    if not inside:
        return f" {text} "
    at = random.choice(inside)
    said = random.choice((" ", "\n", *(f'"unknown to all": {one}, ' for one in _UNKNOWN)))
    return text[:at] + said + text[at:]


def _holders(tree: Any) -> list[Any]:
    """Return every list and object, outermost first."""
    found, left = [], [tree]
    while left:
        one = left.pop()
        if isinstance(one, (dict, list)):
            found.append(one)
            left.extend(one.values() if isinstance(one, dict) else one)
    return found


def _slots(tree: Any) -> list[_Slot]:
    return [
        _Slot(holder, key)
        for holder in _holders(tree)
        for key in (list(holder) if isinstance(holder, dict) else range(len(holder)))
    ]


def _set(slots: list[_Slot], random: Random) -> None:
    """Give a place another value."""
    slot = random.choice(slots)
    slot.holder[slot.key] = hostile(random, slot.value)


def _set_everywhere(slots: list[_Slot], random: Random) -> None:
    """Give every place of one name another value, perhaps the same."""
    key = random.choice(slots).key
    if not isinstance(key, str):
        return
    same = random.random() < 0.5
    value = hostile(random, next(slot.value for slot in slots if slot.key == key))
    for slot in slots:
        if slot.key == key:
            slot.holder[key] = copy.deepcopy(value) if same else hostile(random, slot.value)


def _remove(slots: list[_Slot], random: Random) -> None:
    """Lose a value, with its key."""
    slot = random.choice(slots)
    del slot.holder[slot.key]


def _remove_everywhere(slots: list[_Slot], random: Random) -> None:
    """Lose all values of one name."""
    key = random.choice(slots).key
    if isinstance(key, str):
        for slot in slots:
            if slot.key == key:
                slot.holder.pop(key, None)


def _rename(slots: list[_Slot], random: Random) -> None:
    """Call a value something else."""
    slot = random.choice(slots)
    if isinstance(slot.holder, dict):
        other = random.choice([one.key for one in slots if isinstance(one.key, str)])
        name = random.choice((slot.key.upper(), f"{slot.key}_", "", other))
        slot.holder[name] = slot.holder.pop(slot.key)


def _swap(slots: list[_Slot], random: Random) -> None:
    """Exchange two values."""
    one, other = random.choice(slots), random.choice(slots)
    if one.holder is other.holder or not isinstance(one.value, (dict, list)):
        one.holder[one.key], other.holder[other.key] = (
            copy.deepcopy(other.value),
            copy.deepcopy(one.value),
        )


def _duplicate(slots: list[_Slot], random: Random) -> None:
    """Say something twice, or very often."""
    slot = random.choice([one for one in slots if isinstance(one.holder, list)] or slots)
    if isinstance(slot.holder, list):
        times = random.choice((1, 1, 2, 50))
        copies = [copy.deepcopy(slot.value) for _ in range(times)]
        slot.holder[slot.key : slot.key] = copies


def _reorder(slots: list[_Slot], random: Random) -> None:
    """Change the order of a list or of keys."""
    holder = random.choice(slots).holder
    if isinstance(holder, list):
        random.shuffle(holder)
    else:
        held = [*holder.items()]
        random.shuffle(held)
        holder.clear()
        holder.update(held)


def _wrap(slots: list[_Slot], random: Random) -> None:
    """Put a value into another."""
    slot = random.choice(slots)
    slot.holder[slot.key] = random.choice(([slot.value], {"a": slot.value}, str(slot.value)))


_WAYS: Final = (
    *(_set, _set, _set, _set_everywhere, _remove, _remove_everywhere),
    *(_rename, _swap, _duplicate, _reorder, _wrap),
)


def _nested(tree: Any, slots: list[_Slot], random: Random) -> str:
    """Nest a value very deep; Python's own writer could not."""
    slot = random.choice(slots)
    slot.holder[slot.key] = "nest here"
    depth = random.choice(_DEEP)
    begin, end = random.choice((("[", "]"), ('{"a":', "}")))
    deep = f"{begin * depth}1{end * depth if random.random() < 0.8 else ''}"
    return json.dumps(tree).replace('"nest here"', deep)
