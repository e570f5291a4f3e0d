"""Forward, backward, recomputation and optimizer of a trace that names no passes.

PyTorch's autograd engine runs every backward, so a backward is a run of the engine's operators, on
whatever thread. What the calling thread launches before it, since the last backward or optimizer or
the beginning of the step, is its forward. Where nothing ran a backward, as in inference, the job's
own outermost ranges are its phases, or else its outermost modules, or else its steps.

Told by launches of device work, not by operators: an operator that launches nothing moves no boundary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from bubblescope.model.kinds import Kind
from bubblescope.names.parsed import ParsedName
from bubblescope.sources.capture import RANGES, Capture
from bubblescope.sources.kineto.collector import BACKWARD, COMPUTE, MODULE, NONE, SEND
from bubblescope.sources.kineto.nesting import enclosing, outermost
from bubblescope.sources.kineto.regions import regions

if TYPE_CHECKING:
    from collections.abc import Collection

    from bubblescope.names.parser import NameParser
    from bubblescope.sources.kineto.collector import Events
    from bubblescope.sources.kineto.steps import Steps

PHASES: Final = {**RANGES, "kind": pl.String}
"""Columns of phase ranges: those of `RANGES`, and the `Kind` of the phase."""

_RECOMPUTES: Final = r"^torch/utils/checkpoint\.py\(\d+\): recompute_fn$"
_ASIDE: Final = (
    r"^(?:enumerate\(DataLoader\)|Optimizer\.zero_grad#"
    r"|(?:## )?(?:zero_grad|data_?load|load_batch))"
)
"""Ranges whose work is of no pass: loading data, clearing gradients."""

_OTHER_WORK: Final = "work outside of passes"
_HOW_KIND: Final = (
    "work launched by operators that autograd's engine ran is a backward, what its caller launched "
    "before it a forward"
)
_HOW_REGION: Final = (
    "no operator of a backward, and no name of a pass that bubblescope knows (--names describes "
    "others): tasks are {}"
)
_HOW_STAGE: Final = "no transfers between ranks: each is taken to hold the whole model"
_STEP: Final = "step {}"

# What the moments are that the order of a process's launches is made of. Of several at one moment
# the lower comes first.
_ENDED, _BEGAN, _OPTIMIZER, _ENGINE, _MAIN = range(5)


class Phases(msgspec.Struct, frozen=True):
    """The phases of a trace, told without names.

    Attributes:
        capture: The trace, with a range for each phase in place of what named optimizers alone, and
            what the ranges mean.
        how: How they were told, by what was told: `kind`, `stage` and `step` as in `Run.inferred`.
    """

    capture: Capture
    how: dict[str, str]


def tell_phases(events: Events, steps: Steps, names: NameParser) -> Phases | None:
    """Tell the phases of a trace that names no passes, and put them in its capture.

    Args:
        events: The trace.
        steps: Its steps.
        names: What range names mean.

    Returns:
        None if nothing tells a phase.
    """
    ranges = phase_ranges(events, steps, names)
    passes = ranges["kind"].is_in([Kind.FORWARD.value, Kind.BACKWARD.value])
    others = ranges["kind"] == Kind.OTHER.value
    if not (passes | others).any():
        return None
    how = {"kind": _HOW_KIND if passes.any() else _HOW_REGION.format(_source(ranges, events))}
    # Kernels that send and receive may be a pipeline's: then the order of ranks tells stages, or
    # nothing does.
    alone = passes.any() and not any(
        comm.known_kind() is Kind.OTHER for comm in events.capture.comms
    )
    if alone:
        how["stage"] = _HOW_STAGE
    stage = 0 if alone else None
    known = names.parse_all(events.capture.ranges["name"])
    meaning = {
        name: [
            ParsedName(Kind(kind), stage=None if kind == Kind.OTHER.value else stage),
            *(said for said in known.get(name, ()) if said.kind is None),
        ]
        for name, kind in ranges.select("name", "kind").unique().sort("name").rows()
    }
    kept = [
        name
        for name, parsed in known.items()
        if name not in meaning and parsed[0].kind is not Kind.OPTIMIZER
    ]
    parts = [
        events.capture.ranges.filter(pl.col("name").is_in(kept)),
        ranges.select(*RANGES),
    ]
    if steps.marked and steps.how:
        marked = steps.ranges.with_columns(name=pl.format(_STEP, "step"))
        meaning |= {
            _STEP.format(step): [ParsedName(None, step=step)] for step in marked["step"].to_list()
        }
        how["step"] = steps.how
        parts.append(marked.select(*RANGES))
    capture = msgspec.structs.replace(events.capture, ranges=pl.concat(parts), meaning=meaning)
    return Phases(capture, how)


def phase_ranges(events: Events, steps: Steps, names: NameParser) -> pl.DataFrame:
    """Return the phases of a trace in host time, whatever its ranges say of passes.

    Args:
        events: The trace, with its operators.
        steps: Its steps.
        names: What range names mean, of which those of optimizers are believed.

    Returns:
        Frame with the columns of `PHASES`, by start: forwards, backwards, recomputations inside of
        those, optimizers and, as kind other, what else launched work; or, where no operator is of a
        backward, regions of kind other. Nothing if the trace launched no device work, or transfers
        between its passes show that it is a pipeline, whose passes are not told so simply.
    """
    nothing = pl.DataFrame(schema=PHASES)
    launches = (
        events.capture.launches.join(events.capture.work, on="correlation", how="semi")
        .select("thread", "start_ns")
        .sort("start_ns")
    )
    if not launches.height:
        return nothing
    engine = outermost(events.operators.filter(pl.col("role") == BACKWARD))
    meaning = names.parse_all(events.capture.ranges["name"])
    optimizing = [name for name, parsed in meaning.items() if parsed[0].kind is Kind.OPTIMIZER]
    closed = events.capture.ranges.drop_nulls("end_ns")
    optimizers = _optimizers(closed.filter(pl.col("name").is_in(optimizing)), engine)
    if not engine.height:
        found = _regions(events, steps, launches, meaning)
        return pl.concat([found, optimizers]).sort("start_ns")
    transfers = events.operators.filter(pl.col("role") >= SEND)
    within = enclosing(transfers, engine)["until_ns"].is_not_null()
    if transfers.height and not within.any():
        return nothing
    launches = enclosing(launches, engine).with_columns(engine=pl.col("until_ns").is_not_null())
    main = _main_thread(launches)
    engines = engine.filter(pl.col("thread") != main)["thread"].unique()
    aside = _launching(
        outermost(closed.filter(pl.col("name").str.contains(_ASIDE), pl.col("thread") == main)),
        launches,
    ).with_columns(kind=pl.lit(Kind.OTHER.value))
    passes = _passes(
        _moments(launches, engine, engines, main, optimizers, aside, steps), events, main
    )
    recomputed = _recomputations(events, engine, launches)
    parts = [_named(passes), _named(recomputed), optimizers.select(*PHASES), aside.select(*PHASES)]
    return pl.concat(parts).sort("start_ns")


def _optimizers(ranges: pl.DataFrame, engine: pl.DataFrame) -> pl.DataFrame:
    """Return the optimizers' ranges, the outermost alone, and of them what is no backward.

    One that runs as soon as a gradient is there is part of the backward. One that is given a
    closure runs forward and backward itself, before its own work (PyTorch Lightning).
    """
    inside = enclosing(ranges, engine)
    alone = outermost(inside.filter(pl.col("until_ns").is_null()).drop("since_ns", "until_ns"))
    begun = engine.sort("start_ns").select(
        engine_ns="start_ns", reached_ns=pl.col("end_ns").cum_max()
    )
    last = alone.sort("end_ns").join_asof(begun, left_on="end_ns", right_on="engine_ns")
    own = (
        pl.when(pl.col("engine_ns") >= pl.col("start_ns"))
        .then(pl.min_horizontal("reached_ns", "end_ns"))
        .otherwise("start_ns")
    )
    return last.with_columns(start_ns=own, kind=pl.lit(Kind.OPTIMIZER.value)).select(*PHASES)


def _main_thread(launches: pl.DataFrame) -> int:
    """Return the thread that launched most outside of the engine; any if none did."""
    counts = launches.group_by("thread").agg(outside=(~pl.col("engine")).sum())
    return int(counts.sort("outside", "thread", descending=[True, False])["thread"][0])


def _launching(ranges: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return those of disjoint ranges in which their own thread launched device work."""
    at = enclosing(launches.select("thread", "start_ns"), ranges).drop_nulls("since_ns")
    return ranges.join(
        at.select("thread", start_ns="since_ns").unique(), on=["thread", "start_ns"], how="semi"
    )


