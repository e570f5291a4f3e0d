"""Passes that nothing names: told by autograd's graphs, numbered by the order of these."""

from __future__ import annotations

import random

import msgspec
import polars as pl
import pytest

from bubblescope.analysis.predictions import Predictions
from bubblescope.analysis.schedule.recognise import recognise
from bubblescope.analysis.standard_questions import Questions
from bubblescope.analysis.verdict import Verdict
from bubblescope.model.errors import NamesError, TimelineError
from bubblescope.model.timeline import Timeline
from bubblescope.names.parser import NameParser
from bubblescope.render.html.packing import arranged, task_columns
from bubblescope.render.text.report import Report
from bubblescope.render.text.why import Explanation
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate
from bubblescope.sources import numbering
from bubblescope.sources.capture import LAUNCHES, RANGES, WORK, Capture
from bubblescope.sources.phase_evidence import (
    BACKWARD,
    CAST,
    COMPUTE,
    FRAMES,
    NODE,
    NONE,
    OPERATORS,
    PRODUCT,
    RECEIVE,
    SEND,
    Part,
)
from bubblescope.sources.structure.autograd import passes
from bubblescope.sources.structure.chunks import number_by_graphs
from bubblescope.sources.structure.common_steps import (
    of_one_job,
    with_common_steps,
    without_messages,
)
from bubblescope.sources.structure.inferred_names_file import corrected, names_file
from bubblescope.sources.structure.peers import stages_of_peers
from bubblescope.sources.structure.stage_credibility import with_believable_stages
from bubblescope.sources.structure.turn_order import number_by_plans
from bubblescope.sources.structure.unmarked import tell_pipeline

MAIN, ENGINE = 1, 2
NOTHING = pl.DataFrame(schema={"start_ns": pl.Int64, "end_ns": pl.Int64})
SPLIT = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}


class Process:
    """What PyTorch records of a process: an operator a microsecond, four layers a forward."""

    LAYERS = 4

    def __init__(self, engine=ENGINE):
        self.engine, self.clock, self.number = engine, 0, 100
        self.rows, self.truth, self.graphs = [], [], {}

    def operator(self, thread, role, number=NONE, length=900):
        self.rows.append((thread, self.clock, self.clock + length, role, number))
        self.clock += 1000

    def visit(self, number):
        """The engine's call, the node in it, and a product in that."""
        start = self.clock
        self.rows.append((self.engine, start, start + 900, BACKWARD, number))
        self.rows.append((self.engine, start + 50, start + 850, NODE, number))
        self.rows.append((self.engine, start + 100, start + 800, PRODUCT, NONE))
        self.clock += 1000

    def note(self, kind, graph, begin):
        self.truth.append((kind, self.graphs[graph][-1], begin, self.clock - 100))

    def F(self, graph):  # noqa: N802  as the papers call it
        begin, numbers = self.clock, []
        for _ in range(self.LAYERS):
            self.operator(MAIN, PRODUCT, self.number)
            numbers.append(self.number)
            self.number += 1
        self.graphs[graph] = numbers
        self.note("forward", graph, begin)

    def B(self, graph, kind="backward"):  # noqa: N802
        begin = self.clock
        for number in reversed(self.graphs[graph]):
            self.visit(number)
        self.note(kind, graph, begin)

    def I(self, graph):  # noqa: N802, E743
        self.B(graph, "backward_input")

    def W(self, graph):  # noqa: N802
        """Torch computes the gradients of the weights from the first layer on, a call for each."""
        begin = self.clock
        for number in self.graphs[graph]:
            self.visit(number)
        self.note("backward_weight", graph, begin)

    def move(self, role=SEND):
        self.operator(MAIN, role, self.number)

    def run(self, order, *, moves=True):
        """Run "F0 F1 B0 ..." and return what was found of it, as `truth` has it."""
        for one in order.split():
            if moves:
                self.move(RECEIVE)
            getattr(self, one[0])(one[1:])
            if moves:
                self.move()
        return self.found()

    def found(self, lost=()):
        kept = [row for index, row in enumerate(self.rows) if index not in set(lost)]
        operators = pl.DataFrame(kept, schema=OPERATORS, orient="row")
        told = passes(operators, NOTHING)
        return told.select("kind", "graph", "start_ns", "end_ns").rows()


