"""From the Ascend profiles of all ranks to the timeline of their run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import polars as pl

from bubblescope.model.errors import SourceError
from bubblescope.model.intervals import reached_ns
from bubblescope.model.kinds import LANE_OF, Kind, Lane
from bubblescope.model.provenance import Contents, Notice, clocks_unchecked
from bubblescope.model.timeline_tables import RANK_SCHEMA
from bubblescope.model.timing import DEVICE
from bubblescope.sources import numbering
from bubblescope.sources.ascend.device_work import PROCESS, read_device_work
from bubblescope.sources.ascend.dualpipev_order import recognise
from bubblescope.sources.ascend.file_names import DATABASE
from bubblescope.sources.ascend.mstx_messages import Message, parse_message
from bubblescope.sources.ascend.parallel_layout import Layout
from bubblescope.sources.ascend.profile import Profile, database_of, read_profile
from bubblescope.sources.assembly import assembled, refuse_doubles
from bubblescope.sources.copies import refuse_copies
from bubblescope.sources.device_spending import NOTHING, joined, spent
from bubblescope.sources.inventory import name_shapes
from bubblescope.sources.parallel import read_each
from bubblescope.sources.plausibility import implausible_clock, impossible_times, repeated_work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.model.progress import Progress
    from bubblescope.model.timeline import Timeline
    from bubblescope.names.parsed import ParsedName
    from bubblescope.names.parser import NameParser
    from bubblescope.sources.device_spending import Spent
    from bubblescope.sources.source import ReadOptions

_STAMP: Final = re.compile(r"_(\d{14,17})_ascend_(?:pt|ms)$")
_OPERATION: Final = {
    "name": pl.String,
    "kind": pl.String,
    "lane": pl.String,
    "microbatch": pl.Int32,
    "chunk": pl.Int16,
    "stage": pl.Int32,
    "step": pl.Int32,
    "splits": pl.Boolean,
    "output": pl.Boolean,
}


def read_profiles(
    paths: Sequence[Path], options: ReadOptions
) -> tuple[list[Profile], list[Notice]]:
    """Read the databases of all ranks; return them and warnings of what was left out.

    Raises:
        SourceError: A database is damaged, or a folder holds none.
    """
    chosen, notices = _databases(paths)
    refuse_copies(chosen)
    profiles = read_each(read_profile, chosen, options, what="reading profiles", threads=True)
    return profiles, notices


def assemble(
    profiles: Sequence[Profile],
    notices: list[Notice],
    options: ReadOptions,
    *,
    device_work: bool = True,
) -> Timeline:
    """Make one timeline of the profiles of all ranks.

    Args:
        profiles: What was read of them.
        notices: What was left out.
        options: How to read.
        device_work: Whether to read what the devices spent their time on, too.

    Raises:
        SourceError: Two profiles are of one rank, or a profile contradicts itself.
    """
    names = options.names
    ranks, how_rank = ranks_of(profiles)
    place = Layout(profiles, ranks)
    parts, lost = [], [*notices, *_losses(profiles)]
    for profile, rank in zip(profiles, ranks, strict=True):
        tasks, more = _tasks(profile, rank, names, place)
        parts.append(tasks)
        lost += more
    spendings = None
    if device_work:
        spendings, more = _spent(profiles, ranks, parts, place, options)
        lost += more
    tasks = pl.concat(parts)
    uids = {profile.host_uid for profile in profiles}
    if len(uids) > 1:
        lost.append(clocks_unchecked(len(uids)))
    table = pl.DataFrame(
        [
            {
                "rank": rank,
                "host": profile.host or "unknown",
                "device": profile.device,
                **place.coordinates(rank),
            }
            for profile, rank in zip(profiles, ranks, strict=True)
        ],
        schema=RANK_SCHEMA,
    )
    if not (tasks["lane"] == Lane.COMPUTE.value).any():
        tasks = tasks.clear()  # transfers alone are no pipeline
    return assembled(
        "ascend",
        [(profile.version, profile.path) for profile in profiles],
        tasks,
        table,
        notices=lost,
        contents=(_contents(profile, names) for profile in profiles),
        world=place.world,
        nothing=lambda: _no_tasks(profiles),
        number=lambda tasks: _numbered(tasks, profiles, place),
        inferred={"rank": how_rank} if how_rank else {},
        timed=DEVICE,
        spent=spendings,
        tables={"groups": place.groups()},
        schedule=place.schedule,
        microbatches=place.microbatches,
    )


def _databases(paths: Sequence[Path]) -> tuple[list[Path], list[Notice]]:
    """Choose the database of each rank, the newest of several, and warn of those left out."""
    newest: dict[str, Path] = {}
    notices = []
    for path in sorted(paths, key=_stamp):
        database = database_of(path)
        said = DATABASE.fullmatch(database.name)
        # A name without a rank says nothing of which rank it is.
        ranked = said is not None and (said["rank"] or said["monitored"])
        key = database.name if ranked else str(database)
        older = newest.get(key, database)
        if older != database:
            text = f"{older} and {database} are of the same rank; the newer, {database}, was read"
            notices.append(Notice("older-profile", text))
        newest[key] = database
    return sorted(newest.values()), notices


def _stamp(path: Path) -> tuple[str, str]:
    """Sort folders by the moment in their name."""
    stamped = [_STAMP.search(part) for part in path.parts]
    return next((match[1] for match in stamped if match), ""), str(path)


def ranks_of(profiles: Sequence[Profile]) -> tuple[list[int], str | None]:
    """Return the rank of each profile, and how it was found unless they state it.

    Raises:
        SourceError: Two are of one rank, or some state none.
    """
    stated = [profile.rank for profile in profiles]
    ranks = [rank for rank in stated if rank is not None]
    if len(ranks) < len(stated):
        if ranks:
            odd = next(one for one in profiles if one.rank is None)
            raise SourceError(odd.path, "does not state its rank, though others do; leave it out")
        return list(range(len(profiles))), "order of the databases' paths"
    owners = zip(ranks, (profile.path for profile in profiles), strict=True)
    refuse_doubles(owners, "give only one of them")
    return ranks, None


def _tasks(
    profile: Profile, rank: int, names: NameParser, place: Layout
) -> tuple[pl.DataFrame, list[Notice]]:
    """Return the tasks of a rank, in the terms of a timeline and of `numbering`."""
    texts = profile.ranges["message"].unique().sort().to_list()
    messages = {text: parse_message(text, names) for text in texts}
    beyond = [text for text, one in messages.items() if one.said and not one.said.possible]
    operations = pl.DataFrame(
        [
            _operation(text, message, said, said.kind)
            for text, message in messages.items()
            if (said := message.said) and said.kind and said.possible
        ],
        schema={"message": pl.String, **_OPERATION},
        orient="row",
    )
    ranges = _with_steps(
        profile.ranges.join(operations, on="message", maintain_order="left"), profile.steps
    )
    # Within or across another, as when one decorated function calls another: the first one counts.
    kept = ranges.filter(pl.col("start_ns") >= pl.Series(reached_ns(ranges["end_ns"].to_numpy())))
    notices = []
    if lost := profile.ranges.filter(pl.col("message").is_in(beyond)).height:
        named = ranges.height + lost
        text = (
            f"{lost} of {named} ranges of rank {rank} have a number in their names that no job has, "
            "and are left out"
        )
        notices.append(Notice("impossible-numbers", text, lost, named))
    if inner := ranges.height - kept.height:
        text = (
            f"{inner} of {ranges.height} ranges of rank {rank} lie within or across another and were "
            "left out"
        )
        notices.append(Notice("overlapping-ranges", text, inner, ranges.height))
    blank = {"pair_microbatch": pl.Int32, "pair_chunk": pl.Int16, "pair_stage": pl.Int32}
    kept = kept.with_columns(
        pl.lit(None, dtype).alias(column) for column, dtype in blank.items()
    ).with_columns(rank=pl.lit(rank, pl.Int32), peer=pl.lit(None, pl.Int32))
    if place.recognises:
        kept, more = recognise(kept, rank, place)
        notices += more
    elif place.device(rank) is not None:
        kept = kept.with_columns(stage=pl.coalesce("stage", place.stage(rank, pl.col("chunk"))))
    kept = kept.drop("message")
    return pl.concat([kept, _transfers(profile, rank, place, kept)]).drop("output"), notices


def _operation(text: str, message: Message, said: ParsedName, kind: Kind) -> tuple[Any, ...]:
    """Return a row of `_OPERATION`, with the message first."""
    return (
        text,
        message.name,
        kind.value,
        LANE_OF[kind].value,
        said.microbatch,
        said.chunk,
        said.stage,
        said.step,
        said.splits,
        message.output_layer,
    )


def _with_steps(ranges: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Give each range the step in whose host time it lies; none if it lies in none."""
    spans = steps.sort("start_ns").select(
        found=pl.col("step").cast(pl.Int32),
        host_start_ns="start_ns",
        until_ns="end_ns",
    )
    inside = pl.col("host_end_ns") <= pl.col("until_ns")
    return (
        ranges.sort("host_start_ns")
        .join_asof(spans, on="host_start_ns")
        .with_columns(step=pl.coalesce("step", pl.when(inside).then("found")))
        .drop("found", "until_ns")
        .sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)
    )


