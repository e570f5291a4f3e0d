"""Pipeline dumps of AMD's Primus: device times of forwards and backwards, a file for each rank.

`--dump_pp_data` writes `pp_rank_{k}.json` (iteration -> lists of milliseconds since the rank's own
start of that iteration) for one data-parallel replica, and `config.json`
(AMD-AGI/Primus, `primus/backends/megatron/core/pipeline_parallel/pp_visualizer.py`); its simulator
writes the same (`primus/core/projection/performance_projection/simulator.py`). Primus's own schedules
say which micro-batch and chunk a pass is of, Megatron's interleaved one does not.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
import polars as pl

from bubblescope.model.bounds import UNDECODABLE
from bubblescope.model.decoders import prepared
from bubblescope.model.errors import SourceError, reason
from bubblescope.model.kinds import Kind
from bubblescope.model.provenance import Contents, Notice
from bubblescope.model.timeline_tables import RANK_SCHEMA
from bubblescope.model.timing import DEVICE
from bubblescope.sources import megatron_order
from bubblescope.sources.assembly import assembled, rank_in_name, refuse_doubles
from bubblescope.sources.megatron_order import BACKWARD, FORWARD, WEIGHT
from bubblescope.sources.parallel import read_each
from bubblescope.sources.plausibility import impossible_times

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bubblescope.model.progress import Progress
    from bubblescope.model.timeline import Timeline
    from bubblescope.sources.source import ReadOptions

_RANK: Final = re.compile(r"pp_rank_(\d+)\.json")
_CONFIG: Final = "config.json"
_LONGEST_MS: Final = 86_400_000.0
_PASSES: Final = {FORWARD: "F", BACKWARD: "B", WEIGHT: "W"}
_RAW: Final = {
    "step": pl.Int32,
    "way": pl.String,
    "nth": pl.Int64,
    "microbatch": pl.Int32,
    "chunk": pl.Int16,
    "start": pl.Float64,
    "end": pl.Float64,
}


_Size = Annotated[int, msgspec.Meta(ge=1, lt=2**15)]


class _Config(msgspec.Struct):
    """The job's sizes, under the names that Primus's trainer or its simulator gives them."""

    pp_size: _Size | None = None
    vp_size: _Size | None = None
    vpp_size: _Size | None = None
    num_mbs: _Size | None = None
    micro_batches: _Size | None = None

    @property
    def chunks(self) -> int | None:
        """Model chunks on each rank."""
        return self.vp_size or self.vpp_size

    @property
    def microbatches(self) -> int | None:
        """Micro-batches of a step."""
        return self.num_mbs or self.micro_batches


class _Iteration(msgspec.Struct):
    """What a dump says of an iteration: lists of milliseconds, and in some the numbers of passes."""

    total: Any = None
    fwd_start: list[float] = []
    fwd_end: list[float] = []
    fwd_minibatch: Any = None
    fwd_chunk: Any = None
    bwd_start: list[float] = []
    bwd_end: list[float] = []
    bwd_minibatch: Any = None
    bwd_chunk: Any = None
    wgrad_start: list[float] = []
    wgrad_end: list[float] = []
    wgrad_minibatch: Any = None
    wgrad_chunk: Any = None


_DECODER: Final = msgspec.json.Decoder(dict[str, _Iteration])


class _Numbered(NamedTuple):
    """Tasks with the numbers that the dumps leave unsaid.

    Attributes:
        tasks: With microbatch, chunk and stage, null where nothing tells.
        stages: Rank -> its stages, chunk by chunk; empty if it is not known which.
        inferred: Field -> how it was inferred.
        notices: What contradicts, if anything does.
    """

    tasks: pl.DataFrame
    stages: dict[int, list[int]]
    inferred: dict[str, str]
    notices: list[Notice]


class _Dump(NamedTuple):
    """What one rank dumped.

    Attributes:
        passes: Its passes, from its own zero of each iteration.
        lengths: Frame with step and length_ns.
        contents: What it holds.
        notices: What could not be read.
    """

    passes: pl.DataFrame
    lengths: pl.DataFrame
    contents: Contents
    notices: list[Notice]


class PrimusSource:
    """Reads the dumps of one pipeline."""

    name = "primus"
    summary = "pipeline dumps of AMD's Primus (pp_rank_K.json)"

    def detect(self, path: Path) -> bool:
        """Recognise the dumps by their names, and the configuration beside them."""
        if not path.is_file():
            return False
        if path.name == _CONFIG:
            return any(_RANK.fullmatch(one.name) for one in path.parent.iterdir())
        return _RANK.fullmatch(path.name) is not None

    def read(self, paths: Sequence[Path], options: ReadOptions) -> Timeline:
        """Read the dumps of all ranks; they share no clock.

        Raises:
            SourceError: A dump is damaged, or two are of one rank.
        """
        dumps = [path for path in paths if path.name != _CONFIG]
        if not dumps:
            raise SourceError(
                paths[0], "is a configuration only; give the pp_rank_K.json files too"
            )
        config, notices = _config(dumps[0].with_name(_CONFIG))
        numbers = [rank_in_name(path, _RANK.findall(path.name)[0]) for path in dumps]
        refuse_doubles(zip(numbers, dumps, strict=True), "give one run")
        read = read_each(_read, dumps, options, what="reading dumps")
        notices += [notice for dump in read for notice in dump.notices]
        passes = pl.concat(
            dump.passes.with_columns(rank=pl.lit(rank, pl.Int32))
            for rank, dump in zip(numbers, read, strict=True)
        )
        notices += _incomplete(passes, config)
        found = _numbered(passes, config, config.pp_size or max(numbers) + 1)
        ranks = pl.DataFrame(
            [
                {"rank": rank, "host": "unknown", "stages": found.stages.get(rank), "dp": 0}
                for rank in sorted(numbers)
            ],
            schema=RANK_SCHEMA,
        )
        return assembled(
            "primus",
            [(None, path) for path in dumps],
            _laid_out(found.tasks, pl.concat(dump.lengths for dump in read)),
            ranks,
            notices=(_no_common_clock(), *notices, *found.notices),
            contents=(dump.contents for dump in read),
            world=config.pp_size,
            inferred=found.inferred,
            microbatches=config.microbatches,
            common_clock=False,
            timed=DEVICE,
        )


def _no_common_clock() -> Notice:
    return Notice(
        "no-common-clock",
        "every rank counts from its own start of an iteration: the ranks share no clock, so times of "
        "different ranks must not be compared; --clock solve aligns them by what must come before "
        "what",
    )


def _config(path: Path) -> tuple[_Config, list[Notice]]:
    try:
        said = path.read_bytes() if path.is_file() else None  # a pipe would be waited for
        if said is not None:
            return msgspec.json.decode(said, type=prepared(_Config)), []
        text = f"there is no {path}, so it is not known how many ranks and micro-batches there are"
    except UNDECODABLE as error:
        text = f"{path} is invalid ({reason(error)}) and was not used"
    return _Config(), [Notice("no-config", text)]


def _decode(path: Path) -> dict[str, _Iteration]:
    try:
        found = _DECODER.decode(path.read_bytes())
    except OSError as error:
        raise SourceError(path, f"cannot be read ({error.strerror})") from None
    except UNDECODABLE as error:
        raise SourceError(
            path, f"is not a Primus dump, or is damaged ({reason(error)}); dump again"
        ) from None
    if not all(key.isdecimal() and len(key) < 10 for key in found):
        raise SourceError(path, "is not a Primus dump: its keys are not the numbers of iterations")
    return found


def _read(path: Path, _: Progress) -> _Dump:
    iterations = _decode(path)
    passes, lengths, notices = _passes(path, iterations)
    counts = {"iterations": len(iterations), "tasks": passes.height}
    contents = Contents(path=str(path), host=None, process=None, counts=counts)
    return _Dump(passes, lengths, contents, notices)


def _passes(
    path: Path, iterations: dict[str, _Iteration]
) -> tuple[pl.DataFrame, pl.DataFrame, list[Notice]]:
    """Return a rank's passes and the length of each iteration, both from its own zero."""
    columns: dict[str, list[Any]] = {name: [] for name in _RAW}
    total = lost = 0
    for key, said in iterations.items():
        for way in _PASSES:
            start, end = (getattr(said, f"{way}_{edge}") for edge in ("start", "end"))
            size = min(len(start), len(end))
            total, lost = total + max(len(start), len(end)), lost + abs(len(start) - len(end))
            columns["step"] += [int(key)] * size
            columns["way"] += [way] * size
            columns["nth"] += range(size)
            columns["microbatch"] += _labels(getattr(said, f"{way}_minibatch"), size)
            columns["chunk"] += _labels(getattr(said, f"{way}_chunk"), size)
            columns["start"] += start[:size]
            columns["end"] += end[:size]
    raw = pl.DataFrame(columns, schema=_RAW)
    sound = raw.filter(
        pl.col("start").is_between(-1.0, _LONGEST_MS),
        pl.col("end").is_between(pl.col("start"), _LONGEST_MS),
    )
    passes = sound.with_columns(
        start_ns=(pl.col("start") * 1e6).round().cast(pl.Int64),
        end_ns=(pl.col("end") * 1e6).round().cast(pl.Int64),
    ).drop("start", "end")
    stated = pl.DataFrame(
        [(int(key), _length_ns(said)) for key, said in iterations.items()],
        schema={"step": pl.Int32, "stated": pl.Int64},
        orient="row",
    )
    lengths = stated.join(
        passes.group_by("step").agg(pl.col("end_ns").max()), on="step", how="left"
    ).select("step", length_ns=pl.max_horizontal("stated", "end_ns"))
    lost += raw.height - sound.height
    return passes, lengths, impossible_times(lost, total, "tasks", str(path))


