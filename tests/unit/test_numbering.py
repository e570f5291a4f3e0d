"""Steps, micro-batches and stages that the trace does not state."""

from __future__ import annotations

import polars as pl
import pytest

from bubblescope.sources import numbering
from bubblescope.sources.structure.missing_stages import missing_stages

MARKERS = {
    "rank": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "step": pl.Int64,
}
NO_MARKERS = pl.DataFrame(schema=MARKERS)


def issue(*orders: str, numbered: bool = True, chunk: int | None = 0) -> pl.DataFrame:
    """Tasks of one rank per argument, issued in the order written: "F0 F1 B0 B1 opt"."""
    kinds = {"F": "forward", "B": "backward", "W": "backward_weight", "o": "optimizer"}
    kinds |= {"r": "recv_forward", "s": "send_forward", "x": "other", "R": "recompute"}
    rows = [
        {
            "rank": rank,
            "kind": kinds[word[0]],
            "microbatch": int(word[1:]) if numbered and word[1:].isdecimal() else None,
            "name": word if numbered else word[0],
            "host_start_ns": 10 * index,
            "host_end_ns": 10 * index + 5,
        }
        for rank, order in enumerate(orders)
        for index, word in enumerate(order.split())
    ]
    return pl.DataFrame(
        rows,
        schema_overrides={"rank": pl.Int32, "microbatch": pl.Int64},
        infer_schema_length=None,
    ).with_columns(
        step=pl.lit(None, pl.Int64),
        chunk=pl.lit(chunk, pl.Int64),
        stage=pl.lit(None, pl.Int64),
        lane=pl.when(pl.col("kind").str.contains("_f"))
        .then(pl.lit("comm"))
        .otherwise(pl.lit("compute")),
        start_ns=pl.col("host_start_ns"),
        end_ns=pl.col("host_end_ns"),
    )


def steps(
    tasks: pl.DataFrame, markers: pl.DataFrame = NO_MARKERS
) -> tuple[list[list[int]], str | None]:
    """Steps of each rank's tasks in host order."""
    found, how = numbering.number_steps(tasks, markers)
    found = found.sort("rank", "host_start_ns")
    return [
        group["step"].to_list() for _, group in found.group_by("rank", maintain_order=True)
    ], how


def test_a_step_ends_with_its_optimizer_and_receives_after_it_are_of_the_next():
    tasks = issue("r0 F0 s0 B0 o r0 F0 s0 B0 o", "r0 F0 B0 o o r0 F0 B0 o o")
    found, how = steps(tasks)
    assert found == [[0] * 5 + [1] * 5, [0] * 5 + [1] * 5]
    assert how == "a step ends with its optimizer"


def test_an_optimizer_on_some_ranks_only_does_not_delimit_steps():
    found, how = steps(issue("F0 F1 B0 B1 o F0 F1 B0 B1 o", "F0 B0 F1 B1 F0 B0 F1 B1"))
    assert found == [[0] * 5 + [1] * 5, [0] * 4 + [1] * 4]
    assert how == "a step begins where forward micro-batch numbers start over"


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [([0, 1, 1, 0] * 2, [0] * 4 + [1] * 4), ([None] * 8, [0] * 4 + [1] * 4)],
)
def test_the_lowest_chunk_tells_where_a_step_begins(chunks, expected):
    """Where chunks are not numbered, there is one."""
    order = "F0 F0 B0 B0 F0 F0 B0 B0" if chunks[0] == 0 else "F0 F1 B0 B1 F0 F1 B0 B1"
    tasks = issue(order).with_columns(chunk=pl.Series(chunks, dtype=pl.Int64))
    found, how = steps(tasks)
    assert found == [expected]
    assert how == "a step begins where forward micro-batch numbers start over"


def test_numbers_that_start_over_while_backwards_are_owed_delimit_nothing():
    found, _ = steps(issue("F0 F0 F0 B0 F0 B0 B0 B0"))
    assert found == [[0] * 8]


def test_a_capture_that_begins_in_the_middle_of_a_step_has_a_partial_step_0():
    found, _ = steps(issue("F3 B2 B3 F0 F1 B0", "B3 F0 B0 F1 B1 F0"))
    assert found[0] == [0, 0, 0, 1, 1, 1]


def test_bare_names_are_cut_where_the_deepest_rank_is_in_balance():
    tasks = issue(
        "F F F B F B B B F F F B F B B B", "F B F B F B F B F B F B F B F B", numbered=False
    )
    found, how = steps(tasks)
    assert found == [[0] * 8 + [1] * 8] * 2
    assert how == "a step ends where a rank has run as many backwards as forwards"


