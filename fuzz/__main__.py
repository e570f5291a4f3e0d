"""Tries mutated inputs on everything that bubblescope reads, and says what came of it.

Exits with 1 if anything was found that must not be: a traceback, an abort, a hang, high costs, a wrong
number or sentence. An input is known by its seed and numbers: `--input` tries one again.
"""

from __future__ import annotations

import argparse
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fuzz import ledger
from fuzz.campaign import Campaign
from fuzz.inputs import Input
from fuzz.seeds import TARGETS, all_targets
from fuzz.trial import REFUSED, SALVAGED
from fuzz.worker import Worker
from places import SHARED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fuzz.campaign import Tally

_KINDS: Final = ("traceback", "abort", "hang", "costs", "wrong")


def main() -> int:
    """Run a campaign, or one input."""
    parser = argparse.ArgumentParser(prog="fuzz/run", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, metavar="N", help="how long")
    parser.add_argument("--inputs", type=int, metavar="N", help="at most so many")
    parser.add_argument("--target", action="append", choices=[*TARGETS], help="only these")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="which inputs")
    parser.add_argument("--input", metavar="ID", help="try one again and say all that is known")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write what was found there")
    parser.add_argument(
        "--ledger", action="store_true", help="add to the count in the documentation"
    )
    parser.add_argument("--data", type=Path, default=SHARED, metavar="FOLDER", help="real traces")
    options = parser.parse_args()
    data = options.data if options.data.is_dir() else None
    worker = Worker(data)
    try:
        return _one(worker, options) if options.input else _campaign(worker, data, options)
    finally:
        worker.close()


def _one(worker: Worker, options: argparse.Namespace) -> int:
    """Try an input again."""
    one = Input.parse(options.input)
    if options.keep:
        worker.write(one, options.keep)
    outcome = worker(one)
    print(f"{outcome.verdict}, {outcome.seconds:.2f} s, {outcome.mib:.0f} MiB")
    for finding in outcome.findings:
        print(f"\n{finding.kind}: {finding.where}\n{finding.detail}")
    return bool(outcome.findings)


def _campaign(worker: Worker, data: Path | None, options: argparse.Namespace) -> int:
    """Try inputs for as long as was asked."""
    every = all_targets(data)
    targets = {name: every[name] for name in options.target or every}
    campaign = Campaign(targets, worker, options.seed)
    stopped: list[bool] = []
    for ended in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ended, lambda *_: stopped.append(True))
    began = time.monotonic()
    try:
        _go_on(campaign, worker, options, stopped)
    finally:
        seconds = time.monotonic() - began
        print(_summary(campaign.tallies, seconds), flush=True)
        if options.ledger:
            ledger.add(ledger.rows(campaign.tallies, options.seed))
            led_on = (one for kept in campaign.kept.values() for one in kept)
            ledger.keep([*ledger.kept(), *led_on])
    return bool(campaign.findings)


def _go_on(
    campaign: Campaign, worker: Worker, options: argparse.Namespace, stopped: list[bool]
) -> None:
    """Try inputs until it is time to stop, and say what is found."""
    began = time.monotonic()
    campaign.start(ledger.kept())
    for count, one in enumerate(campaign.inputs()):
        late = time.monotonic() - began > options.seconds
        if late or stopped or (options.inputs is not None and count >= options.inputs):
            break
        before = len(campaign.findings)
        campaign.step(one)
        for number, (shown, finding) in [*enumerate(campaign.findings.values())][before:]:
            print(f"{finding.kind}: {finding.where}\n    {shown}", flush=True)
            if options.keep:
                name = f"{finding.kind}-{shown.target}-{number}"
                worker.write(shown, options.keep / name / "input")
                text = f"{shown}\n{finding.kind}: {finding.where}\n\n{finding.detail}\n"
                (options.keep / name / "note.txt").write_text(text, "utf-8", "replace")


def _summary(tallies: Mapping[str, Tally], seconds: float) -> str:
    """Return the table of a run."""
    lines = [
        _line("target", "inputs", "refused", "salvaged", *_KINDS, "s at worst", "MiB at worst")
    ]
    for name, tally in sorted(tallies.items()):
        kinds = (tally.kinds[kind] for kind in _KINDS)
        counts = (tally.inputs, tally.verdicts[REFUSED], tally.verdicts[SALVAGED], *kinds)
        lines.append(_line(name, *counts, f"{tally.seconds:.1f}", f"{tally.mib:.0f}"))
    inputs = sum(tally.inputs for tally in tallies.values())
    return "\n".join(
        [*lines, f"{inputs} inputs in {seconds:.0f} s, {inputs / seconds:.1f} a second"]
    )


def _line(*cells: Any) -> str:
    first, *rest = (str(cell) for cell in cells)
    return f"{first:<10}" + "".join(f"{cell:>{max(10, len(cell) + 2)}}" for cell in rest)


if __name__ == "__main__":
    raise SystemExit(main())
