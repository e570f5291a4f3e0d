"""Pipeline dumps of AMD's Primus: device times of forwards and backwards, a file for each rank.

`--dump_pp_data` writes `pp_rank_{k}.json` (iteration -> lists of milliseconds since the rank's own
start of that iteration) for one data-parallel replica, and `config.json`
(AMD-AGI/Primus, `primus/modules/trainer/megatron/utils.py`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope.model.errors import SourceError
from bubblescope.model.kinds import Kind
from bubblescope.model.provenance import Contents, Notice
from bubblescope.model.timeline import RANK_SCHEMA, Timeline
from bubblescope.sources.assembly import assembled, refuse_doubles
from bubblescope.sources.plausibility import impossible_times

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bubblescope.sources.source import ReadOptions

_RANK: Final = re.compile(r"pp_rank_(\d+)\.json")
_CONFIG: Final = "config.json"
_LONGEST_MS: Final = 86_400_000.0
_PASSES: Final = {"fwd": "F", "bwd": "B", "wgrad": "W"}
_RAW: Final = {
    "step": pl.Int32,
    "way": pl.String,
    "microbatch": pl.Int32,
    "chunk": pl.Int16,
    "start": pl.Float64,
    "end": pl.Float64,
}


class _Config(msgspec.Struct):
    """The job's sizes."""

    pp_size: int | None = None
    vp_size: int | None = None
    num_mbs: int | None = None


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
        options.progress.begin("reading dumps", len(dumps))
        config, notices = _config(dumps[0].with_name(_CONFIG))
        single = config.vp_size in {None, 1}
        numbers = [int(_RANK.findall(path.name)[0]) for path in dumps]
        refuse_doubles(zip(numbers, dumps, strict=True), "give one run")
        parts, totals, contents = [], [], []
        for rank, path in zip(numbers, dumps, strict=True):
            iterations = _decode(path)
            tasks, total, more = _tasks(path, iterations, single=single)
            notices += more
            parts.append(tasks.with_columns(rank=pl.lit(rank, pl.Int32)))
            totals.append(total)
            contents.append(
                Contents(
                    path=str(path),
                    host=None,
                    process=None,
                    counts={"iterations": len(iterations), "tasks": tasks.height},
                )
            )
            options.progress.advance()
        notices += _incomplete(parts, config)
        tasks = _laid_out(pl.concat(parts), pl.concat(totals))
        known = pl.lit(None, pl.Int32) if not single else pl.col("rank")
        ranks = pl.DataFrame(
            [
                {"rank": rank, "host": "unknown", "stages": [rank] if single else None, "dp": 0}
                for rank in sorted(numbers)
            ],
            schema=RANK_SCHEMA,
        )
        return assembled(
            "primus",
            [(None, path) for path in dumps],
            tasks.with_columns(stage=known),
            ranks,
            notices=(_no_common_clock(), *notices),
            contents=contents,
            world=config.pp_size,
            inferred={"microbatch": "order within the iteration"} if single else {},
            microbatches=config.num_mbs,
            common_clock=False,
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
        return msgspec.json.decode(path.read_bytes(), type=_Config), []
    except OSError:
        text = f"there is no {path}, so it is not known how many ranks and micro-batches there are"
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        text = f"{path} makes no sense ({error}) and was not used"
    return _Config(), [Notice("no-config", text)]


def _decode(path: Path) -> dict[str, dict[str, Any]]:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, Any]])
    except OSError as error:
        raise SourceError(path, f"cannot be read ({error.strerror})") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SourceError(path, f"is no Primus dump, or is damaged ({error}); dump again") from None
    if not all(key.isdecimal() and len(key) < 10 for key in found):
        raise SourceError(path, "is no Primus dump: its keys are not the numbers of iterations")
    return found


