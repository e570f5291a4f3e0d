"""Forward, backward, recomputation and optimizer of a trace that names no passes of a pipeline.

PyTorch's autograd engine runs every backward, so a backward is a run of the engine's operators, on
whatever thread. What the calling thread launches before it, since the last backward or optimizer or
the beginning of the step, is its forward. Where no operator says so, ranges named as phases are
believed, and those that FSDP2 makes around forwards. Where nothing ran a backward, as in inference, the
job's own outermost ranges are its phases, or else its outermost modules, or else its steps.

Told by launches of device work, not by operators: an operator that launches nothing moves no boundary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import polars as pl

from bubblescope.model.kinds import COMPUTE_KINDS, Kind
from bubblescope.names.parsed import ParsedName
from bubblescope.names.phase_words import forward_edge, phase_word
from bubblescope.sources.capture import RANGES, Capture
from bubblescope.sources.nesting import enclosing, outermost
from bubblescope.sources.passes import moments, passes
from bubblescope.sources.phase_evidence import BACKWARD, CAST, COMPUTE, MODULE, NODE, SEND
from bubblescope.sources.regions import regions
from bubblescope.sources.structure.unmarked import HOW_ALONE

if TYPE_CHECKING:
    from collections.abc import Collection

    from bubblescope.names.parser import NameParser
    from bubblescope.sources.phase_evidence import Traced
    from bubblescope.sources.step_marks import Steps

PHASES: Final = {**RANGES, "kind": pl.String}
"""Columns of phase ranges: those of `RANGES`, and the `Kind` of the phase."""

_RECOMPUTES: Final = r"^torch/utils/checkpoint\.py\(\d+\): recompute_fn$"
_ASIDE: Final = (
    r"^(?:enumerate\(DataLoader\)|Optimizer\.zero_grad#"
    r"|(?:## )?(?:zero_grad|data_?load|load_batch))"
)
"""Ranges whose work is of no pass: loading data, clearing gradients."""

_OTHER_WORK: Final = "work outside of passes"
_UNRECORDED: Final = "forward without autograd"
_BESIDE: Final = "work outside of ranges"
_HOW_ENGINE: Final = (
    "work launched by operators that autograd's engine ran is a backward, what its caller launched "
    "before it a forward"
)
_HOW_THREADS: Final = (
    "work launched by threads of autograd, or in ranges named after a module's backward, is a "
    "backward, what its caller launched before it a forward"
)
_HOW_BACKWARD: Final = (
    "work launched by threads of autograd, or in ranges named after a module's backward, is a "
    "backward; nothing distinguishes forwards from optimizers"
)
_HOW_WORDS: Final = "the outermost ranges named forward, backward and the like"
_HOW_FORWARD: Final = "FSDP's ranges before and after the forwards of modules"
_HOW_REGION: Final = (
    "no operator of a backward, and no name of a pass that bubblescope knows (--names describes "
    "others): tasks are {}"
)
_CERTAINTY: Final = 0.95
"""Probability that a phase is what it is told to be."""
_STEP: Final = "marker of step {}"

_PASSES: Final = [Kind.FORWARD.value, Kind.BACKWARD.value]


class Phases(msgspec.Struct, frozen=True):
    """The phases of a trace, told without names.

    Attributes:
        capture: The trace, with a range for each phase in place of what named optimizers alone, and
            what the ranges mean.
        how: How they were told, by what was told: `kind`, `stage` and `step` as in `Run.inferred`.
    """

    capture: Capture
    how: dict[str, str]


def tell_phases(trace: Traced, steps: Steps, names: NameParser) -> Phases | None:
    """Tell the phases of a trace that names no passes, and put them in its capture.

    Args:
        trace: The trace.
        steps: Its steps.
        names: What range names mean.

    Returns:
        None if nothing tells a phase.
    """
    ranges, how_kind = phase_ranges(trace, steps, names)
    passes = ranges["kind"].is_in(_PASSES)
    others = ranges["kind"] == Kind.OTHER.value
    if not (passes | others).any():
        return None
    how = {"kind": how_kind}
    # Kernels that send and receive may be a pipeline's: then the order of ranks tells stages, or
    # nothing does.
    alone = passes.any() and not any(
        comm.known_kind() is Kind.OTHER for comm in trace.capture.comms
    )
    if alone:
        how["stage"] = HOW_ALONE
    stage = 0 if alone else None
    known = names.parse_all(trace.capture.ranges["name"])
    meaning = {
        name: [
            ParsedName(
                Kind(kind),
                stage=None if kind == Kind.OTHER.value else stage,
                certainty=_CERTAINTY if Kind(kind) in COMPUTE_KINDS else None,
            ),
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
        trace.capture.ranges.filter(pl.col("name").is_in(kept)),
        ranges.select(*RANGES),
    ]
    if marks := step_markers(steps):
        meaning |= marks.meaning
        parts.append(marks.ranges)
    if steps.how and steps.marked:
        how["step"] = steps.how
    capture = msgspec.structs.replace(trace.capture, ranges=pl.concat(parts), meaning=meaning)
    return Phases(capture, how)


class Markers(NamedTuple):
    """Steps as ranges that a projection takes for their markers.

    Attributes:
        ranges: Frame with the columns of `RANGES`.
        meaning: What their names mean.
    """

    ranges: pl.DataFrame
    meaning: dict[str, list[ParsedName]]


def step_markers(steps: Steps) -> Markers | None:
    """Return the markers of steps that were told; None if there are none, or the trace's own."""
    if not (steps.marked and steps.how):
        return None
    marked = steps.ranges.with_columns(name=pl.format(_STEP, "step"))
    numbers = marked["step"].unique().to_list()
    meaning = {_STEP.format(step): [ParsedName(None, step=step)] for step in numbers}
    return Markers(marked.select(*RANGES), meaning)


