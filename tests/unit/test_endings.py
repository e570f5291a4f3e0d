"""A file that is named as something else than it would be is refused, and left as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import bubblescope
from bubblescope.cli import cli
from bubblescope.facade import Trace, write
from bubblescope.model.errors import BubblescopeError
from bubblescope.render.formats import FORMATS, agree, picture_format_of
from synthetic import one_f_one_b

SIZE = ("--stages", "2", "--microbatches", "2")
MAGIC = {
    "svg": b"<svg ",
    "png": b"\x89PNG",
    "pdf": b"%PDF-",
    "html": b"<!doctype html>",
    "csv": b"rank,",
    "json": b"{",
    "pftrace": b"\n",
}
"""How files of each ending begin."""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Trace(one_f_one_b(ranks=2, microbatches=2, steps=2)).save("run.bubbles.parquet")

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(cli, arguments)

    return invoke


def said(result: Result) -> str:
    """Return what the command says as it would end on a terminal."""
    assert result.exit_code != 0
    return (
        str(result.exception) if isinstance(result.exception, BubblescopeError) else result.output
    )


@pytest.mark.parametrize(
    ("command", "name", "sentence"),
    [
        (("export", "run.bubbles.parquet", "--to", "svg", "-o"), "x.png", "this writes svg"),
        (("export", "run.bubbles.parquet", "--to", "png", "-o"), "x.jpg", "this writes png"),
        (("export", "run.bubbles.parquet", "--to", "pdf", "-o"), "x.SVG", "this writes pdf"),
        (
            ("export", "run.bubbles.parquet", "--to", "perfetto", "-o"),
            "x.json",
            "name it x.pftrace",
        ),
        (("export", "run.bubbles.parquet", "--to", "chrome", "-o"), "x.pftrace", "name it x.trace"),
        (("export", "run.bubbles.parquet", "--to", "json", "-o"), "x.json.gz", "name it x.json"),
        (("export", "run.bubbles.parquet", "--to", "csv", "-o"), "x.html", "name it x.csv"),
        (("view", "run.bubbles.parquet", "--no-open", "-o"), "x.png", "this writes html"),
        (("simulate", *SIZE, "--to", "svg", "-o"), "x.png", "this writes svg"),
        (("simulate", *SIZE, "--save-plan"), "x.svg", "name it x.csv"),
        (
            ("simulate", "--compare", "1f1b", *SIZE, "-o"),
            "x.csv",
            "let it end in .svg, .pdf or .png",
        ),
        (("simulate", "--compare", "1f1b", *SIZE, "-o"), "x.webp", "this writes a picture"),
        (("simulate", "--compare", "1f1b", *SIZE, "--to", "svg", "-o"), "x.png", "this writes svg"),
        (
            ("compare", "run.bubbles.parquet", "run.bubbles.parquet", "--picture"),
            "x.html",
            "this writes a picture",
        ),
    ],
)
def test_commands_refuse_a_name_that_says_something_else(run, command, name, sentence):
    Path(name).write_text("precious")
    message = said(run(*command, name))
    assert message.count("\n") <= 1
    assert f"{name} has the ending of a {Path(name).suffix[1:].lower()} file" in message
    assert sentence in message
    assert Path(name).read_text() == "precious"
    assert {path.name for path in Path().iterdir()} == {name, "run.bubbles.parquet"}


@pytest.mark.parametrize(
    "command",
    [
        ("export", "run.bubbles.parquet"),
        ("simulate", *SIZE),
        ("simulate", "--compare", "1f1b,gpipe", *SIZE),
        ("compare", "run.bubbles.parquet", "run.bubbles.parquet"),
    ],
)
@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_a_file_is_what_its_ending_says(run, command, ending):
    flag = "--picture" if command[0] == "compare" else "-o"
    result = run(*command, flag, f"x.{ending}")
    assert result.exit_code == 0, result.output
    assert Path(f"x.{ending}").read_bytes().startswith(MAGIC[ending])


@pytest.mark.parametrize("name", ["x.html", "x.csv", "x.json", "x.trace.json", "x.pftrace"])
def test_export_takes_its_format_from_the_file(run, name):
    assert run("export", "run.bubbles.parquet", "-o", name).exit_code == 0
    assert Path(name).read_bytes().lower().startswith(MAGIC[name.rpartition(".")[2]])


def test_export_without_format_and_file_says_what_it_needs(run):
    assert "name what to write: a format with --to, or a file with -o" in said(
        run("export", "run.bubbles.parquet")
    )


@pytest.mark.parametrize("name", ["x", "x.out", "run.2026", "/dev/stdout", "x.txt", "run-1.5"])
def test_a_name_that_says_nothing_goes_with_every_format(name):
    for fmt in FORMATS:
        agree(Path(name), fmt)
    assert picture_format_of(Path(name)) == "svg"


def test_formats_of_one_ending_share_it():
    agree(Path("x.json"), "chrome")
    agree(Path("x.trace.json"), "json")
    agree(Path("X.PNG"), "png")


@pytest.mark.parametrize("fmt", sorted(FORMATS))
def test_python_refuses_it_too(tmp_path, fmt):
    timeline = one_f_one_b(ranks=2, microbatches=2, steps=1)
    with pytest.raises(
        BubblescopeError, match=f"x.zip has the ending of a zip file, but this writes {fmt};"
    ):
        write(timeline, tmp_path / "x.zip", to=fmt)
    with pytest.raises(BubblescopeError, match=r"name it x\.bubbles\.parquet"):
        bubblescope.simulate("1f1b", devices=2, microbatches=2).save(tmp_path / "x.svg")
    assert not list(tmp_path.iterdir())


def test_options_of_pictures_need_a_file(run):
    assert "--width is for a file; name one with -o" in said(
        run("simulate", *SIZE, "--width", "3in")
    )
    assert "--dpi is for --to png, not for pdf" in said(
        run("simulate", *SIZE, "--dpi", "90", "-o", "x.pdf")
    )
    assert "--compare draws a picture, and html is not a picture format" in said(
        run("simulate", "--compare", "1f1b", *SIZE, "--to", "html")
    )
