"""What a page tells of a run that was looked at in parts, and the making of all of its levels."""

from __future__ import annotations

import io
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import polars as pl

from bubblescope.analysis.pieces.study_of_pieces import study_of
from bubblescope.analysis.standard_questions import Questions
from bubblescope.analysis.verdict import Verdict
from bubblescope.analysis.view import View
from bubblescope.analysis.why import Explanation
from bubblescope.engine.remote_results import Held
from bubblescope.model import units
from bubblescope.model.errors import TimelineError
from bubblescope.model.plain_text import cut
from bubblescope.model.timeline import TASK_SCHEMA, Timeline
from bubblescope.model.version import __version__
from bubblescope.render.html import schema
from bubblescope.render.html.counter_samples import counters_of
from bubblescope.render.html.device_sums import devices_of
from bubblescope.render.html.kernels import NOT_ASKED
from bubblescope.render.html.packing import LANE, TASK_ROW, cells_of, phase_columns
from bubblescope.render.html.page_blocks.block_files import INDEX, OVERVIEW, TOLD, Index, Part
from bubblescope.render.html.page_blocks.block_writing import (
    Explaining,
    Keeping,
    Kept,
    Page,
    widths,
)
from bubblescope.render.html.page_blocks.served import Blocks
from bubblescope.render.html.summary import summary, title_of, unrecorded_of, verdict_of
from bubblescope.render.layout import ordered_ranks
from bubblescope.sources.dataset.levels_folder import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from bubblescope.analysis.overview import Overview
    from bubblescope.analysis.pieces.measures import Stored
    from bubblescope.analysis.pieces.run_in_pieces import Pieces, Runs
    from bubblescope.analysis.pieces.study_of_pieces import Found
    from bubblescope.analysis.rank_standing import Alike
    from bubblescope.analysis.rates import BubbleRates
    from bubblescope.render.html.counter_samples import Counters
    from bubblescope.render.html.page_blocks.block_files import Levels

A_BLOCK: Final = 60_000
"""Tasks of a block, about: it is read in some hundredths of a second."""
_TITLE: Final = 200
_TEXT: Final = 10_000
_NONE: Final = -1


def make_levels(
    levels: Levels,
    pieces: Pieces | Held[Pieces],
    run: Runs,
    *,
    replayed: int | None = None,
    folder: Path | None = None,
    measures: Stored | None = None,
) -> None:
    """Work out what the page of a run shows, and write it.

    Why ranks are idle is worked out of the step that the page opens with, and of those that are
    replayed for what it tells of the whole run; of others, `explain_part` does that.

    Args:
        levels: Where to.
        pieces: The run.
        run: What runs looks at its parts.
        replayed: As of `bubblescope.analysis.pieces.study_of_pieces.study_of`.
        folder: As of `bubblescope.analysis.pieces.study_of_pieces.study_of`.
        measures: Likewise.

    Raises:
        Whatever an engine or a part raises.
        OSError: It cannot be written.
    """
    # Who asked holds nothing that is as long as the run.
    held = pieces if isinstance(pieces, Held) else Held.of(pieces, folder)
    index, unexplained = study_of(
        held,
        run,
        replayed=replayed,
        folder=folder,
        keeping=partial(_keeping, levels),
        measures=measures,
        then=partial(_laid_down, held, folder),
    )
    if unexplained is not None:
        explain_part(levels, index, held, run, unexplained, folder=folder, measures=measures)
    for _ in run(_finish, [_Looking(levels, index)]):
        pass


def explain_part(
    levels: Levels,
    index: Held[Index],
    pieces: Pieces | Held[Pieces],
    run: Runs,
    number: int,
    *,
    folder: Path | None = None,
    measures: Stored | None = None,
) -> None:
    """Work out why ranks are idle in a part of a run whose page is there, and write it.

    It is what `why` says of the steps of the part alone, but for when they were and which schedule
    they follow, which the whole run tells.

    Args:
        levels: Where the page lies.
        index: Which blocks it has, as all workers see it.
        pieces: The run.
        run: What runs looks at its parts.
        number: Of the part.
        folder: As of `make_levels`.
        measures: Likewise.

    Raises:
        Whatever an engine or a part raises.
        OSError: It cannot be written.
    """
    keeping = partial(_explaining, levels, index)
    study_of(
        pieces,
        run,
        only=[number],
        folder=folder,
        explained=False,
        keeping=keeping,
        measures=measures,
        then=_done,
    )


