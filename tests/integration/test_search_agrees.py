"""A search finds the same in a page that holds its run as in a run that is served."""

from __future__ import annotations

import random

import msgspec
import pytest

from bubblescope.analysis.compare import Comparison
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.view import View
from bubblescope.render.html import page as html
from bubblescope.render.html.data import PageData
from bubblescope.render.html.schema import Search
from bubblescope.render.html.serve.query import find
from bubblescope.schedules import generate
from injected import Fault, Job
from two_runs import injected
from viewing import context_of, until

pytestmark = pytest.mark.browser

SOUGHT = """(queries) => queries.map((query) => {
    try { return window.bubblescope.sought(query); } catch ({ message }) { return { message }; }
})"""
TASKS = (
    *(
        "F3",
        "B2",
        "B2.0",
        "F1@stage 2",
        "B0@rank 5",
        "@3",
        "kind:B",
        "kind:forward",
        "kind:optimizer",
    ),
    *("mb:1,4-6", "mb:0", "stage:0,2-3", "chunk:0", "peer:1", "lane:compute", "lane:against"),
    *("dur>10ms", "dur<=10ms", "dur>=10000000", "dur<999us", "slow>1.3", "slow<=1.05", "slow>=1"),
    *("gained>100us", "lost>0", "lost<300us", "gained<=200us", "name:task", "1f"),
)
GAPS = ("idle>2ms", "idle<=1ms", "cause:warm", "cause:slow", "cause:cool", "cause:a")
EITHER = ("rank:0-5", "rank:7", "odd", "step:1", "step:0,2", "host:node", "host:x")


def queries(seed: int, count: int, lengths: list[int]) -> list[str]:
    """Searches of words that mean something, some about lengths that tasks have to the nanosecond."""
    rng = random.Random(seed)
    exact = [f"dur{sign}{length}" for length in lengths for sign in (">", ">=", "<", "<=")]
    made = []
    for _ in range(count):
        words = (*rng.choice([(*TASKS, *exact), GAPS]), *EITHER)
        sets = [
            rng.choices(words, k=rng.choice([1, 1, 2, 3])) for _ in range(rng.choice([1, 1, 2]))
        ]
        made.append(
            " or ".join(
                " ".join(rng.choice(["", "", "-", "--"]) + word for word in part) for part in sets
            )
        )
    return made


def test_random_searches_find_the_same_in_both(browser, tmp_path):
    job = Job(generate("1f1b", 4, 8), replicas=4, steps=3, jitter=0.05)
    run = job.play(Fault(Cause.SLOW_RANK, slow={(1, 2): 1.5}))
    view = View.of(run, against=Comparison.of(run, injected(run, 5)[0], labels=("A", "B")))
    data = PageData.of(view)
    context = context_of(browser)
    page = context.new_page()
    page.goto(html.write(view, tmp_path / "view.html").as_uri())
    until(page, "!!window.bubblescope")
    asked = queries(7, 300, (run.tasks["end_ns"] - run.tasks["start_ns"]).head(5).to_list())
    answers = page.evaluate(SOUGHT, asked)
    context.close()
    sizes = []
    for query, answer in zip(asked, answers, strict=True):
        if "search" not in answer:
            assert "ask for one" in answer["message"], (query, answer)
            continue
        found = find(data, msgspec.convert(answer["search"], Search))
        assert found.what == answer["search"]["what"]
        assert found.ids == answer["found"], query
        sizes.append(found.count)
    assert len(sizes) > 200
    assert sum(size > 0 for size in sizes) > 120
