"""The steps of a run without a pipeline, and what its devices spent them on."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.analysis.device_budget import recorded
from bubblescope.analysis.step_lengths import is_one_step, warm_up, whole
from bubblescope.model import units
from bubblescope.model.budget import HIDDEN, is_spent_on
from bubblescope.model.errors import TimelineError
from bubblescope.model.provenance import Notice

if TYPE_CHECKING:
    from collections.abc import Collection

    from bubblescope.model.budget import Use
    from bubblescope.model.timeline import Timeline

STEP: Final = "step"
CAPTURE: Final = "capture"

DEVICE: Final = ("rank", "device")
PLACE: Final = (*DEVICE, "step")
"""Columns that tell apart devices, and their steps."""


class DeviceSteps:
    """The steps of a run as its devices had them: each is the sum of its budget.

    Args:
        timeline: The run.

    Attributes:
        span: What they are: `STEP`, each from its start to the next one's, or `CAPTURE`, from the first
            operation of a device to its last, of a run without steps.
        open: Whether the ends of all of them are missing, so that they are longer than what is known.
        budget: What devices spent them on, as `Timeline.budget`, without what others hide. Steps whose
            end was not recorded on all ranks are left out, unless there are no others.
        lengths: Frame with rank, device, step and length_ns.
        several: Whether there are several devices.
        step_ns: How long they are: the mean over steps of the longest among the devices.
        error: How far that is from steps as they were measured, as a share.

    Raises:
        TimelineError: The traces hold no kernels.
    """

    def __init__(self, timeline: Timeline) -> None:
        budget = timeline.budget.filter(~pl.col("use").is_in([use.value for use in HIDDEN]))
        if not budget.height:
            raise TimelineError("the traces hold no kernels, so they do not show what devices did")
        in_steps = budget["step"].is_not_null().any() and not is_one_step(timeline.run)
        self.span = STEP if in_steps else CAPTURE
        self._times = timeline.step_times
        if in_steps:
            place, budget = ["rank", "step"], budget.drop_nulls("step")
            steps = budget.select(place).unique().join(self._times, on=place, how="left")
            # Ranks wait for each other: what a step takes is known where it is known of them all.
            known = whole(steps.with_columns(pl.col("open").any().over("step")))
            self.open = bool(known["open"].any())
            budget = budget.join(known, on=place, how="semi", maintain_order="left")
        else:
            self.open = False
            # What came before all that was taken as one step is of the same capture.
            budget = budget.with_columns(step=pl.lit(None, budget.schema["step"]))
        self.budget = budget
        self.lengths = budget.group_by(PLACE).agg(length_ns=pl.col("spent_ns").sum())
        self.several = self.lengths.n_unique(DEVICE) > 1
        self.step_ns = self.mean(pl.col("length_ns").max())
        self.error = self._off()

    def mean(self, of_devices: pl.Expr, steps: pl.DataFrame | None = None) -> int:
        """Return the mean over steps of what an expression makes of a step's devices.

        Args:
            of_devices: The expression.
            steps: `lengths`, with what else it needs; that alone if left out.
        """
        of = self.lengths if steps is None else steps
        return round(of.group_by("step").agg(of_devices.alias("of"))["of"].mean())  # type: ignore[arg-type]

    def spent(self, uses: Collection[Use], name: str) -> pl.DataFrame:
        """Return what each device's step spent on some uses, under a name."""
        rows = self.budget.filter(is_spent_on(uses))
        return rows.group_by(PLACE).agg(pl.col("spent_ns").sum().alias(name))

    @cached_property
    def windows(self) -> pl.DataFrame:
        """The time of each device's steps: rank, device, step, start_ns and until_ns."""
        places = self.budget.group_by(PLACE).agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        if self.span == STEP:
            times = self._times.select("rank", "step", "start_ns", "end_ns")
            places = places.select(PLACE).join(times, on=["rank", "step"])
        return places.rename({"end_ns": "until_ns"})

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What is to be known of the steps."""
        longest = self.lengths.group_by("step").agg(pl.col("length_ns").max())
        found = warm_up(dict(longest.drop_nulls("step").iter_rows()))
        if found is None:
            return ()
        text = (
            f"step {found.step} takes {units.duration(found.length_ns)}, {found.factor:.2f} times the "
            f"median of the others, {units.duration(found.median_ns)}, as where kernels are loaded and "
            "memory is allocated first; it makes means over steps longer: leave it out with --steps"
        )
        return (Notice("warm-up", text),)

    def _off(self) -> float:
        known = self._times.filter(pl.col("step").is_in(self.lengths["step"].implode()))
        if self.span == CAPTURE or not known.height:
            return 0.0
        known = recorded(known, self.budget, "rank", "step")
        length = pl.col("recorded_ns").max().alias("of")
        measured = float(known.group_by("step").agg(length)["of"].mean())  # type: ignore[arg-type]
        return abs(self.step_ns / measured - 1) if measured else 0.0
