"""A schedule above the run, on one axis of time, as papers show what was planned and what ran."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET

import numpy as np
import polars as pl
import pypdfium2
import pytest
from click.testing import CliRunner

import bubblescope
from bubblescope.analysis.picture_data import pictured
from bubblescope.analysis.reference import reference
from bubblescope.analysis.study import study
from bubblescope.analysis.view import View
from bubblescope.cli import cli
from bubblescope.model.errors import BubblescopeError, ScheduleError, TimelineError
from bubblescope.model.kinds import Kind
from bubblescope.render.palette import COLOURS
from bubblescope.render.picture import pdf, svg
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate
from synthetic import empty

SVG = "{http://www.w3.org/2000/svg}"
DEVICES, MICROBATCHES = 16, 24


def noisy(schedule="zb-h1", devices=DEVICES, microbatches=MICROBATCHES, steps=2, **costs):
    """A run whose operations vary by a fifth; of one seed."""
    plan = generate(schedule, devices, microbatches)
    random = np.random.default_rng(7)

    def lengths(mean):
        table = random.uniform(0.8, 1.2, (plan.stages, plan.microbatches)) * mean
        return lambda stage, microbatch: int(table[stage, microbatch])

    return simulate(plan, Costs(*map(lengths, (9e6, 10e6, 8e6)), **costs), steps=steps)


@pytest.fixture(scope="module")
def run():
    return noisy(optimizer_ns=3_000_000, comm_ns=400_000)


def beside(timeline, name, also=()):
    return reference(timeline, name, study(timeline, also), also)


def by_step(timeline, step=0):
    return timeline.tasks.filter(pl.col("kind") != "optimizer", step=step, lane="compute")


def test_a_plan_is_what_the_simulator_makes_of_the_mean_times(run):
    """The simulator knows nothing of measured runs."""
    tasks = by_step(run)
    lengths = pl.col("end_ns") - pl.col("start_ns")
    kinds = ("forward", "backward_input", "backward_weight")
    all_steps = run.tasks.filter(pl.col("kind").is_in(kinds))
    mean = dict(all_steps.group_by("kind").agg(lengths.mean()).iter_rows())
    plan = generate("zb-h1", DEVICES, MICROBATCHES)
    means = [round(mean[kind]) for kind in kinds]
    truth = by_step(simulate(plan, Costs(*means, comm_ns=400_000)))
    shown = by_step(beside(run, "plan").timeline)
    key = ["rank", "kind", "microbatch"]
    both = shown.join(truth, on=key, suffix="_true")
    assert both.height == shown.height == tasks.height
    shift = tasks["start_ns"].min() - truth["start_ns"].min()
    assert (
        both["start_ns"] - both["start_ns_true"] - shift
    ).abs().max() <= 100  # rounding, added up


def test_the_ideal_is_that_of_the_report(run):
    known = study(run)
    found = beside(run, "ideal")
    assert found.timeline.tasks.equals(known.ideal.timeline.tasks)
    assert found.title == "ideal zb-h1"


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-2p", "interleaved-1f1b"])
def test_another_schedule_takes_the_place_of_the_runs_own(run, name):
    found = beside(run, name)
    assert found.title == f"{name} as planned"
    assert found.timeline.steps == run.steps
    assert found.timeline.ranks["rank"].to_list() == run.ranks["rank"].to_list()
    for step in run.steps:
        assert (
            by_step(found.timeline, step)["start_ns"].min() == by_step(run, step)["start_ns"].min()
        )


def test_a_plan_of_ones_own_may_be_set_above_by_its_name(run):
    own = generate("zb-h2", DEVICES, MICROBATCHES)
    assert beside(run, "zb-h2", [own]).timeline.tasks.height
    wrong = generate("gpipe", 4, 8)
    object.__setattr__(wrong, "name", "mine")
    with pytest.raises(ScheduleError, match="mine is for 4 devices, and the run has 16"):
        beside(run, "mine", [wrong])


def test_what_cannot_be_set_above_says_why(run):
    with pytest.raises(
        ScheduleError,
        match=r"'zb-9' cannot be set beside a run; did you mean zb-.*\? Give ideal, plan",
    ):
        beside(run, "zb-9")
    with pytest.raises(ScheduleError, match="is not recognised"):
        beside(empty(), "plan")
    with pytest.raises(ScheduleError, match="chimera"):
        beside(noisy("1f1b", devices=3, microbatches=6), "chimera")


# Pictures


@pytest.mark.parametrize("look", ["full", "paper"])
@pytest.mark.parametrize("name", ["ideal", "plan", "1f1b"])
def test_the_same_moment_is_at_the_same_place_in_both_panels(run, look, name):
    shown = pictured(run, beside=beside(run, name))
    text = svg.render(shown, look=look)
    root = ET.fromstring(text)
    upper, lower = (group for group in root if group.tag == f"{SVG}g")
    above, below = (
        float(re.findall(r"translate\(0 ([\d.]+)\)", group.get("transform"))[0])
        for group in (upper, lower)
    )
    assert above == 0 < below
    # One lane a rank in either, equally wide; one axis and one legend, below both.
    backs = [
        {(rect.get("x"), rect.get("width")) for rect in group.iter(f"{SVG}rect") if _is_lane(rect)}
        for group in (upper, lower)
    ]
    assert backs[0] == backs[1]
    assert len(backs[0]) == 1
    counts = [sum(map(_is_lane, group.iter(f"{SVG}rect"))) for group in (upper, lower)]
    assert counts == [DEVICES, DEVICES]
    said = [[text.text for text in group.iter(f"{SVG}text")] for group in (upper, lower)]
    assert "as planned" in said[0][0] or "ideal" in said[0][0]
    assert said[1][0].startswith("as it ran")
    legend = "forward" if look == "full" else "Forward"
    assert [legend in texts for texts in said] == [False, True]


def _is_lane(rect):
    return float(rect.get("width", "0").rstrip("%") or 0) > 300 and rect.get("height") != "100%"


def test_without_waiting_nothing_is_later_than_it_was(run):
    """The two panels agree with the numbers: the plan's last block ends where its step does."""
    shown = pictured(run, beside=beside(run, "ideal"))
    assert shown.above.rates.overall.makespan < shown.rates.overall.makespan
    assert shown.above.timeline.end_ns <= shown.timeline.end_ns


