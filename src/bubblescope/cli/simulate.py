"""`bubblescope simulate`: pipelines that nobody has run yet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from bubblescope.analysis.pictured import Pictured, pictured
from bubblescope.cli.console import out, print_json, writable, writing, wrote
from bubblescope.cli.reading import Parsed
from bubblescope.facade import write
from bubblescope.model import units
from bubblescope.model.errors import ScheduleError
from bubblescope.render.files import replacing
from bubblescope.render.formats import FORMATS, format_of
from bubblescope.render.picture import svg
from bubblescope.render.text.report import Report
from bubblescope.render.text.simulate import Row, comparison, memory_line
from bubblescope.schedules import SCHEDULES, generate, named, torch_csv
from bubblescope.schedules.simulate import Costs
from bubblescope.schedules.simulate import simulate as run
from bubblescope.schedules.zb_auto import Times

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope.model.timeline import Timeline
    from bubblescope.schedules.plan import Plan


class _Wanted(NamedTuple):
    """What to simulate, but for the schedule."""

    devices: int | None
    microbatches: int | None
    chunks: int | None
    memory: float | None
    weight_share: float
    times: Times
    backward_ns: int | None
    forward_backward_ns: int | None
    sync_ns: int | None
    optimizer_ns: int
    steps: int

    def plan(self, schedule: str) -> Plan:
        """Return the plan of a schedule, or that of a CSV file."""
        if _is_file(schedule):
            return torch_csv.read(schedule)
        if self.devices is None or self.microbatches is None:
            raise click.UsageError("give --stages and --microbatches")
        known = named(schedule)
        return generate(
            schedule,
            self.devices,
            self.microbatches,
            chunks=self.chunks if known.any_chunks else None,
            times=self.times,
            memory=self.memory if schedule == "zb-auto" else None,
            weight_share=self.weight_share,
        )

    def run(self, plan: Plan) -> Timeline:
        """Return the timeline of a plan."""
        costs = Costs.shared(
            plan,
            self.times,
            backward_ns=self.backward_ns,
            forward_backward_ns=self.forward_backward_ns,
            sync_ns=self.sync_ns,
            optimizer_ns=self.optimizer_ns,
        )
        return run(plan, costs, steps=self.steps)


def _is_file(schedule: str) -> bool:
    return schedule not in SCHEDULES and Path(schedule).suffix == ".csv"


def _time(flag: str, meaning: str, default: str | None = None) -> Callable[[Any], Any]:
    """Return an option that takes a length of time with its unit: "10ms", "300us", "1.5s"."""
    name = f"{flag.removeprefix('--').replace('-', '_')}_ns"
    kind = Parsed("time", units.nanoseconds)
    return click.option(flag, name, type=kind, default=default, show_default=True, help=meaning)


@click.command()
@click.option(
    "--schedule",
    default="1f1b",
    show_default=True,
    metavar="NAME|FILE.csv",
    help="One of `bubblescope schedules`, or a plan as PyTorch's CSV.",
)
@click.option(
    "--compare", metavar="NAME,NAME,...", help="Compare several schedules: a table and a picture."
)
@click.option("--stages", "devices", type=int, metavar="P", help="Pipeline devices p.")
@click.option("--microbatches", type=int, metavar="M", help="Micro-batches of a step m.")
@click.option("--chunks", type=int, metavar="V", help="Model chunks on each device; 2 by default.")
@_time("--forward", "Forward.", "10ms")
@_time("--backward-input", "Input gradient.", "10ms")
@_time("--backward-weight", "Weight gradient.", "10ms")
@_time("--backward", "Whole backward; the sum of its parts by default.")
@_time(
    "--forward-backward",
    "Overlapped forward and whole backward (DualPipe); their sum by default.",
)
@_time("--comm", "Transfer between devices.", "0ms")
@_time("--sync", "What all do together before the optimizer.")
@_time("--optimizer", "Optimizer.", "0ms")
@click.option(
    "--memory", type=float, metavar="N", help="Activations a device may hold, for zb-auto."
)
@click.option(
    "--weight-memory",
    "weight_share",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="Share of a forward's activations that its weight gradient still needs.",
)
@click.option("--steps", type=click.IntRange(1), default=1, show_default=True, help="Steps.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/report.md).")
@click.option("--to", "fmt", type=click.Choice(list(FORMATS)), help="Also write this format.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write.")
@click.option(
    "--plan", "plan_file", type=click.Path(path_type=Path), help="Also write the plan as CSV."
)
def simulate(
    schedule: str,
    compare: str | None,
    as_json: bool,
    fmt: str | None,
    output: Path | None,
    plan_file: Path | None,
    **options: Any,
) -> None:
    """Simulate a schedule and report on it as if it had been run.

    All times are of one micro-batch on one device; schedules with several chunks on a device split
    them evenly.
    """
    times = Times(**{name: options.pop(name) for name in Times._fields})
    wanted = _Wanted(times=times, **options)
    for path in filter(None, (output, plan_file)):
        writable(path)
    if compare is not None:
        _compare(compare.split(","), wanted, output, as_json=as_json)
        return
    plan = wanted.plan(schedule)
    timeline = wanted.run(plan)
    memory = plan.peak_memory(wanted.weight_share)
    # What is searched or read from a file is not among the schedules that are recognised anyway.
    known = plan.name in SCHEDULES and not SCHEDULES[plan.name].searched
    also = [] if known else [plan]
    found = Report.of(timeline, also=also)
    if as_json:
        print_json({**found.to_dict(), "peak_memory": memory.tolist()})
    else:
        out.print(found.shown())
        out.print(memory_line(plan, memory.tolist()))
    if plan_file is not None:
        torch_csv.write(plan, plan_file)
        if not as_json:
            wrote(plan_file)
    if output is not None and fmt is None:
        fmt = format_of(output)
    if fmt is not None:
        target = output or Path(f"{plan.name}{FORMATS[fmt].suffix}")
        with writing(target, quiet=as_json):
            write(timeline, target, to=fmt, also=also)
        if not as_json:
            wrote(target)


def _compare(names: list[str], wanted: _Wanted, output: Path | None, *, as_json: bool) -> None:
    runs = [_simulated(name.strip(), wanted) for name in names]
    rows = [row for row, _ in runs]
    drawn = [shown for _, shown in runs if shown is not None]
    if not drawn:
        raise ScheduleError("; ".join(row.problem for row in rows))
    if as_json:
        print_json([_plain(row) for row in rows])
    else:
        out.print(comparison(rows), crop=False)
    target = output or Path("schedules.svg")
    with replacing(target) as partial:
        partial.write_text(svg.compare(drawn), encoding="utf-8")
    if not as_json:
        wrote(target)


def _plain(row: Row) -> dict[str, Any]:
    known = not row.problem
    return {
        "schedule": row.name,
        "makespan_ns": row.makespan_ns if known else None,
        "makespan": row.makespan,
        "span": row.span,
        "peak_memory": row.memory if known else None,
        "copies": row.copies if known else None,
        "problem": row.problem or None,
    }


def _simulated(name: str, wanted: _Wanted) -> tuple[Row, Pictured | None]:
    """Simulate one of the schedules to compare; one that is impossible says why."""
    if not _is_file(name):
        named(name)  # what is no schedule is a mistake, not one that is impossible
    try:
        plan = wanted.plan(name)
    except ScheduleError as error:
        return Row(name, problem=str(error)), None
    shown = pictured(wanted.run(plan))
    length = int((shown.rates.table["makespan_ns"].sum() or 0) // plan.devices)
    overall = shown.rates.overall
    memory = float(plan.peak_memory(wanted.weight_share).max())
    row = Row(plan.name, length, overall.makespan, overall.span, memory, plan.copies)
    return row, shown
