"""Pipeline schedules: who runs what, in which order.

`SCHEDULES` lists them with what their papers say; `generate` makes the plan of one for so many
devices and micro-batches. What a plan's operations wait for follows from what they are
(`bubblescope.schedules.replay`), and how long that takes is a matter of simulation
(`bubblescope.schedules.simulate`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from bubblescope.model.errors import ScheduleError
from bubblescope.model.registry import resolve
from bubblescope.schedules.naming import meant, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bubblescope.schedules.plan import Plan
    from bubblescope.schedules.zb_auto import Times

_SEARCHED: Final = "bubblescope.schedules.zb_auto:zb_auto"


class Schedule(msgspec.Struct, frozen=True):
    """A schedule that has a name.

    Formulas are Python expressions in p (devices), m (micro-batches), v (chunks), f, b, w (times of
    a micro-batch's forward, input gradient and weight gradient on one device), fb (of an overlapped
    forward and whole backward), i (device, from 0) and `Mw` (memory that the weight gradient still
    needs, as a share of the forward's).

    Attributes:
        name: Its name here.
        title: Its name in print.
        maker: Where the function is that makes the plan; loaded only when it is asked for one.
        chunks: Model chunks on each device: "1", "2", "v", or "2w" for an even number.
        bubble: Idle time of a device in a step, without transfers; empty where only a simulation
            tells.
        over: Over what it idles for so long: the step's "makespan", every device, or the longest
            "span" of a device from its own first start to its last end.
        exact: When the formula is exact, an expression too; empty if it is approximate.
        memory: Most activations on device i, in micro-batches of a p-th of the model; empty where
            only counting tells.
        source: Where it was published.
    """

    name: str
    title: str
    maker: str
    source: str
    chunks: str = "1"
    bubble: str = ""
    over: str = "makespan"
    exact: str = ""
    memory: str = ""

    @property
    def any_chunks(self) -> bool:
        """Whether the number of chunks is open."""
        return self.chunks in ("v", "2w")

    @property
    def searched(self) -> bool:
        """Whether the plan depends on how long things take."""
        return self.maker == _SEARCHED

    @property
    def make(self) -> Callable[..., Plan]:
        """What makes the plan from p and m, and from v where `chunks` is open."""
        found: Callable[..., Plan] = resolve(self.maker)
        return found


_ZB: Final = 'Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241'
_VPP: Final = 'Narayanan et al., "Efficient Large-Scale ...", arXiv 2104.04473'
_MEMORY: Final = 'Qi et al., "... with Controllable Memory", arXiv 2405.15362'
_DUALPIPE: Final = 'DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437'

SCHEDULES: Final[Mapping[str, Schedule]] = {
    schedule.name: schedule
    for schedule in (
        Schedule(
            "gpipe",
            "GPipe",
            "bubblescope.schedules.classic:gpipe",
            'Huang et al., "GPipe", arXiv 1811.06965',
            bubble="(p - 1) * (f + b + w)",
            exact="True",
            memory="m",
        ),
        Schedule(
            "1f1b",
            "1F1B",
            "bubblescope.schedules.classic:one_f_one_b",
            'Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", arXiv 2006.09503',
            bubble="(p - 1) * (f + b + w)",
            exact="True",
            memory="min(p - i, m)",
        ),
        Schedule(
            "eager-1f1b",
            "Eager 1F1B",
            "bubblescope.schedules.classic:eager_1f1b",
            'Zhuang et al., "On Optimizing the Communication ...", arXiv 2211.05322',
            bubble="(p - 1) * (f + b + w)",
            exact="True",
            memory="min(2 * (p - 1 - i) + 1, m)",
        ),
        Schedule(
            "interleaved-1f1b",
            "Interleaved 1F1B (VPP)",
            "bubblescope.schedules.classic:interleaved_1f1b",
            _VPP,
            chunks="v",
            bubble="(p - 1) * (f + b + w) / v",
            exact="m % p == 0",
            memory="min(2 * (p - 1 - i) + (v - 1) * p + 1, m * v) / v",
        ),
        Schedule(
            "looped-bfs",
            "Looped BFS",
            "bubblescope.schedules.classic:looped_bfs",
            'Lamy-Poirier, "Breadth-First Pipeline Parallelism", arXiv 2211.05953',
            chunks="v",
            bubble="(p - 1) * (f + b + w) / v",
            exact="m >= p",
            memory="m",
        ),
        Schedule(
            "interleaved-zb",
            "Interleaved 1F1B, split backward",
            "bubblescope.schedules.classic:interleaved_zb",
            "PyTorch, torch.distributed.pipelining, ScheduleInterleavedZeroBubble; after " + _ZB,
            chunks="v",
        ),
        Schedule(
            "zb-h1",
            "ZB-H1",
            "bubblescope.schedules.classic:zb_h1",
            _ZB,
            bubble="(p - 1) * (f + b - w)",
            exact="m >= p and w <= min(f, b)",
            memory="(p - i) + i * Mw",
        ),
        Schedule(
            "zb-h2",
            "ZB-H2",
            "bubblescope.schedules.classic:zb_h2",
            _ZB,
            bubble="max(0, (p - 1) * (f + b - 2 * w))",
            over="span",
            exact="m >= 2 * p - 1 and w <= f",
            memory="(2 * p - 2 * i - 1) + 2 * i * Mw",
        ),
        Schedule("zb-1p", "ZB-1p (searched, memory of 1F1B)", _SEARCHED, _ZB),
        Schedule("zb-2p", "ZB-2p (searched, twice the memory)", _SEARCHED, _ZB),
        Schedule("zb-auto", "ZB (searched, any memory limit)", _SEARCHED, _ZB),
        Schedule(
            "zb-v",
            "ZB-V",
            "bubblescope.schedules.v_shaped:zb_v",
            _ZB,
            chunks="2",
            bubble="0",
            over="span",
            exact="m >= 2 * p - 1 and f == b == w",
            memory="p",
        ),
        Schedule(
            "v-half",
            "V-Half",
            "bubblescope.schedules.v_shaped:v_half",
            _MEMORY,
            chunks="2",
            bubble="(p - 1) * (f + b + w) / 2",
            over="span",
            memory="(p + 2) // 2",
        ),
        Schedule(
            "v-min",
            "V-Min",
            "bubblescope.schedules.v_shaped:v_min",
            _MEMORY,
            chunks="2",
            bubble="(p - 1) * (f + b + w) * 2 / 3",
            over="span",
            memory="(p + 4) // 3",
        ),
        Schedule(
            "hanayo",
            "Hanayo",
            "bubblescope.schedules.chimera:hanayo",
            'Liu et al., "Hanayo", arXiv 2308.15762',
            chunks="2w",
            bubble="2 * (p - 1) * f / v",
            exact="f == b + w and m % p == 0",
        ),
        Schedule(
            "chimera",
            "Chimera",
            "bubblescope.schedules.chimera:chimera",
            'Li and Hoefler, "Chimera", arXiv 2107.06925',
            chunks="2",
            bubble="(p - 2) * f",
            exact="f == b + w and m % p == 0",
            memory="p / 2 + 1 + min(i, p - 1 - i)",
        ),
        Schedule(
            "dualpipe",
            "DualPipe",
            "bubblescope.schedules.dualpipe:dualpipe",
            _DUALPIPE,
            chunks="2",
            bubble="(p / 2 - 1) * (fb + b + w - 3 * w)",
            exact="f == b == w and fb == f + b + w",
            memory="p + 1",
        ),
        Schedule(
            "dualpipev",
            "DualPipeV",
            "bubblescope.schedules.dualpipe:dualpipev",
            "Sea AI Lab and DeepSeek-AI, https://github.com/deepseek-ai/DualPipe",
            chunks="2",
            bubble="(p - 1) * (fb + b + w - 3 * w) / 2",
            exact="f == b == w and fb == f + b + w",
            memory="p + 1 / 2",
        ),
    )
}
"""Every schedule by name."""

LINEAR: Final = tuple(
    name for name, schedule in SCHEDULES.items() if schedule.chunks == "1" and not schedule.searched
)
"""Those of one stage on each device that depend on nothing but p and m."""


def named(name: str) -> Schedule:
    """Return the schedule of a name, its own or what others call it.

    >>> named("ScheduleInterleaved1F1B").name, named("ZB-V").name
    ('interleaved-1f1b', 'zb-v')

    Raises:
        ScheduleError: There is none; the message names the nearest and lists those that there are.
    """
    found = meant(name, SCHEDULES)
    if found is None:
        near = nearest(name, SCHEDULES)
        hint = f" (did you mean {near}?)" if near else ""
        raise ScheduleError(
            f"{name!r} is not a schedule{hint}; the schedules are {', '.join(SCHEDULES)}"
        )
    return SCHEDULES[found]


MOST_OPERATIONS: Final = 1 << 25
"""Forwards and backwards of a plan: more would take more memory than most machines have."""


def generate(
    name: str,
    devices: int,
    microbatches: int,
    *,
    chunks: int | None = None,
    times: Times | None = None,
    memory: float | None = None,
    weight_share: float = 0.5,
) -> Plan:
    """Return the plan of a schedule.

    Args:
        name: One of `SCHEDULES`, or what others call it.
        devices: Pipeline devices p.
        microbatches: Micro-batches of a step m.
        chunks: Model chunks on each device v, for schedules that leave it open; 2 if left out.
        times: How long things take, for schedules that are searched; all alike if left out.
        memory: Activations that a device may hold, in micro-batches, for "zb-auto".
        weight_share: Share of a forward's activations that its weight gradient still needs, for
            schedules that are searched.

    Raises:
        ScheduleError: There is no such schedule, or it cannot be made for these numbers.
    """
    schedule = named(name)
    name = schedule.name
    if devices < 1 or microbatches < 1:
        raise ScheduleError(
            f"{name} needs at least one device and one micro-batch, not {devices} and {microbatches}"
        )
    if 2 * devices * microbatches * (chunks or 1) > MOST_OPERATIONS:
        raise ScheduleError(
            f"{name} with so many devices, micro-batches and chunks has over {MOST_OPERATIONS:,} "
            "operations, more than can be planned; ask for fewer"
        )
    if schedule.searched:
        limit = {"zb-1p": float(devices), "zb-2p": 2.0 * devices}.get(name, memory)
        if limit is None:
            raise ScheduleError(f"{name} needs a memory limit, in micro-batches")
        if memory not in (None, limit):
            raise ScheduleError(f"{name} has a memory limit of its own; take zb-auto for another")
        alike = resolve("bubblescope.schedules.zb_auto:Times")(1, 1, 1)
        return schedule.make(devices, microbatches, times or alike, limit, name, weight_share)
    if memory is not None:
        raise ScheduleError(f"{name} takes no memory limit; zb-auto does")
    if not schedule.any_chunks:
        if chunks not in (None, int(schedule.chunks)):
            raise ScheduleError(f"{name} has {schedule.chunks} chunks on a device, not {chunks}")
        return schedule.make(devices, microbatches)
    if chunks is not None and chunks < 2:
        raise ScheduleError(f"{name} needs two or more chunks on each device, not {chunks}")
    return schedule.make(devices, microbatches, chunks or 2)