@pytest.mark.parametrize("engine", [MAIN, ENGINE])
@pytest.mark.parametrize(
    "order",
    [
        "F0 B0 F1 B1 F2 B2",
        "F0 F1 F2 B0 B1 B2",
        "F0 F1 F2 B2 B1 B0",
        "F0 F1 B0 F2 B1 B2",
        "F0 F1 I0 F2 I1 W0 I2 W1 W2",
        "Fa0 Fa1 Fb0 Fb1 Bb0 Ba0 Bb1 Ba1",
    ],
)
def test_every_pass_is_told_and_paired(order, engine):
    """Whether backwards run in the caller's thread, as on a CPU, or in one of their own."""
    process = Process(engine)
    assert process.run(order) == process.truth


def test_forwards_in_a_row_are_parted_by_their_backwards_alone():
    """A rank that hands on to itself moves nothing between them."""
    process = Process()
    assert process.run("F0 F1 B0 B1 F2 F3 B2 B3", moves=False) == process.truth


def test_a_backward_handed_on_to_the_rank_itself_is_parted_where_the_engine_had_run_before():
    process = Process()
    process.run("F0")
    process.F("1")
    process.run("B1")
    process.F("2")
    process.B("2")
    process.B("0")
    assert process.found() == process.truth


def test_what_is_computed_anew_is_part_of_the_backward():
    """Checkpoints record new operators within the engine's call, and go back through those in it."""
    process = Process(MAIN)
    process.run("F0 F1 B0")
    begin = process.clock
    first, *others = reversed(process.graphs["1"])
    process.rows.append((MAIN, begin, begin + 8_900, BACKWARD, first))
    for step in range(4):
        at = begin + 100 + step * 1000
        process.rows.append((MAIN, at, at + 900, PRODUCT, process.number + step))
    for step in range(4):
        at = begin + 4_100 + step * 1000
        process.rows.append((MAIN, at, at + 900, BACKWARD, process.number + 3 - step))
    process.number += 4
    process.clock += 9_000
    for number in others:
        process.visit(number)
    process.note("backward", "1", begin)
    assert process.found() == process.truth


def test_weights_that_are_cast_once_are_visited_by_every_backward():
    """Autocast keeps what it cast in the first forward for those after it."""
    process = Process()
    casts = list(range(process.number, process.number + 2))
    for number in casts:
        process.operator(MAIN, CAST, number)
    process.number += 2
    for graph in "012":
        process.move(RECEIVE)
        process.F(graph)
        process.move()
        process.move(RECEIVE)
        begin = process.clock
        for number in [*reversed(process.graphs[graph]), *reversed(casts)]:
            process.visit(number)
        process.note("backward", graph, begin)
        process.move()
    found = process.found()
    assert [one[:2] for one in found] == [one[:2] for one in process.truth]
    assert found[1:] == process.truth[1:]


def test_transfers_within_a_forward_do_not_part_it():
    """Context parallelism passes keys and values around a ring in the midst of attention."""
    process = Process()
    process.move(RECEIVE)
    begin, numbers = process.clock, []
    for _ in range(4):
        process.operator(MAIN, PRODUCT, process.number)
        process.operator(MAIN, SEND, process.number + 1)
        process.operator(MAIN, RECEIVE, process.number + 1)
        numbers.append(process.number)
        process.number += 1
    process.graphs["0"] = numbers
    process.truth.append(("forward", numbers[-1], begin, process.clock - 2100))
    process.move()
    process.B("0")
    assert process.found() == process.truth


def test_a_forward_whose_backward_was_not_recorded_is_told_by_the_others():
    process = Process()
    process.run("F0 B0 F1 B1 F2")
    process.operator(MAIN, COMPUTE, process.number)  # recorded, and no forward
    process.number += 1
    assert process.found() == process.truth


@pytest.mark.parametrize("seed", range(5))
def test_a_few_lost_operators_change_no_pass(seed):
    process = Process()
    process.run("F0 F1 B0 F2 B1 F3 B2 B3")
    # The first and the last of a pass are its edges, and the node in a call stands for the call.
    calls = [i for i, row in enumerate(process.rows) if row[3] == BACKWARD]
    lost = random.Random(seed).sample(calls, 6)
    found = process.found(lost)
    assert [one[:2] for one in found] == [one[:2] for one in process.truth]


