"""Which changes of a line no test notices: small mutations of modules that reconstruct and explain.

A mutant differs from its module in one place: a comparison, an operator, a constant, a condition, a
method or an option of a call. It is killed if a test that reaches its line fails, crashes or hangs; the
fastest of the module's tests (`MODULES`) come first, as many as fit into `--seconds`.
"""

from __future__ import annotations

import argparse
import ast
import functools
import gc
import importlib
import importlib.util
import os
import pickle
import pkgutil
import random
import resource
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCES: Final = ROOT / "src" / "bubblescope"


class Module(NamedTuple):
    """What is mutated together.

    Attributes:
        files: Below `SOURCES`.
        tests: Files below `ROOT / "tests"` that say what it does.
    """

    files: tuple[str, ...]
    tests: tuple[str, ...]


MODULES: Final = {
    "sqlite": Module(("sources/sqlite_pages.py",), ("unit/test_sqlite_pages.py",)),
    "projection": Module(
        ("sources/projection.py", "model/device_time.py"),
        (
            "unit/test_device_time.py",
            "unit/test_projection.py",
            "foreign/test_nsight.py",
            "foreign/test_nsight_oddities.py",
            "foreign/test_kineto.py",
            "foreign/test_host_times.py",
            "foreign/test_kernels_read.py",
        ),
    ),
    "numbering": Module(
        ("sources/numbering.py",),
        (
            "unit/test_numbering.py",
            "foreign/test_nsight.py",
            "foreign/test_nsight_oddities.py",
            "foreign/test_kineto.py",
        ),
    ),
    "clocks": Module(
        (
            "clocks/__init__.py",
            "clocks/bounded_clocks.py",
            "clocks/causality.py",
            "clocks/certificate.py",
            "clocks/feasibility.py",
            "clocks/moved_times.py",
            "clocks/solution.py",
        ),
        (
            "unit/test_clock_promise.py",
            "unit/test_clocks.py",
            "foreign/test_primus_chunks.py",
        ),
    ),
    "replay": Module(
        ("schedules/replay.py",),
        ("unit/test_replay.py", "unit/test_plan_replays.py", "unit/test_simulate.py"),
    ),
    "ledger": Module(
        (
            "analysis/idle/explained_gaps.py",
            "analysis/idle/ledger.py",
            "analysis/idle/outside_phase.py",
        ),
        (
            "unit/test_ledger_gaps.py",
            "unit/test_ledger.py",
            "unit/test_shares.py",
            "unit/test_between_rounds.py",
        ),
    ),
    "recognition": Module(
        ("analysis/schedule/recognise.py",),
        ("unit/test_recognition.py", "unit/test_ideal.py"),
    ),
}

_MEMORY: Final = 3 << 30
"""Bytes that a mutant may take."""
_PATIENCE_S: Final = 300.0
"""How long one may wait for what never comes; what it may compute is less."""

_OTHER: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
"""What an operator becomes."""
_LIKE: Final = (
    ("min", "max"),
    ("minimum", "maximum"),
    ("min_horizontal", "max_horizontal"),
    ("cum_min", "cum_max"),
    ("first", "last"),
    ("head", "tail"),
    ("any", "all"),
    ("forward_fill", "backward_fill"),
    ("start_ns", "end_ns"),
)
_SWAPPED: Final = {one: other for pair in _LIKE for one, other in (pair, pair[::-1])}
"""What a function, a method or the name of a column becomes."""
_DROPPED: Final = frozenset(
    "abs backward_fill clip cum_max cum_min drop_nulls fill_null filter forward_fill is_not_null over "
    "shift sort unique".split()
)
"""Methods whose calls are left out."""
_OPTIONS: Final = frozenset("by descending how keep nulls_equal nulls_last side".split())
"""Options of calls that are left out."""
_KEPT: Final = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr)
"""What is not mutated: how things are said, and what is imported."""
_UNMUTATED: Final = frozenset(("annotation", "returns", "decorator_list"))
"""Fields of syntax that are not."""
_CHECKS: Final = frozenset(("strict", "check_sortedness", "maintain_order", "frozen", "eq"))
"""Options of calls that are not: they change nothing, or what comes in an order that is none."""


