"""Marks for Ascend's profiler, put around the functions of Megatron-LM and MindSpeed.

In place of the `step_wrapper` that Ascend's guide to `pp_chart` asks users to paste into their code.
`torch_npu` is imported when the first mark is made; without it functions run as they are.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Parameters = ParamSpec("Parameters")
    Result = TypeVar("Result")

__all__ = ["mark", "mstx_range", "step_wrapper"]

_MICROBATCH: Final = "current_microbatch"
_OVERLAPS: Final = "extra_block_kwargs"
"""The argument through which MindSpeed's DualPipeV hands a forward the backward to overlap with."""
_OVERLAPPED: Final = "forward_backward_overlaping"
"""Ascend's own spelling, which its tools look for."""


@functools.cache
def _npu() -> Any | None:
    """Return `torch_npu.npu`, or None, with one warning, where it is not installed."""
    try:
        return importlib.import_module("torch_npu").npu
    except ImportError as error:
        warnings.warn(f"no mstx marks are made: {error}", RuntimeWarning, stacklevel=3)
        return None


@contextmanager
def mstx_range(name: str, **fields: Any) -> Iterator[None]:
    """Mark a range on the current NPU stream.

    Args:
        name: What runs in it, such as "forward_step".
        fields: More to say, such as `current_microbatch=3`.
    """
    npu = _npu()
    if npu is None:
        yield
        return
    message = str({"name": name, **fields})
    # Without a stream nothing would be recorded on the device.
    mark_id = npu.mstx.range_start(message, npu.current_stream())
    try:
        yield
    finally:
        if mark_id:  # 0: the profiler is not running
            npu.mstx.range_end(mark_id)


def step_wrapper(
    func: Callable[Parameters, Result], msg: str | None = None
) -> Callable[Parameters, Result]:
    """Return a function that does what `func` does, inside a mark.

    The micro-batch is taken from an argument `current_microbatch`. A forward that is given a
    backward to overlap with is marked as both. A `WeightGradStore.pop` with nothing to pop is not
    marked. An exception ends the range and goes its way.

    >>> from megatron.core.pipeline_parallel import schedules  # doctest: +SKIP
    >>> schedules.forward_step = step_wrapper(schedules.forward_step)  # doctest: +SKIP
    >>> schedules.backward_step = step_wrapper(schedules.backward_step)  # doctest: +SKIP

    Args:
        func: The function, such as `schedules.forward_step`.
        msg: Its name in the profile; its own, with its class, if None.
    """
    name = msg or str(getattr(func, "__qualname__", type(func).__qualname__))
    pops = name.replace("_", ".").endswith("WeightGradStore.pop")
    parameters = _parameters(func)

    @functools.wraps(func)
    def wrapper(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if pops and _nothing_to_pop(func):
            return func(*args, **kwargs)
        given = {**dict(zip(parameters, args, strict=False)), **kwargs}
        overlapped = given.get(_OVERLAPS) is not None and "forward" in name
        fields = {_MICROBATCH: given[_MICROBATCH]} if given.get(_MICROBATCH) is not None else {}
        with mstx_range(_OVERLAPPED if overlapped else name, **fields):
            return func(*args, **kwargs)

    return wrapper


def mark(msg: str) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Return `step_wrapper` as a decorator.

    >>> @mark("forward_step")
    ... def train_one_microbatch(batch): ...
    """
    return lambda func: step_wrapper(func, msg)


def _parameters(func: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(func).parameters)
    except (TypeError, ValueError):  # written in C
        return []


def _nothing_to_pop(func: Callable[..., Any]) -> bool:
    """Say whether the store of weight gradients that `func` pops from is empty, as far as one sees."""
    store = getattr(func, "__self__", None)
    if store is None:
        module = inspect.getmodule(func)
        store = getattr(module, "WeightGradStore", None)
    for field in ("cache", "weight_grad_queue"):
        held = getattr(store, field, None)
        if held is None:
            continue
        queues = held if isinstance(held, (list, tuple)) and field != "cache" else [held]
        return all(one.empty() if hasattr(one, "empty") else not len(one) for one in queues)
    return False
