"""How often `bubblescope why` names a fault first, on the right rank, with its size.

    python benchmarks/faults.py --runs 20

Each run is a training job of torch.distributed.pipelining whose layers sleep, with 5 % jitter. A fault
is put into it as the job's own code (`tests/helpers/faults.py`); its size is noted by the job itself.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))

import faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20, help="of each fault")
    parser.add_argument("--first", type=int, default=0, help="the first run's number, its seed")
    parser.add_argument("--only", nargs="+", choices=faults.FAULTS, default=faults.FAULTS)
    asked = parser.parse_args()
    print("| fault | named first, on its rank, within 10 % | size off, median | most | load |")
    print("|---|---|---|---|---|")
    for kind in asked.only:
        found, load = [], []
        for seed in range(asked.first, asked.first + asked.runs):
            fault = faults.Fault.drawn(kind, seed)
            with tempfile.TemporaryDirectory() as folder:
                faults.run(fault, Path(folder, "job"))
                found.append(faults.judged(fault, Path(folder, "job")))
            load.append(os.getloadavg()[0])
            if not found[-1].right:
                print(f"{kind} {seed}: {fault} {found[-1]}", file=sys.stderr, flush=True)
        off = [abs(one.said / one.was - 1) for one in found if one.was]
        right = sum(one.right for one in found)
        print(
            f"| {kind} | {right} of {len(found)} | {statistics.median(off):.1%} | {max(off):.1%} | "
            f"{statistics.mean(load):.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
