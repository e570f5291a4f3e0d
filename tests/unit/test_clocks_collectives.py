"""What collectives tell of clocks: against runs whose truth is known, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pytest

from bubblescope import Timeline
from bubblescope.clocks import align
from bubblescope.model.groups import Group, tabled
from bubblescope.model.provenance import Run
from bubblescope.model.timeline import TASK_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

US = 1_000
MS = 1_000_000
S = 1_000_000_000


class Made(NamedTuple):
    """Collectives as they were, in ns of true time: each steps x collectives x ranks."""

    start: np.ndarray
    end: np.ndarray

    @property
    def ranks(self) -> int:
        return self.start.shape[2]


def made(
    seed: int,
    *,
    ranks: int = 4,
    steps: int = 4,
    count: int = 20,
    apart_ns: float = 20 * US,
    chance: float = 0.3,
    work_ns: tuple[float, float] = (0.3 * MS, 3 * MS),
    late: int | None = None,
    length_ns: float = 40 * US,
    close: Sequence[int] = (),
) -> Made:
    """Play a run: each rank works, then all meet; what they work is alike in every step but for chance.

    Args:
        seed: Of chance.
        ranks: How many take part.
        steps: How many steps.
        count: How many collectives each has.
        apart_ns: How far apart the ends of one collective are at most.
        work_ns: The least and the most between two collectives.
        chance: By which share work is longer or shorter; 0 is lockstep.
        late: A rank that comes half a millisecond after all others.
        length_ns: How long a collective takes at least from when the last has come.
        close: Collectives that begin a microsecond after those before them have ended.
    """
    random = np.random.default_rng(seed)
    usual = np.full(count, 1 * MS) if chance == 0 else random.uniform(*work_ns, count)
    usual[list(close)] = US
    free = np.zeros(ranks)
    shape = (steps, count, ranks)
    start, end = np.zeros(shape), np.zeros(shape)
    for step, number in np.ndindex(steps, count):
        begun = free + usual[number] * (1 + chance * random.uniform(-1, 1, ranks))
        if late is not None:
            begun[late] = begun.max() + 500 * US
        free = begun.max() + length_ns + apart_ns * random.random(ranks)
        start[step, number], end[step, number] = begun, free
    return Made(start, end)


class Clocks(NamedTuple):
    """How clocks of ranks are off: what each shows of true time."""

    offset_ns: np.ndarray
    rate: np.ndarray

    def seen(self, true: np.ndarray) -> np.ndarray:
        return np.rint(true * self.rate + self.offset_ns).astype(np.int64)


def off(seed: int, ranks: int, skew_ns: float, ppm: float = 0) -> Clocks:
    random = np.random.default_rng(seed)
    rate = 1 + ppm * 1e-6 * random.uniform(-1, 1, ranks)
    return Clocks(random.uniform(-skew_ns, skew_ns, ranks), rate)


def recorded(
    run: Made,
    clocks: Clocks,
    keep: np.ndarray | None = None,
    host: str | None = None,
    **fields: Any,
) -> tuple[Timeline, pl.DataFrame]:
    """Return a run as its clocks saw it, and what the first one would have shown of the same.

    Args:
        run: As it was.
        clocks: Of its ranks.
        keep: Which starts and ends were recorded; all if it is left out.
        host: That all ranks state; one of its own each if it is left out.
        fields: What else the run says.
    """
    first = Clocks(clocks.offset_ns[:1], clocks.rate[:1])
    step, number, rank = (axis.ravel() for axis in np.indices(run.start.shape))
    kept = np.ones(len(rank), bool) if keep is None else keep.ravel()
    columns = {"rank": rank, "step": step, "number": number}
    for name, true in (("start_ns", run.start), ("end_ns", run.end)):
        columns |= {name: clocks.seen(true).ravel(), f"true_{name}": first.seen(true).ravel()}
    rows = pl.DataFrame({name: column[kept] for name, column in columns.items()}).with_columns(
        pl.col("rank", "step").cast(pl.Int32)
    )
    operations = rows.select(
        "rank",
        "step",
        "start_ns",
        "end_ns",
        operation=pl.lit("allreduce"),
        group=pl.lit("dp"),
        name=pl.lit("ncclDevKernel"),
        exposed_ns=pl.col("end_ns") - pl.col("start_ns"),
        hidden_ns=pl.lit(0),
        device=pl.lit(0, pl.Int32),
    )
    every = range(run.ranks)
    hosts = [f"node{rank}" if host is None else host for rank in every]
    ranks = pl.DataFrame({"rank": every, "host": hosts}, schema_overrides={"rank": pl.Int32})
    groups = tabled((Group("dp", tuple(every)),))
    none = pl.DataFrame(schema=TASK_SCHEMA)
    timeline = Timeline(none, ranks, Run(**fields), operations=operations, groups=groups)
    return timeline, rows


def off_by(timeline: Timeline, rows: pl.DataFrame) -> pl.DataFrame:
    """Return by how much times are off at most, and are said to be, by rank."""
    shown = timeline.operations.sort("rank", "start_ns")
    true = rows.sort("rank", "start_ns")
    most = pl.max_horizontal(
        (shown[name] - true[f"true_{name}"]).abs() for name in ("start_ns", "end_ns")
    )
    return (
        pl.DataFrame({"rank": shown["rank"], "off": pl.select(most).to_series()})
        .group_by("rank")
        .agg(pl.col("off").max())
        .join(timeline.ranks.select("rank", said="clock_error_ns"), on="rank")
        .sort("rank")
    )


def codes(timeline: Timeline) -> dict[str, str]:
    return {one.code: one.message for one in (*timeline.run.warnings, *timeline.run.notes)}


@pytest.mark.parametrize("late", [None, 1])
@pytest.mark.parametrize("ppm", [0, 20, 90])
@pytest.mark.parametrize("skew_ns", [0, 3 * MS, 5 * S])
def test_the_truth_is_within_what_is_said(skew_ns, ppm, late):
    for seed, mode in enumerate(("auto", "solve")):
        run = made(seed, late=late, steps=3 + 10 * seed)
        timeline, rows = recorded(run, off(seed, run.ranks, skew_ns, ppm))
        found = align(timeline, mode)
        shown = off_by(found, rows)
        assert shown["said"].null_count() == 0
        assert (shown["off"] <= shown["said"]).all()
        if found.run.clock.method == "solved":
            # Ends are no more than 20 us apart, and drift may be left open.
            assert shown["off"].max() <= 25 * US + 250e-6 * rows["end_ns"].max() * (ppm > 0)


@pytest.mark.parametrize("lost", [0.001, 0.02, 0.1])
def test_rows_that_are_missing_never_make_it_surer_than_it_is(lost):
    solved = 0
    for seed in range(8):
        run = made(seed, ranks=3)
        keep = np.random.default_rng(seed).random(run.start.shape) >= lost
        timeline, rows = recorded(run, off(seed, run.ranks, 5 * S, 20), keep)
        found = align(timeline)
        shown = off_by(found, rows).drop_nulls()
        assert (shown["off"] <= shown["said"]).all()
        solved += shown.height == run.ranks
    assert solved or lost > 0.01


def test_as_many_rows_missing_on_each_rank_do_not_shift_what_is_matched():
    """Between the two, each is taken for the next one, whose end is less than a millisecond away."""
    run = made(3, ranks=2, work_ns=(100 * US, 500 * US))
    keep = np.ones(run.start.shape, bool)
    keep[1, 4, 0] = keep[1, 7, 1] = False
    timeline, rows = recorded(run, off(3, 2, 5 * S), keep)
    shown = off_by(align(timeline), rows)
    assert shown["said"].null_count() == 0
    assert (shown["off"] <= shown["said"]).all()


@pytest.mark.parametrize("close", [(5,), (5, 6, 7, 8)])
def test_collectives_taken_for_those_right_beside_them_say_nothing(close):
    """Which are so near that their ends do not show it; but one begins after the other has ended."""
    for seed in range(10):
        run = made(seed, ranks=2, count=100, apart_ns=30 * US, length_ns=5 * US, close=close)
        keep = np.ones(run.start.shape, bool)
        keep[1, close[0] - 1, 0] = keep[1, close[-1], 1] = False
        timeline, rows = recorded(run, off(seed, 2, 5 * S), keep)
        shown = off_by(align(timeline), rows)
        assert shown["said"].null_count() == 0
        assert (shown["off"] <= shown["said"]).all()


CUTS = {
    "one began late": [(0, slice(0, 3), 0)],
    "one began late, one ended early": [(0, slice(0, 3), 0), (0, slice(-2, None), 1)],
    "as many on each": [(0, slice(0, 3), 0), (0, slice(-3, None), 1)],
    "half of them": [(0, slice(0, 20), 1)],
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_recordings_that_begin_and_end_apart_show_which_collectives_they_share(cut):
    for seed in range(4):
        run = made(seed, ranks=3, steps=1, count=40)
        keep = np.ones(run.start.shape, bool)
        for place in cut:
            keep[place] = False
        timeline, rows = recorded(run, off(seed, run.ranks, 5 * S, 20), keep)
        shown = off_by(align(timeline, "solve"), rows)
        assert shown["said"].null_count() == 0
        assert (shown["off"] <= shown["said"]).all()
        assert shown["said"].max() <= 70 * US


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("one", "other", "more"),
    [
        (slice(3, None), slice(None), {"chance": 0}),  # each could as well be the one before
        ([*range(10), *range(13, 40)], slice(None), {}),  # rows are missing between others
        (slice(24, None), slice(22), {"work_ns": (40 * US, 200 * US)}),  # none is shared
    ],
    ids=["lockstep", "missing", "none"],
)
def test_where_it_does_not_show_which_are_shared_that_is_said(one, other, more, seed):
    run = made(seed, ranks=2, steps=1, count=40, **more)
    kept = np.zeros(run.start.shape, bool)
    kept[:, one, 0] = kept[:, other, 1] = True
    timeline, _ = recorded(run, off(seed, 2, 5 * S), kept)
    found = align(timeline, "solve")
    assert found.ranks["clock_error_ns"].to_list() == [None, None]
    assert "which ones are the same does not show" in codes(found)["clocks-disconnected"]


@pytest.mark.parametrize(
    ("seed", "chance", "count", "lost"), [(131, 0.3, 34, (17, 15)), (193, 0.05, 36, (16, 16))]
)
def test_recordings_that_share_next_to_nothing_are_not_taken_to_share_more(
    seed, chance, count, lost
):
    """Of all ways to lay one over the other, one fits better than others by chance, if not by much."""
    run = made(seed, ranks=2, steps=1, count=count, work_ns=(30 * US, 120 * US), chance=chance)
    keep = np.ones(run.start.shape, bool)
    keep[:, : lost[0], 0] = keep[:, -lost[1] :, 1] = False
    timeline, _ = recorded(run, off(seed, 2, 5 * S, 20), keep)
    assert align(timeline, "solve").ranks["clock_error_ns"].to_list() == [None, None]


def test_lockstep_could_be_a_step_apart_and_is_left_alone():
    even = made(1, chance=0)
    timeline, _ = recorded(even, off(1, even.ranks, 5 * S))
    found = align(timeline)
    assert "clocks-disconnected" in codes(found)
    assert found.operations.equals(timeline.operations)
    assert set(found.ranks["clock_error_ns"]) == {None}


@pytest.mark.parametrize("by", [1, 2])
def test_ranks_that_number_steps_differently_are_not_matched_by_number(by):
    """Each step is nearly as the one before, so most of a step's ends fit those of another."""
    run = made(2, ranks=2, steps=6, chance=0.001)
    late = Made(run.start[by:].copy(), run.end[by:].copy())
    late.start[..., 0], late.end[..., 0] = run.start[:-by, :, 0], run.end[:-by, :, 0]
    timeline, _ = recorded(late, off(2, 2, 0))
    assert align(timeline).ranks["clock_error_ns"].to_list() == [None, None]
    right, rows = recorded(run, off(2, 2, 5 * S))
    shown = off_by(align(right), rows)
    assert (shown["off"] <= shown["said"]).all()


