"""Reading our own files, whole, torn or contradictory."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bubblescope
from bubblescope import SourceError, TimelineError, sources
from bubblescope.model import timeline as model
from bubblescope.record import Recorder, recorder
from bubblescope.recording.columns import Membership, runs_of
from full import examples
from recorded_rows import batches, sealed


def record(folder, rank=0, host="here", steps=2):
    with Recorder(folder, rank=rank, host=host) as job:
        job.on_step(lambda _: None)  # so that each step is written by itself
        for _ in range(steps):
            with job.step():
                for i in range(2):
                    with job.task("forward", microbatch=i):
                        pass
    return job.path


def test_a_file_cut_anywhere_gives_its_complete_records_or_one_clear_error(tmp_path):
    path = record(tmp_path)
    whole = sources.load(path).tasks
    data = path.read_bytes()
    lengths = set()
    for size in range(0, len(data), 3):  # messages begin at multiples of eight
        path.write_bytes(data[:size])
        try:
            timeline = sources.load(path)
        except SourceError as error:
            assert str(error).startswith(str(path))  # noqa: PT017  either outcome is right
            continue
        assert timeline.tasks.equals(whole.head(len(timeline)))
        [notice] = timeline.run.warnings
        assert notice.code in {"torn-tail", "unclosed"}
        if notice.code == "torn-tail":
            assert notice.total == size
        lengths.add(len(timeline))
    assert lengths == {0, 2, 4}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\xff\xff", "is cut short: its 2 bytes hold no complete record"),
        (b"not arrow at all", "is not a recording or is damaged"),
        (b"\xff\xff\xff\xff\x08\0\0\0" + b"\xee" * 8, "is not a recording or is damaged"),
    ],
)
def test_what_is_no_recording_is_one_clear_error(tmp_path, content, message):
    path = tmp_path / "rank00000.bubbles"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=message):
        sources.load(path)


def test_a_damaged_header_is_an_error_and_not_a_wrong_number(tmp_path):
    path = record(tmp_path)
    data = bytearray(path.read_bytes())
    middle = data.index(b"\xff\xff\xff\xff", 8)
    data[middle + 8 : middle + 40] = b"\xaa" * 32
    path.write_bytes(data)
    with pytest.raises(SourceError, match="is damaged: the description of its rank"):
        sources.load(path)


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    return record(tmp_path_factory.mktemp("damaged"))


@settings(max_examples=examples(150), deadline=None)
@given(damage=st.dictionaries(st.integers(0, 1 << 16), st.integers(0, 255), min_size=1, max_size=4))
def test_changed_bytes_never_end_in_a_traceback(recording, damage):
    whole = recording.read_bytes()
    data = bytearray(whole)
    for at, value in damage.items():
        data[at % len(data)] = value
    recording.write_bytes(data)
    try:
        sources.load(recording)
    except SourceError as error:
        assert str(error).startswith(str(recording))  # noqa: PT017  either outcome is right
    finally:
        recording.write_bytes(whole)


def test_damage_that_polars_panics_at_is_an_error(tmp_path, monkeypatch):
    def panic(*_, **__):
        raise pl.exceptions.PanicException("not yet implemented")

    path = record(tmp_path)
    monkeypatch.setattr(pl, "read_ipc_stream", panic)
    with pytest.raises(SourceError, match=r"is damaged \(its metadata contradict"):
        sources.load(path)


def test_a_task_that_breaks_the_models_rules_is_an_error_that_names_its_file(tmp_path):
    paths = [record(tmp_path, rank) for rank in range(3)]
    paths[1].write_bytes(sealed(paths[1].read_bytes().replace(b"forward", b"forwarf")))
    for some in ([paths[1]], paths):
        with pytest.raises(
            SourceError, match=r"rank00001\.bubbles: is damaged \(tasks row 0: kind must"
        ):
            sources.load(*some)


@pytest.mark.parametrize(
    ("guessed", "before", "found"),
    [
        # Two pipelines, rank by rank or stage by stage; one; replicas that send each other something.
        ([0, 1, 0, 3], {1: 0, 3: 2}, [(0, 0), (1, 0), (0, 1), (1, 1)]),
        ([0, 0, 2, 3], {2: 0, 3: 1}, [(0, 0), (0, 1), (1, 0), (1, 1)]),
        ([0, 1, 2], {1: 0, 2: 1}, [(0, 9), (1, 9), (2, 9)]),
        ([0, 0], {1: 0}, [(0, 9), (0, 9)]),
        ([0, 1], {1: 2}, [(0, 9), (1, 9)]),
    ],
)
def test_ranks_that_had_to_guess_stand_where_they_receive(tmp_path, guessed, before, found):
    for rank, stage in enumerate(guessed):
        told = {"stages": [stage], "dp": 9, "recorded_by": "loop"}
        with Recorder(tmp_path, rank=rank, **told) as job, job.step():
            if rank in before:
                with job.task("recv_forward", peer=before[rank]):
                    pass
            with job.task("forward", stage=stage, microbatch=0):
                pass
    timeline = sources.load(tmp_path)
    assert timeline.ranks.select(pl.col("stages").list.item(), "dp").rows() == found
    forwards = timeline.tasks.filter(kind="forward").sort("rank")
    assert forwards["stage"].to_list() == [stage for stage, _ in found]


USUAL = "F0 B0 F1 B1"
TRIED = "F0 F1 B1 F2 B2"


@pytest.mark.parametrize(
    ("ranks", "of_rank_1"),
    [
        # Once on one rank; in every step of it; the last micro-batch; and what one rank shows alone.
        ([[USUAL] * 2, [USUAL, TRIED]], [USUAL, "- F0 B0 F1 B1"]),
        ([[USUAL] * 2, [TRIED, TRIED]], ["- F0 B0 F1 B1"] * 2),
        ([[USUAL] * 2, [USUAL, "F0 B0 F1 F2 B2"]], [USUAL, "F0 B0 - F1 B1"]),
        ([[], [USUAL, TRIED]], [USUAL, "- F0 B0 F1 B1"]),
        # Two in a row, and a schedule in which backwards come late.
        ([[USUAL] * 2, [USUAL, "F0 F1 F2 F3 B2 B3"]], [USUAL, "- - F0 F1 B0 B1"]),
        # A generator whose result a discriminator judges; a job that was killed; rounds of all sizes.
        ([[TRIED] * 2, [TRIED] * 2], [TRIED] * 2),
        ([[USUAL] * 2, [USUAL, "F0 B0 F1"]], [USUAL, "F0 B0 F1"]),
        ([["F0 B0", USUAL], ["F0 B0 F1 B1 F2 B2", TRIED]], ["F0 B0 F1 B1 F2 B2", TRIED]),
    ],
)  # fmt: skip
def test_forwards_whose_results_a_loop_did_not_use_are_no_micro_batches(tmp_path, ranks, of_rank_1):
    def recorded(folder, by):
        for rank, steps in enumerate(ranks):
            with Recorder(folder, rank=rank, stages=[0], recorded_by=by) as job:
                for step in steps:
                    with job.step():
                        for one in step.split():
                            kind = {"F": "forward", "B": "backward"}[one[0]]
                            with job.task(kind, stage=0, microbatch=int(one[1])):
                                pass
        timeline = sources.load(folder)
        tasks = timeline.tasks.filter(rank=1).sort("start_ns", "end_ns")
        shown = [
            f"{row['kind'][0].upper()}{row['microbatch']}" if row["kind"] != "other" else "-"
            for row in tasks.iter_rows(named=True)
        ]
        lengths = [len(step.split()) for step in ranks[1]]
        return timeline, [" ".join(shown[: lengths[0]]), " ".join(shown[lengths[0] :])]

    timeline, found = recorded(tmp_path / "loop", "loop")
    assert found == of_rank_1
    said = [notice for notice in timeline.run.warnings if notice.code == "unused-forwards"]
    count = " ".join(of_rank_1).count("-")
    assert [notice.lost for notice in said] == ([count] if count else [])
    assert all(f"rank 1 ran {count} forward" in notice.message for notice in said)
    named = timeline.tasks.filter(kind="other")
    assert set(named["name"]) <= {"forward without backward"}
    assert named["step"].null_count() == 0
    # What a framework's schedule says itself is not doubted.
    assert recorded(tmp_path / "said", "torch")[1] == ranks[1]


def test_a_ranks_stages_are_those_of_its_tasks_where_it_did_not_know_them_as_it_began(tmp_path):
    """As in a loop of a job's own with several models on each rank."""
    for rank in range(2):
        with Recorder(tmp_path, rank=rank) as job, job.step():
            for chunk in (1, 0):
                with job.task("forward", stage=rank + 2 * chunk, chunk=chunk, microbatch=0):
                    pass
    with Recorder(tmp_path, rank=2) as job, job.step(), job.task("forward", stage=7):
        pass
    stages = sources.load(tmp_path).ranks.sort("rank")["stages"].to_list()
    assert stages == [[0, 2], [1, 3], None]