def test_without_numbers_turns_between_transfers_are_passes():
    process = Process()
    process.run("F0 F1 B0 F2 B1 B2")
    process.rows = [(*row[:4], NONE) for row in process.rows]
    assert [(kind, graph, start, end) for kind, graph, start, end in process.found()] == [
        (kind, None, start, end) for kind, _, start, end in process.truth
    ]


def test_an_engine_that_ran_nothing_tells_nothing():
    process = Process()
    assert process.run("F0 F1") == []


def ran(name, devices, microbatches, steps=1):
    return simulate(
        generate(name, devices, microbatches), Costs(1000, 1100, 900, comm_ns=30), steps=steps
    )


def stripped(timeline):
    """Return the tasks of a simulated run as a trace without names leaves them, and the truth."""
    letters = list(SPLIT)
    tasks = timeline.tasks.filter(pl.col("kind").is_in(letters)).sort("rank", "start_ns")
    known = ["rank", "step", "chunk", "microbatch"]
    graphs = tasks.select(known).unique(maintain_order=True).with_row_index("graph")
    truth = tasks.join(graphs, on=known, nulls_equal=True).sort("rank", "start_ns")
    first = pl.col("stage") == 0
    last = pl.col("stage") == pl.col("stage").max()
    forward = pl.col("kind") == "forward"
    weight = pl.col("kind") == "backward_weight"
    silent = (forward & first) | (~forward & last) | weight
    tasks = truth.with_columns(
        host_start_ns="start_ns",
        host_end_ns="end_ns",
        graph=pl.col("graph").cast(pl.Int64),
        received=pl.when(silent).then(0).otherwise(1).cast(pl.Int64),
        certainty=pl.lit(0.99, pl.Float32),
        microbatch=pl.lit(None, pl.Int32),
        chunk=pl.lit(None, pl.Int16),
        stage=pl.lit(None, pl.Int32),
        name=pl.lit("?"),
    )
    return tasks, truth.with_columns(chunk=pl.col("chunk").fill_null(0))


CASES = [
    (name, devices, microbatches)
    for name in (
        "1f1b",
        "gpipe",
        "zb-h1",
        "zb-h2",
        "interleaved-1f1b",
        "looped-bfs",
        "zb-v",
        "v-half",
    )
    for devices, microbatches in ((2, 4), (3, 6), (4, 8), (4, 16))
]


@pytest.mark.parametrize(("name", "devices", "microbatches"), CASES)
def test_chunks_and_micro_batches_follow_from_the_order_alone(name, devices, microbatches):
    run = ran(name, devices, microbatches)
    tasks, truth = stripped(run)
    found, how = number_by_graphs(tasks, numbering.NO_MARKERS)
    assert how is not None
    assert f"{truth.height} of {truth.height} passes certain" in how
    both = found.with_columns(pl.col("chunk").fill_null(0)).sort("rank", "start_ns")
    columns = ["rank", "kind", "microbatch", "chunk", "start_ns"]
    assert both.select(columns).rows() == truth.select(columns).rows()


def test_where_the_order_contradicts_itself_nothing_is_numbered():
    """Micro-batches that overtake each other in one chunk are no pipeline's."""
    tasks, truth = stripped(ran("interleaved-1f1b", 2, 4))
    backward = (pl.col("kind") == "backward") & (pl.col("rank") == 0) & (truth["chunk"] == 1)
    first, second = tasks.filter(backward)["graph"][:2]
    swapped = pl.col("graph").replace({first: second, second: first})
    mixed = tasks.with_columns(graph=pl.when(backward).then(swapped).otherwise("graph"))
    found, _ = number_by_graphs(mixed, numbering.NO_MARKERS)
    assert found.filter(rank=0)["microbatch"].null_count() > 0
    assert found.filter(rank=1)["microbatch"].null_count() == 0


def test_a_step_that_was_cut_off_is_numbered_like_a_whole_one():
    run = ran("1f1b", 2, 4, steps=3)
    tasks, truth = stripped(run)
    middle = int(truth.filter(step=2)["start_ns"].mean())
    kept = tasks.filter(pl.col("end_ns") <= middle)
    found, how = number_by_graphs(kept, numbering.NO_MARKERS)
    true = truth.filter(pl.col("end_ns") <= middle).sort("rank", "start_ns")
    assert found.sort("rank", "start_ns")["microbatch"].to_list() == true["microbatch"].to_list()
    cut = found.filter(step=2)
    assert 0 < cut["certainty"].max() < found.filter(step=0)["certainty"].min()
    assert f"{kept.height - cut.height} of {kept.height}" in how


