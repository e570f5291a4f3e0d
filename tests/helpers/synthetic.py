"""Timelines whose answers are known, for the tests of what is made from them."""

from __future__ import annotations

import polars as pl

from bubblescope import Timeline
from bubblescope.model.kinds import Kind
from bubblescope.model.provenance import Notice, Origin, Run
from nsight_maker import Style, solve

ORIGIN = 1_750_000_000_123_456_789


def one_f_one_b(
    ranks: int = 4,
    microbatches: int = 8,
    steps: int = 3,
    *,
    hosts: int = 2,
    comm: bool = True,
    forward_ns: int = 1_000_003,
    backward_ns: int = 2_000_001,
) -> Timeline:
    """1F1B with the ideal bubble of (p - 1) / (m + p - 1), a lane of sends, and an optimizer."""
    times = {Kind.FORWARD: forward_ns, Kind.BACKWARD: backward_ns}
    plan = solve(Style(stages=ranks, microbatches=microbatches, times=times))
    makespan = max(tasks[-1][3] for tasks in plan.values())
    rows = []
    for step in range(steps):
        base = ORIGIN + step * (makespan + 700_000)
        for rank, tasks in plan.items():
            for kind, microbatch, start, end in tasks:
                rows.append(
                    (rank, step, kind.value, microbatch, "compute", base + start, base + end)
                )
                if comm and kind is Kind.FORWARD and rank < ranks - 1:
                    # Longer than a forward: sends of neighbouring micro-batches overlap.
                    rows.append(
                        (
                            rank,
                            step,
                            "send_forward",
                            microbatch,
                            "comm",
                            base + end,
                            base + end + 1_600_000,
                        )
                    )
            rows.append(
                (
                    rank,
                    step,
                    "optimizer",
                    None,
                    "compute",
                    base + makespan,
                    base + makespan + 400_000,
                )
            )
    schema = ["rank", "step", "kind", "microbatch", "lane", "start_ns", "end_ns"]
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return Timeline(
        frame.with_columns(
            stage=pl.when(pl.col("microbatch").is_not_null()).then("rank"),
            name=pl.format("{} {}", "kind", "microbatch").fill_null("optimizer"),
            busy_ns=(pl.col("end_ns") - pl.col("start_ns")) * 9 // 10,
            host_start_ns=pl.col("start_ns") - 50_000,
        ),
        pl.DataFrame(
            {
                "rank": range(ranks),
                "host": [f"node{rank * hosts // ranks}" for rank in range(ranks)],
                "stages": [[rank] for rank in range(ranks)],
            },
        ),
        Run(
            origins=(Origin("made", "1", "made"),),
            inferred={"stage": "by construction"},
            warnings=(Notice("test", "this is a test"),),
        ),
    )


HOSTILE = (
    '</script><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
    "'&amp;]]>--><!--[bold]no[/bold][/][link=javascript:hacked()]{0}%s%n${x}\\r\\n"
    "\0\a\b\x1b[2J\x1b]0;hacked\a\x7f\x9b31m\u2028\u2029\u200f\u202e\u2066\u061c\ufff9\U000e0041."
)
"""Breaks out of markup, scripts, comments, templates, format strings, terminals and lines, wherever it
is not taken as text; turns the direction of what comes after it; ends text at its NUL."""


def hostile(text: str = HOSTILE) -> Timeline:
    """A timeline whose every text tries to break out of what it is put into."""
    timeline = one_f_one_b(ranks=2, microbatches=2, steps=1, hosts=1)
    return Timeline(
        timeline.tasks.with_columns(name=pl.lit(text)),
        timeline.ranks.with_columns(host=pl.lit(text)),
        Run(
            origins=(Origin("made", text, text),),
            schedule=text,
            warnings=(Notice("x", text),),
            inferred={text: text},
        ),
        pl.DataFrame(
            [(0, text, text, timeline.start_ns, 1.0)],
            schema=["rank", "name", "unit", "time_ns", "value"],
            schema_overrides={"rank": pl.Int32},
            orient="row",
        ),
    )


def empty() -> Timeline:
    """No task at all."""
    return one_f_one_b(ranks=2, microbatches=1, steps=1).slice(end_ns=0)


def staggered() -> Timeline:
    """Two ranks, the second a step behind; one receive waits for its send, the other is late.

    Step 0 lasts from 0 to 220 and step 1 from 150 to 330. A zero-length task touches another.
    """
    rows = [
        (0, 0, "forward", 0, "compute", 0, 100, None),
        (0, 0, "send_forward", 0, "comm", 100, 110, 1),
        (0, 1, "forward", 0, "compute", 150, 300, None),
        (0, 1, "send_forward", 0, "comm", 300, 310, 1),
        (1, 0, "recv_forward", 0, "comm", 105, 112, 0),
        (1, 0, "forward", 0, "compute", 112, 220, None),
        (1, 1, "recv_forward", 0, "comm", 230, 312, 0),
        (1, 1, "forward", 0, "compute", 312, 330, None),
        (1, 1, "gc", None, "host", 320, 320, None),
        (1, 1, "gc", None, "host", 320, 325, None),
    ]
    schema = ["rank", "step", "kind", "microbatch", "lane", "start_ns", "end_ns", "peer"]
    frame = pl.DataFrame(rows, schema=schema, orient="row", infer_schema_length=None)
    return Timeline(
        frame.with_columns(
            pl.col("start_ns", "end_ns") + ORIGIN,
            name=pl.col("kind"),
            host_start_ns=pl.col("start_ns") + ORIGIN - 7,
        )
    )