def _length_ns(said: _Iteration) -> int:
    """Return the length of an iteration that a dump states, or 0."""
    stated = said.total
    sane = isinstance(stated, (int, float)) and 0 <= stated < _LONGEST_MS
    return round(float(stated or 0) * 1e6) if sane else 0


def _labels(values: Any, size: int) -> list[int | None]:
    """Return micro-batch or chunk numbers as they stand, or unknown."""
    if (
        isinstance(values, list)
        and len(values) >= size
        and all(isinstance(value, int) and 0 <= value < 2**15 for value in values)
    ):
        return list(values[:size])
    return [None] * size


def _numbered(passes: pl.DataFrame, config: _Config, devices: int) -> _Numbered:
    """Say which micro-batch, chunk and stage the passes are of.

    With one chunk on each rank, the k-th pass is of micro-batch k and the rank is the stage.
    Otherwise Megatron's order fills what the dumps leave unsaid, and the placement of the chunks is
    one that no dependency contradicts.
    """
    counts = passes.filter(way=FORWARD).group_by("step", "rank").agg(pl.col("nth").max() + 1)
    steps = counts.group_by("step").agg(forwards=pl.col("nth").max())
    passes = passes.join(steps, on="step", how="left")
    early = megatron_order.warm_up(passes)
    labelled = passes["chunk"].max()
    chunks = config.chunks or (
        int(labelled) + 1 if isinstance(labelled, int) else megatron_order.chunks_of(early, devices)
    )
    if chunks == 1:
        known = passes["microbatch"].null_count() == 0
        one = passes.with_columns(
            microbatch=pl.coalesce("microbatch", pl.col("nth").cast(pl.Int32))
        )
        tasks = _kinds(one).with_columns(stage=pl.col("rank"))
        how = {} if known else {"microbatch": "order within the iteration"}
        return _Numbered(tasks, {rank: [rank] for rank in passes["rank"].unique()}, how, [])
    return _interleaved(passes, early, devices, chunks)