def _moments(
    launches: pl.DataFrame,
    engine: pl.DataFrame,
    engines: pl.Series,
    main: int,
    optimizers: pl.DataFrame,
    aside: pl.DataFrame,
    steps: Steps,
) -> pl.DataFrame:
    """Return everything that makes or parts passes, in order: sort, start_ns, end_ns, launched."""

    def of(frame: pl.DataFrame, sort: int, start: str, end: str | pl.Expr) -> pl.DataFrame:
        return frame.select(
            sort=pl.lit(sort),
            start_ns=pl.col(start),
            end_ns=pl.col(end) if isinstance(end, str) else end,
            launched=pl.lit(value=sort == _MAIN),
        )

    at_once = pl.col("start_ns") + 1
    by_engine = pl.col("engine") | pl.col("thread").is_in(engines.implode())
    backward = of(launches.filter(by_engine), _ENGINE, "start_ns", at_once)
    ours = launches.filter(~pl.col("engine"), pl.col("thread") == main).select("thread", "start_ns")
    for taken in (optimizers, aside):
        found = enclosing(ours, taken)
        ours = found.filter(pl.col("until_ns").is_null()).select("thread", "start_ns")
    marks = steps.ranges if steps.marked else steps.ranges.clear()
    return pl.concat(
        [
            of(marks, _ENDED, "end_ns", "end_ns"),
            of(marks, _BEGAN, "start_ns", "start_ns"),
            of(optimizers, _OPTIMIZER, "start_ns", "end_ns"),
            of(engine, _ENGINE, "start_ns", "end_ns"),
            backward.with_columns(launched=pl.lit(value=True)),
            of(ours, _MAIN, "start_ns", at_once),
        ]
    ).sort("start_ns", "sort")