def test_ranks_say_which_groups_they_are_part_of(tmp_path):
    line = {"how": "mesh", "description": "mesh_tp", "name": "7"}
    for rank in range(4):
        pair = (0, 2) if rank % 2 == 0 else (3, 1)
        groups = [
            Membership(runs_of(pair), "tp", **line),
            Membership(runs_of(range(4))),
        ]
        place = {"dp": rank % 2, "tp": pair.index(rank), "edp": 0}
        with Recorder(tmp_path, rank=rank, **place, groups=groups):
            pass
    timeline = sources.load(tmp_path)
    assert timeline.ranks.select("dp", "tp", "edp", "ep").rows() == [
        (0, 0, 0, None),
        (1, 1, 0, None),
        (0, 1, 0, None),
        (1, 0, 0, None),
    ]
    assert timeline.groups.select("ranks", "size", "role", "how", "name").rows() == [
        ([0, 1, 2, 3], 4, None, None, None),
        ([0, 2], 2, "tp", "mesh", "7"),
        ([3, 1], 2, "tp", "mesh", "7"),
    ]
    info = bubblescope.load(str(tmp_path)).info()
    assert info.to_dict()["groups"] == timeline.groups.to_dicts()
    text = " ".join(str(info).split())
    assert "stages dp tp edp 0" in text
    assert "groups tp: 2 groups of 2 ranks: 0, 2; 3, 1" in text
    assert "of no known role: 1 group of 4 ranks: 0, 1, 2, 3" in text
    timeline.save(tmp_path / "saved.parquet")
    assert sources.load(tmp_path / "saved.parquet").groups.equals(timeline.groups)


