"""Ranges for the passes of a pipeline that a process ran without naming them, and for its transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import polars as pl

from bubblescope.model.kinds import BACKWARDS, Kind
from bubblescope.model.provenance import INFERRED_PASSES, Notice
from bubblescope.names.parsed import ParsedName
from bubblescope.sources.capture import RANGES
from bubblescope.sources.phase_evidence import (
    BACKWARD,
    CAST,
    COMPUTE,
    NONE,
    OPERATORS,
    PRODUCT,
    SEND,
)
from bubblescope.sources.structure.autograd import passes
from bubblescope.sources.structure.pass_transfers import (
    named_transfers,
    received,
    sent_to,
    share_beside,
    transfers,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bubblescope.names.parser import NameParser
    from bubblescope.sources.capture import Capture
    from bubblescope.sources.phase_evidence import Traced

_HOW_GRAPHS: Final = (
    "graphs: what autograd's engine ran is a backward, and what it went back through a forward"
)
_HOW_TURNS: Final = (
    "turns between transfers, which say no more than that: what autograd's engine ran is a backward, "
    "what the caller ran a forward"
)

HOW_ALONE: Final = "no transfers between ranks: each is taken to hold the whole model"
"""How the stage of a process was told that is no part of a pipeline."""

_APART: Final = "(?i)^(?:## )?optimizer"
"""Ranges whose operators are neither a forward nor a backward."""
_PIPELINED: Final = 0.6
"""Share of forwards and backwards beside a transfer from which on the transfers are a pipeline's: every
one receives what it works on or sends what it made, but on a rank that hands it on to itself."""
_ALONE: Final = 0.2
"""The same below which a process is no part of a pipeline. In between it may be one of which little
was traced."""
_HALF: Final = 0.5
"""Certainty above which a pass is more than a guess."""
_MUCH: Final = 0.1
"""Share of what the busiest thread launches from which on a thread launches much."""
_BACKWARD: Final = [kind.value for kind in BACKWARDS]


class Unmarked(NamedTuple):
    """A trace of a pipeline whose ranges name no passes.

    Attributes:
        capture: The trace, with a range for each pass and for each transfer whose way is known, and
            what those mean.
        how: How what was told of them was told, as in `Run.inferred`.
        alone: Whether it is of a process that holds the whole model.
    """

    capture: Capture
    how: Mapping[str, str]
    alone: bool


def tell_pipeline(
    trace: Traced, names: NameParser, *, on_host: bool = False, alone: bool = True
) -> Unmarked | None:
    """Tell the passes of a pipeline, and which transfers go which way; on the host of any job.

    Args:
        trace: The trace of one process, whose ranges name no passes.
        names: What range names mean, of which those of optimizers are believed.
        on_host: Whether operators of the host stand for work of a device.
        alone: Whether a process without transfers is no part of a pipeline: there is no other rank, or
            other communication with those.

    Returns:
        None if no pass was told, or, on a device, where phases tell more, if nothing shows that the
        process is part of a pipeline: many passes are not beside a transfer to or from another rank.
    """
    moved = transfers(trace)
    if not moved.height and not on_host:
        return None
    known = names.parse_all(trace.capture.ranges["name"])
    optimizers = [name for name, said in known.items() if said[0].kind is Kind.OPTIMIZER]
    apart = trace.capture.ranges.filter(
        pl.col("name").is_in(optimizers) | pl.col("name").str.contains(_APART)
    )
    others = trace.operators.filter(pl.col("role") < SEND)
    if not others["role"].is_between(CAST, COMPUTE).any():
        others = _launched(trace.capture, others, moved)
    found = passes(pl.concat([others, moved.select(others.columns)]), apart)
    if not found.height:
        return None
    beside = share_beside(found, moved)
    if beside < _PIPELINED and not (on_host and found["graph"].is_not_null().all()):
        return None
    stage = 0 if alone and beside < _ALONE else None
    process = trace.capture.work["process"].first() if trace.capture.work.height else 0
    # Graphs are numbered by thread: those of other processes in the same capture have the same numbers.
    of = pl.format(
        "{} of graph {} of thread {} of process {}", "kind", "graph", "thread", pl.lit(process)
    )
    named = found.with_columns(
        name=pl.coalesce(of, "kind"),
        received=received(found, moved),
        sent_to=sent_to(found, trace.capture),
    )
    meaning = {
        name: [
            ParsedName(
                Kind(kind),
                graph=graph,
                stage=stage,
                received=posted,
                sent_to=peer,
                certainty=certainty,
            )
        ]
        for name, kind, graph, posted, peer, certainty in named.group_by("name", "kind", "graph")
        .agg(
            pl.col("received").sum(),
            pl.col("sent_to").drop_nulls().last(),
            pl.col("certainty").min(),
        )
        .iter_rows()
    }
    frames = [named] if _several_chunks(found) else [named, named_transfers(moved, found)]
    ranges = [
        frame.with_columns(process=pl.lit(process, pl.Int64)).select(*RANGES) for frame in frames
    ]
    capture = msgspec.structs.replace(
        trace.capture,
        ranges=pl.concat([trace.capture.ranges, *ranges]),
        meaning={**trace.capture.meaning, **meaning},
    )
    graphs = found["graph"].is_not_null().any()
    how = {"kind": _HOW_GRAPHS if graphs else _HOW_TURNS}
    how |= {} if stage is None else {"stage": HOW_ALONE}
    return Unmarked(capture, how, alone=stage is not None)


def _several_chunks(found: pl.DataFrame) -> bool:
    """Say whether some graph was consumed before one that was built earlier."""
    built = found.filter(kind=Kind.FORWARD.value).unique("graph", keep="first")
    consumed = found.filter(pl.col("kind").is_in(_BACKWARD)).unique("graph", keep="first")
    both = built.join(consumed, on="graph", suffix="_back").sort("start_ns")
    return bool((both["start_ns_back"].diff() < 0).any())


_MARKS: Final = {"kineto": "torch", "nsight": "nvtx"}
"""What `bubblescope record --marks` takes to mark the traces of a source."""


def unmarked(tasks: pl.DataFrame, source: str) -> list[Notice]:
    """Return the note that passes were inferred, and what would have them stated instead; or none.

    Args:
        tasks: Tasks of all ranks; see `bubblescope.sources.projection.Projection`.
        source: Name of the format.
    """
    if "certainty" not in tasks.columns or "graph" not in tasks.columns:
        return []
    inferred = tasks.filter(pl.col("received").is_not_null()).drop_nulls("certainty")
    if not inferred.height:
        return []
    sure = inferred.filter(pl.col("certainty") > _HALF).height
    marks = _MARKS.get(source)
    way = (
        f"put `bubblescope record --marks {marks} --` before the command that profiles the job"
        if marks
        else "mark them with ranges"
    )
    text = (
        f"no range names a forward or a backward: {inferred.height} were told by the structure of the "
        f"trace, {sure} of them by what is hardly ever wrong; to have them stated, {way}"
    )
    return [Notice(INFERRED_PASSES, text, inferred.height - sure, inferred.height)]


def _launched(capture: Capture, engine: pl.DataFrame, moved: pl.DataFrame) -> pl.DataFrame:
    """Return launches of kernels in place of operators, where a trace has none of the caller's.

    The engine's are those of its threads or, where nothing names these, those of the one other thread
    that launches much: the caller's is the one that moves data to other ranks.

    Args:
        capture: What the process recorded.
        engine: What is known of autograd's engine, with the columns of `OPERATORS`.
        moved: Transfers.
    """
    computes = capture.work.filter(pl.col("comm").is_null(), pl.col("copy").is_null())
    launches = capture.launches.join(computes.select("correlation"), on="correlation", how="semi")
    busy = launches.group_by("thread").len().filter(pl.col("len") >= _MUCH * pl.col("len").max())
    main = moved["thread"].mode().sort().first()
    if main is None:  # nothing was moved, which would tell the caller
        return engine
    others = busy.filter(pl.col("thread") != main)["thread"]
    engines = engine["thread"].unique() if engine.height else others
    if len(engines) != 1 or main in engines:
        return engine
    return (
        launches.filter(pl.col("thread").is_in([main, engines[0]]))
        .with_columns(
            end_ns=pl.col("start_ns") + 1,
            role=pl.when(pl.col("thread") == main).then(PRODUCT).otherwise(BACKWARD).cast(pl.Int64),
            sequence=pl.lit(NONE, pl.Int64),
        )
        .select(*OPERATORS)
    )
