"""What ranges of whole processes tell of phases, where profilers record no operators of their own.

`torch.autograd.profiler.emit_nvtx` makes a range of every operator, with its numbers behind its name:
`aten::addmm, seq = 5, op_id = 7, sizes = [[2, 3]]` (torch/csrc/profiler/util.cpp, getNvtxStr). The name
is the operator's again once they are taken off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.model.device_time import lookup
from bubblescope.model.kinds import Kind
from bubblescope.names.phase_words import LABELLED_BACKWARD, phase_word
from bubblescope.sources.capture import RANGES
from bubblescope.sources.phase_evidence import BACKWARD, FRAMES, NONE, OPERATORS, SEND, Part, role

if TYPE_CHECKING:
    from collections.abc import Collection

    from bubblescope.sources.capture import Capture

EMITTED: Final = {**RANGES, "sequence": pl.Int64}
"""Columns of ranges whose numbers have been taken off their names: those of `RANGES`, and the sequence
number; null where a range has none, and -1 for what autograd does not record."""

_NUMBERS: Final = (
    r"(?:, seq = -?\d+)?(?:, op_id = \d+)?(?:, sizes = \[.*\])?(?:, input_op_ids = .*)?$"
)
_OPERATOR: Final = r"^\w+(?:::\w+)+(?:: .*)?$"
_OF_ENGINE: Final = r"^\w+Backward\d*$"
"""Operators of autograd's engine, until 2021 the only trace of it."""
_ANNOTATION: Final = r"^FSDP::"
_WITHIN: Final = 16
"""How many launches apart kernels of one optimizer may be: without fused ones it updates a parameter by
about ten, of which one is known by its name."""
_OPTIMIZER: Final = "optimizer"
"""Name of the ranges made of launches of an optimizer's kernels, which means one by itself."""


def without_numbers(ranges: pl.DataFrame) -> pl.DataFrame:
    """Take the numbers that emit_nvtx puts behind names off, of ranges with the columns of `RANGES`."""
    name = pl.col("name")
    numbered = name.str.contains(", op_id = ", literal=True) | name.str.contains(
        ", seq = ", literal=True
    )
    sequence = name.str.extract(r", seq = (-?\d{1,18})(?:, |$)").cast(pl.Int64)
    shorter = name.str.replace(_NUMBERS, "")
    few = ranges.filter(numbered).with_columns(name=shorter, sequence=sequence)
    others = ranges.filter(~numbered).with_columns(sequence=pl.lit(None, pl.Int64))
    return pl.concat([others, few]) if few.height else others


def parts(
    capture: Capture,
    ranges: pl.DataFrame,
    engine_threads: pl.Series,
) -> list[tuple[int, Part]]:
    """Return what tells the phases of each process that used devices, with its process.

    A process may drive several devices from a thread each: those are told apart, as if they were of
    several processes.

    Args:
        capture: The capture.
        ranges: Its ranges, with the columns of `EMITTED`.
        engine_threads: Threads that are autograd's by their names.
    """
    names = ranges["name"].unique()
    engine = names.filter(
        names.str.starts_with("autograd::engine::")
        | names.str.contains(_OF_ENGINE)
        | (names.str.contains(LABELLED_BACKWARD) & _no_phase(names))
    )
    operator = names.filter(names.str.contains(_OPERATOR) & ~names.str.contains(_ANNOTATION))
    of_operator = pl.col("name").is_in(pl.concat([engine, operator]).implode())
    of_operator |= pl.col("sequence").is_not_null() & ~pl.col("name").str.contains(_ANNOTATION)
    closed = ranges.filter(of_operator).drop_nulls("end_ns")
    kinds = closed["name"].unique()
    roles = [BACKWARD if name in set(engine) else role(name) for name in kinds]
    operators = closed.select(
        "process",
        "thread",
        "start_ns",
        "end_ns",
        role=pl.col("name").replace_strict(kinds, roles, return_dtype=pl.Int64)
        if roles
        else pl.lit(BACKWARD, pl.Int64),
        sequence=pl.col("sequence").fill_null(NONE),
    )
    annotations = ranges.filter(~of_operator).select(*RANGES)
    found: list[tuple[int, Part]] = []
    for process in capture.work["process"].unique().sort():
        mine = msgspec.structs.replace(
            capture,
            ranges=annotations.filter(process=process),
            launches=capture.launches.filter(process=process),
            work=capture.work.filter(process=process),
        )
        own = operators.filter(process=process).drop("process")
        found += [
            (process, _with_kernels(part, engine_threads)) for part in _by_main_thread(mine, own)
        ]
    return found


