"""The documents name what there is, and link to files and anchors that are there."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from functools import cache
from itertools import pairwise

import pytest

from docs.building import json_schemas, links, reference
from docs.building.elsewhere import ELSEWHERE, relinked
from places import ROOT

DOCS = ROOT / "docs"
GENERATED = tuple(DOCS / name for name in ("made", "reference", "project"))
DOCUMENTS = [
    *(ROOT / name for name in ELSEWHERE),
    *(page for page in sorted(DOCS.rglob("*.md")) if not page.is_relative_to(DOCS / "reference")
      and not page.is_relative_to(DOCS / "project")),
]  # fmt: skip
DOTTED = re.compile(r"`(bubblescope(?:\.\w+)+)(?:\(|`)")
LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)")
ENTRY_POINTS = {f"bubblescope.{group}" for group in ("sources", "names", "exports", "commands")}


def named(path):
    return str(path.relative_to(ROOT))


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


@cache
def anchors(path):
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    text = re.sub(r"^(```|~~~).*?^\1", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#{1,6} (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_what_is_named_in_passing_is_there(path):
    for dotted in DOTTED.findall(path.read_text("utf-8")):
        if dotted not in ENTRY_POINTS:
            assert found(dotted) is not None


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_files_and_anchors_that_are_linked_are_there(path):
    for link, anchor in LINK.findall(path.read_text("utf-8")):
        target = (path.parent / link).resolve() if link else path
        if target.is_relative_to(DOCS) and any(target.is_relative_to(one) for one in GENERATED):
            continue  # the build looks
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), f"{link}#{anchor}"


def test_links_to_other_documents_lead_to_their_pages():
    assert relinked("[a](../SECURITY.md#x)", "docs/why.md", "why") == "[a](project/security.md#x)"
    assert (
        relinked("[a](docs/why.md)", "CONTRIBUTING.md", "project/contributing") == "[a](../why.md)"
    )
    assert relinked("[a](../src/x.py)", "docs/why.md", "why") == "[a](../src/x.py)"
    assert relinked("[a](https://x.org/y.md)", "docs/why.md", "why") == "[a](https://x.org/y.md)"


def test_links_of_the_site_that_lead_nowhere_are_told(tmp_path):
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="b.html#here">1</a><a href="b.html#gone">2</a><a href="#top">3</a>'
        '<img src="no.png"><a href="https://example.org/x">4</a><a href="sub/">5</a>'
    )
    (tmp_path / "b.html").write_text('<p id="here">B</p>')
    (tmp_path / "sub").mkdir()
    assert [*links.broken(tmp_path)] == [
        "a.html: b.html#gone: there is no such anchor",
        "a.html: no.png: there is no such file",
        "a.html: sub/: there is no such file",
    ]


def test_the_reference_has_every_command_and_option():
    page = reference.commands()
    for path, command in reference.walk():
        assert f"\n### {' '.join(path)}\n" in page
        for option in command.params:
            for flag in getattr(option, "secondary_opts", []) + option.opts * (
                option.param_type_name == "option"
            ):
                assert f"`{flag}`" in page


def test_options_of_many_commands_are_described_once():
    page = reference.commands()
    assert page.count("| `--worker-memory` `SIZE` |") == 1
    assert page.count("`(?P<kind>...)`") == 1, (
        "a page shows what is in angle brackets as code alone"
    )
    assert "(?P<kind>" not in page.replace("`(?P<kind>...)`", "")


def test_the_reference_has_every_public_name():
    page = reference.python()
    for module in reference.PUBLIC:
        for name in reference.public(found(module)):
            if callable(getattr(found(module), name)):
                assert f":: {module}.{name}\n" in page


def test_what_is_said_of_an_attribute_does_not_begin_like_a_type():
    """Sphinx takes what stands before a colon in an attribute's own text for its type."""
    for module in reference.PUBLIC:
        for name in reference.public(found(module)):
            thing = getattr(found(module), name)
            if not inspect.isclass(thing) or not thing.__module__.startswith("bubblescope"):
                continue
            [definition] = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
            texts = [one.value.value for before, one in pairwise(definition.body)
                     if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(one, ast.Expr)
                     and isinstance(one.value, ast.Constant)]  # fmt: skip
            assert [
                text for text in texts if re.match(r"[^`]*:(\s|$)", text.partition("\n")[0])
            ] == [], f"{module}.{name}"


@pytest.fixture(scope="module")
def schemas():
    return json_schemas.of_examples(ROOT)


def test_every_key_of_the_json_is_described_in_its_guide(schemas):
    for name, schema in schemas.items():
        guide = DOCS / json_schemas.GUIDES[name].partition("#")[0]
        text = guide.read_text("utf-8")
        assert schema["properties"]["schema"]["const"] in text, name
        for key in schema["properties"]:
            assert re.search(rf"`(?:[^`]*[.,` ])?{key}\b", text), f"{name}: {key}"


def test_a_schema_is_met_by_what_it_was_made_of(schemas):
    for command, answer in json_schemas.answers(ROOT):
        assert problem(answer, schemas[command]) is None
    assert problem({"schema": "bubblescope.report/1"}, schemas["report"]) is not None
    assert json.dumps(schemas)


def test_every_key_of_the_json_has_a_type(schemas):
    """Also one that is null in the answers about all examples."""
    for name, schema in schemas.items():
        kinds = dict(json_schemas.paths(schema))
        untold = [path for path, kind in kinds.items() if kind in {"null", "array of null"}]
        assert untold == [], name


def problem(value, schema, path="$"):
    """Return where a value does not meet a schema, by the keywords that are used here."""
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    is_a = {
        "null": value is None,
        "boolean": isinstance(value, bool),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "number": isinstance(value, int | float) and not isinstance(value, bool),
        "string": isinstance(value, str),
        "array": isinstance(value, list),
        "object": isinstance(value, dict),
    }
    if kinds and not any(is_a[kind] for kind in kinds):
        return path
    if "const" in schema and value != schema["const"]:
        return path
    below = []
    if isinstance(value, dict):
        if missing := [name for name in schema.get("required", []) if name not in value]:
            return f"{path}.{missing[0]}"
        known = schema.get("properties", {})
        other = schema.get("additionalProperties", {})
        below = [
            problem(one, known.get(name, other), f"{path}.{name}") for name, one in value.items()
        ]
    elif isinstance(value, list):
        below = [problem(one, schema.get("items", {}), f"{path}[]") for one in value]
    return next(filter(None, below), None)