def placed(name):
    """Return tasks as `stripped`, with the true stages put back."""
    tasks, truth = stripped(ran(name, 4, 8))
    return tasks.with_columns(stage=truth["stage"], microbatch=truth["microbatch"])


def test_stages_that_agree_with_the_clock_are_believed():
    for name in ("1f1b", "interleaved-1f1b", "zb-h1"):
        tasks = placed(name)
        believed, why = with_believable_stages(tasks)
        assert why is None
        assert believed["stage"].to_list() == tasks["stage"].to_list()


@pytest.mark.parametrize(
    ("gone", "why"),
    [(0, "first stage"), (3, "last stage"), (1, "in between"), (2, "in between")],
)
def test_without_the_trace_of_a_rank_no_stage_is_said(gone, why):
    tasks = placed("1f1b")
    left = tasks.filter(pl.col("rank") != gone).with_columns(pl.col("stage").rank("dense") - 1)
    believed, reason = with_believable_stages(left)
    assert believed["stage"].null_count() == left.height
    assert why in reason


def test_without_the_rank_at_the_turn_of_a_v_no_stage_is_said():
    tasks, truth = stripped(ran("zb-v", 4, 8))
    forward = pl.col("kind") == "forward"
    stage = truth["stage"]
    # The rank at the turn hands on to itself: stages 3 and 4 of 8.
    silent = (forward & stage.is_in([0, 4])) | (~forward & stage.is_in([7, 3]))
    weight = pl.col("kind") == "backward_weight"
    received = pl.when(silent | weight).then(0).otherwise(1).cast(pl.Int64)
    whole = tasks.with_columns(stage=stage, microbatch=truth["microbatch"], received=received)
    assert with_believable_stages(whole)[1] is None
    left = whole.filter(pl.col("rank") != 3).with_columns(pl.col("stage").rank("dense") - 1)
    believed, why = with_believable_stages(left)
    assert believed["stage"].null_count() == left.height
    assert "turn of a V" in why


def test_stages_in_the_wrong_order_are_not_believed():
    tasks = placed("1f1b").with_columns(stage=3 - pl.col("stage"))
    believed, reason = with_believable_stages(tasks)
    assert believed["stage"].null_count() == tasks.height
    assert "back in time" in reason


def test_where_ranks_never_run_a_step_at_once_it_is_not_stages_that_are_wrong():
    """A rank whose clock is off: ranks are not compared (`sources.step_agreement`), but keep stages."""
    tasks = placed("1f1b")
    span = int(tasks["end_ns"].max() - tasks["start_ns"].min())
    off = pl.when(rank=3).then(2 * span).otherwise(0)
    shifted = tasks.with_columns(pl.col("start_ns", "end_ns") + off)
    believed, reason = with_believable_stages(shifted)
    assert reason is None
    assert believed["stage"].to_list() == tasks["stage"].to_list()


def test_without_stages_it_is_not_said_which_task_waited_for_which():
    left = placed("1f1b").filter(pl.col("rank") != 1)
    _, how = with_believable_stages(left)
    whole = ran("1f1b", 4, 8, steps=3)
    run = whole.with_run(msgspec.structs.replace(whole.run, inferred={"stage": how}))
    with pytest.raises(
        TimelineError, match=r"stages the ranks run is unknown \(the traces of ranks in"
    ):
        Explanation.of(run)
    with pytest.raises(TimelineError, match="which task waited for which"):
        Predictions.of(run)
    found = Report.of(run)
    assert found.ledger is None
    assert found.to_dict()["why"] is None
    assert found.wall is not None
    assert not Questions(run, found.study).possible
    assert Verdict.of(run, found.study).remedies == ()


def test_the_confidence_of_a_schedule_is_never_more_than_that_of_its_passes():
    stated = ran("1f1b", 4, 8)
    guessed = Timeline(
        stated.tasks.with_columns(certainty=pl.lit(0.8, pl.Float32)), stated.ranks, stated.run
    )
    sure = recognise(stated).confidence
    assert recognise(guessed).confidence == pytest.approx(0.8 * sure, rel=1e-3)


