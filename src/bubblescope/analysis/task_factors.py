"""How many times as long tasks would take on other devices, or with other layers at their stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bubblescope.analysis.slow_devices import depth_of, even
from bubblescope.model.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.analysis.idle.counterfactuals import Counterfactuals
    from bubblescope.analysis.slow_devices import Reading, SlowDevices


class TaskFactors:
    """How many times as long the tasks of a run would take.

    Args:
        counterfactuals: The run.
        devices: Which of its devices are slow.
        stages: How many it has at least.
    """

    def __init__(self, counterfactuals: Counterfactuals, devices: SlowDevices, stages: int) -> None:
        self._counterfactuals = counterfactuals
        self._devices = devices
        self._stages = int(counterfactuals.run.stage.max()) + 1
        self._deepest = max(self._stages, stages)

    def readings(self, layers: Sequence[int] = ()) -> list[Reading]:
        """Return the ways to read the run, with these layers of its stages or the same of all."""
        return self._devices.readings(depth_of(layers) if layers else even(self._deepest))

    def healthy(self, rank: int, reading: Reading) -> np.ndarray:
        """Return how many times as long tasks take when a rank is healthy; n long."""
        run, length = self._counterfactuals.run, self._counterfactuals.lengths
        own = run.rank == rank
        slow = next((one for one in self._counterfactuals.slow_ranks if one.rank == rank), None)
        if slow is not None and slow.odd and slow.waited_for:
            raise ScheduleError(
                f"other ranks wait for rank {rank} inside of their passes, so what these would take if "
                "it were healthy is not known"
            )
        if not self._devices.told(rank):
            beyond = np.where(own & (run.stage >= 0), reading.slow[run.stage], 1)
            factor = self._devices.factor[run.rank, run.step]
            return np.minimum(1 / (beyond * np.where(own, factor, 1)), 1)
        times = np.divide(
            length.stage_ns,
            length.rank_ns,
            out=np.ones(len(run)),
            where=own & (length.rank_ns > 0),
        )
        return np.minimum(times, 1)

    def resized(self, others: Sequence[int], layers: Sequence[int], reading: Reading) -> np.ndarray:
        """Return how many times as long tasks take with other layers at their stages; n long."""
        run, cost = self._counterfactuals.run, self._devices.cost_ns
        times = np.ones(len(run))
        if not others:
            return times
        part = reading.moved(depth_of(layers), depth_of(others))
        for kind in np.unique(run.kind):
            old = np.array([cost.get((kind, stage), 0.0) for stage in range(len(layers))])
            old = old / reading.slow
            share = np.divide(part @ old, old, out=np.ones(len(old)), where=old > 0)
            own = (run.kind == kind) & (run.stage >= 0)
            times[own] = share[run.stage[own]]
        return times

    def check(self, layers: Sequence[int]) -> None:
        """Refuse layers of other stages than the run's."""
        if len(layers) != self._stages:
            raise ScheduleError(
                f"the run has {self._stages} stages, but layers are given for {len(layers)}"
            )
        if not sum(layers):
            raise ScheduleError("a model without layers cannot be cut into stages")
