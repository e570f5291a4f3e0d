"""The module of the model that each kernel was launched for, as far as the trace tells.

It is that of the innermost range about a module (`bubblescope.names.module_ranges`) that was open on
the launching thread. Backwards run on a thread of autograd's engine, where no module's range is open:
there an operator has the sequence number of the forward operator whose gradient it computes, and so
its module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from bubblescope.model.device_time import NONE, owner_at
from bubblescope.names.module_ranges import module_range

if TYPE_CHECKING:
    from bubblescope.model.arrays import Ints
    from bubblescope.sources.capture import Capture

_THREAD: Final = ["process", "thread"]
_RANGES: Final = {
    "process": pl.Int64,
    "thread": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "module": pl.String,
}


def modules_at(capture: Capture, process: Ints, thread: Ints, moments: Ints) -> pl.Series:
    """Return the module that each thread was in at its moment; null if none is known.

    Args:
        capture: What the trace recorded.
        process: n processes.
        thread: A thread of each.
        moments: A moment for each, which may be `NONE`.
    """
    ranges = _in_order(_named(capture))
    ranges = _in_order(pl.concat([ranges, _backwards(capture.operators, ranges)]))
    return _innermost(ranges, process, thread, moments)


def _in_order(ranges: pl.DataFrame) -> pl.DataFrame:
    """Sort ranges by start; of those that begin together, the outer first."""
    return ranges.sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)


def _innermost(ranges: pl.DataFrame, process: Ints, thread: Ints, moments: Ints) -> pl.Series:
    owner = np.full(len(moments), NONE, np.int64)
    for (one, of), mine in ranges.with_row_index().group_by(*_THREAD):
        rows = np.flatnonzero((process == one) & (thread == of))
        held = owner_at(moments[rows], mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy())
        owner[rows] = np.append(mine["index"].to_numpy().astype(np.int64), NONE)[held]
    return ranges["module"].gather(pl.Series(owner).replace(NONE, None).cast(pl.UInt32))


def _named(capture: Capture) -> pl.DataFrame:
    """Return the ranges whose names are about a module, and those between two such."""
    told = [module_range(name) for name in capture.host_names]
    known = [number for number, one in enumerate(told) if one is not None]
    about = pl.DataFrame(
        [(number, one.module, one.edge, one.way) for number, one in enumerate(told) if one],
        schema={"name": pl.Int32, "module": pl.String, "edge": pl.String, "way": pl.String},
        orient="row",
    )
    ranges = capture.host.filter(pl.col("name").is_in(known)).join(about, on="name")
    return pl.concat([ranges.select(*_RANGES), _between(ranges.drop_nulls("edge"))])


def _between(edges: pl.DataFrame) -> pl.DataFrame:
    """Return what lies from the range before a module's work to the one after it.

    A range after it that has none before it began earlier than the trace; one before it without one
    after it ends later.
    """
    of = [*_THREAD, "module", "way"]
    ends = pl.col("edge").eq("end")
    return (
        edges.sort(*of, "start_ns")
        .with_columns(
            # The first of those after it closes it: a backward has several.
            until_ns=pl.when(ends.shift(-1)).then(pl.col("end_ns").shift(-1)).over(of),
        )
        .filter(~ends)
        .drop_nulls("until_ns")
        .select("process", "thread", "start_ns", pl.col("until_ns").alias("end_ns"), "module")
    )


def _backwards(operators: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Return a range for each of the engine's operators whose forward's module is known.

    Sequence numbers are each thread's own: one that several threads gave to forwards tells nothing.
    """
    if not ranges.height or not operators.height:
        return pl.DataFrame(schema=_RANGES)
    operators = _in_order(operators)
    engine = operators.filter("engine")
    others = operators.filter(~pl.col("engine"))
    columns = [others[name].to_numpy() for name in (*_THREAD, "start_ns")]
    inside = _innermost(engine.with_columns(module=pl.lit("")), *columns).is_not_null()
    forward = others.with_columns(module=_innermost(ranges, *columns)).filter(~inside)
    number = ["process", "sequence"]
    once = forward.group_by(number).agg(pl.col("thread").n_unique()).filter(pl.col("thread") == 1)
    found = engine.join_asof(
        forward.join(once.select(number), on=number, how="semi")
        .select(*number, "start_ns", "module")
        .sort("start_ns"),
        on="start_ns",
        by=number,
        check_sortedness=False,
    )
    return found.drop_nulls("module").select(*_RANGES)
