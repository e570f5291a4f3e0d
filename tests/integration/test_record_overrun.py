"""More tasks than can be written: memory is bounded, the job does not wait, and the loss is said."""

from __future__ import annotations

import polars as pl
import pytest

import bubblescope
from bubblescope import sources
from bubblescope.record import Recorder, writer
from bubblescope.record.timers.timer import CpuTimer
from bubblescope.recording.columns import Membership, runs_of
from bubblescope.recording.follow import Tail
from standing_disk import EACH, MOST, TASKS, disk, step, written

__all__ = ["disk"]


def notices(folder):
    return {notice.code: notice for notice in sources.load(folder).run.warnings}


def test_the_job_goes_on_and_what_is_missing_is_counted(tmp_path, disk):
    waiting = []
    with pytest.warns(RuntimeWarning, match="dropped [0-9,]+ tasks, which came faster"):
        with Recorder(tmp_path, rank=0, timer=CpuTimer()) as job:
            for _ in range(3):
                step(job)  # returns although nothing is written
                waiting.append(job._writer._queued - job._writer._fetched)
            disk.set()
            written(job, tmp_path)
            step(job, EACH)
    assert max(waiting) <= MOST
    timeline = sources.load(tmp_path)
    [notice] = timeline.run.warnings
    recorded = timeline.tasks.filter(kind="forward")
    assert notice.code == "overrun"
    assert notice.lost == 3 * TASKS + EACH - recorded.height
    assert notice.total == notice.lost + timeline.tasks.height
    assert "They are of steps 0 to 2, whose figures lack them" in notice.message
    assert recorded.filter(step=3).height == EACH
    assert recorded.filter(pl.col("step") == 0)["microbatch"].to_list()[0] == 0
    assert recorded.height >= MOST  # what waited was written
    [warning] = bubblescope.load(str(tmp_path)).info().to_dict()["warnings"]
    assert (warning["code"], warning["lost"]) == ("overrun", notice.lost)


def test_nothing_is_said_where_nothing_was_dropped(tmp_path, disk, recwarn):
    disk.set()
    with Recorder(tmp_path, rank=0, timer=CpuTimer()) as job:
        step(job, MOST // 2)
    assert notices(tmp_path) == {}
    assert not recwarn.list
    assert len(sources.load(tmp_path)) == MOST // 2


def test_a_step_that_lacks_tasks_is_told_to_nobody(tmp_path, disk, monkeypatch):
    told = []
    with pytest.warns(RuntimeWarning, match="dropped"):
        with Recorder(tmp_path, rank=0, timer=CpuTimer()) as job:
            job.on_step(told.append)
            step(job)
            monkeypatch.setattr(writer, "_MOST", 10 * MOST)
            disk.set()
            written(job, tmp_path)
            step(job, EACH)
    assert [times.step for times in told] == [1]


def test_a_step_of_too_many_tasks_is_told_to_nobody(tmp_path, disk):
    told = []
    disk.set()
    with Recorder(tmp_path, rank=0, timer=CpuTimer()) as job:
        job.on_step(told.append)
        with job.step():
            for _ in range(MOST // EACH + 1):
                for i in range(EACH):
                    with job.task("forward", microbatch=i):
                        pass
                written(job, tmp_path)
        step(job, EACH)
    assert [times.step for times in told] == [1]
    assert notices(tmp_path) == {}


def test_a_killed_jobs_file_says_what_was_dropped_before(tmp_path, disk):
    job = Recorder(tmp_path, rank=0, timer=CpuTimer()).__enter__()
    step(job)
    disk.set()
    written(job, tmp_path)
    found = notices(tmp_path)  # as if it had been killed now
    assert found.keys() == {"unclosed", "overrun"}
    assert found["overrun"].lost + len(sources.load(tmp_path)) == TASKS + 1
    with pytest.warns(RuntimeWarning, match="dropped"):
        job.close()


def overrun(job, folder, disk):
    disk.clear()
    step(job)
    disk.set()
    written(job, folder)


def until_put_aside(job, folder, times):
    """Record on until the file has been put aside so many times; return how many tasks that took."""
    count = 0
    for _ in range(times):
        before = job._writer._sink._header.before
        while job._writer._sink._header.before == before:
            step(job, EACH)
            written(job, folder)
            count += EACH + 1
    return count


@pytest.mark.parametrize(("before", "after"), [(0, 1), (0, 2), (1, 0)])
def test_files_that_are_put_aside_say_it_too(tmp_path, disk, before, after):
    """Whether the older half knows of it, or the newer, or both."""
    disk.set()
    count = TASKS + 1
    with pytest.warns(RuntimeWarning, match="dropped"):
        with Recorder(tmp_path, rank=0, timer=CpuTimer(), max_mb=0.1) as job:
            count += until_put_aside(job, tmp_path, before)
            overrun(job, tmp_path, disk)
            count += until_put_aside(job, tmp_path, after)
    found = notices(tmp_path)
    oldest = found["dropped"].lost if "dropped" in found else 0
    assert found["overrun"].lost > 0
    assert found["overrun"].lost + oldest + len(sources.load(tmp_path)) == count
    assert (oldest > 0) == (after > 1)


def test_a_file_begun_anew_says_it_too(tmp_path, disk):
    with pytest.warns(RuntimeWarning, match=r"dropped|was deleted"):
        with Recorder(tmp_path, rank=0, timer=CpuTimer()) as job:
            overrun(job, tmp_path, disk)
            job.path.unlink()
            step(job, EACH)
            written(job, tmp_path)
    assert len(sources.load(tmp_path)) == EACH + 1
    assert notices(tmp_path)["overrun"].lost >= TASKS - MOST - 2 * EACH


def test_those_who_follow_a_recording_pass_over_what_it_says(tmp_path):
    many = [Membership(runs_of((0, 1 + i, 7 * i + 3)), name="x" * 100) for i in range(1000)]
    with Recorder(tmp_path, rank=0, timer=CpuTimer(), groups=many) as job:
        tail = Tail(tmp_path)
        tail.news()
        job._writer._sink.tell(dropped=5, dropped_steps=(0, 0))
        step(job, 3)
        written(job, tmp_path)
        [news] = tail.news()
        assert news.recording.problem is None
        assert news.recording.header.groups == tuple(many)
        assert news.tasks["kind"].to_list() == ["forward"] * 3 + ["other"]
    assert notices(tmp_path)["overrun"].lost == 5
