"""Who comes last in collectives: against a plain count over made ones, and what is refused."""

from __future__ import annotations

import io
import math
import random
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from rich.console import Console

from bubblescope import Timeline
from bubblescope.analysis.arrivals import arrivals, kernels_waited
from bubblescope.analysis.device_budget import Spent, budget, budget_of
from bubblescope.analysis.study import study
from bubblescope.analysis.verdict import Verdict
from bubblescope.analysis.why.late_ranks import late_ranks
from bubblescope.analysis.words import sentence
from bubblescope.model.groups import Group, tabled
from bubblescope.model.language import LANGUAGES
from bubblescope.model.provenance import Run
from bubblescope.model.timeline import TASK_SCHEMA
from bubblescope.render.text.device import device_section
from bubblescope.render.text.report import Report
from bubblescope.render.text.why import Explanation

US = 1_000
MS = 1_000_000

if TYPE_CHECKING:
    from rich.console import RenderableType

Row = dict[str, Any]


def met(
    count: int,
    ranks: int,
    *,
    seed: int = 0,
    late: int | None = None,
    transfer: int = 50 * US,
    first: int = 0,
    **fields: Any,
) -> list[list[Row]]:
    """Return collectives, each with a row for every rank, in which ranks come when they like.

    Args:
        count: How many.
        ranks: How many take part in each.
        seed: Of chance.
        late: A rank that comes half a millisecond after all others.
        transfer: How long each takes once all have come.
        first: The first of the ranks.
        fields: What else their rows say.
    """
    chance, at, made = random.Random(seed), 0, []
    for _ in range(count):
        starts = [at + chance.randrange(200 * US, 500 * US) for _ in range(ranks)]
        if late is not None:
            starts[late] = max(starts) + 500 * US
        at = max(starts) + transfer
        made.append(
            [
                {
                    "rank": first + rank,
                    "start_ns": start,
                    "end_ns": at + chance.randrange(5 * US),
                    **fields,
                }
                for rank, start in enumerate(starts)
            ]
        )
    return made


def run(
    *rows: Row, groups: tuple[Group, ...] = (), world: int | None = None, common: bool = True
) -> Timeline:
    """Return a run whose ranks did these collectives, and computed in between."""
    usual = {"step": 1, "operation": "allreduce", "group": None, "name": "ncclDevKernel"}
    made = [{**usual, **row} for row in rows]
    for row in made:
        row["exposed_ns"] = row["end_ns"] - row["start_ns"] - row.get("hidden_ns", 0)
    operations = pl.DataFrame(made).with_columns(
        pl.col("rank", "step").cast(pl.Int32), hidden_ns=pl.lit(0), device=pl.lit(0, pl.Int32)
    )
    members = sorted({row["rank"] for row in rows})
    ranks = pl.DataFrame({"rank": members, "host": "h"}, schema_overrides={"rank": pl.Int32})
    return Timeline(
        pl.DataFrame(schema=TASK_SCHEMA),
        ranks,
        Run(world=world, common_clock=common),
        operations=operations,
        groups=tabled(groups),
        budget=_budget(operations),
    )


def _budget(operations: pl.DataFrame) -> pl.DataFrame:
    """Return what devices spent time on that compute when they do not communicate."""
    spent = []
    for (rank, step), own in operations.group_by("rank", "step", maintain_order=True):
        at = 0
        for row in own.sort("start_ns").to_dicts():
            if row["start_ns"] > at:
                spent.append((rank, step, at, row["start_ns"], "compute"))
            spent.append((rank, step, row["start_ns"], row["end_ns"], "communication"))
            at = row["end_ns"]
    names = ["rank", "step", "start_ns", "end_ns", "use"]
    length = pl.col("end_ns") - pl.col("start_ns")
    return pl.DataFrame(spent, schema=names, orient="row").with_columns(spent_ns=length)


def flat(made: list[list[Row]]) -> list[Row]:
    return [row for one in made for row in one]


