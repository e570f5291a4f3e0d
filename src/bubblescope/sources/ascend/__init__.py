"""Ascend profiler databases of torch_npu, MindSpore, msprof and msMonitor, one for each rank."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope import numbering
from bubblescope.engine import read_each
from bubblescope.errors import SourceError, TimelineError
from bubblescope.inventory import missing_ranks, name_shapes
from bubblescope.plausible import implausible_clock, impossible_times
from bubblescope.schedules import dualpipev
from bubblescope.sources.ascend.messages import Message, parse_message
from bubblescope.sources.ascend.profile import (
    DATABASE,
    FOLDER_SUFFIXES,
    Profile,
    database_of,
    read_profile,
)
from bubblescope.timeline import (
    RANK_SCHEMA,
    TASK_SCHEMA,
    Contents,
    Notice,
    Origin,
    Run,
    Timeline,
    clocks_unchecked,
    task_columns,
)
from bubblescope.vocabulary import LANE_OF, Kind, Lane, NameParser, ParsedName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.sources import ReadOptions

__all__ = ["OUTPUT_LAYER", "AscendSource", "assemble", "position_name", "read_profiles"]

OUTPUT_LAYER: Final = "logits"
"""Name of the task in which device 0 of a DualPipeV runs the output layer."""
_DUALPIPEV: Final = "dualpipev"
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


class AscendSource:
    """Reads the profiles of Ascend NPUs."""

    name = "ascend"
    summary = "Ascend profiles (*_ascend_pt, *_ascend_ms folders, profiler .db files)"

    def detect(self, path: Path) -> bool:
        """Recognise a profile's folder by its ending, a database by its name."""
        if path.is_dir():
            return path.name.endswith(FOLDER_SUFFIXES)
        return DATABASE.fullmatch(path.name) is not None

    def read(self, paths: Sequence[Path], options: ReadOptions) -> Timeline:
        """Read the profiles of one run.

        Raises:
            SourceError: A database is damaged, or a folder holds none.
        """
        profiles, notices = read_profiles(paths, options)
        return assemble(profiles, notices, options.names)


def read_profiles(
    paths: Sequence[Path], options: ReadOptions
) -> tuple[list[Profile], list[Notice]]:
    """Read the databases of all ranks; return them and warnings of what was left out.

    Raises:
        SourceError: A database is damaged, or a folder holds none.
    """
    chosen, notices = _databases(paths)
    options.progress.begin("reading profiles", None)
    profiles = read_each(
        read_profile, list(chosen), options.progress, options.executor, threads=True
    )
    return profiles, notices


def assemble(profiles: Sequence[Profile], notices: list[Notice], names: NameParser) -> Timeline:
    """Make one timeline of the profiles of all ranks.

    Raises:
        SourceError: Two profiles are of one rank, or a profile contradicts itself.
    """
    ranks, how_rank = _ranks(profiles)
    place = _Layout(profiles, ranks)
    parts, lost = [], [*missing_ranks(ranks, place.world), *notices, *_losses(profiles)]
    inferred = {"rank": how_rank} if how_rank else {}
    for profile, rank in zip(profiles, ranks, strict=True):
        tasks, more = _tasks(profile, rank, names, place)
        parts.append(tasks)
        lost += more
    tasks = pl.concat(parts)
    uids = {profile.host_uid for profile in profiles}
    if len(uids) > 1:
        lost.append(clocks_unchecked(len(uids)))
    run = Run(
        origins=tuple(Origin("ascend", one.version, one.path) for one in profiles),
        schedule=place.schedule,
        microbatches=place.microbatches,
        contents=tuple(_contents(profile, names) for profile in profiles),
        warnings=tuple(lost),
    )
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
    if not tasks.filter(pl.col("lane") == Lane.COMPUTE.value).height:
        return Timeline(pl.DataFrame(schema=TASK_SCHEMA), table, run.warned(_no_tasks(profiles)))
    tasks, more_inferred, more = _numbered(tasks, profiles, place)
    if place.inferred and tasks["stage"].is_not_null().any():
        more_inferred["stage"] = place.inferred
    run = msgspec.structs.replace(run.warned(*more), inferred={**inferred, **more_inferred})
    table = numbering.with_stages(table, tasks)
    try:
        return Timeline(task_columns(tasks), table, run)
    except TimelineError as error:
        raise SourceError(profiles[0].path, f"holds contradictory rows ({error})") from None


