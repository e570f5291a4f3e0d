"""bubblescope's own files: recordings (`.bubbles`) and saved timelines (`.parquet`)."""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope.model import units
from bubblescope.model.errors import SourceError, TimelineError
from bubblescope.model.extents import extents
from bubblescope.model.groups import Group, merged, tabled
from bubblescope.model.parquet import mentions
from bubblescope.model.parquet_pages import MAGIC
from bubblescope.model.provenance import Notice, Origin, Run, clocks_unchecked
from bubblescope.model.saved_timelines import Saved, opened
from bubblescope.model.timeline import Timeline, concat, joined, together
from bubblescope.model.timeline_tables import RANK_SCHEMA
from bubblescope.recording.attempts import number_of
from bubblescope.recording.columns import HEADER, PERIOD_S
from bubblescope.recording.failures import without_failed
from bubblescope.recording.reader import Torn, header_of, read_stream
from bubblescope.sources.loop_stages import with_stages
from bubblescope.sources.parallel import read_each
from bubblescope.sources.rank_grid import groups_of_grid
from bubblescope.sources.recorded_parts import Part
from bubblescope.sources.unused_forwards import Unused, without_unused

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bubblescope.model.progress import Progress
    from bubblescope.recording.columns import Header
    from bubblescope.sources.source import ReadOptions

_RECORDING: Final = ".bubbles"
_HEAD: Final = 1 << 16
"""Bytes in which the first record of a recording fits."""
_BOOT: Final = 8
"""Letters of a boot that tell machines of one name apart."""


class NativeSource:
    """Reads recordings and saved timelines."""

    name = "native"
    summary = "bubblescope recordings (.bubbles) and saved timelines (.parquet)"

    def detect(self, path: Path) -> bool:
        """Claim every `.bubbles` file, and Parquet that bubblescope saved."""
        if not path.is_file():
            return False
        if path.suffix == _RECORDING:
            return True
        named = path.name.endswith(".bubbles.parquet")
        try:
            with path.open("rb") as file:
                if file.read(len(MAGIC)) != MAGIC:
                    return False
            ours = mentions(path, "bubblescope.run")
        except OSError:
            return named
        return named if ours is None else ours

    def read(self, paths: Sequence[Path], options: ReadOptions) -> Timeline:
        """Read the files of one run onto one clock.

        Raises:
            SourceError: A file holds nothing that can be used.
            TimelineError: Two files hold the same rank.
        """
        read = read_each(_read, paths, options, what="reading recordings", threads=True)
        saved = [one for one in read if isinstance(one, Saved)]
        empty = {
            path: one for path, one in zip(paths, read, strict=True) if isinstance(one, _EmptyError)
        }
        recordings = _joined([one for one in read if isinstance(one, _Recording)], empty)
        # Processes of one boot share a monotonic clock; one anchor for all keeps them exact. Machines
        # may share a name, as those of containers do, but boots never share a clock.
        anchors: dict[tuple[str, str], int] = {}
        for recording in recordings:
            anchors.setdefault(recording.clock, recording.header.utc_ns)
        named = Counter(host for host, _ in anchors)
        jobs: dict[Path, dict[int, list[Part]]] = {}
        for recording in recordings:
            host, boot = recording.clock
            name = host if named[host] == 1 else f"{host}-{boot[:_BOOT]}"
            place = recording.path.parent
            attempts = jobs.setdefault(place.parent if number_of(place) else place, {})
            mine = attempts.setdefault(number_of(place), [])
            mine.append(recording.part(anchors[recording.clock], name))
        timelines = [together(saved)] if saved and not jobs else [together([one]) for one in saved]
        timelines += [
            _one_after_another({number: _together(attempts[number]) for number in sorted(attempts)})
            for attempts in jobs.values()
        ]
        whole = concat(timelines)
        if recordings and not whole.groups.height:
            tables = whole.tables | {"groups": _groups(recordings, whole.ranks)}
            whole = Timeline.of_checked(whole.tasks, whole.ranks, whole.run, **tables)
        if len(anchors) > 1:
            whole = whole.with_notices(clocks_unchecked(len(anchors)))
        return whole

    def together(self, paths: Sequence[Path]) -> list[list[Path]]:
        """Return the recordings of each host together, whose ranks share a clock.

        Several starts of a job are all together; a saved timeline is by itself.
        """
        if len({number_of(path.parent) for path in paths}) > 1:
            return [list(paths)]
        groups: dict[str, list[Path]] = {}
        for path in paths:
            groups.setdefault(
                _host_of(path) if path.suffix == _RECORDING else str(path), []
            ).append(path)
        return list(groups.values())


