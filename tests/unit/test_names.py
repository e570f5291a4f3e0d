"""Range names: what each framework's names mean."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bubblescope import NamesError
from bubblescope.model.kinds import LANE_OF, SHORT, Kind
from bubblescope.names.communication_kernels import is_communication_kernel
from bubblescope.names.host_ranges import Doing, doing, unnumbered
from bubblescope.names.parsed import ParsedName
from bubblescope.names.parser import NameParser
from bubblescope.names.recorder_ranges import mark_name
from bubblescope.render.palette import COLOURS

COUNTS = st.integers(0, 10**6)


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("F12.1.0", [ParsedName(Kind.FORWARD, 12, 1)]),
        ("B3.0.0", [ParsedName(Kind.BACKWARD, 3, 0, splits=True)]),
        ("BW3.0.0", [ParsedName(Kind.BACKWARD, 3, 0)]),
        ("W100.10.10", [ParsedName(Kind.BACKWARD_WEIGHT, 100, 10)]),
        ("W_clear.1.0", [ParsedName(Kind.BACKWARD_WEIGHT, None, 1)]),
        ("R4.1.0", [ParsedName(Kind.RECOMPUTE, 4, 1)]),
        ("Optimizer", [ParsedName(Kind.OPTIMIZER)]),
        ("Optimizer.step#AdamW.step", [ParsedName(Kind.OPTIMIZER)]),
        ("iter_5_17", [ParsedName(None, step=17, rank=5)]),
        ("SEND_FORWARD.3.1.0", [ParsedName(Kind.SEND_FORWARD, 3, 1)]),
        (
            "SEND_FORWARD.3.0.0_RECV_BACKWARD.1.0.0",
            [ParsedName(Kind.SEND_FORWARD, 3, 0), ParsedName(Kind.RECV_BACKWARD, 1, 0)],
        ),
        ("RECV_POST_VALIDATION.0.0.0", [ParsedName(Kind.COLLECTIVE)]),
        ("F", [ParsedName(Kind.FORWARD)]),
        ("B", [ParsedName(Kind.BACKWARD, splits=True)]),
        ("W7", [ParsedName(Kind.BACKWARD_WEIGHT, 7)]),
        ("megatron.core.pipeline_parallel.schedules.forward_step", [ParsedName(Kind.FORWARD)]),
        ("megatron.core.pipeline_parallel.schedules.backward_step", [ParsedName(Kind.BACKWARD)]),
        (
            "megatron.core.pipeline_parallel.p2p_communication.send_forward_recv_backward",
            [ParsedName(Kind.SEND_FORWARD), ParsedName(Kind.RECV_BACKWARD)],
        ),
        ("forward-compute", [ParsedName(Kind.FORWARD)]),
        (
            "backward-send-forward-recv",
            [ParsedName(Kind.SEND_BACKWARD), ParsedName(Kind.RECV_FORWARD)],
        ),
        ("bubblescope:step step=4", [ParsedName(None, step=4)]),
        ("training_step_12", [ParsedName(None, step=12)]),
        ("megatron.bridge.training.train.train.training_step_12", [ParsedName(None, step=12)]),
        ("megatron.bridge.training.train.train_step.optimizer_step", [ParsedName(Kind.OPTIMIZER)]),
        ("attn(F)", [ParsedName(Kind.FORWARD)]),
        ("mlp(B)", [ParsedName(Kind.BACKWARD, splits=True)]),
        ("mlp(W)", [ParsedName(Kind.BACKWARD_WEIGHT)]),
        ("dispatch(F)", [ParsedName(Kind.COLLECTIVE)]),
        ("COMBINE(B)", [ParsedName(Kind.COLLECTIVE)]),
        ("MTP_POST_PROCESS(F)", [ParsedName(Kind.FORWARD)]),
        ("attn forward", [ParsedName(Kind.FORWARD)]),
        ("moe_dispatch backward", [ParsedName(Kind.COLLECTIVE)]),
        ("mlp backward", [ParsedName(Kind.BACKWARD, splits=True)]),
        ("mlp wgrad", [ParsedName(Kind.BACKWARD_WEIGHT)]),
        ("pre_process forward", [ParsedName(Kind.FORWARD)]),
        ("post_process backward", [ParsedName(Kind.BACKWARD, splits=True)]),
        ("nemo.core.optim.mcore_optim.step.step", [ParsedName(Kind.OPTIMIZER)]),
        ("nemo.core.optim.mcore_optim.step.closure", []),
        ("layer_3f-layer_4b", []),  # a forward and a backward at once: its parts tell more
        ("attn(X)", []),
        ("attn", []),
        ("training_step_", []),
        ("my.training_step_3", []),
        ("megatron.core.models.gpt.forward", []),
        ("F1.2", []),
        ("Forward", []),
        ("aten::linear, op_id = 3", []),
        ("bubblescope:sideways step=4", []),
        ("megatron.core.pipeline_parallel.schedules.deallocate_output_tensor", []),
        ("", []),
    ],
)
def test_known_names(name, meaning):
    assert NameParser().parse(name) == meaning


@pytest.mark.parametrize(
    ("name", "about"),
    [
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", Doing.DATA),
        ("Get batch", Doing.DATA),
        ("get_data", Doing.DATA),
        ("get_data_parallel_rank", Doing.OTHER),
        ("Optimizer.step#AdamW.step", Doing.OPTIMIZER),
        ("DeepSpeedZeroOptimizer_Stage3.step", Doing.OPTIMIZER),
        ("DeepSpeedZeroOptimizer_Stage3.partition_grads", Doing.OTHER),
        ("gloo:recv", Doing.EXCHANGE),
        ("gloo:all_reduce", Doing.EXCHANGE),
        ("gloo:send", Doing.OTHER),  # goes on in the background, as a rule
        ("nccl:all_reduce", Doing.OTHER),  # the device does it
        ("mpi:recv, op_id = 12", Doing.EXCHANGE),
        ("MPI_Allreduce", Doing.EXCHANGE),
        ("MPI_Sendrecv", Doing.EXCHANGE),
        ("MPI_Isend", Doing.OTHER),
        ("MPI_Init", Doing.OTHER),
    ],
)
def test_what_the_host_does_by_name(name, about):
    assert doing(name) is about


@given(
    st.sampled_from(list(Kind)),
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(["step", "stage", "chunk", "microbatch", "peer"], COUNTS)
    ),
)
def test_our_own_marks_are_read_back(kind, fields):
    assert NameParser().parse(mark_name(kind, **fields)) == [ParsedName(kind, **fields)]


@given(st.text())
@example("F1.0.0")
@example("F9999999")  # whose number no job has
def test_the_quick_filter_loses_no_name_that_means_something(name):
    parser, names = NameParser(), pl.Series([name])
    meant = parser.parse(name) and name not in parser.impossible(names)
    assert parser.parse_all(names) == ({name: parser.parse(name)} if meant else {})


@pytest.mark.parametrize(
    "name",
    [
        "F1.0.0",
        "W_clear.0.0",
        "iter_0_0",
        "optimizer_step",
        "forward-compute",
        "B",
        "SEND_FORWARD.1.0.0",
    ],
)
def test_the_quick_filter_passes_the_known_grammars(name):
    assert name in NameParser().parse_all(pl.Series([name, "noise", name, None]))


def test_a_users_pattern_comes_first_and_may_match_anywhere():
    parser = NameParser(r"(?P<kind>fwd|bwd)/mb(?P<mb>\d+)/chunk(?P<chunk>\d+)(/s(?P<step>\d+))?")
    assert parser.parse("train/fwd/mb3/chunk1 ") == [ParsedName(Kind.FORWARD, 3, 1)]
    assert parser.parse("bwd/mb0/chunk0/s9") == [ParsedName(Kind.BACKWARD, 0, 0, step=9)]
    assert parser.parse("F1.0.0") == [ParsedName(Kind.FORWARD, 1, 0)]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"(?P<kind>F", r"is not a regular expression"),
        (r"F(?P<mb>\d+)", r"has no group for the kind: \(\?P<kind>"),
        (r"(?P<kind>F)(?P<layer>\d+)", r"unknown groups: layer"),
    ],
)
def test_an_unusable_pattern_is_explained(pattern, message):
    with pytest.raises(NamesError, match=message):
        NameParser(pattern)


def test_a_pattern_that_captures_nonsense_is_explained():
    with pytest.raises(NamesError, match="captured 'Q' as the kind in 'Q1'; say what it means"):
        NameParser(r"(?P<kind>[A-Z])\d").parse("Q1")
    with pytest.raises(NamesError, match="captured 'x' as mb in 'Fx'; it must be a whole number"):
        NameParser(r"(?P<kind>F)(?P<mb>.)").parse("Fx")


@pytest.mark.parametrize(
    ("pattern", "kinds", "name", "meaning"),
    [
        (
            r"(?P<kind>Compute|Grad) (?P<microbatch>\d+)",
            {"Compute": "forward", "Grad": "bwd"},
            "Compute 3",
            ParsedName(Kind.FORWARD, 3),
        ),
        (r"(?P<kind>\w) (?P<mb>\d+)", {"Z": "B"}, "Z 3", ParsedName(Kind.BACKWARD, 3, splits=True)),
        (r"(?P<kind>\w+)", {"f": "wgrad"}, "f", ParsedName(Kind.BACKWARD_WEIGHT)),
        (r"(?P<kind>\w+)", {"f": "wgrad"}, "F", ParsedName(Kind.FORWARD)),
        (r"(?P<forward>Compute) (?P<mb>\d+)", {}, "Compute 3", ParsedName(Kind.FORWARD, 3)),
        (r"((?P<fwd>up)|(?P<bwd>down))(?P<mb>\d)", {}, "down3", ParsedName(Kind.BACKWARD, 3)),
        (r"(?P<backward_input>G)(?: m(?P<mb>\d+))?", {}, "G", ParsedName(Kind.BACKWARD_INPUT)),
        (
            r"(?P<kind>Round) (?P<step>\d+)",
            {"Round": "step_marker"},
            "Round 9",
            ParsedName(None, step=9),
        ),
        (r"(?P<step_marker>Round) (?P<step>\d+)", {}, "Round 9", ParsedName(None, step=9)),
        (r"(?P<kind>fwd)?(?P<backward>down)?x", {}, "downx", ParsedName(Kind.BACKWARD)),
    ],
)
def test_words_and_groups_of_a_user_are_kinds(pattern, kinds, name, meaning):
    assert NameParser(pattern, kinds).parse(name) == [meaning]


def test_a_pattern_that_captures_no_kind_says_nothing():
    parser = NameParser(r"(?P<kind>Compute)?(?P<mb>\d+)", {"Compute": "forward"})

    assert parser.parse("Compute7") == [ParsedName(Kind.FORWARD, 7)]
    assert parser.parse("F7.1.0") == [ParsedName(Kind.FORWARD, 7, 1)]  # the grammars' turn


def test_a_names_file_holds_patterns_that_are_tried_in_order(tmp_path):
    file = tmp_path / "ours.toml"
    file.write_text(
        """
        [[names]]
        pattern = '(?P<kind>Compute|Grad) (?P<microbatch>\\d+)'
        kinds = { Compute = "forward", Grad = "backward_input" }

        [[names]]
        pattern = '(?P<kind>\\w+) round (?P<step>\\d+)'
        kinds = { whole = "step_marker" }
        """
    )
    for said in (str(file), file, ["(?P<kind>unused)", str(file)]):
        parser = NameParser(said, {"Extra": "W", "Grad": "F"})
        assert parser.parse("Compute 3") == [ParsedName(Kind.FORWARD, 3)]
        assert parser.parse("Grad 3") == [ParsedName(Kind.BACKWARD_INPUT, 3)]  # the file's own word
        assert parser.parse("whole round 4") == [ParsedName(None, step=4)]
        assert parser.parse("Extra round 4") == [ParsedName(Kind.BACKWARD_WEIGHT, step=4)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("names = 3", "is not a names file"),
        ("[[names]]\nregex = 'F'", "is not a names file"),
        ("[[names", "is not a names file"),
        (
            "[[names]]\npattern = '(F'",
            r"ours.toml, pattern 1 \('\(F'\) is not a regular expression",
        ),
        (
            "[[names]]\npattern = '(?P<kind>F)'\nkinds = {F = 'up'}",
            "means 'up', which is not a kind",
        ),
    ],
)
def test_an_unusable_names_file_is_explained(tmp_path, text, message):
    file = tmp_path / "ours.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(NamesError, match=message) as caught:
        NameParser(str(file))
    assert "\n" not in str(caught.value)


def test_words_without_patterns_and_words_that_are_no_kind_are_refused():
    with pytest.raises(NamesError, match="give --names as well"):
        NameParser(None, {"Compute": "forward"})
    with pytest.raises(
        NamesError, match="'Compute' means 'up', which is not a kind; the kinds are f"
    ):
        NameParser("(?P<kind>Compute)", {"Compute": "up"})


def test_an_unknown_word_says_how_to_name_it_and_what_the_trace_has():
    names = pl.Series(["Compute 1", "Compute 2", "Grad 1", "load", "load", "load", None])
    with pytest.raises(NamesError) as caught:
        NameParser(r"(?P<kind>\w+) \d+").parse_all(names)
    said = str(caught.value)
    assert "captured 'Compute' as the kind in 'Compute 1'" in said
    assert "--kind Compute=forward" in said
    assert said.endswith("# being any number: 'load' (3), 'Compute #' (2), 'Grad #' (1)")


def test_communication_kernels_are_known_by_their_library():
    assert is_communication_kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
    assert is_communication_kernel("ncclKernel_AllReduce_RING_LL_Sum_float")
    assert not is_communication_kernel("ampere_bf16_s16816gemm_bf16_128x256")


def test_every_kind_has_a_lane_a_label_and_a_colour():
    for table in (LANE_OF, SHORT, COLOURS):
        assert set(table) == set(Kind)


@pytest.mark.parametrize(
    "name", ["ProfilerStep#7", "enumerate(DataLoader)#Iter.__next__", "step 7"]
)
def test_steps_of_the_profiler_are_one_thing_that_the_host_does(name):
    assert unnumbered(name) == ("ProfilerStep" if name.startswith("Profiler") else name)
