"""Makes job traces like those of ByteDance's StragglerAnalysis, of jobs with known times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate

if TYPE_CHECKING:
    from pathlib import Path

    from bubblescope.schedules.plan import Plan

SYNC_NS = 2_000_000
"""How long everything takes that follows the last backward, but the optimizer."""
OPTIMIZER_NS = 3_000_000
_COMM_NS = 500_000


def make(
    path: Path, *, replicas: int, steps: int, chunks: int, overlapped: bool, seed: int = 0
) -> Path:
    """Write a job of two places and four micro-batches.

    Replicas and steps differ at random. With several chunks a place, the trace has the messages
    that were never launched as well: those at the ends of the model.
    """
    plan = (
        generate("1f1b", 2, 4) if chunks == 1 else generate("interleaved-1f1b", 2, 4, chunks=chunks)
    )
    rng = np.random.default_rng(seed)
    frames = [
        _step(plan, rng, replicas=replicas, chunks=chunks, overlapped=overlapped).with_columns(
            step=pl.lit(10 + step)
        )
        for step in range(steps)
    ]
    table = pl.concat(frames).sort("step", "rank", "optype", "start_ns")
    table = table.with_columns(
        seq_id=pl.int_range(pl.len(), dtype=pl.Int32).over("step", "rank", "optype"),
        start_ts=(pl.col("start_ns") / 1e9).cast(pl.Float32),
        duration=((pl.col("end_ns") - pl.col("start_ns")) / 1e9).cast(pl.Float32),
        optype=pl.col("optype").cast(pl.Categorical),
    ).drop("start_ns", "end_ns")
    table.write_parquet(path)
    return path


def _step(
    plan: Plan, rng: np.random.Generator, *, replicas: int, chunks: int, overlapped: bool
) -> pl.DataFrame:
    shape = (plan.stages, plan.microbatches)
    rows: list[tuple[object, ...]] = []
    done = []
    for dp in range(replicas):
        times = [rng.integers(8_000_000, 20_000_000, shape) for _ in range(2)]
        run = simulate(plan, Costs(times[0], times[1], 0, times[1], comm_ns=_COMM_NS))
        tasks = run.tasks.filter(pl.col("lane") == "compute").with_columns(
            pl.col("start_ns", "end_ns") + 1_000_000
        )
        done.append(tasks.group_by("rank").agg(pl.col("end_ns").max()).sort("rank")["end_ns"])
        rows += _pipeline(plan, tasks, dp, replicas, chunks)
    rows += _ends(np.array([ends.to_list() for ends in done]), replicas, chunks, overlapped)
    names = ("dp_rank", "stage", "rank", "optype", "start_ns", "end_ns", "mc", "mb_id", "gmc")
    return pl.DataFrame(rows, schema=names, orient="row")


def _pipeline(
    plan: Plan, tasks: pl.DataFrame, dp: int, replicas: int, chunks: int
) -> list[tuple[object, ...]]:
    """Return the computations and messages of a replica."""
    rows: list[tuple[object, ...]] = []
    for word, ahead in (("forward", 1), ("backward", -1)):
        mine = tasks.filter(pl.col("kind").cast(pl.String).str.starts_with(word))
        ended = {(s, m): e for s, m, e in mine.select("stage", "microbatch", "end_ns").iter_rows()}
        for place in range(plan.devices):
            before = 0
            where = (dp, place, place * replicas + dp)
            columns = ("stage", "microbatch", "chunk", "start_ns", "end_ns")
            ran = mine.filter(rank=place).sort("start_ns").select(columns)
            for stage, microbatch, chunk, start, end in ran.iter_rows():
                rows.append((*where, f"{word}-compute", start, end, chunk, microbatch, stage))
                source = ended.get((stage - ahead, microbatch))
                if source is not None:
                    arrived = max(source, before) + _COMM_NS
                    rows.append((*where, f"{word}-recv", before, arrived, -1, -1, -1))
                elif chunks > 1:
                    rows.append((*where, f"{word}-recv", before, before, -1, -1, -1))
                if 0 <= stage + ahead < plan.stages:
                    rows.append((*where, f"{word}-send", end, end + _COMM_NS, -1, -1, -1))
                elif chunks > 1:
                    rows.append((*where, f"{word}-send", end, end, -1, -1, -1))
                before = end
    return rows


def _ends(
    done: np.ndarray, replicas: int, chunks: int, overlapped: bool
) -> list[tuple[object, ...]]:
    """Return what comes before the first forward and after the last backward; done is replicas x 2."""
    rows: list[tuple[object, ...]] = []
    reduced = int(done.max()) + SYNC_NS
    for dp, ends in enumerate(done.tolist()):
        for place, end in enumerate(ends):
            where = (dp, place, place * replicas + dp)
            rest = (-1, -1, -1)
            for chunk in range(chunks):
                first = 500_000 * chunk
                rows.append((*where, "params-all-gather", first, first + 500_000, chunk, -1, -1))
                turn = 100_000 * (chunks - 1 - chunk)  # gradients of the last chunk are ready first
                begin = (end if overlapped else end + 200_000) + turn
                late = reduced + turn
                rows.append((*where, "grads-reduce-scatter", begin, late, chunk, -1, -1))
            rows.append((*where, "gc", end, end + 50_000, -1, -1, -1))
            after = (reduced + 300_000) if overlapped else end + 50_000
            rows.append((*where, "layernorm-grads-all-reduce", after, after + 50_000, *rest))
            grads = max(ends) + 100_000 if not overlapped else after + 100_000
            rows.append((*where, "embedding-grads-all-reduce", after + 50_000, grads, *rest))
            late = reduced + 1_000_000
            if overlapped:
                rows.append((*where, "separate-grads-all-reduce", grads, late, *rest))
            rows.append((*where, "optimizer-clip-main-grad", late, late + 100_000, *rest))
            rows.append((*where, "optimizer", late + 100_000, late + OPTIMIZER_NS, *rest))
    return rows
