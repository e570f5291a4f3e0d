"""Kernels as tables: what takes the time, and what makes one rank slower than others."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group
from rich.measure import Measurement
from rich.text import Text

from bubblescope.analysis import kernels
from bubblescope.analysis.device_words import BRIEF, LABELS
from bubblescope.model import units
from bubblescope.model.budget import Use
from bubblescope.model.kinds import Kind
from bubblescope.render.text.face import Face
from bubblescope.render.text.sections import narrow_table, titled, warnings_of
from bubblescope.render.text.translated import Verbatim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table

    from bubblescope.analysis.kernels import Against
    from bubblescope.model.provenance import Notice

_ROWS: Final = 20
_RANKS: Final = 2
"""Ranks that are set against their peers, and of each so many kernels."""
_EFFECTS: Final = 6
_MOST: Final = 0.5
"""Share beyond which something is most of all."""
_UNTOLD: Final = ("kind", Kind.OTHER.value)
"""What says nothing of a kernel."""
_HEADS: Final = {"full": "kernel", "name": "kernel"}
_SHARE: Final = "share: of the time of all kernels, copies and fills"
_SPREADS: Final = (
    "± mb, ± ranks: deviation of the time of a micro-batch within its step, and of a rank's steps, "
    "over the mean"
)
_NUMBERS: Final = ("count", "total", "share", "median", "p95", "± mb", "± ranks")


class Kernels(Face, kernels.Kernels, frozen=True, eq=False):
    """What `bubblescope kernels` prints."""

    def shown(self, *, everything: bool = False) -> RenderableType:
        """Return the tables to be printed.

        Args:
            everything: With all kernels and ranks.
        """
        limit = sys.maxsize if everything else _ROWS
        head = [Text.assemble(("bubblescope  ", "bold"), self.headline()), Text()]
        if self.changes is not None:
            return Group(*head, self._beside(limit))
        ranks = self.against[: sys.maxsize if everything else _RANKS]
        compared = [_compared(one, everything=everything) for one in ranks]
        if left := len(self.against) - len(ranks):
            compared.append(Text(f"{units.count(left, 'other rank')}: --all shows them", "dim"))
        return Group(*head, self._rows(limit), *compared, warnings_of(self._warnings()))

    def _warnings(self) -> list[Notice]:
        """Return the run's warnings but that on kernels which only other answers leave out."""
        every = self.timeline.run.warnings
        return [one for one in every if one.code != "kernels-outside-ranges"]

    def headline(self) -> str:
        """Return how much ran, and what of it took most, in one line."""
        count = units.count(int(self.table["count"].sum()), "kernel, copy or fill", _MANY)
        devices = self.devices
        said = (
            f"{count} on {units.count(devices, 'device')} took {units.duration(self.total_ns)} in "
            f"{units.duration(self.device_ns)}"
        )
        first = self.table.row(0, named=True)
        names = ", ".join(
            f"stage {first[column]}" if column == "stage" else str(first[column])
            for column in reversed(self.by)
            if first[column] is not None and (column, first[column]) != _UNTOLD
        )
        share = units.percent(first["share"])
        if first["share"] > _MOST:
            return f"{said}, most of it {names or 'unknown'} ({share})"
        return f"{said}, the largest part {names or 'unknown'} ({share})"

    def _rows(self, limit: int) -> RenderableType:
        told = self._told()
        several = [
            self.table["microbatch_spread"].count() > 0,
            self.table["rank_spread"].count() > 0,
        ]
        absent = [
            name for name, is_known in zip(_NUMBERS[-2:], several, strict=True) if not is_known
        ]
        rows = [
            (
                f"{row['count']:,}",
                units.duration(row["total_ns"]),
                units.percent(row["share"]),
                units.duration(row["median_ns"]),
                units.duration(row["p95_ns"]),
                _spread(row["microbatch_spread"]),
                _spread(row["rank_spread"]),
                *(_word(row[column]) for column in told),
            )
            for row in self.table.head(limit).iter_rows(named=True)
        ]
        table = _Fitted(_NUMBERS, told, rows, absent, ("p95", "± mb", "median", "± ranks"))
        notes = [_SHARE, _SPREADS] if any(several) else [_SHARE]
        body = Group(table, *(Text(note, "dim") for note in notes))
        return titled("Kernels", body, _more(self.table.height, limit))

    def _told(self) -> list[str]:
        """Return the columns that tell rows apart; one that holds one thing only is left out."""
        told = [one for one in self.by if self.table[one].n_unique() > 1 or one in _HEADS]
        return told or [self.by[-1]]

    def _beside(self, limit: int) -> RenderableType:
        """Set two runs side by side."""
        changes: Any = self.changes
        told = [one for one in self.by if changes[one].n_unique() > 1 or one in _HEADS]
        told = told or [self.by[-1]]
        rows = [
            (
                *(_count(row[name]) for name in ("count", "after_count")),
                *(units.duration(row[name]) for name in ("mean_ns", "after_mean_ns")),
                *(units.duration(row[name]) for name in ("total_ns", "after_total_ns")),
                units.signed(row["difference_ns"]),
                *(_word(row[column]) for column in told),
            )
            for row in changes.head(limit).iter_rows(named=True)
        ]
        numbers = ("count A", "count B", "mean A", "mean B", "total A", "total B", "change")
        table = _Fitted(numbers, told, rows, (), ("mean A", "mean B", "count A", "count B"))
        total = int(changes["difference_ns"].sum())
        body = Group(
            Text.assemble(("A  ", "bold"), self.labels[0]),
            Text.assemble(("B  ", "bold"), self.labels[1]),
            Text(),
            table,
            Text(
                f"all together {units.signed(total)}; counts and totals are of a rank in a step",
                "dim",
            ),
        )
        return titled("Two runs side by side", body, _more(changes.height, limit))


