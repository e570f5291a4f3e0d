"""The Python that the documents show is Python, and takes from bubblescope what there is."""

from __future__ import annotations

import ast
import re

import pytest

from places import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
DOTTED = re.compile(r"`(bubblescope(?:\.\w+)+)(?:\(|`)")


def blocks():
    for path in DOCUMENTS:
        for number, text in enumerate(BLOCK.findall(path.read_text("utf-8"))):
            yield pytest.param(text, id=f"{path.name}-{number}")


def found(dotted):
    """Return the module, class or function that a dotted name is."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            here = __import__(".".join(parts[:length]), fromlist=["_"])
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            here = getattr(here, name)
        return here
    raise AssertionError(dotted)


@pytest.mark.parametrize("text", list(blocks()))
def test_a_block_takes_what_there_is(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("bubblescope"):
            for one in node.names:
                assert found(f"{node.module}.{one.name}") is not None
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert not re.fullmatch(r"bubblescope(\.\w+)+", name) or callable(found(name))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_what_is_named_in_passing_is_there(path):
    for dotted in DOTTED.findall(path.read_text("utf-8")):
        if dotted not in {"bubblescope.sources", "bubblescope.names", "bubblescope.exports"} | {
            "bubblescope.commands"
        }:  # groups of entry points
            assert found(dotted) is not None


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_linked_are_there(path):
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text("utf-8")):
        assert (path.parent / link).exists(), link