def _interleaved(
    passes: pl.DataFrame,
    early: dict[int, tuple[int, int]],
    devices: int,
    chunks: int,
) -> _Numbered:
    """Number passes of several chunks on each rank, and put the numbers to the test.

    Args:
        passes: Passes of all ranks, with `forwards`.
        early: How many forwards come before a rank's first backward, as `warm_up` has it.
        devices: Ranks of the pipeline.
        chunks: Model chunks on each rank.
    """
    from bubblescope.clocks.feasibility import judged  # noqa: PLC0415  slow

    unsaid = [name for name in ("microbatch", "chunk") if passes[name].null_count()]
    # Passes without labels are those of Megatron's own schedule, which deals the chunks out in rounds.
    placements = {"dealt out in rounds": _in_rounds}
    if not unsaid:
        placements["turning around at either end"] = _zigzag
    group: int | str = devices
    if len(unsaid) == 2:  # where either is said, the group does not matter
        group = megatron_order.group_of(early, devices, chunks)
    wrong = group if isinstance(group, str) else ""
    uneven = passes.filter(pl.col("forwards") % chunks != 0)
    if uneven.height and unsaid:
        row = uneven.row(0, named=True)
        wrong = f"step {row['step']} has {row['forwards']} forwards, no multiple of {chunks} chunks"
    if not wrong and isinstance(group, int):
        tasks = _kinds(megatron_order.in_order(passes, chunks, group))
        for way, stage in placements.items():
            placed = _placed(tasks, devices, chunks, stage)
            verdict = judged(placed)
            if verdict.contradiction is not None:
                wrong = wrong or verdict.contradiction
                continue
            checked = f"checked against {verdict.demands:,} dependencies between passes"
            order = f"Megatron's interleaved order in groups of {group} micro-batches"
            if len(unsaid) == 1:
                order = "order of the passes of each " + ("chunk", "micro-batch")["chunk" in unsaid]
            how = dict.fromkeys(unsaid, f"{order}, {checked}")
            how["stage"] = f"chunks {way}, {checked}"
            stages = {
                rank: [stage(rank, chunk, devices) for chunk in range(chunks)]
                for rank in passes["rank"].unique()
            }
            return _Numbered(placed, stages, how, [])
    unknown = "the dumps do not state which chunk a pass is of, and " if unsaid else ""
    text = f"it is not known which stage a pass is of: {unknown}{wrong}"
    blank = passes.with_columns(pl.lit(None, _RAW[name]).alias(name) for name in unsaid)
    tasks = _kinds(blank).with_columns(stage=pl.lit(None, pl.Int32))
    return _Numbered(tasks, {}, {}, [Notice("stages-unknown", text)])