def _transfers(profile: Profile, rank: int, place: Layout, tasks: pl.DataFrame) -> pl.DataFrame:
    """Return communication operators as tasks; on a plain pipeline the peer tells their direction."""
    ends = _peers(profile, place)
    devices = {member: place.device(member) for member in ends["peer"].unique().to_list()}
    own = place.device(rank)
    ahead = pl.col("peer").replace_strict(devices, default=None, return_dtype=pl.Int32) > (own or 0)
    known = pl.col("peer").is_not_null() & pl.lit(own is not None and not place.is_dualpipev)
    sends = pl.col("way") == "s"
    kind = (
        pl.when(pl.col("way").is_null() & pl.col("name").str.contains("(?i)sendrecv"))
        .then(pl.lit(Kind.OTHER.value))
        .when(pl.col("way").is_null())
        .then(pl.lit(Kind.COLLECTIVE.value))
        .when(known & sends & ahead)
        .then(pl.lit(Kind.SEND_FORWARD.value))
        .when(known & sends)
        .then(pl.lit(Kind.SEND_BACKWARD.value))
        .when(known & ahead)
        .then(pl.lit(Kind.RECV_BACKWARD.value))
        .when(known)
        .then(pl.lit(Kind.RECV_FORWARD.value))
        .otherwise(pl.lit(Kind.OTHER.value))
    )
    begun = tasks.drop_nulls("step").sort("start_ns").select("start_ns", "step")
    blank = [name for name in tasks.columns if name not in {"rank", "kind", "lane", "step", "peer"}]
    blank = [name for name in blank if name not in {"name", "start_ns", "end_ns", "splits"}]
    return (
        profile.operations.join(ends, on=["group", "target"], how="left")
        .sort("start_ns")
        .join_asof(begun, on="start_ns")
        .with_columns(pl.lit(None, tasks.schema[name]).alias(name) for name in blank)
        .with_columns(
            rank=pl.lit(rank, pl.Int32),
            kind=kind,
            lane=pl.lit(Lane.COMM.value),
            splits=pl.lit(value=False),
        )
        .select(tasks.columns)
    )