def test_a_rank_that_is_in_balance_after_unlike_numbers_of_forwards_tells_no_boundary():
    """Rank 0 is in balance after three forwards and after five: it knows of no micro-batches a step."""
    tasks = issue("F F F B B B F F B B", "F B F B F B F B F B", numbered=False)
    found, how = steps(tasks)
    assert found == [[0] * 10] * 2
    assert "taken as one" in how


def test_forwards_of_an_evaluation_do_not_count_where_a_rank_is_in_balance():
    """Two steps of three micro-batches, and an evaluation of six: no three steps of four."""
    found, how = steps(issue("F F F B B B F F F B B B F F F F F F", numbered=False))
    assert found == [[0] * 6 + [1] * 6 + [2] * 3 + [3] * 3]
    assert how == "a step ends where a rank has run as many backwards as forwards"


def test_training_that_goes_on_after_an_evaluation_cannot_be_counted_off():
    found, how = steps(issue("F F B B F F B B F F F F F F F B B F F B B", numbered=False))
    assert found == [[0] * 21]
    assert "taken as one" in how


def test_with_no_sign_of_a_boundary_all_is_one_step_and_said_so():
    found, how = steps(issue("F0 F1 F2"))
    assert found == [[0] * 3]
    assert how is not None
    assert "taken as one" in how


def test_markers_name_the_steps_and_what_precedes_them_is_of_none():
    tasks = issue("B7 r0 F0 B0 o r0 F0 B0 o")
    markers = pl.DataFrame(
        {"rank": [0, 0], "start_ns": [8, 48], "end_ns": [36, 76], "step": [41, 42]}, schema=MARKERS
    )
    found, how = steps(tasks, markers)
    assert found == [[None, 41, 41, 41, 41, 42, 42, 42, 42]]
    assert how is None


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        pytest.param("F0 B0 F0 B0 F F F", [0, 0, 1, 1, None, None, None], id="markers enclose"),
        pytest.param("F0 B0 B0 F0 B0 B0 B0", [0, 0, 0, 1, 1, 1, 1], id="a step goes on"),
    ],
)
def test_what_follows_the_last_marker_is_of_its_step_if_other_steps_go_on_after_theirs(
    order, expected
):
    begin = 10 * order.split().index("F0", 1)
    markers = pl.DataFrame(
        {"rank": [0, 0], "start_ns": [0, begin], "end_ns": [18, begin + 18], "step": [0, 1]},
        schema=MARKERS,
    )
    assert steps(issue(order), markers)[0] == [expected]


def test_a_range_around_several_steps_is_of_none_of_them():
    """As one around an epoch."""
    tasks = issue("F0 B0 x F0 B0 F0 B0")
    begins = [0, 30, 50]
    markers = pl.DataFrame(
        {"rank": 0, "start_ns": begins, "end_ns": [28, 48, 68], "step": [4, 5, 6]}, schema=MARKERS
    )
    assert steps(tasks, markers)[0] == [[4, 4, 4, 5, 5, 6, 6]]

    def until(end_ns):
        of_range = pl.col("kind") == "other"
        end = pl.when(of_range).then(end_ns).otherwise("host_end_ns")
        return steps(tasks.with_columns(host_end_ns=end), markers)[0]

    assert until(49) == [[4, 4, 4, 5, 5, 6, 6]]
    assert until(51) == [[4, 4, None, 5, 5, 6, 6]]


def test_overlapping_markers_change_at_the_first_task_after_the_earlier_one():
    tasks = issue("F0 B0 o F0 B0 o")
    markers = pl.DataFrame(
        {"rank": [0, 0], "start_ns": [0, 12], "end_ns": [18, 60], "step": [0, 1]}, schema=MARKERS
    )
    assert steps(tasks, markers)[0] == [[0, 0, 0, 1, 1, 1]]


def test_what_follows_a_steps_last_pass_within_its_marker_is_of_it_and_receives_after_it_of_the_next():
    tasks = issue("F0 B0 s0 r0 F0 B0 s0")
    markers = pl.DataFrame(
        {"rank": [0, 0], "start_ns": [0, 35], "end_ns": [26, 70], "step": [0, 1]}, schema=MARKERS
    )
    assert steps(tasks, markers)[0] == [[0, 0, 0, 1, 1, 1, 1]]


