"""What a user's own range names mean: regular expressions, and what their words stand for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bubblescope.model.decoders import prepared
from bubblescope.model.errors import NamesError
from bubblescope.model.kinds import Kind
from bubblescope.model.patterns import compiled
from bubblescope.names.own_passes import own_passes
from bubblescope.names.parsed import ParsedName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bubblescope.names.own_passes import OwnPasses

KIND_WORDS: Final[dict[str, Kind | None]] = {
    **{kind.value: kind for kind in Kind},
    "f": Kind.FORWARD,
    "fwd": Kind.FORWARD,
    "b": Kind.BACKWARD,
    "bwd": Kind.BACKWARD,
    "bw": Kind.BACKWARD,
    "i": Kind.BACKWARD_INPUT,
    "dgrad": Kind.BACKWARD_INPUT,
    "w": Kind.BACKWARD_WEIGHT,
    "wgrad": Kind.BACKWARD_WEIGHT,
    "fb": Kind.FORWARD_BACKWARD,
    "r": Kind.RECOMPUTE,
    "opt": Kind.OPTIMIZER,
    "step": Kind.OPTIMIZER,
    "step_marker": None,
}
"""Words that say a kind, in any letter case; None is a range around a whole step."""

_NUMBERS: Final = {
    "microbatch": "microbatch",
    "mb": "microbatch",
    "chunk": "chunk",
    "stage": "stage",
    "step": "step",
    "rank": "rank",
    "peer": "peer",
}
_KINDS: Final = ", ".join([*(kind.value for kind in Kind), "step_marker"])
_FILE: Final = ".toml"


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """A pattern of a names file."""

    pattern: str
    kinds: dict[str, str] = {}


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """A names file."""

    names: list[_Entry] = []
    passes: dict[str, str] = {}


class OwnNames:
    """One pattern for range names, and what the words that it captures mean.

    Args:
        pattern: A regular expression, searched anywhere in a name. Named groups say what it is about:
            `kind`, whose text is one of `KIND_WORDS` or of `kinds`; or groups that are called like a
            kind (`forward`, `fwd`), of which the one that takes part in the match says it. Any of
            `microbatch` (or `mb`), `chunk`, `stage`, `step`, `rank` and `peer` are whole numbers. A
            group that takes no part in the match says nothing.
        kinds: Captured word -> one of `KIND_WORDS`.
        where: What to call the pattern in errors.

    Raises:
        NamesError: The pattern is not a regular expression, says no kind, or has a group that means
            nothing here; or a word is said to mean what is no kind.
    """

    def __init__(self, pattern: str, kinds: Mapping[str, str], where: str) -> None:
        self.pattern, self.where = pattern, where
        try:
            self._compiled = compiled(pattern)
        except ValueError as error:
            raise NamesError(f"{where} is not a regular expression: {error}") from None
        groups = set(self._compiled.groupindex)
        # A group named "step" is the number of a step.
        self._named = [name for name in groups - set(_NUMBERS) if name.lower() in KIND_WORDS]
        if unknown := groups - set(_NUMBERS) - set(self._named) - {"kind"}:
            raise NamesError(
                f"{where} has unknown groups: {', '.join(sorted(unknown))}; use kind, "
                f"the name of a kind ({_KINDS}), or {', '.join(_NUMBERS)}"
            )
        if not self._named and "kind" not in groups:
            raise NamesError(
                f"{where} has no group for the kind: (?P<kind>...) must capture a word such as "
                "forward, bwd, F, B or W, or a group be named after one, as (?P<forward>...)"
            )
        for word, kind in kinds.items():
            if kind.lower() not in KIND_WORDS:
                raise NamesError(
                    f"{where} says that {word!r} means {kind!r}, which is not a kind; the kinds are "
                    f"{_KINDS}"
                )
        self._kinds = {word: kind.lower() for word, kind in kinds.items()}

    def matches(self, name: str) -> bool:
        """Say whether the pattern is found in a name."""
        return self._compiled.search(name) is not None

    def parse(self, name: str) -> ParsedName | None:
        """Return what a name means; None if the pattern does not match, or captures no kind.

        Raises:
            NamesError: What it captures as the kind is none, or as a number is no number.
        """
        found = self._compiled.search(name)
        if found is None:
            return None
        said = found.groupdict()
        word = next((one.lower() for one in self._named if said[one] is not None), None)
        if word is None:
            captured = said.get("kind")
            if captured is None:
                return None
            word = self._kinds.get(captured, captured.lower())
            if word not in KIND_WORDS:
                raise NamesError(
                    f"{self.where} captured {captured!r} as the kind in {name!r}; say what it means "
                    f"with --kind {_shell(captured)}=forward, or in the names file; the kinds are "
                    f"{_KINDS}"
                )
        fields: dict[str, Any] = {}
        for group, field in _NUMBERS.items():
            text = said.get(group)
            if text is None:
                continue
            if not text.isdecimal():
                raise NamesError(
                    f"{self.where} captured {text!r} as {group} in {name!r}; it must be a whole number"
                )
            fields[field] = int(text)
        return ParsedName(KIND_WORDS[word], splits=word == "b", **fields)


def passes_in(given: Sequence[str]) -> dict[int, OwnPasses]:
    """Return the passes that names files state, by rank; those of the last file that has a rank.

    Args:
        given: As for `own_names`.

    Raises:
        NamesError: A file is not usable.
    """
    found: dict[int, OwnPasses] = {}
    for one in given:
        if one.endswith(_FILE):
            found |= own_passes(_read(Path(one)).passes, one)
    return found


def own_names(given: Sequence[str], kinds: Mapping[str, str]) -> list[OwnNames]:
    """Return the patterns that a user gives, in the order in which they are tried.

    Args:
        given: Regular expressions, or paths of names files, which end with ".toml" and hold tables
            `[[names]]`, each with a `pattern` and, if its words need it, `kinds`.
        kinds: What words mean that the patterns capture, a file's own unless it says otherwise.

    Raises:
        NamesError: A pattern or a file is not usable.
    """
    if kinds and not given:
        raise NamesError(
            "--kind gives the meaning of words that --names captures; give --names as well"
        )
    found = []
    for one in given:
        if not one.endswith(_FILE):
            found.append(OwnNames(one, kinds, f"--names {one!r}"))
            continue
        for number, entry in enumerate(_read(Path(one)).names, 1):
            where = f"{one}, pattern {number} ({entry.pattern!r})"
            found.append(OwnNames(entry.pattern, {**kinds, **entry.kinds}, where))
    return found


def _read(path: Path) -> _File:
    """Read a names file."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=prepared(_File))
    except OSError as error:
        raise NamesError(f"{path}: cannot be read ({error.strerror})") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NamesError(
            f"{path}: is not a names file ({error}); it has tables [[names]], each with a pattern and, "
            'if need be, kinds = { Word = "forward" }, or a table [passes]'
        ) from None


def _shell(word: str) -> str:
    """Return a word as a shell takes it."""
    return word if re.fullmatch(r"[\w.:+-]+", word) else "'" + word.replace("'", "'\\''") + "'"
