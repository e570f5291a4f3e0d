"""Why devices are idle, in words and tables."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bubblescope.analysis import why, words
from bubblescope.analysis.idle.causes import INHERENT, Cause
from bubblescope.analysis.losses import BETWEEN
from bubblescope.model import units
from bubblescope.model.budget import Use
from bubblescope.model.kinds import SHORT, Kind
from bubblescope.render.text.by_width import ByWidth
from bubblescope.render.text.face import Face
from bubblescope.render.text.sections import narrow_table, times_of, warnings_of

if TYPE_CHECKING:
    from bubblescope.analysis.idle.ledger import Ledger
    from bubblescope.analysis.idle.shares import Shares

_INHERENT: Final = [cause.value for cause in INHERENT]
_ROWS: Final = 16
_GAPS: Final = 5
_LEAST: Final = 0.001
"""Share of the time from which on a loss is listed."""
_WARN: Final = 0.005
"""Replay error from which on the replay is not to be trusted without a look."""


class Explanation(Face, why.Explanation, frozen=True, eq=False):
    """What `bubblescope why` prints."""

    def shown(self, *, everything: bool = False) -> RenderableType:
        """Return the explanation to be printed.

        Args:
            everything: With all ranks and gaps.
        """
        limit = sys.maxsize if everything else _ROWS
        times: list[RenderableType] = [*times_of(self.timeline, self.language)]
        parts = [*times, self._words(), self._losses(limit)]
        if self.ledger is not None and self.shares is not None:
            parts += [
                self._causes(self.ledger, self.shares),
                self._ranks(self.ledger, self.shares, limit),
                self._longest(limit),
                self._replay(self.ledger, self.shares),
                warnings_of(self.study.bubbles.notices),
            ]
        return Group(*parts)

    def headline(self) -> str:
        """Return the verdict."""
        return words.sentence(self.findings[0], self.language)

    def _words(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column()
        styles = {"verdict": "bold", "evidence": "", "advice": "cyan"}
        for finding in self.findings:
            said = Text(words.sentence(finding, self.language), styles[finding.role])
            grid.add_row(words.heading(finding.role, self.language), said)
        return Padding(grid, (0, 0, 1, 0))

    def _losses(self, limit: int) -> RenderableType:
        """Return all causes of a step's length together, most first."""
        if self.losses is None:
            return Group()
        named = self.losses.named().filter(pl.col("share") >= _LEAST)
        time = "time" if self.stepped else "recorded"
        where = ("where",) if self.stepped else ()
        table = self._table(time, "share", "loss", *where, left=("loss", *where))
        for row in named.head(limit).to_dicts():
            table.add_row(
                units.duration(row["per_step_ns"]),
                units.percent(row["share"]),
                words.cause_name(Cause(row["name"]), self.language)
                if row["place"] == BETWEEN
                else words.word("loss", Use(row["name"]), self.language),
                *(words.word("place", row["place"], self.language) for _ in where),
            )
        title = "losses" if self.stepped else "losses_of_recording"
        return self._section(title, table) if named.height else Group()

    def _causes(self, ledger: Ledger, shares: Shares) -> RenderableType:
        columns = ("cause", "idle", "share", "cost", "last", "meaning")
        beside = self._table(*columns, left=("cause", "meaning"))
        alone = self._table(*columns[:-1], left=("cause",))
        meanings = Table.grid(padding=(0, 2))
        costs = {share.cause: share for share in shares.shares}
        for row in ledger.totals().to_dicts():
            cause = Cause(row["cause"])
            share = costs.get(cause)
            name, meaning = (
                words.cause_name(cause, self.language),
                words.meaning(cause, self.language),
            )
            none = "–" if cause in shares.unknown else ""
            cells = (
                name,
                units.duration(row["idle_ns"]),
                units.percent(row["share"]),
                units.duration(share.cost_ns) if share else none,
                units.duration(share.last_ns) if share else none,
            )
            style = "dim" if cause in INHERENT else ""
            beside.add_row(*cells, meaning, style=style)
            alone.add_row(*cells, style=style)
            meanings.add_row(Text(name, "dim", no_wrap=True), Text(meaning, "dim"))
        below = Group(alone, Text(), meanings)
        notes = [self._section("causes", ByWidth(Padding(beside, (0, 2, 0, 0)), below))]
        least = max(1, shares.step_ns // 100)
        strong = [pair for pair in shares.interactions if abs(pair.cost_ns) >= least]
        for one, other, cost in strong[:3]:
            both = " + ".join(words.cause_name(cause, self.language) for cause in (one, other))
            notes.append(Text(f"  {both}: {'+' if cost > 0 else ''}{units.duration(cost)}", "dim"))
        if strong:
            notes.append(Text())
        outside = int(ledger.outside["idle_ns"].sum())
        if outside:
            said = words.note("outside", self.language, cause=Cause.SYNC, idle_ns=outside)
            notes.append(Padding(Text(said), (0, 0, 1, 2)))
        return Group(*notes)

    def _ranks(self, ledger: Ledger, shares: Shares, limit: int) -> RenderableType:
        sums = ledger.table.group_by("rank", "cause").agg(pl.col("idle_ns").sum())
        inherent = pl.col("cause").is_in(_INHERENT)
        unknown = [cause.value for cause in shares.unknown]
        ranks = (
            sums.with_columns(other=pl.when(inherent).then(0).otherwise("idle_ns"))
            .sort("other")
            .group_by("rank")
            .agg(
                idle=pl.col("idle_ns").sum(),
                first=pl.when(pl.col("other").last() > 0).then(pl.col("cause").last()),
                other=pl.col("other").sum(),
                unknown=pl.col("cause").is_in(unknown).any(),
            )
            .sort("other", "rank", descending=[True, False])
        )
        shown = ranks.head(limit)
        grid = self._table("rank", "idle", "other", "mostly", left=("rank", "mostly"))
        for row in shown.to_dicts():
            name = words.cause_name(Cause(row["first"]), self.language) if row["first"] else ""
            idle = units.duration(row["idle"])
            other = "–" if row["unknown"] else units.duration(row["other"])
            grid.add_row(str(row["rank"]), idle, other, name)
        parts: list[RenderableType] = [grid]
        if len(shown) < len(ranks):
            more = words.note("more", self.language, count=len(ranks) - len(shown))
            parts.append(Text(more, "dim"))
        return self._section("ranks", Group(*parts))

    def _longest(self, limit: int) -> RenderableType:
        gaps = self.longest(_GAPS if limit == _ROWS else limit)
        if not len(gaps):
            return Group()
        grid = self._table(
            "idle", "cause", "where", "before", "root", left=("cause", "where", "before", "root")
        )
        for row in gaps.to_dicts():
            grid.add_row(
                units.duration(row["length_ns"]),
                words.cause_name(Cause(row["cause"]), self.language),
                words.note(
                    "rank" if row["step"] is None else "step",
                    self.language,
                    rank=row["rank"],
                    step=row["step"],
                ),
                "" if row["before"] is None else _task(row["before"]),
                _task(row["root"], ranked=True),
            )
        if limit == _ROWS or len(gaps) >= self.gap_count:
            return self._section("gaps", grid)
        kept = words.note("kept", self.language, count=self.gap_count - len(gaps))
        return self._section("gaps", Group(grid, Text(kept, "dim")))

    def _replay(self, ledger: Ledger, shares: Shares) -> RenderableType:
        doubtful = ledger.worst_error > _WARN or ledger.left_out > 0
        mean, worst = units.percent(ledger.replay_error), units.percent(ledger.worst_error)
        said = words.note("replay", self.language, mean=mean, worst=worst)
        if doubtful:
            said += words.note("doubt", self.language)
        if ledger.left_out:
            said += words.note("left_out", self.language, count=ledger.left_out)
        if shares.steps < shares.of:
            steps = {"steps": shares.steps, "of": shares.of}
            said += words.note("part", self.language, **steps)
        return Text(said, "yellow" if doubtful else "dim")

    def _table(self, *columns: str, left: tuple[str, ...]) -> Table:
        table = narrow_table()
        for column in columns:
            side: Any = "left" if column in left else "right"
            table.add_column(words.heading(column, self.language), justify=side)
        return table

    def _section(self, key: str, body: RenderableType) -> RenderableType:
        title = Text(words.heading(key, self.language), "bold")
        return Group(title, Padding(body, (0, 0, 1, 2)))


def _task(task: dict[str, Any], *, ranked: bool = False) -> Text:
    number = "" if task["microbatch"] is None else str(task["microbatch"])
    stage = "" if task["stage"] is None else f" stage {task['stage']}"
    rank = f" (rank {task['rank']})" if ranked else ""
    parts = (f"{SHORT[Kind(task['kind'])]}{number}", stage, rank)
    return Text.assemble(*((part, "none") for part in parts if part))