def test_what_lies_in_two_markers_is_of_the_earlier_one():
    tasks = issue("F0 B0 F1 B1 F2 B2")
    markers = pl.DataFrame(
        {"rank": [0, 0], "start_ns": [0, 12], "end_ns": [25, 60], "step": [0, 1]}, schema=MARKERS
    )
    assert steps(tasks, markers)[0] == [[0, 0, 0, 1, 1, 1]]


def test_work_that_is_no_pass_makes_up_steps_where_there_are_no_passes():
    """Rank 1 has passes, so other work of its does not begin its steps."""
    tasks = issue("x x x x", "x F0 x F0")
    markers = pl.DataFrame(
        {"rank": [0, 0, 1, 1], "start_ns": [8, 18, 8, 28], "end_ns": [15, 35, 25, 45]},
        schema={name: MARKERS[name] for name in ("rank", "start_ns", "end_ns")},
    ).with_columns(step=pl.Series([3, 4, 3, 4]))
    assert steps(tasks, markers)[0] == [[None, 3, 4, 4], [None, 3, 3, 4]]


def test_ranks_without_markers_are_numbered_along_with_those_that_have_them():
    tasks = issue("F0 B0 o F0 B0 o", "F0 B0 o F0 B0 o")
    markers = pl.DataFrame(
        {"rank": [0, 0], "start_ns": [0, 28], "end_ns": [18, 60], "step": [41, 42]}, schema=MARKERS
    )
    found, how = steps(tasks, markers)
    assert found == [[41, 41, 41, 42, 42, 42]] * 2
    assert how == "on ranks without step markers, a step ends with its optimizer"


def test_markers_without_numbers_are_counted():
    markers = pl.DataFrame(
        {"rank": [0, 0], "start_ns": [0, 20], "end_ns": [15, 35], "step": [None, None]},
        schema=MARKERS,
    )
    assert steps(issue("F0 B0 F0 B0"), markers)[0] == [[0, 0, 1, 1]]


def test_stated_steps_are_kept():
    tasks = issue("F0 B0").with_columns(step=pl.lit(9, pl.Int64))
    assert steps(tasks) == ([[9, 9]], None)


def test_a_plain_b_is_the_input_gradient_where_the_rank_also_computes_w():
    tasks = issue("F0 B0 W0", "F0 B0").with_columns(splits=pl.col("kind") == "backward")
    found = numbering.split_backward(tasks)
    assert found["kind"].to_list() == [
        "forward",
        "backward_input",
        "backward_weight",
        "forward",
        "backward",
    ]


def test_bare_names_are_numbered_in_order_within_their_step():
    tasks = issue("F F B B F F B B", numbered=False).with_columns(
        step=pl.Series([0, 0, 0, 0, 1, 1, 1, 1])
    )
    found, how, notices = numbering.number_microbatches(tasks)
    assert found.sort("host_start_ns")["microbatch"].to_list() == [0, 1, 0, 1, 0, 1, 0, 1]
    assert how == "order of tasks within the step"
    assert notices == []


@pytest.mark.parametrize("end", [50, 60])
def test_what_is_recomputed_within_a_backward_is_of_its_micro_batch(end):
    tasks = issue("F F B B R", numbered=False).with_columns(
        step=pl.lit(0),
        host_start_ns=pl.Series([0, 10, 20, 40, 42]),
        host_end_ns=pl.Series([5, 15, 35, 60, end]),
    )
    found, _, _ = numbering.number_microbatches(tasks)
    assert found.sort("host_start_ns")["microbatch"].to_list() == [0, 1, 0, 1, 1]
    before = tasks.with_columns(host_end_ns=pl.Series([5, 15, 35, 41, end]))
    found, _, _ = numbering.number_microbatches(
        before
    )  # nor is it within, nor the second of its kind
    assert found.sort("host_start_ns")["microbatch"].to_list() == [0, 1, 0, 1, 0]


def test_names_repeated_within_a_step_are_not_believed():
    tasks = issue("F0 F0 B0 B0").with_columns(step=pl.lit(0, pl.Int64))
    found, how, [notice] = numbering.number_microbatches(tasks)
    assert found["microbatch"].to_list() == found["chunk"].to_list() == [None] * 4
    assert how is None
    assert (notice.code, notice.lost, notice.total) == ("repeated-names", 4, 4)


def test_a_flush_of_all_weight_gradients_stays_without_a_micro_batch():
    tasks = issue("F0 B0 W", numbered=True).with_columns(step=pl.lit(0, pl.Int64))
    found, how, _ = numbering.number_microbatches(tasks)
    assert found["microbatch"].to_list() == [0, 0, None]
    assert how is None


