"""What is released, as somebody has it who has just installed it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes, message_from_string
from typing import TYPE_CHECKING

import pytest

import hatch_build
from full import FULL
from places import ROOT
from trial import commands
from workflows import shell_steps

if TYPE_CHECKING:
    from pathlib import Path

README = (ROOT / "README.md").read_text("utf-8")
WORKFLOW = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
SOURCE = "https://host.example/owner/bubblescope"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """The wheel and the source archive, built as a release is: by somebody who says where it lives."""
    if not FULL:
        pytest.skip("./check --full runs it")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [*(sys.executable, "-m", "hatchling", "build"), "-d", str(folder)],
        cwd=ROOT,
        check=True,
        env={**os.environ, hatch_build.REPOSITORY: SOURCE},
    )
    [wheel], [archive] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, archive


def metadata(wheel: Path):
    with zipfile.ZipFile(wheel) as packed:
        [name] = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(packed.read(name))


def test_the_readme_leads_somewhere_on_an_index():
    text = hatch_build.absolute(README, SOURCE, "v1.2.3")
    places = re.findall(r"\]\(([^)]+)\)", text)
    assert len(places) > 10
    assert all(place.startswith(("https://", "http://", "mailto:", "#")) for place in places)
    assert f"]({SOURCE}/raw/v1.2.3/docs/view.png)" in text
    for place in places:
        if place.startswith(SOURCE):
            kept = re.sub(rf"^{SOURCE}/(blob|raw)/v1\.2\.3/|#.*$", "", place)
            assert (ROOT / kept).exists(), kept


@pytest.fixture
def release(built, tmp_path):
    """Run a step of the release's workflow where it has packages, checkout and this Python."""
    (tmp_path / "dist").mkdir()
    for package in built:
        (tmp_path / "dist" / package.name).symlink_to(package)
    (tmp_path / "checkout").symlink_to(ROOT)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, script in (("python", '"$@"'), ("uvx", '-m "$@"')):
        (tools / name).write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {script}\n")
        (tools / name).chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PATH"] = f"{tools}:{environment['PATH']}"
    environment["PIP_CONSTRAINT"] = str(ROOT / "constraints.txt")

    def run(name: str) -> str:
        steps = shell_steps(WORKFLOW, {"matrix.package": "whl"})
        [script] = [step.script for step in steps if step.name == name]
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]
        return done.stdout

    return run


def test_both_packages_pass_the_checks_of_an_index(release):
    assert release("Check").count("PASSED") == 2


def test_the_metadata_claims_what_is_tested(built):
    said = metadata(built[0])
    links = dict(one.split(", ", 1) for one in said.get_all("Project-URL"))
    assert links["Source"] == SOURCE
    assert {"Documentation", "Issues", "Changelog"} <= set(links)
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(said.get_all("Classifier")))
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8")
    tested = re.search(r"python: \[(.*)\]", workflow)
    assert tested is not None
    assert re.findall(r"3\.\d+", tested[1]) == pythons
    assert said["Requires-Python"] == f">={pythons[0]}"
    extras = set(said.get_all("Provides-Extra"))
    assert {"all", "notebook", "pdf", "png", "prometheus"} <= extras


def test_the_archive_has_what_builds_and_tests_it(built):
    with tarfile.open(built[1]) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
        [info] = [name for name in packed.getnames() if name.endswith("/PKG-INFO")]
        said = packed.extractfile(info)
        assert said is not None
        assert SOURCE in (message_from_string(said.read().decode())["Project-URL"] or "")
    wanted = {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md"}
    wanted |= {
        "src/bubblescope-record.pth",
        "tests/helpers/trial.py",
        "tests/integration/test_wheel.py",
    }
    assert wanted <= names
    assert not {name for name in names if "node_modules" in name or name.endswith(".pyc")}


def test_every_command_of_the_readme_is_run_or_is_left_out_for_a_reason():
    found = commands(README)
    assert len([one for one in found if not one.skipped]) >= 5
    assert all(one.words for one in found)


def test_the_wheel_runs_the_commands_of_the_readme(release):
    """In an environment with nothing but the wheel and what it asks for, and without the checkout."""
    release("Install")
    assert len(release("Run what the README says").splitlines()) == len(commands(README))