class Mutant(NamedTuple):
    """A change in one place.

    Attributes:
        file: The module's file.
        number: Which of the file's mutants it is.
        lines: First and last line of the statement, or of the head of one that holds others.
        always: Whether that runs when the module is imported.
        said: What it changes into what.
    """

    file: Path
    number: int
    lines: tuple[int, int]
    always: bool
    said: str

    @property
    def place(self) -> str:
        """Where it is, to be read."""
        return f"{self.file.relative_to(SOURCES)}:{self.lines[0]}"

    def code(self) -> CodeType:
        """Return the file's code with the change."""
        tree = ast.parse(self.file.read_text())
        for number, change in enumerate(_changes(tree)):
            if number == self.number:
                change.make()
                break
        return compile(ast.fix_missing_locations(tree), self.file, "exec")


class Test(NamedTuple):
    """A test, the processor's time that it takes, and the lines of each file that it runs."""

    name: str
    seconds: float
    lines: dict[str, set[int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", nargs="+", choices=MODULES)
    parser.add_argument("--share", type=float, default=1.0, help="Share of the mutants, by chance.")
    parser.add_argument("--seed", type=int, default=1, help="Of that chance.")
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="Most that the tests of a mutant take."
    )
    parser.add_argument(
        "--lines", type=int, nargs=2, help="Only mutants that begin in these lines."
    )
    arguments = parser.parse_args()
    os.chdir(ROOT)
    for name in arguments.module:
        module = MODULES[name]
        files = [SOURCES / file for file in module.files]
        mutants = [mutant for file in files for mutant in _mutants(file)]
        dice = random.Random(arguments.seed)
        tried = [one for one in mutants if dice.random() < arguments.share]
        if arguments.lines:
            low, high = arguments.lines
            tried = [one for one in tried if low <= one.lines[0] <= high]
        tests = _in_child(functools.partial(_reached, files, module.tests), 600)
        if not isinstance(tests, list):
            sys.exit(f"{name}: its tests fail without any mutation")
        print(f"{name}: {len(tried)} of {len(mutants)} mutants, {len(tests)} tests", flush=True)
        _import_all()
        _try(name, tried, tests, arguments.seconds)


def _try(name: str, mutants: list[Mutant], tests: list[Test], seconds: float) -> None:
    """Try mutants, and print which survive and what share is killed."""
    ends: Counter[str] = Counter()
    for mutant in mutants:
        end = _outcome(mutant, tests, seconds)
        ends[end] += 1
        if end != "killed":
            print(f"  {end}: {mutant.place}: {mutant.said}", flush=True)
    share = ends["killed"] / max(len(mutants), 1)
    print(f"{name}: {share:.1%} killed, {dict(ends)}", flush=True)


def _outcome(mutant: Mutant, tests: list[Test], seconds: float) -> str:
    """Return what became of a mutant."""
    low, high = mutant.lines
    lines, of = set(range(low, high + 1)), str(mutant.file)
    chosen, total = [], 0.0
    for test in sorted(tests, key=lambda test: test.seconds):
        reached = mutant.always or lines & test.lines.get(of, set())
        if reached and (not chosen or total + test.seconds <= seconds):
            chosen.append(test.name)
            total += test.seconds
    if not chosen:
        return "not reached"
    failed = _in_child(lambda: _tested(mutant, chosen), round(10 + 3 * total))
    return "survived" if failed == 0 else "killed"


def _in_child(work: Callable[[], Any], seconds: int) -> Any:
    """Return what a function returns in a process of its own; its exit status if it does not return.

    Args:
        work: The function.
        seconds: Of the processor that it may take.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setsid()
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            said = pickle.dumps(work())
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(said)
        finally:
            os._exit(1)
    os.close(writer)
    timer = threading.Timer(_PATIENCE_S + seconds, os.killpg, (child, signal.SIGKILL))
    timer.start()
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    timer.cancel()
    timer.join()
    _, status = os.waitpid(child, 0)
    return pickle.loads(said) if said else status


def _pytest(arguments: list[str], *plugins: object) -> int:
    """Run tests in this process, which does nothing else."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*options, *arguments], plugins=[_Settings, *plugins]))


class _Settings:
    """A failure need not be made small, nor be tried first the next time."""

    @staticmethod
    def pytest_collection() -> None:
        own = hypothesis.settings.default
        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        hypothesis.settings.register_profile("mutants", own, phases=phases, database=None)
        hypothesis.settings.load_profile("mutants")


def _reached(files: list[Path], tests: tuple[str, ...]) -> list[Test] | int:
    """Run all tests of the code as it is; return what each reaches, or how pytest failed."""
    own = {str(file) for file in files}
    lines: dict[str, set[int]] = {}
    found: list[Test] = []

    def within(frame: FrameType, _event: str, _argument: object) -> Any:
        lines.setdefault(frame.f_code.co_filename, set()).add(frame.f_lineno)
        return within

    def called(frame: FrameType, _event: str, _argument: object) -> Any:
        return within if frame.f_code.co_filename in own else None

    class Watch:
        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
            lines.clear()
            began = time.process_time()
            threading.settrace(called)
            sys.settrace(called)
            yield
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            reached = {file: set(numbers) for file, numbers in lines.items()}
            found.append(Test(item.nodeid, time.process_time() - began, reached))

    return _pytest([f"tests/{test}" for test in tests], Watch()) or found


def _tested(mutant: Mutant, tests: list[str]) -> int:
    """Run tests of a mutant; 0 if all pass."""
    if mutant.always:
        _import_anew(mutant)
    else:
        _put_in(mutant)
    return _pytest(tests)


def _import_all() -> None:
    """Import what tests import, once for all mutants, which are forked from here.

    They could not be if that began threads, as anything worked out by Polars does.
    """
    for room in ("analysis", "clocks", "facade", "render", "schedules", "sources"):
        package = importlib.import_module(f"bubblescope.{room}")
        for path in getattr(package, "__path__", ()):
            for module in pkgutil.walk_packages([path], f"{package.__name__}."):
                importlib.import_module(module.name)


def _put_in(mutant: Mutant) -> None:
    """Give the functions of a module, which is imported already, the code of the mutant."""
    new = {(code.co_qualname, code.co_firstlineno): code for code in _parts(mutant.code())}
    own = str(mutant.file)
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename == own:
            code = function.__code__
            function.__code__ = new[code.co_qualname, code.co_firstlineno]


def _parts(code: CodeType) -> Iterator[CodeType]:
    """Yield code and all that is defined within it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _parts(inner)


def _import_anew(mutant: Mutant) -> None:
    """Have the package imported once more when a test wants it, with the mutant's code."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "bubblescope"]:
        del sys.modules[name]
    module = ".".join(mutant.file.relative_to(SOURCES.parent).with_suffix("").parts)
    module = module.removesuffix(".__init__")

    class Finder:
        @staticmethod
        def find_spec(wanted: str, *_: object) -> Any:
            if wanted != module:
                return None
            sys.meta_path.remove(Finder)  # type: ignore[arg-type]
            spec: Any = importlib.util.find_spec(wanted)
            spec.loader.get_code = lambda _: mutant.code()
            return spec

    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]


