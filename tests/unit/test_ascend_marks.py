"""Marks for Ascend's profiler. `torch_npu` is a fake here that records calls: there is no NPU."""

from __future__ import annotations

import ast
import sys
import types
from typing import ClassVar

import pytest

from bubblescope.compat import ascend


@pytest.fixture
def calls(monkeypatch):
    """What a fake torch_npu was asked to do."""
    made = []
    numbers = iter(range(1, 100))

    def start(message, stream):
        made.append(("start", ast.literal_eval(message), stream))
        return next(numbers)

    mstx = types.SimpleNamespace(
        range_start=start, range_end=lambda mark: made.append(("end", mark))
    )
    npu = types.SimpleNamespace(mstx=mstx, current_stream=lambda: "stream 7")
    monkeypatch.setitem(sys.modules, "torch_npu", types.SimpleNamespace(npu=npu))
    ascend._npu.cache_clear()
    yield made
    ascend._npu.cache_clear()


def forward_step(model, current_microbatch=None, extra_block_kwargs=None):
    return model, current_microbatch, extra_block_kwargs


def test_a_wrapped_function_runs_inside_a_range_of_its_stream(calls):
    wrapped = ascend.step_wrapper(forward_step, "forward_step")

    assert wrapped("m") == ("m", None, None)
    assert wrapped.__name__ == "forward_step"
    assert calls == [("start", {"name": "forward_step"}, "stream 7"), ("end", 1)]


@pytest.mark.parametrize("call", [lambda f: f("m", 3), lambda f: f("m", current_microbatch=3)])
def test_the_micro_batch_is_taken_from_the_arguments(calls, call):
    call(ascend.step_wrapper(forward_step))

    assert calls[0][1] == {"name": "forward_step", "current_microbatch": 3}


def test_a_forward_with_a_backward_to_overlap_is_marked_as_both(calls):
    wrapped = ascend.step_wrapper(forward_step, "forward_step_with_model_graph")

    wrapped("m", extra_block_kwargs={"grad": 1})

    assert calls[0][1]["name"] == "forward_backward_overlaping"


def test_an_empty_pop_is_not_marked(calls):
    class WeightGradStore:
        cache: ClassVar[list[str]] = []

        @classmethod
        def pop(cls):
            return cls.cache.pop() if cls.cache else None

    wrapped = ascend.step_wrapper(WeightGradStore.pop, "WeightGradStore.pop")

    wrapped()
    assert calls == []
    WeightGradStore.cache.append("gradient")
    assert wrapped() == "gradient"
    assert calls[0][1] == {"name": "WeightGradStore.pop"}


def test_an_exception_ends_the_range_and_goes_its_way(calls):
    @ascend.mark("backward_step")
    def fails():
        raise RuntimeError("diverged")

    with pytest.raises(RuntimeError, match="diverged"):
        fails()
    assert [call[0] for call in calls] == ["start", "end"]


def test_a_range_may_say_more(calls):
    with ascend.mstx_range("forward_step", current_microbatch=1, model_chunk_id=0):
        pass

    assert calls[0][1] == {"name": "forward_step", "current_microbatch": 1, "model_chunk_id": 0}


def test_without_an_npu_functions_run_as_they_are_after_one_warning(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    ascend._npu.cache_clear()
    wrapped = ascend.step_wrapper(forward_step)
    with pytest.warns(RuntimeWarning, match="no mstx marks"):
        assert wrapped("m") == ("m", None, None)
    assert wrapped("m") == ("m", None, None)
    ascend._npu.cache_clear()