@pytest.mark.parametrize(
    ("placement", "stages"),
    [
        ([(0, 0), (1, 0), (2, 0)], [0, 1, 2]),
        ([(0, 0), (1, 0), (0, 1), (1, 1)], [0, 1, 2, 3]),  # round robin
        ([(0, 0), (1, 0), (1, 1), (0, 1)], [0, 1, 2, 3]),  # V
        ([(2, None), (0, None), (1, None)], [0, 1, 2]),
    ],
)
def test_stages_follow_micro_batch_0_through_the_ranks(placement, stages):
    tasks = pl.DataFrame(
        [
            {"rank": rank, "chunk": chunk, "start_ns": 100 * place, "end_ns": 100 * place + 90}
            for place, (rank, chunk) in enumerate(placement)
        ],
        schema_overrides={"chunk": pl.Int64},
    ).with_columns(
        kind=pl.lit("forward"), microbatch=pl.lit(0), step=pl.lit(0), stage=pl.lit(None, pl.Int32)
    )
    found, how = numbering.number_stages(tasks)
    assert found.sort("start_ns")["stage"].to_list() == stages
    assert how == "order in which micro-batch 0 passed through the ranks"


def passing(*steps: list[tuple[int, int]]) -> pl.DataFrame:
    """Forwards of micro-batch 0 in several steps: rank and chunk of each, one after another."""
    return pl.DataFrame(
        [
            {"step": step, "rank": rank, "chunk": chunk, "start_ns": 1000 * step + 10 * place}
            for step, way in enumerate(steps)
            for place, (rank, chunk) in enumerate(way)
        ]
    ).with_columns(
        kind=pl.lit("forward"),
        microbatch=pl.lit(0),
        stage=pl.lit(None, pl.Int32),
        end_ns=pl.col("start_ns") + 10,
    )


@pytest.mark.parametrize("whole", [0, 1, 2])
def test_stages_are_told_by_the_step_that_is_there_most_complete(whole):
    way = [(1, 0), (0, 0), (2, 0)]
    ways = [way if step == whole else way[1:] for step in range(3)]
    found, _ = numbering.number_stages(passing(*ways))
    assert dict(found.select("rank", "stage").rows()) == {1: 0, 0: 1, 2: 2}


def test_of_steps_that_are_as_complete_the_first_tells_the_stages():
    found, _ = numbering.number_stages(passing([(1, 0), (0, 0)], [(0, 0), (1, 0)]))
    assert dict(found.select("rank", "stage").rows()) == {1: 0, 0: 1}


def test_a_micro_batch_that_comes_by_twice_leaves_stages_unknown():
    found, how = numbering.number_stages(passing([(0, 0), (1, 0), (1, 0)], [(2, 0)]))
    assert (found["stage"].null_count(), how) == (found.height, None)


def staged(*places: tuple[int, int, int | None], chunk: int | None = None) -> pl.DataFrame:
    """Number tasks whose rank, stage and stage of the pair are stated, and the first one's chunk."""
    tasks = issue(*["x"] * len(places)).with_columns(
        rank=pl.Series([place[0] for place in places], dtype=pl.Int32),
        stage=pl.Series([place[1] for place in places]),
        pair_stage=pl.Series([place[2] for place in places], dtype=pl.Int64),
        chunk=pl.Series([chunk] + [None] * (len(places) - 1), dtype=pl.Int64),
        splits=pl.lit(value=False),
        pair_chunk=pl.lit(None, pl.Int16),
    )
    found, _, _ = numbering.number(tasks, NO_MARKERS)
    return found.select("rank", "stage", "chunk", "pair_chunk").sort("rank", "stage")


def test_chunks_of_a_rank_are_its_stages_in_ascending_order():
    found = staged((0, 0, None), (1, 1, None), (1, 2, 1), (0, 3, 0), (2, 4, None))
    assert found.rows() == [
        (0, 0, 0, None),
        (0, 3, 1, 0),
        (1, 1, 0, None),
        (1, 2, 1, 0),
        (2, 4, None, None),  # holds one stage only
    ]


def test_chunks_that_are_stated_are_left_as_they_are():
    found = staged((0, 0, None), (0, 3, 0), chunk=7)
    assert found["chunk"].to_list() == [7, None]


def test_replicas_side_by_side_leave_stages_unknown():
    tasks = issue("F0 B0", "F0 B0").with_columns(step=pl.lit(0, pl.Int64))
    found, how = numbering.number_stages(tasks)
    assert found["stage"].null_count() == 4
    assert how is None