class Told(NamedTuple):
    """Phases of a trace in host time.

    Attributes:
        ranges: Frame with the columns of `PHASES`, by start.
        how: How they were told.
    """

    ranges: pl.DataFrame
    how: str


def phase_ranges(trace: Traced, steps: Steps, names: NameParser) -> Told:
    """Return the phases of a trace in host time, whatever its ranges say of passes.

    Args:
        trace: The trace, with its operators.
        steps: Its steps.
        names: What range names mean, of which those of optimizers are believed.

    Returns:
        Forwards, backwards, recomputations inside of those, optimizers and, as kind other, what else
        launched work; or, where nothing tells a pass, regions of kind other. Nothing if the trace
        launched no device work, or transfers between its passes show that it is a pipeline, whose
        passes are not told so simply.
    """
    nothing = Told(pl.DataFrame(schema=PHASES), "")
    launches = (
        trace.capture.launches.join(trace.capture.work, on="correlation", how="semi")
        .select("process", "thread", "start_ns")
        .sort("start_ns")
    )
    if not launches.height:
        return nothing
    process, launches = int(launches["process"][0]), launches.drop("process")
    told = _told(trace, steps, names, launches)
    return told._replace(
        ranges=told.ranges.with_columns(process=pl.lit(process, pl.Int64)).sort("start_ns")
    )


def _told(trace: Traced, steps: Steps, names: NameParser, launches: pl.DataFrame) -> Told:
    """Return the phases of a trace that launched something, by the best evidence."""
    # Where the trace lacks a call of the engine, it may still have the node that was called.
    engine = outermost(trace.operators.filter(pl.col("role").is_in([BACKWARD, NODE])))
    meaning = names.parse_all(trace.capture.ranges["name"])
    optimizing = [name for name, parsed in meaning.items() if parsed[0].kind is Kind.OPTIMIZER]
    closed = trace.capture.ranges.drop_nulls("end_ns")
    optimizers = _optimizers(closed.filter(pl.col("name").is_in(optimizing)), engine)
    inside = enclosing(launches, engine).with_columns(engine=pl.col("until_ns").is_not_null())
    main = _main_thread(inside)
    # Without operators of the caller, those of the engine say less than names do.
    own = trace.operators.filter(pl.col("role").is_between(CAST, COMPUTE), pl.col("thread") == main)
    operators = own.height > 0
    apart = _Apart(launches, main, optimizers, steps)
    if not (engine.height and operators):
        if (worded := _worded(closed, apart)) is not None:
            return Told(worded, _HOW_WORDS)
        if not engine.height and (forwards := _fsdp_forwards(closed, apart)) is not None:
            return Told(forwards, _HOW_FORWARD)
    if not engine.height:
        found = _regions(trace, steps, launches, meaning)
        taken = pl.concat([found, optimizers])
        rest = apart.rest(taken, _BESIDE) if taken.height else found
        how = _HOW_REGION.format(_source(found, trace))
        return Told(pl.concat([taken, rest]), how)
    engines = engine.filter(pl.col("thread") != main)["thread"].unique()
    if _pipelines(trace.operators, engine, engines):
        return Told(pl.DataFrame(schema=PHASES), "")
    aside = _launching(
        outermost(closed.filter(pl.col("name").str.contains(_ASIDE), pl.col("thread") == main)),
        launches,
    ).with_columns(kind=pl.lit(Kind.OTHER.value))
    order = moments(inside, engine, engines, main, optimizers, aside, steps)
    separable = operators or optimizers.height > 0
    found = passes(order, trace.operators, main, separable=separable)
    recomputed = _recomputations(trace, engine, launches)
    parts = [_named(found), _named(recomputed), optimizers.select(*PHASES), aside.select(*PHASES)]
    how = _HOW_ENGINE if operators else _HOW_THREADS if separable else _HOW_BACKWARD
    return Told(pl.concat(parts), how)


