"""How much of a pipeline is told from traces without marks, and how right its probabilities are.

    PYTHONPATH=src python benchmarks/markless.py CORPUS --make --damage --seeds 3

With `--make` the jobs are run that the corpus lacks, which takes half an hour and a CPU; Megatron's are
if megatron-core is installed.

Real runs of torch's schedules had ranges around every action; those were taken out of the traces,
and say what was true. A pass is found if a task of its kind covers more than half of it, and it more
than half of the task, by the time in which operators ran; paired if its backward is told to be of the
same micro-batch as its forward; placed if its stage and its micro-batch are right. A task is wrong if
anything that is said of it is.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))

import markless_damage as damage
import markless_damage_nsight as damage_nsight
import markless_nsight as played
import markless_runs as runs
import markless_score as scoring
from bubblescope import sources
from bubblescope.analysis.rates import bubble_rates
from bubblescope.analysis.schedule.recognise import recognise
from bubblescope.model.errors import BubblescopeError

BINS = (0.0, 0.5, 0.7, 0.9, 0.95, 0.99, 1.0)
"""Lower ends of the bins of probability; the last is of what is said without doubt."""

WHOLE = "whole"
"""The version of a case to which nothing was done."""


class Result(NamedTuple):
    """What came of one version of one case."""

    case: str
    version: str
    score: scoring.Score
    named: str
    bubble: str

    @property
    def has_name(self) -> bool:
        """Whether the schedule was given a name, and not refused one."""
        return not self.named.startswith("-") and self.score.tasks > 0

    @property
    def is_named_right(self) -> bool:
        """Whether that name is the schedule's, or of one that is equal for these sizes."""
        return not self.named.endswith(": wrong")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("corpus", type=Path, help="folder of cases, each with a truth.json")
    parser.add_argument("--only", nargs="*", default=[], help="cases whose path begins with these")
    parser.add_argument("--make", action="store_true", help="make the cases that the corpus lacks")
    parser.add_argument(
        "--other", action="store_true", help="of the sizes that nothing was tuned by"
    )
    parser.add_argument("--damage", action="store_true", help="damaged versions of each case too")
    parser.add_argument(
        "--versions",
        nargs="*",
        choices=[WHOLE, *dict.fromkeys([*damage.VERSIONS, *damage_nsight.VERSIONS])],
        help="only these versions",
    )
    parser.add_argument("--marked", action="store_true", help="read the traces with their marks")
    parser.add_argument("--seeds", type=int, default=1, help="of each version that has any")
    parser.add_argument("--jobs", type=int, default=1, help="cases at once")
    parser.add_argument(
        "--probability",
        nargs="*",
        default=["certainty"],
        metavar="[ASPECT=]COLUMN",
        help=f"the tasks' columns of probability, of all or of one of {', '.join(scoring.ASPECTS)}",
    )
    asked = parser.parse_args()
    columns = columns_of(asked.probability)
    if asked.make:
        runs.make_corpus(asked.corpus, asked.only, asked.other)
        played.make_exports(asked.corpus, asked.other)
    folders = sorted(path.parent for path in asked.corpus.rglob("truth.json"))
    names = [str(folder.relative_to(asked.corpus)) for folder in folders]
    if asked.only:
        names = [one for one in names if one.startswith(tuple(asked.only))]
    every = dict.fromkeys([*damage.VERSIONS, *damage_nsight.VERSIONS])
    versions = asked.versions or [WHOLE, *(every if asked.damage else ())]
    judged = partial(
        judge,
        asked.corpus,
        "marked" if asked.marked else "stripped",
        versions=versions,
        seeds=asked.seeds,
        columns=columns,
    )
    # A forked process would inherit the locks of Polars' threads.
    with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as pool:
        results = [one for part in pool.map(judged, names) for one in part]
    for one in results:
        if one.score.wrong_and_sure:
            said = f"{one.case}, {one.version}: {one.score.wrong_and_sure} wrong above 50 %"
            print(said, file=sys.stderr)
        if one.has_name and not one.is_named_right:
            print(f"{one.case}, {one.version}: {one.named}", file=sys.stderr)
    print(by_case([one for one in results if one.version == WHOLE]))
    if len(versions) > 1:
        print(by_version(results))
    print(reliability(results))


def columns_of(asked: list[str]) -> dict[str, str]:
    """Return the column of each aspect's probability."""
    columns = dict.fromkeys(scoring.ASPECTS, "")
    for one in asked:
        aspect, _, column = one.rpartition("=")
        for name in [aspect] if aspect else scoring.ASPECTS:
            columns[name] = column
    return columns


def judge(
    corpus: Path, kind: str, name: str, versions: list[str], seeds: int, columns: dict[str, str]
) -> list[Result]:
    """Read every version of a case, and compare it with the truth."""
    folder = corpus / name / kind
    truth, worked = scoring.truth(corpus / name), scoring.working(corpus / name)
    schedule = json.loads((corpus / name / "truth.json").read_text())["schedule"]
    known = scoring.NAMES.get(schedule)
    results = []
    if WHOLE in versions:
        results.append(Result(name, WHOLE, *read(folder, truth, worked, columns, known)))
    damaged = [version for version in versions if version != WHOLE]
    documents = damage.read(folder) if damaged else {}
    for export in folder.glob("*.sqlite"):
        results += of_exports(name, export, truth, damaged, seeds, columns, known)
    for version in [one for one in damaged if one in damage.VERSIONS] if documents else ():
        for seed in range(seeds if version in damage.SEEDED else 1):
            made = damage.VERSIONS[version](documents, random.Random(f"{name} {version} {seed}"))
            left = scoring.seen(truth, damage.windows(made))
            with tempfile.TemporaryDirectory() as scratch:
                damage.write(made, Path(scratch))
                results.append(
                    Result(name, version, *read(Path(scratch), left, worked, columns, known))
                )
    return results


