"""Inputs: a seed and the numbers of the mutations that were made to it, which say all of it."""

from __future__ import annotations

import shutil
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from fuzz.mutations import Damage, mutate
from fuzz.seeds import TARGETS

if TYPE_CHECKING:
    from pathlib import Path

TRACE: Final = "trace"
"""The folder of the traces, where something besides them is damaged."""
_RECORDED: Final = "native"
"""The target that `watch` reads."""
_EXPORTS: Final = ("chrome", "perfetto", "csv", "json", "parquet", "svg", "html")
_COMMANDS: Final = {
    ("info", "--json"): 55,
    ("report", "--json"): 24,
    ("report", "--all"): 2,
    ("why", "--json"): 6,
    ("why", "--json", "--all"): 2,
    ("why", "--all", "--lang", "zh"): 1,
    ("info",): 1,
    ("names",): 1,
    ("watch", "--once"): 5,
    ("kernels", "--json"): 2,
    ("stragglers", "--json"): 1,
    ("whatif", "--json"): 1,
    ("compare", "--json"): 1,
    ("view",): 1,
    ("export",): 2,
}
"""What is asked of an input, and how often: most often what reads all of it and does little more."""


class Input(NamedTuple):
    """An input.

    Attributes:
        target: Name in `TARGETS`.
        seed: Name of one of its seeds.
        chain: The numbers of the mutations, in their order.
    """

    target: str
    seed: str
    chain: tuple[int, ...]

    def __str__(self) -> str:
        return ":".join((self.target, self.seed, ".".join(map(str, self.chain))))

    @classmethod
    def parse(cls, text: str) -> Input:
        """Read what `str` wrote.

        Raises:
            ValueError: It is no such text.
        """
        target, seed, chain = text.split(":")
        return cls(target, seed, tuple(int(number) for number in chain.split(".") if number))

    def write(self, folder: Path, sound: Path) -> list[Damage]:
        """Make it; return how it was damaged.

        Args:
            folder: Where to, which is not there yet.
            sound: The seed.
        """
        shutil.copytree(sound, folder)
        kept = (TRACE,) if TARGETS[self.target].option else ()
        return [mutate(folder, number, kept=kept) for number in self.chain]

    def _is_for(self, name: str) -> bool:
        """Say whether a command takes inputs of the target."""
        option = TARGETS[self.target].option
        if name == "watch":
            return self.target == _RECORDED
        return not option or name == "report" or (name == "why" and "--model" not in option)

    def command(self, folder: Path, sound: Path, out: Path) -> list[str]:
        """Return what is asked of it: of a seed as it is, a report.

        Args:
            folder: Where it is.
            sound: The seed.
            out: A folder for what commands write.
        """
        random = Random(str(self))
        option = TARGETS[self.target].option
        asked = {words: often for words, often in _COMMANDS.items() if self._is_for(words[0])}
        words: tuple[str, ...] = ("report", "--json")
        if self.chain:
            [words] = random.choices([*asked], [*asked.values()])
        name, *how = words
        command = [name, *how]
        if name in {"report", "why", "kernels", "stragglers"}:
            command.append("--quiet")
        if option:
            beside = sorted(path for path in folder.iterdir() if path.name != TRACE)
            return [*command, *option, str(beside[0] if beside else folder), str(folder / TRACE)]
        if name == "compare":
            command.append(str(sound))
        elif name == "view":
            command += ["--no-open", "--output", str(out / "view.html")]
        elif name == "export":
            kind = random.choice(_EXPORTS)
            command += ["--to", kind, "--output", str(out / f"out.{kind}")]
        return [*command, str(folder)]
