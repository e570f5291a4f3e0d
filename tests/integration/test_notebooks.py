"""The notebooks of the docs, and what a notebook shows of a run."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import bubblescope
from full import needs
from places import ROOT
from viewing import chromium, until

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
EXECUTE = """
import sys
import nbformat
from nbclient import NotebookClient
source, target = sys.argv[1:]
book = nbformat.read(source, as_version=4)
nbformat.validate(book)
NotebookClient(book, timeout=300, resources={"metadata": {"path": source.rpartition("/")[0]}}).execute()
nbformat.write(book, target)
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebooks as they are once all cells have run, by name."""
    for package in ("nbclient", "ipykernel", "pandas"):
        needs(package)
    folder = tmp_path_factory.mktemp("notebooks")
    running = [
        subprocess.Popen(
            [sys.executable, "-c", EXECUTE, str(path), str(folder / path.name)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for path in NOTEBOOKS
    ]
    for one in running:
        _, errors = one.communicate(timeout=300)
        assert one.returncode == 0, errors[-3000:]
    return {path.stem: json.loads((folder / path.name).read_text("utf-8")) for path in NOTEBOOKS}


def shown(book, kind):
    """Return what cells of a notebook show of a kind, in order."""
    outputs = [output for cell in book["cells"] for output in cell.get("outputs", [])]
    return ["".join(output["data"][kind]) for output in outputs if kind in output.get("data", {})]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_outputs_are_checked_in(path):
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_top_to_bottom(executed, path):
    book = executed[path.stem]
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert len(code) > 4
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        assert [output["output_type"] for output in cell["outputs"]] == ["execute_result"]


def test_answers_are_pictures_above_text_and_the_page_is_a_frame(executed):
    info, report, page, table = shown(executed["first-look"], "text/html")
    for answer in (info, report):
        assert answer.startswith("<svg")
        assert "<pre" in answer
    assert page.startswith("<iframe srcdoc=")
    assert "<table" in table


@pytest.mark.browser
def test_the_frame_shows_the_page_and_cannot_reach_the_notebook(tmp_path):
    run = bubblescope.simulate("1f1b", devices=4, microbatches=8)
    frame = run.show(height=500, title='"><script>parent.bad = 1</script>')
    (tmp_path / "notebook.html").write_text(f"<body>{frame._repr_html_()}", "utf-8")
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1000, "height": 600})
        wrong = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto((tmp_path / "notebook.html").as_uri())
        inside = page.frames[1]
        until(inside, "Boolean(window.bubblescope?.app && document.querySelector('canvas'))")
        assert inside.evaluate("innerHeight") == 500
        assert "1f1b" in inside.inner_text("body").lower()
        page.mouse.move(400, 350)
        page.mouse.wheel(0, -400)  # it zooms, and remembers where it is
        page.wait_for_timeout(600)
        assert page.evaluate("window.bad") is None
        with pytest.raises(Exception, match="cross-origin"):
            inside.evaluate("parent.document.title")
        assert wrong == []


def test_in_a_terminal_the_frame_is_a_line():
    frame = bubblescope.show(bubblescope.simulate("1f1b", devices=2, microbatches=2))
    assert repr(frame).startswith("<FramedPage: in memory, 0.")
    assert frame.page.startswith("<!doctype html>")
