"""What range names mean, by the grammars of the frameworks or by a user's own pattern.

Sources hand their *unique* names to a `NameParser` and get back what each one means. Parsing
unique strings keeps it cheap however long the trace is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from bubblescope.model.errors import NamesError
from bubblescope.model.kinds import Kind
from bubblescope.model.registry import Registry
from bubblescope.names.parsed import ParsedName

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

    from bubblescope.names.parsed import Grammar

GRAMMARS: Final[Registry[Grammar]] = Registry(
    "bubblescope.names",
    {
        "recorder": "bubblescope.names.recorder_ranges:GRAMMAR",
        "zero-bubble": "bubblescope.names.zero_bubble_ranges:GRAMMAR",
        "bare": "bubblescope.names.bare_ranges:GRAMMAR",
        "megatron": "bubblescope.names.megatron_ranges:GRAMMAR",
        "torch": "bubblescope.names.torch_ranges:GRAMMAR",
    },
)
"""The grammars, in the order in which they are asked."""


def grammars() -> Mapping[str, Grammar]:
    """Return every installed grammar by name."""
    return GRAMMARS.all()


KIND_WORDS: Final[dict[str, Kind]] = {
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
}
"""Words that a user's `--names` pattern may capture as the kind, in any letter case."""

_GROUPS: Final = {
    "kind": "kind",
    "microbatch": "microbatch",
    "mb": "microbatch",
    "chunk": "chunk",
    "stage": "stage",
    "step": "step",
    "rank": "rank",
    "peer": "peer",
}


class NameParser:
    """Turns range names into tasks, by the known grammars or by a user's pattern.

    Args:
        pattern: A regular expression with named groups `kind` (needed; its text must be one of
            `KIND_WORDS`), and any of `microbatch` (or `mb`), `chunk`, `stage`, `step`, `rank` and
            `peer` (integers). It is searched anywhere in the name and tried before the known
            grammars.

    Raises:
        NamesError: The pattern is not a regular expression, has no `kind` group, or has a group
            that means nothing here.
    """

    def __init__(self, pattern: str | None = None) -> None:
        self.pattern: re.Pattern[str] | None = None
        if pattern is None:
            return
        try:
            self.pattern = re.compile(pattern)
        except re.error as error:
            raise NamesError(f"--names {pattern!r} is not a regular expression: {error}") from None
        groups = set(self.pattern.groupindex)
        if "kind" not in groups:
            raise NamesError(
                f"--names {pattern!r} has no group (?P<kind>...); it must capture the word that "
                "says forward, backward, F, B or W",
            )
        if unknown := groups - set(_GROUPS):
            raise NamesError(
                f"--names {pattern!r} has groups that mean nothing here: "
                f"{', '.join(sorted(unknown))}; use {', '.join(_GROUPS)}",
            )

    def parse(self, name: str) -> list[ParsedName]:
        """Return the operations one name stands for: none if unknown, several if it is fused."""
        if self.pattern is not None and (found := self.pattern.search(name)):
            return [self._from_groups(found)]
        for grammar in grammars().values():
            if parsed := grammar.parse(name):
                return parsed
        return []

    def parse_all(self, names: pl.Series) -> dict[str, list[ParsedName]]:
        """Return what each distinct name stands for, leaving out those that mean nothing."""
        unique = names.drop_nulls().unique()
        if self.pattern is None:
            # One pass in Rust spares Python most of a trace's names.
            beginnings = "|".join(grammar.beginnings for grammar in grammars().values())
            unique = unique.filter(unique.str.contains(f"^(?:{beginnings})"))
        return {name: parsed for name in unique.sort().to_list() if (parsed := self.parse(name))}

    def _from_groups(self, found: re.Match[str]) -> ParsedName:
        word = found["kind"]
        kind = KIND_WORDS.get((word or "").lower())
        if kind is None:
            raise NamesError(
                f"--names captured {word!r} as the kind in {found.string!r}; "
                f"it must be one of {', '.join(KIND_WORDS)}",
            )
        fields: dict[str, Any] = {}
        for group, text in found.groupdict().items():
            if group == "kind" or text is None:
                continue
            if not text.isdecimal():
                raise NamesError(
                    f"--names captured {text!r} as {group} in {found.string!r}; "
                    "it must be a whole number",
                )
            fields[_GROUPS[group]] = int(text)
        return ParsedName(kind, splits=word.lower() == "b", **fields)