def counted(*groups: list[list[Row]]) -> dict[int, list[int]]:
    """Count for each rank in plain Python: collectives, last in, waits, and how late it came."""
    found: dict[int, list[int]] = {}
    for made in groups:
        ends = [[row["end_ns"] for row in rows] for rows in made]
        apart = sorted(max(one) - min(one) for one in ends)
        most = apart[math.ceil(0.95 * (len(apart) - 1))]
        for rows, end in zip(made, ends, strict=True):
            starts = sorted(row["start_ns"] for row in rows)
            off = max(most, max(end) - min(end))
            for row in rows:
                own = found.setdefault(row["rank"], [0, 0, 0, 0])
                own[0] += 1
                own[1] += row["start_ns"] - off > starts[-2]
                own[2] += min(row["end_ns"] - row["start_ns"], starts[-1] - row["start_ns"])
                own[3] += max(0, row["start_ns"] - starts[(len(starts) - 1) // 2] - off)
    return found


def told(timeline: Timeline) -> dict[int, list[int]]:
    rows = arrivals(timeline).select("rank", "collectives", "last", "waits_ns", "late_ns").rows()
    return {rank: list(rest) for rank, *rest in rows}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_all_is_as_counted_one_by_one(seed, ranks):
    made = met(40, ranks, seed=seed)
    shuffled = flat(made)
    random.Random(seed).shuffle(shuffled)
    assert told(run(*shuffled)) == counted(made)


def test_recordings_that_begin_and_end_in_the_middle_are_matched_where_they_meet():
    made = met(40, 3, seed=7)
    kept = [
        row
        for at, one in enumerate(made)
        for row in one
        if not (row["rank"] == 0 and at < 3) and not (row["rank"] == 2 and at >= 35)
    ]
    assert told(run(*kept)) == counted(made[3:35])


def test_a_few_collectives_that_ranks_have_in_common_are_no_match():
    made = met(12, 2, seed=7)
    kept = [row for at, one in enumerate(made) for row in one if (at < 7) == (row["rank"] == 0)]
    kept += made[6]
    assert told(run(*{(row["rank"], row["start_ns"]): row for row in kept}.values())) == {}


def test_an_order_that_does_not_match_is_refused():
    made = met(40, 3, seed=3)
    lost = [row for at, one in enumerate(made) for row in one if (at, row["rank"]) != (20, 1)]
    assert told(run(*lost)) == {}
    other = [
        {**row, "operation": "allgather"} if row["rank"] == 1 and at % 2 else row
        for at, one in enumerate(made)
        for row in one
    ]
    assert told(run(*other)) == {}


def test_a_rank_whose_clock_is_late_does_not_come_last():
    made = met(40, 2, seed=5)
    for one in made:
        for row in one:
            row["start_ns"] = one[0]["start_ns"] + row["rank"] * 100 * US
            row["end_ns"] += row["rank"] * 100 * US
            row["group"] = "tp"
    found = told(run(*flat(made), groups=(Group("tp", (0, 1)),)))
    assert [last for _, last, *_ in found.values()] == [0, 0]


def shifted(made: list[list[Row]], rank: int, by: int) -> list[Row]:
    """Return the rows of collectives as told by a rank's clock that is ahead."""
    return [
        {**row, **{name: row[name] + by * (row["rank"] == rank) for name in ("start_ns", "end_ns")}}
        for row in flat(made)
    ]


@pytest.mark.parametrize("by", [300 * US, -7 * MS, 5_000 * MS])
@pytest.mark.parametrize("common", [True, False])
def test_clocks_that_are_off_show_in_the_ends(by, common):
    made = met(40, 3, seed=5)
    found = told(run(*shifted(made, 1, by), common=common))
    truth = counted(made)
    assert found.keys() == truth.keys()
    for rank, (count, last, waits, late) in truth.items():
        assert found[rank][0] == count
        assert abs(found[rank][1] - last) <= 2
        assert found[rank][2:] == pytest.approx([waits, late], rel=0.05)


def test_clocks_that_are_off_do_not_show_where_collectives_are_few_or_evenly_spaced():
    assert told(run(*shifted(met(8, 2, seed=5), 1, 7 * MS))) == {}
    even = [
        [{"rank": rank, "start_ns": at, "end_ns": at + 100 * US} for rank in range(2)]
        for at in range(0, 40 * MS, MS)
    ]
    assert told(run(*flat(even))) == counted(even)
    assert told(run(*shifted(even, 1, 7 * MS), common=False)) == {}


def test_what_does_not_end_together_is_refused():
    made = met(40, 2, seed=5, transfer=50 * MS)
    chance = random.Random(1)
    for row in flat(made):
        row["end_ns"] += chance.randrange(7 * MS)
    assert told(run(*flat(made))) == {}


def test_a_step_that_a_rank_lacks_is_left_out():
    made = met(20, 3, seed=1, step=1), met(20, 3, seed=2, step=2)
    lacking = [row for row in flat(made[1]) if row["rank"] != 2]
    assert told(run(*flat(made[0]), *lacking)) == counted(made[0])


def test_steps_are_matched_one_by_one_and_add_up():
    made = met(20, 4, seed=1, step=1), met(20, 4, seed=2, step=2)
    for row in flat(made[1]):
        row["start_ns"] += 1_000 * MS
        row["end_ns"] += 1_000 * MS
    found = arrivals(run(*flat(made[0]), *flat(made[1])))
    assert found.select("rank", "step").rows() == [
        (rank, step) for rank in range(4) for step in (1, 2)
    ]
    assert told(run(*flat(made[1]))) == counted(made[1])


def test_groups_are_matched_each_by_itself():
    tensor = [met(30, 2, seed=at, first=2 * at, group="tp") for at in range(2)]
    data = met(3, 4, seed=9, group="dp")
    for row in flat(data):
        row["start_ns"] += 500 * MS
        row["end_ns"] += 500 * MS
    groups = (Group("tp", (0, 1)), Group("tp", (2, 3)), Group("dp", (0, 1, 2, 3)))
    rows = [*flat(tensor[0]), *flat(tensor[1]), *flat(data)]
    expected = counted(*tensor, data)
    assert told(run(*rows, groups=groups)) == expected
    # A name that stands for two groups of a rank tells neither.
    twice = (*groups, Group("dp", (0, 1)))
    assert told(run(*rows, groups=twice)) == counted(*tensor)


def test_groups_without_a_name_that_do_the_same_at_the_same_time_are_not_one():
    pairs = [met(40, 2, seed=3), met(40, 2, seed=3, first=2)]
    chance = random.Random(4)
    for one in pairs[1]:
        later = chance.randrange(110 * US)
        for row in one:
            row["start_ns"] += later
            row["end_ns"] += later
    rows = [*flat(pairs[0]), *flat(pairs[1])]
    assert told(run(*rows)) == {}
    named = [{**row, "group": "tp"} for row in rows]
    groups = (Group("tp", (0, 1)), Group("tp", (2, 3)))
    assert told(run(*named, groups=groups)) == counted(*pairs)


def test_of_ranks_that_drive_several_devices_nothing_is_told():
    timeline = run(*flat(met(40, 2, seed=2)))
    twice = timeline.operations.with_columns(device=pl.col("start_ns").cast(pl.Int32) % 2)
    tables = {**timeline.tables, "operations": twice}
    assert told(timeline)
    assert told(Timeline(timeline.tasks, timeline.ranks, timeline.run, **tables)) == {}


def test_where_not_all_of_a_group_are_seen_nobody_is_last():
    made = met(40, 2, seed=2, group="0")
    rows = flat(made)
    assert told(run(*rows, groups=(Group("0", (0, 1)),))) == counted(made)
    assert told(run(*rows, groups=(Group("0", (0, 1, 2)),))) == {}
    assert told(run(*rows)) == {}  # named, but of nobody knows whom
    unnamed = flat(met(40, 2, seed=2))
    assert told(run(*unnamed, world=2)) == counted(made)
    assert told(run(*unnamed, world=8)) == {}


@pytest.mark.parametrize("operation", ["broadcast", "reduce", "send", "sendrecv", None])
def test_what_some_ranks_leave_early_is_left_out(operation):
    rows = flat(met(40, 2, operation=operation))
    assert told(run(*rows)) == {}


def test_a_single_collective_is_enough_and_one_rank_is_not():
    made = met(1, 4, seed=4)
    assert told(run(*flat(made))) == counted(made)
    assert told(run(*flat(met(5, 1)))) == {}


def test_waiting_beneath_computation_is_not_exposed():
    made = met(40, 2, late=1)
    for row in flat(made):
        row["hidden_ns"] = row["end_ns"] - row["start_ns"] - 60 * US if row["rank"] == 0 else 0
    found = arrivals(run(*flat(made))).filter(rank=0)
    assert found["waits_ns"][0] > 40 * 500 * US
    # Of the 60 us that are exposed, the transfer takes 50 to 55, and clocks may be off by 5.
    assert 0 < found["exposed_waits_ns"][0] < 40 * 5 * US


def findings(timeline: Timeline, *, alike: bool = True) -> list[str]:
    found = budget(timeline)
    assert found is not None
    said = late_ranks(found, alike=alike)
    for language in LANGUAGES:
        assert all("None" not in sentence(one, language) for one in said)
    return [sentence(one, "en") for one in said]


def test_a_rank_that_computes_longer_is_named_with_that():
    slow = run(*flat(met(40, 4, late=2)))
    waiting, late = findings(slow)
    assert waiting.startswith("In a collective all ranks end together. By 160 kernels")
    assert "of the time later than half of the ranks, and last in 40 of its 40 collectives." in late
    assert late.startswith("Rank 2 comes ")
    assert " On compute, it spends " in late
    # Of ranks that hold other stages, what they do differs anyway.
    assert findings(slow, alike=False) == [waiting, late.split(" On compute")[0]]
    why = [(one.role, one.key) for one in Explanation.of(slow).findings]
    at = why.index(("evidence", "late_rank_by"))
    assert ("advice", "late_ranks") in why[at:]
    told = next(one for one in Verdict.of(slow, study(slow)).remedies if one.key == "late_ranks")
    assert told.evidence == late
    assert told.headline == "Find out why some ranks come late."
    assert ("advice", "communication") not in why


def test_where_ranks_come_last_in_turns_nobody_is_named():
    alike = findings(run(*flat(met(200, 4, seed=11))))
    assert len(alike) == 1
    assert "kernels that could be matched" in alike[0]


def test_a_rank_is_named_without_a_reason_where_none_is_seen():
    timeline = run(*flat(met(40, 4, late=2)))
    same = timeline.budget.with_columns(spent_ns=pl.lit(1_000))
    _, late = findings(
        Timeline(
            timeline.tasks,
            timeline.ranks,
            timeline.run,
            operations=timeline.operations,
            budget=same,
        )
    )
    assert late.endswith("and last in 40 of its 40 collectives.")


def test_the_transfer_is_no_waiting_and_overlap_is_still_advised():
    timeline = run(*flat(met(40, 4, late=2, transfer=5 * MS)))
    why = [(one.role, one.key) for one in Explanation.of(timeline).findings]
    assert ("advice", "communication") in why
    assert ("advice", "late_ranks") not in why


def test_parts_of_a_run_add_up_to_the_whole():
    rows = [
        {**row, **{name: row[name] + step * 1_000 * MS for name in ("start_ns", "end_ns")}}
        for step in range(3)
        for row in flat(met(20, 4, seed=step, late=1, step=step))
    ]
    whole = run(*rows)
    parts = [run(*(row for row in rows if row["step"] == step)) for step in range(3)]
    joined = budget_of(Spent.joined([Spent.of(part) for part in parts]), whole.run)
    assert joined.arrivals.equals(budget(whole).arrivals)
    assert joined.to_dict()["collectives"] == budget(whole).to_dict()["collectives"]


def printed(shown: RenderableType) -> str:
    console = Console(width=100, file=io.StringIO())
    console.print(shown)
    return console.file.getvalue()


def test_the_report_says_that_clocks_differ():
    made = met(40, 3, late=2)
    assert "clocks" not in printed(device_section(budget(run(*flat(made))), 12))
    said = " ".join(printed(device_section(budget(run(*shifted(made, 1, 7 * MS))), 12)).split())
    assert "collectives end 7.000 ms apart on clocks of ranks" in said


def test_the_report_has_a_row_for_each_rank():
    slow = run(*flat(met(40, 4, late=2)))
    said = printed(device_section(budget(slow), 12))
    assert "Collectives" in said
    assert [line.split()[:3] for line in said.splitlines() if line.split()[1:2] == ["40"]] == [
        [str(rank), "40", "40" if rank == 2 else "0"] for rank in range(4)
    ]
    assert "the latest 3 of 4 ranks" in " ".join(printed(device_section(budget(slow), 3)).split())
    assert "Collectives" not in printed(device_section(budget(run(*flat(met(40, 1)))), 12))
    assert Report.of(slow).devices is not None


@pytest.mark.parametrize("ahead", [0, 3 * MS])
def test_each_kernel_waited_until_the_last_of_its_collective_began(ahead):
    made = met(30, 3, seed=4, late=1)
    rows = shifted(made, 2, ahead)
    found = kernels_waited(run(*rows))
    assert found.height == 90
    said = {(row["rank"], row["start_ns"]): row for row in found.to_dicts()}
    for one in made:
        last = one[1]["start_ns"]
        for row in one:
            start = row["start_ns"] + ahead * (row["rank"] == 2)
            known = said[row["rank"], start]
            assert known["awaited"] == 1
            assert known["end_ns"] - known["start_ns"] == row["end_ns"] - row["start_ns"]
            assert abs(known["waits_ns"] - (last - row["start_ns"])) <= known["off_ns"] < 10 * US


def test_where_ranks_come_together_none_waits_and_none_is_named():
    together = [
        {"rank": rank, "start_ns": at * MS + rank, "end_ns": at * MS + 50 * US + 3 * rank}
        for at in (1, 2, 4, 7, 9, 12, 15, 20, 22, 27)
        for rank in range(3)
    ]
    group = (Group("tp", (0, 1, 2)),)
    found = kernels_waited(run(*({**row, "group": "tp"} for row in together), groups=group))
    assert found.height == 30
    assert found["waits_ns"].sum() == 0
    assert found["awaited"].null_count() == 30


def test_of_collectives_that_are_not_matched_nothing_is_said():
    lost = [row for at, one in enumerate(met(40, 3)) for row in one if (at, row["rank"]) != (20, 1)]
    assert kernels_waited(run(*lost)).height == 0
