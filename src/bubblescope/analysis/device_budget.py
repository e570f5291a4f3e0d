"""What every device spent its time on, and why it was idle: sums over steps, ranks and the run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope.analysis.arrivals import arrivals, over_steps
from bubblescope.analysis.step_lengths import is_one_step
from bubblescope.model import intervals
from bubblescope.model.budget import HIDDEN, HOST, IDLE, WHOLE_GRAPH, Use
from bubblescope.model.ordering import in_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.model.provenance import Run
    from bubblescope.model.timeline import Timeline


class Spending(msgspec.Struct, frozen=True):
    """What some devices spent some time on, in nanoseconds.

    Attributes:
        total_ns: All of it: compute_ns, communication_exposed_ns, copy_exposed_ns and idle_ns.
        compute_ns: Kernels that compute were running.
        graphs_ns: The part of it in which only graphs ran that were recorded as a whole: the devices
            may have communicated or idled in them.
        communication_exposed_ns: Kernels that communicate were, and none that compute.
        communication_hidden_ns: Both were; it is part of compute_ns.
        copy_exposed_ns: Nothing but copies was running.
        copy_hidden_ns: Copies were running beneath something else.
        idle_ns: Nothing was running.
        idle: Class -> idle time, those that occur, in the order of `model.budget.IDLE`.
    """

    total_ns: int
    compute_ns: int
    graphs_ns: int
    communication_exposed_ns: int
    communication_hidden_ns: int
    copy_exposed_ns: int
    copy_hidden_ns: int
    idle_ns: int
    idle: dict[Use, int]

    @classmethod
    def of(cls, spent: dict[Use, int], graphs_ns: int = 0) -> Spending:
        """Sum up what was spent on each use, and on graphs as part of what computes."""
        idle: dict[Use, int] = {use: spent[use] for use in IDLE if spent.get(use)}
        parts = [spent.get(use, 0) for use in (Use.COMPUTE, Use.COMMUNICATION, Use.COPY)]
        hidden = [spent.get(use, 0) for use in HIDDEN]
        rest = sum(idle.values())
        return cls(
            total_ns=sum(parts) + rest,
            compute_ns=parts[0],
            graphs_ns=graphs_ns,
            communication_exposed_ns=parts[1],
            communication_hidden_ns=hidden[0],
            copy_exposed_ns=parts[2],
            copy_hidden_ns=hidden[1],
            idle_ns=rest,
            idle=idle,
        )

    @property
    def host_late_ns(self) -> int:
        """Idle time for which the host launched late, whatever it did instead."""
        return sum(self.idle.get(use, 0) for use in HOST)

    def lost_ns(self, use: Use) -> int:
        """Return the time of a class that is not computing."""
        busy = {
            Use.COMMUNICATION: self.communication_exposed_ns,
            Use.COPY: self.copy_exposed_ns,
        }
        return busy.get(use, self.idle.get(use, 0))

    def share(self, part_ns: int) -> float | None:
        """Return a part as a share of the whole; None if there is no time at all."""
        return part_ns / self.total_ns if self.total_ns else None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name != "idle"}
        idle = [{"class": use.value, "idle_ns": time} for use, time in self.idle.items()]
        return {**fields, "idle": idle}


SLOW_CALL_NS: Final = 1_000_000
"""Length of a launch call from which on it does more than launch, which takes some microseconds: it
loads or compiles its kernel, on first use (CUDA C++ Programming Guide, "Lazy Loading")."""


_LOADS_NS: Final = 100_000
"""Length of a launch call from which on it does so if it takes most of the time of all, and from which
on it does more than launch, whatever that is."""
_MOSTLY: Final = 0.5
"""Share of the time of launch calls above which slow ones are to blame for it."""


def call_sums() -> tuple[pl.Expr, ...]:
    """Return how long rows of a budget are that are one gap each, as of `Steps.details`."""
    spent = pl.col("spent_ns")
    whole = spent == pl.col("end_ns") - pl.col("start_ns")
    slow = whole & (spent >= SLOW_CALL_NS)
    long = whole & (spent >= _LOADS_NS)
    return (
        spent.filter(long).sum().alias("long_ns"),
        long.sum().cast(pl.UInt32).alias("long"),
        spent.filter(slow).sum().alias("slow_ns"),
        slow.sum().cast(pl.UInt32).alias("slow"),
        spent.filter(whole).max().fill_null(0).alias("longest_ns"),
    )


def one_loads(spent_ns: int, longest_ns: int) -> bool:
    """Say whether the longest of some launch calls is most of their time, and loads its kernel."""
    return longest_ns >= _LOADS_NS and longest_ns > _MOSTLY * spent_ns


class Steps(msgspec.Struct, frozen=True):
    """What the devices of a run spent its steps on, by the rows that `in_steps` chooses.

    Attributes:
        spending: The sums.
        details: Frame with use, detail, role, then, spent_ns, count, long_ns, long, slow_ns, slow and
            longest_ns, most first: as `Budget.details`, and of its rows that are one gap each, how much
            time those of 100 us or longer take, and those of `SLOW_CALL_NS` or longer, how many these
            are, and the longest of all.
    """

    spending: Spending
    details: pl.DataFrame


class Budget(msgspec.Struct, frozen=True):
    """What the devices of a run spent their time on.

    Attributes:
        overall: Over all of them, from each one's first operation to its last.
        per_rank: Rank -> the same of its devices.
        per_rank_step: (rank, step) -> the same in the step.
        per_step: Step -> the same over all ranks.
        lengths_ns: Step -> how long it is, the mean over devices.
        open_steps: Those whose end was not recorded.
        details: Frame with use, detail, role, then, spent_ns and count, most first: what each class of
            time over the run consists of. `count` is that of rows, which are gaps where these are long.
        outside_steps_ns: What lies in no step, over all devices; null if there are no steps.
        in_steps: What lies in whole steps, as `in_steps` has it.
        in_any: What lies in steps, whole or not; all of it if there are none.
        arrivals: Who waited for whom in collectives, in the steps of `in_steps`: frame as
            `bubblescope.analysis.arrivals.over_steps` returns it.
        undecided: Time of which the traces do not tell what it was spent on; see `undecided`.
    """

    overall: Spending
    per_rank: dict[int, Spending]
    per_rank_step: dict[tuple[int, int], Spending]
    per_step: dict[int, Spending]
    lengths_ns: dict[int, int]
    open_steps: frozenset[tuple[int, int]]
    details: pl.DataFrame
    outside_steps_ns: int | None
    in_steps: Steps
    in_any: Spending
    arrivals: pl.DataFrame
    undecided: list[dict[str, Any]]

    @property
    def whole_steps(self) -> list[int]:
        """Steps whose end was recorded on every rank, in order."""
        return sorted(self.per_step.keys() - {step for _, step in self.open_steps})

    @property
    def stepped_ns(self) -> int:
        """How long the steps of `in_steps` are together, of a rank on average."""
        return max(1, self.in_steps.spending.total_ns // len(self.per_rank))

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return plain values for each rank."""
        return [
            {
                "rank": rank,
                "capture": spending.to_dict(),
                "steps": [
                    {"step": step, "open": (rank, step) in self.open_steps, **of.to_dict()}
                    for (of_rank, step), of in self.per_rank_step.items()
                    if of_rank == rank
                ],
            }
            for rank, spending in self.per_rank.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for all ranks together, and what the time consists of."""
        return {
            "capture": self.overall.to_dict(),
            "steps": [{"step": step, **of.to_dict()} for step, of in self.per_step.items()],
            "outside_steps_ns": self.outside_steps_ns,
            "details": [
                {"class": row["use"], **{key: row[key] for key in _TOLD}}
                for row in self.details.filter(pl.col("use") != Use.COMPUTE.value).to_dicts()
            ],
            "collectives": self.arrivals.to_dicts(),
            "undecided": self.undecided,
        }


_TOLD: Final = ("detail", "role", "then", "spent_ns")
"""What plain values tell of each detail, beside its class."""


class Spent(msgspec.Struct, frozen=True):
    """What devices spent time on; of several parts of a run, it adds up.

    Attributes:
        by_step: Frame with rank, step, ended, as `with_ended` has it, use, spent_ns and graphs_ns, as
            of `Spending`.
        details: Frame with use, detail, role, then, ended and what of these adds up, as of
            `Steps.details`.
        devices: Frame with rank, step and device: which devices did anything in which step.
        open_steps: Those whose end was not recorded, as rank and step.
        stepped: Whether steps of devices are known.
        arrivals: As of `bubblescope.analysis.arrivals`.
    """

    by_step: pl.DataFrame
    details: pl.DataFrame
    devices: pl.DataFrame
    open_steps: frozenset[tuple[int, int]]
    stepped: bool
    arrivals: pl.DataFrame

    @classmethod
    def of(cls, timeline: Timeline) -> Self:
        """Sum up a timeline's budget."""
        table, spent = with_ended(timeline.budget, timeline), pl.col("spent_ns").sum()
        graphs = (pl.col("use") == Use.COMPUTE.value) & (pl.col("detail") == WHOLE_GRAPH)
        started = timeline.step_times.filter(pl.col("open")).select("rank", "step").rows()
        return cls(
            table.group_by(*_PLACE, "use").agg(
                spent, graphs_ns=pl.col("spent_ns").filter(graphs).sum()
            ),
            table.group_by(*_SORT, "ended").agg(
                spent,
                pl.len().cast(pl.UInt32).alias("count"),
                *call_sums(),
            ),
            table.select("rank", "step", "device").unique(),
            frozenset(started),
            timeline.step_times.height > 0,
            arrivals(timeline),
        )

    @classmethod
    def joined(cls, parts: Sequence[Spent]) -> Self:
        """Return what was spent in several parts of a run together."""
        by_step = pl.concat([part.by_step for part in parts])
        details = pl.concat([part.details for part in parts])
        return cls(
            by_step.group_by(*_PLACE, "use").agg(pl.col("spent_ns", "graphs_ns").sum()),
            _details(details, "ended"),
            pl.concat([part.devices for part in parts]).unique(),
            frozenset().union(*(part.open_steps for part in parts)),
            any(part.stepped for part in parts),
            pl.concat([part.arrivals for part in parts]),
        )


def with_ended(table: pl.DataFrame, timeline: Timeline) -> pl.DataFrame:
    """Return a budget with ended: whether the end of the step was recorded; null of what is in none.

    It is that of all ranks: they wait for each other, so what-ifs are of no other steps either. Where
    nothing tells a step, all of the recording is in one, what came before its first task as well.

    Args:
        table: As `Timeline.budget`.
        timeline: The run.
    """
    if is_one_step(timeline.run):
        return table.with_columns(ended=pl.lit(value=False))
    unfinished = (
        timeline.step_times.filter("open").select("step", ended=pl.lit(value=False)).unique()
    )
    ended = pl.when(pl.col("step").is_not_null()).then(pl.col("ended").fill_null(value=True))
    found = table.join(unfinished, on="step", how="left", maintain_order="left")
    return found.with_columns(ended=ended)


def in_steps(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows in whole steps; if there are none, those in any step, or else all.

    Args:
        rows: Frame with ended, as `with_ended` has it.
    """
    for ended in (True, False):
        found = rows.filter(ended=ended)
        if found.height:
            return found
    return rows


_PLACE: Final = ("rank", "step", "ended")
_SORT: Final = ("use", "detail", "role", "then")


def _details(details: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return the details of several parts of a run, or of several sorts of time, together."""
    return details.group_by(*_SORT, *by).agg(
        pl.col("spent_ns", "count", "long_ns", "long", "slow_ns", "slow").sum(),
        pl.col("longest_ns").max(),
    )


def _most_first(details: pl.DataFrame) -> pl.DataFrame:
    return details.sort("spent_ns", *_SORT, descending=[True, *(False for _ in _SORT)])


def between_captures(table: pl.DataFrame, *place: str) -> pl.DataFrame:
    """Return when nothing was recorded of ranks, between the first operation of each and its last.

    A process may be traced several times; what its devices did in between nobody knows.

    Args:
        table: As `Timeline.budget`.
        place: Columns of it by which to tell times apart: rank, and perhaps device.

    Returns:
        Frame with these columns, step (that of what follows), start_ns, end_ns and inside (whether what
        was before is of that step too), in order.
    """
    rows = in_order(table.select(*place, "step", "start_ns", "end_ns"), *place, "start_ns")
    start, end, group = intervals.columns(rows, *place)
    reached = intervals.reached_ns(end, group)
    missed = (reached != intervals.NEVER) & (reached < start)
    return rows.with_columns(
        start_ns=pl.Series(reached, dtype=pl.Int64),
        end_ns="start_ns",
        inside=pl.col("step").eq_missing(pl.col("step").shift(1)),
    ).filter(pl.Series(missed))


def recorded(windows: pl.DataFrame, table: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return windows with recorded_ns: how long each is without what lies `between_captures`.

    Args:
        windows: Frame with start_ns, end_ns and the columns of `by`.
        table: As `Timeline.budget`.
        by: As of `between_captures`, and perhaps step: what lies between two counts for neither then.
    """
    length = pl.col("end_ns") - pl.col("start_ns")
    between = between_captures(table, *(name for name in by if name != "step"))
    if "step" in by:
        between = between.filter("inside")
    missed = between.group_by(by).agg(missed_ns=length.sum())
    found = windows.join(missed, on=by, how="left", maintain_order="left")
    return found.with_columns(recorded_ns=length - pl.col("missed_ns").fill_null(0)).drop(
        "missed_ns"
    )


def budget(timeline: Timeline) -> Budget | None:
    """Sum up what the devices of a run spent their time on.

    Returns:
        None if its traces hold no device work, and so do not tell.
    """
    return budget_of(Spent.of(timeline), timeline.run) if timeline.budget.height else None


def budget_of(spent: Spent, run: Run) -> Budget | None:
    """Return what the devices of a run spent their time on; None as of `budget`.

    Args:
        spent: The sums.
        run: The run.
    """
    table = spent.by_step
    if not table.height:
        return None
    steps = table.drop_nulls("step")
    overall = _spending(table)[()]
    within = _spending(steps).get((), Spending.of({}))
    per_step = {step: found for (step,), found in _spending(steps, "step").items()}
    devices = dict(spent.devices.group_by("step").len().iter_rows())
    return Budget(
        overall=overall,
        per_rank={rank: found for (rank,), found in _spending(table, "rank").items()},
        per_rank_step={
            (rank, step): found for (rank, step), found in _spending(steps, "rank", "step").items()
        },
        per_step=per_step,
        lengths_ns={step: round(of.total_ns / devices[step]) for step, of in per_step.items()},
        open_steps=spent.open_steps,
        details=_most_first(_details(spent.details)).select(*_SORT, "spent_ns", "count"),
        outside_steps_ns=overall.total_ns - within.total_ns if spent.stepped else None,
        in_steps=Steps(
            _spending(in_steps(table))[()], _most_first(_details(in_steps(spent.details)))
        ),
        in_any=within if steps.height else overall,
        arrivals=over_steps(spent.arrivals, in_steps(table)),
        undecided=undecided(overall, run, spent.details["detail"]),
    )


def _spending(table: pl.DataFrame, *by: str) -> dict[tuple[int, ...], Spending]:
    sums = table.group_by(*by, "use").agg(pl.col("spent_ns", "graphs_ns").sum()).sort(*by, "use")
    found: dict[tuple[int, ...], dict[Use, int]] = {}
    graphs: Counter[tuple[int, ...]] = Counter()
    for *key, use, time, in_graphs in sums.iter_rows():
        found.setdefault(tuple(key), {})[Use(use)] = time
        graphs[tuple(key)] += in_graphs
    return {key: Spending.of(spent, graphs[key]) for key, spent in found.items()}


_WHY: Final = {
    Use.COMPUTE: "what ran in CUDA graphs, and whether devices idled or waited for others in them, is "
    "not in the trace",
    Use.UNTRACED: "what launched work waited for is not in the trace",
    Use.HOST_UNKNOWN: "what the host did is not in the trace",
    Use.UNLINKED: "what launched the work is not in the trace",
}
_OPTIONS: Final[dict[str, dict[Use, dict[str | None, str]]]] = {
    "kineto": {
        Use.UNTRACED: {
            "enable_cuda_sync_events": (
                "enable_cuda_sync_events=True in torch.profiler's experimental_config (NVIDIA's GPUs)"
            ),
        },
        Use.HOST_UNKNOWN: {
            "ProfilerActivity.CPU": "ProfilerActivity.CPU in torch.profiler",
            "with_stack": "with_stack=True in torch.profiler",
        },
        Use.UNLINKED: {
            "ProfilerActivity.CPU": "ProfilerActivity.CPU in torch.profiler",
            None: "a warm-up step in torch.profiler's schedule",
        },
    },
    "nsight": {
        Use.COMPUTE: {None: "nsys profile --cuda-graph-trace=node"},
        Use.UNTRACED: {
            "cuda-event-trace": "nsys profile --cuda-event-trace=true",
            None: "nsys profile --cuda-graph-trace=node",
        },
        Use.HOST_UNKNOWN: {
            "nvtx": (
                "nsys profile --trace=cuda,nvtx and NVTX ranges in the job "
                "(torch.autograd.profiler.emit_nvtx() in PyTorch)"
            ),
            "emit_nvtx": (
                "more NVTX ranges in the job (torch.autograd.profiler.emit_nvtx() in PyTorch)"
            ),
            "osrt": "nsys profile --trace=cuda,nvtx,osrt (if it waits)",
        },
        Use.UNLINKED: {None: "an nsys capture that begins before the first launch"},
    },
    "rocpd": {
        Use.HOST_UNKNOWN: {
            "marker-trace": (
                "rocprofv3 --marker-trace and ROCTX ranges in the job "
                "(torch.autograd.profiler.emit_nvtx() in PyTorch)"
            ),
        },
        Use.UNTRACED: {"memory-copy-trace": "rocprofv3 --memory-copy-trace (for copies)"},
        Use.UNLINKED: {"hip-runtime-trace": "rocprofv3 --hip-runtime-trace"},
    },
    "ascend": {
        Use.HOST_UNKNOWN: {
            "ProfilerActivity.CPU": "ProfilerActivity.CPU in torch_npu.profiler",
            "with_stack": "with_stack=True in torch_npu.profiler",
        },
        Use.UNLINKED: {
            "ProfilerActivity.CPU": "ProfilerActivity.CPU in torch_npu.profiler",
            None: "a warm-up step in torch_npu.profiler's schedule",
        },
    },
}
"""What a user of each profiler can ask for, to know more, by the option (see `Contents.options`) that
is on where it was asked for; None where no trace shows that."""
_NVIDIAS: Final = frozenset({"enable_cuda_sync_events"})
"""Options that other devices than NVIDIA's lack."""
_OF_HIP: Final = "hip"
"""What the names of calls of AMD's runtime begin with."""
_NEEDS: Final = {"with_stack": "ProfilerActivity.CPU", "emit_nvtx": "nvtx"}
"""Options that record nothing without another."""


def undecided(spending: Spending, run: Run, called: pl.Series) -> list[dict[str, Any]]:
    """Return time of which the traces do not tell what it was spent on, and the options that would.

    Args:
        spending: What time was spent on.
        run: The run. What its traces show to have been on is not asked for.
        called: Names of what hosts were in, by which AMD's devices are told from NVIDIA's.
    """
    lacks = _NVIDIAS if called.str.starts_with(_OF_HIP).any() else frozenset[str]()
    times_ns = {Use.COMPUTE: spending.graphs_ns, **spending.idle}
    return [
        {
            "class": use.value,
            "spent_ns": times_ns[use],
            "idle_ns": spending.idle.get(use),
            "why": why,
            "options": _options(use, run, lacks),
        }
        for use, why in _WHY.items()
        if times_ns.get(use)
    ]


def _options(use: Use, run: Run, lacks: frozenset[str]) -> list[str]:
    """Return what the user can ask for, to know more of a class of time, but for what devices lack."""
    on = run.options | lacks
    return [
        text
        for name in sorted({origin.format for origin in run.origins})
        for option, text in _OPTIONS.get(name, {}).get(use, {}).items()
        if option not in on and (option not in _NEEDS or _NEEDS[option] in on)
    ]


_PROFILERS: Final = "a trace of torch.profiler or Nsight Systems"
_TELLING: Final = {
    "native": (
        f"{_PROFILERS} (`bubblescope record --marks torch` or `--marks nvtx` shows the same tasks in "
        "it) would show"
    ),
    "kineto": "torch.profiler records them with ProfilerActivity.CUDA",
    "nsight": "nsys profile records them with --trace=cuda,nvtx",
    "rocpd": "rocprofv3 records them with --kernel-trace",
    "ascend": "torch_npu.profiler records them with ProfilerActivity.NPU, from Level0 on",
}
"""What tells of kernels, by format of traces without."""
_RECORD_KERNELS: Final = {"ProfilerActivity.CUDA", "cuda"}
"""Options that record kernels and, where these were lost, the calls that launched them."""
_RECORDED_NONE: Final = (
    "recording them was on, so that none were launched, or the profiler lost them: a trace without "
    "another tool that traces the device may hold them"
)
_TELLING_ELSE: Final = (
    "a trace of the device's own profiler (torch.profiler, Nsight Systems, rocprofv3, torch_npu) would "
    "show it"
)


def unknowable(timeline: Timeline) -> str | None:
    """Say in one sentence what traces without kernels do not tell, and what would.

    Returns:
        None if they hold device work, so that there is a budget, or no tasks either, or if the run was
        simulated.
    """
    if timeline.budget.height or not len(timeline):
        return None
    return untold(timeline.run, some=bool(timeline.tasks["busy_ns"].is_not_null().any()))


def untold(run: Run, *, some: bool) -> str | None:
    """Say what `unknowable` does of traces without device work; None if the run was simulated.

    Args:
        run: The run.
        some: Whether they say how long kernels ran in any tasks.
    """
    formats = {origin.format for origin in run.origins}
    if "simulation" in formats:
        return None
    tells = _TELLING.get(formats.pop(), _TELLING_ELSE) if len(formats) == 1 else _TELLING_ELSE
    if some:
        return (
            "the traces show how long kernels ran in tasks, but not which kernels, nor what ran "
            f"between tasks; {tells}"
        )
    if run.options & _RECORD_KERNELS:
        tells = _RECORDED_NONE
    if tells == _TELLING["native"]:
        tells = (
            "`bubblescope record --timer cupti` measures how long kernels run in tasks, on NVIDIA's "
            f"GPUs, and {tells} all of it"
        )
    return (
        "the traces hold no kernels, so all time inside tasks counts as busy, though the device may "
        f"idle in it, and waiting for the network cannot be distinguished from work; {tells}"
    )


LABELS: Final[dict[Use, str]] = {
    Use.COMPUTE: "compute",
    Use.COMMUNICATION: "exposed communication",
    Use.COPY: "exposed copies",
    Use.HOST_AFTER_SYNC: "host late: after a blocking call",
    Use.HOST_DATA: "host late: loading data",
    Use.HOST_OPTIMIZER: "host late: in the optimizer",
    Use.HOST_GC: "host late: collecting garbage",
    Use.HOST_OPERATOR: "host late: in operators",
    Use.HOST_PYTHON: "host late: in Python",
    Use.HOST_CALL: "host late: in calls of the device's runtime",
    Use.HOST_SYSTEM: "host late: in system calls",
    Use.HOST_UNKNOWN: "host late: the trace does not say why",
    Use.RANK_WAIT: "host waiting for other ranks",
    Use.LAUNCH_CALL: "launch calls on their way",
    Use.LATENCY: "starts of launched work",
    Use.EVENT_WAIT: "waiting for events of other streams",
    Use.PAGES: "until pages of unified memory moved",
    Use.UNTRACED: "waiting for what is not in the trace",
    Use.SILENT: "host silent, or not recorded",
    Use.UNLINKED: "launch is not in the trace",
}
"""What each class of time is called in print."""

BRIEF: Final[dict[Use, str]] = {
    Use.HOST_AFTER_SYNC: "host, after a blocking call",
    Use.HOST_DATA: "host, loading data",
    Use.HOST_OPTIMIZER: "host, in the optimizer",
    Use.HOST_GC: "host, collecting garbage",
    Use.HOST_OPERATOR: "host, in operators",
    Use.HOST_PYTHON: "host, in Python",
    Use.HOST_CALL: "host, in runtime calls",
    Use.HOST_SYSTEM: "host, in system calls",
    Use.HOST_UNKNOWN: "host, unknown",
    Use.RANK_WAIT: "host, waiting for other ranks",
    Use.LAUNCH_CALL: "launch calls",
    Use.LATENCY: "starts of launched work",
    Use.EVENT_WAIT: "events of other streams",
    Use.PAGES: "pages of unified memory",
    Use.UNTRACED: "not in the trace",
    Use.SILENT: "host silent or not recorded",
    Use.UNLINKED: "launch not in the trace",
}
"""The classes of idle time in a few words, where they stand beside the word idle."""

REASONS: Final[dict[str, tuple[tuple[Use, ...], str]]] = {
    "host": (HOST, "the host launched late"),
    "ranks": ((Use.RANK_WAIT,), "hosts waited for other ranks"),
    "call": ((Use.LAUNCH_CALL,), "launch calls were on their way"),
    "latency": ((Use.LATENCY,), "launched work was starting"),
    "event": ((Use.EVENT_WAIT,), "streams waited for events"),
    "pages": ((Use.PAGES,), "pages of unified memory were to be moved"),
    "untraced": ((Use.UNTRACED,), "work waited for what is not in the trace"),
    "silent": ((Use.SILENT,), "the host was silent, or was not recorded"),
    "unlinked": ((Use.UNLINKED,), "it is not known what launched the work"),
}
"""Why devices are idle, in the fewest words: the classes, and a clause."""


def main_reason(spending: Spending) -> tuple[str, int]:
    """Return the key of what makes most idle time in `REASONS`, and how much it makes."""
    sums = {
        key: sum(spending.idle.get(use, 0) for use in uses) for key, (uses, _) in REASONS.items()
    }
    key = max(sums, key=lambda one: sums[one])
    return key, sums[key]


_ELSEWHERE: Final = (Use.HOST_DATA, Use.HOST_GC, Use.HOST_CALL, Use.HOST_SYSTEM)
"""What keeps a host from launching that is no work of the job's own code."""
_LAUNCHING: Final = (*(use for use in HOST if use not in _ELSEWHERE),)
_WAITING: Final = (Use.EVENT_WAIT, Use.UNTRACED, Use.SILENT, Use.UNLINKED)
_COMPUTE_BOUND: Final = 0.8
"""Share of compute from which on nothing else is to blame."""


def bound(spending: Spending) -> str:
    """Return what a run is bound by.

    It is compute, launch, data, gc, runtime, system, communication, copy or waiting; "graph" where
    graphs of which the traces do not tell what ran in them decide about compute.
    """
    if (spending.share(spending.compute_ns) or 0) >= _COMPUTE_BOUND:
        told = spending.share(spending.compute_ns - spending.graphs_ns) or 0
        return "compute" if told >= _COMPUTE_BOUND else "graph"
    idle = spending.idle
    lost = {
        "launch": sum(idle.get(use, 0) for use in (*_LAUNCHING, Use.LAUNCH_CALL, Use.LATENCY)),
        "data": idle.get(Use.HOST_DATA, 0),
        "gc": idle.get(Use.HOST_GC, 0),
        "runtime": idle.get(Use.HOST_CALL, 0),
        "system": idle.get(Use.HOST_SYSTEM, 0),
        "communication": spending.communication_exposed_ns + idle.get(Use.RANK_WAIT, 0),
        "copy": spending.copy_exposed_ns + idle.get(Use.PAGES, 0),
        "waiting": sum(idle.get(use, 0) for use in _WAITING),
    }
    return max(lost, key=lambda key: lost[key])


def headline(spending: Spending) -> str:
    """Say what time was spent on, in one line: idle first, with its main reason."""
    idle = f"idle {_tenths(spending.share(spending.idle_ns))}"
    if spending.idle_ns:
        key, time = main_reason(spending)
        idle += f", of it {100 * time / spending.idle_ns:.0f} % {REASONS[key][1]}"
    busy = (
        ("compute", spending.compute_ns),
        ("of it in graphs that may hide idle time", spending.graphs_ns),
        ("exposed communication", spending.communication_exposed_ns),
        ("exposed copies", spending.copy_exposed_ns),
    )
    shares = [(name, spending.share(time) or 0) for name, time in busy]
    parts = [f"{name} {_tenths(share)}" for name, share in shares if share >= _LEAST_SHOWN]
    return f"{idle}; {', '.join(parts)}" if parts else idle


_LEAST_SHOWN: Final = 0.0005


def _tenths(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