def _host_of(path: Path) -> str:
    """Return the host that a recording begins with; empty if its beginning is damaged."""
    try:
        with path.open("rb") as file:
            rows, _ = read_stream(file.read(_HEAD))
        return header_of(path, rows).host if rows is not None and rows.height else ""
    except (OSError, ValueError, SourceError):
        return ""


def _read(path: Path, _: Progress) -> _Recording | Saved | _EmptyError:
    """Read one file; that it is empty is known to be an error only once all others are read."""
    if path.suffix != _RECORDING:
        return opened(path)
    try:
        return _Recording(path)
    except _EmptyError as error:
        return error


def _together(parts: Sequence[Part]) -> Timeline:
    """Return the recordings of several ranks as one run.

    Raises:
        SourceError: One is damaged.
        TimelineError: Two are of the same rank.
    """
    parts, notices = with_stages(parts)
    tasks = pl.concat([part.tasks for part in parts], how="diagonal")
    ranks = pl.DataFrame([part.rank for part in parts], schema=RANK_SCHEMA)
    own = all(part.is_loop for part in parts)
    unused = without_unused(tasks) if own else Unused(tasks, {})
    try:
        run = joined([part.run for part in parts], len(parts))
        run = run.warned(*notices, *unused.notices(), *_outlasted(parts))
        return Timeline(unused.tasks, ranks, run)
    except TimelineError as error:
        if len(parts) == 1:
            raise SourceError(parts[0].path, f"is damaged ({error})") from None
        return concat([_together([part]) for part in parts])  # one of these says which it is


def _groups(recordings: list[_Recording], ranks: pl.DataFrame) -> pl.DataFrame:
    """Return the groups that ranks said they were part of; if none did, those of their grid.

    Of several starts of a job, the last counts, in which ranks may sit elsewhere.
    """
    last = max(number_of(recording.path.parent) for recording in recordings)
    # Each of the ranks of a group tells of it.
    said = dict.fromkeys(
        group
        for recording in recordings
        if number_of(recording.path.parent) == last
        for group in recording.header.groups
    )
    if not said:
        return groups_of_grid(ranks)
    return merged(
        tabled(
            Group(
                name=group.name,
                ranks=group.ranks,
                size=len(group.ranks),
                role=group.role,
                how=group.how,
                description=group.description,
                backend=group.backend,
            )
            for group in said
        )
    )


