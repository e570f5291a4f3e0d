"""What is looked up by name: sources, name grammars, output formats and commands.

Ours and those of other packages register alike: a name, and where the object is, which is written
"package.module:name". Ours stand in a table beside the code that asks for them, other packages declare
theirs as entry points in the group of the same name. Nothing is imported before it is asked for.

This is the one place that imports by name, so that layers can be told from the tables.
"""

from __future__ import annotations

import sys
from functools import cached_property
from importlib import import_module
from importlib.machinery import PathFinder
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

Item = TypeVar("Item")


def resolve(target: str) -> Any:
    """Return the object that "package.module:name" stands for, importing the module."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


class Registry(Generic[Item]):
    """Objects by name, ours first and in the order of their table, then those of other packages.

    A name of ours cannot be taken by another package. A class stands for an object of it.

    Args:
        group: Group of entry points in which other packages declare theirs.
        built_in: Name -> where the object is, or the object itself if it is not a text.
    """

    def __init__(self, group: str, built_in: Mapping[str, str | Item]) -> None:
        self.group = group
        self.built_in = MappingProxyType(dict(built_in))
        self._loaded: dict[str, Item] = {}

    @cached_property
    def _plugins(self) -> dict[str, Any]:
        if not _may_declare(self.group):
            return {}
        from importlib.metadata import entry_points  # noqa: PLC0415  slow, and seldom needed

        found = entry_points(group=self.group)
        return {entry.name: entry for entry in found if entry.name not in self.built_in}

    def __contains__(self, name: str) -> bool:
        return name in self.built_in or name in self._plugins

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names; other packages' are looked for only once ours are through."""
        yield from self.built_in
        yield from self._plugins

    def __getitem__(self, name: str) -> Item:
        """Return the object of that name, importing it.

        Raises:
            KeyError: There is none of that name.
        """
        if name not in self._loaded:
            found: Any
            if name in self.built_in:
                ours = self.built_in[name]
                found = resolve(ours) if isinstance(ours, str) else ours
            else:
                found = self._plugins[name].load()
            self._loaded[name] = found() if isinstance(found, type) else found
        return self._loaded[name]

    def items(self) -> Iterator[tuple[str, Item]]:
        """Yield names and objects, each imported only when it is reached."""
        for name in self:
            yield name, self[name]

    def all(self) -> Mapping[str, Item]:
        """Return every object by name."""
        return MappingProxyType(dict(self.items()))


def _may_declare(group: str) -> bool:
    """Say whether an installed package may declare objects in a group; most often none does.

    To see that takes a fraction of what `importlib.metadata` takes to be imported and to read all that
    is declared. Where packages are not in folders as installers make them, it is the one to ask.
    """
    from pathlib import Path  # noqa: PLC0415  `--version` asks for nothing that packages declare

    if any(hasattr(one, "find_distributions") and one is not PathFinder for one in sys.meta_path):
        return True
    for folder in map(Path, dict.fromkeys(sys.path)):
        if folder.is_file():  # an archive
            return True
        for pattern in ("*-info/entry_points.txt", "EGG-INFO/entry_points.txt"):
            if any(group.encode() in _content(path) for path in folder.glob(pattern)):
                return True
    return False


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