class _Change(NamedTuple):
    """What can be changed in a tree.

    Attributes:
        make: Changes it.
        lines, always, said: As of `Mutant`.
    """

    make: Callable[[], None]
    lines: tuple[int, int]
    always: bool
    said: str


def _mutants(file: Path) -> list[Mutant]:
    """Return all mutants of a file."""
    changes = _changes(ast.parse(file.read_text()))
    return [Mutant(file, number, *change[1:]) for number, change in enumerate(changes)]


def _changes(
    node: ast.AST, lines: tuple[int, int] = (0, 0), *, always: bool = True
) -> Iterator[_Change]:
    """Yield what can be changed below a node, which stands in these lines, in the tree's order."""
    for field, index, child in _children(node):
        where, now = _lines(node, child, lines), always
        if field == "body" and isinstance(node, (ast.FunctionDef, ast.Lambda)):
            now = False
        decides = field == "test" and not isinstance(node, ast.comprehension)
        for new in _instead(child, decides=decides):
            make = functools.partial(_put, node, field, index, new)
            yield _Change(make, where, now, f"{_text(child)}  →  {_text(new)}")
        yield from _changes(child, where, always=now)


def _children(node: ast.AST) -> Iterator[tuple[str, int | None, ast.AST]]:
    """Yield what is below a node and may be mutated: field, place in it if it is a list, and node."""
    for field, value in ast.iter_fields(node):
        if field in _UNMUTATED:
            continue
        places = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, child in places:
            docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            typing = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            check = isinstance(child, ast.keyword) and child.arg in _CHECKS
            passed_over = docstring or typing or check or isinstance(child, _KEPT)
            if isinstance(child, ast.AST) and not passed_over:
                yield field, index, child