def test_a_picture_of_one_run_is_as_it_was(run):
    assert "as it ran" not in svg.render(pictured(run))


# Files and commands


def invoke(*arguments):
    return CliRunner().invoke(cli, list(map(str, arguments)), catch_exceptions=False)


@pytest.fixture(scope="module")
def saved(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.bubbles.parquet"
    run.save(path)
    return path


@pytest.mark.parametrize("fmt", ["svg", "png", "pdf"])
@pytest.mark.parametrize("look", ["full", "paper"])
@pytest.mark.parametrize("name", ["ideal", "plan", "zb-2p"])
def test_export_sets_a_schedule_above_in_every_kind_of_picture(saved, tmp_path, fmt, look, name):
    target = tmp_path / f"figure.{fmt}"
    more = ("--dpi", 80) if fmt == "png" else ()
    done = invoke(
        *("export", saved, "--to", fmt, "--with", name, "--look", look, *more, "-o", target)
    )
    assert done.exit_code == 0, done.output
    alone = tmp_path / f"alone.{fmt}"
    assert invoke("export", saved, "--to", fmt, "--look", look, *more, "-o", alone).exit_code == 0
    assert target.stat().st_size > alone.stat().st_size


def test_only_what_has_lanes_can_have_some_above(saved, tmp_path):
    done = CliRunner().invoke(
        cli, ["export", str(saved), "--to", "csv", "--with", "plan", "-o", str(tmp_path / "x.csv")]
    )
    assert isinstance(done.exception, BubblescopeError)
    assert "html and pictures can" in str(done.exception)
    assert not (tmp_path / "x.csv").exists()


def test_the_page_opens_with_it_above(run, saved, tmp_path):
    shown = View.of(run, beside="zb-2p")
    assert shown.above == "whatif"
    assert shown.reference.title == "zb-2p as planned"
    assert View.of(run, beside="ideal").above == "ideal"
    assert View.of(run).above is None
    with pytest.raises(ScheduleError, match="not both"):
        View.of(run, beside="plan", whatif=lambda what: what.schedule("1f1b"))
    target = tmp_path / "page.html"
    assert invoke("view", saved, "--with", "plan", "--no-open", "-o", target).exit_code == 0
    assert '"above":"whatif"' in target.read_text()


def test_a_notebook_shows_the_picture(saved):
    shown = bubblescope.picture(saved, beside="plan", look="paper")
    ET.fromstring(shown._repr_svg_())
    assert "zb-h1 as planned" in str(shown)
    assert len(repr(shown)) < 100


def test_ranks_without_a_common_clock_have_no_plan(run):
    raw = bubblescope.Timeline(
        run.tasks, run.ranks, run.run.__class__(**{**_fields(run.run), "common_clock": False})
    )
    with pytest.raises(TimelineError, match="share a clock"):
        beside(raw, "ideal")


def _fields(struct):
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


# PDF


def read(data):
    page = pypdfium2.PdfDocument(data)[0]
    return page.get_size(), page.get_textpage().get_text_bounded()


def test_a_pdf_is_as_large_as_it_says_and_its_text_is_text(run):
    shown = pictured(run, beside=beside(run, "plan"))
    (width, height), said = read(pdf.render(shown, width="page", look="paper"))
    assert width == pytest.approx(7 * 72)
    root = ET.fromstring(svg.render(shown, width="page", look="paper"))
    assert height == pytest.approx(float(root.get("height").removesuffix("in")) * 72, abs=0.1)
    for text in ("zb-h1 as planned", "as it ran", "Device 16", "Forward"):
        assert text in said


def test_the_same_run_gives_the_same_file(run, monkeypatch):
    shown = pictured(run.slice(steps=[0], ranks=[3]))
    first = pdf.render(shown)
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    assert pdf.render(shown) == first


def test_a_pdf_has_the_colours_of_the_time(run):
    """Against the SVG's own numbers: as much of each lane is each colour as its tasks took."""
    one = run.slice(steps=[0], ranks=[3])
    image = pypdfium2.PdfDocument(pdf.render(pictured(one), width="page"))[0].render(scale=6)
    pixels = image.to_numpy()[:, :, :3][:, :, ::-1].astype(int)
    tasks = one.tasks.filter(lane="compute")
    for kind in ("forward", "backward_input"):
        colour = tuple(bytes.fromhex(COLOURS[Kind(kind)][1:]))
        near = (np.abs(pixels - colour).max(axis=2) < 12).sum(axis=1)
        row = int(near.argmax())
        spent = tasks.filter(kind=kind).select((pl.col("end_ns") - pl.col("start_ns")).sum()).item()
        lane = (np.abs(pixels[row] - 255).max(axis=1) > 0).nonzero()[0]
        share = near[row] / len(range(lane.min(), lane.max() + 1))
        assert share == pytest.approx(spent / one.duration_ns, abs=0.12)


def test_names_with_letters_of_any_script_are_no_traceback(run):
    ranks = run.ranks.with_columns(
        host=pl.when(pl.col("rank") < 8).then(pl.lit("机器一号")).otherwise(pl.lit("узел"))
    )
    shown = pictured(bubblescope.Timeline(run.tasks, ranks, run.run))
    try:
        made = pdf.render(shown)
    except BubblescopeError as error:
        assert "TrueType" in str(error)  # noqa: PT017  as the fonts of the machine are
    else:
        assert read(made)[0][1] > 100


def test_without_its_library_a_pdf_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "fpdf", None)
    with pytest.raises(BubblescopeError, match=r"pip install 'bubblescope\[pdf\]'"):
        pdf.render(pictured(run))
