"""Work that is done at the same time gives what it gives one after the other, and holds no more."""

from __future__ import annotations

import threading

import pytest

from bubblescope.model import arrays
from bubblescope.model.arrays import at_once, both, one_by_one


@pytest.fixture(params=[1, 2, 4], ids="{} processors".format)
def _processors(request, monkeypatch):
    monkeypatch.delenv("POLARS_MAX_THREADS", raising=False)
    monkeypatch.setattr(arrays, "cores", lambda: request.param)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 20])
@pytest.mark.usefixtures("_processors")
def test_what_comes_is_in_the_order_of_the_items(count):
    squares = [number**2 for number in range(count)]
    assert list(one_by_one(lambda number: number**2, iter(range(count)), 3)) == squares
    assert at_once(lambda number: number**2, range(count)) == squares


@pytest.mark.usefixtures("_processors")
def test_items_are_taken_only_a_few_ahead():
    taken = 0

    def items():
        nonlocal taken
        for number in range(50):
            taken += 1
            yield number

    for seen, _ in enumerate(one_by_one(lambda number: number, items(), 4)):
        assert taken <= seen + 4


@pytest.mark.usefixtures("_processors")
def test_two_works_give_what_each_gives():
    assert both(lambda: "one", lambda: 2) == ("one", 2)


def test_two_works_are_done_at_the_same_time_where_there_are_processors(monkeypatch):
    monkeypatch.delenv("POLARS_MAX_THREADS", raising=False)
    monkeypatch.setattr(arrays, "cores", lambda: 2)
    met = threading.Barrier(2, timeout=60)  # one alone would wait for the other in vain
    assert sorted(both(met.wait, met.wait)) == [0, 1]


@pytest.mark.usefixtures("_processors")
def test_what_fails_says_so():
    with pytest.raises(ZeroDivisionError):
        list(one_by_one(lambda number: 1 // number, iter([2, 1, 0, 1]), 3))
    with pytest.raises(ZeroDivisionError):
        both(lambda: 1, lambda: 1 // 0)
