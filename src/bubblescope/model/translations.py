"""What is said in English, as it is said in another language.

A catalogue of gettext (`locale/<language>/LC_MESSAGES/bubblescope.mo`, which `python -m catalogues`
makes of the `.po` beside it) has a translation for each text as it stands in the code, with a
placeholder for each value that tells what it looks like:
`f"{len(torn)} steps are torn, {units.percent(share)}"` is "{torn_count:,} steps are torn, {share:ns}".
What is to be shown is found there word for word, or is the text with the most letters whose values
("3 ranks" is a text too) leave no English word; or it is put together of such texts.
"""
# ruff: noqa: RUF001  Chinese punctuation is what is meant

from __future__ import annotations

import re
from gettext import GNUTranslations
from itertools import islice
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLDER: Final = Path(__file__).parents[1] / "locale"
_LETTER: Final = re.compile("[A-Za-z]")
_WORD: Final = re.compile(r"(?<!\S)[('\"]*([a-z]+)[)'\",.;:]*(?!\S)")
"""A word that may be one of a sentence, and is no part of a name or path."""
_FIELD: Final = re.compile(r"\{[^{}]*\}")
"""A value's place in a text."""
_NAME: Final = 5
"""Letters of the shortest word that is a name where all translations keep it."""
_LONGEST: Final = 2_000
"""Letters of a text that is compared with those that have values."""
_STRONG: Final = 7
"""Letters of a text of its own from which on its values may be texts, whatever they look like."""
_CLOSE: Final = "，。；：（"
"""What stands close to the text before."""
_ENDS: Final = "，。；："
"""What the text behind stands close to."""
_MEASURE_WORD: Final = "个"
"""What stands between a number and a noun."""
_CHINESE: Final = re.compile(r"[\u4e00-\u9fff]")
_CERTAIN: Final = 25
"""Letters of a text of its own from which on it is no other, whatever words its values have."""
_WORDING: Final = "wording"
"""How values are named that are one of some words in the code."""
_WAYS: Final = 64
"""Ways to find values in a text that are tried."""
_BEGINS: Final = re.compile(r"[\s,;:(.·]|(?<!\d)\d")
"""How a value begins that stands right behind another."""
_JOINTS: Final = (
    (". ", "。"),
    ("; ", "；"),
    (" · ", " · "),
    (": ", "："),
    (", ", "，"),
    (" and ", "和"),
)
"""What stands between texts that were put together, in English and in Chinese."""

_MEASURE: Final = (
    r"(?:[-+±≥]?\d+ h \d\d min|[-+±≥]?\d[\d.,]*(?:e[-+]?\d+)?(?: ?(?:ns|µs|ms|s|%|[kMGT]i?B))?"
    r"|–|-?inf|nan)"
)
_LISTED: Final = r"\??\d(?:[\d, :–-]*\d)?(?: and [\d,]+ more)?"
_LOOKS: Final = {
    ",": re.compile(_MEASURE),
    "listed": re.compile(rf"[a-z][a-z -]* {_LISTED}"),
    "counted": re.compile(r"\d[\d,]* [a-z][a-z -]*"),
    "ns": re.compile(rf"{_MEASURE}(?: (?:to|±) {_MEASURE})?"),
    "r": re.compile(r"'[^']*'|\"[^\"]*\"|[^\s'\"]+|[(\[{].*[)\]}]", re.DOTALL),
    "numbers": re.compile(_LISTED),
    "command_path": re.compile(r"bubblescope(?: [a-z-]+)*"),
}
"""What values look like of which a text tells it: {lost:,} a number, {idle:ns} with its unit, {name!r},
{ranks:listed} "ranks 0, 2", {ranks:counted} "2 ranks"."""
_PLAIN: Final = (None, *map(_LOOKS.get, ("listed", "counted", "numbers")))
"""Looks of values that are texts themselves."""
_MEASURED: Final = re.compile(rf"(.*[A-Za-z]) ({_MEASURE})", re.DOTALL)
_COUNTED: Final = re.compile(r"([\d.,]+) ([A-Za-z].*)", re.DOTALL)
_UNITS: Final = frozenset({"ns", "ms", "s", "h", "min"})


class _Read(GNUTranslations):
    """Gives its texts, which gettext keeps to itself."""

    def texts(self) -> dict[str, str]:
        held: dict[str, str] = self._catalog  # type: ignore[attr-defined]
        return {text: said for text, said in held.items() if text}