def _peers(profile: Profile, place: Layout) -> pl.DataFrame:
    """Return group, target (a rank within it) and peer (the same within the job), where known."""
    return pl.DataFrame(
        [
            (group, index, member)
            for group in profile.operations["group"].unique(maintain_order=True)
            for index, member in enumerate(place.members(profile, group) or [])
        ],
        schema={"group": pl.String, "target": pl.Int64, "peer": pl.Int32},
        orient="row",
    )


def _spent(
    profiles: Sequence[Profile],
    ranks: Sequence[int],
    tasks: Sequence[pl.DataFrame],
    place: Layout,
    options: ReadOptions,
) -> tuple[Spent, list[Notice]]:
    """Read what the devices spent their time on; return it by rank, and what was dropped."""
    roles = dict(place.groups().select("name", "role").iter_rows())
    found = read_each(
        _WorkReader(roles, options.names, options.activities),
        [
            _Known(profile, rank, its, _peers(profile, place))
            for profile, rank, its in zip(profiles, ranks, tasks, strict=True)
        ],
        options,
        what="reading device work",
        path=lambda known: Path(known.profile.path),
        threads=True,
    )
    nothing = NOTHING.by_rank(0, pl.DataFrame(schema={"rank": pl.Int32}))
    told = [part for part, _ in found if part is not None]
    return joined([nothing, *told]), [notice for _, lost in found for notice in lost]


class _Known(NamedTuple):
    """What is known of a rank before its device's work is read.

    Attributes:
        profile: What was read of its database.
        rank: Which it is.
        tasks: Its tasks.
        peers: As for `read_device_work`.
    """

    profile: Profile
    rank: int
    tasks: pl.DataFrame
    peers: pl.DataFrame


