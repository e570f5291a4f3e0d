"""What fuzz/run found outside of the readers, each as small as it can be."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
import warnings
from contextlib import closing

import polars as pl
import pytest

import bubblescope
import kineto_maker
from ascend_maker import Profile
from bubblescope import Timeline, sources
from bubblescope.analysis import verdict
from bubblescope.analysis.efficiency import Workload
from bubblescope.analysis.finding import Finding
from bubblescope.analysis.mfu import read_model
from bubblescope.analysis.mfu.architectures import ModelError
from bubblescope.analysis.schedule.recognise import recognise
from bubblescope.model import parquet
from bubblescope.model.errors import NamesError, ScheduleError, SourceError, TimelineError, reason
from bubblescope.model.parquet import UNREADABLE
from bubblescope.model.timeline_tables import TABLES
from bubblescope.names.parser import NameParser
from bubblescope.render.text.compare import Comparison
from bubblescope.render.text.report import Report
from bubblescope.schedules import torch_csv
from bubblescope.sources import megatron_order
from fuzz.seeds import TARGETS
from model_files import LLAMA, MEGATRON
from synthetic import one_f_one_b

# Numbers that are claims.


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0F0,0B0\n,2147483647F0\n", "no forward of micro-batch 0 at stage 1$"),
        ("0F0,0B0,0F2147483647\n", "no forward of micro-batch 1 at stage 0$"),
        ("0F0,0F2,0B0,0B2\n", "no forward of micro-batch 1 at stage 0$"),
        ("0F0,0B0,0F0\n", "1 forwards run twice$"),
        ("0F99999999999999999999\n", "row 1, cell 1: '0F9+' has a number that no plan has$"),
        ("0F" + "9" * 5000 + "\n", "row 1, cell 1: '0F9+ is not an action"),
    ],
)
def test_a_plan_is_as_large_as_what_it_holds(tmp_path, text, why):
    path = tmp_path / "own.csv"
    path.write_text(text)
    with pytest.raises(ScheduleError, match=f"^{path}: .*{why}") as refused:
        torch_csv.read(path)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("value", [10**9, 10**30, 10**400])
@pytest.mark.parametrize(("model", "key"), [(LLAMA, "num_hidden_layers"), (MEGATRON, "num_layers")])
def test_a_model_has_no_more_layers_than_can_be_looked_at(tmp_path, model, key, value):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(model))
    assert read_model(path).layers == model[key]
    path.write_text(json.dumps(model | {key: value}))
    with pytest.raises(
        ModelError, match=f"{path}: '{key}' is .*, more than any model has"
    ) as refused:
        read_model(path)
    assert len(str(refused.value)) < 300


def test_no_number_of_a_model_is_too_large_to_be_counted_with(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"hidden_size": 10**400}))
    with pytest.raises(ModelError, match="'hidden_size' is a number of 1329 bits, more than any"):
        read_model(path)


def test_the_stages_that_ranks_declare_are_claims_as_well():
    timeline = one_f_one_b(ranks=2, microbatches=2, steps=1)
    known = recognise(timeline)
    stages = pl.Series([[0], [1, 1_000_000]], dtype=pl.List(pl.Int32))
    began = time.process_time()
    claimed = Timeline(timeline.tasks, timeline.ranks.with_columns(stages=stages), timeline.run)
    assert recognise(claimed).schedule == known.schedule == "1f1b"
    assert time.process_time() - began < 1


def test_micro_batches_that_are_numbered_from_a_thousand_on_are_of_no_known_schedule():
    timeline = one_f_one_b(ranks=2, microbatches=8, steps=2)
    later = timeline.tasks.with_columns(pl.col("microbatch") + 1000)
    assert recognise(timeline).schedule == "1f1b"
    assert recognise(Timeline(later, timeline.ranks, timeline.run)) is None


def test_a_rank_without_forwards_tells_of_no_chunks():
    passes = pl.DataFrame(
        {
            "rank": [0, 0],
            "step": [0, 0],
            "way": ["bwd"] * 2,
            "start_ns": [1, 2],
            "forwards": [None] * 2,
        },
        schema_overrides={"forwards": pl.UInt32},
    )
    early = megatron_order.warm_up(passes)
    assert early == {0: (0, 0)}
    assert megatron_order.chunks_of(early, 2) == 1


def test_a_name_of_thousands_of_digits_means_nothing():
    parser = NameParser()
    for name in ("PP:{}F0", "ProfilerStep#{}", "F{}.0.0"):
        assert parser.parse(name.format(7))
        assert parser.parse(name.format("7" * 5000)) == []


@pytest.mark.parametrize("number", [1 << 20, 10**9, 2**63, 10**30])
def test_a_range_with_an_impossible_number_is_left_out_and_counted(tmp_path, number):
    marked = kineto_maker.Trace()
    profile = Profile()
    for at, microbatch in ((1000, 0), (2000, number), (3000, 1)):
        marked.range(f"PP:0F{microbatch}", at, at + 100)
        marked.kernel(at + 200, at + 300, at=at + 10)
        profile.range({"name": "forward_step", "current_microbatch": microbatch}, at, at + 500)
    (tmp_path / "one").mkdir()
    marked.write(tmp_path / "one" / "rank0.json")
    for path in (tmp_path / "one", profile.write(tmp_path)):
        run = sources.load(path)
        assert run.tasks["microbatch"].to_list() == [0, 1]
        [lost] = [one for one in run.run.warnings if one.code == "impossible-numbers"]
        assert (lost.lost, lost.total) == (1, 3)


def test_a_rank_beyond_all_jobs_is_refused_by_the_name_of_the_file(tmp_path):
    profile = Profile()
    profile.range("forward_step", 100, 200)
    path = profile.write(tmp_path)
    for one in path.parents[1].rglob("profiler_info*.json"):
        one.unlink()
    (path.parents[1] / "profiler_info_1000000000000000000000000000000.json").write_text("{}")
    path.rename(path.with_name("ascend_pytorch_profiler.db"))
    with pytest.raises(SourceError, match="is named after rank 1000000000000000000000000000000"):
        sources.load(tmp_path)


def test_a_counter_beyond_all_numbers_is_left_out(tmp_path):
    trace = kineto_maker.Trace()
    trace.range("PP:0F0", 1000, 1100)
    trace.kernel(1200, 1300, at=1010)
    trace.count(1000, "GPU 0 power", {"W": 300, "V": 10**400})
    trace.write(tmp_path / "rank0.json")
    assert sources.load(tmp_path).counters["value"].to_list() == [300.0]


def test_the_file_that_tells_too_few_devices_is_named(tmp_path):
    TARGETS["model"].seeds["megatron"](tmp_path)
    path = tmp_path / "arguments.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"world_size": 1}))
    run = sources.load(tmp_path / "trace")
    for workload, said in (
        (
            Workload.of(model=path, tokens=1024, peak=1e12),
            f"^{path}: the job is stated to have 1 dev",
        ),
        (
            Workload.of(model=path, tokens=1024, peak=1e12, devices=1),
            "^the job is stated to have 1 dev",
        ),
    ):
        with pytest.raises(ModelError, match=said):
            Report.of(run, workload=workload)


# What users write.


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(?P<kind>F)x{99999999999999999999}", "the repetition number is too large"),
        ("(?P<kind>" + "(" * 5000 + ")" * 5001, "nested too deep|too many"),
        ("(?P<kind>[[bold]])(?P<0x10>1)", "bad character in group name"),
    ],
)
def test_a_pattern_that_python_cannot_take_is_explained(pattern, why):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NamesError, match=why):
            NameParser(pattern)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("F9999999", "'F9999999' has a number that no job has"),
        ("F0 B0", r"has 2 passes, of which 8 were inferred; it is of another trace"),
    ],
)
def test_passes_that_are_not_those_of_the_trace_are_named_by_file_and_rank(tmp_path, text, why):
    TARGETS["names"].seeds["passes"](tmp_path)
    trace, own = tmp_path / "trace", tmp_path / "own.toml"
    assert len(sources.load(trace, names=own))
    own.write_text(f'[passes]\n1 = "{text}"\n')
    with pytest.raises(NamesError, match=f"^{own}, rank 1: {why}"):
        sources.load(trace, names=own)


# Files.


def test_a_pipe_in_place_of_a_database_is_not_read(tmp_path):
    profile = Profile()
    profile.range("forward_step", 1000, 2000)
    path = profile.write(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(SourceError, match="holds no profiler database"):
        sources.load(path.parents[1])


def test_a_saved_run_that_leads_to_itself_is_refused_in_words(tmp_path):
    path = tmp_path / "run.bubbles.parquet"
    path.symlink_to(path)
    with pytest.raises(OSError, match="Too many levels of symbolic links") as refused:
        parquet.read(path)
    assert reason(refused.value) == "Too many levels of symbolic links"


@pytest.mark.parametrize("name", ["missing.json", ""])
def test_a_model_that_cannot_be_opened_is_refused_in_words(tmp_path, name):
    with pytest.raises(ModelError, match=r"cannot be read as JSON \((No such|Is a)[a-z ]*\);"):
        read_model(tmp_path / name)


# Tables.


@pytest.mark.parametrize(
    "nested",
    [pl.struct("step"), pl.concat_list("step"), pl.concat_list("step").list.to_array(1)],
    ids=str,
)
def test_a_column_that_is_nested_is_of_the_wrong_type(nested):
    timeline = one_f_one_b(ranks=1, microbatches=1, steps=1)
    with pytest.raises(TimelineError, match=r"tasks: column step must be Int32, not (S|L|A)"):
        Timeline(timeline.tasks.with_columns(step=nested), timeline.ranks)


@pytest.mark.parametrize(
    ("table", "column", "value", "rule"),
    [
        ("budget", "spent_ns", -1, "spent_ns is not negative"),
        ("budget", "spent_ns", 2**62, "spent_ns fits in it"),
        ("budget", "end_ns", 0, "end_ns is not before start_ns"),
        ("budget", "end_ns", 2**62, "it is no longer than two years"),
        ("activities", "launch_ns", 2**63 - 1, "launch_ns is within 146 years of zero"),
        ("operations", "hidden_ns", -1, "hidden_ns is not negative"),
    ],
)
def test_what_devices_did_takes_no_less_than_no_time(tmp_path, table, column, value, rule):
    TARGETS["kineto"].seeds["packed"](tmp_path)
    run = sources.load(tmp_path, activities=True)
    tables = {name: getattr(run, name) for name in TABLES}
    assert Timeline(run.tasks, run.ranks, run.run, **tables).budget.equals(run.budget)
    changed = tables[table].with_columns(pl.lit(value, pl.Int64).alias(column))
    with pytest.raises(TimelineError, match=f"^{table} row 0: the rule is that {rule}"):
        Timeline(run.tasks, run.ranks, run.run, **tables | {table: changed})


def test_a_saved_timeline_that_breaks_a_rule_is_named(tmp_path):
    path = one_f_one_b(ranks=1, microbatches=1, steps=1).save(tmp_path / "run.bubbles.parquet")
    metadata = {k: v for k, v in pl.read_parquet_metadata(path).items() if k != "ARROW:schema"}
    pl.read_parquet(path).with_columns(x=0).write_parquet(path, metadata=metadata)
    with pytest.raises(SourceError, match=f"^{path}: .*is damaged .tasks: column x is unknown"):
        bubblescope.load(path)


@pytest.mark.parametrize("damage", ["none", "twice"])
def test_names_that_are_there_twice_or_without_a_number_double_nothing(tmp_path, damage):
    TARGETS["nsight"].seeds["parquet"](tmp_path)
    known = sources.load(tmp_path)
    [path] = tmp_path.rglob("StringIds.parquet")
    strings = pl.read_parquet(path)
    none = pl.lit(None, strings.schema["id"])
    odd = strings if damage == "twice" else strings.with_columns(id=none)
    pl.concat([strings, odd]).write_parquet(path)
    assert sources.load(tmp_path).tasks.equals(known.tasks)
    strings.with_columns(id=none).write_parquet(path)
    assert sources.load(tmp_path).tasks.drop("name").equals(known.tasks.drop("name"))


@pytest.mark.parametrize(
    "table", ["string", "info_agent", "info_process", "info_kernel_symbol", "event", "track"]
)
def test_what_rows_refer_to_is_taken_once(tmp_path, table):
    TARGETS["rocpd"].seeds["4.1" if table == "track" else "3"](tmp_path)
    known = sources.load(tmp_path)
    for path in tmp_path.glob("*.db"):
        with closing(sqlite3.connect(path)) as database:
            names = database.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
            ).fetchall()
            [name] = [
                one for (one,) in names if one.startswith((f"rocpd_{table}_", f"rocpd_{table}0"))
            ]
            views = database.execute(
                "SELECT name FROM sqlite_master WHERE type = 'view'"
            ).fetchall()
            for (view,) in views:
                database.execute(f'DROP VIEW "{view}"')
            database.execute(f'CREATE TABLE other AS SELECT * FROM "{name}"')  # without a key
            database.execute(f'DROP TABLE "{name}"')
            database.execute(f'ALTER TABLE other RENAME TO "{name}"')
            database.execute(f'INSERT INTO "{name}" SELECT * FROM "{name}"')
            database.commit()
    assert sources.load(tmp_path).tasks.equals(known.tasks)


def test_a_page_of_a_run_without_anything_to_advise_has_no_remedies():
    assert verdict._of([Finding("verdict", "whole_step", {})], one_f_one_b(1, 1, 1)) == []


def test_runs_that_are_never_idle_can_be_compared(tmp_path):
    TARGETS["paddle"].seeds["steps"](tmp_path)
    run = sources.load(tmp_path)
    assert Report.of(run).bubbles.overall.idle_ns == 0
    assert Comparison.of(run, run).to_dict()


@pytest.mark.parametrize("damage", ["startNs = NULL", "id = 9000000000", "id = -7"])
def test_a_step_of_a_profiler_without_start_or_number_is_left_out_and_counted(tmp_path, damage):
    profile = Profile()
    profile.step(10, 0, 1000)
    profile.step(11, 1000, 2000)
    profile.range("forward_step", 100, 200, host=(50, 60))
    profile.range("backward_step", 1100, 1200, host=(1050, 1060))
    profile.task("KERNEL_AICORE", 100, 200, issued=(50, 55))
    path = profile.write(tmp_path)
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"UPDATE STEP_TIME SET {damage} WHERE id = 11")
        database.commit()
    run = sources.load(path)
    assert run.tasks["kind"].to_list() == ["forward", "backward"]
    [lost] = [one for one in run.run.warnings if one.code == "impossible-times"]
    assert (lost.lost, lost.total) == (1, 4)


def test_intervals_of_which_none_has_a_start_are_left_out_and_counted(tmp_path):
    profile = Profile()
    profile.range("forward_step", 100, 200)
    path = profile.write(tmp_path)
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE TASK SET startNs = NULL")
        database.commit()
    run = sources.load(path)
    assert not len(run)
    [lost] = [one for one in run.run.warnings if one.code == "impossible-times"]
    assert (lost.lost, lost.total) == (1, 1)


# What the head of a page in a Parquet file looks like, by its fields' numbers and kinds: what kind of
# page it is, its size unpacked and packed, and then of a page of values how many they are.
_HEAD = re.compile(
    rb"\x15\x00(\x15[\x80-\xff]*[\0-\x7f]){2}\x2c\x15([\x80-\xff]*[\0-\x7f])", re.DOTALL
)


@pytest.mark.parametrize("columns", [None, ["step"]])
@pytest.mark.parametrize("claimed", [b"\x31", b"\x32"], ids=["-25", "25"])
def test_a_page_that_claims_more_than_its_column_has_does_not_end_the_process(
    tmp_path, claimed, columns
):
    path = tmp_path / "24.parquet"
    pl.DataFrame({"rank": range(24), "step": [None, *range(23)]}).write_parquet(
        path, statistics=False
    )
    heads = [*_HEAD.finditer(path.read_bytes())]
    assert [one[2] for one in heads] == [b"\x30"] * 2  # 24, zigzag
    assert parquet.read(path, columns).height == 24
    at = heads[1].end()
    path.write_bytes(path.read_bytes()[: at - 1] + claimed + path.read_bytes()[at:])
    for source in (path, path.read_bytes()):
        with pytest.raises(UNREADABLE, match="a page's head is not of what it holds"):
            parquet.read(source, columns)
        assert parquet.read(source, ["rank"]).height == 24


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_pages_of_every_kind_are_believed(tmp_path, version):
    path = tmp_path / "pages.parquet"
    rows = 5000
    table = pl.DataFrame(
        {
            "number": range(rows),
            "text": [f"{row % 7}" for row in range(rows)],
            "list": [[row] * (row % 3) for row in range(rows)],
            "null": pl.Series([None] * rows, dtype=pl.Int64),
            "real": [row / 7 for row in range(rows)],
            "flag": [row % 2 == 0 for row in range(rows)],
            "kind": pl.Series(["b"] * rows, dtype=pl.Enum(["a", "b", "c"])),
        }
    )
    how = {"data_page_version": version, "row_group_size": 1500, "data_page_size": 1000}
    table.write_parquet(path, use_pyarrow=True, pyarrow_options=how)
    assert parquet.read(path).equals(table.cast({"kind": parquet.read(path).schema["kind"]}))
    for few in (table, table[:1], table[:0]):
        few.write_parquet(path, row_group_size=999)
        assert parquet.read(path).equals(few)
