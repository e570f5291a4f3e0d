"""What GitHub runs is what its schema allows, and its scripts do what they are for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner

from bubblescope.model.version import __version__
from places import ROOT
from workflows import shell_steps

FOLDER = ROOT / ".github" / "workflows"
RELEASE = (FOLDER / "release.yml").read_text("utf-8")
SCHEMA = ("--builtin-schema", "vendor.github-workflows")
CHANGES = "# Changelog\n## 0.2.10\nlater\n## 0.2.1, 2026-01-01\nours\n\n- all\n## 0.2.0\nbefore\n"


def run(name, folder, tag, tools="/none"):
    """Return the exit code of a step of the release."""
    steps = shell_steps(RELEASE, {"matrix.package": "whl"})
    [script] = [step.script for step in steps if step.name == name]
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env={"PATH": f"{tools}:/usr/bin:/bin", "GITHUB_REF_NAME": tag},
        check=False,
    ).returncode


def test_the_schema_of_workflows_holds(tmp_path):
    paths = sorted(map(str, FOLDER.glob("*.yml")))
    assert CliRunner().invoke(check_jsonschema, [*SCHEMA, *paths]).exit_code == 0
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(Path(paths[0]).read_text("utf-8").replace("runs-on", "run-on"))
    assert CliRunner().invoke(check_jsonschema, [*SCHEMA, str(wrong)]).exit_code == 1


def test_only_the_tag_of_the_version_is_released():
    step = "The tag is the version"
    assert run(step, ROOT, f"v{__version__}") == 0
    assert run(step, ROOT, "v9.9.9") == 1


@pytest.mark.parametrize(
    ("tag", "notes"), [("v0.2.1", "ours\n\n- all\n"), ("v0.2.10", "later\n"), ("v0.2", None)]
)
def test_a_release_says_what_changed_in_that_version(tmp_path, tag, notes):
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "some.whl").touch()
    (tmp_path / "gh").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > asked\n')
    (tmp_path / "gh").chmod(0o755)
    step = "What CHANGELOG.md says of this version, with packages, bill of materials and checksums"
    assert (run(step, tmp_path, tag, tmp_path) == 0) == (notes is not None)
    assert (tmp_path / "notes.md").read_text() == (notes or "")
    if notes:
        asked = (tmp_path / "asked").read_text().splitlines()
        assert asked[:3] == ["release", "create", tag]
        assert asked[-1] == "dist/some.whl"


def test_the_index_gets_packages_alone(tmp_path):
    (tmp_path / "dist").mkdir()
    for name in ("a.whl", "a.tar.gz", "a.cdx.json", "a.sha256"):
        (tmp_path / "dist" / name).touch()
    assert run("Only packages are published", tmp_path, "v1") == 0
    assert {one.name for one in (tmp_path / "packages").iterdir()} == {"a.whl", "a.tar.gz"}
