"""What every device spent its time on, and why it was idle: sums over steps, ranks and the run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope.analysis.arrivals import arrivals, over_steps
from bubblescope.analysis.numbered_names import summed_up
from bubblescope.analysis.spending import Spending
from bubblescope.analysis.step_lengths import is_one_step
from bubblescope.analysis.untold_time import undecided
from bubblescope.model import intervals
from bubblescope.model.budget import WHOLE_GRAPH, Use
from bubblescope.model.ordering import in_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.model.provenance import Run
    from bubblescope.model.timeline import Timeline

SLOW_CALL_NS: Final = 1_000_000
"""Length of a launch call from which on it does more than launch, which takes some microseconds: it
loads or compiles its kernel, on first use (CUDA C++ Programming Guide, "Lazy Loading")."""

_LOADS_NS: Final = 100_000
"""Length of a launch call from which on it does so if it takes most of the time of all, and from which
on it does more than launch, whatever that is."""
_MOSTLY: Final = 0.5
"""Share of the time of launch calls above which slow ones are to blame for it."""


def call_sums() -> tuple[pl.Expr, ...]:
    """Return how long rows of a budget are that are one gap each, as of `Steps.details`."""
    spent = pl.col("spent_ns")
    whole = spent == pl.col("end_ns") - pl.col("start_ns")
    slow = whole & (spent >= SLOW_CALL_NS)
    long = whole & (spent >= _LOADS_NS)
    return (
        spent.filter(long).sum().alias("long_ns"),
        long.sum().cast(pl.UInt32).alias("long"),
        spent.filter(slow).sum().alias("slow_ns"),
        slow.sum().cast(pl.UInt32).alias("slow"),
        spent.filter(whole).max().fill_null(0).alias("longest_ns"),
    )


def one_loads(spent_ns: int, longest_ns: int) -> bool:
    """Say whether the longest of some launch calls is most of their time, and loads its kernel."""
    return longest_ns >= _LOADS_NS and longest_ns > _MOSTLY * spent_ns


class Steps(msgspec.Struct, frozen=True):
    """What the devices of a run spent its steps on, by the rows that `in_steps` chooses.

    Attributes:
        spending: The sums.
        details: Frame with use, detail, role, then, spent_ns, count, long_ns, long, slow_ns, slow and
            longest_ns, most first: as `Budget.details`, and of its rows that are one gap each, how much
            time those of 100 us or longer take, and those of `SLOW_CALL_NS` or longer, how many these
            are, and the longest of all.
    """

    spending: Spending
    details: pl.DataFrame


class Budget(msgspec.Struct, frozen=True):
    """What the devices of a run spent their time on.

    Attributes:
        overall: Over all of them, from each one's first operation to its last.
        per_rank: Rank -> the same of its devices.
        per_rank_step: (rank, step) -> the same in the step.
        per_step: Step -> the same over all ranks.
        lengths_ns: Step -> how long it is, the mean over devices.
        open_steps: Those whose end was not recorded.
        details: Frame with use, detail, role, then, spent_ns and count, most first: what each class of
            time over the run consists of. `count` is that of rows, which are gaps where these are long.
        outside_steps_ns: What lies in no step, over all devices; null if there are no steps.
        in_steps: What lies in whole steps, as `in_steps` has it.
        in_any: What lies in steps, whole or not; all of it if there are none.
        arrivals: Who waited for whom in collectives, in the steps of `in_steps`: frame as
            `bubblescope.analysis.arrivals.over_steps` returns it.
        undecided: Time of which the traces do not tell what it was spent on; see `undecided`.
    """

    overall: Spending
    per_rank: dict[int, Spending]
    per_rank_step: dict[tuple[int, int], Spending]
    per_step: dict[int, Spending]
    lengths_ns: dict[int, int]
    open_steps: frozenset[tuple[int, int]]
    details: pl.DataFrame
    outside_steps_ns: int | None
    in_steps: Steps
    in_any: Spending
    arrivals: pl.DataFrame
    undecided: list[dict[str, Any]]

    @property
    def whole_steps(self) -> list[int]:
        """Steps whose end was recorded on every rank, in order."""
        return sorted(self.per_step.keys() - {step for _, step in self.open_steps})

    @property
    def stepped_ns(self) -> int:
        """How long the steps of `in_steps` are together, of a rank on average."""
        return max(1, self.in_steps.spending.total_ns // len(self.per_rank))

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return plain values for each rank."""
        return [
            {
                "rank": rank,
                "capture": spending.to_dict(),
                "steps": [
                    {"step": step, "open": (rank, step) in self.open_steps, **of.to_dict()}
                    for (of_rank, step), of in self.per_rank_step.items()
                    if of_rank == rank
                ],
            }
            for rank, spending in self.per_rank.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for all ranks together, and what the time consists of."""
        return {
            "capture": self.overall.to_dict(),
            "steps": [{"step": step, **of.to_dict()} for step, of in self.per_step.items()],
            "outside_steps_ns": self.outside_steps_ns,
            "details": [
                {"class": row["use"], **{key: row[key] for key in _TOLD}}
                for row in self.details.filter(pl.col("use") != Use.COMPUTE.value).to_dicts()
            ],
            "collectives": self.arrivals.to_dicts(),
            "undecided": self.undecided,
        }


_TOLD: Final = ("detail", "role", "then", "spent_ns")
"""What plain values tell of each detail, beside its class."""


class Spent(msgspec.Struct, frozen=True):
    """What devices spent time on; of several parts of a run, it adds up.

    Attributes:
        by_step: Frame with rank, step, ended, as `with_ended` has it, use, spent_ns and graphs_ns, as
            of `Spending`.
        details: Frame with use, detail, role, then, ended and what of these adds up, as of
            `Steps.details`.
        devices: Frame with rank, step and device: which devices did anything in which step.
        open_steps: Those whose end was not recorded, as rank and step.
        stepped: Whether steps of devices are known.
        arrivals: As of `bubblescope.analysis.arrivals`.
    """

    by_step: pl.DataFrame
    details: pl.DataFrame
    devices: pl.DataFrame
    open_steps: frozenset[tuple[int, int]]
    stepped: bool
    arrivals: pl.DataFrame

    @classmethod
    def of(cls, timeline: Timeline) -> Self:
        """Sum up a timeline's budget."""
        table, spent = with_ended(timeline.budget, timeline), pl.col("spent_ns").sum()
        graphs = (pl.col("use") == Use.COMPUTE.value) & (pl.col("detail") == WHOLE_GRAPH)
        started = timeline.step_times.filter(pl.col("open")).select("rank", "step").rows()
        return cls(
            table.group_by(*_PLACE, "use").agg(
                spent, graphs_ns=pl.col("spent_ns").filter(graphs).sum()
            ),
            table.group_by(*_SORT, "ended").agg(
                spent,
                pl.len().cast(pl.UInt32).alias("count"),
                *call_sums(),
            ),
            table.select("rank", "step", "device").unique(),
            frozenset(started),
            timeline.step_times.height > 0,
            arrivals(timeline),
        )

    @classmethod
    def joined(cls, parts: Sequence[Spent]) -> Self:
        """Return what was spent in several parts of a run together."""
        by_step = pl.concat([part.by_step for part in parts])
        details = pl.concat([part.details for part in parts])
        return cls(
            by_step.group_by(*_PLACE, "use").agg(pl.col("spent_ns", "graphs_ns").sum()),
            _details(details, "ended"),
            pl.concat([part.devices for part in parts]).unique(),
            frozenset().union(*(part.open_steps for part in parts)),
            any(part.stepped for part in parts),
            pl.concat([part.arrivals for part in parts]),
        )


def with_ended(table: pl.DataFrame, timeline: Timeline) -> pl.DataFrame:
    """Return a budget with ended: whether the end of the step was recorded; null of what is in none.

    It is that of all ranks: they wait for each other, so what-ifs are of no other steps either. Where
    nothing tells a step, all of the recording is in one, what came before its first task as well.

    Args:
        table: As `Timeline.budget`.
        timeline: The run.
    """
    if is_one_step(timeline.run):
        return table.with_columns(ended=pl.lit(value=False))
    unfinished = (
        timeline.step_times.filter("open").select("step", ended=pl.lit(value=False)).unique()
    )
    ended = pl.when(pl.col("step").is_not_null()).then(pl.col("ended").fill_null(value=True))
    found = table.join(unfinished, on="step", how="left", maintain_order="left")
    return found.with_columns(ended=ended)


def in_steps(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows in whole steps; if there are none, those in any step, or else all.

    Args:
        rows: Frame with ended, as `with_ended` has it.
    """
    for ended in (True, False):
        found = rows.filter(ended=ended)
        if found.height:
            return found
    return rows


_PLACE: Final = ("rank", "step", "ended")
_SORT: Final = ("use", "detail", "role", "then")


def _details(details: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return the details of several parts of a run, or of several sorts of time, together."""
    return details.group_by(*_SORT, *by).agg(
        pl.col("spent_ns", "count", "long_ns", "long", "slow_ns", "slow").sum(),
        pl.col("longest_ns").max(),
    )


def _named(details: pl.DataFrame) -> pl.DataFrame:
    """Return the details of a run, those that differ in their numbers only as one."""
    return _details(summed_up(details, "role", "then"))


def _most_first(details: pl.DataFrame) -> pl.DataFrame:
    return details.sort("spent_ns", *_SORT, descending=[True, *(False for _ in _SORT)])


def between_captures(table: pl.DataFrame, *place: str) -> pl.DataFrame:
    """Return when nothing was recorded of ranks, between the first operation of each and its last.

    A process may be traced several times; what its devices did in between nobody knows.

    Args:
        table: As `Timeline.budget`.
        place: Columns of it by which to tell times apart: rank, and perhaps device.

    Returns:
        Frame with these columns, step (that of what follows), start_ns, end_ns and inside (whether what
        was before is of that step too), in order.
    """
    rows = in_order(table.select(*place, "step", "start_ns", "end_ns"), *place, "start_ns")
    start, end, group = intervals.columns(rows, *place)
    reached = intervals.reached_ns(end, group)
    missed = (reached != intervals.NEVER) & (reached < start)
    return rows.with_columns(
        start_ns=pl.Series(reached, dtype=pl.Int64),
        end_ns="start_ns",
        inside=pl.col("step").eq_missing(pl.col("step").shift(1)),
    ).filter(pl.Series(missed))


def recorded(windows: pl.DataFrame, table: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return windows with recorded_ns: how long each is without what lies `between_captures`.

    Args:
        windows: Frame with start_ns, end_ns and the columns of `by`.
        table: As `Timeline.budget`.
        by: As of `between_captures`, and perhaps step: what lies between two counts for neither then.
    """
    length = pl.col("end_ns") - pl.col("start_ns")
    between = between_captures(table, *(name for name in by if name != "step"))
    if "step" in by:
        between = between.filter("inside")
    missed = between.group_by(by).agg(missed_ns=length.sum())
    found = windows.join(missed, on=by, how="left", maintain_order="left")
    return found.with_columns(recorded_ns=length - pl.col("missed_ns").fill_null(0)).drop(
        "missed_ns"
    )


def budget(timeline: Timeline) -> Budget | None:
    """Sum up what the devices of a run spent their time on.

    Returns:
        None if its traces hold no device work, and so do not tell.
    """
    return budget_of(Spent.of(timeline), timeline.run) if timeline.budget.height else None


def budget_of(spent: Spent, run: Run) -> Budget | None:
    """Return what the devices of a run spent their time on; None as of `budget`.

    Args:
        spent: The sums.
        run: The run.
    """
    table = spent.by_step
    if not table.height:
        return None
    steps = table.drop_nulls("step")
    overall = _spending(table)[()]
    within = _spending(steps).get((), Spending.of({}))
    per_step = {step: found for (step,), found in _spending(steps, "step").items()}
    devices = dict(spent.devices.group_by("step").len().iter_rows())
    return Budget(
        overall=overall,
        per_rank={rank: found for (rank,), found in _spending(table, "rank").items()},
        per_rank_step={
            (rank, step): found for (rank, step), found in _spending(steps, "rank", "step").items()
        },
        per_step=per_step,
        lengths_ns={step: round(of.total_ns / devices[step]) for step, of in per_step.items()},
        open_steps=spent.open_steps,
        details=_most_first(_named(spent.details)).select(*_SORT, "spent_ns", "count"),
        outside_steps_ns=overall.total_ns - within.total_ns if spent.stepped else None,
        in_steps=Steps(
            _spending(in_steps(table))[()], _most_first(_named(in_steps(spent.details)))
        ),
        in_any=within if steps.height else overall,
        arrivals=over_steps(spent.arrivals, in_steps(table)),
        undecided=undecided(overall, run, spent.details["detail"]),
    )


def _spending(table: pl.DataFrame, *by: str) -> dict[tuple[int, ...], Spending]:
    sums = table.group_by(*by, "use").agg(pl.col("spent_ns", "graphs_ns").sum()).sort(*by, "use")
    found: dict[tuple[int, ...], dict[Use, int]] = {}
    graphs: Counter[tuple[int, ...]] = Counter()
    for *key, use, time, in_graphs in sums.iter_rows():
        found.setdefault(tuple(key), {})[Use(use)] = time
        graphs[tuple(key)] += in_graphs
    return {key: Spending.of(spent, graphs[key]) for key, spent in found.items()}