class _WorkReader(msgspec.Struct, frozen=True):
    """Reads what a device spent its time on; runs in any process.

    Attributes:
        roles: What the communication groups are for, by name.
        names: What range names mean.
        activities: Whether to keep the kernels.
    """

    roles: dict[str, str | None]
    names: NameParser
    activities: bool

    def __call__(self, known: _Known, progress: Progress) -> tuple[Spent | None, list[Notice]]:
        profile, tasks = known.profile, known.tasks
        work = read_device_work(
            profile, self.roles, known.peers, self.names, progress, kernels=self.activities
        )
        if work is None:
            return None, []
        process = pl.lit(PROCESS, pl.Int64)
        devices = work.capture.work.select("device").unique()
        found = spent(
            work.capture,
            tasks.join(devices, how="cross").with_columns(process=process),
            profile.steps.with_columns(process=process),
            _owners(work.capture.work, tasks) if self.activities else None,
        )
        lost = [
            *impossible_times(work.impossible, work.total, "tasks of the device", profile.path),
            *repeated_work(work.repeated, work.total, profile.path),
        ]
        return found.by_rank(0, pl.DataFrame({"rank": [known.rank]}, {"rank": pl.Int32})), lost


def _owners(work: pl.DataFrame, tasks: pl.DataFrame) -> pl.DataFrame:
    """Return the range in whose interval on the device each row of the work began: host_start_ns, name.

    Marks of mstx have intervals on the device themselves, and those of compute tasks do not overlap.
    """
    ranges = tasks.filter(pl.col("lane") == Lane.COMPUTE.value).sort("start_ns")
    found = (
        work.with_row_index("row")
        .sort("start_ns")
        .join_asof(
            ranges.select("start_ns", "host_start_ns", "name", until_ns="end_ns"), on="start_ns"
        )
    )
    inside = pl.col("start_ns") < pl.col("until_ns")
    return found.sort("row").select(
        pl.when(inside).then(name) for name in ("host_start_ns", "name")
    )


def _numbered(
    tasks: pl.DataFrame, profiles: Sequence[Profile], place: Layout
) -> tuple[pl.DataFrame, dict[str, str], list[Notice]]:
    """Fill what neither marks nor schedule say; the profiler's own steps are believed."""
    notices: list[Notice] = []
    if place.recognises:
        tasks, inferred = tasks.drop("splits"), {"microbatch": "place in the declared schedule"}
    elif all(profile.steps.height for profile in profiles):
        unsaid = tasks.filter(pl.col("step").is_null())
        known = tasks.drop_nulls("step")
        numbered, inferred, notices = numbering.number(known, numbering.NO_MARKERS)
        if lost := unsaid.filter(pl.col("lane") == Lane.COMPUTE.value).height:
            text = f"{lost} of {tasks.height} tasks lie in no step of the profiler"
            notices.append(Notice("outside-steps", text, lost, tasks.height))
        tasks = pl.concat([numbered, unsaid.select(numbered.columns)], how="vertical_relaxed")
    else:
        tasks, inferred, notices = numbering.number(tasks, numbering.NO_MARKERS)
    if place.inferred and tasks["stage"].is_not_null().any():
        inferred["stage"] = place.inferred
    return tasks, inferred, notices


def _losses(profiles: Sequence[Profile]) -> list[Notice]:
    marks = sum(profile.marks for profile in profiles)
    notices = []
    if lost := sum(profile.unmatched for profile in profiles):
        text = f"{lost} of {marks} ranges have no interval on the device and are left out"
        notices.append(Notice("ranges-without-work", text, lost, marks))
    for profile in profiles:
        total = sum(profile.counts.values())
        notices += impossible_times(profile.impossible, total, "intervals", profile.path)
    starts = {
        profile.path: int(profile.ranges["start_ns"][0])
        for profile in profiles
        if profile.ranges.height
    }
    return notices + implausible_clock(starts)


def _contents(profile: Profile, names: NameParser) -> Contents:
    counted = profile.ranges.group_by("message").agg(count=pl.len())

    def parse(text: str) -> list[ParsedName]:
        said = parse_message(text, names).said
        return [said] if said else []

    return Contents(
        path=profile.path,
        host=profile.host,
        process=None,
        devices=() if profile.device is None else (profile.device,),
        counts=profile.counts,
        names=name_shapes(counted.select("count", name="message"), parse),
        options=profile.options,
    )


def _no_tasks(profiles: Sequence[Profile]) -> Notice:
    marks = sum(profile.marks for profile in profiles)
    if not marks:
        text = (
            "no pipeline tasks were found: the profiles hold no mstx ranges; profile with "
            "msprof_tx=True and mark the job's functions (bubblescope.compat.ascend.step_wrapper)"
        )
    else:
        text = (
            f"no pipeline tasks were found: none of the {marks} mstx ranges names a forward or a "
            "backward; see them with `bubblescope names` and describe yours with --names"
        )
    return Notice("no-pipeline-ranges", text)