def _in_rounds(rank: int, chunk: int, devices: int) -> int:
    """Return the stage of a rank's chunk where they are dealt out in rounds, as Megatron does."""
    return chunk * devices + rank


def _zigzag(rank: int, chunk: int, devices: int) -> int:
    """Return the stage of a rank's chunk where they turn around at either end, as in ZB-V."""
    return chunk * devices + (devices - 1 - rank if chunk % 2 else rank)


def _placed(
    tasks: pl.DataFrame, devices: int, chunks: int, stage: Callable[[int, int, int], int]
) -> pl.DataFrame:
    """Return tasks with the stages, and those of backward halves, that their chunks are."""
    places = pl.DataFrame(
        [
            (rank, chunk, stage(rank, chunk, devices))
            for rank in tasks["rank"].unique()
            for chunk in range(chunks)
        ],
        schema={"rank": pl.Int32, "chunk": pl.Int16, "stage": pl.Int32},
        orient="row",
    )
    pairs = places.rename({"chunk": "pair_chunk", "stage": "pair_stage"})
    return tasks.join(places, on=["rank", "chunk"], how="left", maintain_order="left").join(
        pairs, on=["rank", "pair_chunk"], how="left", maintain_order="left"
    )


def _kinds(tasks: pl.DataFrame) -> pl.DataFrame:
    """Tell fused from split backwards, and join the halves of passes that were timed as one."""
    split = (pl.col("way") == WEIGHT).any().over("rank")
    kinds = {FORWARD: Kind.FORWARD, BACKWARD: Kind.BACKWARD, WEIGHT: Kind.BACKWARD_WEIGHT}
    kind = pl.col("way").replace_strict({way: kind.value for way, kind in kinds.items()})
    halved = split & (pl.col("way") == BACKWARD)
    named = tasks.with_columns(
        kind=pl.when(halved).then(pl.lit(Kind.BACKWARD_INPUT.value)).otherwise(kind),
        lane=pl.lit("compute"),
        name=pl.concat_str(
            pl.col("way").replace_strict(_PASSES),
            pl.col("microbatch").cast(pl.String).fill_null(""),
        ),
    )
    key = ["rank", "step", "start_ns", "end_ns"]
    forwards = named.filter(way=FORWARD)
    halves = named.filter(way=BACKWARD).select(
        *key, pair_microbatch="microbatch", pair_chunk="chunk", half="name"
    )
    blank = {"pair_microbatch": pl.Int32, "pair_chunk": pl.Int16}
    pairs = forwards.join(halves, on=key)
    if not pairs.height:
        return named.with_columns(pl.lit(None, dtype).alias(name) for name, dtype in blank.items())
    alone = named.filter(pl.col("way") != WEIGHT).join(pairs, on=key, how="anti")
    both = pairs.with_columns(
        kind=pl.lit(Kind.FORWARD_BACKWARD.value), name=pl.col("name") + "+" + pl.col("half")
    ).drop("half")
    rest = pl.concat([alone, named.filter(way=WEIGHT)]).with_columns(
        pl.lit(None, dtype).alias(name) for name, dtype in blank.items()
    )
    return pl.concat([rest, both.select(rest.columns)])


def _laid_out(tasks: pl.DataFrame, lengths: pl.DataFrame) -> pl.DataFrame:
    """Put the iterations one after the other, the zeros of all ranks at the same place."""
    steps = (
        lengths.group_by("step")
        .agg(pl.col("length_ns").max())
        .sort("step")
        .with_columns(shift=pl.col("length_ns").cum_sum() - pl.col("length_ns"))
    )
    return tasks.join(steps.select("step", "shift"), on="step").with_columns(
        pl.col("start_ns", "end_ns") + pl.col("shift")
    )


def _incomplete(passes: pl.DataFrame, config: _Config) -> list[Notice]:
    """Compare the forwards that are there with what the job says it has."""
    if not config.microbatches:
        return []
    expected = config.microbatches * (config.chunks or 1)
    counts = passes.filter(way=FORWARD).group_by("rank", "step").len()
    odd = counts.filter(pl.col("len") != expected).height
    text = (
        f"{odd} of {counts.height} iterations of ranks do not have the {expected} forwards "
        "that config.json says"
    )
    return [Notice("unexpected-microbatches", text, odd, counts.height)] if odd else []
