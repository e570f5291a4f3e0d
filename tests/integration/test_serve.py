"""`bubblescope serve`: a run that is loaded as it comes into sight."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from urllib.parse import urlsplit

import numpy as np
import polars as pl
import pytest

from bubblescope.analysis.question_text import read
from bubblescope.analysis.view import View
from bubblescope.facade import Trace, whatif
from bubblescope.render.html.data import PageData
from bubblescope.render.html.serve import windows
from bubblescope.render.html.serve.query import totals
from bubblescope.render.html.serve.resources import Resources
from bubblescope.render.html.serve.whatifs import Asking
from bubblescope.render.html.serve.windows import Sight, Windows
from communicating import collectives, communicating
from serving import ALL, get, serving, unpacked, window
from synthetic import hostile, one_f_one_b
from viewing import context_of, until


@pytest.fixture(scope="module")
def data():
    return PageData.of(View.of(one_f_one_b()))


@pytest.fixture
def served(data):
    with serving(data) as server:
        yield server


class TestWhoMayAsk:
    def test_it_listens_on_the_loopback_interface_only(self, served):
        assert urlsplit(served.url).hostname == "127.0.0.1"

    def test_each_server_has_a_token_of_its_own(self, served, data):
        with serving(data) as other:
            token = urlsplit(other.url).path.strip("/")
        assert len(token) >= 32
        assert token not in served.url

    @pytest.mark.parametrize("token", ["", "x", "x" * 32])
    @pytest.mark.parametrize("what", ["", "window", "totals", "find", "where", "whatif"])
    def test_nothing_is_answered_without_the_token(self, served, token, what):
        status, _, content = get(served, what, token=token, **window())
        assert status == 403
        assert content == b"not yours"

    def test_another_name_for_this_machine_is_refused(self, served):
        port = urlsplit(served.url).port
        assert get(served, host=f"localhost:{port}")[0] == 200
        assert get(served, host=f"evil.example:{port}")[0] == 403
        assert get(served, host="evil.example")[0] == 403

    def test_the_page_may_load_from_its_server_and_from_nowhere_else(self, served):
        _, headers, content = get(served)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "connect-src 'self'" in policy
        assert policy.endswith("; frame-ancestors 'none'")  # which only a header can say
        own = policy.removesuffix("; frame-ancestors 'none'")
        assert own in content.decode().replace("&#x27;", "'")
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Referrer-Policy"] == "no-referrer"


class TestWindows:
    def test_few_tasks_are_sent_whole(self, data):
        head, tables = unpacked(Windows(data).cut(Sight(0, 1e6, 1000, frozenset(range(4)), ALL)))
        assert head["complete"]
        assert sum(head["rows"]) == len(data.tasks)
        assert tables["tasks"]["id"].tolist() == list(range(len(data.tasks)))
        assert sum(head["gaps"]) == len(data.gaps)
        assert len(tables["links"]["reach"]) == len(data.links)

    def test_only_what_is_in_sight_is_sent(self, data):
        place = data.places().rows
        sight = Sight(5e6, 1e4, 1000, frozenset({1, 2}), frozenset({"compute"}))
        head, tables = unpacked(Windows(data).cut(sight))
        start, end = (
            (data.tasks[name] - data.origin_ns).to_numpy() for name in ("start_ns", "end_ns")
        )
        expected = [
            task
            for row in place
            if row.rank in {1, 2} and row.lane == "compute"
            for task in range(row.first, row.to)
            if end[task] > sight.start_ns and start[task] < sight.end_ns
        ]
        assert tables["tasks"]["id"].tolist() == expected
        assert len(head["rows"]) == len(place)

    def test_a_viewer_may_ask_for_no_idle_time(self, served):
        asked = window(ranks="0-3")
        for idle, there in (({}, True), ({"idle": "1"}, True), ({"idle": ""}, False)):
            head, _ = unpacked(get(served, "window", **asked, **idle)[2])
            assert bool(sum(head["gaps"])) is there
            assert sum(head["rows"]) > 0

    @pytest.mark.parametrize("columns", [3, 17, 30])
    def test_of_many_each_pixel_has_its_share_of_every_kind(self, data, monkeypatch, columns):
        """By definition: how long tasks of a kind run in each pixel."""
        monkeypatch.setattr(windows, "_WHOLE", 0)
        length = data.told.end / columns
        head, tables = unpacked(
            Windows(data).cut(Sight(0, length, columns, frozenset(range(4)), ALL))
        )
        assert not head["complete"]
        start, end = (
            (data.tasks[name] - data.origin_ns).to_numpy() for name in ("start_ns", "end_ns")
        )
        kinds = data.tasks["kind"].cast(str).to_numpy()
        codes = {kind.name: code for code, kind in enumerate(data.told.kinds)}
        edges = length * np.arange(columns + 1)

        def spent(begin, stop):
            return np.clip(np.minimum(stop, edges[1:]) - np.maximum(begin, edges[:-1]), 0, None)

        sent, at, merged = tables["tasks"], 0, 0
        for row, count in zip(data.places().rows, head["rows"], strict=True):
            found = dict.fromkeys(codes.values(), 0)
            begin = np.cumsum(sent["gap"][at : at + count].astype(np.int64))
            stop = begin + sent["length"][at : at + count]
            assert (begin[1:] >= stop[:-1] - 1).all()  # whole nanoseconds: they may touch
            for one in range(count):
                code = sent["kind"][at + one]
                found[code] = found[code] + spent(begin[one], stop[one])
            tasks = range(row.first, row.to)
            for kind, code in codes.items():
                own = [spent(start[task], end[task]) for task in tasks if kinds[task] == kind]
                assert found[code] == pytest.approx(sum(own) if own else 0, abs=2.5)
            assert count <= max(len(tasks), 4 * columns)
            merged += (sent["merged"][at : at + count] > 1).sum()
            at += count
        assert merged > 0
        assert (sent["id"] < len(data.tasks)).all()

    @pytest.mark.parametrize("columns", [3, 17])
    def test_of_many_each_pixel_has_its_share_of_waiting(self, monkeypatch, columns):
        """By definition: how long collectives in each pixel waited for their last rank."""
        monkeypatch.setattr(windows, "_WHOLE", 0)
        data = PageData.of(View.of(collectives(communicating(one_f_one_b()))))
        length = data.told.end / columns
        head, tables = unpacked(
            Windows(data).cut(Sight(0, length, columns, frozenset(range(4)), ALL))
        )
        start = (data.tasks["start_ns"] - data.origin_ns).to_numpy()
        waited = data.tasks["waited"].clip(0).to_numpy()
        edges = length * np.arange(columns + 1)

        def spent(begin, time):
            inside = np.minimum(begin + time, edges[1:]) - np.maximum(begin, edges[:-1])
            return np.clip(inside, 0, None)

        sent, at, waiting = tables["tasks"], 0, set()
        for row, count in zip(data.places().rows, head["rows"], strict=True):
            begin = np.cumsum(sent["gap"][at : at + count].astype(np.int64))
            times = np.clip(sent["waited"][at : at + count], 0, None)
            found = sum(map(spent, begin, times), np.zeros(columns))
            own = (spent(start[task], waited[task]) for task in range(row.first, row.to))
            assert found == pytest.approx(sum(own, np.zeros(columns)), abs=4)
            waiting |= {row.rank} if found.any() else set()
            merged = sent["merged"][at : at + count] > 0
            assert (sent["awaited"][at : at + count][merged] == -1).all()
            at += count
        assert len(waiting) == 3  # all but the one that comes last
        assert (sent["merged"] > 1).any()

    def test_a_gap_names_the_task_it_waited_for_even_out_of_sight(self, data):
        sight = Sight(0, 1e3, 10, frozenset(range(4)), ALL)
        _, tables = unpacked(Windows(data).cut(sight))
        gaps = tables["gaps"]
        assert len(gaps["id"])
        roots = data.gaps["root"].to_numpy()[gaps["id"]]
        own = data.tasks["task"].to_list()
        assert [own[root] for root in gaps["root_id"]] == roots.tolist()

    @pytest.mark.parametrize(
        "wrong",
        [
            {"columns": 0},
            {"columns": "many"},
            {"perpixel": -1},
            {"perpixel": "nan"},
            {"start": "inf"},
            {"ranks": "0-99999999999"},
            {"ranks": "x"},
        ],
    )
    def test_windows_that_cannot_be_are_refused(self, served, wrong):
        assert get(served, "window", **window(**wrong))[0] == 400

    def test_what_is_missing_is_said(self, served):
        status, _, content = get(served, "window", start=0)
        assert status == 404
        assert b"perpixel" in content or b"columns" in content
        assert get(served, "nothing")[0] == 404
        assert get(served, "where", id=10**9)[0] == 400


class TestQuestions:
    def test_totals_are_those_of_the_tasks_cut_at_both_ends(self, data):
        start, end = 3_000_000, 41_000_000
        found = totals(data, start, end, [0, 2])
        busy = 0
        for row in data.places().rows:
            if row.rank not in {0, 2} or row.lane != "compute":
                continue
            for task in range(row.first, row.to):
                begin, stop = (
                    data.tasks[name][task] - data.origin_ns for name in ("start_ns", "end_ns")
                )
                busy += max(0, min(stop, end) - max(begin, start))
        assert found.busy == busy
        assert found.spanned == 2 * (end - start)
        assert found.busy + found.idle == found.spanned
        assert sum(found.causes) <= found.idle

    def test_a_search_that_asks_too_much_says_so(self, served):
        one = {"any": [[{"column": "microbatch", "least": 1}]] * 501, "negated": False}
        search = json.dumps({"what": "task", "sets": [[one]]})
        status, _, content = get(served, "find", search=search)
        assert status == 200
        assert "too much to search for" in json.loads(content)["error"]

    def test_what_communicated_in_tasks_comes_with_those_that_are_themselves(self):
        data = PageData.of(View.of(communicating(one_f_one_b())))
        rng = np.random.default_rng(3)
        ids = np.sort(rng.choice(len(data.tasks), 200, replace=False))
        merged = rng.integers(0, 2, len(ids))
        part = Windows(data)._communicated(windows.Chosen(ids, ids, ids, merged, ids, ids))
        wanted = data.communication.with_columns(
            at=pl.col("at").replace_strict(ids, range(200), default=-1)
        )
        wanted = wanted.filter(pl.col("at").is_in(np.flatnonzero(merged == 0).tolist()))
        assert part.equals(wanted)
        assert part.height > 100

    def test_hostile_names_stay_text(self):
        page = Resources(PageData.of(View.of(hostile()))).answer("", {})[1].decode()
        assert page.count("</script>") == page.count("<script")


class TestWhatIfs:
    def asked(self, served, question):
        status, _, content = get(served, "whatif", ask=question)
        assert status == 200
        return json.loads(content)

    @pytest.mark.parametrize(
        ("question", "asked"),
        [
            ("--stage 2=0.5", [("scaled", "stage", 2, 0.5)]),
            ("--healthy 1", [("healthy", 1)]),
            ("--without 'host launch'", [("without", "host launch")]),
            ("--move 1@3:0 --layers 8,8,8,8", [("moved", 1, 3, 0, [8, 8, 8, 8])]),
            ("--microbatches 16 --schedule zb-h1", [("schedule", "zb-h1"), ("microbatches", 16)]),
        ],
    )
    def test_answers_are_those_of_the_analysis(self, served, question, asked):
        said = self.asked(served, question)["answer"]
        (truth,) = whatif(Trace(one_f_one_b()), lambda run: run.together(*asked)).predictions
        assert said["change"] == truth.change
        assert (said["predicted"], said["saved"]) == (truth.predicted_ns, truth.saved_ns)
        assert (said["best"], said["error"]) == (truth.best_ns, truth.error)

    @pytest.mark.parametrize("question", ["--stage 2=0.5", "--schedule zb-v", "--stage 0=1.5"])
    def test_its_lanes_are_what_would_have_run(self, served, data, question):
        told = self.asked(served, question)
        head, tables = unpacked(get(served, "window", **window(perpixel=1e6), ask=question)[2])
        assert len(told["rows"]) == len(head["rows"])
        method, *arguments = read(question)[0]
        (answer,) = whatif(
            Trace(one_f_one_b()), lambda run: getattr(run, method)(*arguments)
        ).predictions
        want = answer.timeline(one_f_one_b()).tasks
        found, at = [], 0
        for row, count in zip(told["rows"], head["rows"], strict=True):
            part = slice(at, at + count)
            at += count
            start = data.origin_ns + np.cumsum(tables["tasks"]["gap"][part].astype(np.int64))
            end = start + tables["tasks"]["length"][part]
            if row["lane"] == "whatif":
                rank = data.told.ranks[row["rank"]].rank
                found += [(rank, *span) for span in zip(start.tolist(), end.tolist(), strict=True)]
        assert sorted(found) == sorted(want.select("rank", "start_ns", "end_ns").rows())
        names = [*data.told.names, *told["names"]]
        assert {names[name] for name in tables["tasks"]["name"]} >= set(want["name"])

    def test_it_stands_in_place_of_what_the_page_opened_with(self):
        shown = View.of(one_f_one_b(), whatif=lambda run: run.schedule("zb-h1"))
        told = Resources(PageData.of(shown)).answer("whatif", {"ask": "--stage 2=0.5"})[1]
        lanes = [(row["rank"], row["lane"]) for row in json.loads(told)["rows"]]
        assert lanes.count((2, "whatif")) == 1

    def test_what_was_measured_keeps_its_numbers(self, served, data):
        """So that what is selected, found and fed stays what it is while an answer is shown."""
        plain = unpacked(get(served, "window", **window())[2])[1]
        shown = unpacked(get(served, "window", **window(), ask="--stage 2=0.5")[2])[1]
        measured = shown["tasks"]["id"] < len(data.tasks)
        assert shown["tasks"]["id"][measured].tolist() == plain["tasks"]["id"].tolist()
        assert shown["gaps"]["root_id"].tolist() == plain["gaps"]["root_id"].tolist()

    @pytest.mark.parametrize(
        ("question", "words"),
        [
            ("--stage 9=0.5", "the run has no stage 9"),
            ("--stage two", "is not like 2=0.5"),
            ("--move 1@0:1", "needs --layers"),
            ("--without nonsense", "cannot be without"),
            ("--kernel 'x=0.5'", "kernel"),
            ("--microbatches 100000000", "takes too long"),
            ("--schedule interleaved-1f1b --chunks 100000", "takes too long"),
            ("--healthy 1 " * 500, "too long"),
            ("rm -rf", "asks nothing"),
        ],
    )
    def test_questions_that_cannot_be_answered_are_refused_in_words(self, served, question, words):
        assert words in self.asked(served, question)["error"]
        assert get(served, "window", **window(), ask=question)[0] == 400

    def test_few_answers_are_kept(self, data):
        asking = Asking(data)
        for factor in (0.5, 0.6, 0.7, 0.8):
            asking.answer(f"--stage 1={factor}")
        assert list(asking._told) == ["--stage 1=0.7", "--stage 1=0.8"]


@pytest.mark.browser
def test_the_page_looks_like_the_one_that_holds_everything(data, served, browser, monkeypatch):
    """Pixel by pixel, from afar and near, with so little sent at a time that parts must be loaded."""
    monkeypatch.setattr(windows, "_WHOLE", 50)
    from bubblescope.render.html import page as html

    whole = html.render(View.of(one_f_one_b()), title=data.told.title)
    shots = []
    for source in ("embedded", "served"):
        context = context_of(browser, viewport={"width": 1000, "height": 600})
        page = context.new_page()
        failures: list[str] = []
        page.on("pageerror", lambda error, failures=failures: failures.append(str(error)))
        if source == "embedded":
            page.set_content(whole)
        else:
            page.goto(served.url)
        until(page, "!!window.bubblescope")
        looks = []
        for press in ("f", "w", "w", "w", "d", "d", "c", "o", "-", "-"):
            page.keyboard.press(press)
            page.wait_for_timeout(400)
            looks.append(page.evaluate("document.querySelector('canvas.lanes').toDataURL()"))
        page.keyboard.press(
            "f"
        )  # the strip of the whole run, with the same window on it as at first
        page.wait_for_timeout(400)
        looks.append(page.evaluate("document.querySelector('canvas.minimap').toDataURL()"))
        assert failures == []
        shots.append(looks)
        context.close()
    assert shots[0] == shots[1]


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_the_command_says_where_it_serves_and_ends_when_told(tmp_path, told):
    trace = one_f_one_b().save(tmp_path / "run.parquet")
    command = [sys.executable, "-m", "bubblescope", "serve", str(trace), "--no-open", "-q"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as process:
        try:
            url = process.stdout.readline().strip()
            address = urlsplit(url)
            assert address.hostname == "127.0.0.1"
            connection = http.client.HTTPConnection(address.hostname, address.port, timeout=120)
            connection.request("GET", address.path)
            assert connection.getresponse().status == 200
            connection.close()
            process.send_signal(told)
            assert process.wait(timeout=120) == 0
        finally:
            process.kill()
