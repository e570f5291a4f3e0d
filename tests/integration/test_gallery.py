"""The gallery of public traces: one command fetches one, tells its verdict and shows its page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from html.parser import HTMLParser

import pytest

from kineto_maker import Trace
from places import ROOT

SCRIPT = ROOT / "benchmarks" / "gallery.py"
INDEX = """
[[origin]]
name = "someone/traces"
commit = "{commit}"
licence = "MIT"
folder = "someone+traces"

[[origin.trace]]
name = "two ranks"
paths = ["run/rank*.json"]
holds = "two kernels <on each> rank"

[[origin.trace]]
name = "packed"
paths = ["packed/inside"]
unpack = "packed/all.tar.gz"

[[origin.trace]]
name = "notes"
paths = ["run/notes.txt"]

[[origin.trace]]
name = "elsewhere"
paths = ["run/rank0.json", "run/removed*"]
"""


def trace(path, rank):
    made = Trace(rank=rank, device=rank)
    made.range("PP:0F0", 100, 200)
    made.kernel(5000, 7000, at=110)
    return made.write(path)


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    """A repository whose newest commit no longer has the traces, and the index that names the older."""
    home = tmp_path_factory.mktemp("remote") / "someone+traces"
    (home / "run").mkdir(parents=True)
    (home / "packed").mkdir()
    for rank in (0, 1):
        trace(home / "run" / f"rank{rank}.json", rank)
    (home / "run" / "notes.txt").write_text("no trace\n")
    with tarfile.open(home / "packed" / "all.tar.gz", "w:gz") as packed:
        packed.add(home / "run" / "rank0.json", "inside/rank0.json")
        packed.add(home / "run" / "rank0.json", "../../outside.json")
    allowed = "[uploadpack]\nallowAnySHA1InWant = true\nallowFilter = true\n"  # as GitHub does
    identity = "[user]\nname = someone\nemail = someone@example.org\n"
    (settings := home.parent / "gitconfig").write_text(allowed + identity)
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": str(settings), "GIT_CONFIG_NOSYSTEM": "1"}

    def git(*arguments):
        done = subprocess.run(
            ["git", *arguments], cwd=home, env=environment, check=True, capture_output=True
        )
        return done.stdout.decode().strip()

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message=traces")
    (home.parent / "index.toml").write_text(INDEX.format(commit=git("rev-parse", "HEAD")))
    git("rm", "--quiet", "-r", "run", "packed")
    git("commit", "--quiet", "--message=gone")
    return home.parent, environment


@pytest.fixture
def gallery(public, tmp_path):
    """What runs the script in an empty folder."""
    remote, environment = public

    def run(*names, place=f"file://{remote}/{{folder}}"):
        return subprocess.run(
            [sys.executable, SCRIPT, *names, "--index", remote / "index.toml", "--from", place],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


class Links(HTMLParser):
    """Collects where links of a page lead."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "a":
            self.found.append(dict(attributes)["href"])


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_one_command_fetches_a_trace_and_shows_it(gallery, tmp_path):
    done = gallery("two ranks")
    assert done.returncode == 0, done.stderr
    assert "read as  kineto, 2 ranks, 1 step, 2 tasks\n" in done.stdout
    assert "verdict  devices: compute 100.0%" in done.stdout
    assert "checked  busy by 2 operations in the files: 0.004 ms, the same.\n" in done.stdout
    # Of the repository, that trace alone.
    held = files(tmp_path / "build" / "traces")
    assert held == {f"someone+traces/run/rank{rank}.json" for rank in (0, 1)}
    overview = (tmp_path / "build" / "gallery" / "index.html").read_text("utf-8")
    [origin, page] = Links(overview).found
    assert re.fullmatch(r"https://github\.com/someone/traces/tree/[0-9a-f]{40}", origin)
    assert page == "someone+traces/two-ranks.html"
    shown = (tmp_path / "build" / "gallery" / page).read_text("utf-8")
    assert shown.startswith("<!doctype html>")
    assert "two kernels &lt;on each&gt; rank" in overview


def test_what_was_fetched_is_not_asked_for_again(gallery):
    assert gallery("two ranks").returncode == 0
    again = gallery("two ranks", place="file:///nowhere/{name}")
    assert again.returncode == 0
    assert "compute 100.0%" in again.stdout


def test_an_archive_is_unpacked_beside_itself_and_nowhere_else(gallery, tmp_path):
    done = gallery("packed")
    assert done.returncode == 0
    assert "kineto, 1 rank" in done.stdout
    home = "someone+traces/packed"
    held = files(tmp_path / "build" / "traces")
    assert held == {f"{home}/all.tar.gz", f"{home}/inside/rank0.json"}


def test_a_whole_repository_and_what_cannot_be_had_of_it(gallery, tmp_path):
    done = gallery("someone/traces")
    assert done.returncode == 1
    [line] = [one for one in done.stderr.splitlines() if one.startswith("elsewhere: ")]
    assert line.endswith("holds no 'run/removed*'")
    links = Links((tmp_path / "build" / "gallery" / "index.html").read_text("utf-8")).found
    # The notes have a row and no page. What was not had whole has neither, though a part is there.
    assert links[1:] == ["someone+traces/two-ranks.html", "someone+traces/packed.html"]
    assert "refused: is not a trace of a known format" in done.stdout


def test_no_half_of_a_trace_is_left(gallery, tmp_path):
    assert gallery("elsewhere").returncode == 1
    assert files(tmp_path / "build" / "traces") == set()


def test_a_repository_that_cannot_be_reached_is_named_in_a_sentence(gallery):
    done = gallery("two ranks", place="file:///nowhere/{name}")
    assert done.returncode == 1
    assert done.stderr.startswith("two ranks: git: ")
    assert "Traceback" not in done.stderr


def test_a_name_that_the_index_lacks_gets_the_nearest(gallery):
    done = gallery("two rank")
    assert done.returncode == 2
    assert "no trace and no repository 'two rank'; did you mean 'two ranks'?" in done.stderr
