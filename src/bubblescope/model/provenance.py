"""Where a timeline came from and how far to trust it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from bubblescope.model.decoders import prepared
from bubblescope.model.plain_text import whole


class Origin(msgspec.Struct, frozen=True):
    """One trace that went into a timeline.

    Attributes:
        format: Name of the source that read it.
        version: Version of the program or schema that wrote it, if the trace says.
        path: The file or folder, as the user named it.
        recorded_by: Whose hooks recorded it, if bubblescope did: a framework's name, "loop" for a
            training loop written by hand; None for marks set by hand.
    """

    format: str
    version: str | None
    path: str
    recorded_by: str | None = None


class Notice(msgspec.Struct, frozen=True):
    """Something the reader of a timeline must know: what was dropped, repaired or assumed.

    Attributes:
        code: Stable identifier, such as "torn-tail".
        message: One sentence for people.
        lost: How many items were dropped or could not be matched, if that can be counted.
        total: Out of how many.
    """

    code: str
    message: str
    lost: int | None = None
    total: int | None = None


def clocks_unchecked(hosts: int) -> Notice:
    """Return the warning that the clocks of several hosts were not compared."""
    return Notice(
        "clocks-unchecked",
        f"the clocks of {hosts} hosts were taken as they are; between hosts, times "
        "are only as good as their synchronisation",
    )


class NameShape(msgspec.Struct, frozen=True):
    """Range names that differ in their numbers only.

    Attributes:
        shape: The name with every number written as "#".
        example: One such name as it stands in the trace.
        count: Number of ranges.
        kind: Task kind that bubblescope takes them for, or None.
    """

    shape: str
    example: str
    count: int
    kind: str | None = None


class Contents(msgspec.Struct, frozen=True):
    """What one process of a raw trace holds, before anything is made of it.

    Attributes:
        path: The trace.
        host: Machine name, if the trace says.
        process: Process id.
        devices: Device ordinals that ran something.
        counts: Number of rows by what they are ("kernels", "copies", "ranges", ...).
        names: The shapes of its range names, most frequent first.
        rank: The rank that all of it is of, where it is of one.
        offset_ns: What was added to the times that stand in it to put them on the run's clock, before
            clocks were corrected; None of formats whose times only bubblescope reads.
        options: Options of its profiler that it shows to have been on, as that calls them
            ("ProfilerActivity.CPU"): it states them, or holds what they record. Others may have been.
    """

    path: str
    host: str | None
    process: int | None
    devices: tuple[int, ...] = ()
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    names: tuple[NameShape, ...] = ()
    rank: int | None = None
    offset_ns: int | None = None
    options: tuple[str, ...] = ()


class ClockReport(msgspec.Struct, frozen=True):
    """What is known of the clocks of a run of several hosts, or of ranks that share none.

    Attributes:
        method: "solved" (corrected), "checked" (nothing contradicts them, left as they were),
            "refused" (no clocks satisfy what was observed, left as they were) or "unbounded" (what
            was observed bounds them from one side only, left as they were).
        constraints: Pairs of moments on different clocks of which one must not come after the other.
        violations_before, violations_after: How many of them were violated as recorded, and are now,
            by more than the nanosecond that rounding makes.
        groups: Groups of clocks that bound each other from both sides.
        tightest: The pairs that were left the least room, with how much.
        drift_ppm: Host -> correction of its clock's rate, where drift was corrected.
        error_ns: How far the times of any clock's tasks may be off against the first of its group;
            None if nothing is known.
        rate_error: How far a clock's rate, and so the lengths of its tasks, may be off, as a share.
        comparable: Ranks by group of clocks; of ranks of different groups, nothing is known of how far
            their times may be off against each other. Each rank is in one group.
    """

    method: str
    constraints: int
    violations_before: int
    violations_after: int
    groups: int
    tightest: tuple[str, ...] = ()
    drift_ppm: dict[str, float] = msgspec.field(default_factory=dict)
    error_ns: int | None = None
    rate_error: float = 0.0
    comparable: tuple[tuple[int, ...], ...] = ()


class RecordedStart(msgspec.Struct, frozen=True):
    """One start of a job that recorded itself: an attempt, beside those before and after it.

    Attributes:
        attempt: Its number, from 1 on; 0 is what older versions recorded.
        path: The folder.
        read: Whether it is in the timeline.
        began_utc_ns: When its first rank began to record, by that rank's clock; None if not known.
        restart: How often the job's launcher had restarted it by then; None if it does not say.
        ranks: How many ranks recorded.
        ended: Whether all of them ended their recording in good order.
        beside: Attempts that were still being recorded to as it began, as far as is known.
    """

    attempt: int
    path: str
    read: bool
    began_utc_ns: int | None
    restart: int | None
    ranks: int
    ended: bool
    beside: tuple[int, ...] = ()


INFERRED_PASSES: Final = "inferred-passes"
"""Code of the note that structure told passes that no name states, and what would have them stated."""

STEPS_DISAGREE: Final = "steps-disagree"
"""Code of the warning that ranks' clocks or numbers of steps are wrong, so that they do not compare."""