def _one_after_another(attempts: dict[int, Timeline]) -> Timeline:
    """Return the starts of a job as one run, given each by its number, ascending.

    A job that goes on from a checkpoint, or from the beginning, numbers steps again that there were
    before: those of the later start are then counted on.

    Raises:
        SourceError: They ran at the same time.
    """
    numbers, last = list(attempts), attempts[max(attempts)]
    if len(numbers) == 1:
        return last
    _refuse_at_once(attempts)
    parts, counted_on, resumed, highest = [], [], [], -1
    for number, one in attempts.items():
        steps = one.steps
        shift = highest + 1 - steps[0] if steps and steps[0] <= highest else 0
        if shift:
            counted_on.append(
                f"those of attempt {number}, {steps[0]} to {steps[-1]}, are shown as "
                f"{steps[0] + shift} to {steps[-1] + shift}"
            )
        parts.append(one.tasks.with_columns(pl.col("step") + shift))
        if steps:
            resumed += [steps[0] + shift] * (highest >= 0)
            highest = max(highest, steps[-1] + shift)
    # Where a rank sits may change between starts; what its tasks say of stages stays with them.
    ranks = pl.concat([one.ranks for one in reversed(attempts.values())])
    run = concat([Timeline(one.tasks[:0], one.ranks[:0], one.run) for one in attempts.values()]).run
    run = msgspec.structs.replace(run, resumed=tuple(resumed))
    if counted_on:
        text = f"attempts have steps of the same numbers: {'; '.join(counted_on)}"
        run = run.warned(Notice("steps-counted-on", text))
    return Timeline(
        pl.concat(parts),
        ranks.unique("rank", keep="first", maintain_order=True),
        run,
        **last.tables,
    )


def _refuse_at_once(attempts: dict[int, Timeline]) -> None:
    """Refuse starts that are no restarts: a rank has a task of a later one before the earlier ended.

    Raises:
        SourceError: There are such.
    """
    ended: dict[tuple[str, int], tuple[int, int]] = {}  # of each machine, which tells one time
    for number, one in attempts.items():
        hosts = dict(one.ranks.select("rank", "host").iter_rows())
        for rank, start_ns, end_ns in extents(one.tasks, "rank").iter_rows():
            place = (hosts[rank], rank)
            earlier, last_ns = ended.get(place, (0, start_ns))
            if start_ns < last_ns:
                raise SourceError(
                    one.run.origins[0].path,
                    f"is of attempt {number}, in which rank {rank} ran while attempt {earlier} was "
                    "still being recorded: they are no starts of one job, one after the other; read "
                    "each by itself with --attempt N",
                )
            ended[place] = (number, end_ns)


class _EmptyError(SourceError):
    """A recording holds nothing yet."""


def _joined(recordings: list[_Recording], empty: dict[Path, _EmptyError]) -> list[_Recording]:
    """Put the halves of recordings with a limit together.

    That a file is empty is no error if the other half is not.
    """
    # Of a job that was killed between putting a file aside and beginning anew, both are the same.
    order = sorted(recordings, key=lambda one: (one.header.before, one.path == one.whole))
    found: dict[tuple[Path, bytes], _Recording] = {}
    for recording in order:
        of = recording.whole, msgspec.json.encode(recording.header.of_its_rank())
        if of in found:
            found[of].append(recording)
        else:
            found[of] = recording
    halves = {recording.whole: recording for recording in found.values()}
    for path, error in empty.items():
        half = halves.get(_whole(path))
        if half is None:
            raise error
        if path == half.whole:
            half.torn = Torn(closed=False, lost=0, size=0)
    return list(found.values())


def _whole(path: Path) -> Path:
    """Return the file that this one is, or is the older half of."""
    return path.with_name(path.name.replace(f".older{_RECORDING}", _RECORDING))


