"""How what devices did changed from one run to another, as far as the traces of both tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from bubblescope.analysis.changes import OVERALL, changes, keys_of, largest
from bubblescope.analysis.device_measures import (
    BY_ROLE,
    NAMES,
    STEP,
    as_one_step,
    device_measures,
    has_steps,
)
from bubblescope.model import units
from bubblescope.model.provenance import Notice

if TYPE_CHECKING:
    from bubblescope.analysis.changes import Change
    from bubblescope.analysis.device_measures import DeviceMeasures
    from bubblescope.model.timeline import Timeline

GROUPS: Final = ("device", "detail")
"""What is measured of devices: uses of time, and what these consist of."""

_DETAILS: Final = 32
"""Operators, calls, operations and kinds of copy at most: those that changed most."""


class DevicePair(NamedTuple):
    """What is known of the devices of two runs.

    Attributes:
        before, after: Their measures.
        captures: Whether each capture is one step, since one run or both have none.
        runs: The runs as they were measured: without steps if `captures`.
    """

    before: DeviceMeasures
    after: DeviceMeasures
    captures: bool
    runs: tuple[Timeline, Timeline]

    @property
    def devices(self) -> tuple[DeviceMeasures, DeviceMeasures]:
        """Both measures, as they were given."""
        return self.before, self.after

    @property
    def spent(self) -> bool:
        """Whether it is known of both what time was spent on."""
        return self.before.spent and self.after.spent

    def changes(self, *, pipelined: bool) -> list[Change]:
        """Return what changed, in the order in which it is shown.

        Args:
            pipelined: Only of the groups "device" and "detail": the others are about a pipeline.
        """
        one, other = self.before.measured, self.after.measured
        keys = keys_of(one, other)
        if pipelined:
            keys = keys.filter(group="device")
        if not self.spent:
            keys = keys.filter(name=STEP)
        if False in (self.before.roles, self.after.roles):
            keys = keys.filter(~pl.col("name").str.starts_with(BY_ROLE))
        ranks = [set(run.rows.filter(group="rank")["name"]) for run in (one, other)]
        if ranks[0] != ranks[1] or len(ranks[0]) == 1:
            keys = keys.filter(pl.col("group") != "rank")
        found = changes(keys, one, other, _place)
        if self.spent:
            pair = self.before.details, self.after.details
            most = largest(keys_of(*pair), *pair, _DETAILS)
            found += changes(most, *pair, _place)
        return found

    def notes(self, *, pipelined: bool) -> list[Notice]:
        """Return what to know before believing them."""
        if self.captures:
            return [Notice("no-steps", _CAPTURES)]
        found = self._open(" of what is said of devices" if pipelined else "")
        if still := [
            label for label, run in zip("AB", self.devices, strict=True) if run.still_open
        ]:
            text = (
                f"no step of {' or '.join(still)} has an end in the trace: time is counted up to the "
                "last operation"
            )
            found.append(Notice("open-steps", text))
        for label, run in zip("AB", self.devices, strict=True):
            if pipelined and len(run.steps) == 1:
                text = f"of {label}'s devices one step is known: no difference of theirs is certain"
                found.append(Notice("one-device-step", text))
        if {self.before.roles, self.after.roles} == {True, False}:
            label = "A" if self.before.roles else "B"
            text = f"which groups communicate is known of {label} only, so roles are not compared"
            found.append(Notice("one-knows-roles", text))
        return found

    def _open(self, about: str) -> list[Notice]:
        """Note the steps that were left out since the traces end before they do."""
        out = [
            f"{units.listed('step', run.left_out)} of {label}"
            for label, run in zip("AB", self.devices, strict=True)
            if run.left_out
        ]
        count = sum(len(run.left_out) for run in self.devices)
        if not out:
            return []
        ends = (
            "has no end in the trace and is" if count == 1 else "have no end in the traces and are"
        )
        text = f"{' and '.join(out)} {ends} left out{about}"
        return [Notice("open-steps", text, count)]


_CAPTURES: Final = (
    "not both runs have steps, so their captures are compared, each as one step: that shows no noise, "
    "so no difference is certain"
)


def device_pair(before: Timeline, after: Timeline) -> tuple[DevicePair | None, list[Notice]]:
    """Measure the devices of two runs alike, and say where only one run tells.

    Returns:
        None if there is nothing to compare.
    """
    notes = []
    known = [run.budget.height > 0 for run in (before, after)]
    if sum(known) == 1:
        label = "A" if known[0] else "B"
        text = f"only {label}'s traces hold device work, so what devices did is not compared"
        notes.append(Notice("one-budget", text))
    stepped = [has_steps(run) for run in (before, after)]
    captures = not all(stepped)
    if captures and not all(known):
        return None, notes
    runs = (as_one_step(before), as_one_step(after)) if captures else (before, after)
    one, other = (device_measures(run) for run in runs)
    if one is None or other is None:
        return None, notes
    return DevicePair(one, other, captures, runs), notes


def _place(change: Change) -> tuple[Any, ...]:
    """Return where a measure stands: classes of time in their order, else the largest change first."""
    size = -abs(change.difference or 0)
    if change.group == "overall":
        return (0, OVERALL.index(change.name))
    if change.group != "device":
        return (1 if change.group == "rank" else 3, size, len(change.name), change.name)
    role = change.name.startswith(BY_ROLE)
    name = BY_ROLE.removesuffix(": ") if role else change.name
    return (2, NAMES.index(name), role, change.name)
