"""The lanes in a terminal show true shares of time, whatever its colours and its width."""

from __future__ import annotations

import io
import itertools

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.segment import Segment

from bubblescope import Timeline
from bubblescope.analysis.overview import Overview
from bubblescope.analysis.view import View
from bubblescope.cli import cli
from bubblescope.model.kinds import Kind
from bubblescope.model.provenance import Run
from bubblescope.model.timeline import KIND_DTYPE
from bubblescope.render.html.summary import summary
from bubblescope.render.palette import UNKNOWN_GROUND
from bubblescope.render.picture.sampling import IDLE, apportioned
from bubblescope.render.text.lanes import LANES, LETTERS, Lanes
from bubblescope.render.text.plain_console import PlainConsole
from bubblescope.render.text.report import Report
from synthetic import empty, one_f_one_b

NAMES = {"F": "forward", "B": "backward", "O": "optimizer"}
KIND_OF = {
    tuple(bytes.fromhex(colour[1:])): kind.value
    for kind, colour in reversed(UNKNOWN_GROUND.items())
}


def lanes(timeline: Timeline, **how: int) -> Lanes:
    found = Lanes.of(timeline, **how)
    assert found is not None
    return found


def printed(shown: object, width: int = 100, **how: object) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, **{"color_system": None, **how}).print(shown)  # type: ignore[arg-type]
    return out.getvalue().splitlines()


def segments(timeline: Timeline, width: int) -> list[list[Segment]]:
    console = Console(
        file=io.StringIO(), width=width, color_system="truecolor", force_terminal=True
    )
    return list(Segment.split_lines(console.render(lanes(timeline))))


def halves(line: list[Segment]) -> list[str | None]:
    """Return what each half of each character of a lane shows, None for idle."""

    def kind(colour: object) -> str | None:
        return colour and KIND_OF[tuple(colour.get_truecolor())]  # type: ignore[attr-defined]

    shown: list[str | None] = []
    for segment in line[1:]:
        style = segment.style
        for character in segment.text:
            front, back = style and kind(style.color), style and kind(style.bgcolor)
            shown += {"█": [front, front], "▌": [front, back], "▐": [None, front], "·": [None] * 2}[
                character
            ]
    return shown


def shares(timeline: Timeline, rank: int, start_ns: int, end_ns: int) -> dict[str, float]:
    """Return what share of a span of time a rank spends on each kind."""
    inside = pl.min_horizontal("end_ns", end_ns) - pl.max_horizontal("start_ns", start_ns)
    return dict(
        timeline.tasks.filter(pl.col("lane") == "compute", rank=rank)
        .group_by(pl.col("kind").cast(pl.String))
        .agg(inside.clip(0).sum() / (end_ns - start_ns))
        .iter_rows()
    )


@pytest.mark.parametrize("width", [50, 80, 117, 200])
@pytest.mark.parametrize("microbatches", [3, 8, 60, 700])
def test_shares_of_characters_are_shares_of_time(width, microbatches):
    """Also of letters, and also where there are far more tasks than characters."""
    timeline = one_f_one_b(ranks=4, microbatches=microbatches, steps=1)
    start_ns, end_ns = timeline.tasks.filter(pl.col("lane") == "compute").select(
        pl.col("start_ns").min(), pl.col("end_ns").max()
    )
    span = (start_ns.item(), end_ns.item())
    coloured = segments(timeline, width)
    plain = printed(lanes(timeline), width)
    for rank in range(4):
        true = shares(timeline, rank, *span)
        edges = 2 * timeline.tasks.filter(pl.col("lane") == "compute", rank=rank).height
        cells = halves(coloured[rank])
        letters = [NAMES.get(letter) for letter in plain[rank].rsplit(" ", 1)[1]]
        for shown in (cells, letters):
            # Half a sample at each edge of a task, but where they are crowded they even out.
            allowed = min(edges / 2, 2 if edges > len(shown) else 8) / len(shown)
            for kind, share in true.items():
                assert shown.count(kind) / len(shown) == pytest.approx(share, abs=allowed)
        assert len(cells) == 2 * len(letters)


