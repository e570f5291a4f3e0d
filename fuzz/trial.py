"""Trying an input: a command is run in this process, as `main` runs it, and its answer is checked."""

from __future__ import annotations

import json
import re
import shutil
import time
import traceback
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from commands import called
from fuzz import oracle
from fuzz.inputs import WRITES, Input
from fuzz.mutations import Damage, neutralise
from fuzz.seeds import TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from subprocess import CompletedProcess

    from fuzz.lines_run import Line, LinesRun
    from fuzz.seeds import Target

GIVEN: Final = "given"
"""The folder, in that of a trial, of the input."""
READ, SALVAGED, REFUSED, FAILED = "read", "salvaged", "refused", "failed"
_AGAIN: Final = 0.15
"""Share of the reports that are asked for again of a run that is nearly the same."""
_SLOW_S: Final = 10.0
_LARGE_MIB: Final = 700
"""Seconds of processor and MiB that an input of some kilobytes must not take."""
_VARYING: Final = re.compile(r"0x[0-9a-f]+|'[^']*'|\"[^\"]*\"|/\S+|-?\d[\d.e+]*")


class Finding(NamedTuple):
    """Something that must not be.

    Attributes:
        kind: "traceback", "abort", "hang", "costs" or "wrong".
        where: What it is about, the same for inputs that show the same fault.
        detail: All that is known.
    """

    kind: str
    where: str
    detail: str


class Outcome(NamedTuple):
    """What came of an input.

    Attributes:
        verdict: One of READ, SALVAGED, REFUSED and FAILED.
        findings: What must not be.
        signs: What tells its way through the program from that of others.
        lines: Lines that ran for the first time.
        seconds: Of processor, for the commands.
        mib: At the highest.
    """

    verdict: str
    findings: tuple[Finding, ...]
    signs: frozenset[str]
    lines: frozenset[Line]
    seconds: float
    mib: float


class Trial:
    """Tries inputs, one after the other.

    Args:
        targets: What is fuzzed.
        place: An empty folder to work in.
        printed: A file that stands in place of the process's own outputs: what ends up there was
            printed past Python.
        lines: What notes the lines that run.
        ask: What runs a command in this process.
    """

    def __init__(
        self,
        targets: Mapping[str, Target],
        place: Path,
        printed: Path,
        lines: LinesRun,
        ask: Callable[..., CompletedProcess[str]] = called,
    ) -> None:
        self._targets = targets
        self._place = place
        self._printed = printed
        self._ask = ask
        self._lines = lines
        self._sound: dict[tuple[str, str], tuple[Path, Any]] = {}

    def __call__(self, one: Input) -> Outcome:
        """Try an input."""
        sound, report = self._sound_one(one)
        folder, out = self._place / GIVEN, self._place / "out"
        for path in (folder, out):
            shutil.rmtree(path, ignore_errors=True)
        out.mkdir()
        damage = one.write(folder, sound)
        command = one.command(folder, sound, out)
        self._lines.new()
        findings: list[Finding] = []
        done, seconds, mib = self._measured(one.target, command, folder, findings)
        if done is None:
            return Outcome(FAILED, tuple(findings), frozenset(), self._lines.new(), seconds, mib)
        wrong = [*oracle.complaints(done, folder)]
        said = oracle.parsed(done.stdout) if "--json" in command else None
        if command[:2] == ["report", "--json"] and done.returncode == oracle.DONE and said:
            # What is no trace may mean something else, cut anywhere.
            shown = damage == [Damage.SHOWN] and not TARGETS[one.target].option
            if shown and not oracle.noticed(said) - oracle.noticed(report):
                wrong += oracle.differences(report, said)
            wrong += self._beside_others(one, folder, command, said, findings, damage)
        findings += [
            Finding("wrong", f"{one.target}: {_alike(text)}", f"{text}\n{done.stderr[:2000]}")
            for text in dict.fromkeys(wrong)
        ]
        verdict = _verdict(done, said, report)
        return Outcome(
            verdict, tuple(findings), _signs(done, said), self._lines.new(), seconds, mib
        )

    def _measured(
        self, target: str, command: list[str], folder: Path, findings: list[Finding]
    ) -> tuple[CompletedProcess[str] | None, float, float]:
        """Run a command; return what came of it, seconds and MiB, and note what it did besides."""
        writes = WRITES.get(command[0], ())
        before = _held(folder, writes)
        self._printed.write_bytes(b"")
        _forget_peak()
        began = time.process_time()
        done = self._tried(command, findings)
        seconds, mib = time.process_time() - began, _peak_mib()
        if self._printed.stat().st_size:
            past = self._printed.read_text("utf-8", "replace")
            findings.append(Finding("wrong", "prints past Python", past[:2000]))
        if _held(folder, writes) != before:
            findings.append(Finding("wrong", "changes the input", " ".join(command)))
        if seconds > _SLOW_S or mib > _LARGE_MIB:
            where = f"{target}: {'seconds' if seconds > _SLOW_S else 'memory'}"
            findings.append(Finding("costs", where, f"{seconds:.1f} s, {mib:.0f} MiB"))
        return done, seconds, mib

    def _sound_one(self, one: Input) -> tuple[Path, Any]:
        """Return a folder with the seed, and what a report says of it."""
        key = (one.target, one.seed)
        if key not in self._sound:
            folder = self._place / "sound" / "-".join(key)
            folder.mkdir(parents=True)
            self._targets[one.target].seeds[one.seed](folder)
            asked = Input(one.target, one.seed, ()).command(folder, folder, self._place)
            done = self._ask(*asked, cwd=self._place)
            self._sound[key] = (folder, json.loads(done.stdout))
        return self._sound[key]

    def _tried(self, command: list[str], findings: list[Finding]) -> CompletedProcess[str] | None:
        """Run a command; note a traceback, and return None then."""
        try:
            return self._ask(*command, cwd=self._place)
        except BaseException as error:  # noqa: BLE001  Polars' panics are no `Exception`
            findings.append(_of_traceback(error, command))
            return None

    def _beside_others(
        self,
        one: Input,
        folder: Path,
        command: list[str],
        said: Any,
        findings: list[Finding],
        damage: list[Damage],
    ) -> list[str]:
        """Ask now and then what a change makes of a report that must leave it, or parts of it."""
        random = Random(f"again {one}")
        odd = TARGETS[one.target].option or {*damage} - {Damage.TERMS}
        if odd or random.random() > _AGAIN:
            return []
        alike = random.random() < 0.5
        changed = (
            neutralise(folder, random.getrandbits(32)) if alike else _without_one(folder, random)
        )
        done = self._tried(command, findings) if changed else None
        if done is None or done.returncode != oracle.DONE:
            return [f"refuses what it read: {done.stderr}"] if done is not None and alike else []
        again = json.loads(done.stdout)
        return [*(oracle.differences if alike else oracle.raised)(said, again)]


