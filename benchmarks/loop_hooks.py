"""What do the hooks of a hand-written loop cost by themselves, when a pass has emptied the caches?

    python benchmarks/loop_hooks.py [--times 4000] [--beside OTHER/src]

`hooks.py` measures a task of a loop as a difference of two passes, which is known to a few µs only.
Here a real pass runs unrecorded, and then a model and a backward that do nothing are called: recorded
and not, in random order. What is printed is the difference of both, at the 5th and 25th percentile and
the median, in ns. The two versions take turns, a process each.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MICROBATCHES = 64
PERCENTILES = (5, 25, 50)


def nothing(*_: Any, **__: Any) -> None:
    """Be a backward that does nothing."""


def work(times: int) -> None:
    """Measure the version that this process imports."""
    import torch  # noqa: PLC0415  if it is installed
    from torch import nn  # noqa: PLC0415

    from bubblescope.record import hooks, session  # noqa: PLC0415  of the version that is measured
    from bubblescope.record.integrations.torch_loop.loop import Loop  # noqa: PLC0415
    from bubblescope.record.settings import Settings  # noqa: PLC0415

    class Model(nn.Module):
        """Returns its input, but for a first forward in each step, which makes a graph."""

        def __init__(self) -> None:
            super().__init__()
            self.weight, self.idle = nn.Parameter(torch.ones(4)), False

        def forward(self, x: Any) -> Any:
            return x if self.idle else x * self.weight

    torch.set_num_threads(1)
    backward, number = torch.autograd.backward, torch.autograd._get_sequence_nr  # noqa: SLF001
    chance, now = random.Random(1), time.perf_counter_ns
    through = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
    much, batch = torch.ones(8, 64), torch.ones(1, 4)
    took: dict[tuple[str, bool], list[int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        ours = session.begin(Settings(out=folder, timer="cpu"))
        hooks.install("loop")
        loop = ours.shared(Loop)
        model, alone = Model(), Model()
        alone.idle = True
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        recorded = loop.backwards(nothing)
        gc.disable()

        def timed(what: str, calls: dict[bool, Any], given: Any) -> None:
            for hooked in chance.sample((True, False), 2):
                backward(through(much).sum())
                began = now()
                calls[hooked](given)
                took.setdefault((what, hooked), []).append(now() - began)

        for _ in range(times // MICROBATCHES + 1):
            model.idle = False
            torch.autograd.backward(model(batch).sum())
            model.idle = True
            alone._compiled_call_impl = through._compiled_call_impl = None  # noqa: SLF001  not followed
            for _ in range(MICROBATCHES):
                timed("forward", {True: model, False: alone}, batch)
                # What the forward would have made: a node between the numbers before and after it.
                before = number()
                output = batch * model.weight
                loop.origins.bounds[-2:] = [before, number()]
                timed("backward", {True: recorded, False: nothing}, output.sum())
            optimizer.step()
        ours.close()
    for what in ("forward", "backward"):
        edges = [sorted(took[what, hooked][4 * MICROBATCHES :]) for hooked in (True, False)]
        least = [
            (one[len(one) * p // 100], other[len(other) * p // 100])
            for p in PERCENTILES
            for one, other in [edges]
        ]
        print(f"{what:10}" + "".join(f"{one - other:9}" for one, other in least), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=4000)
    parser.add_argument("--beside", metavar="OTHER/src")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.times)
        return
    sources = {"now": str(Path(__file__).parents[1] / "src")}
    if arguments.beside:
        sources["before"] = arguments.beside
    print(f"{'':18}" + "".join(f"{p:8}%" for p in PERCENTILES))
    for _ in range(arguments.rounds):
        for name, source in sources.items():
            command = [sys.executable, __file__, "--worker", "--times", str(arguments.times)]
            environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
            said = subprocess.run(
                command, env=environment, text=True, check=True, stdout=subprocess.PIPE
            ).stdout
            for line in said.splitlines():
                print(f"{name:8}{line}", flush=True)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
