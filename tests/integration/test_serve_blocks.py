"""A run that is served block by block: what is shown is what a page of the whole run shows."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import polars as pl
import pytest

from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.view import View
from bubblescope.model.errors import SourceError
from bubblescope.model.kinds import Kind
from bubblescope.render.html.data import PageData
from bubblescope.render.html.page_blocks import block_files, block_reading, page_facts, served
from bubblescope.render.html.page_blocks.block_files import INDEX, TOLD, Levels
from bubblescope.render.html.page_blocks.block_reading import BlockReader
from bubblescope.render.html.page_blocks.served import Blocks
from bubblescope.render.html.schema import Condition, Search, SearchWord
from bubblescope.render.html.serve import query
from bubblescope.render.html.serve.query import QueryError
from bubblescope.render.html.serve.resources import Whole
from bubblescope.render.html.serve.waiting import GoneError, waited_for
from bubblescope.render.html.serve.windows import Sight
from bubblescope.sources.dataset.store import Folder
from dealt_runs import disturbed, split
from random_runs import made
from serving import get, serving, unpacked, window

MEASURED = frozenset({"compute", "comm", "host"})


def elsewhere(work, jobs):
    """Do jobs last first, as other processes would: what they are given and return is sent."""
    for index in reversed(range(len(jobs))):
        yield index, pickle.loads(pickle.dumps(work(pickle.loads(pickle.dumps(jobs[index])))))


def blocks_of(timeline, folder, seed, size=50):
    """The run in blocks of a few tasks, of parts that are dealt out at random."""
    levels = Levels(Folder(Path(folder)), "levels/0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_facts, "A_BLOCK", size)
        page_facts.make_levels(levels, split(timeline, seed), elsewhere)
    return levels


def run(seed):
    timeline = made(seed).timeline
    return disturbed(timeline, seed) if seed % 3 else timeline


@pytest.fixture(scope="module", params=[1, 4, 5, 7, None])
def pair(request, tmp_path_factory):
    """A run as one page holds it, and in blocks; of the last, each step is a part."""
    timeline = run(request.param or 0)
    data = PageData.of(View.of(timeline))
    levels = blocks_of(timeline, tmp_path_factory.mktemp("blocks"), request.param)
    return SimpleNamespace(
        data=data, whole=Whole(data), blocks=Blocks(levels), levels=levels, timeline=timeline
    )


def shown(held, sight, data):
    """What a window shows: rows of tasks and gaps with absolute times, and links; names in letters."""
    head, tables = unpacked(held.cut(sight))
    names = np.array([*data.names, ""])
    causes = [cause.name for cause in data.causes]
    tasks, gaps = tables["tasks"], tables["gaps"]
    own = {name: tasks[name] for name in tasks if name not in {"gap", "name", "id", "merged"}}
    own["start"] = since(tasks["gap"], head["rows"])
    own["name"] = names[tasks["name"]]
    between = {name: gaps[name] for name in ("length", "step")}
    between["start"] = since(gaps["gap"], head["gaps"])
    between["cause"] = np.array(causes)[gaps["cause"]] if len(gaps["cause"]) else gaps["cause"]
    between["task"] = np.cumsum(gaps["task_step"].astype(np.int64))
    between["root"] = gaps["root"]
    links = tables["links"]
    source = np.cumsum(links["source_step"].astype(np.int64))
    return head, own, between, sorted(zip(source, source + links["reach"], strict=True)), tables


def since(steps, counts):
    """Starts, of what each is after the one before it in its row."""
    rows = np.split(steps.astype(np.int64), np.cumsum(counts)[:-1])
    return np.concatenate([np.cumsum(row) for row in rows])


def same(one, other):
    assert one.keys() == other.keys()
    for name, values in one.items():
        assert values.tolist() == other[name].tolist(), name


def sights(pair, count=12):
    """Stretches of time and ranks, chosen at random; the first is all of the run."""
    random = np.random.default_rng(1)
    end, ranks = pair.data.told.end, len(pair.data.told.ranks)
    yield Sight(0, end / 100 + 1, 100, frozenset(range(ranks)), MEASURED)
    for _ in range(count):
        low, high = np.sort(random.integers(0, end, 2))
        some = frozenset(random.permutation(ranks)[: random.integers(1, ranks + 1)].tolist())
        yield Sight(float(low), (high - low) / 100 + 1, 100, some, MEASURED)


def test_a_window_shows_what_one_of_the_whole_run_shows(pair):
    told = pair.levels.told()
    overlaid = [row.lane in {"ideal", "whatif"} for row in pair.data.places().rows]
    for sight in sights(pair):
        head, tasks, gaps, links, _ = shown(pair.blocks, sight, told)
        expected, *rest, _ = shown(pair.whole, sight, pair.data.told)
        rows = [n for n, beside in zip(expected["rows"], overlaid, strict=True) if not beside]
        assert head["rows"] == rows
        assert sum(head["gaps"]) == sum(expected["gaps"])
        assert head["complete"] == expected["complete"]
        same(tasks, rest[0])
        same(gaps, rest[1])
        assert links == rest[2]


def test_numbers_lead_to_where_tasks_gaps_and_their_roots_are(pair):
    sight = next(sights(pair))
    ours, theirs = (unpacked(held.cut(sight))[1] for held in (pair.blocks, pair.whole))
    for what, table, column in (
        ("task", "tasks", "id"), ("gap", "gaps", "id"), ("task", "gaps", "root_id"),
    ):  # fmt: skip
        for mine, its in zip(ours[table][column][::7], theirs[table][column][::7], strict=True):
            if what == "gap" or mine >= 0:
                assert pair.blocks.where(what, int(mine)) == pair.whole.where(what, int(its))
    with pytest.raises(ValueError, match="number"):
        pair.blocks.where("task", len(pair.timeline))


def word(column, least=None, most=None, text=None, *, negated=False):
    asked = Condition(column=column, least=least, most=least if most is None else most, text=text)
    return SearchWord(any=[[asked]], negated=negated)


FORWARD, BACKWARD = (list(Kind).index(kind) for kind in (Kind.FORWARD, Kind.BACKWARD))
WARM_UP = list(Cause).index(Cause.WARM_UP)


@pytest.mark.parametrize(
    ("what", "sets"),
    [
        ("task", [[word("rank", 1)]]),
        ("task", [[word("kind", FORWARD), word("microbatch", 1)]]),
        ("task", [[word("kind", BACKWARD), word("step", 1, negated=True)]]),
        ("task", [[word("length", 5e6, 1e12)], [word("stage", 0)]]),
        ("gap", [[word("length", 1e6, 1e12)]]),
        ("gap", [[word("cause", WARM_UP)], [word("host", text="0"), word("step", 0, 1)]]),
    ],
)
def test_a_search_finds_what_one_of_the_whole_run_finds(pair, what, sets):
    found_alike(pair, what, sets, sets)


@pytest.mark.parametrize("standing", ["odd", "waits", "alike"])
def test_a_search_for_a_standing_finds_the_ranks_that_have_it(pair, standing):
    """Of a run in blocks, some steps tell how its ranks stand, and the page says so."""
    ranks = [rank.rank for rank in pair.levels.told().ranks if rank.standing == standing]
    named = SearchWord(any=[[at_rank(rank)] for rank in ranks or [-1]], negated=False)
    asked, expected = (
        [[one, word("name", text="1")]] for one in (word("standing", text=standing), named)
    )
    found_alike(pair, "task", asked, expected)


def at_rank(rank):
    return Condition(column="rank", least=rank, most=rank, text=None)


def found_alike(pair, what, sets, of_whole):
    found = pair.blocks.find(Search(what=what, sets=sets))
    expected = pair.whole.find(Search(what=what, sets=of_whole))
    assert (found.what, found.count) == (expected.what, expected.count)
    for mine, its in list(zip(found.ids, expected.ids, strict=True))[::11]:
        assert pair.blocks.where(found.what, mine) == pair.whole.where(found.what, its)


def random_search(random, data):
    """Ranks, lengths and others, some negated, alone, together and beside each other."""
    ranks, longest = len(data.told.ranks), float(data.told.end)

    def condition():
        match random.integers(4):
            case 0:
                low = random.integers(ranks)
                return Condition(column="rank", least=low, most=low + random.integers(3))
            case 1:
                is_open = bool(random.integers(2))
                return Condition(
                    column="length", least=longest * 10 ** random.uniform(-4, -1), open=is_open
                )
            case 2:
                return Condition(column="host", text=str(random.integers(3)))
        return Condition(column="step", least=0, most=int(random.integers(3)))

    def word():
        parts = [
            [condition() for _ in range(random.integers(1, 3))]
            for _ in range(random.integers(1, 3))
        ]
        return SearchWord(any=parts, negated=bool(random.integers(4) == 0))

    sets = [[word() for _ in range(random.integers(1, 3))] for _ in range(random.integers(1, 3))]
    return Search(what=random.choice(["task", "gap"]), sets=sets)


@pytest.mark.parametrize("seed", range(20))
def test_blocks_that_a_search_leaves_out_hold_nothing_it_is_about(pair, seed):
    random = np.random.default_rng(seed)
    for _ in range(5):
        search = random_search(random, pair.data)
        found, expected = pair.blocks.find(search), pair.whole.find(search)
        assert found.count == expected.count
        assert len(found.ids) == len(set(found.ids))


def test_a_search_reads_only_where_it_can_find_something(pair, monkeypatch):
    read = []
    theirs = BlockReader.block
    monkeypatch.setattr(
        BlockReader, "block", lambda self, table, at: read.append(at) or theirs(self, table, at)
    )
    blocks = Blocks(pair.levels)
    every = {*blocks._blocks.addresses("tasks", range(len(blocks._index.batches) - 1))}
    blocks.find(Search(what="task", sets=[[word("stage", 0)]]))
    assert {*read} == every
    read.clear()
    blocks.find(Search(what="task", sets=[[word("rank", 0, 0), word("stage", 0)]]))
    assert {at.batch for at in read} == {0} & {at.batch for at in every}
    read.clear()
    lengths = pair.data.tasks.select(pl.col("end_ns") - pl.col("start_ns")).to_series()
    longest = max(lengths.max(), 2 * blocks._index.widths_ns[0])
    found = blocks.find(Search(what="task", sets=[[word("length", longest)]]))
    assert len({*read}) <= found.count


def test_what_cannot_be_searched_is_refused_though_no_block_is_read(pair):
    ranks = word("rank", 1e6)
    for sets, error in (([[ranks, word("cause", 1)]], ValueError), ([[ranks] * 600], QueryError)):
        with pytest.raises(error):
            pair.blocks.find(Search(what="task", sets=sets))


def test_totals_are_those_of_the_whole_run(pair):
    for sight in sights(pair):
        span = round(sight.start_ns), round(sight.end_ns)
        assert pair.blocks.totals(*span, sight.ranks) == pair.whole.totals(*span, sight.ranks)


def test_the_page_tells_of_the_whole_run(pair):
    told, data = pair.levels.told(), pair.data.told
    apart = {  # what there is of one that is held whole, and what is looked at in some steps
        *("names", "overlays", "whatif", "verdict", "notes", "ranks", "standings", "spread"),
        *("communicating", "groups", "unrecorded"),
    }
    for field in data.__struct_fields__:
        if field not in apart:
            assert getattr(told, field) == getattr(data, field), field
    # What is not recorded between two steps is in no part.
    assert all(one in data.unrecorded for one in told.unrecorded)
    assert {*told.names} == {*pair.timeline.tasks["name"]}
    assert [rank.rank for rank in told.ranks] == [rank.rank for rank in data.ranks]
    assert [rank.rates for rank in told.ranks] == [rank.rates for rank in data.ranks]
    assert (told.verdict.share, told.verdict.said) == (data.verdict.share, data.verdict.said)
    # No schedule is tried of what is not held whole.
    of_all, tried = told.verdict.remedies, data.verdict.remedies
    of_all = [one for one in of_all if not one.headline.startswith("Change the schedule, or")]
    tried = [one for one in tried if not one.headline.startswith("Change the schedule")]
    for mine, its in zip(of_all, tried, strict=True):
        assert (mine.saved, mine.headline, mine.evidence) == (its.saved, its.headline, its.evidence)
        assert (mine.task is None) == (its.task is None)
        if mine.task is not None:
            assert pair.blocks.where("task", mine.task) == pair.whole.where("task", its.task)


def test_seen_from_afar_each_kind_and_cause_has_its_share(pair, monkeypatch):
    """Of any stretch, but for a pixel's worth at either end; the whole of the run to the nanosecond."""
    monkeypatch.setattr(served, "_AT_ONCE", 0)
    end = pair.data.told.end
    columns = max(1, int(end // pair.blocks._index.widths_ns[-1]))
    ranks = frozenset(range(len(pair.data.told.ranks)))
    sight = Sight(0, end / columns, columns, ranks, MEASURED)
    head, tables = unpacked(pair.blocks.cut(sight))
    assert not head["complete"]
    lengths = np.bincount(tables["tasks"]["kind"], tables["tasks"]["length"], 32)
    own = pair.data.tasks.filter(pair.data.tasks["task"].is_not_null())
    kinds = own["kind"].to_physical().to_numpy()
    expected = np.bincount(kinds, (own["end_ns"] - own["start_ns"]).to_numpy(), 32)
    pieces = np.bincount(tables["tasks"]["kind"], minlength=32)
    overlap = expected.sum() - drawn(own)  # tasks of a row that touch are drawn from where one ends
    assert (np.abs(lengths - expected) <= pieces + overlap).all()
    counted = tables["tasks"]["merged"].astype(np.int64)
    of_tails = (counted == 1).sum()  # what only reaches into a pixel is one there as well
    assert len(own) <= np.maximum(counted, 1).sum() <= len(own) + of_tails


def test_of_very_many_found_the_first_are_named_and_all_are_counted(pair, monkeypatch):
    monkeypatch.setattr(query, "_MOST", 7)
    searches = [
        Search(what="task", sets=[[word("stage", 0)]]),
        Search(what="gap", sets=[[word("length", 1, 1e12)]]),
    ]
    for search in searches:
        found, expected = pair.blocks.find(search), pair.whole.find(search)
        assert (found.count, len(found.ids)) == (expected.count, 7)
        for mine, its in zip(found.ids, expected.ids, strict=True):
            assert pair.blocks.where(search.what, mine) == pair.whole.where(search.what, its)


def test_idle_time_is_shown_of_the_ranks_of_which_it_is_asked_for(pair):
    """The tasks are those that are shown with all of it."""
    random = np.random.default_rng(2)
    told = pair.levels.told()
    for sight in sights(pair):
        some = frozenset(random.permutation(sorted(sight.ranks))[:2].tolist())
        few = msgspec.structs.replace(sight, idle=some)
        for held, data in ((pair.blocks, told), (pair.whole, pair.data.told)):
            head, tasks, gaps, links, _ = shown(held, sight, data)
            fewer, same_tasks, own, same_links, _ = shown(held, few, data)
            same(tasks, same_tasks)
            assert links == same_links
            of_rank = np.repeat(np.arange(len(head["gaps"])), head["gaps"])
            kept = np.isin(of_rank, sorted(some))
            assert own["start"].tolist() == gaps["start"][kept].tolist()
            assert sum(fewer["gaps"]) == kept.sum()


def test_from_afar_ranks_that_are_drawn_one_by_one_are_seen_as_they_are(pair, monkeypatch):
    """Others are only added up: of each kind nothing is lost."""
    told, ranks = pair.levels.told(), len(pair.data.told.ranks)
    every = frozenset(range(ranks))
    rows = [row.rank for row in pair.blocks._index.rows]
    for alone in (0, ranks - 1):
        sight = Sight(
            0, pair.data.told.end / 5_000 + 1, 5_000, every, MEASURED, idle=frozenset({alone})
        )
        near = msgspec.structs.replace(sight, ranks=frozenset({alone}))
        _, expected, idle, *_ = shown(pair.blocks, near, told)
        monkeypatch.setattr(served, "_AT_ONCE", pair.timeline.tasks.height - 1)
        head, tasks, gaps, links, tables = shown(pair.blocks, sight, told)
        monkeypatch.undo()
        assert not head["complete"]
        assert links == []
        own = np.repeat(np.array(rows) == alone, head["rows"])
        for name in ("start", "length", "kind", "microbatch", "name"):
            assert tasks[name][own].tolist() == expected[name].tolist(), name
        assert (tables["tasks"]["merged"][own] == 0).all()
        assert gaps["start"].tolist() == idle["start"].tolist()
        assert gaps["task"].tolist() == [
            at if at < 0 else np.flatnonzero(own)[at] for at in idle["task"]
        ]


def test_no_more_pieces_are_read_for_a_window_than_for_one_of_tasks(pair, monkeypatch):
    """However fine the pixels, what is seen of many ranks is coarse enough, down to the last level."""
    index, end = pair.blocks._index, pair.data.told.end
    every, asked = frozenset(range(index.ranks)), []
    read = pair.blocks._afar

    def afar(level, *given, **how):
        asked.append(level)
        return read(level, *given, **how)

    monkeypatch.setattr(pair.blocks, "_afar", afar)
    fine = Sight(0, 1.0, int(end), every, MEASURED)
    for level in range(len(index.widths_ns)):
        pieces = sum(
            of.afar[level]
            for number, part in enumerate(index.parts)
            for of in (part, pair.levels.explained(number, index))
        )
        monkeypatch.setattr(served, "_AT_ONCE", pieces)
        if pieces < pair.timeline.tasks.height:
            pair.blocks.cut(msgspec.structs.replace(fine, per_pixel_ns=end / 100, columns=100))
            assert asked.pop() >= level
    monkeypatch.setattr(served, "_AT_ONCE", 0)
    pair.blocks.cut(msgspec.structs.replace(fine, per_pixel_ns=end / 100, columns=100))
    assert asked.pop() == len(index.widths_ns) - 1


def test_levels_say_how_many_pieces_they_have(pair):
    for number, part in enumerate(pair.blocks._index.parts):
        explained = pair.levels.explained(number, pair.blocks._index)
        for table, afar in (("tasks", part.afar), ("gaps", explained.afar)):
            for level, count in enumerate(afar):
                file = block_files.afar_file(level, table, number)
                assert pair.blocks._blocks.read(file).height == count


def drawn(tasks):
    """How long tasks are drawn in all."""
    rows = tasks.sort("position", "lane", "row", "start_ns")
    key = ["position", "lane", "row"]
    begun = rows.select(*key, "start_ns", before=rows["end_ns"].shift(1))
    first = np.append(
        True, (rows[key][1:].rows() != np.array(rows[key][:-1].rows(), object)).any(1)
    )
    start = np.where(
        first, begun["start_ns"], np.maximum(begun["start_ns"], begun["before"].fill_null(0))
    )
    return int((rows["end_ns"].to_numpy() - start).sum())


def test_no_more_blocks_are_kept_than_fit(pair, monkeypatch):
    monkeypatch.setattr(block_reading, "_HELD_BYTES", 20_000)
    blocks = Blocks(pair.levels)
    for sight in sights(pair):
        blocks.cut(sight)
        held = sum(frame.estimated_size() for frame in blocks._blocks._held.values())
        assert held == blocks._blocks._bytes
        assert held <= 20_000 or len(blocks._blocks._held) == 1


def test_it_is_served(pair):
    with serving(pair.blocks) as server:
        status, _, page = get(server)
        assert status == 200
        assert b'"served":true' in page
        assert get(server, "window", **window(ranks="0"))[0] == 200
        search = Search(what="task", sets=[[word("rank", 0)]])
        assert get(server, "find", search=msgspec.json.encode(search).decode())[0] == 200
        assert get(server, "totals", start=0, end=10, ranks="0")[0] == 200
        assert b"what-ifs" in get(server, "whatif", ask="--stage 2=0.5")[2]


def test_no_block_is_read_for_who_has_gone(pair, monkeypatch):
    blocks, left = Blocks(pair.levels), iter([False] * 3 + [True] * 9)
    monkeypatch.setattr(block_reading, "_HELD_BYTES", 0)
    with waited_for(lambda: next(left)), pytest.raises(GoneError):
        blocks.cut(next(sights(pair)))
    assert len(list(left)) == 8


@pytest.mark.parametrize(
    "file", ["tasks/0/0.parquet", "gaps/0/0.parquet", "links/0/0.parquet", "sums/0.parquet"]
)
def test_a_block_that_is_another_table_is_refused(tmp_path, file):
    """A window reads tasks, gaps and links; totals of the same read sums."""
    levels = blocks_of(run(0), tmp_path, 0, size=10**6)
    (tmp_path / "levels/0" / file).write_bytes(
        (tmp_path / "levels/0" / "phases.parquet").read_bytes()
    )
    blocks = Blocks(levels)
    asked = blocks.totals if file.startswith("sums") else lambda *_: blocks.cut(sight)
    sight = Sight(0, 1e7, 100, frozenset({0}), MEASURED)
    with pytest.raises(SourceError, match=rf"{file}: does not hold what the index says"):
        asked(0, 10, {0})


@pytest.mark.parametrize("file", [INDEX, TOLD, "phases.parquet"])
@pytest.mark.parametrize("content", [b"", b"{}", b"PAR1"])
def test_damage_is_told_in_a_sentence_that_names_the_file(tmp_path, file, content):
    timeline = run(3)
    levels = blocks_of(timeline, tmp_path, None)
    (tmp_path / "levels/0" / file).write_bytes(content)
    with pytest.raises(SourceError, match=rf"{file}: .*remove the folder levels/0"):
        Blocks(levels).page()
