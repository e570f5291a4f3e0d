"""A run without what only its owner may read, and with every number and answer.

A vendor's trace is not rewritten: what it holds and nobody asks for would have to be found first, and
some numbers, such as floating-point operations, are only in it as shapes. What is kept is the
`Timeline`, whose every column is known: numbers stay, and each text has a rule of its own that says
what of it may stay.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope.analysis.redaction.pseudonyms import Pseudonyms
from bubblescope.model.kinds import Kind
from bubblescope.model.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bubblescope.model.provenance import Contents, NameShape, Notice, Run

__all__ = ["Pseudonyms", "redacted"]

_RULES: Final[dict[str, dict[str, Callable[[Pseudonyms, str], str]]]] = {
    "tasks": {"name": Pseudonyms.task},
    "ranks": {"host": Pseudonyms.host, "device_name": Pseudonyms.device},
    "counters": {"name": Pseudonyms.own, "unit": Pseudonyms.own},
    "budget": {"detail": Pseudonyms.call, "role": Pseudonyms.role},
    "operations": {
        "name": Pseudonyms.kernel,
        "operation": Pseudonyms.own,
        "library": Pseudonyms.own,
        "group": Pseudonyms.group,
        "role": Pseudonyms.role,
    },
    "flops": {"name": Pseudonyms.call, "precision": Pseudonyms.own},
    "activities": {
        "name": Pseudonyms.kernel,
        "full": Pseudonyms.kernel,
        "module": Pseudonyms.module,
    },
    "groups": {
        "name": Pseudonyms.group,
        "role": Pseudonyms.role,
        "how": Pseudonyms.own,
        "description": Pseudonyms.described,
        "backend": Pseudonyms.sentence,
    },
}
"""Table -> column of text -> what decides what stands in it afterwards."""


def redacted(timeline: Timeline, names: Pseudonyms | None = None) -> Timeline:
    """Return a run in which nothing can be read but numbers and words that are public.

    Args:
        timeline: The run.
        names: What gives the pseudonyms, and knows afterwards what each stands for; new ones if left
            out. If several runs are given the same, what is equal in them stays equal.

    Raises:
        KeyError: A table has a column of text without a rule.
    """
    names = names or Pseudonyms()
    run = timeline.run
    names.learn(_paths(run), timeline.ranks["host"])
    tables = {name: _table(name, frame, names) for name, frame in _tables(timeline).items()}
    return Timeline(tables.pop("tasks"), tables.pop("ranks"), _run(run, names), **tables)


def _tables(timeline: Timeline) -> dict[str, pl.DataFrame]:
    return {"tasks": timeline.tasks, "ranks": timeline.ranks, **timeline.tables}


def _table(name: str, frame: pl.DataFrame, names: Pseudonyms) -> pl.DataFrame:
    """Return a table with every text as its rule says."""
    return frame.with_columns(
        names.column(column, partial(_RULES[name][column.name], names))
        for column in frame.select(pl.col(pl.String))
    )


def _paths(run: Run) -> set[str]:
    said: tuple[Iterable[Any], ...] = (run.origins, run.contents, run.attempts)
    return {one.path for several in said for one in several}


def _run(run: Run, names: Pseudonyms) -> Run:
    """Return what is known of a run; each field is named here, so one that is new says nothing."""
    clock = run.clock
    return msgspec.structs.replace(
        run,
        origins=tuple(
            msgspec.structs.replace(
                origin,
                format=names.own(origin.format),
                version=_maybe(names.version, origin.version),
                path=names.path(origin.path),
                recorded_by=_maybe(names.own, origin.recorded_by),
            )
            for origin in run.origins
        ),
        schedule=_maybe(names.schedule, run.schedule),
        inferred={names.own(field): names.sentence(how) for field, how in run.inferred.items()},
        warnings=_notices(run.warnings, names),
        notes=_notices(run.notes, names),
        contents=tuple(_contents(one, names) for one in run.contents),
        clock=clock
        and msgspec.structs.replace(
            clock,
            method=names.own(clock.method),
            tightest=tuple(map(names.sentence, clock.tightest)),
            drift_ppm={names.host(host): ppm for host, ppm in clock.drift_ppm.items()},
        ),
        attempts=tuple(
            msgspec.structs.replace(one, path=names.path(one.path)) for one in run.attempts
        ),
    )


def _notices(notices: Sequence[Notice], names: Pseudonyms) -> tuple[Notice, ...]:
    return tuple(
        msgspec.structs.replace(one, code=names.own(one.code), message=names.sentence(one.message))
        for one in notices
    )


def _contents(contents: Contents, names: Pseudonyms) -> Contents:
    return msgspec.structs.replace(
        contents,
        path=names.path(contents.path),
        host=_maybe(names.host, contents.host),
        counts={names.own(what): count for what, count in contents.counts.items()},
        options=tuple(map(names.own, contents.options)),
        names=tuple(_shape(shape, names) for shape in contents.names),
    )


def _shape(shape: NameShape, names: Pseudonyms) -> NameShape:
    kinds = {kind.value for kind in Kind}
    return msgspec.structs.replace(
        shape,
        shape=names.task(shape.shape),
        example=names.task(shape.example),
        kind=shape.kind if shape.kind in kinds else _maybe(names.own, shape.kind),
    )


def _maybe(rule: Callable[[str], str], text: str | None) -> str | None:
    return None if text is None else rule(text)
