"""Range names: what each framework's names mean."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubblescope import NamesError
from bubblescope.model.kinds import LANE_OF, SHORT, Kind
from bubblescope.names.communication_kernels import is_communication_kernel
from bubblescope.names.parsed import ParsedName
from bubblescope.names.parser import NameParser
from bubblescope.names.recorder_ranges import mark_name
from bubblescope.render import palette
from bubblescope.render.palette import COLOURS, INK

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


@given(
    st.sampled_from(list(Kind)),
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(["step", "stage", "chunk", "microbatch", "peer"], COUNTS)
    ),
)
def test_our_own_marks_are_read_back(kind, fields):
    assert NameParser().parse(mark_name(kind, **fields)) == [ParsedName(kind, **fields)]


@given(st.text())
def test_the_quick_filter_loses_no_name_that_means_something(name):
    parser = NameParser()
    expected = {name: parser.parse(name)} if parser.parse(name) else {}
    assert parser.parse_all(pl.Series([name])) == expected


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
        (r"F(?P<mb>\d+)", r"has no group \(\?P<kind>"),
        (r"(?P<kind>F)(?P<layer>\d+)", r"groups that mean nothing here: layer"),
    ],
)
def test_an_unusable_pattern_is_explained(pattern, message):
    with pytest.raises(NamesError, match=message):
        NameParser(pattern)


def test_a_pattern_that_captures_nonsense_is_explained():
    with pytest.raises(NamesError, match="captured 'Q' as the kind in 'Q1'; it must be one of"):
        NameParser(r"(?P<kind>[A-Z])\d").parse("Q1")
    with pytest.raises(NamesError, match="captured 'x' as mb in 'Fx'; it must be a whole number"):
        NameParser(r"(?P<kind>F)(?P<mb>.)").parse("Fx")


def test_communication_kernels_are_known_by_their_library():
    assert is_communication_kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
    assert is_communication_kernel("ncclKernel_AllReduce_RING_LL_Sum_float")
    assert not is_communication_kernel("ampere_bf16_s16816gemm_bf16_128x256")


def test_text_on_every_colour_can_be_read():
    for kind, colour in COLOURS.items():
        assert palette._contrast(INK[kind], colour) >= 4.5  # WCAG 2.2, level AA


def test_every_kind_has_a_lane_a_label_and_a_colour():
    for table in (LANE_OF, SHORT, COLOURS, INK):
        assert set(table) == set(Kind)
