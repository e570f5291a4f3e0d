"""What users of the library hold: the traces of a run, and one method for each question about it.

Each question is a function here as well, for those who ask only one: it takes what `load` takes, or
what `load` returned.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bubblescope.analysis.picture_data import pictured
from bubblescope.model.errors import BubblescopeError, TimelineError
from bubblescope.model.progress import SILENT
from bubblescope.render.formats import agree, checked, format_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeAlias

    import pandas as pd
    import polars as pl
    from typing_extensions import Unpack

    from bubblescope.analysis.compare import Comparison as Compared
    from bubblescope.analysis.efficiency import Said
    from bubblescope.analysis.picture_data import Pictured
    from bubblescope.analysis.predictions import Question
    from bubblescope.model.progress import Progress
    from bubblescope.model.provenance import Run
    from bubblescope.model.timeline import Timeline
    from bubblescope.render.html.notebook_frame import FramedPage
    from bubblescope.render.picture.svg import Picture
    from bubblescope.render.text.compare import Comparison
    from bubblescope.render.text.info import Info
    from bubblescope.render.text.kernels import Kernels
    from bubblescope.render.text.report import Report
    from bubblescope.render.text.stragglers import Stragglers
    from bubblescope.render.text.stragglers_in_collectives import LateRanks
    from bubblescope.render.text.whatif import Predictions
    from bubblescope.render.text.why import Explanation
    from bubblescope.schedules.plan import Plan
    from bubblescope.sources.source import LoadOptions

    PathLike: TypeAlias = str | Path
    Paths: TypeAlias = PathLike | Iterable[PathLike]


class Trace:
    """The traces of one run, and what can be asked of it.

    `load` returns one; `Trace(timeline)` makes one of tasks that did not come from a trace.

    Args:
        timeline: Every task on every device, on one clock.
        paths: The files, folders and patterns that it was read from, as they were given.
        how: How they were read, if they can be read again.

    Attributes:
        timeline: Every task on every device, on one clock.
        paths: Where it was read from.
    """

    __slots__ = ("_how", "paths", "timeline")

    timeline: Timeline
    paths: tuple[str, ...]

    def __init__(
        self,
        timeline: Timeline,
        paths: Iterable[PathLike] = (),
        how: LoadOptions | None = None,
    ) -> None:
        self.timeline = timeline
        self.paths = tuple(map(str, paths))
        self._how = how

    @property
    def tasks(self) -> pl.DataFrame:
        """The tasks; docs/model.md says what each column means."""
        return self.timeline.tasks

    @property
    def ranks(self) -> pl.DataFrame:
        """The ranks."""
        return self.timeline.ranks

    @property
    def counters(self) -> pl.DataFrame:
        """What was measured beside the tasks, such as memory in use."""
        return self.timeline.counters

    @property
    def run(self) -> Run:
        """Where the tasks came from and how far to trust them."""
        return self.timeline.run

    @property
    def steps(self) -> list[int]:
        """The training steps that have tasks, ascending."""
        return self.timeline.steps

    @property
    def start_ns(self) -> int:
        """Start of the first task, or 0 if there is none."""
        return self.timeline.start_ns

    @property
    def end_ns(self) -> int:
        """End of the last task, or 0 if there is none."""
        return self.timeline.end_ns

    @property
    def duration_ns(self) -> int:
        """From the first start to the last end."""
        return self.timeline.duration_ns

    def __len__(self) -> int:
        return len(self.timeline)

    def __eq__(self, other: object) -> bool:
        return self.timeline == other.timeline if isinstance(other, Trace) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # frames are mutable: equal by value, never a key

    def __repr__(self) -> str:
        return repr(self.timeline).replace("Timeline", "Trace", 1)

    def __str__(self) -> str:
        return str(self.info())

    def _repr_html_(self) -> str:
        return (self.report() if len(self) else self.info())._repr_html_()

    def slice(
        self,
        *,
        steps: Iterable[int] | None = None,
        ranks: Iterable[int] | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> Trace:
        """Return the part of the run that meets every given condition; see `Timeline.slice`.

        Raises:
            TimelineError: A step or rank is not in the run.
        """
        part = self.timeline.slice(steps=steps, ranks=ranks, start_ns=start_ns, end_ns=end_ns)
        return Trace(part, self.paths)

    def save(self, path: PathLike) -> Path:
        """Write everything to one Parquet file, which `bubblescope.load` reads back."""
        agree(Path(path), "parquet")
        return self.timeline.save(path)

    def redact(self, path: PathLike, *, key: bytes | None = None) -> Path:
        """Write the run as `save` does, without what only its owner may read; docs/redact.md lists it.

        Kernels are kept if the run can be read once more, or was read with them.

        Args:
            path: The file to write.
            key: What the pseudonyms depend on: runs of one key can be compared. Chance if left out.
        """
        from bubblescope.analysis.redaction import Pseudonyms, redacted  # noqa: PLC0415

        agree(Path(path), "parquet")
        return redacted(self._with_kernels(), Pseudonyms(key)).save(path)

    def info(self) -> Info:
        """Return what the traces are: format, hosts, ranks, steps, what was inferred, what was lost."""
        from bubblescope.render.text.info import Info  # noqa: PLC0415  a question loads its own only

        return Info.of(self.timeline)

    def report(self, *, also: Sequence[Plan] = (), **said: Unpack[Said]) -> Report:
        """Return the bubble rates and the facts around them.

        Args:
            also: Schedules to recognise besides the known ones.
            said: What MFU needs beside the traces, as `bubblescope.analysis.efficiency.Workload.of`
                takes it: model, tokens, sequence_length, convention, devices, peak.

        Raises:
            ModelError: It makes no sense, or something is missing.
        """
        from bubblescope.analysis.efficiency import Workload  # noqa: PLC0415
        from bubblescope.render.text.report import Report  # noqa: PLC0415

        return Report.of(self.timeline, also=also, workload=Workload.of(**said))

    def why(self, *, language: str = "en", also: Sequence[Plan] = ()) -> Explanation:
        """Return why the devices were idle, and what would help.

        Args:
            language: "en" or "zh".
            also: Schedules to recognise besides the known ones.

        Raises:
            TimelineError: Its ranks share no clock, or it has no pipeline tasks.
        """
        from bubblescope.render.text.why import Explanation  # noqa: PLC0415

        return Explanation.of(self.timeline, also=also, language=language)

    def whatif(
        self, *questions: Question, memory: float | None = None, also: Sequence[Plan] = ()
    ) -> Predictions:
        """Return what the run would have taken; without a question, what would make it faster.

        Args:
            questions: What to ask, such as `lambda run: run.schedule("zb-v")`.
                `bubblescope.analysis.whatif.WhatIf` says what can be asked, and
                `bubblescope.analysis.whatif_device.DeviceWhatIf` where the run has no pipeline.
            memory: For advice: activations that a device may hold, in micro-batches of a p-th of the
                model; what the run's own schedule holds if left out.
            also: Schedules to recognise besides the known ones.

        Raises:
            TimelineError: It has neither pipeline tasks of ranks that share a clock nor device work.
            ScheduleError: A question makes no sense for the run.
        """
        from bubblescope.render.text.whatif import Predictions  # noqa: PLC0415

        return Predictions.of(self.timeline, questions, memory=memory, also=also)

    def stragglers(self) -> Stragglers | LateRanks:
        """Return what slow operations, stages and workers cost the job.

        Without a pipeline: which ranks come late to collectives.

        Raises:
            TimelineError: No step can be replayed, and ranks cannot be compared; the message says why.
            ScheduleError: Operations wait for each other in a circle.
        """
        from bubblescope.render.text.stragglers import slowed  # noqa: PLC0415

        return slowed(self.timeline)

    def compare(self, after: Trace, *, also: Sequence[Plan] = ()) -> Comparison:
        """Return what changed from this run to another, and whether it is more than noise.

        Args:
            after: The run that may have changed.
            also: Schedules to recognise besides the known ones.
        """
        from bubblescope.render.text.compare import Comparison  # noqa: PLC0415

        labels = (_label(self), _label(after))
        return Comparison.of(self.timeline, after.timeline, labels=labels, also=also)

    def kernels(self, *, by: Sequence[str] | None = None, like: Trace | None = None) -> Kernels:
        """Return what ran on the devices: how often, how long, and what makes one rank slower.

        Kernels are kept only if asked for, by `load(..., activities=True)`; a run that was read without
        them is read once more.

        Args:
            by: What to tell rows apart by: any of stage, kind, module, use, rank, name and full; if
                left out, stage, kind and name, and beside another run the name.
            like: Another run, to set beside it.

        Raises:
            TimelineError: It has no kernels, and cannot be read once more.
        """
        from bubblescope.render.text.kernels import Kernels  # noqa: PLC0415

        labels = (_label(self), _label(like)) if like is not None else ("A", "B")
        other = None if like is None else like._with_kernels()  # noqa: SLF001  its own class
        return Kernels.of(self._with_kernels(), by=by, like=other, labels=labels)

    def _with_kernels(self) -> Timeline:
        """Return the run with its kernels, read once more if need be and if that is possible."""
        if self.timeline.activities.height or self._how is None:
            return self.timeline
        from bubblescope import sources  # noqa: PLC0415

        how: LoadOptions = {**self._how, "activities": True}
        return sources.load(*self.paths, **how)

    def picture(
        self,
        *,
        beside: str | None = None,
        look: str = "full",
        width: float | str | None = None,
        title: str = "",
        also: Sequence[Plan] = (),
    ) -> Picture:
        """Return a picture of the run, which a notebook shows.

        Args:
            beside: What to set the run below, on one axis of time: "ideal", its own tasks without
                waiting; "plan", its schedule with every operation as long as the mean of its kind; or
                another schedule by its name.
            look: "full", or "paper": devices and micro-batches only, as papers show schedules.
            width: A number of pixels, or text such as "84mm", "column" or "page".
            title: What stands above it.
            also: Schedules to recognise besides the known ones.

        Raises:
            ScheduleError: The run's schedule is not recognised, or `beside` is no schedule for it.
            TimelineError: Its ranks share no clock, or it has no pipeline tasks.
            BubblescopeError: The width is none or too small, or there is no such look.
        """
        from bubblescope.render.picture.svg import Picture, render  # noqa: PLC0415

        shown = _pictured(self.timeline, beside, also, look)
        return Picture(render(shown, width=width, look=look, title=title))

    def view(
        self,
        path: PathLike,
        *,
        title: str | None = None,
        also: Sequence[Plan] = (),
        whatif: Question | None = None,
        beside: str | None = None,
        layers: Sequence[int] | None = None,
        against: Trace | None = None,
        kernels: bool = False,
    ) -> Path:
        """Write the interactive timeline as one HTML file that opens offline.

        Args:
            path: The file to write.
            title: Heading; by default the names of the traces.
            also: Schedules to recognise besides the known ones.
            whatif: What to ask of the run, as of `whatif`; each rank then has a lane with the answer.
            beside: What to set the run below, as of `picture`.
            layers: How many layers each stage has, for what-ifs that move some.
            against: Another run, whose ranks stand below those of this one; the page says what changed,
                as of `compare`, and what each task gained or lost.
            kernels: Whether tasks can be unfolded into their kernels; a run that was read without them
                is read once more.

        Raises:
            TimelineError: A what-if is asked for of a run whose ranks share no clock or that has no
                pipeline tasks.
            ScheduleError: The what-if makes no sense for the run.
            BubblescopeError: There are more kernels than a page can hold.
        """
        options: dict[str, Any] = {} if title is None else {"title": title}
        if kernels:
            options["kernels"] = True
        shown = self._with_kernels() if kernels else self.timeline
        return write(
            shown,
            Path(path),
            to="html",
            also=also,
            whatif=whatif,
            beside=beside,
            layers=layers,
            read_again=None if also else self._read_again(),
            against=None if against is None else self.compare(against, also=also),
            **options,
        )

    def show(
        self,
        *,
        height: int = 640,
        title: str | None = None,
        also: Sequence[Plan] = (),
        whatif: Question | None = None,
        beside: str | None = None,
        layers: Sequence[int] | None = None,
        against: Trace | None = None,
        kernels: bool = False,
    ) -> FramedPage:
        """Return the interactive timeline for a notebook, which shows it in a frame.

        The notebook's file then holds the page: some MB for a million tasks, which `view` writes to a
        file of its own instead.

        Args:
            height: Of the frame, in pixels.
            title: Heading; by default the names of the traces.
            also: As of `view`, and so are the others.
            whatif: What to ask of the run.
            beside: What to set the run below.
            layers: How many layers each stage has.
            against: Another run.
            kernels: Whether tasks can be unfolded into their kernels.

        Raises:
            TimelineError: As of `view`.
            ScheduleError: As of `view`.
            BubblescopeError: There are more kernels than a page can hold.
        """
        from bubblescope.analysis.view import View  # noqa: PLC0415  only the page needs so much
        from bubblescope.render.html import page  # noqa: PLC0415
        from bubblescope.render.html.notebook_frame import FramedPage  # noqa: PLC0415

        shown = View.of(
            self._with_kernels() if kernels else self.timeline,
            also=also,
            whatif=whatif,
            beside=beside,
            layers=layers,
            read_again=None if also else self._read_again(),
            against=None if against is None else self.compare(against, also=also),
        )
        made = page.render(shown, title=title, kernels=kernels)
        return FramedPage(made, height=height, title=title or _label(self))

    def to_pandas(self, table: str = "tasks") -> pd.DataFrame:
        """Return a table as pandas has it: whole numbers stay whole, also where some are missing.

        Args:
            table: "tasks", "ranks" or another table of the timeline, such as "budget"; docs/model.md
                says what their columns mean.

        Returns:
            Columns that are never missing are NumPy's, such as int64 of `start_ns`; other whole numbers
            are pandas' own, such as Int32; texts are of the type `string`.

        Raises:
            BubblescopeError: There is no such table, or pandas is not installed.
        """
        from bubblescope.model.timeline import table_of  # noqa: PLC0415
        from bubblescope.render.data_frames import to_pandas  # noqa: PLC0415

        return to_pandas(*table_of(self.timeline, table))

    def _read_again(self) -> list[str] | None:
        """Return the arguments with which a command reads the run; None if none does."""
        if self._how is None:
            return None
        names = self._how.get("names") or ()
        given: list[tuple[str, Any]] = [
            ("--names", name)
            for name in ([names] if isinstance(names, (str, os.PathLike)) else names)
        ]
        kinds = (self._how.get("kinds") or {}).items()
        given += [("--kind", f"{word}={kind}") for word, kind in kinds]
        how = {name: self._how.get(name) for name in ("source", "run", "attempt", "clock")}
        given += [(f"--{name}", value) for name, value in how.items() if value is not None]
        return [*self.paths, *(str(part) for option in given for part in option)]

    def export(
        self,
        path: PathLike,
        *,
        to: str | None = None,
        kernels: bool = False,
        beside: str | None = None,
        also: Sequence[Plan] = (),
        **options: Any,
    ) -> Path:
        """Write the run for another program.

        Args:
            path: The file to write.
            to: One of `bubblescope.render.formats.FORMATS`; by default, what the file's ending stands
                for.
            kernels: For traces, tables and the page: whether every kernel, copy and fill is to be in
                it, as of `kernels`.
            beside: For the page and pictures: what to set the run below, as of `picture`.
            also: For what names the schedule: schedules to recognise besides the known ones.
            options: Those that the format has, such as the `width` of a picture.

        Raises:
            BubblescopeError: There is no such format, it has no such option, or a value is not one of
                the option's.
            TimelineError: Kernels are asked for of a run that has none.
            OSError: The file cannot be written; what was there before is left as it was.
        """
        timeline, path = self.timeline, Path(path)
        if kernels:
            options["kernels"] = True
            checked(to or format_of(path), options)  # before a run is read once more
            timeline = self._with_kernels()
        return write(timeline, path, to=to, beside=beside, also=also, **options)


def write(
    timeline: Timeline,
    path: Path,
    *,
    to: str | None = None,
    also: Sequence[Plan] = (),
    whatif: Question | None = None,
    beside: str | None = None,
    layers: Sequence[int] | None = None,
    read_again: Sequence[str] | None = None,
    against: Compared | None = None,
    progress: Progress = SILENT,
    **options: Any,
) -> Path:
    """Work out what a format shows of a run, and write it: the one way to a file. See `Trace.export`.

    Args:
        timeline: The run.
        path: The file to write.
        to: Name of the format; by default, what the file's ending stands for.
        also: For formats that name the schedule: schedules to recognise besides the known ones.
        whatif: For the page: what to show beside what was measured.
        beside: For the page and pictures: what to set the run below, on one axis of time: "ideal",
            "plan" or a schedule, as `bubblescope.analysis.reference.reference` has them.
        layers: For the page: how many layers each stage has.
        read_again: For the page: the arguments with which a command reads the run; None if none does.
        against: For the page: what changed from the run to another, to be shown below it.
        progress: Is told what is being worked out and written.
        options: Those that the format has.
    """
    name = to or format_of(path)
    chosen = checked(name, options)
    agree(path, name)
    if options.get("kernels") and chosen.takes != "view" and not timeline.activities.height:
        from bubblescope.analysis.kernels import NO_KERNELS  # noqa: PLC0415

        raise TimelineError(NO_KERNELS)
    if whatif is not None and chosen.takes != "view":
        raise BubblescopeError(f"{name} cannot show a what-if; html can")
    if against is not None and chosen.takes != "view":
        raise BubblescopeError(f"{name} cannot show two runs; html can")
    if beside is not None and chosen.takes == "timeline":
        raise BubblescopeError(f"{name} cannot show a schedule beside a run; html and pictures can")
    shown: Any = timeline
    if chosen.takes == "pictured":
        shown = _pictured(timeline, beside, also, options.get("look"), progress)
    elif chosen.takes == "view":
        from bubblescope.analysis.view import View  # noqa: PLC0415  only the page needs so much

        shown = View.of(
            timeline,
            also=also,
            whatif=whatif,
            beside=beside,
            layers=layers,
            read_again=read_again,
            against=against,
            progress=progress,
        )
    progress.begin(f"writing {path.name}")
    chosen.writer()(shown, path, **options)
    return path


def _pictured(
    timeline: Timeline,
    beside: str | None,
    also: Sequence[Plan],
    look: str | None,
    progress: Progress = SILENT,
) -> Pictured:
    """Return what a picture shows of a run, beside something if that is asked for.

    Causes of idle time are looked for where there is room for them.
    """
    from bubblescope.render.picture.blocks import MOST_BLOCKS  # noqa: PLC0415

    explained = look != "paper" and 0 < len(timeline) <= MOST_BLOCKS
    if beside is None and not explained:
        return pictured(timeline)
    from bubblescope.analysis.reference import reference  # noqa: PLC0415  needs the whole analysis
    from bubblescope.analysis.study import study  # noqa: PLC0415

    known = study(timeline, also, progress)
    above = None if beside is None else reference(timeline, beside, known, also)
    return pictured(timeline, beside=above, ledger=known.ledger if explained else None)


def load(*paths: Paths, **how: Unpack[LoadOptions]) -> Trace:
    """Read the traces of one run, whatever made them; see `bubblescope.sources.load`.

    Args:
        paths: Files, folders or glob patterns, or lists of them; together they are one run.
        how: As `bubblescope.sources.source.LoadOptions` says: names, source, run, clock, ...

    Returns:
        The run on one clock. It has no tasks where the traces hold no pipeline ranges; its
        `run.contents` then says what they do hold.

    Raises:
        SourceError: A path is missing, unreadable, damaged or of no known format.
        TimelineError: Traces of several formats claim the same rank.
        NamesError: The pattern is not usable.
    """
    from bubblescope import sources  # noqa: PLC0415  a run that was made in memory needs none

    flat = [one for path in paths for one in _listed(path)]
    return Trace(sources.load(*flat, **how), flat, how)


def info(run: Trace | Paths) -> Info:
    """Return what traces are; see `Trace.info`."""
    return _trace(run).info()


def report(run: Trace | Paths, *, also: Sequence[Plan] = (), **said: Unpack[Said]) -> Report:
    """Return the bubble rates of a run and the facts around them; see `Trace.report`."""
    return _trace(run).report(also=also, **said)


def why(run: Trace | Paths, *, language: str = "en", also: Sequence[Plan] = ()) -> Explanation:
    """Return why the devices of a run were idle; see `Trace.why`."""
    return _trace(run).why(language=language, also=also)


def whatif(
    run: Trace | Paths,
    *questions: Question,
    memory: float | None = None,
    also: Sequence[Plan] = (),
) -> Predictions:
    """Return what a run would have taken, had something been different; see `Trace.whatif`."""
    return _trace(run).whatif(*questions, memory=memory, also=also)


def stragglers(run: Trace | Paths) -> Stragglers | LateRanks:
    """Return what slow operations, stages and workers cost a job; see `Trace.stragglers`."""
    return _trace(run).stragglers()


def kernels(
    run: Trace | Paths,
    *,
    by: Sequence[str] | None = None,
    like: Trace | Paths | None = None,
) -> Kernels:
    """Return what ran on the devices of a run; see `Trace.kernels`."""
    other = None if like is None else _trace(like, activities=True)
    return _trace(run, activities=True).kernels(by=by, like=other)


def compare(
    before: Trace | Paths, after: Trace | Paths, *, also: Sequence[Plan] = ()
) -> Comparison:
    """Return what changed between two runs; see `Trace.compare`."""
    return _trace(before).compare(_trace(after), also=also)


def picture(
    run: Trace | Paths,
    *,
    beside: str | None = None,
    look: str = "full",
    width: float | str | None = None,
    title: str = "",
    also: Sequence[Plan] = (),
) -> Picture:
    """Return a picture of a run, which a notebook shows; see `Trace.picture`."""
    return _trace(run).picture(beside=beside, look=look, width=width, title=title, also=also)


def view(
    run: Trace | Paths,
    path: PathLike,
    *,
    title: str | None = None,
    also: Sequence[Plan] = (),
    whatif: Question | None = None,
    beside: str | None = None,
    layers: Sequence[int] | None = None,
    against: Trace | Paths | None = None,
    kernels: bool = False,
) -> Path:
    """Write the interactive timeline of a run; see `Trace.view`."""
    found = _trace(run, activities=kernels)
    return found.view(
        path,
        title=title,
        also=also,
        whatif=whatif,
        beside=beside,
        layers=layers,
        against=None if against is None else _trace(against),
        kernels=kernels,
    )


def show(
    run: Trace | Paths, *, height: int = 640, kernels: bool = False, **shown: Any
) -> FramedPage:
    """Return the interactive timeline of a run for a notebook; see `Trace.show`."""
    return _trace(run, activities=kernels).show(height=height, kernels=kernels, **shown)


def export(run: Trace | Paths, path: PathLike, *, to: str | None = None, **options: Any) -> Path:
    """Write a run for another program; see `Trace.export`."""
    return _trace(run).export(path, to=to, **options)


def simulate(
    schedule: str | Plan,
    *,
    devices: int | None = None,
    microbatches: int | None = None,
    chunks: int | None = None,
    forward_ns: int = 10_000_000,
    backward_input_ns: int = 10_000_000,
    backward_weight_ns: int = 10_000_000,
    transfer_ns: int = 0,
    optimizer_ns: int = 0,
    steps: int = 1,
) -> Trace:
    """Return a schedule as if it had been run.

    All times are of one micro-batch on one device; schedules with several chunks on a device split them
    evenly. `bubblescope.schedules.simulate` takes other costs.

    Args:
        schedule: Name of one of `bubblescope.schedules.SCHEDULES`, or what others call it, or a plan.
        devices: Pipeline devices p; a plan says how many.
        microbatches: Micro-batches of a step m; a plan says how many.
        chunks: Model chunks on each device, where the schedule leaves that open; 2 if left out.
        forward_ns: How long a forward takes.
        backward_input_ns: How long an input gradient takes.
        backward_weight_ns: How long a weight gradient takes; a whole backward takes both.
        transfer_ns: How long results are on their way between devices.
        optimizer_ns: How long the optimizer takes.
        steps: How many steps to run.

    Raises:
        ScheduleError: There is no such schedule, or it is not for these numbers.
        BubblescopeError: A name is given without numbers, or a plan with others than its own.
    """
    from bubblescope.schedules import generate, named  # noqa: PLC0415
    from bubblescope.schedules.simulate import Costs  # noqa: PLC0415
    from bubblescope.schedules.simulate import simulate as simulated  # noqa: PLC0415
    from bubblescope.schedules.zb_auto import Times  # noqa: PLC0415

    times = Times(forward_ns, backward_input_ns, backward_weight_ns, transfer_ns)
    if isinstance(schedule, str):
        if devices is None or microbatches is None:
            raise BubblescopeError("give devices and microbatches")
        any_chunks = named(schedule).any_chunks
        schedule = generate(
            schedule, devices, microbatches, chunks=chunks if any_chunks else None, times=times
        )
    elif (devices or schedule.devices, microbatches or schedule.microbatches) != (
        schedule.devices,
        schedule.microbatches,
    ):
        raise BubblescopeError(
            f"the plan {schedule.name} is for {schedule.devices} devices and {schedule.microbatches} "
            "micro-batches; leave devices and microbatches out"
        )
    costs = Costs.shared(schedule, times, optimizer_ns=optimizer_ns)
    return Trace(simulated(schedule, costs, steps=steps))


_TEXTS: Final = (str, Path)


def _listed(paths: Paths) -> list[PathLike]:
    return [paths] if isinstance(paths, _TEXTS) else list(paths)


def _trace(run: Trace | Paths, *, activities: bool = False) -> Trace:
    return run if isinstance(run, Trace) else load(run, activities=activities)


def _label(run: Trace) -> str:
    return ", ".join(run.paths) or "in memory"
