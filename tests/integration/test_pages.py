"""Every code block of every page runs, or a comment says why it does not."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex

import pytest

from commands import called
from docs.building import pictures
from docs.building.pages import RUNNABLE, SHOWN, blocks
from docs.building.translations import code, original
from docs.building.workplace import unprinted
from places import ROOT
from readers_desk import lay_out

GLOSSARY = ROOT / "docs" / "glossary.md"
GENERATED = {"made", "reference", "project", "building"}
WRITTEN = [
    *(ROOT / name for name in ("README.md", "README.zh.md", "CONTRIBUTING.md")),
    *(ROOT / name / "README.md" for name in ("examples", "benchmarks")),
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if page.relative_to(ROOT / "docs").parts[0] not in GENERATED
    ),
]
TRANSLATIONS = {page: said for page in WRITTEN if (said := original(page, ROOT / "docs"))}
PAGES = [page for page in WRITTEN if page not in TRANSLATIONS]
LESSONS = [page for page in PAGES if page.parent.name == "tutorials" or page.name == "index.md"]
GUIDES = [page for page in PAGES if page not in LESSONS]


def named(page):
    return str(page.relative_to(ROOT))


def commands_of(block):
    """Yield the words of each command of a block, without comments."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


@pytest.mark.parametrize("page", TRANSLATIONS, ids=named)
def test_a_translation_has_the_blocks_of_its_original_and_each_leads_to_the_other(page):
    said = TRANSLATIONS[page]
    assert code(page) == code(said)
    for here, there in ((page, said), (said, page)):
        lead = os.path.relpath(there, here.parent)
        assert f"]({lead})" in here.read_text("utf-8").partition("\n## ")[0]


@pytest.mark.parametrize("page", TRANSLATIONS, ids=named)
def test_a_paragraph_in_chinese_is_one_line_since_a_break_shows_as_a_blank(page):
    assert not re.search(r"[\u3000-\uffef] *\n *[\u3000-\uffef[]", page.read_text("utf-8"))


def test_the_chinese_glossary_has_every_term():
    terms = re.findall(r"^(.+)\n: ", (english := GLOSSARY.read_text("utf-8")), re.MULTILINE)
    for listed in re.findall(r"(?ms)^(?:The causes of|Every nanosecond).*?^$", english):
        terms += re.findall(r"\*\*(.+?)\*\*", listed) + re.findall(r"`.+?`", listed)
    rows = (GLOSSARY.parent / "zh" / GLOSSARY.name).read_text("utf-8").splitlines()
    told = {row.split("|")[1].strip() for row in rows if row.startswith("|")}
    assert len(terms) > 60
    assert not set(terms) - told


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_block_is_run_or_shown_or_says_why_not(page):
    for block in blocks(page):
        known = block.language in {*RUNNABLE, *SHOWN, "console", "{toctree}"}
        assert known, f"line {block.line}: {block.language}"


@pytest.mark.parametrize("page", LESSONS, ids=named)
def test_a_lesson_runs_top_to_bottom_and_prints_what_it_shows(page, tmp_path):
    pictures.run(page, tmp_path / "reader", ROOT)
    assert all(
        (tmp_path / "reader" / name.removesuffix(".png" * name.endswith(".html.png"))).exists()
        for name in pictures.pictures_of(page)
    )


@pytest.fixture
def desk(tmp_path):
    lay_out(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", GUIDES, ids=named)
def test_the_blocks_of_a_guide_run(page, desk, monkeypatch):
    monkeypatch.chdir(desk)
    names = {}
    for block in blocks(page):
        if block.reason is not None:
            continue
        if block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block.text, f"{page.name}:{block.line}", "exec"), names)
        elif block.language == "sh":
            for tool, *words in commands_of(block):
                assert tool == "bubblescope", f"line {block.line}: {tool} is not run here; say why"
                run(words, desk)
        elif block.language == "console":
            command, shown = told_apart(block.text)
            printed = run(command[1:], desk, COLUMNS="80", codes=(0, 1))
            assert unprinted(shown, printed) is None


def run(words, folder, codes=(0,), **env):
    """Run a command, without opening a browser; return what it prints."""
    more = ["--no-open"] * (words[0] in {"view", "demo"} and "--no-open" not in words)
    done = called(*words, *more, cwd=folder, **env)
    assert done.returncode in codes, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"
    return done.stdout


def told_apart(text):
    """Return the command of a block with its output, as words, and the output."""
    lines = text.splitlines()
    last = next(number for number, line in enumerate(lines) if not line.endswith("\\"))
    command = " ".join(line.rstrip("\\").removeprefix("$ ") for line in lines[: last + 1])
    return shlex.split(command), "\n".join(lines[last + 1 :])


def test_what_was_not_printed_is_told():
    assert unprinted("a\n...\nc\n", "a  \nb\nc\n") is None
    assert unprinted("a\nc\n", "a\nb\nc\n") == "c"
    assert unprinted("...\nb\na\n", "a\nb\n") == "a"


def test_a_block_that_is_not_closed_or_has_no_language_is_refused(tmp_path):
    page = tmp_path / "page.md"
    for text, problem in (("```sh\nls\n", "not closed"), ("```\nls\n```\n", "without a language")):
        page.write_text(text)
        with pytest.raises(ValueError, match=problem):
            blocks(page)


def test_the_reason_stands_before_the_block_that_is_not_run(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- not run: needs a GPU -->\n```sh\nnsys\n```\n\n```sh\nls\n```\n")
    assert [block.reason for block in blocks(page)] == ["needs a GPU", None]
    assert [block.line for block in blocks(page)] == [3, 7]
