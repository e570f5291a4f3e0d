"""What a viewer asks about a whole run of which it has only a part: totals, and a search."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import polars as pl

from bubblescope.model import intervals
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.kinds import SHORT, Kind, Lane
from bubblescope.model.timeline import KIND_DTYPE
from bubblescope.render.html.schema import Found, Totals

if TYPE_CHECKING:
    from collections.abc import Collection

    from typing_extensions import Self

    from bubblescope.render.html.data import PageData
    from bubblescope.render.html.schema import Told

_MOST: Final = 100_000
"""Items that a search returns at most."""

_LETTERS: Final = 1_000
"""Of a search: what takes its time are its words."""

_UNITS: Final = {"ns": 1, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9}
_NUMBERED: Final = {
    "mb": "microbatch",
    "microbatch": "microbatch",
    "step": "step",
    "stage": "stage",
    "chunk": "chunk",
    "peer": "peer",
}
_FIELDS: Final = "rank: kind: mb: step: stage: chunk: peer: lane: host: name: cause: dur> idle>"
_PLACE: Final = re.compile(r"@\s*(stage|rank|step|chunk)?[\s:]*(\d+)", re.IGNORECASE)
_WORDS: Final = re.compile(r'(?:[^\s"]|"[^"]*")+')
_LASTING: Final = re.compile(
    r"(dur|duration|idle)([<>])(=?)(\d+(?:\.\d+)?)(ns|us|µs|μs|ms|s)?",
    re.IGNORECASE,
)
_LABEL: Final = re.compile(r"([a-z]+)(\d+)(?:\.(\d+))?", re.IGNORECASE)
_RANGE: Final = re.compile(r"(\d+)(?:-(\d+))?")


class QueryError(BubblescopeError):
    """A search that means nothing."""


class _Condition(NamedTuple):
    """One word of a query: what it asks of tasks and of gaps; None where it is not about those."""

    word: str
    tasks: pl.Expr | None
    gaps: pl.Expr | None = None


class Search(NamedTuple):
    """What is searched for: idle time or tasks, and which of them."""

    gaps: bool
    where: pl.Expr

    @classmethod
    def of(cls, query: str, told: Told) -> Self:
        """Read a query, whose words are those of the viewer (docs/view.md, viewer/src/search.ts).

        Raises:
            QueryError: It cannot be understood.
        """
        if len(query) > _LETTERS:
            raise QueryError(f"a search has {_LETTERS:,} letters at most")
        sets = [[_condition(word, told) for word in part] for part in _split(_words(query))]
        if not sets:
            return cls(gaps=False, where=pl.lit(value=False))
        kinds = {_about(part) for part in sets}
        if len(kinds) > 1:
            raise QueryError(
                "one side of `or` is about tasks, the other about idle time: ask for one"
            )
        gaps = kinds == {"gap"}
        asked = [
            pl.all_horizontal(one.gaps if gaps else one.tasks for one in part) for part in sets
        ]
        measured = pl.lit(value=True) if gaps else pl.col("task").is_not_null()
        return cls(gaps, measured & pl.any_horizontal(asked))

    def found(self, ids: pl.Series) -> Found:
        """Return what was found, given the numbers of all of it in page order."""
        what: Literal["task", "gap"] = "gap" if self.gaps else "task"
        return Found(what=what, count=len(ids), ids=ids.head(_MOST).to_list())


def find(data: PageData, query: str) -> Found:
    """Return what a query is about: tasks that were measured, or idle time, in page order.

    Returns:
        What and how many there are, and the rows of the first 100,000 among the page's tasks or gaps.

    Raises:
        QueryError: It cannot be understood.
    """
    search = Search.of(query, data.told)
    table = data.gaps if search.gaps else data.tasks
    return search.found(
        table.lazy().with_row_index("id").filter(search.where).select("id").collect()["id"]
    )


def _words(query: str) -> list[str]:
    placed = _PLACE.sub(lambda found: f" {found[1] or 'stage'}:{found[2]} ", query)
    return [word.replace('"', "") for word in _WORDS.findall(placed)]


def _split(words: list[str]) -> list[list[str]]:
    """Return the sets of words between `or`s."""
    sets: list[list[str]] = [[]]
    for word in words:
        if word.lower() == "or":
            sets.append([])
        else:
            sets[-1].append(word)
    return [part for part in sets if part]


def _about(part: list[_Condition]) -> str:
    gaps = next((one for one in part if one.tasks is None), None)
    tasks = next((one for one in part if one.gaps is None), None)
    if gaps and tasks:
        raise QueryError(f"{gaps.word} is about idle time, {tasks.word} about tasks: ask for one")
    return "gap" if gaps else "task"


def _condition(word: str, told: Told) -> _Condition:
    plain = word.lstrip("-")
    if plain and plain != word:
        _, *asked = _condition(plain, told)
        if (len(word) - len(plain)) % 2:
            asked = [None if one is None else one.not_() for one in asked]
        return _Condition(word, *asked)
    lasting = _LASTING.fullmatch(word)
    if lasting:
        length = pl.col("end_ns") - pl.col("start_ns")
        limit = float(lasting[4]) * _UNITS[(lasting[5] or "ns").lower()]
        long = length > limit if lasting[2] == ">" else length < limit
        long = long | (length == limit) if lasting[3] else long
        return (
            _Condition(word, None, long) if lasting[1].lower() == "idle" else _Condition(word, long)
        )
    field, colon, value = word.partition(":")
    field = field.lower() if colon else ""
    if field in ("rank", "host"):
        wanted = _ranks(field, value, told)
        return _Condition(word, wanted, wanted)
    if field == "step":
        wanted = _numbers(pl.col("step"), value, field).fill_null(value=False)
        return _Condition(word, wanted, wanted)
    if field == "cause":
        return _Condition(word, None, _caused(value, told))
    return _Condition(word, _task(word, field, value, told).fill_null(value=False))


def _task(word: str, field: str, value: str, told: Told) -> pl.Expr:
    """Return what a word that is about tasks only asks of them."""
    if field in _NUMBERED:
        return _numbers(pl.col(_NUMBERED[field]), value, field)
    if field == "lane":
        return pl.col("lane").cast(pl.String) == value
    if field == "kind":
        said = (value, value.replace(" ", "_"))
        return _kinds([kind for kind in Kind if SHORT[kind] == value or kind.value in said], value)
    label = _LABEL.fullmatch(word)
    kinds = [kind for kind in Kind if label and SHORT[kind] == label[1]]
    if label and kinds:
        return _labelled(kinds[0], _int(label[2]), None if label[3] is None else _int(label[3]))
    return _called(word, value if field == "name" else word, told.names)


def _kinds(kinds: list[Kind], value: str) -> pl.Expr:
    if not kinds:
        raise QueryError(f"no kind is called {value}")
    return pl.col("kind").is_in(pl.Series([kind.value for kind in kinds], dtype=KIND_DTYPE))


def _labelled(kind: Kind, number: int, chunk: int | None) -> pl.Expr:
    """What blocks say: "F3" is also the forward half of a pair "F3+B1"."""
    paired = pl.col("pair_microbatch").is_not_null()
    own = (pl.col("kind").cast(pl.String) == kind.value) | (
        paired if kind is Kind.FORWARD else False
    )
    own &= pl.col("microbatch") == number
    other = pl.lit(value=False)
    if SHORT[kind] == SHORT[Kind.BACKWARD]:
        other = pl.col("pair_microbatch") == number
    if chunk is not None:
        own, other = own & (pl.col("chunk") == chunk), other & (pl.col("pair_chunk") == chunk)
    return own.fill_null(value=False) | other.fill_null(value=False)


def _called(word: str, text: str, names: list[str]) -> pl.Expr:
    named = [code for code, name in enumerate(names) if text.lower() in name.lower()]
    if not named:
        field = re.match(r"([A-Za-z]+)[:<>]", word)
        if field and field[1].lower() != "name":
            raise QueryError(f"{field[1]} is not a search field; the fields are {_FIELDS}")
        raise QueryError(f"nothing is called {text}")
    return pl.col("code").is_in(named)


def _caused(value: str, told: Told) -> pl.Expr:
    causes = told.causes
    named = [cause.name for cause in causes if value and value.lower() in cause.name.lower()]
    if not named:
        known = ", ".join(cause.name for cause in causes if cause.share > 0)
        raise QueryError(f"no cause is called {value}" + (f": there are {known}" if known else ""))
    return pl.col("cause").cast(pl.String).is_in(named)


def _ranks(field: str, value: str, told: Told) -> pl.Expr:
    """Return whether something is on one of some ranks, or on those of a host."""
    ranks = told.ranks
    if field == "host":
        chosen = [place for place, rank in enumerate(ranks) if value in rank.host]
    else:
        numbers = pl.DataFrame({"rank": [rank.rank for rank in ranks]}).with_row_index("place")
        chosen = numbers.filter(_numbers(pl.col("rank"), value, field))["place"].to_list()
    return pl.col("position").is_in(chosen)


def _numbers(column: pl.Expr, text: str, field: str) -> pl.Expr:
    """Return whether a number is among "3" or "1,4-6"."""
    parts = [_RANGE.fullmatch(part.strip()) for part in text.split(",")]
    if not all(parts):
        raise QueryError(f"{field}: wants numbers, such as {field}:3 or {field}:1,4-6")
    return pl.any_horizontal(
        column.is_between(_int(part[1]), _int(part[2] or part[1])) for part in parts if part
    )


def _int(digits: str) -> int:
    """Return a number, or if Polars has none so large one that nothing in a run is numbered with."""
    return min(int(digits), 2**62)


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
