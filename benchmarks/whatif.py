"""What was predicted beside what then happened: the demo with one stage's work changed."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from bubblescope import demo, sources
from bubblescope.analysis.idle.ledger import ledger
from bubblescope.analysis.schedule.recognise import recognise
from bubblescope.analysis.whatif import WhatIf
from bubblescope.demo.options import Options


def trained(schedule: str, sleep_ms: float, steps: int, work: tuple[float, ...]) -> WhatIf:
    """Run the demo, and return what it can be asked; the first step is a warm-up."""
    options = Options(schedule=schedule, sleep_compute_ms=sleep_ms, steps=steps, stage_work=work)
    with tempfile.TemporaryDirectory() as folder:
        demo.run(options, Path(folder))
        timeline = sources.load(folder).slice(steps=range(1, steps))
    found = recognise(timeline)
    explained = ledger(timeline, found)
    if explained is None:
        raise SystemExit("the demo's ranks share a clock")
    return WhatIf(found, explained)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sleep-compute", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print("| schedule | change | now | predicted | measured | off |")
    print("|---|---|---|---|---|---|")
    for schedule in ("1f1b", "zb-h1"):
        for factor in (0.5, 1.5):
            off = []
            for _ in range(options.repeats):
                before = trained(schedule, options.sleep_compute, options.steps, (1, 1, 1, 1))
                said = before.scaled("stage", 2, factor)
                work = (1, 1, factor, 1)
                after = trained(schedule, options.sleep_compute, options.steps, work)
                off.append(said.predicted_ns / after.step_ns - 1)
                times = (before.step_ns, said.predicted_ns, after.step_ns)
                cells = " | ".join(f"{time / 1e6:.1f} ms" for time in times)
                print(f"| {schedule} | stage 2 x {factor} | {cells} | {off[-1]:+.2%} |")
            print(f"| {schedule} | median | | | | {np.median(np.abs(off)):.2%} |")


if __name__ == "__main__":
    main()
