"""Replay: everything as early as it can be, and deadlocks named."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubblescope.model.errors import ScheduleError
from bubblescope.model.kinds import Kind
from bubblescope.schedules import generate, levels
from bubblescope.schedules.parts import Parts
from bubblescope.schedules.plan import Operation, Plan, linear
from bubblescope.schedules.replay import MESSAGES, Edges, Graph, data_edges, edges_of

F, B = Kind.FORWARD, Kind.BACKWARD


def edges(*pairs: tuple[int, int]) -> Edges:
    source, target = np.array(pairs, np.int64).reshape(-1, 2).T
    return Edges(source, target)


def naive(count, pairs, lengths, delays, ready):
    """Start everything at nought and push it back until nothing has to move."""
    start = list(ready)
    for _ in range(count + 1):
        for (one, other), delay in zip(pairs, delays, strict=True):
            start[other] = max(start[other], start[one] + lengths[one] + delay)
    return start


@given(st.data(), st.integers(1, 12))
def test_operations_start_when_the_last_of_what_they_need_arrives(data, count):
    """Any graph without cycles, however many edges an operation has, doubled ones too."""
    possible = [(a, b) for a in range(count) for b in range(a + 1, count)]
    pairs = data.draw(st.lists(st.sampled_from(possible), max_size=30)) if possible else []
    shuffled = data.draw(st.permutations(range(count)))  # numbers need not be in order
    pairs = [(shuffled[a], shuffled[b]) for a, b in pairs]
    times = st.integers(0, 50)
    lengths = data.draw(st.lists(times, min_size=count, max_size=count))
    ready = data.draw(st.lists(times, min_size=count, max_size=count))
    late = st.integers(data.draw(st.sampled_from([-60, 0])), data.draw(st.sampled_from([0, 60])))
    delays = data.draw(st.lists(late, min_size=len(pairs), max_size=len(pairs)))
    times = np.array(lengths), np.array(delays, np.int64), np.array(ready)
    expected = naive(count, pairs, lengths, delays, ready)
    start, end = Graph(count, edges(*pairs)).run(*times)
    assert start.tolist() == expected
    assert (end - start).tolist() == lengths
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels, "_LARGE", 0)
        patch.setattr(levels, "_WIDE", 0)
        by_depth = levels.Levels.of(count, *edges(*pairs))
    ends = by_depth.ends(times[0], by_depth.delays(times[1]), times[2])
    assert (ends - times[0]).tolist() == expected


@pytest.mark.parametrize(("p", "m", "copies", "wide"), [(4, 1200, 1, False), (4, 8, 70, True)])
def test_large_graphs_are_replayed_by_depth_where_they_are_wide(p, m, copies, wide):
    """One long pipeline is narrow, many short ones beside each other are wide."""
    plan = generate("1f1b", p, m)
    source, target = edges_of(plan)[0]
    offset = len(plan) * np.arange(copies)[:, None]
    both = Edges((source + offset).ravel(), (target + offset).ravel())
    assert (levels.Levels.of(copies * len(plan), *both) is not None) == wide
    lengths = np.random.default_rng(0).integers(0, 100, (copies, len(plan)))
    start, _ = Graph(copies * len(plan), both).run(lengths.ravel())
    alone = Graph(len(plan), edges_of(plan)[0])
    assert start.tolist() == [at for row in lengths for at in alone.run(row)[0].tolist()]


def test_of_two_threads_one_replays_after_the_other():
    """Else each waits for the other in every small operation."""
    plan, copies = generate("1f1b", devices=4, microbatches=64), 16
    source, target = edges_of(plan)[0]
    shift = np.repeat(np.arange(copies) * len(plan), len(source))
    graph = Graph(
        copies * len(plan), Edges(np.tile(source, copies) + shift, np.tile(target, copies) + shift)
    )
    lengths = np.arange(graph.count)
    alone = graph.run(lengths)
    found = []
    thread = threading.Thread(target=lambda: found.append(graph.run(lengths)))
    with levels._alone:
        thread.start()
        thread.join(0.2)
        assert not found
    thread.join(10)
    assert all((one == other).all() for one, other in zip(alone, found[0], strict=True))


@given(st.integers(1, 6), st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(0, 99))
def test_a_graph_in_parts_is_replayed_as_one(p, sizes, seed):
    """Each part is a pipeline; the edges of all are mixed."""
    random = np.random.default_rng(seed)
    plans = [generate("1f1b", p, m + 1) for m in sizes]
    bounds = np.cumsum([0, *map(len, plans)])
    pieces = [edges_of(plan)[0] for plan in plans]
    source, target = (
        np.concatenate([piece[end] + low for piece, low in zip(pieces, bounds, strict=False)])
        for end in (0, 1)
    )
    mixed = random.permutation(len(source))
    both = Edges(source[mixed], target[mixed])
    lengths, ready = random.integers(0, 100, (2, bounds[-1]))
    delay = random.integers(-5, 20, len(source))
    parts = Parts(both, bounds)
    whole = Graph(int(bounds[-1]), both).run(lengths, delay, ready)
    assert np.array_equal(parts.ends(lengths, parts.delays(delay), ready), whole[1])
    for index, rows in enumerate(parts.operations):
        own = parts.own[index]
        alone = parts.alone(index)
        ends = alone.ends(lengths[rows], alone.delays(delay[own]), ready[rows])
        assert np.array_equal(ends, whole[1][rows])


def test_a_part_that_is_like_a_graph_keeps_its_edges_once():
    both = edges((0, 1), (1, 2))
    graph = Graph(3, edges((0, 1), (1, 2)))
    parts = Parts(both, np.array([0, 3]), [graph])
    assert parts.graphs == [graph]
    assert parts.edges is graph.edges


def test_a_circle_in_a_large_graph_is_named():
    copies = np.arange(6000)
    ring = Edges(np.append(copies, 6000), np.append(copies + 6000, 6000))
    with pytest.raises(ScheduleError, match="deadlock: 6000, which waits for 6000"):
        Graph(12000, ring)


@given(
    st.integers(0, 40), st.integers(1, 5), st.integers(1, 6), st.integers(0, 1000), st.booleans()
)
def test_many_replays_at_once_are_as_many_replays(replays, p, m, seed, wide):
    """One by one and by depth, whichever is faster, and one operation of all at a time."""
    plan = generate("zb-h1", p, m)
    lengths = np.random.default_rng(seed).integers(0, 100, (replays, len(plan)))
    waits = edges_of(plan)[0]
    graph = Graph(len(plan), waits)
    runs = [graph.run(row) for row in lengths]
    with pytest.MonkeyPatch.context() as patch:
        if wide:
            patch.setattr(levels, "_LARGE", 0)
            patch.setattr(levels, "_WIDE", 0)
        start, end = Graph(len(plan), waits).run_many(lengths)
    assert start.shape == end.shape == lengths.shape
    assert start.tolist() == [one[0].tolist() for one in runs]
    assert end.tolist() == [one[1].tolist() for one in runs]
    swept = {}

    def finish(operation, begin):
        assert operation not in swept
        swept[operation] = begin + lengths[:, operation]
        return swept[operation]

    graph.sweep(finish)
    assert [swept[operation].tolist() for operation in range(len(plan))] == end.T.tolist()


def test_a_sweep_keeps_no_end_for_which_nothing_waits_any_more():
    """Else the ends of all replays of a long run would be in memory at once."""
    kept = []

    def finish(_operation, begin):
        end = np.zeros(3) + begin
        assert sum(one() is not None for one in kept) <= 2
        kept.append(weakref.ref(end))
        return end

    Graph(50, edges(*[(one, one + 1) for one in range(49)])).sweep(finish)
    assert len(kept) == 50


def test_what_a_plan_waits_for():
    plan = generate("zb-h1", 2, 1)  # device 0: F I W; device 1: F I W
    waits, data = edges_of(plan)
    assert list(zip(waits.source.tolist(), waits.target.tolist(), strict=True)) == [
        (0, 1),
        (1, 2),
        (3, 4),
        (4, 5),
        (0, 3),  # the forward goes up
        (4, 1),  # its gradient comes down
    ]
    assert [MESSAGES[message] for message in data.message] == [
        Kind.SEND_FORWARD,
        Kind.SEND_BACKWARD,
    ]
    assert data.stage.tolist() == [0, 1]
    everything = data_edges(plan)
    # The turn at the last stage and two weight gradients, too, each where it was made.
    columns = (everything.source, everything.target, everything.stage, everything.message)
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == [
        (0, 3, 0, 0),
        (1, 2, 0, 2),
        (3, 4, 1, 2),
        (4, 1, 1, 1),
        (4, 5, 1, 2),
    ]
    assert set(everything.microbatch) == {0}


def test_what_the_first_operation_of_all_waits_for():
    """Device 0 holds the last stage."""
    orders = [[Operation(F, stage, 0), Operation(B, stage, 0)] for stage in (1, 0)]
    _, data = edges_of(Plan.of("turned", ((1,), (0,)), orders))
    assert list(zip(data.source.tolist(), data.target.tolist(), strict=True)) == [(2, 0), (1, 3)]


def test_a_deadlock_names_the_circle():
    """Device 0 wants a gradient before it has sent what the gradient is of."""
    plan = Plan.of(
        "mine",
        linear(2),
        [
            [Operation(F, 0, 0), Operation(B, 0, 0), Operation(F, 0, 1), Operation(B, 0, 1)],
            [Operation(F, 1, 0), Operation(F, 1, 1), Operation(B, 1, 0), Operation(B, 1, 1)],
        ],
    )
    with pytest.raises(ScheduleError) as caught:
        Graph(len(plan), edges_of(plan)[0], lambda index: str(plan.operation(index)))
    circle = str(caught.value).removeprefix("deadlock: ").split(", which waits for ")
    assert circle[0] == circle[-1]
    assert set(circle) == {"B0.0", "F1.0", "F1.1", "B0.1"}


@given(st.integers(2, 30))
def test_every_operation_of_a_circle_is_in_it(count):
    ring = [(index, (index + 1) % count) for index in range(count)]
    with pytest.raises(ScheduleError) as caught:
        Graph(count + 2, edges(*ring, (0, count), (count, count + 1)))
    circle = str(caught.value).removeprefix("deadlock: ").split(", which waits for ")
    assert sorted(circle[:-1], key=int) == [str(index) for index in range(count)]


def test_nothing_takes_no_time():
    start, end = Graph(0, edges()).run(np.zeros(0, np.int64))
    assert len(start) == len(end) == 0


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 4), st.integers(0, 1000), st.booleans())
def test_a_sweep_by_depth_is_as_many_replays_with_delays_and_late_starts(p, m, runs, seed, late):
    plan = generate("zb-h1", p, m)
    random = np.random.default_rng(seed)
    edges, _ = edges_of(plan)
    lengths = random.integers(0, 100, (len(plan), runs))
    delay = random.integers(0, 30, len(edges.source)) * random.integers(0, 2)
    ready = random.integers(0, 200, (p, runs)) * late
    graph = Graph(len(plan), edges)
    by_depth = graph.by_depth(1 << 30)

    def taken(low, high, room):
        return lengths[by_depth.order[low:high]]

    delays = by_depth.delays(delay)
    ends = by_depth.sweep(taken, runs, delays, (plan.first[:-1], ready))
    for run in range(runs):
        first = np.zeros(len(plan), np.int64)
        first[plan.first[:-1]] = ready[:, run]
        _, end = graph.run(lengths[:, run], delay, first)
        assert ends[by_depth.place, run].tolist() == end.tolist()
