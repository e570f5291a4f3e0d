"""Which lines of bubblescope run for the first time: what makes an input worth more mutations.

Modules are given probes as they are imported, one for each straight stretch of a function. That costs a
small part of what `sys.settrace` does, which is called for every function of every library.
"""

from __future__ import annotations

import ast
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType

ROOMS: Final = tuple(
    f"bubblescope.{room}"
    for room in ("sources", "recording", "names", "model", "clocks", "schedules")
)
"""Where damage is met. What analyses has few branches for each of its lines."""
_PROBE: Final = "_line_runs"
_BLOCKS: Final = ("body", "orelse", "finalbody")

Line = tuple[str, int]
"""A module and a line of it."""


class LinesRun:
    """Notes the lines that modules run which are imported after `watch`."""

    def __init__(self) -> None:
        self._known: set[Line] = set()
        self._run: set[Line] = set()

    def watch(self, rooms: Sequence[str] = ROOMS) -> None:
        """Give probes to packages and modules that are imported from now on."""
        sys.meta_path.insert(0, _Finder(tuple(rooms), self._run))

    def new(self) -> frozenset[Line]:
        """Return the lines that ran since this was last asked, and never before."""
        found = frozenset(self._run - self._known)
        self._known |= found
        self._run.clear()
        return found


class _Finder(PathFinder):
    """Finds modules as usual, and has some loaded with probes."""

    def __init__(self, rooms: tuple[str, ...], run: set[Line]) -> None:
        self._rooms = rooms
        self._run = run

    def find_spec(  # type: ignore[override]  # a method of the class there
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not f"{fullname}.".startswith(tuple(f"{room}." for room in self._rooms)):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path, self._run)
        return spec


class _Loader(SourceFileLoader):
    """Loads a module with probes, which no file of byte code may keep."""

    def __init__(self, fullname: str, path: str, run: set[Line]) -> None:
        super().__init__(fullname, path)
        self._run = run

    def path_stats(self, path: str) -> Any:
        raise OSError(f"{path}: byte code is neither read nor written")

    def source_to_code(self, data: Any, path: Any, *_: Any, **__: Any) -> CodeType:  # type: ignore[override]
        tree = ast.parse(data)
        for function in ast.walk(tree):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                function.body = _with_probes(function.body, self.name)
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, _PROBE, self._run.add)
        super().exec_module(module)


def _with_probes(block: list[ast.stmt], module: str) -> list[ast.stmt]:
    """Return statements with a probe before the first, and before each that follows a block."""
    made: list[ast.stmt] = []
    reached = True
    for statement in block:
        if (
            not made
            and isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
        ):
            made.append(statement)  # the text that documents it, which must be the first
            continue
        if reached:
            line = ast.Tuple([ast.Constant(module), ast.Constant(statement.lineno)], ast.Load())
            call = ast.Call(ast.Name(_PROBE, ast.Load()), [line], [])
            made.append(ast.copy_location(ast.Expr(call), statement))
        reached = any(hasattr(statement, name) for name in (*_BLOCKS, "cases"))
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            _inside(statement, module)
        made.append(statement)
    return made


def _inside(statement: ast.stmt, module: str) -> None:
    """Give probes to the blocks of a statement."""
    holders = [statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]
    for holder in holders:
        for name in _BLOCKS:
            if block := getattr(holder, name, None):
                setattr(holder, name, _with_probes(block, module))