def _passes(moments: pl.DataFrame, events: Events, main: int) -> pl.DataFrame:
    """Return forwards, backwards and what is neither: a run of moments of one sort each."""
    runs = (
        moments.group_by(pl.col("sort").rle_id().alias("run"), "sort", maintain_order=True)
        .agg(
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            pl.col("start_ns").max().alias("last_ns"),
            pl.col("launched").any(),
        )
        .with_columns(
            before=pl.col("sort").shift(1),
            after=pl.col("sort").shift(-1),
            next_ns=pl.col("start_ns").shift(-1),
        )
    )
    ours = runs.filter(pl.col("sort") == _MAIN)
    before, after = pl.col("before"), pl.col("after")
    # A step without a backward evaluates; what autograd recorded is a forward, wherever it is cut off.
    evaluates = (before == _BEGAN) & after.is_in([_ENDED, _BEGAN]).fill_null(value=True)
    cut_off = pl.col("recorded") & ((before != _ENGINE).fill_null(value=True) | after.is_null())
    forward = (after == _ENGINE).fill_null(value=False) | evaluates.fill_null(value=False) | cut_off
    operators = events.operators.filter(pl.col("thread") == main)
    forwards = (
        ours.join(_recorded(ours, operators), on="run", how="left")
        .with_columns(pl.col("recorded").fill_null(value=False))
        .with_columns(
            kind=pl.when(forward)
            .then(pl.lit(Kind.FORWARD.value))
            .otherwise(pl.lit(Kind.OTHER.value)),
        )
    )
    # The host leaves the last operator some time after its launch.
    ends = enclosing(
        forwards.select("run", thread=pl.lit(main, pl.Int64), start_ns="last_ns"),
        outermost(operators),
    ).select("run", "until_ns")
    forwards = forwards.join(ends, on="run", how="left").with_columns(
        end_ns=pl.when((after == _ENGINE).fill_null(value=False))
        .then("next_ns")
        .otherwise(
            pl.min_horizontal(pl.max_horizontal("end_ns", "until_ns"), "next_ns").clip(
                lower_bound=pl.col("end_ns")
            )
        )
    )
    backwards = runs.filter(pl.col("sort") == _ENGINE, "launched").with_columns(
        kind=pl.lit(Kind.BACKWARD.value)
    )
    return pl.concat(
        frame.select("start_ns", "end_ns", "kind", thread=pl.lit(main, pl.Int64))
        for frame in (forwards, backwards)
    )