def _laid_down(
    pieces: Held[Pieces],
    folder: Path | None,
    found: Found,
) -> tuple[Held[Index], int | None]:
    """Write what the page tells of the run.

    Args:
        pieces: The run.
        folder: As of `make_levels`.
        found: What is known of the run.

    Returns:
        Which blocks there are, and the part that has the step with which the page opens, if it has
        not been worked out yet why ranks are idle in it.
    """
    keeper: Keeping = found.keeper
    page, run = keeper.page, pieces.got()
    steps = run.parts
    kept: Sequence[Kept] = found.kept
    # A number for each name of the run, in the order in which parts have them.
    numbers: dict[str, int] = {}
    parts = []
    for one, own in zip(kept, steps, strict=True):
        codes = tuple(numbers.setdefault(name, len(numbers)) for name in one.names)
        parts.append(Part(tuple(one.cells), codes, tuple(one.afar), len(own)))
    rows = pl.concat([one.rows for one in kept]).unique()
    rows = rows.sort(pl.col("position"), pl.col("lane").cast(LANE), pl.col("row"))
    index = Index(
        SCHEMA,
        __version__,
        page.origin_ns,
        page.batches,
        page.widths_ns,
        tuple(parts),
        tuple(
            schema.Row(rank=position, lane=lane, row=row, first=0, to=0)
            for position, lane, row in rows.select(TASK_ROW).iter_rows()
        ),
    )
    told = _tell(index, keeper, steps, found, kept, run.counters(), list(numbers))
    held = Held.of(index, folder)
    if told.opening is None:
        return held, None
    opens = told.steps[told.opening].step
    part = next(at for at, own in enumerate(steps) if opens in own)
    return held, part if page.levels.explained(part, index) is None else None


class _Looking(NamedTuple):
    """Levels of which all but the overview and the index is there."""

    levels: Levels
    known: Held[Index]


def _finish(job: _Looking) -> None:
    """Write what a page that opens asks for first, then the index, which says that all is there."""
    known = job.known.got()
    seen = Blocks(job.levels, known).overview()
    job.levels.store.write(job.levels.name(OVERVIEW), seen)
    job.levels.write(INDEX, known)