@pytest.mark.parametrize("placement", [[0, 1, 2, 3], [2, 0, 3, 1]])
@pytest.mark.parametrize("skews", [[0, 0, 0, 0], [0, -(10**9), 10**9, 5]])
def test_without_a_common_clock_a_micro_batchs_way_back_tells_the_stages(placement, skews):
    way = [("forward", rank) for rank in placement] + [("backward", r) for r in placement[::-1]]
    tasks = pl.DataFrame(
        [
            {
                "rank": rank,
                "kind": kind,
                "start_ns": 100 * place + skews[rank],
                "end_ns": 100 * place + 90 + skews[rank],
            }
            for place, (kind, rank) in enumerate(way)
        ]
    ).with_columns(
        chunk=pl.lit(None, pl.Int64),
        microbatch=pl.lit(0),
        step=pl.lit(None, pl.Int64),
        stage=pl.lit(None, pl.Int32),
    )
    found, how = numbering.number_stages(tasks, common_clock=False)
    assert dict(found.select("rank", "stage").rows()) == {
        rank: stage for stage, rank in enumerate(placement)
    }
    assert how == "time until micro-batch 0 came back to each rank"


@pytest.mark.parametrize(("turned", "back"), [(4, 6), (52, 54)])
def test_a_micro_batch_that_is_away_for_less_than_another_rank_has_it_was_not_there(turned, back):
    """Two replicas: rank 0 is without it for 10 ns, rank 1 has it for 60."""
    tasks = issue("F0 B0", "F0 B0").with_columns(
        step=pl.lit(0, pl.Int64),
        start_ns=pl.Series([0, 20, 0, back]),
        end_ns=pl.Series([10, 120, turned, 60]),
    )
    found, how = numbering.number_stages(tasks, common_clock=False)
    assert (found["stage"].null_count(), how) == (4, None)


@pytest.mark.parametrize(
    "orders", [("F0 B0", "F0 B0"), ("F0 F1 B0 B1", "F0 F1 B0 B1"), ("F0", "F0")]
)
def test_replicas_without_a_common_clock_leave_stages_unknown(orders):
    tasks = issue(*orders).with_columns(step=pl.lit(0, pl.Int64))
    found, how = numbering.number_stages(tasks, common_clock=False)
    assert found["stage"].null_count() == found.height
    assert how is None


def test_a_rank_holds_the_stages_that_its_tasks_are_of_and_without_tasks_it_is_kept():
    ranks = pl.DataFrame({"rank": [0, 1, 2], "stages": [[9], None, None]})
    tasks = pl.DataFrame({"rank": [0, 0, 0, 1], "stage": [3, 0, 3, None]})
    found = numbering.with_stages(ranks, tasks.cast({"stage": pl.Int32}))
    assert found.sort("rank")["stages"].to_list() == [[0, 3], [], None]


def exchanging(*stages: int, peer: int | None = None, busy_ns: int | None = 5) -> pl.DataFrame:
    """Return tasks of some stages of a pipeline of four: a forward and its transfers."""
    rows = []
    for rank, stage in enumerate(stages):
        rows.append((rank, "forward", stage, None, 100))
        for kind, has in (
            ("recv_forward", stage > 0),
            ("send_forward", stage < 3),
            ("recv_backward", stage < 3),
            ("send_backward", stage > 0),
        ):
            rows += [(rank, kind, None, peer, busy_ns)] * has
    names = ["rank", "kind", "stage", "peer", "busy_ns"]
    return pl.DataFrame(rows, schema=names, orient="row", schema_overrides={"peer": pl.Int32})


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([0, 1, 2, 3], []),
        ([0, 1, 2], ["the last stage that is here (rank 2) exchanges results with one after it"]),
        ([1, 2, 3], ["the first stage that is here (rank 0) exchanges results with one before it"]),
        ([1, 2], ["the first stage", "the last stage"]),
        ([1, 1], []),  # which one it is may be unknown
    ],
)
def test_stages_without_a_trace_are_told_by_what_passes_to_them(stages, said):
    found = [notice.message for notice in missing_stages(exchanging(*stages))]
    assert len(found) == len(said)
    assert all(message.startswith(begin) for message, begin in zip(found, said, strict=True))


def test_transfers_to_ranks_that_are_here_or_that_no_device_made_tell_of_no_other():
    assert missing_stages(exchanging(1, 2, peer=1)) == []
    assert missing_stages(exchanging(1, 2, peer=7)) != []
    assert missing_stages(exchanging(1, 2, busy_ns=None)) == []