def test_hosts_that_are_not_known_are_one_until_collectives_contradict():
    run = made(4)
    one, _ = recorded(run, off(4, run.ranks, 0), host="unknown")
    assert align(one, "auto").ranks.equals(one.ranks)
    several, rows = recorded(run, off(4, run.ranks, 5 * S), host="unknown")
    found = align(several, "auto")
    shown = off_by(found, rows)
    assert (shown["off"] <= shown["said"]).all()
    assert shown["off"].max() <= 25 * US
    assert "the clocks of 4 of 4 ranks were aligned" in codes(found)["clocks-aligned"]


def test_the_same_steps_seconds_apart_are_not_by_one_clock():
    even = made(1, chance=0)
    timeline, _ = recorded(even, off(1, even.ranks, 5 * S), host="unknown")
    found = align(timeline, "auto")
    assert not found.run.common_clock
    assert "ranks ran the same steps" in codes(found)["clocks-apart"]
    near, _ = recorded(even, off(1, even.ranks, 0), host="unknown")
    assert align(near, "auto").run.common_clock


def test_ranks_that_state_one_host_are_on_its_clock():
    run = made(4)
    timeline, _ = recorded(run, off(4, run.ranks, 0), host="node")
    assert align(timeline, "auto") is not None
    assert align(timeline, "auto").run.clock is None


def test_a_clock_that_ran_fast_leaves_no_length_that_does_not_fit():
    run = made(5, ranks=2, steps=40)
    fast = Clocks(np.zeros(2), np.array([1, 1 + 90e-6]))
    found = align(recorded(run, fast)[0])
    assert found.run.clock.drift_ppm["node1"] == pytest.approx(-90, abs=20)
