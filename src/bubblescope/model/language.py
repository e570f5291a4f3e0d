"""The language that people are spoken to in.

Everything is said in English first: by errors, notices, answers and helps, as plain strings, made where
the facts are, often in another process or long ago (a dataset keeps its notices). That is what Python,
JSON, files and logs get, whatever the language. It becomes another language in one place: where a
command shows it (`bubblescope.render.text.plain_console`, `bubblescope.cli.help_text`).

There, a catalogue of gettext (`locale/<language>/LC_MESSAGES/bubblescope.mo`, made from the `.po` beside
it by `python -m catalogues`) has a translation for each text as it stands in the code, with a placeholder
for each value: `f"{len(torn)} steps are torn"` is "{torn_count} steps are torn" there. What is to be shown is
found in it as a whole, or else by the text with values in their places of which most letters agree; the
values, which may be texts themselves ("3 ranks"), are translated in turn. What has no translation stays
English as a whole sentence. `tests/unit/test_language.py` shows that there is none.

Numbers, units, names, options and paths stay as they are. English costs nothing: no catalogue is read.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

ENGLISH: Final = "en"
LANGUAGES: Final = (ENGLISH, "zh")
"""What may be asked for: English, and Chinese in its simplified script."""

_FOLDER: Final = Path(__file__).parents[1] / "locale"
_VARIABLES: Final = ("LC_ALL", "LC_MESSAGES", "LANG")
"""What tells the language of messages, the first that is set, as POSIX has it."""

_NUMBERS: Final = r"[\d,.]+"
_LISTED: Final = r"\d[\d, :–-]*?(?: and [\d,]+ more)?"
_WORDS: Final = re.compile(r"[a-z]{2,} [a-z]{2,}|[\u4e00-\u9fff]")
"""What tells a value that is no name or number."""
_LETTER: Final = re.compile("[A-Za-z]")
_LONGEST: Final = 2_000
"""Letters of a text that is compared with those that have values."""
_STRONG: Final = 12
"""Letters of a text of its own from which on its values may be words that nobody knows."""
_JOINTS: Final = ((". ", "。"), ("; ", "；"), (" · ", " · "), (": ", "："), (", ", "，"))
"""What stands between texts that were put together, in English and in Chinese."""

_used = ENGLISH


def current() -> str:
    """Return the language that this process speaks to people."""
    return _used


def use(language: str) -> None:
    """Speak a language to people from now on.

    Args:
        language: One of `LANGUAGES`.
    """
    global _used  # noqa: PLW0603  one process speaks to one person
    _used = language


def of_environment(variables: Mapping[str, str]) -> str:
    """Return the language that the environment asks for."""
    asked = next(filter(None, map(variables.get, _VARIABLES)), "")
    return next((known for known in LANGUAGES if asked.startswith(known)), ENGLISH)


def translated(text: str, language: str | None = None) -> str:
    """Return an English text in another language; unchanged, where nobody has translated it.

    Args:
        text: As it is shown, with its values.
        language: The current one by default.
    """
    language = language or _used
    return text if language == ENGLISH else _catalogue(language).of(text)


def template(text: str, language: str) -> str:
    """Return the translation of a text whose placeholders are still to be filled in."""
    if language == ENGLISH:
        return text
    exact = _catalogue(language).exact
    return exact.get(text) or exact.get(text[0].lower() + text[1:], text)


@cache
def _catalogue(language: str) -> _Catalogue:
    from gettext import GNUTranslations  # noqa: PLC0415  English needs none

    class _Read(GNUTranslations):
        """Gives its texts, which gettext keeps to itself."""

        def texts(self) -> dict[str, str]:
            held: dict[str, str] = self._catalog  # type: ignore[attr-defined]
            return {text: said for text, said in held.items() if text}

    path = _FOLDER / language / "LC_MESSAGES" / "bubblescope.mo"
    with path.open("rb") as file:
        return _Catalogue(_Read(file).texts())


class _Template(NamedTuple):
    """A text with values.

    Attributes:
        letters: How many letters it has of its own.
        longest: The longest part without a value: what lacks it is not this text.
        pattern: What it matches.
        fields: Names of its values, in the order in which they stand; "" for those without.
        said: The translation, with places for the values as they are written.
    """

    letters: int
    longest: str
    pattern: re.Pattern[str]
    fields: tuple[str, ...]
    said: str

    @classmethod
    def of(cls, text: str, said: str) -> _Template:
        parts, fields, pattern = [], [], []
        for literal, field, _, _ in Formatter().parse(text):
            parts.append(literal)
            pattern.append(re.escape(literal))
            if field is not None:
                fields.append(field)
                pattern.append(f"({_value(field)})")
        longest = max(parts, key=len)
        letters = sum(len(_LETTER.findall(part)) for part in parts)
        said = "".join(
            literal if field is None else f"{literal}{{{field}}}"
            for literal, field, _, _ in Formatter().parse(said)
        )
        return cls(letters, longest, re.compile("".join(pattern), re.DOTALL), tuple(fields), said)


def _value(field: str) -> str:
    if field == "count" or field.endswith("_count"):
        return _NUMBERS
    return _LISTED if field == "numbers" else ".*?"


class _Catalogue:
    """The texts of a language.

    Args:
        texts: Each with its translation.
    """

    def __init__(self, texts: dict[str, str]) -> None:
        self.exact = texts
        self._templates = sorted(
            (_Template.of(text, said) for text, said in texts.items() if "{" in text),
            key=lambda one: -one.letters,
        )
        self._known: dict[str, str | None] = {}
        self._said: set[str] = set()

    def of(self, text: str) -> str:
        """Return a text's translation, or the text; also if it is one already."""
        if text in self._said:
            return text
        said = self._found(text) or text
        self._said.add(said)
        return said

    def _found(self, text: str) -> str | None:
        """Return the translation of a text, its spaces before and behind kept; None if there is none."""
        if text not in self._known:
            bare = text.strip()
            said = self._whole(bare) if _LETTER.search(bare) else None
            if said is not None:
                head = text[: len(text) - len(text.lstrip())]
                said = f"{head}{said}{text[len(head) + len(bare) :]}"
            self._known[text] = said
        return self._known[text]

    def _whole(self, text: str) -> str | None:
        if (said := self.exact.get(text)) is not None:
            return said
        if text[0].isupper() and (said := self.exact.get(text[0].lower() + text[1:])) is not None:
            return said
        if len(text) <= _LONGEST:
            for one in self._templates:
                if one.longest in text and (said := self._filled(one, text)) is not None:
                    return said
        return self._ended(text) or self._joined(text)

    def _filled(self, one: _Template, text: str) -> str | None:
        """Return the translation of a text with its values, if it is that text."""
        found = one.pattern.fullmatch(text)
        if found is None:
            return None
        values: list[str] = []
        for value in found.groups():
            said = self._found(value)
            if said is None and one.letters < _STRONG and _WORDS.search(value):
                return None
            values.append(value if said is None else said)
        return one.said.format(*values, **dict(zip(one.fields, values, strict=True)))

    def _ended(self, text: str) -> str | None:
        """Return the translation of a sentence that is known without its end, or of one that lacks it."""
        if (said := self.exact.get(f"{text}.")) is not None:
            return said.removesuffix("。")
        for end, said in ((".", "。"), (":", "："), (",", "，")):
            if text.endswith(end) and (found := self._found(text[:-1])) is not None:
                return f"{found}{said}"
        return None

    def _joined(self, text: str) -> str | None:
        """Return the translation of texts put together, if that of the last is known."""
        for joint, said in _JOINTS:
            head, there, tail = text.rpartition(joint)
            while there:
                behind = self._found(text[len(head) + len(joint) :])
                before = self._found(head)
                if behind is not None and (before is not None or not _WORDS.search(head)):
                    return f"{before or head}{said}{behind}"
                if before is not None and not _WORDS.search(text[len(head) + len(joint) :]):
                    return f"{before}{said}{text[len(head) + len(joint) :]}"
                head, there, _ = head.rpartition(joint)
        return None
