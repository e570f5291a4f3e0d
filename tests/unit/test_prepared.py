"""Threads may be the first to decode a type, all at once."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

from places import ROOT

PACKAGE = ROOT / "src" / "bubblescope"
AT_ONCE = """
import sys, threading, msgspec
from bubblescope.model.decoders import prepared

sys.setswitchinterval(1e-6)
fields = [(f"f{at}", int | None, None) for at in range(30)]
for at in range(200):
    inner = msgspec.defstruct(f"Inner{at}", fields)
    outer = msgspec.defstruct(f"Outer{at}", [("inner", inner | None, None), *fields])
    start = threading.Barrier(4)

    def decode():
        start.wait()
        assert msgspec.json.decode(b'{"f29":3}', type=prepared(outer)).f29 == 3

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
"""


def test_threads_decode_a_type_that_none_of_them_has_decoded():
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def types_named(tree: ast.AST):
    """Yield what is named to msgspec as a type."""
    for node in ast.walk(tree):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if called in {"msgspec.json.decode", "msgspec.toml.decode", "msgspec.msgpack.decode"}:
            yield from (one.value for one in node.keywords if one.arg == "type")
        elif called == "msgspec.convert":
            yield node.args[1]


def test_every_type_is_prepared():
    named = [
        f"{path.relative_to(PACKAGE)}: {ast.unparse(one)}"
        for path in PACKAGE.rglob("*.py")
        if re.search(r"msgspec\.\w*\.?(convert|decode)\(", text := path.read_text("utf-8"))
        for one in types_named(ast.parse(text))
    ]
    assert len(named) > 10
    assert [one for one in named if ": prepared(" not in one] == []