def _lines(node: ast.AST, child: Any, lines: tuple[int, int]) -> tuple[int, int]:
    """Return the lines in which a child of a node stands that itself is in others."""
    if isinstance(child, ast.stmt):
        return child.lineno, child.end_lineno or child.lineno
    if isinstance(node, (ast.If, ast.While, ast.For, ast.With, ast.FunctionDef)):
        return node.lineno, getattr(child, "end_lineno", node.lineno)
    return lines


def _put(node: ast.AST, field: str, index: int | None, new: ast.AST) -> None:
    if index is None:
        setattr(node, field, new)
    else:
        getattr(node, field)[index] = new


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 90 else f"{text[:60]} … {text[-27:]}"


def _instead(node: Any, *, decides: bool) -> Iterator[ast.AST]:
    """Yield what can stand in a node's place; `decides` says whether it is a condition."""
    match node:
        case ast.Constant():
            yield from _constants(node.value)
        case ast.Call():
            yield from _calls(node)
        case ast.IfExp():
            yield from (node.body, node.orelse)
        case ast.Expr(value=ast.Call()) | ast.Continue():
            yield ast.Pass()
        case _:
            yield from _operations(node)
    if decides and not isinstance(node, ast.Compare):
        yield ast.UnaryOp(ast.Not(), node)


def _constants(value: object) -> Iterator[ast.AST]:
    match value:
        case bool():
            yield ast.Constant(not value)
        case int():
            yield ast.Constant(value + 1)
        case float():
            yield ast.Constant(value * 2)
        case str() if value in _SWAPPED:
            yield ast.Constant(_SWAPPED[value])


def _operations(node: Any) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _OTHER:
            yield ast.Compare(node.left, [_OTHER[type(operator)]()], node.comparators)
        case ast.BinOp(op=operator) if type(operator) in _OTHER:
            yield ast.BinOp(node.left, _OTHER[type(operator)](), node.right)
            if isinstance(operator, (ast.Add, ast.Sub, ast.BitAnd)):
                yield node.left
        case ast.AugAssign(op=operator) if type(operator) in _OTHER:
            yield ast.AugAssign(node.target, _OTHER[type(operator)](), node.value)
        case ast.BoolOp():
            yield ast.BoolOp(_OTHER[type(node.op)](), node.values)
            yield ast.BoolOp(node.op, node.values[:-1])
        case ast.UnaryOp():
            yield node.operand


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    """Yield what can stand in the place of a call: one of something alike, or with less."""
    match node.func:
        case ast.Attribute(value=value, attr=name):
            if name in _SWAPPED:
                swapped = ast.Attribute(value, _SWAPPED[name], ast.Load())
                yield ast.Call(swapped, node.args, node.keywords)
            if name in _DROPPED:
                yield value
        case ast.Name(id=name) if name in _SWAPPED:
            yield ast.Call(ast.Name(_SWAPPED[name], ast.Load()), node.args, node.keywords)
    for option in node.keywords:
        if option.arg in _OPTIONS:
            rest = [other for other in node.keywords if other is not option]
            yield ast.Call(node.func, node.args, rest)


if __name__ == "__main__":
    main()
