"""What an agent may ask. Each tool returns plain values; none writes anything.

What a tool's name, arguments and docstring say is what a model reads before it uses the tool.
"""

from __future__ import annotations

import threading
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bubblescope.agents.limits import ROWS, limited
from bubblescope.agents.task_query import query
from bubblescope.analysis import question_text
from bubblescope.analysis.cannot_answer import CannotAnswer, unanswered
from bubblescope.analysis.gate import condition, judge
from bubblescope.analysis.kernels import COLUMNS
from bubblescope.model.errors import BubblescopeError, TimelineError
from bubblescope.model.timing import timed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bubblescope.agents.runs import Runs
    from bubblescope.facade import Trace
    from bubblescope.model.timeline import Timeline

LOADED: Final = "bubblescope.loaded/1"
CANNOT_ANSWER: Final = "bubblescope.cannot_answer/1"
"""Names and versions of JSON that only tools return, described in docs/agents.md."""

_PARTS: Final = {
    "report": ("pipeline", "clocks", "ranks"),
    "why": ("pipeline", "clocks", "ranks"),
    "whatif": ("pipeline", "clocks", "ranks"),
    "stragglers": ("pipeline", "clocks", "devices", "steps"),
    "compare": ("noise",),
}
"""For want of what parts of an answer may be missing, of `analysis.unanswered.ABOUT`."""
_WHOLE: Final = {**_PARTS, "kernels": ("kernels",)}
"""The same of a whole answer."""

_ENOUGH: Final = 4_000_000
"""Tasks of a dataset that are read, if no steps are named."""


