"""What stays with workers: it comes back as it was, in a file or not."""

from __future__ import annotations

import errno
import pickle

from bubblescope.engine.remote_results import Held, Holder, opened


def here(work, jobs):
    for index, job in enumerate(jobs):
        yield index, pickle.loads(pickle.dumps(work(pickle.loads(pickle.dumps(job)))))


def joined(one, other):
    return [*one, *other], None


def test_what_is_held_comes_back_and_what_names_it_is_small(tmp_path):
    holder = Holder(here, tmp_path)
    many = holder.hold(range, [100_000, 200_000])
    assert max(len(pickle.dumps(one)) for one in many) < 1_000
    lists, nothing = holder.put(joined, *many)
    assert len(pickle.dumps(lists)) < 1_000
    assert nothing.nothing
    assert not lists.nothing
    assert holder.ask(len, lists) == 300_000
    assert opened((1, [lists], None))[1][0] == [*range(100_000), *range(200_000)]


def test_where_there_is_no_room_it_travels(tmp_path, monkeypatch):
    def full(_value, file, protocol):
        file.write(b"some")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("bubblescope.engine.remote_results.pickle.dump", full)
    held = Held.of([1, 2], tmp_path)
    assert [*tmp_path.iterdir()] == []
    assert pickle.loads(pickle.dumps(held)).got() == [1, 2]
    assert Held.of([3], tmp_path / "gone").got() == [3]