def test_the_rules_are_checked_once_for_all_recordings(tmp_path, monkeypatch):
    checked = []
    check = model._check
    monkeypatch.setattr(model, "_check", lambda *tables: checked.append(check(*tables)))
    paths = [record(tmp_path, rank) for rank in range(4)]
    sources.load(*paths[:2])
    few = len(checked)
    sources.load(*paths)
    assert len(checked) == 2 * few > 0


def test_two_files_of_one_rank_are_refused_by_name(tmp_path):
    record(tmp_path / "a")
    record(tmp_path / "b")
    with pytest.raises(
        TimelineError,
        match=r"rank 0 is claimed by two traces: .*a/attempt-0001/rank.* and .*b/attempt",
    ):
        sources.load(tmp_path)


def test_recordings_of_several_hosts_are_joined_with_a_warning(tmp_path):
    record(tmp_path, 0, "node0")
    record(tmp_path, 1, "node1")
    timeline = sources.load(tmp_path)
    assert timeline.ranks["host"].to_list() == ["node0", "node1"]
    assert [notice.code for notice in timeline.run.warnings] == ["clocks-unchecked"]


def test_hosts_of_one_name_are_told_apart_by_their_boot(tmp_path, monkeypatch):
    for rank in (0, 1):
        monkeypatch.setattr(recorder, "_boot_id", lambda rank=rank: f"a-boot-{rank}-on")
        record(tmp_path, rank, "localhost")
    timeline = sources.load(tmp_path)
    assert timeline.ranks["host"].to_list() == ["localhost-a-boot-0", "localhost-a-boot-1"]
    assert [notice.code for notice in timeline.run.warnings] == ["clocks-unchecked"]


