"""Parts of a dataset as they are kept while questions are asked."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest

from bubblescope.datasets.prepared_parts import A_ROW, Kept
from bubblescope.model.timeline import TASK_SCHEMA


def tasks(*rows):
    columns = {name: [row.get(name) for row in rows] for name in TASK_SCHEMA}
    return pl.DataFrame(columns, TASK_SCHEMA)


def task(rank, **more):
    known = {"kind": "forward", "lane": "compute", "start_ns": 0, "end_ns": 5, "name": "task"}
    return {"rank": rank, **known, **more}


ONE = tasks(task(0, step=1, stage=0), task(1, step=1), task(1, step=1, start_ns=3, stage=2))
OTHER = tasks(task(2, step=1, kind="backward"), task(2, step=1, kind="backward", microbatch=7))
APART = tasks(task(3, step=4, name="else"))


@pytest.mark.parametrize("folder", ["plain", "a [1]*b?", "step=3"])
def test_a_folder_may_be_called_anything(tmp_path, folder):
    place = tmp_path / folder
    place.mkdir()
    kept = Kept(place)
    kept.keep("a", {"tasks": ONE})
    assert kept.kept("a")["tasks"].equals(ONE)
    assert kept.along("a", 1, 1, ("rank", "step")).equals(ONE[1:].select("rank", "step"))
    assert kept.during("a", 0, 9)["tasks"].equals(ONE)


@pytest.mark.parametrize(
    "frames", [[ONE], [ONE, OTHER], [OTHER, APART], [ONE, ONE[:0], APART], [APART, APART, ONE]]
)
def test_rows_come_back_as_they_were_kept_also_of_several_together(tmp_path, frames):
    """With columns that have one value in all rows, or in those of some, or none."""
    kept = Kept(tmp_path)
    for number, frame in enumerate(frames):
        kept.keep(f"{number}", {"tasks": frame, "budget": frame[:0]})
    names = [f"{number}" for number in range(len(frames))]
    found = kept.kept(*names)
    assert [*found] == ["tasks"]
    assert found["tasks"].equals(pl.concat(frames))
    assert found["tasks"].schema == TASK_SCHEMA
    assert kept.kept(*names, "absent") is None


def test_the_parts_that_come_first_are_kept_while_there_is_room(tmp_path, monkeypatch):
    free = 5 * A_ROW
    monkeypatch.setattr(
        "bubblescope.datasets.prepared_parts.shutil.disk_usage",
        lambda _: SimpleNamespace(free=free),
    )
    kept = Kept(tmp_path, spared=2 * A_ROW, every=False)
    kept.keep("first", {"tasks": ONE})
    assert kept.holds("first")
    free = 4 * A_ROW
    kept.keep("second", {"tasks": ONE})
    kept.keep("small", {"tasks": OTHER})
    assert [kept.holds(name) for name in ("first", "second", "small")] == [True, False, True]
    kept._replace(every=True).keep("second", {"tasks": ONE})
    assert kept.holds("second")


def test_columns_of_some_ranks_and_what_overlaps_a_time(tmp_path):
    kept = Kept(tmp_path)
    kept.keep("a", {"tasks": ONE})
    for columns in (("rank", "step", "name"), ("rank", "stage", "start_ns")):
        assert kept.along("a", 1, 9, columns).equals(ONE[1:].select(columns))
        assert not kept.along("a", 2, 9, columns).height
    assert kept.during("a", 2, 3)["tasks"].equals(ONE[:2])
    assert kept.during("a", 5, 9) == {}, "of tables in which nothing does, nothing is read"
    kept.keep("alike", {"tasks": OTHER})  # all begin and end at once
    assert kept.during("alike", 0, 1)["tasks"].equals(OTHER)
    assert kept.along("alike", 2, 2, ("start_ns",)).equals(OTHER.select("start_ns"))
    assert kept.along("absent", 0, 1, ("rank",)) is None
    assert kept.during("absent", 0, 1) is None
