"""Runs what the README says with the bubblescope that is installed, as its newest user does.

    python -I tests/helpers/trial.py CHECKOUT

Of the checkout it takes the README and the examples alone, which it copies to a folder of its own. It
needs nothing but the standard library. Tests call it, and so does the release.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import NamedTuple

BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
NOT_HERE = {
    "kernels": "needs a trace of a device",
    "record": "starts the user's own job",
    "watch": "watches the user's own job",
    "serve": "runs until it is interrupted",
    "mcp": "talks to a program",
}
"""Commands that cannot be tried with an example."""
PLACES = {"traces": "traces", "recording": "traces", "before": "traces", "after": "other"}
"""What the README calls traces, and the examples that stand for them."""


class Command(NamedTuple):
    """A command of the README.

    Attributes:
        words: Its arguments, after `bubblescope`.
        skipped: Why it is not run here; "" if it is.
    """

    words: list[str]
    skipped: str


def commands(readme: str) -> list[Command]:
    """Return every command of bubblescope's in the README's blocks."""
    lines = [
        line.partition(" #")[0] for block in BLOCK.findall(readme) for line in block.splitlines()
    ]
    found = []
    for line in lines:
        for part in re.split(r"&&|\|", line):
            words = shlex.split(part)
            if not words or Path(words[0]).name != "bubblescope":
                continue
            words = [PLACES.get(word, word) for word in words[1:]]
            unknown = [
                word
                for word in words
                if re.search(r"[*?]|\.(sqlite|json|gz|nsys-rep|parquet)$", word)
            ]
            reasons = (
                (words[0] in NOT_HERE, NOT_HERE.get(words[0], "")),
                (unknown, "reads a file of the user's own"),
                ({"pdf", "png"} & {*words}, "needs an extra"),
            )
            found.append(Command(words, next((why for holds, why in reasons if holds), "")))
    return found


def furnished(folder: Path, checkout: Path) -> None:
    """Put the examples in a folder, under their own names and those that the README has for traces."""
    shutil.copytree(checkout / "examples", folder / "examples")
    for name, example in (("traces", "1f1b"), ("other", "zb-h1")):
        shutil.copytree(checkout / "examples" / "demo" / example, folder / name)


def main() -> None:
    """Run them; leave with an error at the first that fails."""
    checkout = Path(sys.argv[1]).resolve()
    program = Path(sysconfig.get_path("scripts")) / "bubblescope"
    wanted = commands((checkout / "README.md").read_text("utf-8"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        furnished(folder, checkout)
        for command in wanted:
            if not command.skipped:
                subprocess.run([program, *command.words], cwd=folder, check=True, stdout=sys.stderr)
            print(*command.words, f"({command.skipped})" if command.skipped else "", flush=True)


if __name__ == "__main__":
    main()
