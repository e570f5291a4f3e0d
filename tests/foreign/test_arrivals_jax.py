"""Who waits for whom in FSDP of four JAX processes, whose clocks a program apart has fitted."""

from __future__ import annotations

import csv
import re

import polars as pl
import pytest

from bubblescope import Timeline
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


def recorded(offsets: dict[int, float], hosts: str | list[str] = "h") -> Timeline:
    """Return the run without what clocks are taken to be ahead."""
    rows = [row for rank, offset in offsets.items() for row in collectives(rank, offset)]
    names = ["rank", "start_ns", "end_ns", "operation"]
    operations = pl.DataFrame(rows, schema=names, orient="row").with_columns(
        pl.col("rank").cast(pl.Int32),
        exposed_ns=pl.col("end_ns") - pl.col("start_ns"),
        hidden_ns=pl.lit(0),
        device=pl.lit(0, pl.Int32),
        name=pl.lit("ncclDevKernel"),
    )
    ranks = pl.DataFrame({"rank": range(4), "host": hosts}, schema_overrides={"rank": pl.Int32})
    return Timeline(pl.DataFrame(schema=TASK_SCHEMA), ranks, Run(), operations=operations)


@pytest.mark.parametrize("hosts", ["unknown", ["a", "b", "c", "d"]])
def test_clocks_are_put_where_a_program_apart_has_them(hosts):
    found = align(recorded(dict.fromkeys(OFFSETS, 0.0), hosts), "auto").ranks
    for rank, ahead in OFFSETS.items():
        assert found["clock_offset_ns"][rank] == pytest.approx(-ahead, abs=2_000)
        assert found["clock_error_ns"][rank] < 1_000_000


def test_waits_are_as_counted_by_a_program_apart():
    found = arrivals(recorded(OFFSETS))
    assert found["collectives"].to_list() == [120] * 4
    for own, said in zip(found.to_dicts(), golden("matched").values(), strict=True):
        assert own["waits_ns"] / 1000 == pytest.approx(float(said["wait_us"]), abs=0.2)
        assert own["last"] <= int(said["last_to_start"])