def test_where_pipeline_and_characters_have_one_beat_shares_are_right_all_along():
    """As many forwards as half-characters: at regular moments, a lane would show these only."""
    timeline = one_f_one_b(ranks=1, microbatches=160, steps=1, comm=False)
    frame = timeline.tasks.filter(pl.col("kind") != "optimizer")
    [line] = lanes(Timeline(frame)).sampled(160).values()
    forward = KIND_DTYPE.categories.to_list().index("forward")
    for part in line.reshape(-1, 16):
        assert (part == forward).mean() == pytest.approx(1 / 3, abs=0.07)


@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 30), st.integers(0, 2)), max_size=12),
    st.integers(1, 40),
)
def test_apportioned_kinds_run_in_their_parts_of_the_time(tasks, count):
    frame = pl.DataFrame(
        {
            "start_ns": [start for start, _, _ in tasks],
            "end_ns": [start + length for start, length, _ in tasks],
            "kind": [kind for _, _, kind in tasks],
        },
        schema={"start_ns": pl.Int64, "end_ns": pl.Int64, "kind": pl.Int64},
    )
    chosen = apportioned(frame, 0, 100, count)
    assert len(chosen) == count
    for part, kind in enumerate(chosen.tolist()):
        left, right = 100 * part / count, 100 * (part + 1) / count
        inside = [(s, s + n, k) for s, n, k in tasks if s < right and s + n > left and n]
        if kind != IDLE:
            assert kind in {k for _, _, k in inside}
        else:  # some of it is idle
            covered, reached = 0.0, left
            for start, end, _ in sorted(inside):
                covered += max(0, min(end, right) - max(start, reached))
                reached = max(reached, min(end, right))
            assert covered < right - left


def test_tasks_that_overlap_take_turns():
    frame = pl.DataFrame(
        {"kind": ["forward", "backward"], "start_ns": [0, 0], "end_ns": [100, 100]}
    ).with_columns(rank=0, lane=pl.lit("compute"), name=pl.lit("x"))
    [line] = lanes(Timeline(frame)).sampled(20).values()
    assert np.bincount(line).tolist()[:2] == [10, 10]
    crowded = apportioned(frame.with_columns(kind=pl.Series([0, 1])), 0, 100, 20)
    assert np.bincount(crowded).tolist() == [10, 10]


@pytest.mark.parametrize("width", [24, 40, 80, 200])
@pytest.mark.parametrize("system", [None, "standard", "256", "truecolor"])
def test_no_line_is_wider_than_the_console(width, system):
    timeline = one_f_one_b(ranks=20, microbatches=4)
    ranks = timeline.ranks.with_columns(stages=pl.Series([list(range(9))] * 20))
    shown = lanes(Timeline(timeline.tasks, ranks))
    console = Console(width=width, color_system=system, force_terminal=True, file=io.StringIO())
    for line in Segment.split_lines(console.render(shown)):
        assert sum(segment.cell_length for segment in line) <= width


@pytest.mark.parametrize("width", [60, 80, 160])
def test_stages_are_never_cut_before_their_lane(width):
    timeline = one_f_one_b(ranks=4, microbatches=4)
    held = [[0], [1, 6], [2, 5, 10], list(range(3, 99, 4))]
    ranks = timeline.ranks.with_columns(stages=pl.Series(held))
    shown = printed(lanes(Timeline(timeline.tasks, ranks)), width)
    for stages in ("stage 0", "stage 1, 6", "stage 2, 5, 10", "stage 3, 7 … 95"):
        assert any(f"· {stages} " in line for line in shown)