def _databases(paths: Sequence[Path]) -> tuple[dict[Path, Path], list[Notice]]:
    """Choose the database of each rank: where a folder was profiled twice, the newest.

    Returns:
        Database -> the path it was found by, and warnings of what was left out.

    Raises:
        SourceError: A folder holds no database.
    """
    found: dict[Path, Path] = {}
    notices = []
    newest: dict[tuple[Path, str], Path] = {}
    for path in sorted(paths, key=_stamp):
        database = database_of(path)
        # Ranks are in the name; a name without one says nothing of which rank it is.
        key = (database.parent if "_" not in database.stem[-4:] else Path(), database.name)
        named = DATABASE.fullmatch(database.name)
        if named and (named["rank"] or named["monitored"]):
            key = (Path(), database.name)
        older = newest.get(key)
        if older is not None and older != database:
            notices.append(
                Notice(
                    "older-profile",
                    f"{older} and {database} are of the same rank; the newer, {database}, was read",
                )
            )
            del found[older]
        newest[key] = database
        found[database] = path
    return dict(sorted(found.items())), notices


def _stamp(path: Path) -> tuple[str, str]:
    """Sort folders by the moment in their name."""
    stamped = [_STAMP.search(part) for part in path.parts]
    return next((match[1] for match in stamped if match), ""), str(path)


class _Layout:
    """Where ranks stand in the pipeline, as far as the job says."""

    def __init__(self, profiles: Sequence[Profile], ranks: Sequence[int]) -> None:
        info = [one for one in (profile.said("pp_info") for profile in profiles) if one]
        info = [one for one in info if isinstance(one, dict)]
        self.schedule = _agreed(str(one["pp_type"]).lower() for one in info if "pp_type" in one)
        self.microbatches = _agreed(
            one["microbatch_num"] for one in info if isinstance(one.get("microbatch_num"), int)
        )
        stated = _agreed(
            msgspec.json.encode(one).decode()
            for one in (profile.said("distributed_args") for profile in profiles)
            if isinstance(one, dict)
        )
        self._sizes: dict[str, Any] = msgspec.json.decode(stated) if stated else {}
        self._groups = {
            profile.path: profile.said("parallel_group_info") or {} for profile in profiles
        }
        self.world = self._size("world_size", 0)
        self.pipeline = self._size("pipeline_model_parallel_size", 1)
        self._fits = bool(
            stated and self.world > max(ranks, default=0) and (self.world % self.pipeline == 0)
        )
        self.inferred = "rank and parallel sizes, in Megatron's order" if self._fits else None

    @property
    def is_dualpipev(self) -> bool:
        """Whether the job declared this schedule."""
        return bool(self.schedule == _DUALPIPEV)

    @property
    def recognises(self) -> bool:
        """Whether enough is declared to find each range's place in the schedule."""
        return self.is_dualpipev and self._fits and bool(self.microbatches)

    def _size(self, name: str, default: int) -> int:
        value = self._sizes.get(name, default)
        return value if isinstance(value, int) and value > 0 else default

    def device(self, rank: int) -> int | None:
        """Return the pipeline device of a rank: data-parallel replicas vary faster."""
        return rank // (self.world // self.pipeline) if self._fits else None

    def coordinates(self, rank: int) -> dict[str, int | None]:
        """Return the rank's place along the other axes: tensor fastest, then context, then data."""
        if not self._fits:
            return {}
        tensor = self._size("tensor_model_parallel_size", 1)
        context = self._size("context_parallel_size", 1)
        within = rank % (self.world // self.pipeline)
        return {
            "tp": within % tensor,
            "cp": within // tensor % context,
            "dp": within // (tensor * context),
        }

    def stage(self, rank: int, chunk: pl.Expr) -> pl.Expr:
        """Return the global stage of a rank's chunk: in a V for DualPipeV."""
        device = self.device(rank)
        if device is None:
            return pl.lit(None, pl.Int32)
        if self.is_dualpipev:
            return (
                pl.when(chunk == 0)
                .then(pl.lit(device, pl.Int32))
                .when(chunk == 1)
                .then(pl.lit(2 * self.pipeline - 1 - device, pl.Int32))
            )
        return pl.lit(device, pl.Int32)

    def members(self, profile: Profile, group: str) -> list[int] | None:
        """Return the global ranks of a communication group, if they are known."""
        groups = self._groups[profile.path]
        said = groups.get(group) if isinstance(groups, dict) else None
        members = said.get("global_ranks") if isinstance(said, dict) else None
        if isinstance(members, list) and all(isinstance(one, int) for one in members):
            return members
        return list(range(self.world)) if self.world and self.world == self.pipeline else None


def _agreed(values: Any) -> Any:
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _ranks(profiles: Sequence[Profile]) -> tuple[list[int], str | None]:
    stated = [profile.rank for profile in profiles]
    ranks = [rank for rank in stated if rank is not None]
    if len(ranks) < len(stated):
        if ranks:
            odd = next(one for one in profiles if one.rank is None)
            raise SourceError(odd.path, "does not say its rank, though other profiles do; leave it")
        return list(range(len(profiles))), "order of the databases' paths"
    for index, rank in enumerate(ranks):
        if rank in ranks[:index]:
            other = profiles[ranks.index(rank)].path
            raise SourceError(
                profiles[index].path,
                f"is of rank {rank}, and so is {other}: give only one of them",
            )
    return ranks, None


def _tasks(
    profile: Profile, rank: int, names: NameParser, place: _Layout
) -> tuple[pl.DataFrame, list[Notice]]:
    """Return the tasks of a rank, in the terms of a timeline and of `numbering`."""
    texts = profile.ranges["message"].unique().sort().to_list()
    messages = {text: parse_message(text, names) for text in texts}
    operations = pl.DataFrame(
        [
            _operation(text, message)
            for text, message in messages.items()
            if message.said and message.said.kind
        ],
        schema={"message": pl.String, **_OPERATION},
        orient="row",
    )
    ranges = _with_steps(
        profile.ranges.join(operations, on="message", maintain_order="left"), profile.steps
    )
    reached = pl.col("end_ns").cum_max().shift(1).fill_null(-1)
    # Within or across another, as when one decorated function calls another: the first one counts.
    kept = ranges.filter(pl.col("start_ns") >= reached)
    notices = []
    if inner := ranges.height - kept.height:
        notices.append(
            Notice(
                "overlapping-ranges",
                f"{inner} of {ranges.height} ranges of rank {rank} lie within or across another and "
                "were left out",
                inner,
                ranges.height,
            )
        )
    blank = {"pair_microbatch": pl.Int32, "pair_chunk": pl.Int16, "pair_stage": pl.Int32}
    kept = kept.with_columns(
        pl.lit(None, dtype).alias(column) for column, dtype in blank.items()
    ).with_columns(rank=pl.lit(rank, pl.Int32), peer=pl.lit(None, pl.Int32))
    if place.recognises:
        kept, more = _recognised(kept, rank, place)
        notices += more
    elif place.device(rank) is not None:
        kept = kept.with_columns(stage=pl.coalesce("stage", place.stage(rank, pl.col("chunk"))))
    kept = kept.drop("message")
    return pl.concat([kept, _transfers(profile, rank, place, kept)]).drop("output"), notices


def _operation(text: str, message: Message) -> tuple[Any, ...]:
    said = message.said
    if said is None or said.kind is None:
        raise ValueError(text)
    return (
        text,
        message.name,
        said.kind.value,
        LANE_OF[said.kind].value,
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
        found=pl.col("step").cast(pl.Int32), host_start_ns="start_ns", until_ns="end_ns"
    )
    inside = pl.col("host_end_ns") <= pl.col("until_ns")
    return (
        ranges.sort("host_start_ns")
        .join_asof(spans, on="host_start_ns")
        .with_columns(step=pl.coalesce("step", pl.when(inside).then("found")))
        .drop("found", "until_ns")
        .sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)
    )