class _Template(NamedTuple):
    """A text with values.

    Attributes:
        weight: How many letters it has of its own, and how many characters.
        parts: What stands before, between and after its values.
        fields: Names of its values, in the order in which they stand; "" for those without.
        looks: What the values look like; None where the text does not tell.
        said: The translation, with places for the values as they are written.
    """

    weight: tuple[int, int]
    parts: tuple[str, ...]
    fields: tuple[str, ...]
    looks: tuple[re.Pattern[str] | None, ...]
    said: str

    @classmethod
    def of(cls, text: str, said: str) -> _Template:
        """Take a text apart."""
        pieces = list(Formatter().parse(text))
        values = [(field, spec or how) for _, field, spec, how in pieces if field is not None]
        parts = [literal for literal, *_ in pieces] + [""] * (pieces[-1][1] is not None)
        said = "".join(
            literal if field is None else f"{literal}{{{field}}}"
            for literal, field, _, _ in Formatter().parse(said)
        )
        own = "".join(parts)
        # Values right behind others: where one ends can only be guessed.
        unclear = parts[1:-1].count("")
        return cls(
            (len(_LETTER.findall(own)) - 3 * unclear, len(own)),
            tuple(parts),
            tuple(field for field, _ in values),
            tuple(_LOOKS.get(look or _named_look(field)) for field, look in values),
            said,
        )

    @property
    def is_sure(self) -> bool:
        """Say whether a text that looks like this one is it: by its letters, or by its values."""
        told = (None not in self.looks, *(looks in _PLAIN[1:] for looks in self.looks))
        return self.weight[0] >= _STRONG or any(told)

    def values(self, text: str) -> Iterator[list[str]]:
        """Yield the values with which a text is this one; there may be several ways to see it."""
        head, *rest = self.parts
        tail = rest[-1]
        if text.startswith(head) and text.endswith(tail) and len(text) >= len(head) + len(tail):
            yield from self._values(text, len(head), 0)

    def _values(self, text: str, start: int, at: int) -> Iterator[list[str]]:
        follows = self.parts[at + 1]
        if at + 1 == len(self.fields):
            value = text[start : len(text) - len(follows)]
            if start + len(follows) <= len(text) and self._fits(at, value):
                yield [value]
            return
        for end in _ends(text, start, follows):
            if self._fits(at, text[start:end]):
                for others in self._values(text, end + len(follows), at + 1):
                    yield [text[start:end], *others]

    def _fits(self, at: int, value: str) -> bool:
        looks = self.looks[at]
        return _is_closed(value) if looks is None else looks.fullmatch(value) is not None


def _ends(text: str, start: int, follows: str) -> Iterator[int]:
    """Yield where a value may end, given what follows; one that another follows ends with a word."""
    if not follows:
        yield from (at for at in range(start, len(text)) if _BEGINS.match(text, at))
        yield len(text)
        return
    end = text.find(follows, start)
    while end >= 0:
        yield end
        end = text.find(follows, end + 1)


def _is_closed(value: str) -> bool:
    """Say whether no bracket of a value opens or closes outside of it: it would be of two texts."""
    depth = 0
    for sign in value:
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            return False
    return depth == 0


def _named_look(field: str) -> str:
    return "ns" if field.rstrip("_0123456789").endswith("_ns") else field


