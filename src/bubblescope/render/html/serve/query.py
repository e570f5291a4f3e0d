"""What a viewer asks about a whole run of which it has only a part: totals, and a search."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from bubblescope.model import intervals
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.kinds import Lane
from bubblescope.render.html.schema import Found, Totals

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from typing_extensions import Self

    from bubblescope.render.html.data import PageData
    from bubblescope.render.html.schema import Condition, Rank, Search, SearchWord, Told

_MOST: Final = 100_000
"""Items that a search returns at most."""

_CONDITIONS: Final = 500
"""Of a search: what takes its time are its conditions."""

_MADE_UP: Final = ("ideal", "whatif")
"""Lanes of what did not happen, which nobody searches."""

_LENGTH: Final = pl.col("end_ns") - pl.col("start_ns")
_EITHER: Final = {"step": pl.col("step"), "length": _LENGTH}
_COLUMNS: Final[dict[str, dict[str, pl.Expr]]] = {
    "gap": {**_EITHER, "cause": pl.col("cause").to_physical()},
    "task": {
        **_EITHER,
        "kind": pl.col("kind").to_physical(),
        "stage": pl.col("stage"),
        "chunk": pl.col("chunk"),
        "microbatch": pl.col("microbatch"),
        "peer": pl.col("peer"),
        "pair": pl.col("pair_microbatch"),
        "pair_chunk": pl.col("pair_chunk"),
        "slowness": _LENGTH / pl.col("usual"),
        "lost": pl.col("change_ns"),
        "gained": -pl.col("change_ns"),
    },
}
"""What a search can bound of tasks and gaps."""


class QueryError(BubblescopeError):
    """A search that cannot be answered."""


def find(data: PageData, search: Search) -> Found:
    """Return what a search is about: tasks that were measured, or idle time, in page order.

    Returns:
        What and how many there are, and the rows of the first 100,000 among the page's tasks or gaps.

    Raises:
        QueryError: It takes too long to answer.
        ValueError: It is about what there is not.
    """
    gaps = search.what == "gap"
    table = (data.gaps if gaps else data.tasks).lazy().with_row_index("id")
    if not gaps:
        table = table.filter(~pl.col("lane").cast(pl.String).is_in(_MADE_UP))
    return found_of(search, [matching(table, search, data.told).select("id").collect()["id"]])


def found_of(search: Search, ids: Iterable[pl.Series]) -> Found:
    """Return what was found, given the numbers of all of it in page order, some after the other."""
    first: list[int] = []
    count = 0
    for some in ids:
        first += some.head(_MOST - len(first)).to_list()
        count += len(some)
    return Found(what=search.what, count=count, ids=first, unexplained=0)


class Reach(NamedTuple):
    """Where alone what a search is about can be, as its conditions say without a look at the run.

    Attributes:
        positions: Of the ranks on the page that it may be on, ascending.
        length_ns: How long each is at least.
    """

    positions: list[int]
    length_ns: float

    @classmethod
    def of(cls, search: Search, told: Told) -> Self:
        """Tell where what a search is about can be."""
        sets = [[_rank_tests(word) for word in part] for part in search.sets]
        positions = [
            place
            for place, rank in enumerate(told.ranks)
            if any(all(may_be(rank) for may_be in part) for part in sets)
        ]
        lengths = (max((_least_length(word) for word in part), default=0.0) for part in search.sets)
        return cls(positions, min(lengths, default=0.0))


_OF_RANKS: Final[dict[str, Callable[[Condition, Rank], bool]]] = {
    "rank": lambda asked, rank: all(_bounded(asked, rank.rank)),
    "host": lambda asked, rank: (asked.text or "") in rank.host,
    "standing": lambda asked, rank: rank.standing == (asked.text or ""),
}
"""Columns of conditions that are about ranks, and whether one holds of a rank."""


def _rank_tests(word: SearchWord) -> Callable[[Rank], bool]:
    """Return what says whether anything of a rank can be what a word asks for."""

    def holds(rank: Rank, part: list[Condition]) -> bool:
        return all(_OF_RANKS[one.column](one, rank) for one in part if one.column in _OF_RANKS)

    def may_be(rank: Rank) -> bool:
        if not word.negated:
            return any(holds(rank, part) for part in word.any)
        sure = (part for part in word.any if all(one.column in _OF_RANKS for one in part))
        return not any(holds(rank, part) for part in sure)

    return may_be


def _least_length(word: SearchWord) -> float:
    """Return how long anything is at least that is what a word asks for."""
    if word.negated:
        return 0.0
    bounds = (
        max((one.least or 0.0 for one in part if one.column == "length"), default=0.0)
        for part in word.any
    )
    return min(bounds, default=0.0)


def matching(table: pl.LazyFrame, search: Search, told: Told) -> pl.LazyFrame:
    """Return the rows of a page's tasks or gaps that a search is about.

    Raises:
        QueryError: It takes too long to answer.
        ValueError: It is about what there is not.
    """
    conditions = [one for part in search.sets for word in part for any_ in word.any for one in any_]
    if len(conditions) > _CONDITIONS:
        raise QueryError(f"that is too much to search for at once: {_CONDITIONS} numbers at most")
    if any(one.column == "slowness" for one in conditions):
        table = _with_usual(table, told)
    asked = [
        pl.all_horizontal(pl.lit(value=True), *(_word(word, search, told) for word in part))
        for part in search.sets
    ]
    return table.filter(pl.any_horizontal(pl.lit(value=False), *asked))


def _with_usual(tasks: pl.LazyFrame, told: Told) -> pl.LazyFrame:
    """Add `usual`, the median length of tasks of the same kind and stage; null if there is none."""
    rows = [(one.kind, one.stage, one.middle or None) for one in told.spread]
    schema = {"number": pl.UInt32, "stage": pl.Int32, "usual": pl.Int64}
    return tasks.with_columns(number=pl.col("kind").to_physical().cast(pl.UInt32)).join(
        pl.LazyFrame(rows, schema, orient="row"),
        on=["number", "stage"],
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )


def _word(word: SearchWord, search: Search, told: Told) -> pl.Expr:
    sets = [
        pl.all_horizontal(pl.lit(value=True), *(_condition(one, search, told) for one in part))
        for part in word.any
    ]
    holds = pl.any_horizontal(pl.lit(value=False), *sets)
    return holds.not_() if word.negated else holds


def _condition(asked: Condition, search: Search, told: Told) -> pl.Expr:
    """Return whether it holds, never null."""
    text = asked.text or ""
    match asked.column:
        case column if column in _OF_RANKS:
            holds = partial(_OF_RANKS[column], asked)
            chosen = [place for place, rank in enumerate(told.ranks) if holds(rank)]
            return pl.col("position").is_in(chosen)
        case "lane" if search.what == "task":
            return pl.col("lane").cast(pl.String) == text
        case "name" if search.what == "task":
            names = enumerate(told.names)
            return pl.col("code").is_in(
                [code for code, name in names if text.lower() in name.lower()]
            )
        case column if column in _COLUMNS[search.what]:
            if column in ("gained", "lost") and told.against is None:
                raise ValueError(f"{column}, where there is one run")
            value = _COLUMNS[search.what][column]
            known = value.is_not_null()
            return pl.all_horizontal(known, *_bounded(asked, value)).fill_null(value=False)
    raise ValueError(f"{asked.column} of a {search.what}")


def _bounded(asked: Condition, value: Any) -> list[Any]:
    """Return what has to hold of a number, or of a column of them."""
    bounds = []
    if asked.least is not None:
        bounds.append(value > asked.least if asked.open else value >= asked.least)
    if asked.most is not None:
        bounds.append(value < asked.most if asked.open else value <= asked.most)
    return bounds


def totals(data: PageData, start_ns: int, end_ns: int, ranks: Collection[int]) -> Totals:
    """Return what happened in a stretch of time on some ranks.

    Args:
        data: All of the run.
        start_ns: Since the run's first start.
        end_ns: The same.
        ranks: Positions on the page.
    """
    begin, stop = data.origin_ns + start_ns, data.origin_ns + end_ns
    wanted = pl.col("position").is_in(list(ranks))
    clipped = {
        "start_ns": pl.col("start_ns").clip(lower_bound=begin),
        "end_ns": pl.col("end_ns").clip(upper_bound=stop),
    }
    length = pl.col("end_ns") - pl.col("start_ns")
    inside = (pl.col("start_ns") < stop) & (pl.col("end_ns") > begin)
    own = data.tasks.filter(wanted, inside, pl.col("task").is_not_null()).with_columns(**clipped)
    computes = pl.col("lane") == Lane.COMPUTE.value
    # Tasks of several rows of a lane overlap; the time in which any runs counts once.
    ran = own.filter(computes).sort("position", "start_ns")
    starts, ends, position = intervals.columns(ran, "position")
    busy = int((ends - intervals.fresh_start_ns(starts, ends, position)).sum())
    by_kind = own.group_by(computes, pl.col("kind").cast(pl.String)).agg(
        length.sum().alias("ns"), pl.len().alias("count")
    )
    spent = {(lane, kind): (ns, count) for lane, kind, ns, count in by_kind.iter_rows()}
    idle = data.gaps.filter(wanted, inside).with_columns(**clipped)
    by_cause = dict(idle.group_by("cause").agg(length.sum()).iter_rows())
    spanned = len(set(ranks)) * (stop - begin)
    computing, beside = (
        [spent.get((lane, kind.name), (0, 0)) for kind in data.told.kinds] for lane in (True, False)
    )
    return Totals(
        ranks=len(set(ranks)),
        spanned=spanned,
        busy=busy or 0,
        idle=spanned - (busy or 0),
        kinds=[ns for ns, _ in computing],
        tasks=[count for _, count in computing],
        kinds_beside=[ns for ns, _ in beside],
        tasks_beside=[count for _, count in beside],
        causes=[by_cause.get(cause.name, 0) for cause in data.told.causes],
        unexplained=0,
    )
