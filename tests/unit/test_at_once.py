"""Work on several things at once: in order, bounded, and for whoever asks."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import pytest

from bubblescope.model import arrays
from bubblescope.model.arrays import at_once

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


def test_a_failure_is_that_of_who_asked():
    def work(item):
        if item == 2:
            raise ValueError(f"item {item}")
        return item

    with pytest.raises(ValueError, match="item 2"):
        at_once(work, range(4))