def _recognised(
    ranges: pl.DataFrame, rank: int, place: _Layout
) -> tuple[pl.DataFrame, list[Notice]]:
    """Find each range's place in the declared schedule, step by step, by what the marks say."""
    device = place.device(rank) or 0
    try:
        planned = dualpipev.order(place.pipeline, device, place.microbatches)
    except ValueError as error:
        return ranges, [Notice("schedule-impossible", f"micro-batches are not named: {error}")]
    letters = [_letter(step.kind.value, step.kind is Kind.OTHER) for step in planned]
    names = [position_name(step, place.microbatches) for step in planned]
    plan = pl.DataFrame(
        [
            (
                index,
                name,
                step.kind.value,
                step.chunk,
                step.microbatch,
                step.pair_chunk,
                step.pair_microbatch,
            )
            for index, (step, name) in enumerate(zip(planned, names, strict=True))
        ],
        schema={
            "place": pl.Int64,
            "plan_name": pl.String,
            "plan_kind": pl.String,
            "plan_chunk": pl.Int16,
            "plan_microbatch": pl.Int32,
            "plan_pair_chunk": pl.Int16,
            "plan_pair_microbatch": pl.Int32,
        },
        orient="row",
    )
    parts, notices = [], []
    unstepped = ranges["step"].null_count() == ranges.height
    for (step,), part in ranges.group_by("step", maintain_order=True):
        ran = [_letter(kind, output) for kind, output in part.select("kind", "output").iter_rows()]
        # Without the profiler's steps, as many as it takes are one after the other.
        repeats = max(1, round(len(ran) / len(letters))) if unstepped else 1
        found = dualpipev.align(ran, letters * repeats)
        places = pl.Series("place", found.places, dtype=pl.Int64)
        placed = part.with_columns(places.replace(-1, None))
        if unstepped:
            number = (pl.col("place") // len(letters)).cast(pl.Int32)
            placed = placed.with_columns(
                place=pl.col("place") % len(letters), step=number.forward_fill().fill_null(0)
            )
        parts.append(placed)
        if found.missing or found.extra:
            notices.append(_misfit(rank, step, found, names * repeats, len(ran)))
    columns = ["name", "kind", "chunk", "microbatch", "pair_chunk", "pair_microbatch"]
    joined = pl.concat(parts or [ranges.with_columns(place=pl.lit(None, pl.Int64))]).join(
        plan, on="place", how="left", maintain_order="left"
    )
    output = pl.when("output").then(pl.lit(Kind.OTHER.value)).otherwise("kind")
    filled = joined.with_columns(kind=output).with_columns(
        pl.coalesce(f"plan_{column}", column).alias(column) for column in columns
    )
    return (
        filled.with_columns(
            stage=place.stage(rank, pl.col("chunk")),
            pair_stage=place.stage(rank, pl.col("pair_chunk")),
            splits=pl.lit(value=False),
        ).select(ranges.columns),
        notices,
    )


def _letter(kind: str, output_layer: bool | None) -> str:
    """Return what a mark and the schedule both know of an operation."""
    if output_layer:
        return OUTPUT_LAYER
    return Kind.BACKWARD.value if kind == Kind.BACKWARD_INPUT.value else kind


def position_name(step: dualpipev.Step, microbatches: int) -> str:
    """Name an operation as Ascend's pipeline chart does.

    Micro-batches of chunk 1 count on from those of chunk 0: "7F+13B" of 10 is the forward of 7 with
    the backward of 3 of chunk 1.
    """
    number = step.microbatch + microbatches * step.chunk
    if step.kind is Kind.OTHER:
        return OUTPUT_LAYER
    if step.kind is Kind.FORWARD:
        return f"{number}F" if step.apart else str(number)
    if step.kind is Kind.FORWARD_BACKWARD:
        back = (step.pair_microbatch or 0) + microbatches * (step.pair_chunk or 0)
        return f"{number}F+{back}B"
    ending = {Kind.BACKWARD: "B", Kind.BACKWARD_INPUT: "b", Kind.BACKWARD_WEIGHT: "w"}
    return f"{number}{ending[step.kind]}"


def _misfit(rank: int, step: Any, found: dualpipev.Alignment, names: list[str], ran: int) -> Notice:
    """Say which operations of the schedule did not run, as exactly as it can be told."""
    placed = {place for place in found.places if place >= 0}
    absent = [name for index, name in enumerate(names) if index not in placed]
    which = ", ".join(absent[:12]) + (", ..." if len(absent) > 12 else "")
    unsure = sum(place < 0 for place in found.places)
    parts = []
    if found.missing:
        exact = len(absent) == found.missing
        parts.append(f"{found.missing} are missing {'(' if exact else '(among '}{which})")
    if found.extra:
        parts.append(f"{found.extra} are more than it has")
    if unsure:
        parts.append(f"{unsure} are named by their kind alone")
    text = (
        f"rank {rank}, step {step}: {ran} ranges where the schedule has {len(names)}: "
        f"{'; '.join(parts)}"
    )
    return Notice("schedule-misfit", text, found.missing or found.extra, len(names))


def _transfers(profile: Profile, rank: int, place: _Layout, tasks: pl.DataFrame) -> pl.DataFrame:
    """Return communication operators as tasks; on a plain pipeline the peer tells their direction."""
    groups = profile.operations["group"].unique().to_list()
    ends = pl.DataFrame(
        [
            (group, index, member)
            for group in groups
            for index, member in enumerate(place.members(profile, group) or [])
        ],
        schema={"group": pl.String, "target": pl.Int64, "peer": pl.Int32},
        orient="row",
    )
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


def _numbered(
    tasks: pl.DataFrame, profiles: Sequence[Profile], place: _Layout
) -> tuple[pl.DataFrame, dict[str, str], list[Notice]]:
    """Fill what neither marks nor schedule say; the profiler's own steps are believed."""
    if place.recognises:
        return tasks.drop("splits"), {"microbatch": "place in the declared schedule"}, []
    markers = pl.DataFrame(
        schema={
            "rank": pl.Int32,
            "start_ns": pl.Int64,
            "end_ns": pl.Int64,
            "step": pl.Int64,
        }
    )
    if all(profile.steps.height for profile in profiles):
        unsaid = tasks.filter(pl.col("step").is_null())
        numbered, inferred, notices = numbering.number(tasks.drop_nulls("step"), markers)
        tasks = pl.concat([numbered, unsaid.select(numbered.columns)], how="vertical_relaxed")
        if lost := unsaid.filter(pl.col("lane") == Lane.COMPUTE.value).height:
            text = f"{lost} of {tasks.height} tasks lie in no step of the profiler"
            notices.append(Notice("outside-steps", text, lost, tasks.height))
        return tasks, inferred, notices
    return numbering.number(tasks, markers)


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
