"""Whether recordings of 57 training jobs say what the jobs say of themselves.

    python benchmarks/recorded_jobs.py

Each job takes stamps of its own passes, evaluations, checkpoints and optimizer's steps, by the data
that it computes on, and runs with and without recording (`tests/helpers/recorded_jobs.py`). It needs
PyTorch; all jobs need `pip install 'bubblescope[full]' lightning transformers accelerate triton
torchtitan==0.2.2`, of which 0.3 needs a later PyTorch than 2.13. Jobs of what is not installed are said
to be so.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))

from recorded_jobs import JOBS, run

PACKAGES = (
    "torch",
    "megatron-core",
    "deepspeed",
    "lightning",
    "transformers",
    "accelerate",
    "torchtitan",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], help="jobs whose names have one of these")
    parser.add_argument("--depth", type=int, default=4, help="times as many layers as in the tests")
    parser.add_argument(
        "--edges",
        action="store_true",
        help="say by how much passes begin and end after their stamps",
    )
    asked = parser.parse_args()
    os.environ["DEPTH"] = str(asked.depth)
    print(", ".join(f"{one} {_version(one)}" for one in PACKAGES), end="\n\n")
    print("| job | tasks equal | results | bubble rate | from stamps | exit code | load |")
    print("|---|---|---|---|---|---|---|")
    right = count = 0
    for job in JOBS:
        if asked.only and not any(one in job.name for one in asked.only):
            continue
        if job.missing:
            print(f"| {job.name} | {' and '.join(job.missing)} not installed | | | | | |")
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = run(job, Path(folder, "job"))
        count, right = count + 1, right + found.right(job)
        results = "equal to the bit" if found.same_results else "DIFFER"
        code = f"{found.code}" if found.code == found.code_alone else "DIFFERS"
        rates = ["–" if one is None else f"{one:.2%}" for one in (found.rate, found.stamped_rate)]
        if found.called_rate is not None:
            rates[1] += f" ({found.called_rate:.2%} around the framework's functions)"
        print(
            f"| {job.name} | {found.equal} of {found.tasks} | {results} | {rates[0]} | {rates[1]} | "
            f"{code} | {os.getloadavg()[0]:.1f} |",
            flush=True,
        )
        if asked.edges and found.edges:
            for edge, each in zip(("begin", "end"), zip(*found.edges, strict=True), strict=True):
                least, most = min(each) / 1e3, max(each) / 1e3
                print(
                    f"  {edge}: {least:.0f} / {median(each) / 1e3:.0f} / {most:.0f} µs", flush=True
                )
        if not found.right(job):
            lines = "\n  ".join(found.differing)
            print(f"{job.name}:\n  {lines}\n{found.said}", file=sys.stderr, flush=True)
    print(f"\n{right} of {count} are right in everything.")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    main()