class Tools:
    """The tools, over the runs of one session.

    Args:
        runs: Those that are loaded.
    """

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._turn = threading.Lock()  # several at once would take memory and gain nothing

    def all(self) -> list[Callable[..., dict[str, Any]]]:
        """Return the tools, in the order in which they are used."""
        return [
            *(self.load, self.report, self.why, self.whatif, self.stragglers),
            *(self.kernels, self.tasks, self.compare),
        ]

    def load(
        self,
        paths: list[str],
        names: list[str] | None = None,
        kinds: dict[str, str] | None = None,
        source: str | None = None,
        clock: str = "auto",
        steps: list[int] | None = None,
        ranks: list[int] | None = None,
        kernels: bool = False,
    ) -> dict[str, Any]:
        """Read the traces of one run. Always first: the other tools take the `run` that it returns.

        Also says what cannot be known of the run (`cannot_answer`), what was inferred, and its
        warnings. Pass these on to the user where they concern the question.

        Args:
            paths: Files, folders or glob patterns; together they are one run. The format is detected.
            names: Regular expressions for the job's own range names, with a group kind and any of
                microbatch, chunk, stage, step, rank, peer: "(?P<kind>fwd|bwd)_(?P<microbatch>[0-9]+)".
            kinds: What the words captured as kind mean: {"fwd": "forward", "bwd": "backward"}.
            source: The trace format, if it should not be detected.
            clock: raw, auto or solve: whether clocks of several hosts are corrected.
            steps: Only these training steps.
            ranks: Only these ranks.
            kernels: Whether single kernels are kept; else the tool kernels reads the traces once more.
        """
        with self._turn:
            how: dict[str, Any] = {
                "names": names,
                "kinds": kinds,
                "source": source,
                "clock": clock,
                # By these a dataset is read in part; of one that is large, as many steps as fit.
                "steps": _ranges(steps),
                "ranks": _ranges(ranks),
                "enough": _ENOUGH,
            }
            if any(name.endswith(".toml") for name in names or ()):
                raise BubblescopeError("names are patterns here, and no files")
            name, run = self._runs.load(paths, {**how, "activities": kernels})  # type: ignore[typeddict-item]
            if steps is not None or ranks is not None:
                run = self._runs.replace(name, run.slice(steps=steps, ranks=ranks))
            return limited({"schema": LOADED, "run": name, **_summary(run.timeline)})

    def report(self, run: str, rows: int = ROWS) -> dict[str, Any]:
        """Say how long a step takes and how much of it is bubble: rates overall, by rank and by step.

        `bubble.overall.makespan` is the bubble rate: the share of the devices' time in a step in
        which they run nothing. `bubble.overall.no_wait` of that is inherent to the schedule and to
        unequal tasks, `excess` is waiting. `schedule` is the pipeline schedule that was recognised,
        `kinds` how long tasks take.

        Args:
            run: What load returned.
            rows: Rows of each list.
        """
        return self._answer("report", run, lambda trace: trace.report().to_dict(), rows)

    def why(self, run: str, rows: int = ROWS) -> dict[str, Any]:
        """Say why devices are idle, what each cause costs, and what would help.

        `findings` are sentences with their numbers: verdict first, then evidence (which rank, which
        stage) and advice. `causes` is idle time by cause, all ranks together; a cause's `cost_ns`
        is by how much a step would be shorter without it; null where that is not known.

        Args:
            run: What load returned.
            rows: Rows of each list.
        """
        return self._answer("why", run, lambda trace: trace.why().to_dict(gaps=False), rows)

    def whatif(
        self, run: str, changes: str = "", memory: float | None = None, rows: int = ROWS
    ) -> dict[str, Any]:
        """Predict what a step would take if something were different, by replaying the run.

        Without changes: what would make it faster, best first.

        Args:
            run: What load returned.
            changes: All asked about at once, as options: "--without 'slow rank'", "--healthy 3"
                (rank 3 as fast as its peers), "--stage 2=0.5" (its tasks take half as long),
                "--rank 1=0.9", "--schedule zb-h1", "--microbatches 32", "--move 1@3:0 --layers
                8,8,8,9" (a layer from stage 3 to 0), "--partition 9,8,8,8 --layers 8,8,8,9",
                "--kernel 'flash_bwd=0.5'".
            memory: For advice: activations that a device may hold, in micro-batches of a p-th of
                the model.
            rows: Rows of each list.
        """
        asked = question_text.read(changes) if changes.strip() else []
        questions = (
            [methodcaller("together", *asked)]
            if len(asked) > 1
            else [methodcaller(*change) for change in asked]
        )
        return self._answer(
            "whatif", run, lambda trace: trace.whatif(*questions, memory=memory).to_dict(), rows
        )

    def stragglers(self, run: str, rows: int = ROWS) -> dict[str, Any]:
        """Say what slow operations, stages and ranks cost the job.

        `slow_rank` is the slowest rank if it stands out, its `slow_share` by how much. `workers`
        are ranks: `slowdown` is what each costs the job, `slow_share` in how many steps it was
        slower than the others at its stage; null with one rank at each stage, for then a slow
        device cannot be told from a long stage. Without a pipeline, `late_ranks` are those that the
        others wait for in collectives.

        Args:
            run: What load returned.
            rows: Rows of each list.
        """
        return self._answer("stragglers", run, lambda trace: trace.stragglers().to_dict(), rows)

    def kernels(
        self,
        run: str,
        by: list[str] | None = None,
        like: str | None = None,
        rows: int = ROWS,
    ) -> dict[str, Any]:
        """Say which kernels, copies and fills ran, how long, and what makes one rank slower.

        Args:
            run: What load returned.
            by: What to tell rows apart by: any of stage, kind, module, use, rank, name, full.
            like: Another run, to set beside it.
            rows: Rows of each list.
        """
        if unknown := [column for column in by or () if column not in COLUMNS]:
            raise BubblescopeError(f"by: {unknown[0]!r} is none of {', '.join(COLUMNS)}")
        other = None if like is None else self._runs[like]
        return self._answer(
            "kernels", run, lambda trace: trace.kernels(by=by, like=other).to_dict(), rows
        )

    def tasks(
        self,
        run: str,
        where: dict[str, list[int | str]] | None = None,
        group_by: list[str] | None = None,
        sort_by: str | None = None,
        at_least_ns: int | None = None,
        rows: int = ROWS,
    ) -> dict[str, Any]:
        """Return single tasks of a run, or what groups of them took. Times are nanoseconds.

        Args:
            run: What load returned.
            where: Column -> values: {"kind": ["forward"], "rank": [3]}. Columns: rank, step, kind,
                stage, chunk, microbatch, lane, peer, name.
            group_by: Such columns; rows then have count, total_ns, mean_ns, median_ns, min_ns and
                max_ns.
            sort_by: The largest first: length_ns or busy_ns of tasks; total_ns, mean_ns, median_ns,
                max_ns or count of groups. start_ns: the earliest first.
            at_least_ns: How long tasks are to be at least.
            rows: How many rows.
        """
        limited({}, rows)

        def found(trace: Trace) -> dict[str, Any]:
            return query(
                trace.timeline,
                where or {},
                group_by=group_by or (),
                sort_by=sort_by,
                at_least_ns=at_least_ns,
                rows=rows,
            )

        return self._answer("tasks", run, found, rows)

    def compare(
        self, before: str, after: str, conditions: list[str] | None = None, rows: int = ROWS
    ) -> dict[str, Any]:
        """Say what changed from one run to another, and whether it is more than noise.

        A change is `certain` if its 95 % interval does not include zero; of a run of one step
        nothing is certain.

        Args:
            before: The run that load returned first.
            after: The run that may have changed.
            conditions: What to check, such as "bubble > +2%" or "step > +3ms"; each is failed,
                passed or not certain.
            rows: Rows of each list.
        """
        limits = [condition(text) for text in conditions or ()]
        other = self._runs[after]

        def compared(trace: Trace) -> dict[str, Any]:
            comparison = trace.compare(other)
            verdicts = [judge(one, comparison)._asdict() for one in limits]
            return {**comparison.to_dict(), "conditions": verdicts}

        return self._answer("compare", before, compared, rows, other.timeline)

    def _answer(
        self,
        question: str,
        run: str,
        ask: Callable[[Trace], dict[str, Any]],
        rows: int,
        *others: Timeline,
    ) -> dict[str, Any]:
        """Return an answer, or why there is none; `others` are runs that it is about as well.

        Raises:
            BubblescopeError: The question is none that can be asked.
        """
        with self._turn:
            trace = self._runs[run]
            try:
                answer = ask(trace)
                missing = _missing(_PARTS.get(question, ()), trace.timeline, *others)
            except TimelineError as error:
                lacking = _missing(_WHOLE.get(question, ()), trace.timeline, *others)
                would_tell = lacking[0].would_tell if lacking else None
                missing = [CannotAnswer(question, str(error), would_tell)]
                answer = {"schema": CANNOT_ANSWER, "question": question}
            told = {"cannot_answer": msgspec.to_builtins(missing)} if missing else {}
            return limited({**answer, **told}, rows)


def _missing(needs: Sequence[str], *timelines: Timeline) -> list[CannotAnswer]:
    """Return what is needed and not known of any of some runs."""
    found = (one for timeline in timelines for one in unanswered(timeline) if one.about in needs)
    return list(dict.fromkeys(found))


def _ranges(numbers: list[int] | None) -> list[range] | None:
    return None if numbers is None else [range(one, one + 1) for one in numbers]


def _summary(timeline: Timeline) -> dict[str, Any]:
    """Return what an agent must know of a run before it asks."""
    run = timeline.run
    stages = timeline.tasks["stage"].drop_nulls().n_unique()
    return {
        "formats": sorted({origin.format for origin in run.origins}),
        "ranks": timeline.ranks.height,
        "hosts": timeline.ranks["host"].n_unique(),
        "stages": stages or None,
        "steps": timeline.steps,
        "tasks": len(timeline),
        "kernels": timeline.activities.height,
        "timed": timed(timeline.ranks),
        "common_clock": run.common_clock,
        "declared_schedule": run.schedule,
        "inferred": run.inferred,
        "warnings": msgspec.to_builtins(run.warnings),
        "notes": msgspec.to_builtins(run.notes),
        "cannot_answer": msgspec.to_builtins(unanswered(timeline)),
    }
