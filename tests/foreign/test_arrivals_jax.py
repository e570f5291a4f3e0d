"""Who waits for whom in FSDP of four JAX processes, whose clocks a program apart has fitted."""

from __future__ import annotations

import csv
import re

import polars as pl
import pytest

from bubblescope import Timeline, Trace
from bubblescope.analysis.arrivals import arrivals
from bubblescope.clocks import align
from bubblescope.model.provenance import Run
from bubblescope.model.timeline import TASK_SCHEMA
from places import SHARED

FOLDER = SHARED / "communication" / "fsdp4_jax_4proc"
pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="needs the shared traces")
SORTS = {
    "all-gather-start": "allgather",
    "all-reduce-start": "allreduce",
    "reduce-scatter": "reducescatter",
}


def golden(row: str) -> dict[int, dict[str, str]]:
    with (FOLDER / "golden.csv").open() as file:
        rows = [one for one in csv.DictReader(file) if one["row"] == row and one["proc"] != "all"]
    return {int(one["proc"]): dict(re.findall(r"(\w+)=(\S+)", one["extra"])) for one in rows}


def collectives(rank: int, offset_ns: float) -> list[tuple[int, int, int, str]]:
    """Return rank, start, end and operation of NCCL's calls that launched anything."""
    table = pl.read_parquet(FOLDER / f"trace_proc{rank}.parquet")
    names = dict(table.drop_nulls("RangeId").select("RangeId", "Name").iter_rows())
    found = []
    for row in table.filter(Name="NCCL:ncclGroupEnd").filter(pl.col("NumGPUOps") > 0).to_dicts():
        [operation] = re.findall(r"hlo_op=([a-z-]+[a-z])", names[row["ParentId"]])
        start = round(row["Projected Start"] - offset_ns)
        found.append((rank, start, start + row["Projected Duration"], SORTS[operation]))
    return found


OFFSETS = (
    {rank: 1000 * float(of["offset_to_proc0_us"]) for rank, of in golden("clock").items()}
    if FOLDER.exists()
    else {}
)


def operations(offsets: dict[int, float]) -> pl.DataFrame:
    rows = [row for rank, offset in offsets.items() for row in collectives(rank, offset)]
    names = ["rank", "start_ns", "end_ns", "operation"]
    return pl.DataFrame(rows, schema=names, orient="row").with_columns(
        pl.col("rank").cast(pl.Int32),
        exposed_ns=pl.col("end_ns") - pl.col("start_ns"),
        hidden_ns=pl.lit(0),
        device=pl.lit(0, pl.Int32),
        name=pl.lit("ncclDevKernel"),
    )


def fsdp(
    offsets: dict[int, float], hosts: str | list[str] = "h", **tables: pl.DataFrame
) -> Timeline:
    """Return the run without what clocks are taken to be ahead."""
    ranks = pl.DataFrame({"rank": range(4), "host": hosts}, schema_overrides={"rank": pl.Int32})
    none = pl.DataFrame(schema=TASK_SCHEMA)
    return Timeline(none, ranks, Run(), operations=operations(offsets), **tables)


@pytest.mark.parametrize("hosts", ["unknown", ["a", "b", "c", "d"]])
def test_clocks_are_put_where_a_program_apart_has_them(hosts):
    found = align(fsdp(dict.fromkeys(OFFSETS, 0.0), hosts), "auto").ranks
    for rank, ahead in OFFSETS.items():
        assert found["clock_offset_ns"][rank] == pytest.approx(-ahead, abs=2_000)
        assert found["clock_error_ns"][rank] < 1_000_000


def test_waits_are_as_counted_by_a_program_apart():
    found = arrivals(fsdp(OFFSETS))
    assert found["collectives"].to_list() == [120] * 4
    for own, said in zip(found.to_dicts(), golden("matched").values(), strict=True):
        assert own["waits_ns"] / 1000 == pytest.approx(float(said["wait_us"]), abs=0.2)
        assert own["last"] <= int(said["last_to_start"])


def test_processes_that_are_late_are_those_that_wait_least():
    """Of what devices did, only collectives count here: all between them is taken as computation."""
    spent = (
        operations(OFFSETS)
        .group_by("rank")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("exposed_ns").sum())
    )
    whole = pl.col("end_ns") - pl.col("start_ns")
    uses = {"communication": pl.col("exposed_ns"), "compute": whole - pl.col("exposed_ns")}
    columns = ("rank", "start_ns", "end_ns")
    budget = pl.concat(
        [spent.select(*columns, use=pl.lit(use), spent_ns=ns) for use, ns in uses.items()]
    ).with_columns(step=pl.lit(None, pl.Int32))
    found = Trace(fsdp(OFFSETS, budget=budget)).stragglers().to_dict()
    waits = {rank: float(said["wait_us"]) for rank, said in golden("matched").items()}
    late = [row["rank"] for row in found["late_ranks"]]
    assert late == sorted(waits, key=waits.__getitem__)[:2] == [0, 1]