def _pipelines(operators: pl.DataFrame, engine: pl.DataFrame, engines: pl.Series) -> bool:
    """Say whether transfers between ranks are a pipeline's: those are never part of a backward."""
    transfers = operators.filter(pl.col("role") >= SEND)
    within = enclosing(transfers, engine)["until_ns"].is_not_null()
    return transfers.height > 0 and not (
        within.any() or transfers["thread"].is_in(engines.implode()).any()
    )


class _Apart(NamedTuple):
    """What parts the phases that ranges tell, and all else.

    Attributes:
        launches: Frame with thread and start_ns of all launches of device work, by start.
        main: The thread that launched most.
        optimizers: Ranges of optimizers, with the columns of `PHASES`.
        steps: The steps.
    """

    launches: pl.DataFrame
    main: int
    optimizers: pl.DataFrame
    steps: Steps

    def rest(self, taken: pl.DataFrame, name: str) -> pl.DataFrame:
        """Return what else the main thread launched, a range for each run of launches.

        Args:
            taken: Frame with the columns of `PHASES`.
            name: What to call it.
        """
        solid = outermost(taken.filter(thread=self.main))
        own = self.launches.filter(pl.col("thread") == self.main)
        free = enclosing(own, solid).filter(pl.col("until_ns").is_null())
        cuts = [solid["start_ns"], solid["end_ns"]]
        if self.steps.marked:
            cuts += [self.steps.ranges["start_ns"], self.steps.ranges["end_ns"]]
        edges = pl.concat(cuts).drop_nulls().unique().sort()
        return (
            free.group_by(run=edges.search_sorted(free["start_ns"], side="right"))
            .agg(start_ns=pl.col("start_ns").min(), end_ns=pl.col("start_ns").max() + 1)
            .select(
                process=pl.lit(0, pl.Int64),
                thread=pl.lit(self.main, pl.Int64),
                start_ns="start_ns",
                end_ns="end_ns",
                name=pl.lit(name),
                kind=pl.lit(Kind.OTHER.value),
            )
        )


def _worded(closed: pl.DataFrame, apart: _Apart) -> pl.DataFrame | None:
    """Return the ranges that are named as whole phases; None if none of a pass launched anything.

    A backward's work is launched by a thread of autograd, while the range is open. What is named a
    forward inside of a backward is computed anew.
    """
    said = {name: kind for name in closed["name"].unique() if (kind := phase_word(name))}
    if not set(said.values()) & {Kind.FORWARD, Kind.BACKWARD}:
        return None
    named = closed.filter(pl.col("name").is_in(list(said))).with_columns(
        kind=pl.col("name").replace_strict(
            list(said), [kind.value for kind in said.values()], return_dtype=pl.String
        )
    )
    found = outermost(named)
    begin, end = (
        apart.launches["start_ns"].search_sorted(found[edge], side="left")
        for edge in ("start_ns", "end_ns")
    )
    found = found.filter(begin < end)
    if not found["kind"].is_in(_PASSES).any():
        return None
    backward = found.filter(kind=Kind.BACKWARD.value)
    within = enclosing(named.filter(kind=Kind.FORWARD.value), backward).drop_nulls("until_ns")
    again = outermost(within).with_columns(kind=pl.lit(Kind.RECOMPUTE.value))
    optimizers = enclosing(apart.optimizers, found).filter(pl.col("until_ns").is_null())
    taken = pl.concat([found.select(*PHASES), optimizers.select(*PHASES)])
    # One name is one kind: those of recomputations are the kind's own.
    phases = pl.concat([taken, again.with_columns(name=pl.col("kind")).select(*PHASES)])
    return pl.concat([phases, apart.rest(taken, _OTHER_WORK)])