class _Recording:
    """One rank's file, decoded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            data = path.read_bytes()
        except OSError as error:
            raise SourceError(path, f"cannot be read ({error.strerror})") from None
        if not data:
            raise _EmptyError(path, "is empty: the job stopped before it recorded anything")
        try:
            rows, self.torn = read_stream(data)
        except ValueError as error:
            raise SourceError(path, f"is not a recording or is damaged ({error})") from None
        if rows is None or not rows.height:
            raise _EmptyError(path, f"is cut short: its {len(data)} bytes hold no complete record")
        self.header = header_of(path, rows, damaged=self.torn.damaged > 0)
        # Where it is repeated, the last says how many tasks are missing.
        repeated = (rows["kind"] == HEADER).arg_true()[1:]  # the first row is one
        self._last, self._tasks = self.header, rows[1:]
        if len(repeated):
            self._last = header_of(path, rows[repeated[-1:]])
            self._tasks = self._tasks.filter(pl.col("kind") != HEADER)
        self.lost = self.header.before
        """Tasks that were dropped to keep the recording within its limit."""

    @property
    def whole(self) -> Path:
        """The file that this one is, or is the older half of."""
        return _whole(self.path)

    def append(self, newer: _Recording) -> None:
        """Add the newer half of the same recording, which may have tasks of this one once more."""
        missing = newer.header.before - self.header.before - self._tasks.height
        if missing > 0:
            self.lost += missing
        self._tasks = pl.concat([self._tasks, newer._tasks[max(0, -missing) :]])
        self.path, self._last = newer.path, newer._last
        self.torn = msgspec.structs.replace(
            newer.torn,
            damaged=self.torn.damaged + newer.torn.damaged,
            size=self.torn.size + newer.torn.size,
        )

    @property
    def clock(self) -> tuple[str, str]:
        """What identifies the monotonic clock."""
        return (self.header.host, self.header.boot)

    def part(self, utc_ns: int, host: str) -> Part:
        """Return the rank's tasks, with `utc_ns` added to its monotonic times."""
        header = self.header
        times = ("start_ns", "end_ns", "host_start_ns", "host_end_ns")
        paired = pl.col("pair_microbatch").is_not_null()
        tasks = self._tasks.with_columns(
            pl.col(times) + utc_ns,
            rank=pl.lit(header.rank, pl.Int32),
            stage=pl.coalesce("stage", _stage_of_chunk(header.stages)),
            pair_stage=pl.coalesce(
                "pair_stage", pl.when(paired).then(_stage_of_chunk(header.stages, "pair_chunk"))
            ),
            name=pl.coalesce("name", "kind"),
        )
        tasks, failed = without_failed(tasks)
        known = {name: getattr(header, name, None) for name in RANK_SCHEMA}
        known["host"] = host
        known["stages"] = header.stages or _stages_of(tasks)
        run = Run(
            origins=(Origin("native", header.version, str(self.path), header.recorded_by),),
            schedule=header.schedule,
            microbatches=header.microbatches,
            warnings=(
                *_damage(self.path, self.torn),
                *_ending(self.path, self.torn, header, tasks),
                *_dropped(self.path, self.lost, len(tasks)),
                *_overrun(self.path, self._last, self.lost + len(tasks)),
                *_elsewhere(self._last),
                *_failed(header.rank, failed),
            ),
        )
        return Part(self.path, tasks, known, run, self.torn.closed)


def _stages_of(tasks: pl.DataFrame) -> list[int] | None:
    """Return a rank's stages by chunk, as its tasks have them; None if these do not tell."""
    known = tasks.select("chunk", "stage").unique().drop_nulls().sort("chunk")
    if not known.height or known["chunk"].to_list() != list(range(known.height)):
        return None
    return known["stage"].to_list()


def _stage_of_chunk(stages: list[int] | None, column: str = "chunk") -> pl.Expr:
    """Return a task's stage by its chunk, which a column says; a rank with one stage needs no chunk."""
    if not stages:
        return pl.lit(None, pl.Int32)
    chunk = pl.col(column) if len(stages) > 1 else pl.lit(0)
    return chunk.replace_strict(range(len(stages)), stages, default=None, return_dtype=pl.Int32)


def _failed(rank: int, steps: list[int]) -> tuple[Notice, ...]:
    if not steps:
        return ()
    text = (
        f"rank {rank} failed {units.count(len(steps), 'time')} in a step and went on "
        f"({units.listed('step', steps)}); what it had done of it is of no step"
    )
    return (Notice("failed-steps", text, len(steps)),)


def _dropped(path: Path, lost: int, kept: int) -> tuple[Notice, ...]:
    if not lost:
        return ()
    total = lost + kept
    text = (
        f"{path.name} was limited in size: its oldest {lost:,} of {total:,} tasks were dropped; a "
        "higher --max-mb keeps more"
    )
    return (Notice("dropped", text, lost, total),)


