"""The count of all that was ever tried: a table of runs, and the lines of the documentation of it."""

from __future__ import annotations

import csv
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bubblescope.model.version import __version__
from fuzz.inputs import Input
from fuzz.trial import REFUSED, SALVAGED
from places import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fuzz.campaign import Tally

LEDGER: Final = Path(__file__).with_name("ledger.csv")
KEPT: Final = Path(__file__).with_name("kept.txt")
PAGE: Final = ROOT / "docs" / "reliability.md"
_BEGIN, _END = "<!-- fuzz/run --ledger writes this -->", "<!-- to here -->"
COLUMNS: Final = (
    *("day", "version", "seed", "target", "inputs", "refused", "salvaged"),
    *("traceback", "abort", "hang", "costs", "wrong", "seconds", "mib"),
)


def rows(tallies: Mapping[str, Tally], seed: int) -> list[dict[str, object]]:
    """Return a row for each target of a run; `seconds` and `mib` are the most that an input took."""
    day = datetime.now(timezone.utc).date().isoformat()
    return [
        {
            "day": day,
            "version": __version__,
            "seed": seed,
            "target": target,
            "inputs": tally.inputs,
            "refused": tally.verdicts[REFUSED],
            "salvaged": tally.verdicts[SALVAGED],
            **{
                kind: tally.kinds[kind] for kind in ("traceback", "abort", "hang", "costs", "wrong")
            },
            "seconds": f"{tally.seconds:.1f}",
            "mib": f"{tally.mib:.0f}",
        }
        for target, tally in sorted(tallies.items())
    ]


def add(new: Iterable[Mapping[str, object]]) -> None:
    """Add a run to the ledger, and say the sums in the documentation."""
    there = LEDGER.exists()
    with LEDGER.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not there:
            writer.writeheader()
        writer.writerows(new)
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    PAGE.write_text(f"{before}{_BEGIN}\n{table(read())}{_END}{after}", "utf-8")


def read() -> list[dict[str, str]]:
    """Return the rows of the ledger."""
    with LEDGER.open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def table(held: Sequence[Mapping[str, str]]) -> str:
    """Return the sums by target, as Markdown."""
    sums = ("inputs", "refused", "salvaged", "traceback", "abort", "hang", "costs", "wrong")
    most = ("seconds", "mib")
    made = [
        f"| target | {' | '.join((*sums, *most))} |",
        "|---" * (1 + len(sums) + len(most)) + "|",
    ]
    targets = sorted({row["target"] for row in held})
    for name in [*targets, "all"]:
        mine = [row for row in held if name in {row["target"], "all"}]
        counts = [f"{sum(int(row[column]) for row in mine):,}" for column in sums]
        peaks = [f"{max(float(row[column]) for row in mine):,.4g}" for column in most]
        made.append(f"| {' | '.join((name, *counts, *peaks))} |")
    return "\n".join(made) + "\n"


def kept() -> list[Input]:
    """Return the inputs that earlier runs kept."""
    if not KEPT.exists():
        return []
    return [Input.parse(line) for line in KEPT.read_text("utf-8").splitlines() if line]


def keep(inputs: Iterable[Input]) -> None:
    """Keep inputs for later runs."""
    KEPT.write_text("".join(f"{one}\n" for one in sorted({*inputs})), "utf-8")
