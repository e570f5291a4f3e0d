"""`bubblescope simulate` and `bubblescope schedules`: pipelines that nobody has run yet."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import msgspec
from rich.table import Table
from rich.text import Text

from bubblescope import exports, units
from bubblescope.analysis.bubbles import measure
from bubblescope.console import out, writable, writing, wrote
from bubblescope.errors import ScheduleError
from bubblescope.exports import svg
from bubblescope.exports.files import replacing
from bubblescope.report import Report
from bubblescope.schedules import SCHEDULES, Plan, Times, generate, named, torch_csv
from bubblescope.simulate import Costs
from bubblescope.simulate import simulate as run

if TYPE_CHECKING:
    from bubblescope.timeline import Timeline

__all__ = ["schedules", "simulate"]

_UNITS: Final = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_TIME: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?(ns|us|µs|ms|s)")


class Span(click.ParamType):  # type: ignore[type-arg]  # generic in new versions only
    """A length of time with its unit: "10ms", "300us", "1.5s"."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Turn the text into nanoseconds."""
        if isinstance(value, int):
            return value
        found = _TIME.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"{value!r} is not like 10ms, 300us or 1.5s", param, ctx)
        return round(float(found[1]) * _UNITS[found[2]])


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
@click.option("--forward", type=Span(), default="10ms", show_default=True, help="Forward.")
@click.option(
    "--backward-input", type=Span(), default="10ms", show_default=True, help="Input gradient."
)
@click.option(
    "--backward-weight", type=Span(), default="10ms", show_default=True, help="Weight gradient."
)
@click.option("--backward", type=Span(), help="Whole backward; the sum of its parts by default.")
@click.option(
    "--forward-backward",
    type=Span(),
    help="Overlapped forward and whole backward (DualPipe); their sum by default.",
)
@click.option(
    "--comm", type=Span(), default="0ms", show_default=True, help="Transfer between devices."
)
@click.option("--sync", type=Span(), help="What all do together before the optimizer.")
@click.option("--optimizer", type=Span(), default="0ms", show_default=True, help="Optimizer.")
@click.option(
    "--memory", type=float, metavar="N", help="Activations a device may hold, for zb-auto."
)
@click.option(
    "--weight-memory",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="Share of a forward's activations that its weight gradient still needs.",
)
@click.option("--steps", type=click.IntRange(1), default=1, show_default=True, help="Steps.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/report.md).")
@click.option(
    "--to", "fmt", type=click.Choice(list(exports.FORMATS)), help="Also write this format."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write.")
@click.option(
    "--plan", "plan_file", type=click.Path(path_type=Path), help="Also write the plan as CSV."
)
def simulate(
    schedule: str,
    compare: str | None,
    weight_memory: float,
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
    wanted = _Wanted(
        options["devices"],
        options["microbatches"],
        options["chunks"],
        options["memory"],
        weight_memory,
        Times(
            options["forward"],
            options["backward_input"],
            options["backward_weight"],
            options["comm"],
        ),
        options["backward"],
        options["forward_backward"],
        options["sync"],
        options["optimizer"],
        options["steps"],
    )
    for path in filter(None, (output, plan_file)):
        writable(path)
    if compare is not None:
        _compare(compare.split(","), wanted, output, as_json=as_json)
        return
    plan = wanted.plan(schedule)
    timeline = wanted.run(plan)
    memory = plan.peak_memory(weight_memory)
    # What is searched or read from a file is not among the schedules that are recognised anyway.
    known = plan.name in SCHEDULES and not SCHEDULES[plan.name].searched
    also = [] if known else [plan]
    found = Report.of(timeline, also=also)
    if as_json:
        said = {**found.to_dict(), "peak_memory": memory.tolist()}
        click.echo(msgspec.json.format(msgspec.json.encode(said)).decode())
    else:
        out.print(found)
        out.print(_memory(plan, memory.tolist()))
    if plan_file is not None:
        torch_csv.write(plan, plan_file)
        if not as_json:
            wrote(plan_file)
    if output is not None and fmt is None:
        fmt = _format_of(output)
    if fmt is not None:
        target = output or Path(f"{plan.name}{exports.FORMATS[fmt].suffix}")
        with writing(target, quiet=as_json):
            if fmt == "html":  # the one format that names the schedule
                timeline.to_html(target, also=also)
            else:
                exports.export(timeline, fmt, target)
        if not as_json:
            wrote(target)


def _format_of(path: Path) -> str:
    """Return the format that a file's ending stands for."""
    for name, known in sorted(exports.FORMATS.items(), key=lambda item: -len(item[1].suffix)):
        if path.name.endswith(known.suffix):
            return name
    raise click.UsageError(f"{path.name} has the ending of no format; say which with --to")


def _memory(plan: Plan, memory: list[float]) -> Text:
    each = ", ".join(f"{one:g}" for one in memory[:16]) + (", ..." if len(memory) > 16 else "")
    copies = f", {plan.copies:g} copies of the parameters" if plan.copies > 1 else ""
    return Text.assemble(
        ("Peak memory", "bold"),
        f"  {max(memory):g} micro-batches' activations at most (device by device: {each}){copies}",
    )


class _Row(NamedTuple):
    name: str
    timeline: Timeline | None
    makespan_ns: int
    makespan: float | None
    span: float | None
    memory: float
    copies: float
    problem: str


def _compare(names: list[str], wanted: _Wanted, output: Path | None, *, as_json: bool) -> None:
    rows = [_row(name.strip(), wanted) for name in names]
    done = [row for row in rows if row.timeline is not None]
    if not done:
        raise ScheduleError("; ".join(row.problem for row in rows))
    fastest = min(row.makespan_ns for row in done)
    if as_json:
        said = [
            {
                "schedule": row.name,
                "makespan_ns": row.makespan_ns if row.timeline else None,
                "makespan": row.makespan,
                "span": row.span,
                "peak_memory": row.memory if row.timeline else None,
                "copies": row.copies if row.timeline else None,
                "problem": row.problem or None,
            }
            for row in rows
        ]
        click.echo(msgspec.json.format(msgspec.json.encode(said)).decode())
    else:
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        table.add_column("schedule", no_wrap=True, min_width=max(map(len, names)))
        for column in ("step", "", "makespan", "span", "memory", "parameters"):
            table.add_column(column, justify="right", no_wrap=True)
        for row in rows:
            if row.timeline is None:
                continue
            table.add_row(
                row.name,
                units.duration(row.makespan_ns),
                f"+{row.makespan_ns / fastest - 1:.1%}" if row.makespan_ns > fastest else "fastest",
                units.percent(row.makespan),
                units.percent(row.span),
                f"{row.memory:.4g}",
                f"{row.copies:g} x",
            )
        out.print(table)
        for row in rows:
            if row.problem:
                out.print(Text(f"{row.name}: {row.problem}", "yellow"), soft_wrap=True)
        out.print(
            Text(
                "makespan, span: bubble rates. memory: most activations of any device, in "
                "micro-batches of a p-th of the model",
                "dim",
            )
        )
    target = output or Path("schedules.svg")
    with replacing(target) as partial:
        timelines = [row.timeline for row in rows if row.timeline is not None]
        partial.write_text(svg.compare(timelines), encoding="utf-8")
    if not as_json:
        wrote(target)


def _row(name: str, wanted: _Wanted) -> _Row:
    """Simulate one of the schedules to compare; one that is impossible says why."""
    if not _is_file(name):
        named(name)  # what is no schedule is a mistake, not one that is impossible
    try:
        plan = wanted.plan(name)
    except ScheduleError as error:
        return _Row(name, None, 0, None, None, 0, 0, str(error))
    timeline = wanted.run(plan)
    rates = measure(timeline)
    table = rates.table
    length = int((table["makespan_ns"].sum() or 0) // plan.devices)
    overall = rates.overall
    memory = float(plan.peak_memory(wanted.weight_share).max())
    return _Row(
        plan.name, timeline, length, overall.makespan, overall.span, memory, plan.copies, ""
    )


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def schedules(as_json: bool) -> None:
    """List the schedules with their formulas and where they were published.

    Bubble: idle time of a device in a step, without transfers. Memory: most activations on device
    i, in micro-batches of a p-th of the model. p devices, m micro-batches, v chunks; f, b, w: times
    of forward, input gradient and weight gradient; fb of an overlapped pair; Mw: share of the
    activations that a weight gradient needs.
    """
    if as_json:
        said = [
            {name: getattr(one, name) for name in one.__struct_fields__ if name != "make"}
            for one in SCHEDULES.values()
        ]
        click.echo(msgspec.json.format(msgspec.json.encode(said)).decode())
        return
    for one in SCHEDULES.values():
        chunks = "" if one.chunks == "1" else f"  {one.chunks} chunks on a device"
        out.print(Text.assemble((one.name, "bold"), f"  {one.title}", (chunks, "dim")))
        if one.bubble:
            exact = {"": "approximate", "True": "exact"}.get(one.exact, f"exact if {one.exact}")
            out.print(
                Text.assemble("  bubble  ", one.bubble, (f"  of the {one.over}, {exact}", "dim"))
            )
        if one.memory:
            out.print(Text.assemble("  memory  ", one.memory))
        out.print(Text(f"  {one.source}", "dim"), soft_wrap=True)
