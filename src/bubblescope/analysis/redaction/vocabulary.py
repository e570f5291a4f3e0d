"""The words that everybody may read: bubblescope's own, and those of public libraries.

What a text of a trace may keep is decided by what is in here, never by what is not: a word that nobody
has thought of is not shown.
"""

from __future__ import annotations

import pkgutil
import re
from functools import cache
from importlib.abc import InspectLoader
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from bubblescope import clocks, model, names, recording, sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_PUBLIC: Final = Path(__file__).with_name("public_words.txt")
_NAMING: Final = (names,)
"""Where the words are that frameworks and libraries give names from."""
_TELLING: Final = (clocks, model, names, recording, sources)
"""Where sentences about a trace are made."""

_WORD: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
"""A word within a name: "CamelCase" and "snake_case" are two each."""
_SHORT: Final = 2
"""Letters of a word that says nothing by itself, such as the "tn" and "bf" of kernels."""

_DOCSTRING: Final = re.compile(r"[A-Z].*\.(?:\n|$)")
"""What describes code, and says names of models and companies too, is no text that the code gives."""


def only(text: str, known: frozenset[str]) -> bool:
    """Say whether all words of a text are among known ones, very short words aside."""
    return all(len(word) <= _SHORT or word.lower() in known for word in _WORD.findall(text))


@cache
def public_words() -> frozenset[str]:
    """Return the words of names that public libraries and frameworks give, in lower case."""
    lines = _PUBLIC.read_text("ascii").splitlines()
    listed = {word for line in lines if not line.startswith("#") for word in line.split()}
    return frozenset(listed) | _words(_NAMING)


@cache
def own_words() -> frozenset[str]:
    """Return the words of the sentences that bubblescope itself says about traces, in lower case."""
    return _words(_TELLING)


@cache
def own_texts() -> frozenset[str]:
    """Return the texts that bubblescope itself gives, such as the name "work outside of passes"."""
    return frozenset(text for text in _texts(_TELLING) if len(text) > _SHORT)


def _words(packages: Iterable[ModuleType]) -> frozenset[str]:
    return frozenset(word.lower() for text in _texts(packages) for word in _WORD.findall(text))


def _texts(packages: Iterable[ModuleType]) -> Iterator[str]:
    """Return the texts that stand in the code of packages, whose modules are not run for that."""
    for package in packages:
        yield from _module(package.__spec__, package.__name__)
        yield from _modules(package.__path__)


def _modules(paths: Iterable[str]) -> Iterator[str]:
    for one in pkgutil.iter_modules(paths):
        spec = one.module_finder.find_spec(one.name, None)
        yield from _module(spec, one.name)
        if one.ispkg and spec is not None:
            yield from _modules(spec.submodule_search_locations or ())


def _module(spec: ModuleSpec | None, name: str) -> Iterator[str]:
    if spec is None or not isinstance(spec.loader, InspectLoader):
        return
    if (code := spec.loader.get_code(name)) is not None:
        yield from _constants(code)


def _constants(code: CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        yield from _strings(constant)


def _strings(constant: Any) -> Iterator[str]:
    if isinstance(constant, str):
        if not _DOCSTRING.match(constant):
            yield constant
    elif isinstance(constant, CodeType):
        yield from _constants(constant)
    elif isinstance(constant, (tuple, frozenset)):
        for one in constant:
            yield from _strings(one)