def _tasks(
    path: Path, iterations: dict[str, dict[str, Any]], *, single: bool
) -> tuple[pl.DataFrame, pl.DataFrame, list[Notice]]:
    """Return a rank's tasks and the length of each iteration, both from its own zero."""
    columns: dict[str, list[Any]] = {name: [] for name in _RAW}
    total = lost = 0
    for key, said in iterations.items():
        for way in _PASSES:
            start, end = (_numbers(path, said, f"{way}_{edge}") for edge in ("start", "end"))
            size = min(len(start), len(end))
            total, lost = total + max(len(start), len(end)), lost + abs(len(start) - len(end))
            columns["step"] += [int(key)] * size
            columns["way"] += [way] * size
            columns["microbatch"] += _labels(said, f"{way}_minibatch", size, ordered=single)
            columns["chunk"] += _labels(said, f"{way}_chunk", size, ordered=False)
            columns["start"] += start[:size]
            columns["end"] += end[:size]
    raw = pl.DataFrame(columns, schema=_RAW)
    sound = raw.filter(
        pl.col("start").is_between(-1.0, _LONGEST_MS),
        pl.col("end").is_between(pl.col("start"), _LONGEST_MS),
    )
    tasks = _kinds(
        sound.with_columns(
            start_ns=(pl.col("start") * 1e6).round().cast(pl.Int64),
            end_ns=(pl.col("end") * 1e6).round().cast(pl.Int64),
        ).drop("start", "end")
    )
    stated = pl.DataFrame(
        [(int(key), _length_ns(said)) for key, said in iterations.items()],
        schema={"step": pl.Int32, "stated": pl.Int64},
        orient="row",
    )
    lengths = stated.join(
        tasks.group_by("step").agg(pl.col("end_ns").max()), on="step", how="left"
    ).select("step", length_ns=pl.max_horizontal("stated", "end_ns"))
    lost += raw.height - sound.height
    return tasks, lengths, impossible_times(lost, total, "tasks", str(path))


def _length_ns(said: dict[str, Any]) -> int:
    """Return the length of an iteration that a dump states, or 0."""
    stated = said.get("total")
    sane = isinstance(stated, (int, float)) and 0 <= stated < _LONGEST_MS
    return round(float(stated or 0) * 1e6) if sane else 0


def _numbers(path: Path, said: dict[str, Any], name: str) -> list[float]:
    values = said.get(name, [])
    if not isinstance(values, list) or not all(
        isinstance(value, (int, float)) and not isinstance(value, bool) for value in values
    ):
        raise SourceError(path, f"{name} is no list of milliseconds; dump again")
    return list(map(float, values))


def _labels(said: dict[str, Any], name: str, size: int, *, ordered: bool) -> list[int | None]:
    """Return micro-batch or chunk numbers: as they stand, in order, or unknown."""
    values = said.get(name)
    if (
        isinstance(values, list)
        and len(values) >= size
        and all(isinstance(value, int) and 0 <= value < 2**15 for value in values)
    ):
        return list(values[:size])
    return list(range(size)) if ordered else [None] * size


def _kinds(tasks: pl.DataFrame) -> pl.DataFrame:
    """Tell fused from split backwards, and join the halves of passes that were timed as one."""
    split = (tasks["way"] == "wgrad").any()
    backward = Kind.BACKWARD_INPUT if split else Kind.BACKWARD
    kinds = {"fwd": Kind.FORWARD, "bwd": backward, "wgrad": Kind.BACKWARD_WEIGHT}
    named = tasks.with_columns(
        kind=pl.col("way").replace_strict({way: kind.value for way, kind in kinds.items()}),
        lane=pl.lit("compute"),
        name=pl.concat_str(
            pl.col("way").replace_strict(_PASSES),
            pl.col("microbatch").cast(pl.String).fill_null(""),
        ),
    )
    key = ["step", "start_ns", "end_ns"]
    forwards = named.filter(way="fwd")
    halves = named.filter(way="bwd").select(
        *key, pair_microbatch="microbatch", pair_chunk="chunk", half="name"
    )
    blank = {"pair_microbatch": pl.Int32, "pair_chunk": pl.Int16}
    pairs = forwards.join(halves, on=key)
    if not pairs.height:
        return named.with_columns(pl.lit(None, dtype).alias(name) for name, dtype in blank.items())
    alone = named.filter(pl.col("way") != "wgrad").join(pairs, on=key, how="anti")
    both = pairs.with_columns(
        kind=pl.lit(Kind.FORWARD_BACKWARD.value), name=pl.col("name") + "+" + pl.col("half")
    ).drop("half")
    rest = pl.concat([alone, named.filter(way="wgrad")]).with_columns(
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


def _incomplete(parts: list[pl.DataFrame], config: _Config) -> list[Notice]:
    """Compare the forwards that are there with what the job says it has."""
    notices = []
    if config.num_mbs:
        expected = config.num_mbs * (config.vp_size or 1)
        forward = pl.col("kind").is_in([Kind.FORWARD.value, Kind.FORWARD_BACKWARD.value])
        counts = pl.concat(part.filter(forward) for part in parts).group_by("rank", "step").len()
        odd = counts.filter(pl.col("len") != expected).height
        if odd:
            text = (
                f"{odd} of {counts.height} iterations of ranks do not have the {expected} forwards "
                "that config.json says"
            )
            notices.append(Notice("unexpected-microbatches", text, odd, counts.height))
    return notices