ONE_STEP: Final = "no sign of a step boundary: all tasks taken as one step"
"""How the steps of a run were inferred of which nothing tells where one ends."""


_UNKNOWN: Final = "unknown: "
"""What stands before why stages are not known, where passes were inferred, in `Run.inferred`."""


class Run(msgspec.Struct, frozen=True):
    """Where a timeline came from and how far to trust it.

    Attributes:
        origins: The traces that were read.
        schedule: Pipeline schedule as the trace declares it; None if it does not.
        microbatches: Micro-batches per step as declared; None if not.
        world: How many ranks the run has, as far as its traces tell: what they state, or how many were
            read; None if nothing was.
        inferred: Field -> how it was inferred, for every field that no trace stated.
        warnings: What was dropped, repaired or assumed.
        notes: What to know that is no cause for worry, such as that clocks agree, or other attempts.
        contents: Inventory of the raw traces, process by process.
        common_clock: Whether the ranks share a clock. If not, each rank's times count from a zero
            of its own, and times of different ranks must not be compared.
        host_clocks: Whether, where the ranks share no clock, those of one host do.
        clock: What was found out about the clocks, if anything was.
        attempts: Every start of a recorded job, also those that were not read.
        resumed: Steps with which later starts begin, if several were read as one run: the job did not
            run just before.
    """

    origins: tuple[Origin, ...] = ()
    schedule: str | None = None
    microbatches: int | None = None
    inferred: dict[str, str] = msgspec.field(default_factory=dict)
    warnings: tuple[Notice, ...] = ()
    contents: tuple[Contents, ...] = ()
    common_clock: bool = True
    host_clocks: bool = False
    clock: ClockReport | None = None
    world: int | None = None
    attempts: tuple[RecordedStart, ...] = ()
    notes: tuple[Notice, ...] = ()
    resumed: tuple[int, ...] = ()

    @property
    def options(self) -> set[str]:
        """Options of profilers that some trace shows to have been on; see `Contents`."""
        return {option for content in self.contents for option in content.options}

    @property
    def unplaced(self) -> str | None:
        """Why it is not known which stages run the passes that were inferred; None if it is.

        Then it is not known either which task waited for which.
        """
        how = self.inferred.get("stage", "")
        return how.removeprefix(_UNKNOWN) if how.startswith(_UNKNOWN) else None

    def noted(self, *notices: Notice) -> Run:
        """Return the same with more notes."""
        return msgspec.structs.replace(self, notes=(*self.notes, *notices))

    def warned(self, *notices: Notice) -> Run:
        """Return the same with more warnings."""
        return msgspec.structs.replace(self, warnings=(*self.warnings, *notices))

    def encodable(self) -> Run:
        """Return the same without halves of characters in its texts, which no file can hold."""
        try:
            msgspec.json.encode(self)
        except UnicodeEncodeError:
            return msgspec.convert(_without_halves(msgspec.to_builtins(self)), prepared(Run))
        return self


def _without_halves(value: Any) -> Any:
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, dict):
        return {_without_halves(key): _without_halves(held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_halves(held) for held in value]
    return value


RUN: Final[tuple[type, ...]] = (
    *(Run, Origin, Notice, NameShape, Contents, ClockReport, RecordedStart),
)
"""What is known of a run is made of these."""
