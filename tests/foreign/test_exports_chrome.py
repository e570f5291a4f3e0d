"""The Chrome trace, where it says more than the tasks' own intervals."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubblescope import Timeline
from bubblescope.model.kinds import Kind
from bubblescope.render.palette import UNKNOWN_GROUND
from bubblescope.render.traces import chrome, colours, perfetto
from bubblescope.render.traces.slices import ARGUMENTS
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate
from catapult import viewing
from full import examples
from synthetic import ORIGIN, hostile, one_f_one_b, staggered
from trace_processor import (
    AROUND,
    Row,
    chrome_arrows,
    expected,
    expected_arrows,
    expected_tracks,
    opened,
    painted,
    perfetto_ui,
    seen,
    seen_arrows,
    seen_tracks,
)

_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_OKLAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


@pytest.fixture
def catapult(browser):
    with viewing(browser) as show:
        yield show


def events(timeline: Timeline, path) -> list[dict]:
    return json.loads(chrome.write(timeline, path).read_text())["traceEvents"]


def test_steps_that_overlap_keep_their_true_extent(tmp_path):
    with opened(chrome.write(staggered(), tmp_path / "run.json")) as query:
        steps = "select name, ts, dur from slice where category = 'steps' order by ts"
        assert query(steps) == [("step 0", 0, 220), ("step 1", 150, 180)]
        assert query("select name from stats where severity = 'error' and value > 0") == []


def test_steps_of_one_rank_that_overlap_or_touch_keep_their_extent(tmp_path, catapult):
    spans = [(0, 0, 100), (1, 50, 150), (2, 100, 100), (3, 100, 200)]
    frame = pl.DataFrame(spans, schema=["step", "start_ns", "end_ns"], orient="row").with_columns(
        rank=0, kind=pl.lit("gc"), lane=pl.lit("host"), name=pl.lit("x")
    )
    path = chrome.write(Timeline(frame), tmp_path / "run.json")
    with opened(path) as query:
        found = query("select name, ts, dur from slice where category = 'steps' order by name")
    assert found == [(f"step {step}", start, end - start) for step, start, end in spans]
    shown = sorted(row for row, _ in catapult(path).slices if row.kind == "steps")
    assert sorted(row[2:5] for row in shown) == found


def test_every_complete_event_is_a_task(tmp_path):
    complete = [event for event in events(staggered(), tmp_path / "run.json") if event["ph"] == "X"]
    assert len(complete) == len(staggered())


def test_arguments_are_those_that_any_task_has(tmp_path):
    known = {"kind", "step", "microbatch", "peer", "host_start_ns", "name"}
    assert known < set(ARGUMENTS)
    for event in events(staggered(), tmp_path / "run.json"):
        if event["ph"] == "X":
            assert set(event["args"]) == known


def test_times_since_the_epoch_are_text_because_javascript_would_round_them(tmp_path):
    first = next(e for e in events(staggered(), tmp_path / "run.json") if e["ph"] == "X")
    assert first["args"]["host_start_ns"] == str(ORIGIN - 7)
    assert int(json.loads((tmp_path / "run.json").read_text())["otherData"]["start_ns"]) == ORIGIN


def test_an_arrow_leaves_and_arrives_within_its_slices(tmp_path):
    found = events(staggered(), tmp_path / "run.json")
    slices = [event for event in found if event["ph"] == "X"]
    for event in (event for event in found if event["ph"] in "sf"):
        assert [
            one["name"][:2]
            for one in slices
            if (one["pid"], one["tid"]) == (event["pid"], event["tid"])
            and one["ts"] <= event["ts"] < one["ts"] + one["dur"]
        ] == [{"s": "SF", "f": "RF"}[event["ph"]]]
    with opened(tmp_path / "run.json") as query:
        assert query("select count(*) from flow") == [(2,)]


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def distance(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """How different two colours look: in Oklab (https://bottosson.github.io/posts/oklab), 0 to 1."""

    def oklab(colour: tuple[int, ...]) -> np.ndarray:
        share = np.array(colour) / 255
        linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
        return _OKLAB @ np.cbrt(_LMS @ linear)

    return float(np.linalg.norm(oklab(one) - oklab(other)))


def crossed() -> Timeline:
    """Twelve ranks on three hosts, whose pipeline goes through the hosts in turns and backwards."""
    timeline = one_f_one_b(ranks=12, microbatches=3, steps=2)
    order = [11 - rank for rank in range(12)]
    return Timeline(
        timeline.tasks.with_columns(
            stage=pl.when(pl.col("stage").is_not_null()).then(11 - pl.col("stage"))
        ),
        timeline.ranks.with_columns(
            host=pl.format("host{}", pl.col("rank") % 3),
            stages=pl.Series([[stage] for stage in order], dtype=pl.List(pl.Int32)),
        ),
        timeline.run,
    )


def overlapped() -> Timeline:
    """DualPipeV, where a forward and a backward are one task, and chunks share a rank."""
    return simulate(generate("dualpipev", 4, 10), Costs(900, 1100, 700, comm_ns=90), steps=2)


def every_kind() -> Timeline:
    """One lane with a task of each kind, one after the other with a gap between them."""
    kinds = [kind.value for kind in Kind]
    start = pl.int_range(0, len(kinds)) * 1_000_000 + ORIGIN
    return Timeline(
        pl.DataFrame({"kind": kinds}).with_columns(
            rank=0, lane=pl.lit("compute"), name="kind", start_ns=start, end_ns=start + 900_000
        )
    )


@pytest.mark.browser
@pytest.mark.parametrize("make", [one_f_one_b, staggered, crossed, overlapped, every_kind])
def test_catapult_and_perfetto_show_the_same_row_by_row(tmp_path, catapult, make):
    """Both readers against the timeline, so that they also agree with each other."""
    timeline = make()
    rows, arrows = Counter(expected(timeline)), expected_arrows(timeline)
    shown = catapult(chrome.write(timeline, tmp_path / "run.json"))
    assert shown.warnings == []
    assert shown.tracks == expected_tracks(timeline)
    assert Counter(row for row, _ in shown.slices) == rows
    assert Counter(shown.arrows) == Counter(arrows)
    with opened(perfetto.write(timeline, tmp_path / "run.pftrace")) as query:
        assert seen_tracks(query) == expected_tracks(timeline)
        assert Counter(row for row, _ in seen(query)) == rows
        # This reader draws an arrow from the end that began first.
        assert Counter(map(frozenset, seen_arrows(query))) == Counter(map(frozenset, arrows))
        assert query("select name from stats where severity = 'error' and value > 0") == []
        drawn = {row.kind: colour for row, colour in seen(query)}
        assert len(set(seen(query))) == len({row for row, _ in seen(query)})  # one colour per kind
    palette = {kind.value: colour for kind, colour in UNKNOWN_GROUND.items()}
    for one, other in itertools.combinations(drawn, 2):
        alike = palette.get(one, one) == palette.get(other, other)
        assert (drawn[one] == drawn[other]) is alike, (one, other)


@pytest.mark.parametrize("make", [one_f_one_b, staggered, crossed, overlapped])
def test_perfetto_binds_both_ends_of_a_chrome_traces_arrows_to_the_slices_meant(tmp_path, make):
    timeline = make()
    with opened(chrome.write(timeline, tmp_path / "run.json")) as query:
        # This reader draws an arrow from the end that began first.
        found = Counter(map(frozenset, chrome_arrows(query)))
        assert found == Counter(map(frozenset, expected_arrows(timeline)))
        assert query("select name from stats where name like 'flow%' and value > 0") == []


@pytest.mark.parametrize("make", [one_f_one_b, crossed, overlapped])
def test_sort_indices_put_ranks_along_the_pipeline_and_lanes_below_each_other(tmp_path, make):
    """Perfetto's UI follows them from its version 53 on, as Catapult does."""
    timeline = make()
    named: dict[tuple[str, int, int], dict] = {}
    for event in events(timeline, tmp_path / "run.json"):
        if event["ph"] == "M":
            named[event["name"], event["pid"], event["tid"]] = event["args"]
    places = {}
    for (what, pid, tid), args in named.items():
        if what == "thread_name":
            process = named["process_sort_index", pid, 0]["sort_index"]
            thread = named["thread_sort_index", pid, tid]["sort_index"]
            assert (process, thread) not in places
            group = named["process_name", pid, 0]["name"]
            places[process, thread] = group, args["name"]
    assert [place for _, place in sorted(places.items())] == expected_tracks(timeline)


@pytest.mark.browser
def test_catapult_shows_what_a_timeline_by_hand_says(tmp_path, catapult):
    shown = catapult(chrome.write(staggered(), tmp_path / "run.json"))
    first, second = "rank 0 · unknown", "rank 1 · unknown"
    assert shown.tracks == [
        ("steps", "steps"),
        ("steps", "steps 2"),
        (first, "compute"),
        (first, "comm"),
        (second, "compute"),
        (second, "comm"),
        (second, "host"),
    ]
    assert sorted(row for row, _ in shown.slices) == [
        Row(first, "comm", "SF0 10 ns", 100, 10, "send_forward"),
        Row(first, "comm", "SF0 10 ns", 300, 10, "send_forward"),
        Row(first, "compute", "F0 100 ns", 0, 100, "forward"),
        Row(first, "compute", "F0 150 ns", 150, 150, "forward"),
        Row(second, "comm", "RF0 7 ns", 105, 7, "recv_forward"),
        Row(second, "comm", "RF0 82 ns", 230, 82, "recv_forward"),
        Row(second, "compute", "F0 108 ns", 112, 108, "forward"),
        Row(second, "compute", "F0 18 ns", 312, 18, "forward"),
        Row(second, "host", "GC 0 ns", 320, 0, "gc"),
        Row(second, "host", "GC 5 ns", 320, 5, "gc"),
        Row("steps", "steps", "step 0", 0, 220, "steps"),
        Row("steps", "steps 2", "step 1", 150, 180, "steps"),
    ]
    assert sorted((start.start_ns, end.start_ns) for start, end in shown.arrows) == [
        (100, 105),
        (300, 230),
    ]


@pytest.mark.browser
def test_colours_are_near_the_palettes_in_both_viewers(tmp_path, browser, catapult):
    timeline = every_kind()
    shown = catapult(chrome.write(timeline, tmp_path / "run.json"))
    in_catapult = {row.kind: colour for row, colour in shown.slices}
    with perfetto_ui(browser, perfetto.write(timeline, tmp_path / "run.pftrace")) as page:
        found = painted(page, len(Kind))
    in_perfetto = dict(zip((kind.value for kind in Kind), found, strict=True))
    for kind, colour in UNKNOWN_GROUND.items():
        # Perfetto's are all of one saturation, none is darker than 40 % or lighter than 79 %.
        grey = max(rgb(colour)) - min(rgb(colour)) < 100
        assert distance(rgb(colour), in_catapult[kind.value]) < 0.2, kind
        assert grey or distance(rgb(colour), in_perfetto[kind.value]) < 0.12, kind
    for shown in (in_catapult, in_perfetto):
        for one, other in itertools.combinations(Kind, 2):
            apart = distance(shown[one.value], shown[other.value])
            if UNKNOWN_GROUND[one] == UNKNOWN_GROUND[other]:
                assert apart == 0
            else:
                meant = distance(rgb(UNKNOWN_GROUND[one]), rgb(UNKNOWN_GROUND[other]))
                assert apart > min(0.06, meant / 3), (one, other)


@pytest.mark.browser
def test_colours_are_worked_out_as_the_viewers_do(tmp_path, browser, catapult):
    timeline = every_kind()
    page = catapult(chrome.write(timeline, tmp_path / "run.json")).page
    known = page.evaluate(
        "(names) => names.map((name) => {"
        " const color = tr.b.ColorScheme.colors[tr.b.ColorScheme.getColorIdForReservedName(name)];"
        " return [color.r, color.g, color.b]; })",
        list(colours._CATAPULT),
    )
    assert [tuple(one) for one in known] == list(colours._CATAPULT.values())
    ids = [colours.perfetto()[kind.value] for kind in Kind]
    worked_out = np.floor(colours.perfetto_colours() * 255)[[int(one.split()[1]) for one in ids]]
    with perfetto_ui(browser, perfetto.write(timeline, tmp_path / "run.pftrace")) as page:
        drawn = np.array(painted(page, len(Kind)))
    assert np.abs(drawn - worked_out).max() <= 1


@settings(max_examples=examples(60), deadline=None)
@given(
    palette=st.lists(
        st.tuples(*[st.integers(0, 255)] * 3), min_size=len(Kind), max_size=len(Kind), unique=True
    )
)
def test_any_palette_has_colours_that_differ_in_both_viewers(palette):
    wanted = dict(zip(Kind, ("#{:02x}{:02x}{:02x}".format(*one) for one in palette), strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(colours, "UNKNOWN_GROUND", wanted)
        for given_out in (colours.perfetto.__wrapped__(), colours.catapult.__wrapped__()):
            assert len(set(given_out.values())) == len(given_out) == len(Kind) + 4


def test_a_hostile_name_loses_no_slice(tmp_path):
    timeline = hostile()
    with opened(chrome.write(timeline, tmp_path / "run.json")) as query:
        assert query(f"select count(*) from slice where category not in {AROUND}") == [
            (len(timeline),)
        ]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("chrome") / "run.json"


@settings(max_examples=examples(30), deadline=None)
@given(
    start=st.integers(0, 30 * 24 * 3600 * 10**9),
    length=st.integers(0, 24 * 3600 * 10**9),
)
def test_times_are_exact_over_a_month(shared, start, length):
    frame = pl.DataFrame({"start_ns": [0, start], "end_ns": [1, start + length]}).with_columns(
        pl.col("start_ns", "end_ns") + ORIGIN,
        rank=0,
        kind=pl.lit("other"),
        lane=pl.lit("compute"),
        name=pl.lit("x"),
    )
    found = [
        (round(event["ts"] * 1000), round(event["dur"] * 1000))
        for event in events(Timeline(frame), shared)
        if event["ph"] == "X"
    ]
    assert sorted(found) == sorted([(0, 1), (start, length)])