@pytest.mark.parametrize("at_once", [True, False], ids=["one call", "a call for each layer"])
@pytest.mark.parametrize("layer", range(1, Process.LAYERS - 1))
def test_gradients_of_weights_are_told_although_a_visit_before_them_was_lost(layer, at_once):
    """The visit for the inputs is not in the trace: that for the weights seems to be the first."""
    process = Process()
    process.run("F0 F1")
    lost = []
    for graph in "01":
        process.move(RECEIVE)
        begin = len(process.rows)
        process.I(graph)
        lost += range(begin + 3 * layer, begin + 3 * layer + 3)
        process.move()
        if at_once:
            process.B(graph, "backward_weight")
        else:
            process.W(graph)
    found = process.found(lost)
    assert [one[:2] for one in found] == [one[:2] for one in process.truth]


def test_gradients_of_weights_in_one_call_are_told_although_the_last_layers_was_lost():
    process = Process()
    process.run("F0 F1")
    process.move(RECEIVE)
    begin = len(process.rows)
    process.I("0")
    process.move()
    process.B("0", "backward_weight")
    process.run("I1 W1")
    found = process.found(range(begin, begin + 3))
    assert [one[0] for one in found] == [one[0] for one in process.truth]
    assert found[0][1] == found[2][1] == found[3][1] != found[1][1]


def inferred(name="interleaved-1f1b"):
    run = ran(name, 2, 4, steps=2)
    passes = pl.col("kind").is_in(list(SPLIT))
    sure = pl.when(passes).then(pl.lit(0.9, pl.Float32))
    return Timeline(run.tasks.with_columns(certainty=sure), run.ranks, run.run)


def test_passes_written_to_a_file_are_read_from_it_as_they_were(tmp_path):
    run, path = inferred("zb-v"), tmp_path / "names.toml"
    path.write_text(names_file(run))
    said = NameParser(path).passes
    forgotten = run.tasks.with_columns(
        *(pl.lit(None, run.tasks.schema[name]).alias(name) for name in ("stage", "microbatch")),
        kind=pl.when(pl.col("certainty").is_null()).then("kind").otherwise(pl.lit("forward")),
    )
    again = corrected(forgotten, said)
    columns = ["rank", "step", "kind", "stage", "chunk", "microbatch", "start_ns"]
    passes = pl.col("kind").is_in(list(SPLIT))
    found, true = (
        frame.cast({"kind": pl.String})
        .filter(passes)
        .select(columns)
        .sort("rank", "start_ns")
        .rows()
        for frame in (again, run.tasks)
    )
    assert found == true
    assert again["certainty"].null_count() == again.height  # a user is believed


def test_what_is_corrected_by_hand_holds_and_the_rest_stays(tmp_path):
    run, path = inferred(), tmp_path / "names.toml"
    text = names_file(run)
    path.write_text(text[: text.index("1 = ")].replace("F0.0@0", "W7.0", 1))
    again = corrected(run.tasks, NameParser(path).passes)
    first = again.filter(rank=0, lane="compute").sort("start_ns").row(0, named=True)
    assert (first["kind"], first["microbatch"], first["stage"]) == ("backward_weight", 7, None)
    assert first["name"] == "W7.0"
    assert again.filter(rank=1)["certainty"].drop_nulls().unique().to_list() == pytest.approx([0.9])