def test_a_saved_timeline_is_read_back_whatever_it_is_called(tmp_path):
    timeline = sources.load(record(tmp_path / "recording"))
    saved = timeline.save(tmp_path / "whatever.pq")
    assert sources.load(saved) == timeline


def test_a_saved_timeline_and_a_recording_of_other_ranks_join(tmp_path):
    sources.load(record(tmp_path / "x", 0)).save(tmp_path / "rank0.parquet")
    record(tmp_path / "y", 1)
    timeline = sources.load(tmp_path / "rank0.parquet", tmp_path / "y")
    assert timeline.ranks["rank"].to_list() == [0, 1]


def test_a_recording_of_a_newer_bubblescope_says_so(tmp_path):
    path = record(tmp_path)
    path.write_bytes(sealed(path.read_bytes().replace(b'"format":1', b'"format":9')))
    with pytest.raises(SourceError, match="update to read it"):
        sources.load(path)


def damaged(path, data):
    """Return the tasks that are read of a damaged file, and the codes of warnings; None if refused."""
    path.write_bytes(data)
    try:
        run = sources.load(path)
    except SourceError:
        return None, set()
    return run.tasks, {notice.code for notice in run.run.warnings}


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """A recording of several messages."""
    folder = tmp_path_factory.mktemp("several")
    with Recorder(folder, rank=0, stages=[0]) as job:
        job.on_step(lambda _: None)  # so that each step is a message of its own
        for _ in range(8):
            with job.step():
                for i in range(3):
                    with job.task("forward", microbatch=i, name="a name"):
                        pass
    return job.path


def test_no_flipped_bit_makes_other_tasks_without_a_word(several, tmp_path):
    data, whole = several.read_bytes(), sources.load(several).tasks
    path = tmp_path / "rank00000.bubbles"
    random = np.random.default_rng(7)
    for bit in random.choice(8 * len(data), 300, replace=False).tolist():
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        tasks, codes = damaged(path, bytes(flipped))
        if tasks is None or tasks.equals(whole):
            continue  # refused; or it is in what nobody reads, such as padding
        assert codes & {"damaged", "torn-tail", "unclosed"}, bit
        assert len(tasks) < len(whole)
        assert tasks.join(whole, on=tasks.columns, how="anti", nulls_equal=True).is_empty()


def test_a_damaged_name_of_a_column_beside_other_damage_is_an_error(several, tmp_path):
    data = several.read_bytes()
    for word in (b"kind", b"a name"):
        at = data.index(word)
        data = data[:at] + b"x" + data[at + 1 :]
    assert damaged(tmp_path / "rank00000.bubbles", data) == (None, set())


def test_a_damaged_message_costs_itself_only(several, tmp_path):
    data, whole = several.read_bytes(), sources.load(several).tasks
    at = data.rindex(b"a name", 0, len(data) // 2)
    hurt = data[:at] + b"b" + data[at + 1 :]
    tasks, codes = damaged(tmp_path / "rank00000.bubbles", hurt)
    assert codes == {"damaged"}
    assert len(tasks) == len(whole) - 3


def test_what_follows_an_end_that_a_forked_process_wrote_is_read(several, tmp_path):
    data, whole = several.read_bytes(), sources.load(several).tasks
    end = b"\xff\xff\xff\xff\0\0\0\0"
    message, _ = batches(data)[-1]
    forked = data[:message] + end + data[message:]
    tasks, codes = damaged(tmp_path / "rank00000.bubbles", forked)
    assert codes == set()
    assert tasks.equals(whole)
