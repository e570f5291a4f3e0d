"""What range names mean, by a user's own patterns or the grammars of the frameworks.

Sources hand their *unique* names to a `NameParser` and get back what each one means. Parsing
unique strings keeps it cheap however long the trace is.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from bubblescope.model.errors import NamesError
from bubblescope.model.registry import Registry
from bubblescope.names.own_names import own_names, passes_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from bubblescope.names.parsed import Grammar, ParsedName

GRAMMARS: Final[Registry[Grammar]] = Registry(
    "bubblescope.names",
    {
        "recorder": "bubblescope.names.recorder_ranges:GRAMMAR",
        "zero-bubble": "bubblescope.names.zero_bubble_ranges:GRAMMAR",
        "bare": "bubblescope.names.bare_ranges:GRAMMAR",
        "megatron": "bubblescope.names.megatron_ranges:GRAMMAR",
        "torch": "bubblescope.names.torch_ranges:GRAMMAR",
        "layer-parts": "bubblescope.names.layer_part_ranges:GRAMMAR",
    },
)
"""The grammars, in the order in which they are asked."""


def grammars() -> Mapping[str, Grammar]:
    """Return every installed grammar by name."""
    return GRAMMARS.all()


_LONGEST: Final = 4096
"""Characters of a name that may mean something. Of longer ones Python would refuse to read numbers."""
_LARGE: Final = r"\d{5}"
"""What every number has that is too large for anything (`ParsedName.possible`)."""
_MOST: Final = 5
"""How many of a trace's names an error lists."""


class NameParser:
    """Turns range names into tasks, by a user's patterns or by the known grammars.

    Args:
        names: A regular expression or the path of a names file, or several, in the order in which they
            are tried, before the known grammars; see `own_names.OwnNames` for their groups.
        kinds: What words mean that the patterns capture as the kind: word -> one of
            `own_names.KIND_WORDS`.

    Raises:
        NamesError: A pattern or a file is not usable.
    """

    def __init__(
        self,
        names: str | os.PathLike[str] | Sequence[str] | None = None,
        kinds: Mapping[str, str] | None = None,
    ) -> None:
        given = [os.fspath(names)] if isinstance(names, (str, os.PathLike)) else list(names or ())
        self.own = own_names(given, kinds or {})
        self.passes = passes_in(given)

    def parse(self, name: str) -> list[ParsedName]:
        """Return the operations one name stands for: none if unknown, several if it is fused."""
        if len(name) > _LONGEST:
            return []
        for own in self.own:
            if (said := own.parse(name)) is not None:
                return [said]
        for grammar in grammars().values():
            if parsed := grammar.parse(name):
                return parsed
        return []

    def parse_all(self, names: pl.Series) -> dict[str, list[ParsedName]]:
        """Return what each distinct name stands for, leaving out those that mean nothing.

        So are those whose numbers no job has: see `impossible`.

        Raises:
            NamesError: As `own_names.OwnNames.parse`, with the names that the trace has.
        """
        unique = names.drop_nulls().unique()
        if not self.own:
            # One pass in Rust spares Python most of a trace's names.
            beginnings = "|".join(grammar.beginnings for grammar in grammars().values())
            unique = unique.filter(unique.str.contains(f"^(?:{beginnings})"))
        try:
            return {
                name: parsed
                for name in unique.sort().to_list()
                if (parsed := self.parse(name)) and all(one.possible for one in parsed)
            }
        except NamesError as error:
            raise NamesError(f"{error}. {_frequent(names)}") from None

    def impossible(self, names: pl.Series) -> list[str]:
        """Return the distinct names that would mean something if their numbers could be a job's."""
        unique = names.drop_nulls().unique()
        suspects = unique.filter(unique.str.contains(_LARGE)).sort().to_list()
        return [name for name in suspects if not all(one.possible for one in self.parse(name))]


def _frequent(names: pl.Series) -> str:
    """Say which names there are, the most frequent first, those alike that differ in numbers only."""
    shapes = (
        names.drop_nulls()
        .str.replace_all(r"\d+", "#")
        .alias("shape")
        .value_counts(name="count")
        .sort("count", "shape", descending=[True, False])
    )
    shown = ", ".join(f"{shape!r} ({count})" for shape, count in shapes.head(_MOST).iter_rows())
    more = f" and {shapes.height - _MOST} more" if shapes.height > _MOST else ""
    return f"The trace's range names are, # being any number: {shown}{more}"