def _overrun(path: Path, header: Header, written: int) -> tuple[Notice, ...]:
    if not header.dropped:
        return ()
    total = header.dropped + written
    first, last = header.dropped_steps or (None, None)
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    of = "" if first is None else f" They are of {steps}, whose figures lack them."
    text = (
        f"{path.name} lacks {header.dropped:,} of {total:,} tasks: they came faster than they could be "
        f"written.{of}"
    )
    return (Notice("overrun", text, header.dropped, total),)


def _elsewhere(header: Header) -> tuple[Notice, ...]:
    if not header.elsewhere:
        return ()
    text = (
        f"rank {header.rank} trained at least {units.count(header.elsewhere, 'step')} in other threads "
        "than the one that is recorded; run each as a job by itself"
    )
    return (Notice("other-threads", text, header.elsewhere),)


def _damage(path: Path, torn: Torn) -> tuple[Notice, ...]:
    if not torn.damaged:
        return ()
    text = (
        f"{path.name} is damaged: {torn.damaged} of its {torn.size} bytes fail their checksum, "
        "and the tasks in them were left out"
    )
    return (Notice("damaged", text, torn.damaged, torn.size),)


def _ending(path: Path, torn: Torn, header: Header, tasks: pl.DataFrame) -> tuple[Notice, ...]:
    if torn.closed:
        return ()
    lost = _lost_by_a_kill(header, tasks)
    if torn.lost:
        text = (
            f"{path.name} ends in the middle of a record: its last {torn.lost} of {torn.size} bytes "
            f"were dropped. Of a job that was killed, {lost}"
        )
        return (Notice("torn-tail", text, torn.lost, torn.size),)
    text = (
        f"{path.name} was not closed: the job was still running or was killed. Of a job that was "
        f"killed, {lost}"
    )
    return (Notice("unclosed", text),)


def _lost_by_a_kill(header: Header, tasks: pl.DataFrame) -> str:
    """Return what is missing at most of a job that was killed: what was not written yet."""
    if header.timed != "host":
        return (
            "the step that it was in is missing, and steps may be that its device had not finished: "
            "each is written as it ends"
        )
    begins = tasks.drop_nulls("step").group_by("step").agg(pl.col("start_ns").min())
    length_ns: Any = begins["start_ns"].sort().diff().median()
    steps = ""
    if length_ns:
        most = ceil(PERIOD_S * 1e9 / length_ns) + 1
        steps = f" (up to {units.count(most, 'step')} of the usual length)"
    return (
        f"what was running is missing, and what ended in its last quarter of a second may be{steps}: "
        "tasks are written that often"
    )


def _outlasted(parts: Sequence[Part]) -> tuple[Notice, ...]:
    """Say which recordings nobody closed, and end before those of other ranks of the same host."""
    ends: dict[str, dict[int, Any]] = {}
    for part in parts:
        ended_ns = part.tasks["end_ns"].max()
        if ended_ns is not None:
            ends.setdefault(part.rank["host"], {})[part.rank["rank"]] = ended_ns
    notices = []
    for part in parts:
        own, others = part.rank["rank"], ends.get(part.rank["host"])
        if part.closed or others is None:
            continue
        last = max(others, key=others.__getitem__)
        text = None
        if own not in others:
            text = (
                f"{part.path.name} holds no tasks, unlike that of rank {last}: its process has written "
                "none yet, or was killed before it did"
            )
        elif (behind_ns := others[last] - others[own]) > PERIOD_S * 1e9:
            text = (
                f"{part.path.name} ends {units.duration(behind_ns)} before that of rank {last}: its "
                "process was in one task for so long, or was killed earlier, or it lacks as much"
            )
        if text is not None:
            notices.append(Notice("unclosed", text))
    return tuple(notices)
