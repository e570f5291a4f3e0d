"""`bubblescope simulate`: pipelines that nobody has run yet."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from rich.text import Text

from bubblescope.analysis.picture_data import Pictured, pictured
from bubblescope.analysis.step_lengths import phase_lengths, steady_ns
from bubblescope.cli.console import Bar, out, print_json, writable, writing, wrote
from bubblescope.cli.help_conventions import example, json_option
from bubblescope.cli.option_types import Parsed
from bubblescope.cli.pictures import file_format, of_pictures, options_of
from bubblescope.cli.reading import planned
from bubblescope.facade import write
from bubblescope.model import units
from bubblescope.model.errors import ScheduleError
from bubblescope.render.formats import FORMATS, agree, picture_format_of, write_picture
from bubblescope.render.text.report import Report
from bubblescope.render.text.simulate import SCHEMA, Row, comparison, memory_line, step_line
from bubblescope.schedules import SCHEDULES, generate, named, torch_csv
from bubblescope.schedules.simulate import ORDER_ONLY, Costs
from bubblescope.schedules.simulate import simulate as run
from bubblescope.schedules.zb_auto import Times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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
        """Return the plan of a schedule by its name."""
        if self.devices is None or self.microbatches is None:
            raise click.UsageError("give --stages and --microbatches")
        known = named(schedule)
        return generate(
            known.name,
            self.devices,
            self.microbatches,
            chunks=self.chunks if known.any_chunks else None,
            times=self.times,
            memory=self.memory if known.name == "zb-auto" else None,
            weight_share=self.weight_share,
        )

    def beside(self, plans: Iterable[Plan]) -> _Wanted:
        """Return the same with the sizes of plans from files, where no option gives them.

        Raises:
            click.UsageError: A plan has other sizes than the options say.
        """
        wanted = self
        for plan in plans:
            for asked, size, flag, what in (
                (self.devices, plan.devices, "--stages", "devices"),
                (self.microbatches, plan.microbatches, "--microbatches", "micro-batches"),
                (self.chunks, plan.chunks, "--chunks", "chunks on each device"),
            ):
                if asked not in (None, size):
                    raise click.UsageError(
                        f"the plan {plan.name} is for {size} {what}, and {flag} says {asked}; leave "
                        "the option out"
                    )
            wanted = wanted._replace(
                devices=wanted.devices or plan.devices,
                microbatches=wanted.microbatches or plan.microbatches,
            )
        return wanted

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


class _Plans:
    """Schedules by their names: those that are known, and those from files.

    Args:
        given: Plans of the option `--plan`.
    """

    def __init__(self, given: Sequence[Plan]) -> None:
        self.own = {plan.name: plan for plan in given}

    def add(self, name: str) -> str:
        """Return the name of a schedule; that of a CSV file is read.

        Raises:
            ScheduleError: There is no such schedule, or the file is none.
        """
        if name in self.own:
            return name
        if Path(name).suffix != ".csv":
            return named(name).name
        plan = torch_csv.read(name)
        self.own[plan.name] = plan
        return plan.name

    def alone(self, schedule: str | None) -> str:
        """Return the schedule to simulate where only one is: as asked for, the one plan, or 1F1B."""
        if schedule is None and len(self.own) > 1:
            raise click.UsageError(
                f"--plan gives {len(self.own)} schedules; name one with --schedule, or set them "
                f"beside each other with --compare {','.join(self.own)}"
            )
        return self.add(next(iter(self.own), _DEFAULT) if schedule is None else schedule)


_DEFAULT: Final = "1f1b"


def _time(flag: str, meaning: str, default: str | None = None) -> Callable[[Any], Any]:
    """Return an option that takes a length of time with its unit: "10ms", "300us", "1.5s"."""
    name = f"{flag.removeprefix('--').replace('-', '_')}_ns"
    kind = Parsed("time", units.nanoseconds)
    return click.option(flag, name, type=kind, default=default, show_default=True, help=meaning)


@click.command(
    epilog=example(
        "bubblescope simulate --schedule zb-v --stages 8 --microbatches 32",
        "bubblescope simulate --compare 1f1b,zb-h1 --stages 8 --microbatches 32",
    )
)
@click.option(
    "--schedule",
    metavar="NAME",
    help="One of `bubblescope schedules`, or one of --plan, by the name of its file; 1f1b by default.",
)
@click.option(
    "--compare",
    metavar="NAME,NAME,...",
    help="Compare several schedules, and those of --plan: a table and a picture.",
)
@click.option("--stages", "devices", type=int, metavar="P", help="Devices of the pipeline, p.")
@click.option("--microbatches", type=int, metavar="M", help="Micro-batches in a step, m.")
@click.option("--chunks", type=int, metavar="V", help="Model chunks on each device; 2 by default.")
@_time("--forward", "Length of a forward.", "10ms")
@_time("--backward-input", "Length of an input gradient.", "10ms")
@_time("--backward-weight", "Length of a weight gradient.", "10ms")
@_time("--backward", "Length of a whole backward; the sum of its parts by default.")
@_time(
    "--forward-backward",
    "Length of an overlapped forward and backward (DualPipe); their sum by default.",
)
@_time("--comm", "Length of a transfer between devices.", "0ms")
@_time("--sync", "Length of the synchronisation of all devices before the optimizer.")
@_time("--optimizer", "Length of the optimizer.", "0ms")
@click.option(
    "--memory", type=float, metavar="N", help="Activations a device may hold, for zb-auto."
)
@click.option(
    "--weight-memory",
    "weight_share",
    type=click.FloatRange(0, 1),
    metavar="X",
    default=0.5,
    show_default=True,
    help="Share of a forward's activations that its weight gradient still needs.",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    metavar="N",
    default=1,
    show_default=True,
    help="Steps; with several, also shows how long a step takes in the steady state.",
)
@json_option
@click.option("--to", "fmt", type=click.Choice(list(FORMATS)), help="Also write this format.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write.")
@of_pictures
@click.option(
    "--save-plan",
    "plan_file",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="Also write the plan, as PyTorch's CSV; --plan reads it.",
)
@planned
def simulate(
    schedule: str | None,
    compare: str | None,
    as_json: bool,
    fmt: str | None,
    output: Path | None,
    plan_file: Path | None,
    also: tuple[Plan, ...],
    **options: Any,
) -> None:
    """Simulate a schedule and report on it as if it had run.

    All times are of one micro-batch on one device; schedules with several chunks on a device split
    them evenly.
    """
    for path in filter(None, (output, plan_file)):
        writable(path)
    if plan_file is not None:
        agree(plan_file, "csv")
    fmt = file_format(fmt, output) if compare is None else _picture_format(fmt, output)
    drawn = options_of(fmt, options)
    times = Times(**{name: options.pop(name) for name in Times._fields})
    wanted, plans = _Wanted(times=times, **options), _Plans(also)
    if compare is not None:
        if schedule is not None or plan_file is not None:
            raise click.UsageError("--compare goes neither with --schedule nor with --save-plan")
        names = [plans.add(name.strip()) for name in compare.split(",")]
        wanted = wanted.beside(plans.own.values())
        names = list(dict.fromkeys([*names, *plans.own]))
        save = _compare(names, plans, wanted, as_json=as_json)
        name = "schedules"
    else:
        plan, tried = _chosen(plans, schedule, wanted)
        save = _report(plan, tried, wanted, as_json=as_json)
        name = plan.name
        if plan_file is not None:
            torch_csv.write(plan, plan_file)
            if not as_json:
                wrote(plan_file)
    if fmt is not None:
        target = output or Path(f"{name}{FORMATS[fmt].suffix}")
        with writing(target, quiet=as_json):
            save(target, to=fmt, **drawn)
        if not as_json:
            wrote(target)


def _report(
    plan: Plan, tried: list[Plan], wanted: _Wanted, *, as_json: bool
) -> Callable[..., object]:
    """Simulate a schedule and report on it; return what writes it to a file."""
    with Bar(quiet=as_json) as bar:
        bar.begin("simulating")
        timeline = wanted.run(plan)
        found = Report.of(timeline, also=tried, progress=bar)
    memory = plan.peak_memory(wanted.weight_share)
    if as_json:
        print_json({**found.to_dict(), "peak_memory": memory.tolist()})
    else:
        out.print(found.shown())
        out.print(step_line(steady_ns(timeline)))
        out.print(memory_line(plan, memory.tolist()))
        out.print(Text(ORDER_ONLY, "dim"))
    return partial(write, timeline, also=tried)


def _picture_format(fmt: str | None, output: Path | None) -> str:
    """Return in which format to draw schedules beside each other.

    Raises:
        BubblescopeError: The file is no picture by its name.
        click.UsageError: The format is none of a picture.
    """
    if fmt is None:
        return "svg" if output is None else picture_format_of(output)
    if FORMATS[fmt].takes != "pictured":
        raise click.UsageError(f"--compare draws a picture, and {fmt} is not a picture format")
    return file_format(fmt, output) or fmt


def _chosen(plans: _Plans, schedule: str | None, wanted: _Wanted) -> tuple[Plan, list[Plan]]:
    """Return the plan to simulate, and those that the run may be recognised as besides known ones."""
    name = plans.alone(schedule)
    tried = list(plans.own.values())
    if name in plans.own:
        plan = plans.own[name]
        wanted.beside([plan])
    else:
        plan = wanted.plan(name)
        if SCHEDULES[name].searched:  # for the times at hand, so it is none of the known ones
            tried.append(plan)
    return plan, tried


def _compare(
    names: list[str], plans: _Plans, wanted: _Wanted, *, as_json: bool
) -> Callable[..., object]:
    """Simulate schedules and print a table of them; return what draws them to a file."""
    runs = []
    with Bar(quiet=as_json) as bar:
        bar.begin("simulating", len(names))
        for name in names:
            runs.append(_simulated(name, plans.own.get(name), wanted))
            bar.advance()
    rows = [row for row, _ in runs]
    drawn = [shown for _, shown in runs if shown is not None]
    if not drawn:
        raise ScheduleError("; ".join(row.problem for row in rows))
    if as_json:
        print_json(
            {"schema": SCHEMA, "steps": wanted.steps, "schedules": [row.to_dict() for row in rows]}
        )
    else:
        out.print(comparison(rows), crop=False)
    return partial(write_picture, drawn)


def _simulated(name: str, own: Plan | None, wanted: _Wanted) -> tuple[Row, Pictured | None]:
    """Simulate one of the schedules to compare; one that is impossible says why."""
    try:
        plan = own or wanted.plan(name)
        timeline = wanted.run(plan)
    except ScheduleError as error:
        return Row(name, problem=str(error)), None
    shown = pictured(timeline, title=plan.name)
    lengths = [length for length in phase_lengths(shown.rates).values() if length is not None]
    row = Row(
        plan.name,
        length_ns=round(sum(lengths) / len(lengths)) if lengths else None,
        step_ns=steady_ns(timeline),
        rates=shown.rates.overall,
        memory=float(plan.peak_memory(wanted.weight_share).max()),
        copies=plan.copies,
    )
    return row, shown
