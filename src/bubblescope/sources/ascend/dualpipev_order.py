"""The places of a rank's ranges in the schedule that its job declared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bubblescope.model.kinds import Kind
from bubblescope.model.provenance import Notice
from bubblescope.schedules import mindspeed_dualpipev as mindspeed

if TYPE_CHECKING:
    from bubblescope.sources.ascend.parallel_layout import Layout

_OUTPUT_LAYER: Final = "logits"
"""Name of the task in which device 0 of a DualPipeV runs the output layer."""


def recognise(ranges: pl.DataFrame, rank: int, place: Layout) -> tuple[pl.DataFrame, list[Notice]]:
    """Find each range's place in the declared schedule, step by step, by what the marks say."""
    device = place.device(rank) or 0
    try:
        planned = mindspeed.order(place.pipeline, device, place.microbatches)
    except ValueError as error:
        return ranges, [Notice("schedule-impossible", f"micro-batches are not named: {error}")]
    letters = [_letter(step.kind.value, step.kind is Kind.OTHER) for step in planned]
    names = [position_name(step, place.microbatches) for step in planned]
    plan = pl.DataFrame(
        [
            (
                index,
                name,
                step.kind.value,
                step.chunk,
                step.microbatch,
                step.pair_chunk,
                step.pair_microbatch,
            )
            for index, (step, name) in enumerate(zip(planned, names, strict=True))
        ],
        schema={
            "place": pl.Int64,
            "plan_name": pl.String,
            "plan_kind": pl.String,
            "plan_chunk": pl.Int16,
            "plan_microbatch": pl.Int32,
            "plan_pair_chunk": pl.Int16,
            "plan_pair_microbatch": pl.Int32,
        },
        orient="row",
    )
    parts, notices = [], []
    unstepped = ranges["step"].null_count() == ranges.height
    for (step,), part in ranges.group_by("step", maintain_order=True):
        ran = [_letter(kind, output) for kind, output in part.select("kind", "output").iter_rows()]
        # Without the profiler's steps, as many as it takes are one after the other.
        repeats = max(1, round(len(ran) / len(letters))) if unstepped else 1
        found = mindspeed.align(ran, letters * repeats)
        places = pl.Series("place", found.places, dtype=pl.Int64)
        placed = part.with_columns(places.replace(-1, None))
        if unstepped:
            number = (pl.col("place") // len(letters)).cast(pl.Int32)
            placed = placed.with_columns(
                place=pl.col("place") % len(letters), step=number.forward_fill().fill_null(0)
            )
        parts.append(placed)
        if found.missing or found.extra:
            notices.append(_misfit(rank, step, found, names * repeats, len(ran)))
    columns = ["name", "kind", "chunk", "microbatch", "pair_chunk", "pair_microbatch"]
    joined = pl.concat(parts or [ranges.with_columns(place=pl.lit(None, pl.Int64))]).join(
        plan, on="place", how="left", maintain_order="left"
    )
    output = pl.when("output").then(pl.lit(Kind.OTHER.value)).otherwise("kind")
    filled = joined.with_columns(kind=output).with_columns(
        pl.coalesce(f"plan_{column}", column).alias(column) for column in columns
    )
    return (
        filled.with_columns(
            stage=place.stage(rank, pl.col("chunk")),
            pair_stage=place.stage(rank, pl.col("pair_chunk")),
            splits=pl.lit(value=False),
        ).select(ranges.columns),
        notices,
    )


def _letter(kind: str, output_layer: bool | None) -> str:
    """Return what a mark and the schedule both know of an operation."""
    if output_layer:
        return _OUTPUT_LAYER
    return Kind.BACKWARD.value if kind == Kind.BACKWARD_INPUT.value else kind


def position_name(step: mindspeed.Step, microbatches: int) -> str:
    """Name an operation as Ascend's pipeline chart does.

    Micro-batches of chunk 1 count on from those of chunk 0: "7F+13B" of 10 is the forward of 7 with
    the backward of 3 of chunk 1.
    """
    number = step.microbatch + microbatches * step.chunk
    if step.kind is Kind.OTHER:
        return _OUTPUT_LAYER
    if step.kind is Kind.FORWARD:
        return f"{number}F" if step.apart else str(number)
    if step.kind is Kind.FORWARD_BACKWARD:
        back = (step.pair_microbatch or 0) + microbatches * (step.pair_chunk or 0)
        return f"{number}F+{back}B"
    ending = {Kind.BACKWARD: "B", Kind.BACKWARD_INPUT: "b", Kind.BACKWARD_WEIGHT: "w"}
    return f"{number}{ending[step.kind]}"


def _misfit(rank: int, step: Any, found: mindspeed.Alignment, names: list[str], ran: int) -> Notice:
    """Say which operations of the schedule did not run, as exactly as it can be told."""
    placed = {place for place in found.places if place >= 0}
    absent = [name for index, name in enumerate(names) if index not in placed]
    which = ", ".join(absent[:12]) + (", ..." if len(absent) > 12 else "")
    unsure = sum(place < 0 for place in found.places)
    parts = []
    if found.missing:
        exact = len(absent) == found.missing
        parts.append(f"{found.missing} are missing {'(' if exact else '(among '}{which})")
    if found.extra:
        parts.append(f"{found.extra} are more than it has")
    if unsure:
        parts.append(f"{unsure} are named by their kind alone")
    text = (
        f"rank {rank}, step {step}: {ran} ranges where the schedule has {len(names)}: "
        f"{'; '.join(parts)}"
    )
    return Notice("schedule-misfit", text, found.missing or found.extra, len(names))
