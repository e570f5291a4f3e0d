"""What is locked is what is asked for."""

from __future__ import annotations

import re

import pytest

from places import ROOT

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

HASH = re.compile("sha256:[0-9a-f]{64}")


@pytest.fixture(scope="module")
def lock():
    return tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))["package"]


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def asked(project):
    """What a project asks for: extra, name -> bounds."""
    groups = {None: project["dependencies"], **project["optional-dependencies"]}

    def whole(extra):
        """Yield what an extra asks for, also by naming others."""
        for one in groups[extra]:
            if named := re.fullmatch(r"bubblescope\[(.*)\]", one):
                for other in named[1].split(","):
                    yield from whole(other)
            else:
                yield one

    return {
        (extra, plain(re.match(r"[\w.-]+", one)[0])): sorted(
            re.search(r"[=<>!~][^;]*|$", one)[0].replace(" ", "").split(",")
        )
        for extra in groups
        for one in whole(extra)
    }


def test_the_lock_is_of_what_the_project_asks_for(lock):
    """`uv lock` makes it so."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    [ours] = [package for package in lock if package["name"] == "bubblescope"]
    locked = {}
    for one in ours["metadata"]["requires-dist"]:
        extra = re.search(r"extra == '(\w+)'", one.get("marker", ""))
        key = (extra and extra[1], one["name"])
        locked[key] = sorted(one.get("specifier", "").split(","))
    assert locked == asked(project)


def test_each_part_has_the_hash_of_each_of_its_files(lock):
    for package in lock:
        if package["name"] == "bubblescope":
            continue
        files = [*package.get("wheels", []), *filter(None, [package.get("sdist")])]
        assert files, package["name"]
        assert all(HASH.fullmatch(file["hash"]) for file in files)


def test_pips_constraints_are_those_of_the_lock(lock):
    """`uv export` makes them so (CONTRIBUTING.md)."""
    locked = {
        (package["name"], package["version"])
        for package in lock
        if package["name"] != "bubblescope"
    }
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {
        (plain(name), version.strip())
        for name, version in (
            line.partition(";")[0].split("==") for line in lines if not line.startswith("#")
        )
    }
    assert pinned == locked
