"""Which micro-batch and chunk the passes of a rank are of, of which only the order is known.

Megatron-LM's interleaved schedule fixes it (`forward_backward_pipelining_with_interleaving` and
`get_schedule_table` in `megatron/core/pipeline_parallel/schedules.py`; Narayanan et al., "Efficient
Large-Scale Language Model Training on GPU Clusters", arXiv 2104.04473, section 2.2): micro-batches go
through a rank's chunks in groups of as many as the pipeline has ranks, or of
`--microbatch-group-size-per-virtual-pipeline-stage`, and through the backwards in the same groups,
last chunk first. How many forwards a rank runs before its first backward tells the groups' size.
"""

from __future__ import annotations

import polars as pl

FORWARD, BACKWARD, WEIGHT = "fwd", "bwd", "wgrad"
"""The lists of passes that are each in order: forwards, backwards and weight gradients."""


def in_order(passes: pl.DataFrame, chunks: int, group: int) -> pl.DataFrame:
    """Fill micro-batches and chunks that are null by Megatron's order.

    Where one of the two is stated it decides on the other: every chunk takes the micro-batches in
    order, and every micro-batch goes through the chunks in order, backwards through the last first.

    Args:
        passes: Frame with rank, step, way (see `FORWARD`), nth (place in the list of its way, from
            0), microbatch, chunk and forwards (how many a rank runs in that step).
        chunks: Model chunks on each rank v.
        group: Micro-batches that go through a chunk before the next one's turn g.

    Returns:
        The same rows with micro-batches and chunks; null where there are more passes than forwards.
    """
    nth, count = pl.col("nth"), pl.col("forwards") // chunks
    first = nth // (group * chunks) * group
    size = pl.min_horizontal(pl.lit(group), count - first)  # the last group has what is left
    within = nth - first * chunks
    there = nth < count * chunks
    turn = nth.rank("ordinal") - 1
    listed = ["rank", "step", "way"]
    ahead = (
        pl.when(pl.col("microbatch").is_not_null())
        .then(turn.over([*listed, "microbatch"]))
        .when(there)
        .then(within // size)
    )
    microbatch = (
        pl.when(pl.col("chunk").is_not_null())
        .then(turn.over([*listed, "chunk"]))
        .when(there)
        .then(first + within % size)
    )
    chunk = pl.when(pl.col("way") == FORWARD).then(ahead).otherwise(chunks - 1 - ahead)
    return passes.with_columns(
        microbatch=pl.coalesce("microbatch", microbatch.cast(pl.Int32)),
        chunk=pl.coalesce("chunk", chunk.cast(pl.Int16)),
    )


def warm_up(passes: pl.DataFrame) -> dict[int, tuple[int, int]]:
    """Return rank -> how many forwards start before its first backward, and how many there are.

    Of several steps, the most frequent pair of numbers; steps without backwards, such as
    evaluations, do not count.

    Args:
        passes: Frame with rank, step, way, start_ns and forwards, null of ranks that run none.
    """
    first_ns = pl.col("start_ns").filter(pl.col("way") == BACKWARD).min()
    early = (pl.col("way") == FORWARD) & (pl.col("start_ns") < pl.col("first_ns"))
    found = (
        passes.with_columns(first_ns=first_ns.over("rank", "step"))
        .filter(pl.col("first_ns").is_not_null())
        .group_by("rank", "step")
        .agg(early=early.sum(), forwards=pl.col("forwards").max().fill_null(0))
        .group_by("rank", "early", "forwards")
        .len()
        .sort("rank", "len", "early", descending=[False, True, False])
        .unique("rank", keep="first", maintain_order=True)
    )
    return {
        rank: (early, forwards)
        for rank, early, forwards in found.select("rank", "early", "forwards").iter_rows()
    }


def chunks_of(early: dict[int, tuple[int, int]], devices: int) -> int:
    """Return how many chunks each rank has, as the last rank's warm-up tells: (v - 1) p forwards.

    Args:
        early: As `warm_up` returns it.
        devices: Ranks of the pipeline p.

    Returns:
        The chunks; 1 where the warm-up is none of Megatron's, or holds all forwards, which tells
        nothing.
    """
    before, forwards = early.get(devices - 1, (1, 1))
    if devices < 2 or before >= forwards or (before - 1) % devices:
        return 1
    chunks = 1 + (before - 1) // devices
    return chunks if forwards % chunks == 0 else 1


def group_of(early: dict[int, tuple[int, int]], devices: int, chunks: int) -> int | str:
    """Return how many micro-batches go through a chunk in a row, as the warm-ups tell.

    Before its first backward, rank r runs 2 (p - 1 - r) + (v - 1) g + 1 forwards, or all there are.

    Args:
        early: As `warm_up` returns it.
        devices: Ranks of the pipeline p.
        chunks: Model chunks on each rank v, 2 or more.

    Returns:
        The groups' size g; or in words what is not so.
    """
    if all(before == forwards == devices * chunks for before, forwards in early.values()):
        return devices  # some versions run as many micro-batches as ranks forward first

    def expected(rank: int, group: int, forwards: int) -> int:
        return min(2 * (devices - 1 - rank) + (chunks - 1) * group + 1, forwards)

    found = {
        (before - 1 - 2 * (devices - 1 - rank)) // (chunks - 1)
        for rank, (before, forwards) in early.items()
        if before < forwards
    }
    group = max(devices, *found) if found else devices
    for rank, (before, forwards) in early.items():
        wanted = expected(rank, group, forwards)
        if before != wanted:
            return (
                f"rank {rank} runs {before} of {forwards} forwards before its first backward, where "
                f"Megatron's order of {chunks} chunks in groups of {group} has {wanted}"
            )
    return group
