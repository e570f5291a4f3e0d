"""What readers of the guides have on disk: a trace for every name that stands in a command there."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

import job_trace_maker
import primus_maker
from bubblescope.schedules import generate, torch_csv
from nsight_maker import UTC, Export
from places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = ROOT / "examples"
LLAMA = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}


def lay_out(folder: Path) -> None:
    """Put it all into an empty folder."""
    nsight, demo = EXAMPLES / "traces" / "nsight", EXAMPLES / "demo"
    shutil.copytree(EXAMPLES, folder / "examples")
    for name in ("traces", "TRACES", "TRACE", "PATH", "BEFORE", "AFTER"):
        (folder / name).symlink_to(nsight, target_is_directory=True)
    for name, run in {"before": "1f1b", "after": "zb-h1", "A": "1f1b", "B": "zb-h1"}.items():
        (folder / name).symlink_to(demo / run, target_is_directory=True)
    for number in (0, 1):
        export = f"node{number}.sqlite"
        (folder / export).symlink_to(nsight / export)
        (folder / f"node{number}").mkdir()
        (folder / f"node{number}" / export).symlink_to(nsight / export)
    shutil.copytree(EXAMPLES / "traces" / "paddle", folder / "log_dir")
    shutil.copytree(EXAMPLES / "traces" / "ascend", folder / "profiles")
    for rank in range(4):
        machine = folder / "machines" / f"machine{rank // 2}"
        machine.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "log_dir" / f"workerlog.{rank}", machine / f"workerlog.{rank % 2}")
    _recording(folder / "recording")
    _own_names(folder / "trace.sqlite")
    for name in ("trace-ST.parquet", "trace-SE.parquet"):
        job_trace_maker.make(folder / name, replicas=2, steps=2, chunks=1, overlapped=False)
    orders = primus_maker.interleaved(2, 2, 4)
    primus_maker.dump(folder / "pp_data", orders, config={"pp_size": 2, "vpp_size": 2})
    torch_csv.write(generate("1f1b", 4, 8), folder / "mine.csv")
    (folder / "config.json").write_text(json.dumps(LLAMA))
    page = (ROOT / "docs" / "nsight.md").read_text("utf-8")
    names = re.search(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert names is not None
    (folder / "names.toml").write_text(names[1])


def _recording(folder: Path) -> None:
    """Write a recording of two attempts."""
    for attempt, run in enumerate(("1f1b", "zb-h1"), 1):
        target = folder / f"attempt-{attempt:04}"
        shutil.copytree(EXAMPLES / "demo" / run, target)
        (target / "attempt.json").write_text("{}")


def _own_names(path: Path) -> None:
    """Write an export whose ranges have names of their own."""
    export = Export("node0", UTC)
    process = export.process(1)
    at = 1_000_000
    for step in range(2):
        names = [
            f"round {step}",
            *(f"{word} {mb}" for mb in range(2) for word in ("Compute", "Grad", "GradW")),
        ]
        names += [f"{way}_mb{mb}_chunk0" for mb in range(2) for way in ("fwd", "bwd")]
        for name in names:
            process.range(name, at, at + 1000)
            process.kernel(at + 5000, at + 9000, at=at + 10)
            at += 10_000
    export.write(path)