def test_letters_stand_for_kinds_where_colours_are_off(monkeypatch):
    timeline = one_f_one_b(ranks=2, microbatches=2, steps=1)
    plain = printed(lanes(timeline), 40)
    assert plain[:2] == [
        "rank 0 · stage 0 FFFFF·····BBBBB··BBBBBO",
        "rank 1 · stage 1 ··FFFBBBBBFFBBBBB·····O",
    ]
    assert " ".join(plain[3:]).split() == [
        *("F", "forward", "B", "backward", "O", "optimizer", "·", "idle")
    ]
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    out = io.StringIO()
    Console(file=out, width=40, force_terminal=True, color_system="auto").print(lanes(timeline))
    assert "█" not in out.getvalue()
    assert "FFF" in out.getvalue()


def test_letters_of_kinds_that_compute_are_all_different():
    compute = ["F", "B", "B", "W", "X", "R", "O"]
    assert [LETTERS[kind] for kind in list(Kind)[:7]] == compute
    assert all(len(letter) == 1 for letter in LETTERS.values())


def test_a_terminal_without_unicode_gets_none():
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    timeline = one_f_one_b(ranks=3, microbatches=4, steps=1, forward_ns=1003, backward_ns=2001)
    Console(file=out, width=60).print(lanes(timeline))
    out.flush()
    shown = out.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert "F forward" in shown
    assert ". idle" in shown


def test_the_step_is_one_of_median_length_on_all_ranks():
    parts = []
    for step, length in enumerate((300, 100, 500, 200, 400)):
        parts += [(rank, step, 1000 * step, 1000 * step + length) for rank in range(2)]
    parts.append((0, 9, 9000, 9001))  # on one rank only
    frame = pl.DataFrame(parts, schema=["rank", "step", "start_ns", "end_ns"], orient="row")
    tasks = frame.with_columns(kind=pl.lit("forward"), lane=pl.lit("compute"), name=pl.lit("x"))
    found = lanes(Timeline(tasks))
    assert found.said == "step 0, of median length · 300 ns"
    assert (found.start_ns, found.end_ns) == (0, 300)
    assert lanes(Timeline(tasks.with_columns(step=None))).said == "9.001 µs"


def of_steps(*rows: tuple[int, int, int, str]) -> Timeline:
    """Return tasks of one rank: step, start, end and lane of each."""
    frame = pl.DataFrame(rows, schema=["step", "start_ns", "end_ns", "lane"], orient="row")
    kind = (
        pl.when(pl.col("lane") == "comm").then(pl.lit("recv_forward")).otherwise(pl.lit("forward"))
    )
    return Timeline(frame.with_columns(kind=kind, rank=0, name=pl.lit("x")))


def test_a_receive_ahead_of_all_else_is_no_beginning_and_the_page_begins_there_too():
    run = of_steps(
        *((1, 0, 100, "comm"), (1, 90, 200, "compute"), (1, 200, 230, "comm")),
        *((2, 100, 310, "comm"), (2, 300, 400, "compute")),
        *((3, 400, 500, "compute"),),
    )
    found = lanes(run)
    assert found.said == "step 3, of median length · 100 ns"
    steps = summary(View.of(run), Overview.of(run), run.ranks.with_row_index("position"), 0)
    assert [(one.start, one.end) for one in steps["steps"]] == [(90, 230), (300, 400), (400, 500)]
    assert steps["steps"][steps["opening"]].step == 3
    assert lanes(of_steps((1, 0, 100, "comm"), (2, 100, 200, "compute"))).start_ns == 100


def test_what_other_steps_run_meanwhile_is_not_shown_as_idle():
    frame = pl.DataFrame(
        {"rank": [0, 1, 1], "step": [0, 0, 1], "start_ns": [0, 0, 50], "end_ns": [100, 50, 250]}
    )
    tasks = frame.with_columns(kind=pl.lit("forward"), lane=pl.lit("compute"), name=pl.lit("x"))
    for line in lanes(Timeline(tasks)).sampled(30).values():
        assert IDLE not in line


