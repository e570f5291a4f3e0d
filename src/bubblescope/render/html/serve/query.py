"""What a viewer asks about a whole run of which it has only a part: totals, and a search."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model import intervals
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.kinds import SHORT, Kind, Lane
from bubblescope.model.timeline import KIND_DTYPE
from bubblescope.render.html.schema import Found, Totals

if TYPE_CHECKING:
    from collections.abc import Collection

    from bubblescope.render.html.data import PageData

_MOST: Final = 100_000
"""Tasks that a search returns at most."""

_UNITS: Final = {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_NUMBERED: Final = {
    "rank": "rank",
    "mb": "microbatch",
    "microbatch": "microbatch",
    "step": "step",
    "stage": "stage",
    "chunk": "chunk",
    "peer": "peer",
}
_WORDS: Final = re.compile(r'(?:[^\s"]|"[^"]*")+')
_LASTING: Final = re.compile(r"dur(?:ation)?([<>])=?(\d+(?:\.\d+)?)(ns|us|µs|ms|s)?", re.IGNORECASE)
_RANGE: Final = re.compile(r"(\d+)(?:-(\d+))?")


class QueryError(BubblescopeError):
    """A search that means nothing."""


def find(data: PageData, query: str) -> Found:
    """Return the tasks that a query is about, those that were measured only, in page order.

    The words of a query are those of the viewer (docs/view.md); all of them must hold.

    Returns:
        How many there are, and the rows of the first 100,000 among the page's tasks.

    Raises:
        QueryError: It cannot be understood.
    """
    words = [word.replace('"', "") for word in _WORDS.findall(query)]
    if not words:
        return Found(count=0, ids=[])
    hosts = [rank.host for rank in data.told.ranks]
    conditions = [_condition(word, hosts, data.told.names) for word in words]
    found = (
        data.tasks.lazy()
        .with_row_index("id")
        .filter(pl.col("task").is_not_null(), *conditions)
        .select("id")
        .collect()["id"]
    )
    return Found(count=len(found), ids=found.head(_MOST).to_list())


def _condition(word: str, hosts: list[str], names: list[str]) -> pl.Expr:
    lasting = _LASTING.fullmatch(word)
    if lasting:
        length = pl.col("end_ns") - pl.col("start_ns")
        limit = float(lasting[2]) * _UNITS[(lasting[3] or "ns").lower()]
        return length > limit if lasting[1] == ">" else length < limit
    field, colon, value = word.partition(":")
    field = field.lower()
    if colon and field in _NUMBERED:
        return _numbers(pl.col(_NUMBERED[field]), value, field)
    if colon and field == "kind":
        kinds = [
            kind.value
            for kind in Kind
            if value in {SHORT[kind], kind.value, kind.value.replace("_", " ")}
        ]
        if not kinds:
            raise QueryError(f"no kind is called {value}")
        return pl.col("kind").is_in(pl.Series(kinds, dtype=KIND_DTYPE))
    if colon and field == "lane":
        return pl.col("lane") == value
    if colon and field == "host":
        named = [position for position, host in enumerate(hosts) if value in host]
        return pl.col("position").is_in(named)
    text = value if colon and field == "name" else word
    named = [code for code, name in enumerate(names) if text.lower() in name.lower()]
    return pl.col("code").is_in(named)


def _numbers(column: pl.Expr, text: str, field: str) -> pl.Expr:
    """Return whether a number is among "3" or "1,4-6"."""
    parts = [_RANGE.fullmatch(part.strip()) for part in text.split(",")]
    if not all(parts):
        raise QueryError(f"{field}: wants numbers, such as {field}:3 or {field}:1,4-6")
    return pl.any_horizontal(
        column.is_between(int(part[1]), int(part[2] or part[1])) for part in parts if part
    )


def totals(data: PageData, start_ns: float, end_ns: float, ranks: Collection[int]) -> Totals:
    """Return what happened in a stretch of time on some ranks.

    Args:
        data: All of the run.
        start_ns: Since the run's first start.
        end_ns: The same.
        ranks: Positions on the page.
    """
    begin, stop = data.origin_ns + round(start_ns), data.origin_ns + round(end_ns)
    wanted = pl.col("position").is_in(list(ranks))
    clipped = {
        "start_ns": pl.col("start_ns").clip(lower_bound=begin),
        "end_ns": pl.col("end_ns").clip(upper_bound=stop),
    }
    length = pl.col("end_ns") - pl.col("start_ns")
    inside = (pl.col("start_ns") < stop) & (pl.col("end_ns") > begin)
    own = data.tasks.filter(wanted, inside, pl.col("task").is_not_null()).with_columns(**clipped)
    # Tasks of several rows of a lane overlap; the time in which any runs counts once.
    computing = own.filter(pl.col("lane") == Lane.COMPUTE.value).sort("position", "start_ns")
    starts, ends, position = intervals.columns(computing, "position")
    busy = int((ends - intervals.fresh_start_ns(starts, ends, position)).sum())
    by_kind = own.group_by(pl.col("kind").cast(pl.String)).agg(
        length.sum().alias("ns"), pl.len().alias("count")
    )
    kinds = {kind: (ns, count) for kind, ns, count in by_kind.iter_rows()}
    idle = data.gaps.filter(wanted, inside).with_columns(**clipped)
    by_cause = dict(idle.group_by("cause").agg(length.sum()).iter_rows())
    spanned = len(set(ranks)) * (stop - begin)
    named = [kind.name for kind in data.told.kinds]
    return Totals(
        ranks=len(set(ranks)),
        spanned=spanned,
        busy=busy or 0,
        idle=spanned - (busy or 0),
        kinds=[kinds.get(kind, (0, 0))[0] for kind in named],
        tasks=[kinds.get(kind, (0, 0))[1] for kind in named],
        causes=[by_cause.get(cause.name, 0) for cause in data.told.causes],
    )
