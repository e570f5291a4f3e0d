"""The last step of every source: what was read of a run's ranks becomes one timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from bubblescope.model.bounds import RANKS
from bubblescope.model.errors import SourceError, TimelineError, quoted
from bubblescope.model.provenance import Contents, Notice, Origin, Run
from bubblescope.model.timeline import TASK_SCHEMA, Timeline, task_columns
from bubblescope.model.timing import TIMED_DTYPE
from bubblescope.sources import numbering
from bubblescope.sources.inventory import missing_ranks, ranks_without_passes
from bubblescope.sources.separate_runs import refuse_separate_runs
from bubblescope.sources.steps import in_steps
from bubblescope.sources.structure.unmarked import unmarked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from bubblescope.sources.device_spending import Spent


def refuse_doubles(owners: Iterable[tuple[int, Path | str]], advice: str) -> None:
    """Refuse two traces of one rank.

    Args:
        owners: Each trace's rank, and where the trace is.
        advice: What to do.

    Raises:
        SourceError: There are two.
    """
    owner: dict[int, Path | str] = {}
    for rank, path in owners:
        if rank in owner:
            raise SourceError(path, f"is of rank {rank}, and so is {owner[rank]}; {advice}")
        owner[rank] = path


def rank_in_name(path: Path, digits: str) -> int:
    """Return the rank that the name of a file states.

    Raises:
        SourceError: No job has such a rank.
    """
    rank = int(digits)
    if rank >= RANKS:
        raise SourceError(path, f"is named after rank {rank}, and no job has {RANKS:,} ranks")
    return rank


def assembled(
    source: str,
    traces: Sequence[tuple[str | None, Path | str]],
    tasks: pl.DataFrame,
    ranks: pl.DataFrame,
    *,
    notices: Iterable[Notice] = (),
    contents: Iterable[Contents] = (),
    world: int | None = None,
    nothing: Callable[[], Notice] | None = None,
    number: Callable[[pl.DataFrame], tuple[pl.DataFrame, dict[str, str], list[Notice]]]
    | None = None,
    inferred: dict[str, str] | None = None,
    spent: Spent | None = None,
    executed: pl.DataFrame | None = None,
    tables: dict[str, pl.DataFrame] | None = None,
    timed: str | None = None,
    **declared: Any,
) -> Timeline:
    """Return the timeline of a run.

    Args:
        source: Name of the format.
        traces: Version, if it says one, and place of each trace.
        tasks: Tasks of all ranks, with more columns than a timeline has or not.
        ranks: The ranks.
        notices: What was dropped, repaired or assumed.
        contents: What the traces hold.
        world: Number of ranks that the job says it has; a warning says which have no trace.
        nothing: Says why there are no tasks, if there are none.
        number: Fills steps, micro-batches and stages that the traces leave unsaid; returns the tasks,
            how each field was inferred, and more notices.
        inferred: Field -> how it was inferred, before that.
        spent: What the devices spent their time on, by rank.
        executed: Operators that multiply matrices: rank, start_ns, name and flops, null where unknown.
        tables: Other tables of the timeline, such as counters.
        timed: What the times of all ranks are of, `model.timing.DEVICE` or `HOST`; the column of
            `ranks` tells if None.
        declared: What the job says of itself: schedule, microbatches, common_clock.

    Raises:
        SourceError: Tasks contradict themselves or each other.
    """
    known, doubted = _believed({"world": world, **declared})
    world = known.pop("world")
    run = Run(
        origins=tuple(Origin(source, version, str(path)) for version, path in traces),
        contents=tuple(contents),
        world=max(world or 0, ranks.height) or None,
        warnings=(*missing_ranks(ranks["rank"].to_list(), world), *doubted, *notices),
        **known,
    )
    if timed is not None:
        ranks = ranks.with_columns(timed=pl.lit(timed, TIMED_DTYPE))
    found, beside = dict(inferred or {}), dict(tables or {})
    if not tasks.height and nothing is not None:
        tasks, number, run = pl.DataFrame(schema=TASK_SCHEMA), None, run.warned(nothing())
    if number is not None:
        run = run.noted(*unmarked(tasks, source))
        tasks, more, warned = number(tasks)
        found, run = found | more, run.warned(*warned)
        ranks = numbering.with_stages(ranks, tasks)
    run = msgspec.structs.replace(run, inferred=found)
    run = run.warned(*ranks_without_passes(tasks, ranks["rank"].to_list()))
    if spent is not None:
        beside |= in_steps(spent, tasks, executed)
    try:
        timeline = Timeline(task_columns(tasks), ranks, run, **beside)
    except TimelineError as error:
        raise SourceError(traces[0][1], f"holds contradictory data ({error})") from None
    if "rank" in found:
        refuse_separate_runs(timeline, [path for _, path in traces])
    return timeline


def _believed(declared: dict[str, Any]) -> tuple[dict[str, Any], list[Notice]]:
    """Return what a job says of itself without sizes that none can have, and a warning of those."""
    sizes = {"world": "ranks", "microbatches": "micro-batches in a step"}
    odd = {
        name: of
        for name, of in sizes.items()
        if declared.get(name) is not None and not 0 <= declared[name] <= RANKS
    }
    notices = [
        Notice("unbelievable-size", f"the job claims to have {quoted(declared[name])} {of}; that "
               "is implausible and was ignored")
        for name, of in odd.items()
    ]  # fmt: skip
    return declared | dict.fromkeys(odd), notices
