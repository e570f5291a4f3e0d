"""The rooms of the package stand above each other, whatever way one imports from another.

`lint-imports` holds the layers themselves (pyproject.toml); it sees every import statement, but not
what is imported by name. Here that is read too.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest

import bubblescope
from bubblescope.cli import _OURS, COMMANDS
from bubblescope.record.hooks import INTEGRATIONS
from places import ROOT as PROJECT

ROOT = Path(bubblescope.__file__).parent
LAYERS = PROJECT / "pyproject.toml"
BY_NAME = re.compile(r"(bubblescope(?:\.\w+)+):\w+")
SAME_QUESTION = {
    *("compare", "info", "kernels", "report", "simulate", "stragglers", "watch", "whatif", "why")
}
"""Each has a module in analysis, in render/text and in cli."""


def sources():
    """Return the text of every module by its name."""
    found = {}
    for path in ROOT.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def imported(name, path, known):
    """Return the modules that one imports: in statements anywhere in it, and by name."""
    wanted = [*named(name)]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            wanted += [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: imports are absolute here"
            wanted += [f"{node.module}.{one.name}" for one in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            wanted += BY_NAME.findall(node.value)
    return {home(one, known) for one in wanted if one.partition(".")[0] == "bubblescope"} - {name}


def home(dotted, known):
    """Return the module that a dotted name is, or is in."""
    while dotted not in known:
        dotted = dotted.rpartition(".")[0]
    return dotted


def named(name):
    """Return what a module imports by names that it puts together."""
    if name == "bubblescope.record.hooks":
        return integrations()
    if name == "bubblescope.cli":
        return [target.partition(":")[0] for target in COMMANDS.built_in.values()]
    return []


def integrations():
    targets = [target for hooks in INTEGRATIONS.values() for target in hooks.values()]
    return [f"bubblescope.record.integrations.{target.partition(':')[0]}" for target in targets]


@pytest.fixture(scope="module")
def graph():
    known = sources()
    return {name: imported(name, path, known) for name, path in known.items()}


def reaches(graph, start):
    seen, left = set(), list(graph[start])
    while left:
        one = left.pop()
        if one not in seen:
            seen.add(one)
            left += graph[one]
    return seen


def test_no_module_imports_itself_by_any_way(graph):
    assert len(graph) > 200
    assert [name for name in graph if name in reaches(graph, name)] == []


def test_what_is_imported_by_name_keeps_to_the_layers(graph):
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML")
    config = tomllib.loads(LAYERS.read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    [layers] = [one["layers"] for one in config if one["type"] == "layers"]
    height = {room: at for at, row in enumerate(reversed(layers)) for room in row.split(" | ")}
    for name, wanted in graph.items():
        for other in wanted:
            if name != "bubblescope" != other:
                one, two = (height[module.split(".")[1]] for module in (name, other))
                assert one >= two, f"{name} imports {other}, which stands above it"


def test_only_the_registry_imports_by_name():
    for name, path in sources().items():
        used = re.findall(
            r"\bimport_module\b|__import__|\bimportlib\.import_module", path.read_text()
        )
        assert not used or name in {
            "bubblescope.model.registry",
            # NVIDIA's and Huawei's packages, none of ours
            "bubblescope.record.timers.cupti",
            "bubblescope.compat.ascend",
        }, name


def test_modules_that_mean_different_things_have_different_names():
    # A command is named after what it does, which has its own room.
    others = [name for name in sources() if not name.startswith("bubblescope.cli.")]
    names = Counter(name.rpartition(".")[2] for name in others)
    # Formats of several modules have one that reads a run, and two tell of memory; Ascend's profiles
    # are read, and marked by the job.
    same = SAME_QUESTION | {"counters", "ascend", "reading"}
    assert {name: count for name, count in names.items() if count > 1 and name not in same} == {}


@pytest.mark.parametrize("question", sorted(SAME_QUESTION))
def test_each_question_has_one_home_in_each_room(question):
    known = sources()
    about = {"watch": "live", "simulate": "schedules.simulate"}.get(question, question)
    room = "bubblescope" if question == "simulate" else "bubblescope.analysis"
    assert f"{room}.{about}" in known
    assert f"bubblescope.render.text.{question}" in known
    assert f"bubblescope.cli.{question}" in known


def test_few_modules_stand_in_the_hall():
    assert {path.name for path in ROOT.glob("*.py")} <= {"__init__.py", "__main__.py", "facade.py"}


def loaded(code):
    """Return which modules a program has loaded, and how much memory it takes, in bytes."""
    measure = "import sys; print(' '.join(sys.modules))\nprint(open('/proc/self/statm').read())"
    said = subprocess.run(
        [sys.executable, "-c", f"{code}\n{measure}"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return set(said[0].split()), int(said[1].split()[1]) * 4096


def test_what_records_loads_nothing_of_what_reads():
    modules, size = loaded("import bubblescope.record")
    heavy = {"polars", "rich", "click", "highspy", "bubblescope.facade", "bubblescope.sources"}
    assert not modules & heavy
    assert not [name for name in modules if name.startswith("bubblescope.analysis")]
    _, alone = loaded("import numpy")
    assert size - alone < 8_000_000


@pytest.mark.parametrize("words", ["--version", "--help", "schedules", "completion bash"])
def test_what_reads_no_traces_loads_no_columns(words):
    run = f"import sys; sys.argv = ['', *{words.split()}]\nfrom bubblescope.cli import main\n"
    quiet = "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()):\n"
    modules, _ = loaded(f"{run}{quiet}    with contextlib.suppress(SystemExit):\n        main()")
    assert "click" in modules
    assert not modules & {
        "importlib.metadata",
        "numpy",
        "polars",
        "highspy",
        "bubblescope.sources",
        "bubblescope.analysis",
    }


def test_a_small_report_loads_what_it_needs():
    run = PROJECT / "examples/demo/1f1b"
    modules, _ = loaded(
        "import contextlib, gc, io, sys\n"
        f"sys.argv = ['', 'report', {str(run)!r}]\n"
        "from bubblescope.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    main()\n"
        "assert not gc.get_stats()[-1]['collections'], 'all objects were searched for garbage'"
    )
    assert "bubblescope.analysis.study" in modules
    others = {name for name in modules if name.startswith("bubblescope.sources.")}
    assert not {name for name in others if name.endswith(".reading")}  # the other formats'
    assert not modules & {
        *("adbc_driver_manager", "highspy", "sqlite3"),  # of other formats, and of several clocks
        *("difflib", "rich.progress"),
        *(("html", "rich._emoji_codes") if version("rich") >= "14" else ()),
        "bubblescope.analysis.whatif",
        "bubblescope.analysis.why",
        "bubblescope.clocks",
        "bubblescope.render.picture.sheet",
    }


@pytest.mark.parametrize("name", COMMANDS.built_in)
def test_what_help_says_of_a_command_is_what_the_command_says(name):
    of_all = _OURS[name][1]
    assert COMMANDS[name].get_short_help_str(1000) == of_all


def test_the_package_itself_loads_next_to_nothing():
    modules, _ = loaded("import bubblescope")
    assert not modules & {"numpy", "polars", "rich", "click", "msgspec"}


def test_every_name_that_is_offered_is_there():
    for name in bubblescope.__all__:
        assert getattr(bubblescope, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bubblescope.nothing
    assert set(dir(bubblescope)) == set(bubblescope.__all__)
