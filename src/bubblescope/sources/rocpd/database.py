"""What one process left in a rocpd file, in the terms that `bubblescope.sources.projection` shares.

The schema is rocprofiler-sdk's (`share/rocprofiler-sdk-rocpd`): 3.x, in which every event says its
process, thread and device, and 4.x, in which it names a track that does. The names of all tables end in
the UUID of the process that wrote them, so that a merged file holds several of each; the tables of one
UUID are a part here. Ids are each part's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model.errors import SourceError
from bubblescope.model.kinds import Kind
from bubblescope.names.communication_kernels import is_communication_kernel
from bubblescope.names.phase_words import OPTIMIZER_KERNEL
from bubblescope.sources.capture import (
    LAUNCHES,
    RANGES,
    WORK,
    Capture,
    Comm,
    numbered_kernels,
    telling_calls,
    told_by_host,
)
from bubblescope.sources.emit_nvtx import without_numbers
from bubblescope.sources.export_columns import referred_to
from bubblescope.sources.plausibility import possible
from bubblescope.sources.process_exports import DEVICE_NAMES, UNKNOWN, Clues, Export, counted
from bubblescope.sources.rocpd.counters import held_memory
from bubblescope.sources.sqlite import SqliteTables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bubblescope.model.progress import Progress

_LARGE: Final = (
    "event",
    "region",
    "kernel_dispatch",
    "memory_copy",
    "memory_allocate",
    "timestamp",
)
_SMALL: Final = (
    "metadata",
    "string",
    "track",
    "info_node",
    "info_process",
    "info_agent",
    "info_kernel_symbol",
    "info_category",
)
_TEXT: Final = frozenset(
    {"tag", "value", "string", "name", "machine_id", "hostname", "type", "level", "extdata"}
    | {"kernel_name", "display_name", "product_name"}
)
_MARKER, _HIP_CALL, _CALL = range(3)
"""What a region is by its category; of calls, the first to be taken for a launch comes first."""
_NAMES: Final = ("display_name", "kernel_name")
_GENERIC: Final = "devkernel_generic"
"""RCCL has one kernel for sends, receives and all collectives."""


class RocpdExport(Export, frozen=True):
    """What one part of a rocpd file says of itself.

    Attributes:
        machine: What identifies the machine; its processes share a clock.
        events: Number of its kernels and copies.
        impossible: How many of them were dropped because of their times.
        copying: How many calls copy memory if it holds no copies; 0 else.
    """

    machine: str
    events: int
    impossible: int
    copying: int


class Part(SqliteTables):
    """The tables of one UUID of a rocpd file.

    Args:
        path: The file.
        suffix: What the names of the tables end in.
        progress: Is told of rows of large tables.

    Raises:
        SourceError: The file is cut short or damaged.
    """

    def __init__(self, path: Path, suffix: str, progress: Progress) -> None:
        self._suffix = suffix
        large, small = ([self._name(table) for table in group] for group in (_LARGE, _SMALL))
        super().__init__(path, progress, large, small, _TEXT)

    def _name(self, table: str) -> str:
        return f"rocpd_{table}{self._suffix}"

    def table(
        self,
        table: str,
        columns: Sequence[str],
        shrink: Callable[[pl.DataFrame], pl.DataFrame] | None = None,
    ) -> pl.DataFrame:
        """Return the columns of a table by its name in the schema; see `SqliteTables.read`."""
        return self.read(self._name(table), columns, shrink)


class _Events:
    """The events of a part, with what the tables around them say of each.

    Attributes:
        strings: Frame with id and string.
        gpus: Frame with agent, device, its number among the machine's GPUs, and device_name.
        named: Whether names and streams of device work are kept.
    """

    def __init__(self, part: Part, *, named: bool) -> None:
        self._part = part
        self.named = named
        self._places = ["pid", "tid", "agent_id", *["stream_id"] * named]
        self.strings = referred_to(part.table("string", ["id", "string"]))
        agents = referred_to(part.table("info_agent", ["id", "type", "type_index", "product_name"]))
        self.gpus = agents.filter(type="GPU").select(
            agent="id",
            device=pl.coalesce("type_index", "id").cast(pl.Int32, strict=False),
            device_name=pl.when(pl.col("product_name") != "").then("product_name"),
        )
        self._processes = referred_to(part.table("info_process", ["id", "pid"])).drop_nulls()
        self._tracks = referred_to(part.table("track", ["id", *self._places]))
        self._times = referred_to(part.table("timestamp", ["id", "value"])).select(
            "id", time=pl.col("value").cast(pl.Int64, strict=False)
        )
        self._said = self._read_said()

    def _read_said(self) -> pl.DataFrame:
        """Return event_id, role, stack (what tells a process's calls apart) and text of all events."""
        categories = referred_to(self._part.table("info_category", ["id", "name"])).rename(
            {"name": "string"}
        )
        named = pl.col("string").str.to_uppercase()
        call = named.str.contains("_API", literal=True)
        roles = (categories if categories.height else self.strings).select(
            category_id="id",
            role=pl.when(named.str.contains("MARKER", literal=True))
            .then(_MARKER)
            .when(call & named.str.contains("HIP", literal=True))
            .then(_HIP_CALL)
            .when(call)
            .then(_CALL),
        )
        said = self._part.table(
            "event",
            ["id", "category_id", "stack_id", "extdata"],
            lambda piece: piece.join(roles, on="category_id", how="left").select(
                "role",
                event_id="id",
                stack="stack_id",
                text=pl.when(role=_MARKER).then("extdata").str.json_path_match("$.message"),
            ),
        )
        return referred_to(said, "event_id")

    def of(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Return the events of a table that have a process and a start.

        Returns:
            Frame with process, thread, agent, start_ns, end_ns, role, stack, text and `columns`, and
            with stream_id if that was asked for.
        """
        places = self._places
        inline = ["start", "end", "track_id", "start_id", "end_id", "event_id"]
        found = self._part.table(table, [*columns, *places, *inline])
        if found["track_id"].count():
            found = found.drop(places).join(
                self._tracks, left_on="track_id", right_on="id", how="left"
            )
        if found["start_id"].count():
            for edge in ("start", "end"):
                times = self._times.rename({"id": f"{edge}_id", "time": edge})
                found = found.drop(edge).join(times, on=f"{edge}_id", how="left")
        process = pl.col("pid").replace(self._processes["id"], self._processes["pid"])
        return (
            found.join(self._said, on="event_id", how="left")
            .select(
                *columns,
                "role",
                "stack",
                "text",
                *places[3:],
                process=process,
                thread="tid",
                agent="agent_id",
                start_ns="start",
                end_ns="end",
            )
            .drop_nulls(["process", "start_ns"])
        )


def read_part(part: Part, *, named: bool = False) -> tuple[RocpdExport, Capture, Clues]:
    """Read what a part says of itself, and its events in its machine's own time.

    Args:
        part: The part.
        named: Whether to keep the names of device work, and its streams.

    Raises:
        SourceError: A table cannot be read, or is compressed.
    """
    facts = dict(part.table("metadata", ["tag", "value"]).iter_rows())
    if "compression" in facts:
        raise SourceError(
            part.path,
            f"has compressed texts ({facts['compression']}), which cannot be read; record it without "
            "compression",
        )
    events = _Events(part, named=named)
    regions = events.of("region", ["name_id"])
    calls = regions.filter(pl.col("role").is_in([_HIP_CALL, _CALL]))
    ranges = without_numbers(_ranges(regions, events.strings).select(*RANGES))
    kernels, comms, optimizing = _kernels(
        events, referred_to(part.table("info_kernel_symbol", ["id", *_NAMES]))
    )
    copies = _copies(events)
    every = pl.concat([kernels, copies])
    sound = possible(int(every["start_ns"].median() or 0))  # type: ignore[arg-type]  # integers
    work = every.filter(sound)
    nodes = part.table("info_node", ["machine_id", "hostname"])
    machine, host = nodes.row(0) if nodes.height else ("", "")
    copying = calls.clear() if copies.height else _copying(calls, events.strings)
    shown = {
        "kernel-trace": kernels.height,
        "memory-copy-trace": copies.height,
        "hip-runtime-trace": calls.height,
        "marker-trace": ranges.height,
    }
    export = RocpdExport(
        path=str(part.path),
        host=host or machine or "unknown",
        version=facts.get("schema_version"),
        counts=pl.concat(
            counted(frame, what)
            for frame, what in (
                (kernels, "kernels"),
                (copies, "copies"),
                (calls, "calls"),
                (ranges, "ranges"),
            )
        ),
        names=ranges.group_by("process", "name").len("count"),
        counters=held_memory(
            events.of("memory_allocate", ["type", "level", "address", "size"]), events.gpus
        ),
        device_names=work.select("process", "device")
        .unique()
        .join(events.gpus, on="device", how="left")
        .select(*DEVICE_NAMES),
        options=tuple(sorted(name for name, there in shown.items() if there)),
        machine=machine or host,
        events=every.height,
        impossible=every.height - work.height,
        copying=copying.height,
    )
    host, host_names = told_by_host(_telling(calls, events.strings), ranges.select(*RANGES))
    numbers, titles = numbered_kernels(work["title"]) if named else (None, ())
    capture = Capture(
        ranges=ranges.select(*RANGES),
        launches=_launches(calls),
        work=work.select(*WORK),
        comms=comms,
        copies=_COPY_SORTS,
        host=host,
        host_names=host_names,
        unseen=frozenset(copying["string"]) if copying.height else frozenset(),
        kernels=numbers,
        kernel_names=titles,
        optimizer_kernels=optimizing,
    )
    return export, capture, Clues(ranges, pl.Series(dtype=pl.Int64))


def _copying(calls: pl.DataFrame, strings: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that copy memory, with their name as string."""
    names = strings.filter(pl.col("string").str.contains("^hipMemcpy"))
    return calls.join(names, left_on="name_id", right_on="id")


def _telling(calls: pl.DataFrame, strings: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that tell what the host did, as `told_by_host` takes them."""
    named = strings.filter(pl.col("string").str.starts_with("hip")).select("id", name="string")
    found = telling_calls(named, "name_id")(calls).join(named, left_on="name_id", right_on="id")
    return found.select(*RANGES, "doing").drop_nulls()


def _ranges(regions: pl.DataFrame, strings: pl.DataFrame) -> pl.DataFrame:
    """Return ROCTX ranges with their texts, which stand beside or in place of the function's name."""
    function = pl.col("string").str.starts_with("roctx")
    return (
        regions.filter(role=_MARKER)
        .join(strings, left_on="name_id", right_on="id", how="left")
        .select(
            "process",
            "thread",
            "start_ns",
            end_ns=pl.when(pl.col("end_ns") >= pl.col("start_ns")).then("end_ns"),
            name=pl.coalesce(
                pl.when(pl.col("text").ne_missing(pl.col("string"))).then("text"),
                pl.when(~function).then("string"),
            ),
        )
        .drop_nulls(["thread", "name"])
    )


def _launches(calls: pl.DataFrame) -> pl.DataFrame:
    """Return one call for each stack id: HIP's before others, which may be made on its behalf."""
    return (
        calls.filter(pl.col("stack") > 0)
        .drop_nulls("thread")
        .sort("role", "start_ns")
        .unique(["process", "stack"], keep="first", maintain_order=True)
        .rename({"stack": "correlation"})
        .select(*LAUNCHES)
    )


def _kernels(
    events: _Events, symbols: pl.DataFrame
) -> tuple[pl.DataFrame, tuple[Comm, ...], tuple[int, ...]]:
    """Return kernels as work, the sorts of communication kernels, and the kernels of optimizers."""
    whole = pl.coalesce(pl.when(pl.col(name) != "").then(name) for name in _NAMES)
    named = symbols.select(
        kernel_id="id", name=whole.str.extract(r"^([^(]+)").str.strip_chars(), full=whole
    )
    told = named["name"].unique(maintain_order=True).drop_nulls()
    names = [name for name in told if is_communication_kernel(name)]
    sorts = pl.DataFrame({"name": names}, schema={"name": pl.String}).with_row_index("comm")
    numbers = named.select("full").drop_nulls().unique(maintain_order=True).with_row_index("kernel")
    found = (
        events.of("kernel_dispatch", ["kernel_id"])
        .join(named.join(sorts, on="name", how="left"), on="kernel_id", how="left")
        .join(numbers, on="full", how="left")
        .join(events.gpus, on="agent", how="left")
        # Kernels run on GPUs, whatever the table of agents says.
        .with_columns(device=pl.coalesce("device", pl.col("agent").cast(pl.Int32, strict=False)))
    )
    comms = (Comm(name, Kind.OTHER if _GENERIC in name.lower() else None) for name in names)
    optimizing = numbers.filter(pl.col("full").str.contains(OPTIMIZER_KERNEL))["kernel"]
    return _as_work(found, named=events.named), tuple(comms), tuple(optimizing)


def _copies(events: _Events) -> pl.DataFrame:
    """Return copies to or from a GPU, with the columns of `WORK`: of two, the one copied to."""
    agents, devices = events.gpus["agent"], events.gpus["device"]
    ends = ("dst_agent_id", "src_agent_id")
    found = events.of("memory_copy", ends)
    return _as_work(
        found.with_columns(
            device=pl.coalesce(
                pl.col(end).replace_strict(agents, devices, default=None, return_dtype=pl.Int32)
                for end in ends
            ),
            comm=pl.lit(None, pl.Int32),
            full=pl.lit(None, pl.String),
            copy=pl.when(pl.all_horizontal(pl.col(end).is_in(agents.implode()) for end in ends))
            .then(2)
            .when(pl.col(ends[0]).is_in(agents.implode()))
            .then(0)
            .otherwise(1),
        ),
        named=events.named,
    )


_COPY_SORTS: Final = ("HtoD", "DtoH", "DtoD")


def _as_work(events: pl.DataFrame, *, named: bool) -> pl.DataFrame:
    """Return device work with the columns of `WORK`, and, if they are kept, its names as `title`."""
    stream = pl.col("stream_id").cast(pl.Int32, strict=False) if named else pl.lit(None, pl.Int32)
    return (
        events.filter(pl.col("device") >= 0)
        .select(
            "process",
            "device",
            "start_ns",
            "end_ns",
            correlation=pl.col("stack").fill_null(UNKNOWN),
            comm=pl.col("comm").cast(pl.Int32),
            copy=pl.col("copy").cast(pl.Int8)
            if "copy" in events.columns
            else pl.lit(None, pl.Int8),
            stream=stream,
            kernel=pl.col("kernel").cast(pl.Int32)
            if "kernel" in events.columns
            else pl.lit(None, pl.Int32),
            title=pl.col("full") if named else pl.lit(None, pl.String),
        )
        .select(*WORK, *["title"] * named)
    )
