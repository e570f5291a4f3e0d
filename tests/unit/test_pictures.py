"""What a figure has around and between its blocks: title, steps, rates, causes, and a common scale."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import polars as pl
import pypdfium2
import pytest

import bubblescope
from bubblescope import Timeline
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.picture_data import pictured
from bubblescope.analysis.study import study
from bubblescope.facade import Trace, write
from bubblescope.model.provenance import Run
from bubblescope.render.palette import CAUSE_COLOURS
from bubblescope.render.picture import pdf, svg
from synthetic import one_f_one_b

SVG = "{http://www.w3.org/2000/svg}"
LETTER = 0.5
"""Width of a character as a share of its height, at least: wider texts overlap for sure."""


def texts(picture: str) -> list[tuple[str, float, float, float]]:
    """Return each text with its left and right end and its place from the top."""
    root = ET.fromstring(picture)
    common = float(root.get("font-size"))
    found = []
    for panel in root.findall(f"{SVG}g"):
        top = float(panel.get("transform").removeprefix("translate(0 ").removesuffix(")"))
        for node in panel.iter(f"{SVG}text"):
            size = float(node.get("font-size", common))
            wide, x = len(node.text) * size * LETTER, float(node.get("x"))
            left = x - {"end": wide, "middle": wide / 2}.get(node.get("text-anchor"), 0)
            found.append((node.text, left, left + wide, top + float(node.get("y"))))
    return found


def idle_lanes(picture: str) -> list[tuple[float, float]]:
    """Return from where to where each lane lies, from top to bottom."""
    root = ET.fromstring(picture)
    rects = [node for node in root.iter(f"{SVG}rect") if node.get("x") and not len(node)]
    widest = max(float(rect.get("width").rstrip("%")) for rect in rects)
    return [
        (float(rect.get("x")), float(rect.get("x")) + float(rect.get("width")))
        for rect in rects
        if float(rect.get("width")) == widest
    ]


@pytest.mark.parametrize("look", sorted(svg.LOOKS))
@pytest.mark.parametrize("fmt", ["svg", "png", "pdf"])
def test_a_title_stands_above_everything(tmp_path, look, fmt):
    run, title = one_f_one_b(steps=1), "Four stages & <their> tasks"
    bare = write(run, tmp_path / f"bare.{fmt}", look=look)
    path = write(run, tmp_path / f"run.{fmt}", look=look, title=title)
    if fmt == "svg":
        found = {text: y for text, _, _, y in texts(path.read_text())}
        assert found.pop(title) < min(found.values())
        assert title not in {text for text, *_ in texts(bare.read_text())}
    elif fmt == "pdf":
        said = pypdfium2.PdfDocument(path)[0].get_textpage().get_text_bounded()
        assert said.startswith(title)
    else:
        high = [int.from_bytes(one.read_bytes()[20:24], "big") for one in (bare, path)]
        assert high[0] < high[1]


def test_a_long_title_takes_several_lines_of_the_page():
    title = " ".join(f"word{number}" for number in range(40))
    drawn = svg.render(pictured(one_f_one_b(steps=1)), width="column", title=title)
    lines = [(text, right) for text, _, right, _ in texts(drawn) if text.startswith("word")]
    assert " ".join(text for text, _ in lines) == title
    assert len(lines) > 3
    assert all(right <= 316.8 for _, right in lines)


@pytest.mark.parametrize("look", sorted(svg.LOOKS))
@pytest.mark.parametrize("width", ["column", "page", 1600])
@pytest.mark.parametrize("steps", [2, 7, 43])
def test_steps_have_numbers_that_do_not_overlap(look, width, steps):
    made = one_f_one_b(ranks=4, microbatches=4, steps=steps, comm=False)
    run = Timeline(made.tasks.with_columns(step=pl.col("step") + 1000), made.ranks)
    drawn = svg.render(pictured(run), width=width, look=look)
    named = sorted(
        (left, right, text) for text, left, right, _ in texts(drawn) if text.startswith("step ")
    )
    assert named[0][2].startswith("step 1000")
    assert len(named) >= min(steps, 2)
    for (_, right, one), (left, _, other) in pairwise(named):
        assert right < left, (one, other)
    assert max(right for _, right, _ in named) <= idle_lanes(drawn)[0][1]
    numbers = [int(text.split()[1]) for _, _, text in named]
    assert len({b - a for a, b in pairwise(numbers)}) <= 1  # every so many


@pytest.mark.parametrize("width", ["column", "page", 1600])
@pytest.mark.parametrize("shared", [True, False])
def test_rates_stand_beside_the_lanes_and_not_on_them(width, shared):
    made = one_f_one_b(ranks=4, microbatches=4, steps=2, comm=False)
    run = Timeline(made.tasks, made.ranks, Run(common_clock=shared))
    drawn = svg.render(pictured(run), width=width)
    right = idle_lanes(drawn)[0][1]
    rates = [(left, y) for text, left, _, y in texts(drawn) if re.fullmatch(r"[\d.]+ %", text)]
    assert len(rates) == 4
    assert all(left > right for left, _ in rates)
    first = min(y for _, y in rates)
    [head] = [one for one in texts(drawn) if one[0] in ("bubble", "of its span") and one[3] < first]
    assert head[1] > right


def test_hosts_that_differ_only_at_their_ends_are_told_apart_at_any_width():
    made = one_f_one_b(ranks=4, microbatches=4, steps=1)
    name = "a-very-long-name-of-a-cluster.region-1.internal.example.com-and-a-half-node-{:03d}"
    hosts = pl.Series([name.format(rank) for rank in range(4)])
    run = Timeline(made.tasks, made.ranks.with_columns(host=hosts))
    for width in ("column", "page", 1600):
        drawn = texts(svg.render(pictured(run), width=width))
        shown = [text for text, *_ in drawn if text.startswith("a-very")]
        assert len(set(shown)) == 4
        assert [text[-4:] for text in shown] == ["-000", "-001", "-002", "-003"]


@pytest.mark.parametrize("width", range(500, 1300, 50))
def test_labels_of_one_picture_have_one_size_and_none_that_could_be_read_is_left_out(width):
    """The last of sixteen micro-batches has a longer number: it is not left bare for that."""
    run = one_f_one_b(ranks=4, microbatches=16, steps=1, comm=False)
    root = ET.fromstring(svg.render(pictured(run), width=width))
    labels = [n for n in root.iter(f"{SVG}text") if re.fullmatch(r"[FB]\d+", n.text or "")]
    assert len({label.get("font-size") for label in labels}) <= 1
    block = (width - 150 - 70) * 2_000_001 / run.duration_ns
    letters = {2: 3 + 2 * 7.7 * 6.4 / 11, 3: 3 + 3 * 7.7 * 6.4 / 11}  # of 7.7 pixels
    named = [f"B{number}" for number in range(16)]
    expected = {name for name in named if block > letters[len(name)]}
    assert {label.text for label in labels} >= expected


def cause_lengths(picture: str, colour: str) -> float:
    paths = re.findall(rf'<path stroke="{colour}" stroke-width="[\d.]+" d="([^"]+)"', picture)
    return sum(float(wide) for path in paths[:1] for wide in re.findall(r"h([\d.]+)", path))


def test_causes_take_up_what_the_ledger_says_and_the_legend_names_them():
    run = bubblescope.simulate(
        "1f1b", devices=4, microbatches=6, transfer_ns=3_000_000, optimizer_ns=4_000_000, steps=2
    )
    drawn = run.picture(width=2000).svg
    [(left, right)] = set(idle_lanes(drawn))
    scale = (right - left) / run.duration_ns
    known = study(run.timeline).ledger
    totals = dict(known.totals().select("cause", "idle_ns").rows())
    grey = sum(totals.get(cause.value, 0) for cause in (Cause.WARM_UP, Cause.COOL_DOWN))
    said = {text for text, *_ in texts(drawn)}
    assert "warm-up / cool-down" in said
    assert "exposed transfer" in said
    grey_line = (
        rf'<path stroke="{CAUSE_COLOURS[Cause.WARM_UP]}" stroke-width="([\d.]+)" d="(M[^"]+)"'
    )
    thick, first = re.findall(grey_line, drawn)[0]
    bottoms = {float(y) + float(thick) / 2 for y in re.findall(r"M[\d.]+ ([\d.]+)h", first)}
    tops = re.findall(r'<rect x="[\d.]+" y="([\d.]+)" width="[\d.]+" height="18" fill', drawn)
    assert bottoms == {float(top) + 18 for top in tops[:4]}  # at the foot of the lanes
    paths = [path for _, path in re.findall(grey_line, drawn)]
    shown = sum(float(wide) for path in paths for wide in re.findall(r"h([\d.]+)", path))
    swatches = 2 * 12  # of the legend
    steady = totals.get(Cause.STEADY.value, 0)
    assert shown == pytest.approx((grey + steady) * scale, abs=swatches + 4)
    transfer = totals[Cause.TRANSFER.value] + totals.get(Cause.SYNC.value, 0)
    assert cause_lengths(drawn, CAUSE_COLOURS[Cause.TRANSFER]) > 0.9 * transfer * scale - 4


def test_causes_are_left_out_where_papers_draw_schedules_and_where_none_are_known():
    run = bubblescope.simulate("1f1b", devices=4, microbatches=6)
    assert "warm-up" in run.picture().svg
    assert "warm-up" not in run.picture(look="paper").svg
    made = one_f_one_b(ranks=4, microbatches=4, steps=1)
    apart = Trace(Timeline(made.tasks, made.ranks, Run(common_clock=False)))
    assert "warm-up" not in apart.picture().svg
    assert "warm-up" in run.why()._repr_html_().partition("<pre")[0]


@pytest.mark.parametrize("look", sorted(svg.LOOKS))
def test_runs_below_each_other_share_one_scale(look):
    """One has longer titles, since its ranks hold two stages, and others are shorter."""
    names = ["1f1b", "dualpipe", "zb-h1"]
    runs = [bubblescope.simulate(name, devices=4, microbatches=10) for name in names]
    shown = [pictured(run.timeline, title=name) for name, run in zip(names, runs, strict=True)]
    drawn = svg.render(shown, width="page", look=look)
    lanes = idle_lanes(drawn)
    assert len(lanes) == 12
    assert len(set(lanes)) == 1
    ends = []
    for group in ET.fromstring(drawn).iter(f"{SVG}g"):
        if group.get("transform", "").startswith("translate(0 "):
            blocks = [rect for rect in group.iter(f"{SVG}rect") if len(rect)]
            ends.append(max(float(r.get("x")) + float(r.get("width")) for r in blocks))
    left, right = lanes[0]
    longest = max(run.duration_ns for run in runs)
    for run, end in zip(runs, ends, strict=True):
        assert end == pytest.approx(left + (right - left) * run.duration_ns / longest, abs=0.05)
    said = [text for text, *_ in texts(drawn)]
    for name in names:
        assert sum(text == name or text.startswith(f"{name} · ") for text in said) == 1
    assert sum(text in ("Time", "0 ms") for text in said) == 1  # one axis


def test_chunks_have_letters_only_where_there_are_several():
    runs = [bubblescope.simulate(name, devices=4, microbatches=10) for name in ("1f1b", "dualpipe")]
    drawn = svg.render([pictured(run.timeline) for run in runs], width="page", look="paper")
    first, second = drawn.split("translate(0 ")[1:]
    assert ">10</text>" in first
    assert not re.search(r">\d+[ab]</text>", first)
    assert re.search(r">\d+[ab]</text>", second)


def test_the_ideal_is_titled_so():
    run = bubblescope.simulate("zb-h1", devices=4, microbatches=8, transfer_ns=2_000_000)
    for look in svg.LOOKS:
        said = [text for text, *_ in texts(run.picture(beside="ideal", look=look).svg)]
        assert sum(text.startswith("ideal zb-h1") for text in said) == 1
        assert sum(text.startswith("as it ran") for text in said) == 1


def test_a_pdf_keeps_its_own_font_for_what_people_type_in_titles(tmp_path):
    title = "Naïve — “before” … it’s"  # noqa: RUF001  that is what is tested
    path = write(one_f_one_b(steps=1), tmp_path / "x.pdf", title=title)
    assert b"/Helvetica" in path.read_bytes()
    assert b"/FontFile" not in path.read_bytes()
    said = pypdfium2.PdfDocument(path)[0].get_textpage().get_text_bounded()
    assert said.startswith('Naïve - "before" ... it\'s')


def test_a_pdf_with_other_letters_takes_the_plainest_font_that_has_most_of_them(
    tmp_path, monkeypatch
):
    found = sorted(Path("/usr/share/fonts").rglob("DejaVuSans.ttf"))
    if not found:
        pytest.skip("no DejaVu Sans on this machine")
    for name in ("Aa-Math", "Bb-Bold", "Cc-Sans", "Dd-SansMono"):
        (tmp_path / f"{name}.ttf").symlink_to(found[0])
    monkeypatch.setattr(pdf, "_FONTS", (str(tmp_path),))
    assert pdf._font_for("Ω").stem == "Cc-Sans"
    path = write(one_f_one_b(steps=1), tmp_path / "x.pdf", title="Ω — ω")
    said = pypdfium2.PdfDocument(path)[0].get_textpage().get_text_bounded()
    assert said.startswith("Ω — ω")


def test_runs_with_long_names_are_told_apart():
    run = one_f_one_b(ranks=2, microbatches=2, steps=1)
    names = [f"A: /a/long/path/to/what/was/recorded/on/the/cluster/before/run-{n}" for n in (1, 2)]
    drawn = svg.render([pictured(run, title=name) for name in names])
    shown = [text for text, *_ in texts(drawn) if text.startswith("A: ")]
    assert ["run-1 ·" in text for text in shown] == [True, False]
    assert ["run-2 ·" in text for text in shown] == [False, True]


def test_a_picture_of_the_first_step_has_the_causes_of_that_step_alone():
    run = bubblescope.simulate("1f1b", devices=4, microbatches=6, optimizer_ns=1_000_000, steps=3)
    known = study(run.timeline).ledger
    shown = pictured(run.timeline, max_steps=1, ledger=known)
    assert shown.gaps.equals(known.gaps.filter(pl.col("step") == 0))
    assert shown.gaps.height == known.gaps.height // 3
