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
_EXPORTS: Final = ("chrome", "perfetto", "csv", "json", "parquet", "svg", "html")


class _Asked(NamedTuple):
    """How something is asked of an input.

    Attributes:
        often: How often, beside the others.
        only: The targets of which alone it can be asked; all traces if empty.
    """

    often: int
    only: tuple[str, ...] = ()


_COMMANDS: Final = {
    ("info", "--json"): _Asked(55),
    ("report", "--json"): _Asked(24),
    ("report", "--all"): _Asked(2),
    ("why", "--json"): _Asked(6),
    ("why", "--json", "--all"): _Asked(2),
    ("why", "--all", "--lang", "zh"): _Asked(1),
    ("info",): _Asked(1),
    ("names",): _Asked(1),
    ("kernels", "--json"): _Asked(2),
    ("kernels", "--json", "--like"): _Asked(1),
    ("stragglers", "--json"): _Asked(1),
    ("whatif", "--json"): _Asked(1),
    ("compare", "--json"): _Asked(1),
    ("view", "--no-open"): _Asked(1),
    ("view", "--no-open", "--against"): _Asked(1),
    ("export",): _Asked(2),
    ("dataset", "--workers", "1"): _Asked(2),
    ("redact",): _Asked(1),
    ("watch", "--once"): _Asked(5, ("native",)),
    ("ascend", "pp-chart"): _Asked(20, ("ascend",)),
    ("ascend", "cluster", "--mode", "pp_chart"): _Asked(5, ("ascend",)),
    ("paddle",): _Asked(20, ("paddle",)),
}
"""What is asked of traces, and how often: most often what reads all of it and does little more."""
_BESIDES: Final = {
    ("report", "--json"): _Asked(40, ("names", "plan", "model")),
    ("report", "--all"): _Asked(5, ("names", "plan", "model")),
    ("why", "--json"): _Asked(10, ("names", "plan")),
    ("whatif", "--json", "--schedule", "own"): _Asked(10, ("plan",)),
    ("simulate", "--json", "--schedule", "own"): _Asked(10, ("plan",)),
    ("names",): _Asked(10, ("names",)),
}
"""What is asked of what commands read besides traces."""
_OTHER_RUN: Final = ("--like", "--against")
"""Options that name another run."""
_QUIET: Final = ("report", "why", "kernels", "stragglers", "paddle", "ascend", "dataset", "redact")
_OUTPUTS: Final = {
    "view": "view.html",
    "dataset": "run",
    "redact": "run.bubbles.parquet",
    "ascend": "chart",
}
"""Where commands are told to write."""
WRITES: Final = {"paddle": ("pipeline_profile.json", "pipeline_profile_perfetto.json")}
"""The files that a command is there to write beside the traces."""


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

    def command(self, folder: Path, sound: Path, out: Path) -> list[str]:
        """Return what is asked of it: of a seed as it is, a report.

        Args:
            folder: Where it is.
            sound: The seed.
            out: A folder for what commands write.
        """
        random = Random(str(self))
        option = TARGETS[self.target].option
        asked = {
            words: how.often
            for words, how in (_BESIDES if option else _COMMANDS).items()
            if not how.only or self.target in how.only
        }
        words: tuple[str, ...] = ("report", "--json")
        if self.chain:
            [words] = random.choices([*asked], [*asked.values()])
        name = words[0]
        command = [*words, *(["--quiet"] if name in _QUIET else [])]
        if option:
            beside = sorted(path for path in folder.iterdir() if path.name != TRACE)
            traces = [] if name == "simulate" else [str(folder / TRACE)]
            return [*command, *option, str(beside[0] if beside else folder), *traces]
        if words[-1] in _OTHER_RUN:
            command.remove(words[-1])
            command = [*command, str(sound), words[-1]]
        elif name == "compare":
            command.append(str(sound))
        elif name == "export":
            kind = random.choice(_EXPORTS)
            command += ["--to", kind, "--output", str(out / f"out.{kind}")]
        elif name == "ascend":
            command.append("--profiling_path")
        elif name == "paddle":
            several = [one for one in folder.glob("machine*") if one.is_dir()]
            command += [*(["--multi_machine"] if several else []), "--log_dir"]
        if name in _OUTPUTS:
            command[-1:-1] = ["--output", str(out / _OUTPUTS[name])]
        return [*command, str(folder)]


def asked() -> set[str]:
    """Return the commands that are asked of inputs, and the options that name one."""
    commands = (*_COMMANDS, *_BESIDES)
    found = {" ".join(words[: 2 if words[0] == "ascend" else 1]) for words in commands}
    found |= {words[-1] for words in commands if words[-1] in _OTHER_RUN}
    return found | {target.option[-1] for target in TARGETS.values() if target.option}
