"""Work on several things at once: in order, bounded, and for whoever asks."""

from __future__ import annotations

import threading
import weakref
from contextvars import ContextVar

import pytest

from bubblescope.model import arrays
from bubblescope.model.arrays import at_once, both, in_turn

ASKED: ContextVar[str] = ContextVar("asked", default="nobody")


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr(arrays, "cores", lambda: 4)
    monkeypatch.delenv("POLARS_MAX_THREADS", raising=False)


def test_what_comes_of_each_is_in_their_order_and_several_run_at_the_same_time():
    together = threading.Barrier(4, timeout=10)

    def work(item):
        together.wait()
        return item * item

    assert at_once(work, range(8)) == [item * item for item in range(8)]


@pytest.mark.parametrize(("asked", "said"), [("3", 3), ("1", 1), ("many", 4)])
def test_no_more_run_than_polars_may(monkeypatch, asked, said):
    monkeypatch.setenv("POLARS_MAX_THREADS", asked)
    threads = set()
    together = threading.Barrier(said, timeout=10)

    def work(_):
        together.wait()
        threads.add(threading.get_ident())

    at_once(work, range(12))
    assert len(threads) == said


def test_it_is_done_for_who_asks_also_by_what_does_several_things_itself():
    ASKED.set("me")

    def work(item):
        return [*at_once(lambda _: ASKED.get(), range(item)), ASKED.get()]

    assert at_once(work, [1, 2, 3]) == [["me"] * 2, ["me"] * 3, ["me"] * 4]


@pytest.mark.parametrize("asked", [at_once, lambda work, items: list(in_turn(work, items, 2))])
def test_a_failure_is_that_of_who_asked(asked):
    def work(item):
        if item == 2:
            raise ValueError(f"item {item}")
        return item

    with pytest.raises(ValueError, match="item 2"):
        asked(work, range(4))


def test_two_different_things_can_be_asked_for():
    together = threading.Barrier(2, timeout=10)

    def met(said):
        together.wait()
        return said

    assert both(lambda: met("one"), lambda: met(2)) == ("one", 2)


@pytest.mark.parametrize("cores", [1, 4])
def test_items_are_asked_for_while_others_are_worked_on(monkeypatch, cores):
    monkeypatch.setattr(arrays, "cores", lambda: cores)
    later = threading.Event()

    def items():
        yield 0
        later.set()
        yield from range(1, 6)

    def work(item):
        assert item or cores == 1 or later.wait(10)
        return item * item

    assert list(in_turn(work, items(), 2)) == [item * item for item in range(6)]


class Thing:
    pass


def test_no_more_items_are_there_than_may_be():
    there = []

    def items():
        for _ in range(20):
            there.append(weakref.ref(thing := Thing()))
            assert sum(one() is not None for one in there) <= 3
            yield thing
            del thing

    assert len(list(in_turn(lambda _: None, items(), 3))) == 20