def of_exports(
    name: str,
    export: Path,
    truth: list[scoring.Action],
    versions: list[str],
    seeds: int,
    columns: dict[str, str],
    known: str | None,
) -> list[Result]:
    """Read damaged versions of an export of Nsight Systems."""
    origin = min(one.start for one in truth) - first_kernel(export)
    ranks = sorted(damage_nsight.windows(export, origin))
    results = []
    for version in versions:
        if version not in damage_nsight.VERSIONS:
            continue
        for seed in range(seeds if version in damage_nsight.SEEDED else 1):
            with tempfile.TemporaryDirectory() as scratch:
                made = damage_nsight.damaged(
                    export,
                    Path(scratch, export.name),
                    damage_nsight.VERSIONS[version],
                    random.Random(f"{name} {version} {seed}"),
                )
                held = damage_nsight.windows(made, origin)
                left = {ranks.index(process): place for place, process in enumerate(sorted(held))}
                seen = [replace(one, rank=left[one.rank]) for one in truth if one.rank in left]
                seen = scoring.seen(seen, dict(enumerate(held[one] for one in sorted(held))))
                told = read(Path(scratch), seen, {}, columns, known)
                results.append(Result(name, f"nsys: {version}", *told))
    return results


def first_kernel(export: Path) -> int:
    """Return when an export's first kernel that communicates nothing began, in its own time."""
    with closing(sqlite3.connect(export)) as tables:
        [found] = tables.execute(
            f"SELECT MIN(start) FROM {damage_nsight.KERNELS} AS kernels JOIN StringIds "
            "ON kernels.shortName = id WHERE value NOT LIKE 'nccl%'"
        ).fetchone()
    return int(found)


def read(
    folder: Path,
    truth: list[scoring.Action],
    worked: dict[int, scoring.Working],
    columns: dict[str, str],
    known: str | None,
) -> tuple[scoring.Score, str, str]:
    """Return how well traces are told, what their schedule is called, and what their bubble rate is."""
    true = f"{100 * scoring.bubble(truth):.2f} %" if known and truth else "-"
    try:
        timeline = sources.load(folder)
    except BubblescopeError as error:
        return scoring.score(truth, []), str(error).replace(str(folder), ""), f"- of {true}"
    result = scoring.score(truth, scoring.claims(timeline.tasks, columns), worked)
    seen, rate = recognise(timeline), bubble_rates(timeline).overall.makespan
    said = "-" if rate is None else f"{100 * rate:.2f} %"
    names = () if seen is None or not seen.schedule else (seen.schedule, *seen.equals)
    right = "" if not names or known in names else ": wrong"
    return result, f"{names[0] if names else '-'}{right}", f"{said} of {true}"


def share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.1f} %)" if whole else "-"


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


COLUMNS = ("passes found", "backwards paired", "placed", "tasks wrong", "wrong above 50 %")


def figures(score: scoring.Score) -> tuple[str, ...]:
    return (
        share(score.found, score.passes),
        share(score.paired, score.backwards),
        share(score.placed, score.passes),
        f"{score.wrong} of {score.tasks}",
        str(score.wrong_and_sure),
    )


def table(head: tuple[str, ...], rows: list[str]) -> str:
    return "\n".join([row(*head), row(*("---" for _ in head)), *rows, ""])


def by_case(results: list[Result]) -> str:
    """Return the table of the cases that nothing was done to."""
    rows = [row(one.case, *figures(one.score), one.named, one.bubble) for one in results]
    return table(("case", *COLUMNS, "named", "bubble rate of the true one"), rows)


def by_version(results: list[Result]) -> str:
    """Return the table of what was done to the cases."""
    sums: dict[str, scoring.Score] = {}
    named: dict[str, list[bool]] = {}
    for one in results:
        sums.setdefault(one.version, scoring.Score()).add(one.score)
        if one.has_name:
            named.setdefault(one.version, []).append(one.is_named_right)
    rows = []
    for version, total in sums.items():
        names = named.get(version, [])
        rows.append(row(version, *figures(total), share(sum(names), len(names))))
    return table(("version", *COLUMNS, "schedules named right, of named"), rows)


def reliability(results: list[Result]) -> str:
    """Return how often answers are right, by the probability they are given with."""
    answers = [answer for one in results for answer in one.score.answers]
    told = [(said, right) for _, said, right in answers]
    whole = [task for one in results for task in one.score.whole]
    rows = []
    for low, high in zip(BINS, (*BINS[1:], 2.0), strict=True):
        cells: list[str] = []
        for every in (told, whole):
            inside = [(said, right) for said, right in every if low <= said < high]
            mean = f"{100 * sum(said for said, _ in inside) / len(inside):.1f} %" if inside else "-"
            cells += [mean, share(sum(right for _, right in inside), len(inside))]
        name = f"{low:.0%} to {high:.0%}" if low < 1 else "100 %"
        rows.append(row(name, *cells))
    sure = {
        aspect: [right for which, said, right in answers if which == aspect and said > 0.5]
        for aspect in scoring.ASPECTS
    }
    every = [right for part in sure.values() for right in part]
    wrong = [
        row(aspect, share(part.count(False), len(part)))
        for aspect, part in {**sure, "all": every}.items()
    ]
    return "\n".join(
        [
            table(
                ("said with", "on average", "answers right", "on average", "tasks all right"), rows
            ),
            table(("said with more than 50 %", "wrong"), wrong),
        ]
    )


if __name__ == "__main__":
    main()