def _keeping(levels: Levels, pieces: Pieces, overview: Overview) -> Keeping:
    """Return what writes the parts of a run."""
    ranks = _positions(pieces)
    spans = [span for span in (overview.span_ns, overview.device_ns) if span is not None]
    of = max(1, overview.tasks // max(1, len(pieces.parts)))
    each = max(1, ranks.height * A_BLOCK // of)
    typical = overview.typical(common_clock=pieces.run.common_clock, of_devices=False)
    step = typical and typical["step"]
    having = (number for number, steps in enumerate(pieces.parts) if step in steps)
    page = Page(
        levels=levels,
        ranks=ranks,
        batches=(*range(0, ranks.height, each), ranks.height),
        origin_ns=overview.span_ns[0]
        if overview.span_ns
        else min((one for one, _ in spans), default=0),
        widths_ns=widths(overview, ranks.height),
    )
    return Keeping(page, telling=next(having, 0))


def _explaining(levels: Levels, index: Held[Index], pieces: Pieces, _: Overview) -> Explaining:
    """Return what writes why ranks are idle in the parts of a run whose blocks are there."""
    known = index.got()
    page = Page(levels, _positions(pieces), known.batches, known.origin_ns, known.widths_ns)
    return Explaining(page)


def _positions(pieces: Pieces) -> pl.DataFrame:
    """Return the ranks of a run with their positions on the page."""
    bare = Timeline(pl.DataFrame(schema=TASK_SCHEMA), pieces.ranks, pieces.run)
    return ordered_ranks(bare).with_row_index("position").select("rank", "position")


def _done(_: Found) -> None:
    """Tell nothing of a run that was looked at for what is kept of it."""


def _tell(
    index: Index,
    keeper: Keeping,
    steps: Sequence[Collection[int]],
    found: Found,
    kept: Sequence[Kept],
    counters: pl.DataFrame,
    names: Sequence[str],
) -> schema.Told:
    """Write what the page tells of the whole run, and return it."""
    levels = keeper.page.levels
    standing, spread = next(one.standing for one in kept if one.standing is not None)
    # Of what is drawn of the run only what does not depend on how much that is, is told.
    view = _view(found, standing, spread, keeper, index)
    ranks = ordered_ranks(found.drawn).with_row_index("position")
    origin_ns, overview = index.origin_ns, found.overview
    known = summary(view, overview, ranks, origin_ns)
    end_ns = max(
        overview.span_ns[1] if overview.span_ns else origin_ns,
        *(origin_ns + step.end for step in known["steps"]),
    )
    held = _counted(counters, found, ranks, origin_ns, end_ns)
    shares = max(1, overview.steps.height) * max(1, ranks.height)
    spent = pl.concat([one.spent for one in kept])
    means = spent.group_by("kind").agg(pl.col("spent_ns", "beside_ns").sum() // shares)
    of_kind = {str(kind): times for kind, *times in means.iter_rows()}
    known |= {
        "kinds": [
            msgspec.structs.replace(kind, spent=spent_ns, beside=beside_ns)
            for kind in known["kinds"]
            for spent_ns, beside_ns in [of_kind.get(kind.name, (0, 0))]
        ],
        "notes": [
            *known["notes"],
            *_sampled(steps, keeper, standing),
            *_explained(found.study.bubbles),
        ],
    }
    told = schema.Told(
        **known,
        against=None,
        communicating=[],
        groups=[],
        devices=devices_of(
            view.budget, ranks["rank"].to_list(), [step.step for step in known["steps"]]
        ),
        unrecorded=unrecorded_of(overview.unrecorded.filter("inside"), ranks, origin_ns),
        title=cut(title_of(view), _TITLE),
        overlays=[],
        above=None,
        counters=held.counters,
        samples=held.samples,
        kernels=None,
        no_kernels=NOT_ASKED if found.budget is not None else None,
        end=end_ns - origin_ns,
        microbatches=max(one.microbatches for one in kept),
        chunks=max(one.chunks for one in kept),
        names=[cut(name, _TEXT) for name in names],
        verdict=verdict_of(
            view.verdict,
            found.study.bubbles.overall.makespan_error,
            [_NONE if one.task is None else one.task for one in view.verdict.remedies],
        ),
        whatif=None,
    )
    levels.write(TOLD, told)
    known_phases = pl.concat([one.phases for one in kept])
    tables = {
        "phases": phase_columns(known_phases, ranks, origin_ns),
        "cells": cells_of(
            found.study.bubbles,
            ranks,
            pl.Series([one.step for one in known["steps"]], dtype=pl.Int32),
        ),
        "samples": held.table,
    }
    for name, table in tables.items():
        whole = io.BytesIO()
        table.write_parquet(whole)
        with whole.getbuffer() as content:
            levels.store.write(levels.name(f"{name}.parquet"), content)
    return told


def _view(
    found: Found, standing: Alike, spread: pl.DataFrame, keeper: Keeping, index: Index
) -> View:
    """Return what is shown of a run, of which only the parts are there."""
    try:
        why = Explanation.of_pieces(found)
        blocks, position = Blocks(keeper.page.levels, index), dict(keeper.page.ranks.iter_rows())
        verdict = Verdict.of_why(
            why, found.study, lambda shown: blocks.number_of(position[shown["rank"]], shown)
        )
    except TimelineError as error:
        verdict = Verdict.unknown(error)
    return View(
        timeline=found.drawn,
        study=found.study,
        prediction=None,
        overlays={},
        links=pl.DataFrame(schema={"source": pl.Int64, "target": pl.Int64}),
        phases=pl.DataFrame(),
        spread=spread,
        alike=standing,
        verdict=verdict,
        questions=Questions(found.drawn, found.study),
        budget=found.budget,
    )


def _counted(
    counters: pl.DataFrame, found: Found, ranks: pl.DataFrame, origin_ns: int, end_ns: int
) -> Counters:
    """Return the counters of the page, from its origin to its end."""
    until = counters.filter(pl.col("time_ns") <= end_ns)
    drawn = found.drawn
    whole = Timeline(drawn.tasks.clear(), drawn.ranks, drawn.run, counters=until)
    return counters_of(whole, ranks, origin_ns)


def _sampled(steps: Sequence[Collection[int]], keeper: Keeping, standing: Alike) -> list[str]:
    """Say by which steps ranks were told apart, if not by all."""
    some, every = steps[keeper.telling], sum(map(len, steps))
    if len(some) == every or not standing.said:
        return []
    which = units.listed("step", sorted(some))
    said = (
        f"which ranks are odd, and how long tasks take, was looked at in {which} of {every}; all else "
        "is of the whole run, and what-ifs are about the step in sight"
    )
    return [said]


def _explained(bubbles: BubbleRates) -> list[str]:
    """Say by which steps causes of idle time are told, if not by all."""
    if bubbles.replayed is None:
        return []
    which = units.listed("step", list(bubbles.replayed))
    said = (
        f"why ranks were idle, and what would save how much, is told by {which} of "
        f"{len(bubbles.per_step)}; of other steps it is worked out when they are looked at"
    )
    return [said]