@pytest.mark.parametrize(
    ("passes", "why"),
    [
        ("0 = 'F0 Q1'", "'Q1' is not a pass"),
        ("first = 'F0'", "'first' under .passes. is not a rank"),
        ("0 = 'F0.0 F1.0'", "rank 0: has 2 passes, of which 32 were inferred"),
        ("9 = 'F0.0'", "rank 9: has 1 passes, of which 0 were inferred"),
        ("0 = 3", "is not a names file"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_one_sentence(tmp_path, passes, why):
    path = tmp_path / "names.toml"
    path.write_text(f"[passes]\n{passes}\n")
    with pytest.raises(NamesError, match=why):
        corrected(inferred().tasks, NameParser(path).passes)


def test_a_run_whose_ranges_name_its_passes_has_none_to_write():
    assert names_file(ran("1f1b", 2, 4)) is None


def side_by_side(place, late_ns=0):
    """Two pipelines of three devices: rank `place(replica, device)`, the second a little later."""
    parts = []
    for replica in range(2):
        tasks, truth = stripped(ran("1f1b", 3, 6, steps=2))
        moved = {device: place(replica, device) for device in range(3)}
        late = [pl.col(name) + replica * late_ns for name in ("start_ns", "end_ns")]
        parts.append(
            tasks.with_columns(
                *late, splits=pl.lit(value=False), true=truth["stage"],
                rank=pl.col("rank").replace(moved),
            )
        )  # fmt: skip
    return pl.concat(parts)


@pytest.mark.parametrize("late_ns", [0, 17, 400])
@pytest.mark.parametrize(
    "place",
    [lambda replica, device: 3 * replica + device, lambda replica, device: 2 * device + replica],
    ids=["neighbours", "every second"],
)
def test_pipelines_side_by_side_are_told_apart(place, late_ns):
    found, how, _ = numbering.number(side_by_side(place, late_ns), numbering.NO_MARKERS)
    passes = found.drop_nulls("graph")
    assert passes["stage"].to_list() == passes["true"].to_list()
    assert "each of 2 pipelines" in how["stage"]
    assert passes["certainty"].max() < 0.99


def test_ranks_that_run_at_one_time_are_no_pipeline():
    """Data parallel replicas of the whole model, whatever moves between them."""
    parts = [stripped(ran("1f1b", 2, 4))[0].filter(rank=0) for _ in range(4)]
    tasks = pl.concat(
        part.with_columns(rank=pl.lit(rank, pl.Int32), splits=pl.lit(value=False))
        for rank, part in enumerate(parts)
    )
    found, how, _ = numbering.number(tasks, numbering.NO_MARKERS)
    assert found["stage"].null_count() == found.height
    assert "stage" not in how


def test_graphs_of_several_processes_of_one_capture_are_told_apart():
    """Each process counts its operators from the same number on."""
    captures = []
    for process in (7, 8):
        ran_ = Process()
        ran_.run("F0 F1 B0 B1")
        work = pl.DataFrame([{"process": process}], schema=WORK)
        ranges, launches = pl.DataFrame(schema=RANGES), pl.DataFrame(schema=LAUNCHES)
        operators = pl.DataFrame(ran_.rows, schema=OPERATORS, orient="row")
        part = Part(Capture(ranges, launches, work), operators, pl.DataFrame(schema=FRAMES))
        captures.append(tell_pipeline(part, NameParser()).capture)
    first, second = (set(one.meaning) for one in captures)
    assert len(first) == len(second) == 4
    assert not first & second


def with_peers(name, devices=4, microbatches=8, steps=1):
    """Return tasks as `stripped` with chunks and micro-batches, where each was sent, and the truth."""
    run = ran(name, devices, microbatches, steps)
    tasks, truth = stripped(run)
    last = int(truth["stage"].max())
    home = dict(truth.select("stage", "rank").unique().rows())
    way = {"forward": 1, "backward": -1, "backward_input": -1}
    sent = [
        home[stage + way[kind]]
        if kind in way and 0 <= stage + way[kind] <= last and home[stage + way[kind]] != rank
        else None
        for rank, stage, kind in truth.select("rank", "stage", "kind").rows()
    ]
    several = truth["chunk"].n_unique() > 1
    return tasks.with_columns(
        sent_to=pl.Series(sent, dtype=pl.Int64),
        microbatch=truth["microbatch"],
        chunk=truth["chunk"].cast(pl.Int16) if several else pl.lit(None, pl.Int16),
        true=truth["stage"],
    )


LOOPED = ["1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "looped-bfs", "zb-v", "v-half"]


@pytest.mark.parametrize("name", LOOPED)
def test_stages_follow_from_who_sent_to_whom_whatever_the_clock(name):
    tasks = with_peers(name)
    mixed = tasks.with_columns(start_ns=-pl.col("start_ns"))  # what clocks say is not asked
    found, how = stages_of_peers(mixed)
    assert "sent to" in how
    assert found["stage"].to_list() == tasks["true"].to_list()


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "interleaved-1f1b"])
def test_stages_past_a_rank_without_a_trace_are_told_by_its_neighbours(name):
    tasks = with_peers(name)
    left = tasks.filter(pl.col("rank") != 1)
    found, how = stages_of_peers(left)
    assert "no trace of rank 1" in how
    assert found["stage"].to_list() == left["true"].to_list()


@pytest.mark.parametrize("gone", [0, 3])
def test_the_rank_at_the_turn_of_a_v_may_be_missing_but_not_the_first(gone):
    left = with_peers("zb-v").filter(pl.col("rank") != gone)
    found, how = stages_of_peers(left)
    if gone:
        assert found["stage"].to_list() == left["true"].to_list()
    else:
        assert how is None
        assert found["stage"].null_count() == left.height


def test_without_the_first_rank_no_stage_is_told_by_peers():
    left = with_peers("1f1b").filter(pl.col("rank") > 0)
    assert stages_of_peers(left)[1] is None


def test_messages_that_go_round_in_a_circle_are_no_pipeline():
    tasks = with_peers("1f1b")
    ring = pl.when(kind="forward").then((pl.col("rank") + 1) % 4).otherwise(pl.col("rank") - 1)
    assert stages_of_peers(tasks.with_columns(sent_to=ring.cast(pl.Int64)))[1] is None


def test_peers_tell_pipelines_side_by_side_apart():
    parts = []
    for replica in range(2):
        moved = [(pl.col(name) * 2 + replica).alias(name) for name in ("rank", "sent_to")]
        parts.append(with_peers("1f1b", 3, 6).with_columns(moved))
    found, _ = stages_of_peers(pl.concat(parts))
    assert found["stage"].to_list() == found["true"].to_list()


def test_a_rank_in_between_without_a_trace_makes_stages_less_likely_than_not():
    """Nothing names it: ranks 0 and 2 of three look like two, but for the time between them."""
    tasks = with_peers("1f1b", 3, 6).with_columns(stage="true")
    whole, why = with_believable_stages(tasks)
    assert why is None
    assert whole["certainty"].min() > 0.9
    left = tasks.filter(pl.col("rank") != 1).with_columns(pl.col("stage").rank("dense") - 1)
    believed, _ = with_believable_stages(left)
    assert believed["certainty"].max() < 0.5


def test_a_pass_of_unknown_chunk_has_no_stage():
    """In a step that was cut off, nothing says that a pass is of the first chunk."""
    tasks = with_peers("interleaved-1f1b", steps=2)
    cut = pl.col("step") == 1
    unknown = [pl.when(~cut).then(name).alias(name) for name in ("chunk", "microbatch")]
    for known in (tasks, tasks.with_columns(sent_to=pl.lit(None, pl.Int64))):
        found, _, _ = numbering.number(
            known.with_columns(*unknown, splits=pl.lit(value=False), graph=pl.col("graph") % 64),
            numbering.NO_MARKERS,
        )
        passes = found.drop_nulls("stage")
        assert passes.height
        assert passes["stage"].to_list() == passes["true"].to_list()


def test_steps_that_a_rank_counted_from_a_later_one_are_those_of_the_others():
    tasks, truth = stripped(ran("1f1b", 2, 4, steps=3))
    late = (pl.col("rank") == 1) & (truth["step"] == 0)
    counted = pl.when(rank=1).then(pl.col("step") - 1).otherwise("step")
    found = with_common_steps(
        tasks.with_columns(true=truth["step"]).filter(~late).with_columns(step=counted), "counted"
    )
    assert found["step"].to_list() == found["true"].to_list()
    assert found["certainty"].min() == pytest.approx(0.99)


def test_a_rank_of_which_little_was_traced_is_of_the_pipeline_that_others_are_of():
    tasks, _ = stripped(ran("1f1b", 2, 4))
    alone = tasks.with_columns(stage=pl.when(rank=0).then(0).cast(pl.Int32))
    assert of_one_job(alone)["stage"].null_count() == tasks.height
    every = tasks.with_columns(stage=pl.lit(0, pl.Int32))
    assert of_one_job(every)["stage"].null_count() == 0


def test_passes_of_several_ranks_without_any_message_are_no_likelier_than_not():
    tasks, _ = stripped(ran("1f1b", 2, 4))
    assert without_messages(tasks)["certainty"].max() < 0.5
    assert without_messages(tasks.filter(rank=0))["certainty"].min() > 0.9  # there is one rank
    message = tasks.head(1).with_columns(
        lane=pl.lit("comm").cast(tasks.schema["lane"]), graph=pl.lit(None, pl.Int64)
    )
    assert without_messages(pl.concat([tasks, message]))["certainty"].min() > 0.9


def test_gradients_of_weights_of_graphs_that_were_not_seen_are_doubted():
    process = Process()
    process.run("F0 F1 F2 I0 I1 W0 I2 W1 W2")
    begin = next(i for i, row in enumerate(process.rows) if row[1] >= process.truth[5][2])
    rest = pl.DataFrame(process.rows[begin:], schema=OPERATORS, orient="row")
    more = Process()
    more.clock, more.number = process.clock, process.number
    more.run("F0 F1 I0 I1 W0 W1")
    rows = pl.concat([rest, pl.DataFrame(more.rows, schema=OPERATORS, orient="row")])
    found = passes(rows, NOTHING)
    early = found.filter(pl.col("start_ns") < process.clock, kind="backward")
    assert early["certainty"].max() is None or early["certainty"].max() < 0.5
    assert found.filter(pl.col("start_ns") >= process.clock)["certainty"].min() > 0.9


def test_a_forward_that_the_engine_was_seen_to_go_back_through_in_part_is_doubted():
    process = Process()
    process.run("F0 F1 B0 B1 F2")
    process.visit(process.graphs["2"][-1])  # and the profiler ended
    found = passes(pl.DataFrame(process.rows, schema=OPERATORS, orient="row"), NOTHING)
    sure = dict(found.filter(kind="forward").select("graph", "certainty").rows())
    assert sure[process.graphs["2"][-1]] < 0.5 < sure[process.graphs["1"][-1]]


def turns(name, **more):
    """Return tasks of which no more is known than whether they go forward or back, and the truth."""
    plan = generate(name, 4, 8, **more)
    tasks, truth = stripped(simulate(plan, Costs(1000, 1100, 900, comm_ns=30), steps=2))
    return tasks.with_columns(
        graph=pl.lit(None, pl.Int64),
        certainty=pl.lit(0.5, pl.Float32),
        true=truth["stage"],
        place=truth["microbatch"],
    )


@pytest.mark.parametrize(
    ("name", "more"),
    [("1f1b", {}), ("interleaved-1f1b", {"chunks": 2}), ("interleaved-1f1b", {"chunks": 4})],
)
def test_turns_that_only_one_schedule_has_are_numbered_by_it(name, more):
    tasks = turns(name, **more)
    found, how = number_by_plans(tasks, common_clock=True)
    assert name in how
    assert found["stage"].to_list() == tasks["true"].to_list()
    assert found["microbatch"].to_list() == tasks["place"].to_list()
    assert found["certainty"].unique().to_list() == pytest.approx([0.7])


@pytest.mark.parametrize(("name", "more"), [("gpipe", {}), ("looped-bfs", {"chunks": 2})])
def test_turns_that_two_numberings_explain_are_not_numbered(name, more):
    """All forwards and then all backwards: the first micro-batch may come back first or last."""
    tasks = turns(name, **more)
    found, how = number_by_plans(tasks, common_clock=True)
    assert how.startswith("unknown")
    assert name in how
    assert found["stage"].null_count() == tasks.height


def test_turns_that_no_schedule_has_are_not_numbered():
    tasks = turns("1f1b")
    other = (
        pl.when(pl.col("kind") == "forward").then(pl.lit("backward")).otherwise(pl.lit("forward"))
    )
    found, how = number_by_plans(
        tasks.with_columns(kind=other.cast(tasks.schema["kind"])), common_clock=True
    )
    assert how.startswith("unknown: no schedule")
    assert found["microbatch"].null_count() == tasks.height


def test_turns_of_ranks_that_all_send_as_much_are_not_numbered():
    """Three of four ranks run as a pipeline of three does, but the first receives like the second."""
    tasks = turns("1f1b")
    left = tasks.filter(pl.col("rank") > 0)
    assert "1f1b" in number_by_plans(left, common_clock=True)[1]
    count = pl.when(pl.col("true") == 3).then(1).otherwise(2)
    moves = left.select(pl.all().repeat_by(count).explode()).with_columns(
        lane=pl.lit("comm").cast(left.schema["lane"]),
        kind=pl.lit("other").cast(left.schema["kind"]),
        received=pl.lit(None, pl.Int64),
    )
    both = pl.concat([left, moves])
    assert number_by_plans(both, common_clock=True)[1].startswith("unknown")


def test_the_page_holds_certainty_in_per_cent_and_only_if_something_was_inferred():
    for run, held in ((inferred(), {90, -1}), (ran("1f1b", 2, 4), None)):
        ranks = run.ranks.select("rank").with_row_index("position")
        columns = pl.DataFrame([*task_columns(arranged(run, {}, ranks), 0)])
        assert ("certainty" in columns.columns) == (held is not None)
        if held:
            assert set(columns["certainty"]) <= held
            assert 90 in set(columns["certainty"])