def _fsdp_forwards(closed: pl.DataFrame, apart: _Apart) -> pl.DataFrame | None:
    """Return the forwards that FSDP2's ranges tell; None if there are none.

    A forward begins with the range of the whole model or, where none was recorded, where a module that
    the forward before it has run begins anew. It ends with the last module's, or is cut off.
    """
    said = {name: edge for name in closed["name"].unique() if (edge := forward_edge(name))}
    marks = closed.filter(pl.col("name").is_in(list(said)), thread=apart.main).sort("start_ns")
    own = apart.launches.filter(thread=apart.main)["start_ns"]
    if not marks.height or not len(own):
        return None
    edges = [said[name] for name in marks["name"]]
    marks = marks.with_columns(
        module=pl.Series([edge.module for edge in edges]),
        begins=pl.Series([edge.begins for edge in edges]),
        root=pl.Series([edge.begins and edge.root for edge in edges]),
    )
    again = pl.int_range(pl.len()).over("module", "begins")
    anew = pl.col("begins") & (again > again.cum_max().shift(1))
    first = pl.col("root") if marks["root"].any() else anew.fill_null(value=False)
    until = int(own.max()) + 1  # type: ignore[arg-type]  # integers
    found = (
        marks.group_by(run=first.cum_sum(), maintain_order=True)
        .agg(
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            entered=pl.col("begins").first(),
            left=~pl.col("begins").last(),
        )
        .with_columns(following=pl.col("start_ns").shift(-1).fill_null(until))
        .with_columns(
            start_ns=pl.when(pl.col("entered") | (pl.col("run") > 0))
            .then("start_ns")
            .otherwise(pl.min_horizontal("start_ns", pl.lit(own.min()))),
            end_ns=pl.when("left").then("end_ns").otherwise("following"),
        )
        .select("start_ns", "end_ns", thread=pl.lit(apart.main, pl.Int64))
    )
    launching = _launching(found, apart.launches)
    if not launching.height:
        return None
    phases = _named(launching.with_columns(kind=pl.lit(Kind.FORWARD.value)))
    taken = pl.concat([phases, apart.optimizers])
    return pl.concat([taken, apart.rest(taken, _OTHER_WORK)])


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


def _recomputations(trace: Traced, engine: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return what activation checkpointing computed anew inside of backwards.

    Its newer form calls `recompute_fn`, which shows only with Python's stack. Its older one runs a
    backward of its own inside an operator of the engine, after the forward that it repeats. Where FSDP2
    shards what is computed anew, its ranges are around that forward.
    """
    called = trace.frames.filter(pl.col("name").str.contains(_RECOMPUTES))
    sharded = _between_edges(trace.capture.ranges.drop_nulls("end_ns"))
    spans = pl.concat([called.select(_SPAN), sharded.select(_SPAN)])
    inside = enclosing(spans, engine).drop_nulls("until_ns").select(_SPAN)
    found = outermost(pl.concat([inside, _before_nested(trace.operators, engine)]))
    return _launching(found, launches).with_columns(kind=pl.lit(Kind.RECOMPUTE.value))


_SPAN: Final = ["thread", "start_ns", "end_ns"]


def _between_edges(closed: pl.DataFrame) -> pl.DataFrame:
    """Return from where to where FSDP2's ranges say that the forward of a module went."""
    said = {name: edge for name in closed["name"].unique() if (edge := forward_edge(name))}
    marks = closed.filter(pl.col("name").is_in(list(said))).sort("thread", "start_ns")
    begins = pl.Series([said[name].begins for name in marks["name"]], dtype=pl.Boolean)
    following = pl.col("begins").shift(-1).over("thread")
    return (
        marks.with_columns(begins=begins)
        .with_columns(end_ns=pl.col("end_ns").shift(-1).over("thread"), closes=~following)
        .filter("begins", pl.col("closes").fill_null(value=False))
    )


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
    """Name phases by their kind, and what is of none by whether it is a forward all the same."""
    other = pl.lit(_OTHER_WORK)
    if "unrecorded" in phases.columns:
        other = pl.when("unrecorded").then(pl.lit(_UNRECORDED)).otherwise(other)
    return phases.with_columns(
        process=pl.lit(0, pl.Int64),
        name=pl.when(pl.col("kind") == Kind.OTHER.value).then(other).otherwise("kind"),
    ).select(*PHASES)


def _regions(
    trace: Traced, steps: Steps, launches: pl.DataFrame, known: Collection[str]
) -> pl.DataFrame:
    """Return the regions of a trace without a backward, with the columns of `PHASES`."""
    main = _main_thread(launches.with_columns(engine=pl.lit(value=False)))
    names = trace.capture.ranges["name"].unique()
    aside = names.filter(names.str.contains(_ASIDE))
    launched = launches.filter(pl.col("thread") == main)["start_ns"].to_numpy()
    return (
        regions(trace, steps, launched, main, [*known, *aside])
        .with_columns(
            process=pl.lit(0, pl.Int64),
            thread=pl.lit(main, pl.Int64),
            kind=pl.lit(Kind.OTHER.value),
        )
        .select(*PHASES)
    )


def _source(regions: pl.DataFrame, trace: Traced) -> str:
    """Say what tasks are: modules, or the job's own ranges, or no more than optimizers."""
    if not regions.height:
        return "its optimizers and what is between them"
    own = regions["name"].is_in(trace.capture.ranges["name"].unique().implode())
    modules = not own.any() and regions["name"].str.starts_with(MODULE).all()
    return "the outermost modules" if modules else "the job's outermost ranges"