def _without_one(folder: Path, random: Random) -> bool:
    """Remove one of several files; say whether there were several."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if len(files) < 2:
        return False
    random.choice(files).unlink()
    return True


def _held(folder: Path, but: Sequence[str]) -> list[tuple[str, int, int, int]]:
    """Return what is in a folder but for files of some names, so that a change shows."""
    found = []
    paths = sorted(folder.rglob("*"))
    # What is written through a link is where that leads.
    links = {one.readlink().name for one in paths if one.name in but and one.is_symlink()}
    for path in (one for one in paths if one.name not in {*but, *links}):
        status = path.lstat()
        found.append((str(path), status.st_size, status.st_mtime_ns, status.st_mode))
    return found


def _verdict(done: CompletedProcess[str], said: Any, sound: Any) -> str:
    if done.returncode == oracle.REFUSED:
        return REFUSED
    if done.returncode == oracle.NOTHING:
        return SALVAGED
    if isinstance(said, dict) and said.get("schema") == "bubblescope.report/1":
        return SALVAGED if oracle.noticed(said) - oracle.noticed(sound) else READ
    return READ


def _signs(done: CompletedProcess[str], said: Any) -> frozenset[str]:
    """Return what an answer tells of the way to it."""
    signs = {f"exit {done.returncode}", _alike(done.stderr)[:300]}
    if isinstance(said, dict):
        signs |= {f"notice {notice['code']}" for notice in said.get("warnings") or ()}
        signs |= {f"inferred {key}" for key in (said.get("run") or said).get("inferred") or ()}
        signs |= {f"null {key}" for key, value in said.items() if value is None}
    return frozenset(signs)


def _alike(text: str) -> str:
    """Return a text without what differs from one input to the next."""
    return _VARYING.sub("_", text)


def _of_traceback(error: BaseException, command: list[str]) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if "/bubblescope/" in one.filename]
    last = ours[-1] if ours else frames[-1]
    place = last.filename.rpartition("/bubblescope/")[2]
    where = f"{place}:{last.name}: {type(error).__name__}"
    text = "".join(traceback.format_exception(error))
    return Finding("traceback", where, f"{' '.join(command)}\n{text[-6000:]}")


def _forget_peak() -> None:
    """Have the kernel count the highest memory from now on."""
    try:
        Path("/proc/self/clear_refs").write_text("5", "ascii")
    except OSError:  # not Linux, or not ours to write
        return


def _peak_mib() -> float:
    """Return the most memory that the process had since; 0 where nobody counts it."""
    try:
        status = Path("/proc/self/status").read_text("ascii", "replace")
    except OSError:
        return 0.0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0
