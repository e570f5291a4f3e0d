"""What commands print fits 80 columns, in every language; longer lines have more columns of tables."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len

import bubblescope
from bubblescope.model import language
from bubblescope.render.text.plain_console import PlainConsole
from places import ROOT

CONDITIONS = "the shorter end of a range is reached if all of this holds:"


@pytest.fixture(scope="module")
def run():
    return bubblescope.load(ROOT / "examples" / "traces" / "nsight")


@pytest.fixture(scope="module")
def predictions(run):
    return run.whatif()


def lines(shown, width):
    out = io.StringIO()
    PlainConsole(file=out, width=width, color_system=None).print(shown)
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("spoken", language.LANGUAGES)
@pytest.mark.parametrize("question", ["report", "why", "whatif", "stragglers", "kernels", "info"])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_cut(run, question, spoken):
    with language.spoken(spoken):
        printed = lines(getattr(run, question)(), 80)
    assert max(map(cell_len, printed)) <= 80
    assert not [line for line in printed if "\u2026" in line]


def test_what_a_change_needs_is_below_it_or_beside_it_where_there_is_room(predictions):
    below, beside = lines(predictions, 80), lines(predictions, 160)
    at = next(row for row, line in enumerate(below) if line.endswith("zb-h1"))
    said = " ".join(line.strip() for line in below[at + 1 : at + 3])
    assert said == "needs: a backward that can be split"
    [line] = [line for line in beside if " zb-h1 " in line]
    assert line.endswith("  a backward that can be split")


def test_the_name_of_a_schedule_is_not_broken(predictions):
    assert any(line.endswith("  interleaved-zb, 4 chunks") for line in lines(predictions, 80))


def test_a_range_has_the_number_of_what_its_shorter_end_takes(predictions):
    printed = lines(predictions, 160)
    head = printed.index(CONDITIONS)
    told = dict(line.split(maxsplit=1) for line in printed[head + 1 :] if line[:1].isdigit())
    [row] = [line for line in printed if " zb-h1 " in line]
    [one] = [one for one in predictions.predictions if one.change == "zb-h1"]
    number = row.partition(" ms ")[2].split()[0]
    assert one.best_if.startswith(told[number][:60])


def test_what_a_cause_means_is_below_the_table_or_beside_it_where_there_is_room(run):
    meaning = "results on their way between ranks"
    narrow, wide = lines(run.why(), 80), lines(run.why(), 160)
    assert f"  exposed transfer       {meaning}" in narrow
    [line] = [line for line in wide if line.endswith(meaning)]
    assert "4.800 ms" in line
