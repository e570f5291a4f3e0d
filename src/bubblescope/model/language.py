"""The language that people are spoken to in.

Everything is said in English first: by errors, notices, answers and helps, as plain strings, made where
the facts are, often in another process or long ago (a dataset keeps its notices). That is what Python,
JSON, files and logs get, whatever the language. It becomes another language where a command shows it
(`bubblescope.render.text.plain_console`, `bubblescope.cli.help_text`), and nowhere else.

There it is looked up in a catalogue (`bubblescope.model.translations`). What has no translation stays
an English sentence as a whole. Numbers, units, names, options and paths stay as they are. English
costs nothing: no catalogue is loaded.

`tests/unit/test_language.py` shows that no text of the code lacks its translation, that each is found
again with values in it, and that what commands print leaves no English behind.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bubblescope.model.translations import Catalogue

ENGLISH: Final = "en"
LANGUAGES: Final = (ENGLISH, "zh")
"""What may be asked for: English, and Chinese in its simplified script."""

_VARIABLES: Final = ("LC_ALL", "LC_MESSAGES", "LANG")
"""What tells the language of messages, the first that is set, as POSIX has it."""

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


@contextmanager
def spoken(language: str) -> Iterator[None]:
    """Speak a language for as long as something takes."""
    before = _used
    use(language)
    try:
        yield
    finally:
        use(before)


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
def _catalogue(language: str) -> Catalogue:
    from bubblescope.model.translations import Catalogue  # noqa: PLC0415  English needs none

    return Catalogue.of_language(language)