def test_at_most_sixteen_ranks_evenly_chosen_or_all():
    timeline = one_f_one_b(ranks=64, microbatches=2, steps=1, comm=False)
    few, every = lanes(timeline), lanes(timeline, most=1000)
    assert len(few.titles) == LANES == 16
    chosen = list(few.titles)
    assert (chosen[0], chosen[-1]) == (0, 63)
    assert {b - a for a, b in itertools.pairwise(chosen)} == {4, 5}
    assert few.said.endswith("16 of 64 ranks, evenly chosen")
    assert list(every.titles) == list(range(64))
    assert "evenly" not in every.said
    assert "64 ranks, evenly" in " ".join(printed(Report.of(timeline)))
    assert len(printed(Report.of(timeline).shown(everything=True))) > 64 * 2


def test_ranks_follow_the_pipeline_and_not_their_numbers():
    timeline = one_f_one_b(ranks=4, steps=1)
    turned = pl.Series([[3], [2], [1], [0]])
    swapped = Timeline(
        timeline.tasks.with_columns(rank=3 - pl.col("rank")),
        timeline.ranks.with_columns(stages=turned),
    )
    assert list(lanes(swapped).titles) == [3, 2, 1, 0]


def test_ranks_without_a_common_clock_each_begin_at_their_own_first_task():
    timeline = one_f_one_b(ranks=2, microbatches=4)
    torn = Timeline(
        timeline.tasks.with_columns(pl.col("start_ns", "end_ns") + pl.col("rank") * 10**12),
        timeline.ranks,
        Run(common_clock=False),
    )
    found = lanes(torn)
    assert found.said.endswith("each rank from its first task, for they share no clock")
    for line in found.sampled(100).values():
        assert line[0] != IDLE


def test_the_axis_has_round_numbers_where_they_lie():
    frame = pl.DataFrame({"start_ns": [0], "end_ns": [100_000_000]})
    tasks = frame.with_columns(
        rank=0, kind=pl.lit("forward"), lane=pl.lit("compute"), name=pl.lit("x")
    )
    _, axis, _ = printed(lanes(Timeline(tasks)), 7 + 100)
    for at in (0, 20, 40, 60, 80):
        assert axis[7 + at :].startswith(f"╵{at} ms")


def test_a_report_has_the_lanes_below_its_headline_and_json_has_none(tmp_path):
    timeline = one_f_one_b(steps=1)
    said = str(Report.of(timeline))
    assert said.index("4 ranks") < said.index("Timeline  step 0") < said.index("Bubble rate")
    path = timeline.save(tmp_path / "run.parquet")
    done = CliRunner().invoke(cli, ["report", "--json", str(path)])
    assert done.exit_code == 0
    assert "FFF" not in done.output


def test_without_compute_tasks_there_are_no_lanes():
    assert Lanes.of(empty()) is None
    timeline = one_f_one_b(steps=1)
    only = Timeline(timeline.tasks.filter(pl.col("lane") == "comm"), timeline.ranks)
    assert Lanes.of(only) is None
    assert "Timeline" not in str(Report.of(only))


def test_text_that_reads_like_markup_or_an_emoji_is_shown_as_it_is():
    out = io.StringIO()
    PlainConsole(file=out).print("[bold]aten::mm[/bold] :key: 7")
    assert out.getvalue() == "[bold]aten::mm[/bold] :key: 7\n"


def test_ranges_that_are_no_passes_are_shown_without_rates_that_nobody_can_know():
    timeline = one_f_one_b()
    other = pl.lit(Kind.OTHER.value, KIND_DTYPE).alias("kind")
    ranges = Timeline(timeline.tasks.with_columns(other), timeline.ranks, timeline.run)
    said = "\n".join(printed(Report.of(ranges)))
    assert "Timeline" in said
    assert "Tasks" in said
    assert said.count("No forward or backward takes any time in these traces") == 1
    for without in ("Bubble rate", "Schedule", "Ranks", "Steps"):
        assert without not in said
        assert without in "\n".join(printed(Report.of(timeline)))


@pytest.mark.parametrize(("stages", "shown"), [(1, False), (2, True)])
def test_rates_of_waiting_are_of_several_devices(stages, shown):
    said = "\n".join(printed(Report.of(one_f_one_b(stages))))
    assert "over ideal" in said
    for rate in ("longest span", "no wait", "excess"):
        assert (rate in said) is shown