_MANY: Final = "kernels, copies and fills"


def _numbers(numbers: Any, words: list[str]) -> Table:
    """Return an empty table of numbers, with words behind them, the last of which may be cut."""
    table = narrow_table(*numbers)
    for word in words[:-1]:
        table.add_column(_HEADS.get(word, word), no_wrap=True)
    last = _HEADS.get(words[-1], words[-1])
    # Rich narrows columns that may wrap: a name without spaces is cut then, and numbers stay whole.
    table.add_column(last, overflow="ellipsis", min_width=_LEAST_NAME)
    return table


class _Fitted:
    """A table that leaves out numbers rather than cutting any, where the terminal is narrow.

    Args:
        numbers: Names of the columns of numbers.
        words: What the columns of words behind them hold.
        rows: A cell for each of them.
        absent: Columns that are left out at any width.
        spare: Columns that may be left out, the first first.
    """

    def __init__(
        self,
        numbers: Sequence[str],
        words: list[str],
        rows: Sequence[Sequence[str]],
        absent: Sequence[str],
        spare: Sequence[str],
    ) -> None:
        self._numbers, self._words, self._rows = numbers, words, rows
        self._absent, self._spare = absent, spare

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the widest table that there is room for."""
        for count in range(len(self._spare) + 1):
            left_out = {*self._absent, *self._spare[:count]}
            least = self._without(left_out, "n" * _LEAST_NAME)
            needed = Measurement.get(console, options.update(max_width=_ANY), least).maximum
            if needed <= options.max_width:
                break
        yield self._without(left_out)

    def _without(self, left_out: set[str], name: str = "") -> Table:
        """Return the table without some columns; with a name in place of all, if one is given."""
        kept = [at for at, column in enumerate(self._numbers) if column not in left_out]
        table = _numbers([self._numbers[at] for at in kept], self._words)
        words = range(len(self._numbers), len(self._numbers) + len(self._words))
        for row in self._rows:
            cells = [row[at] for at in (*kept, *words)]
            last = name or cells[-1]  # of a kernel, mostly
            table.add_row(*cells[:-1], Verbatim(last) if self._words[-1] in _HEADS else last)
        return table


_LEAST_NAME: Final = 20
"""Characters that a name has at least."""
_ANY: Final = 10_000
"""A width at which no table is narrowed."""


def _more(count: int, limit: int) -> str:
    return f"the {limit} largest of {count}; --all shows them" if limit < count else ""


def _word(value: Any) -> str:
    return "–" if value is None else str(value)


def _spread(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"


def _compared(of: Against, *, everything: bool) -> RenderableType:
    """Return what a rank's time differs by from its peer's: parts that add up to the difference."""
    table = _numbers(_OF_EFFECTS, ["name"])
    compute = [one for one in of.effects if one.use == Use.COMPUTE.value and one.difference_ns]
    others = [one for one in of.effects if one.use != Use.COMPUTE.value and one.difference_ns]
    limit = sys.maxsize if everything else _EFFECTS
    for one in compute[:limit]:
        table.add_row(*_effect(one), Verbatim(one.name))
    if rest := compute[limit:]:
        parts = [sum(getattr(one, name) for one in rest) for name in _PARTS]
        table.add_row("", "", *map(units.signed, parts), f"{len(rest)} other computing kernels")
    for time, what in _other_parts(of):
        if time:
            table.add_row("", "", "", "", units.signed(time), what)
    table.add_row("", "", "", "", units.signed(of.difference_ns), "all together", style="bold")
    lines: list[RenderableType] = [table]
    if others:
        beside = _numbers(_OF_EFFECTS, ["name"])
        beside.columns[-1].header = "in all, hidden or not"
        for one in others[: limit if everything else _EFFECTS // 2]:
            beside.add_row(*_effect(one), Verbatim(one.name), style="dim")
        lines.append(beside)
    steps = f"{units.count(len(of.steps), 'step')}: " if of.steps else ""
    place = "" if of.stage is None else f", both of stage {of.stage}"
    about = (
        f"{steps}{units.duration(of.time_ns)} against {units.duration(of.peer_time_ns)}{place}; "
        "the peer's values come first"
    )
    return titled(f"Rank {of.rank} against rank {of.peer}", Group(*lines), about)


_OF_EFFECTS: Final = ("count", "mean", "by count", "by length", "difference")
_PARTS: Final = ("count_ns", "length_ns", "difference_ns")


def _other_parts(of: Against) -> list[tuple[int, str]]:
    """Return what differs besides computing kernels, with words for it."""
    return [
        (of.overlap_ns, "computing kernels that overlap"),
        (of.communication_ns, LABELS[Use.COMMUNICATION]),
        (of.copy_ns, LABELS[Use.COPY]),
        *((time, f"idle: {BRIEF[use]}") for use, time in of.idle.items()),
    ]


def _effect(one: kernels.Effect) -> tuple[str, ...]:
    """Return the cells of a kernel: of the peer and of the rank, and what makes the difference."""
    means = [
        units.duration(round(total / count)) if count else "–"
        for total, count in (
            (one.peer_total_ns, one.peer_count),
            (one.total_ns, one.count),
        )
    ]
    count = str(one.count) if one.count == one.peer_count else f"{one.peer_count} → {one.count}"
    return (
        count,
        " → ".join(means),
        units.signed(one.count_ns) if one.count_ns else "",
        units.signed(one.length_ns) if one.length_ns else "",
        units.signed(one.difference_ns),
    )