def _recorded(runs: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """Say in which runs autograd recorded an operator: its sequence number advanced there."""
    numbered = operators.filter(pl.col("role") == COMPUTE, pl.col("sequence") != NONE)
    return (
        numbered.sort("start_ns")
        .join_asof(
            runs.select("run", "start_ns", "last_ns").sort("start_ns"),
            on="start_ns",
        )
        .filter(pl.col("start_ns") <= pl.col("last_ns"))
        .group_by("run")
        .agg(recorded=pl.col("sequence").n_unique() > 1)
    )


def _recomputations(events: Events, engine: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return what activation checkpointing computed anew inside of backwards.

    Its newer form calls `recompute_fn`, which shows only with Python's stack. Its older one runs a
    backward of its own inside an operator of the engine, after the forward that it repeats.
    """
    called = events.frames.filter(pl.col("name").str.contains(_RECOMPUTES))
    called = enclosing(called, engine).drop_nulls("until_ns").select("thread", "start_ns", "end_ns")
    found = outermost(pl.concat([called, _before_nested(events.operators, engine)]))
    return _launching(found, launches).with_columns(kind=pl.lit(Kind.RECOMPUTE.value))


def _before_nested(operators: pl.DataFrame, engine: pl.DataFrame) -> pl.DataFrame:
    """Return what runs in an operator of the engine before another one begins inside of it.

    It begins after the last operator that encloses that other one began.
    """
    inside = enclosing(operators, engine).filter(pl.col("start_ns") >= pl.col("since_ns"))
    first = (
        inside.filter(pl.col("role") == BACKWARD, pl.col("start_ns") > pl.col("since_ns"))
        .group_by("thread", "since_ns")
        .agg(first_ns=pl.col("start_ns").min())
    )
    return (
        inside.join(first, on=["thread", "since_ns"])
        .filter(pl.col("start_ns") < pl.col("first_ns"), pl.col("end_ns") > pl.col("first_ns"))
        .group_by("thread", "first_ns")
        .agg(start_ns=pl.col("start_ns").max() + 1)
        .select("thread", "start_ns", end_ns="first_ns")
    )


def _named(phases: pl.DataFrame) -> pl.DataFrame:
    """Name phases by their kind."""
    other = pl.col("kind") == Kind.OTHER.value
    return phases.with_columns(
        process=pl.lit(0, pl.Int64),
        name=pl.when(other).then(pl.lit(_OTHER_WORK)).otherwise("kind"),
    ).select(*PHASES)


def _regions(
    events: Events, steps: Steps, launches: pl.DataFrame, known: Collection[str]
) -> pl.DataFrame:
    """Return the regions of a trace without a backward, with the columns of `PHASES`."""
    main = _main_thread(launches.with_columns(engine=pl.lit(value=False)))
    names = events.capture.ranges["name"].unique()
    aside = names.filter(names.str.contains(_ASIDE))
    launched = launches.filter(pl.col("thread") == main)["start_ns"].to_numpy()
    return (
        regions(events, steps, launched, main, [*known, *aside])
        .with_columns(
            process=pl.lit(0, pl.Int64),
            thread=pl.lit(main, pl.Int64),
            kind=pl.lit(Kind.OTHER.value),
        )
        .select(*PHASES)
    )


def _source(ranges: pl.DataFrame, events: Events) -> str:
    """Say what regions are: modules, or the job's own ranges."""
    named = ranges.filter(pl.col("kind") == Kind.OTHER.value)["name"]
    modules = (
        named.str.starts_with(MODULE).all()
        and not named.is_in(events.capture.ranges["name"].unique().implode()).any()
    )
    return "the outermost modules" if modules else "the job's outermost ranges"
