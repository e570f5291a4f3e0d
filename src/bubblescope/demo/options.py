"""What the demo trains, and how."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from bubblescope.model.errors import BubblescopeError
from bubblescope.schedules import LINEAR
from bubblescope.schedules.naming import meant

_MOST_STAGES: Final = 64
_SAMPLES: Final = 384


class Options(msgspec.Struct, frozen=True):
    """What to train, and how.

    Attributes:
        schedule: One of `bubblescope.schedules.LINEAR`, or what others call it.
        stages: Number of pipeline stages, each a process.
        microbatches: Micro-batches per step.
        steps: Training steps.
        sleep_compute_ms: Stretch every forward, input gradient and weight gradient to this many
            milliseconds by sleeping, so that stages do not contend for the machine's cores.
        stage_work: By how much more than that each stage stretches its tasks; even if None.
        width: Features of every layer.
        layers: Layers per stage.
        samples: Samples per micro-batch. By default so many that a forward takes about 2 ms of one
            core, or a quarter of that with `sleep_compute_ms`: the arithmetic of all stages must
            fit in the sleep, however few the cores.
        rate: Learning rate.
        seed: Seed of weights and data.

    Raises:
        BubblescopeError: An option is out of range.
    """

    schedule: str = "1f1b"
    stages: int = 4
    microbatches: int = 8
    steps: int = 6
    sleep_compute_ms: float | None = None
    stage_work: tuple[float, ...] | None = None
    width: int = 384
    layers: int = 2
    samples: int | None = None
    rate: float = 4.0
    seed: int = 0

    def __post_init__(self) -> None:
        known = meant(self.schedule, LINEAR)
        if known is None:
            raise BubblescopeError(
                f"{self.schedule!r} is not a schedule of the demo; use one of {', '.join(LINEAR)}",
            )
        msgspec.structs.force_setattr(self, "schedule", known)
        for name in ("stages", "microbatches", "steps", "width", "layers", "samples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BubblescopeError(f"the demo needs at least 1 for {name}, not {value}")
        if self.stages > _MOST_STAGES:
            raise BubblescopeError(
                f"the demo runs at most {_MOST_STAGES} stages, not {self.stages}"
            )
        if self.seed < 0:
            raise BubblescopeError(f"the demo needs at least 0 for the seed, not {self.seed}")
        sleep = self.sleep_compute_ms
        if sleep is not None and not 0 < sleep < math.inf:  # nan is neither
            raise BubblescopeError(f"sleep-compute must be more than 0 ms, not {sleep:g}")
        self._check_work()

    def _check_work(self) -> None:
        work = self.stage_work
        if work is None:
            return
        if self.sleep_compute_ms is None:
            raise BubblescopeError("stage-work stretches what sleep-compute sleeps; give both")
        if len(work) != self.stages:
            raise BubblescopeError(
                f"stage-work needs a number for each of the {self.stages} stages, not {len(work)}"
            )
        if not all(0 < factor < math.inf for factor in work):
            raise BubblescopeError("stage-work must be more than 0 for every stage")

    @property
    def batch(self) -> int:
        """Samples per micro-batch, as given or by default."""
        if self.samples is not None:
            return self.samples
        return _SAMPLES if self.sleep_compute_ms is None else _SAMPLES // 4