class Catalogue:
    """The texts of a language.

    Args:
        texts: Each with its translation.
    """

    def __init__(self, texts: dict[str, str]) -> None:
        self.exact = texts
        templates = [_Template.of(text, said) for text, said in texts.items() if "{" in text]
        templates.sort(key=lambda one: one.weight, reverse=True)
        self._strong = [one for one in templates if one.is_sure]
        self._weak = [one for one in templates if not one.is_sure]
        # A long word that every translation keeps, such as the name of a schedule, is not English.
        self._words = {
            word
            for text, said in texts.items()
            for word in _WORD.findall(_FIELD.sub("{}", text))
            if word not in said or len(word) < _NAME
        } - _UNITS
        self._known: dict[str, str | None] = {}
        self._said: set[str] = set()

    @classmethod
    def of_language(cls, language: str) -> Catalogue:
        """Read the catalogue of a language."""
        path = _FOLDER / language / "LC_MESSAGES" / "bubblescope.mo"
        with path.open("rb") as file:
            return cls(_Read(file).texts())

    def of(self, text: str) -> str:
        """Return a text's translation, or the text; also if it is one already."""
        if text in self._said:
            return text
        said = self._found(text) or text
        self._said.add(said)
        return said

    def _found(self, text: str) -> str | None:
        """Return the translation of a text, with its spaces before and behind; None for none."""
        if text not in self._known:
            bare = text.strip()
            said = self._whole(bare) if _LETTER.search(bare) else None
            if said is not None:
                head = text[: len(text) - len(text.lstrip())]
                tail = text[len(head) + len(bare) :]
                if tail == " " and said[-1] in _ENDS:  # which is as wide as two letters
                    tail = ""
                said = f"{said}{tail}" if said[0] in _CLOSE else f"{head}{said}{tail}"
            self._known[text] = said
        return self._known[text]

    def _whole(self, text: str) -> str | None:
        if (said := self.exact.get(text)) is not None:
            return said
        if text[0].isupper() and (said := self.exact.get(text[0].lower() + text[1:])) is not None:
            return said
        if len(text) > _LONGEST:
            return None
        return (
            self._filled(self._strong, text)
            or self._closest(text, _CERTAIN)
            or self._ended(text)
            or self._joined(text)
            or (None if _CHINESE.search(text) else self._filled(self._weak, text))
            or self._measured(text)
            or self._closest(text, _STRONG)
        )

    def _filled(self, templates: list[_Template], text: str) -> str | None:
        """Return the translation of a text that is one of some texts with values that leave no word."""
        for one in templates:
            if not all(part in text for part in one.parts):
                continue
            ways = [
                (doubt, values, said)
                for values in islice(one.values(text), _WAYS)
                for said, doubt in [self._all(one, values)]
                if doubt is not None
            ]
            if ways:
                return _with_values(one, *min(ways, key=lambda way: way[0])[1:])
        return None

    def _all(
        self, one: _Template, values: list[str]
    ) -> tuple[list[str | None], tuple[int, int, int] | None]:
        """Return the translations of values, None for names and numbers, and how doubtful they are.

        That is None if one of them has words that have no translation. Else it is how many are made of
        parts, how far in front others are empty, and how short those are that look as they should.
        """
        said: list[str | None] = []
        made, empty, short = 0, 0, 0
        for field, value, looks in zip(one.fields, values, one.looks, strict=True):
            some = one.is_sure and not field.startswith(_WORDING)
            bare = value.strip()
            simple = " " not in bare or bare in self.exact or _LOOKS[","].fullmatch(bare)
            if not some and looks is None and not simple:
                if self._left(value, None):
                    return said, None
                said.append(None)
                continue
            found = self._found(value) if looks in _PLAIN else None
            said.append(found)
            if looks in _PLAIN and self._left(value, found):
                return said, None
            made += found is not None and value.strip() not in self.exact
            empty += 0 if value else len(values) - len(said) + 1
            short -= 0 if looks is None else len(value)
        return said, (made, empty, short)

    def _closest(self, text: str, least: int) -> str | None:
        """Return the translation of a text that is one of so many letters, whatever its values are."""
        for one in self._strong:
            if one.weight[0] < least:
                continue
            ways = [
                (sum(map(self._left, values, said)), values, said)
                for values in islice(one.values(text), _WAYS)
                for said in [[self._found(value) for value in values]]
            ]
            if ways:
                return _with_values(one, *min(ways, key=lambda way: way[0])[1:])
        return None

    def _left(self, text: str, said: str | None) -> int:
        """Return how many words of a text are left in English, names aside."""
        if said is not None:
            return 0
        return sum(word in self._words for word in _WORD.findall(text))

    def _ended(self, text: str) -> str | None:
        """Return the translation of what is known without its end or start, or with a full stop."""
        if (said := self.exact.get(f"{text}.")) is not None:
            return said.removesuffix("。")
        for start, said in _JOINTS:
            if text.startswith(start) and (found := self._found(text[len(start) :])) is not None:
                return f"{said}{found}"
        for end, said in ((".", "。"), (":", "："), (",", "，")):
            bare = text.removesuffix(end)
            if bare != text and not bare.endswith(end) and (found := self._found(bare)) is not None:
                return f"{found}{said}"
        return None

    def _joined(self, text: str) -> str | None:
        """Return the translation of texts put together, if none of them is an unknown one."""
        for joint, said in _JOINTS:
            head, there, _ = text.rpartition(joint)
            while head and there:
                tail = text[len(head) + len(joint) :]
                before, behind = self._found(head), self._found(tail)
                if joint == ". " and before is None and behind is not None:
                    ended = self._found(f"{head}.")
                    if ended is not None:
                        return f"{ended}{behind}"
                if self._left(head, before) == 0:
                    added = self._found(f"{joint}{tail}") if behind is None else None
                    if added is not None:
                        return f"{before or head}{added.lstrip()}"
                some = before is not None or behind is not None
                named = joint == ": " and " " not in head  # a value of the data model, or an option
                if (
                    some
                    and (named or not self._left(head, before))
                    and not self._left(tail, behind)
                ):
                    return f"{before or head}{said}{behind or tail}"
                head, there, _ = head.rpartition(joint)
        return None

    def _measured(self, text: str) -> str | None:
        """Return the translation of a text with a number before or behind it."""
        if found := _MEASURED.fullmatch(text):
            said = self._found(found[1])
            return f"{said} {found[2]}" if said else None
        if found := _COUNTED.fullmatch(text):
            said = self._found(found[2])
            return f"{found[1]} {_MEASURE_WORD}{said}" if said else None
        return None


def _with_values(one: _Template, values: list[str], said: list[str | None]) -> str:
    shown = [value if text is None else text for value, text in zip(values, said, strict=True)]
    return one.said.format(*shown, **dict(zip(one.fields, shown, strict=True)))
