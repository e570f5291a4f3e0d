"""What slow operations, stages and workers cost a job, as tables and a heat map."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bubblescope.analysis import stragglers
from bubblescope.analysis.rank_standing import Standing
from bubblescope.analysis.stragglers.in_collectives import replays
from bubblescope.analysis.stragglers.parallel_ranks import Beside
from bubblescope.model import units
from bubblescope.model.progress import SILENT
from bubblescope.render.text.face import Face
from bubblescope.render.text.sections import table_of, times_of, warnings_of
from bubblescope.render.text.stragglers_in_collectives import LateRanks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from bubblescope.analysis.rank_standing import Alike
    from bubblescope.analysis.stragglers import Explained
    from bubblescope.model.progress import Progress
    from bubblescope.model.timeline import Timeline

_ROWS: Final = 12
_ODD: Final = 3
"""Odd ranks of which it is said what is odd."""

_WIDTH: Final = 64
"""Columns of the heat map at most."""

_HEAT: Final = ((1.03, "·"), (1.1, "░"), (1.25, "▒"), (1.5, "▓"), (float("inf"), "█"))
"""Slowdowns below each limit have its sign."""

_NOTHING: Final = 1.0
"""An interval of a correlation that is as wide or wider tells nothing."""

_ORDINARY: Final = 0.01
"""A type of operation that costs less than this share of a step is not worth a line."""


def slowed(timeline: Timeline, *, progress: Progress = SILENT) -> Stragglers | LateRanks:
    """Return what slow operations, stages and workers cost a job, or who is late without a pipeline.

    Args:
        timeline: The run.
        progress: Is told what is being worked out.

    Raises:
        TimelineError: No step can be replayed, and ranks cannot be compared; the message says why.
        ScheduleError: Operations wait for each other in a circle.
    """
    if replays(timeline):
        return Stragglers.of(timeline, progress=progress)
    return LateRanks.of(timeline, progress=progress)


class Stragglers(Face, stragglers.Stragglers, frozen=True, eq=False):
    """What `bubblescope stragglers` prints."""

    def shown(self, *, everything: bool = False, quiet: bool = False) -> RenderableType:
        """Return the tables to be printed.

        Args:
            everything: With all operations, workers and steps.
            quiet: Without warnings.
        """
        limit = sys.maxsize if everything else _ROWS
        return Group(
            _headline(self),
            _operations(self, limit),
            _stages(self, limit),
            _workers(self, limit),
            _steps(self, limit),
            _patterns(self),
            *([] if quiet else [warnings_of(self.warnings)]),
        )

    def headline(self) -> str:
        """Return the slowdown and the slowest ranks in one line."""
        slow = self.slow_rank
        most = f"most on {units.listed('rank', self.worst)}" if slow is None else str(slow)
        return f"slowdown {_times(self.slowdown.overall[0])}, {most}"


def _headline(found: stragglers.Stragglers) -> RenderableType:
    places, replicas = found.rank.shape
    facts = [
        units.count(places, "pipeline place"),
        units.count(replicas, found.beside.noun, found.beside.nouns),
        units.count(len(found.steps), "step"),
    ]
    grid = Table.grid(padding=(0, 2))
    slowdown, launch = found.slowdown.overall[0], found.launch_slowdown
    grid.add_row(
        Text("slowdown S", "bold"),
        Text(_times(slowdown), "bold"),
        f"a step takes {_mean(found.no_delay_ns)}, and {_mean(found.ideal_ns)} if no operation "
        "took longer than is usual for its type",
    )
    taken = "the longest of a step's pipelines took" if found.apart else "a step took"
    grid.add_row(
        "launch slowdown",
        _times(launch.overall[0] if launch else None),
        f"{taken} {_mean(found.base_ns)}, from its first operation to its last; time that no recorded "
        "operation accounts for is not part of S"
        if found.base_ns is not None
        else "unknown: the ranks share no clock",
    )
    alone = "the slowdown if all others were ideal"
    slow, lasting = found.slow_rank, found.slowness.persistent
    odd = found.odd_workers or ([] if lasting is None else np.argwhere(lasting).tolist())
    if slow is not None:
        held = found.alone[found.rank == slow.rank]
        said = f"{slow}, in {slow.steps} of {slow.of} steps; {alone}"
        grid.add_row("slowest", _times(held.max() if held.size else None), said)
    elif odd and (found.own_work or not found.beside.waits):
        place, replica = max(odd, key=lambda worker: found.alone[tuple(worker)])
        said = f"rank {found.rank[place, replica]}, its stage included: {alone}"
        grid.add_row("costs most", _times(found.alone[place, replica]), said)
    if found.alike.said.keys() - {Standing.ALIKE}:
        grid.add_row("ranks", "", _standings(found.alike))
    for said in _communication(found):
        grid.add_row("", "", said)
    return Group(
        Text.assemble(("bubblescope  ", "bold"), " · ".join(facts)),
        *times_of(found.timeline),
        Text(),
        Padding(grid, (0, 0, 1, 2)),
    )


def _communication(found: stragglers.Stragglers) -> list[str]:
    """Say where the cost of communication is, where it is not modelled."""
    if found.model != "compute":
        return []
    if found.own_work:
        said = (
            "communication is not modelled, and left out of operations: its cost is part of the launch "
            "slowdown"
        )
        return [said]
    said = (
        "communication is not modelled: inside of operations it is part of how long they take, between "
        "them of the launch slowdown"
    )
    if not found.beside.waits:
        return [said]
    untold = (
        f"{found.beside.nouns} of a stage wait for each other inside of operations, and the traces do "
        "not show how long: which of them is slow cannot be told"
    )
    return [said, untold]


def _standings(found: Alike) -> str:
    """Say how ranks stand, and what is odd about the first of those that are."""
    odd = found.ranks.filter(standing=Standing.ODD.value).select("rank", "reason")
    said = [f"rank {rank}: {reason}" for rank, reason in odd.head(_ODD).iter_rows()]
    said += ["and more"] if odd.height > _ODD else []
    said += [said for standing, said in found.said.items() if standing is Standing.WAITS]
    return f"{found}: {'; '.join(said)}"


def _operations(found: stragglers.Stragglers, limit: int) -> RenderableType:
    table = table_of("operation", "slowdown")
    rows = sorted(
        zip(found.types, found.by_type.overall.tolist(), strict=True), key=lambda row: -row[1]
    )
    shown = [row for row in rows if row[1] >= 1 + _ORDINARY or limit > _ROWS] or rows[:1]
    for name, value in shown:
        table.add_row(name, _times(value))
    head = _title(
        "Operations", "the slowdown with only this type as slow as measured, all others ideal"
    )
    left = len(rows) - len(shown)
    note = f"{units.count(left, 'other type')}: less than {1 + _ORDINARY:g}; --all shows them"
    return _section(head, table, note if left else "")


def _stages(found: stragglers.Stragglers, limit: int) -> RenderableType:
    table = table_of("stage", "slowdown", "forward and backward alike")
    values = found.by_place.overall.tolist()
    order = sorted(range(len(values)), key=lambda place: -values[place])[:limit]
    for place in sorted(order):
        table.add_row(_stage(found, place), _times(values[place]), _alike(found, place))
    head = _title(
        "Stages", "the slowdown with only this stage as slow as measured, all others ideal"
    )
    explained = _explained(found, "The last stage", found.last_stage, "M_S")
    return _section(head, table, *_fewer(order, values, "stages"), explained)


def _alike(found: stragglers.Stragglers, place: int) -> str:
    """Return how far forwards and backwards of a place go together, if it is known at all."""
    known = found.slowness.correlation[place]
    if known is None or known.high - known.low >= _NOTHING:
        return "–"
    return f"{units.fixed(known.low)} to {units.fixed(known.high)}"


def _workers(found: stragglers.Stragglers, limit: int) -> RenderableType:
    table = table_of("rank", "stage", _short(found), "slowdown", "alone", "slow in", "pattern")
    slow = found.slowness
    replicas = found.rank.shape[1]
    told = found.slowdown.overall[0] >= stragglers.NEGLIGIBLE
    order = (-found.by_worker).ravel().argsort(kind="stable")[:limit].tolist()
    for worker in order:
        place, replica = divmod(worker, replicas)
        share = None if slow.share is None else slow.share[place, replica]
        table.add_row(
            str(found.rank[place, replica]),
            _stage(found, place),
            str(found.dp[replica] if found.dp else replica),
            _times(found.by_worker[place, replica]),
            _times(found.alone[place, replica] if told else None),
            "–" if share is None else f"{100 * share:.0f} % of steps",
            slow.pattern(place, replica) or "–",
        )
    head = _title(
        "Workers",
        "slowdown: the lesser of its stage's and its pipeline's; alone: replayed with only it slow",
    )
    subject = units.listed("rank", found.worst).capitalize()
    explained = _explained(
        found,
        f"{subject} (the slowest 3 %, at least one)",
        found.worst_workers,
        "M_W",
        many=len(found.worst) > 1,
    )
    fewer = _fewer(order, range(found.by_worker.size), "workers")
    heat = [Padding(_heat_map(found), (0, 0, 1, 2))] if replicas > 1 else []
    return Group(head, *heat, _section(None, table, *fewer, explained))


def _heat_map(found: stragglers.Stragglers) -> RenderableType:
    """Draw the slowdown of every worker: stages down, replicas across, the worst where it is tight."""
    grid = Table.grid(padding=(0, 1))
    replicas = found.rank.shape[1]
    size = -(-replicas // _WIDTH)
    for place, row in enumerate(found.by_worker):
        worst = (row[low : low + size].max() for low in range(0, replicas, size))
        cells = [next(sign for limit, sign in _HEAT if value < limit) for value in worst]
        grid.add_row(Text(f"stage {_stage(found, place)}", "dim"), Text("".join(cells), "#d55e00"))
    legend = ", ".join(f"{sign} < {limit:g}" for limit, sign in _HEAT[:-1])
    beside = found.beside.nouns
    many = f"; a character is the worst of {size} {beside}" if size > 1 else ""
    grid.add_row("", Text(f"{legend}, {_HEAT[-1][1]} more; {beside} across{many}", "dim"))
    return grid


def _steps(found: stragglers.Stragglers, limit: int) -> RenderableType:
    table = table_of("step", "length", "slowdown", "launch", "slowest type", "")
    values = found.slowdown.per_step[0].tolist()
    order = sorted(range(len(values)), key=lambda step: -values[step])[:limit]
    launch = found.launch_slowdown
    for step in sorted(order):
        by_type = found.by_type.per_step[:, step]
        most = int(by_type.argmax())
        length = found.no_delay_ns if found.base_ns is None else found.base_ns
        table.add_row(
            units.optional(found.steps[step]),
            units.duration(int(length[step])),
            _times(values[step]),
            _times(launch.per_step[0, step] if launch else None),
            found.types[most] if by_type[most] >= 1 + _ORDINARY else "–",
            Text("outlier", "yellow") if step in found.odd_steps else "",
        )
    return _section(_title("Steps", ""), table, *_fewer(order, values, "steps"))


def _patterns(found: stragglers.Stragglers) -> RenderableType:
    """Say whether slowness stays with workers, and whether it comes with the data."""
    lines = []
    slow = found.slowness
    if slow.share is not None and slow.persistent is None:
        workers, steps = slow.share.size, len(found.steps)
        lines.append(
            "whether slowness stays with workers cannot be told: "
            f"{units.count(workers, 'worker')} and {units.count(steps, 'step')} are too few"
        )
    elif slow.persistence is not None and slow.persistent is not None:
        steady = int(slow.persistent.sum())
        lines.append(
            f"{units.count(steady, 'worker')} of {slow.persistent.size:,} slow in most steps, and not "
            f"by chance, against the other {found.beside.nouns} of their stage; the worker explains "
            f"{100 * slow.persistence:.0f} % of how much slowness varies"
        )
    known = [one for one in slow.correlation if one is not None and one.certain]
    if known:
        lines.append(
            "forward and backward of a micro-batch are long together, with a correlation of "
            f"{units.fixed(min(one.low for one in known))} to "
            f"{units.fixed(max(one.high for one in known))}; near 1, the data of micro-batches differs"
        )
    if not lines:
        return Text()
    return Group(_title("Patterns", ""), Padding(Group(*map(Text, lines)), (0, 0, 1, 2)))


def _explained(
    found: stragglers.Stragglers,
    subject: str,
    explained: Explained | None,
    name: str,
    *,
    many: bool = False,
) -> str:
    """Say how much of the slowdown some operations explain, where there is one to explain."""
    if found.slowdown.overall[0] < stragglers.NEGLIGIBLE:
        return ""
    if explained is None or explained.removed is None or explained.added is None:
        return ""
    verb, pronoun = ("explain", "them") if many else ("explains", "it")
    if explained.removed <= 0:
        return (
            f"{subject} {verb} none of the slowdown: steps are no shorter with only {pronoun} ideal "
            f"({name})"
        )
    removed, added = map(_share, (explained.removed, explained.added))
    return (
        f"{subject} {verb} {removed} of the slowdown by making only {pronoun} ideal ({name}), and "
        f"{added} by making all others ideal"
    )


def _share(share: float) -> str:
    """Return a share of the slowdown; beside operations faster than ideal, it may be above one."""
    if share <= 0:
        return "none"
    return f"{100 * share:.1f} %" if share <= 1 else "more than all"


def _short(found: stragglers.Stragglers) -> str:
    """Return what the number of a worker at its place is called, in a column."""
    return "replica" if found.beside is Beside.REPLICA else "number"


def _stage(found: stragglers.Stragglers, place: int) -> str:
    return units.stages(found.stages[place])


def _mean(times: Any) -> str:
    return units.duration(round(float(times.mean())))


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _fewer(shown: Iterable[Any], of: Iterable[Any], what: str) -> list[str]:
    some, all_of_them = len(list(shown)), len(list(of))
    more = f"the {some} with the largest slowdown of {all_of_them:,} {what}; --all shows all"
    return [more] if some < all_of_them else []


def _title(title: str, meaning: str) -> Text:
    return Text.assemble((title, "bold"), (f"  {meaning}", "dim"))


def _section(head: Text | None, table: Table, *notes: str) -> RenderableType:
    lines = [Text(note, "dim" if "--all" in note else "") for note in notes if note]
    return Group(*([head] if head else []), Padding(Group(table, *lines), (0, 0, 1, 2)))