def _no_phase(names: pl.Series) -> pl.Series:
    """Say which names are of no whole phase."""
    return pl.Series([phase_word(name) is None for name in names], dtype=pl.Boolean)


def _by_main_thread(capture: Capture, operators: pl.DataFrame) -> list[Part]:
    """Split what a process recorded by the threads that launch most on each of its devices."""
    whole = Part(capture, operators, pl.DataFrame(schema=FRAMES))
    devices = capture.work["device"].unique()
    if len(devices) < 2:
        return [whole]
    call = lookup(
        capture.launches["correlation"].to_numpy(), capture.work["correlation"].to_numpy()
    )
    thread = np.append(capture.launches["thread"].to_numpy(), NONE)[call]
    counts = (
        capture.work.select("device", thread=pl.Series(thread, dtype=pl.Int64))
        .filter(pl.col("thread") != NONE)
        .group_by("device", "thread")
        .len()
        .sort("len", "thread", descending=[True, False])
    )
    main = counts.unique("device", keep="first", maintain_order=True)
    if main["thread"].n_unique() < 2:
        return [whole]
    found = []
    for (_,), of_one in main.group_by("thread", maintain_order=True):
        work = capture.work.filter(pl.col("device").is_in(of_one["device"].implode()))
        launches = capture.launches.join(work, on="correlation", how="semi")
        here, any_launching = launches["thread"].unique(), counts["thread"].unique()
        ours = pl.col("thread").is_in(here.implode())
        # What runs on a thread that launches nothing, such as steps, may be of every device.
        shared = ~pl.col("thread").is_in(any_launching.implode())
        part = msgspec.structs.replace(
            capture, ranges=capture.ranges.filter(ours | shared), launches=launches, work=work
        )
        found.append(Part(part, operators.filter(ours), whole.frames))
    return found


def _with_kernels(part: Part, engine_threads: pl.Series) -> Part:
    """Add what threads and kernels tell: autograd's work, transfers, and optimizers."""
    capture = part.capture
    launches = (
        capture.launches.join(
            capture.work.unique("correlation").select("correlation", "comm", "kernel"),
            on="correlation",
        )
        .with_columns(pl.col("end_ns").fill_null(pl.col("start_ns") + 1))
        .sort("start_ns")
    )
    told = part.operators.filter(role=BACKWARD)["thread"].unique()
    named = pl.col("thread").is_in(engine_threads.implode())
    engine = launches.filter(named & ~pl.col("thread").is_in(told.implode()))
    between = [index for index, comm in enumerate(capture.comms) if comm.known_kind() is Kind.OTHER]
    moved = launches.filter(pl.col("comm").is_in(between))
    rows = [
        frame.select(
            "thread",
            "start_ns",
            "end_ns",
            role=pl.lit(code, pl.Int64),
            sequence=pl.lit(NONE, pl.Int64),
        )
        for frame, code in ((engine, BACKWARD), (moved, SEND))
    ]
    by_engine = named | pl.col("thread").is_in(told.implode())
    optimizers = _optimizers(launches, by_engine, capture.optimizer_kernels)
    ranges = pl.concat([capture.ranges, optimizers.select(*RANGES)])
    return Part(
        msgspec.structs.replace(capture, ranges=ranges),
        pl.concat([part.operators.select(*OPERATORS), *rows]),
        part.frames,
    )


def _optimizers(
    launches: pl.DataFrame, by_engine: pl.Expr, optimizer_kernels: Collection[int]
) -> pl.DataFrame:
    """Return a range for each optimizer that kernels tell: from its first to its last of these.

    Autograd's launches part one optimizer from the next, and so do many others. What autograd's threads
    launch themselves is their backward's.
    """
    following = pl.col("at").diff().over("thread") > _WITHIN
    return (
        launches.with_columns(run=by_engine.cum_sum(), at=pl.int_range(pl.len()).over("thread"))
        .filter(~by_engine, pl.col("kernel").is_in(list(optimizer_kernels)))
        .with_columns(part=following.fill_null(value=False).cum_sum().over("thread"))
        .group_by("process", "thread", "run", "part", maintain_order=True)
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .with_columns(name=pl.lit(_OPTIMIZER))
    )
