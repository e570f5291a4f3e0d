"""`bubblescope serve` among clients that are slow, many, gone, wrong or not its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import tracemalloc
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from bubblescope.analysis.view import View
from bubblescope.render.html.data import PageData
from bubblescope.render.html.serve import server as serve
from bubblescope.render.html.serve.waiting import go_on
from serving import get, serving, window
from synthetic import one_f_one_b

MALFORMED = [
    b"\x1b[31mGARBAGE\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nno header\r\n\r\n",
    b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
    b"GET / HTTP/1.1\r\nTransfer-Encoding: \x1b[31m\r\n\r\n",
    b"GET /%ff%1b[31m?\x80 HTTP/1.1\r\n\r\n",
    b"POST / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # TLS
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
]


def search_of(what="task", **condition):
    """A search of one condition, as a viewer sends it."""
    sets = [[{"any": [[condition]], "negated": False}]]
    return json.dumps({"what": what, "sets": sets})


@pytest.fixture(scope="module")
def data():
    return PageData.of(View.of(one_f_one_b()))


@pytest.fixture
def served(data):
    with serving(data) as server:
        yield server


@contextmanager
def connected(server, sent=b""):
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(sent)
        yield connection


def asking(server, what=""):
    address = urlsplit(server.url)
    return f"GET {address.path}{what} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode()


def within(seconds, holds):
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


class TestWhatIsAsked:
    @pytest.mark.parametrize("sent", MALFORMED)
    def test_what_is_no_request_is_refused_in_words_and_printed_nowhere(self, served, sent, capfd):
        with connected(served) as connection:
            try:
                connection.sendall(sent)
                said = connection.recv(65_536)
            except ConnectionError:  # it need not read all of what is too long
                said = b"HTTP/1.1 431 "
        assert said[:5] == b"HTTP/"
        assert said.split()[1][:1] == b"4"
        assert b"\x1b" not in said
        assert get(served)[0] == 200
        assert capfd.readouterr() == ("", "")

    @pytest.mark.parametrize("what", ["window", "totals"])
    def test_a_request_costs_no_more_than_the_run_has(self, served, what):
        get(served, what, **window(end=1e9))  # what is made once
        tracemalloc.start()
        for ranks in (",".join(["0-1000000"] * 100), ",".join(["0-3"] * 10_000), "0-" + "9" * 4000):
            status, *_ = get(served, what, **window(ranks=ranks, end=1e9))
            assert status == (200 if ranks[-1] == "3" else 400)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4e6

    @pytest.mark.parametrize(
        ("what", "asked"),
        [
            ("totals", {"start": -1e300, "end": 1e300, "ranks": "0"}),
            ("totals", {"start": 0, "end": "nan", "ranks": "0"}),
            ("totals", {"start": 0, "end": 1, "ranks": "-1"}),
            ("totals", {"start": 0, "end": 1, "ranks": "3-0"}),
            ("inside", {"start": 0, "end": 1e300, "rank": 0}),
            ("inside", {"start": 0, "end": 1, "rank": 4}),
            ("inside", {"start": 0, "end": 1, "rank": "0-1"}),
            ("where", {"id": "9" * 5000}),
            ("window", window(start=1e30)),
            ("window", {str(number): number for number in range(1000)}),
        ],
    )
    def test_numbers_that_no_run_has_are_refused(self, served, what, asked, capfd):
        status, _, content = get(served, what, **asked)
        assert status == 400
        assert len(content) < 1000
        assert capfd.readouterr() == ("", "")

    @pytest.mark.parametrize(
        "search",
        [
            "null",
            "[" * 10_000,
            '{"what": "kernel", "sets": []}',
            search_of(column="nonsense"),
            search_of(column="gained"),
            search_of("gap", column="kind"),
            search_of(column="kind", least="1"),
            search_of(column="kind", least=1).replace("1", "NaN"),
            search_of(column="kind", least=1).replace("1", "1e999"),
        ],
    )
    def test_searches_for_what_there_is_not_are_refused(self, served, search, capfd):
        status, _, content = get(served, "find", search=search)
        assert status == 400
        assert len(content) < 1000
        assert capfd.readouterr() == ("", "")

    @pytest.mark.parametrize(
        "search",
        [
            search_of(column="microbatch", least=1e300, most=1e308),
            search_of(column="length", most=-1e300, open=True),
            search_of(column="name"),
            search_of(column="name", text="\0"),
            search_of(column="slowness", least=-1),
            '{"what": "gap", "sets": []}',
            '{"what": "task", "sets": [[]]}',
            '{"what": "task", "sets": [[{"any": [], "negated": true}]]}',
        ],
    )
    def test_searches_that_say_little_are_answered(self, served, search, capfd):
        assert get(served, "find", search=search)[0] == 200
        assert capfd.readouterr() == ("", "")

    def test_a_mistake_of_ours_ends_one_answer_and_is_told_here(self, served, monkeypatch, capfd):
        def mistake(*_):
            raise TypeError("secret")

        monkeypatch.setattr(served.resources, "answer", mistake)
        status, _, content = get(served, "window")
        assert (status, content) == (500, b"failed: TypeError")
        assert "secret" in capfd.readouterr().err


class TestSlowClients:
    def test_connections_are_counted_and_the_next_waits(self, data, monkeypatch):
        monkeypatch.setitem(serve._LIMITS, "connection_limit", 10)
        with serving(data) as server, ExitStack() as idle:
            for _ in range(30):
                idle.enter_context(connected(server))
            within(5, lambda: len(server._http.active_channels) >= 8)
            time.sleep(0.2)
            assert len(server._http.active_channels) <= 10
            idle.close()
            assert get(server)[0] == 200

    def test_a_connection_that_does_nothing_is_closed(self, data, monkeypatch):
        monkeypatch.setitem(serve._LIMITS, "channel_timeout", 1)
        monkeypatch.setitem(serve._LIMITS, "cleanup_interval", 1)
        with serving(data) as server, connected(server) as connection:
            assert connection.recv(1) == b""

    def test_a_request_that_drips_is_given_up(self, served, monkeypatch):
        monkeypatch.setattr(serve, "_ARRIVAL_S", 0.3)
        with connected(served, b"GET /") as connection:

            def closed():
                try:
                    connection.sendall(b"a")
                except ConnectionError:
                    return True
                return False

            within(10, closed)
        assert get(served)[0] == 200

    def test_what_nobody_waits_for_any_more_is_not_worked_out(self, served, monkeypatch):
        """Who moves on closes the connection, and asks for what is in sight then."""
        parts, ended = [], []

        def answer(*_):
            try:
                for part in range(1_000):
                    go_on()
                    parts.append(part)
                    time.sleep(0.01)
            finally:
                ended.append(True)

        monkeypatch.setattr(served.resources, "answer", answer)
        with connected(served, asking(served, "window")):
            within(5, lambda: len(parts) > 3)
        within(5, lambda: ended)
        assert len(parts) < 1_000
        monkeypatch.undo()
        assert get(served, "window", **window())[0] == 200

    def test_nobody_waits_for_those_who_do_not_read(self, served):
        with ExitStack() as unread:
            for _ in range(100):
                connection = unread.enter_context(connected(served))
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.sendall(asking(served))
            began = time.monotonic()
            assert get(served, "window", **window())[0] == 200
            assert time.monotonic() - began < 5

    def test_what_nobody_waits_for_is_not_worked_out(self, served, monkeypatch):
        answered = []
        plain = served.resources.answer
        monkeypatch.setattr(
            served.resources, "answer", lambda *asked: (answered.append(asked), plain(*asked))[1]
        )
        with ExitStack() as leaving, served.resources._search_turn:
            for _ in range(30):
                leaving.enter_context(connected(served, asking(served, "find?search={}")))
            threads = serve._LIMITS["threads"]
            within(5, lambda: len(answered) == threads)
            leaving.close()
            within(5, lambda: not any(c.connected for c in served._http.active_channels.values()))
        assert get(served, "find", search=search_of(column="rank"))[0] == 200
        assert len(answered) == threads + 1


class TestTurns:
    @pytest.fixture
    def thinking(self, served, monkeypatch):
        """A server whose what-ifs take until they are told to end."""
        done = threading.Event()
        plain = served.resources._asking.answer
        monkeypatch.setattr(
            served.resources._asking, "answer", lambda *asked: (done.wait(30), plain(*asked))[1]
        )
        yield served, done
        done.set()

    def test_a_whatif_keeps_no_window_waiting_and_many_are_told_to_come_again(self, thinking):
        server, done = thinking
        shown = "--stage 2=0.5"
        server.resources._asking.windows(shown)  # as of the answer before
        statuses = []

        def ask():
            statuses.append(get(server, "whatif", ask="--stage 1=0.5")[0])

        asking_them = [threading.Thread(target=ask) for _ in range(20)]
        for thread in asking_them:
            thread.start()
        within(10, lambda: len(statuses) == 16)
        assert set(statuses) == {503}
        for what in ("", "window", "totals"):
            assert get(server, what, **window(end=1e9))[0] == 200
        assert get(server, "window", **window(), ask=shown)[0] == 200
        done.set()
        for thread in asking_them:
            thread.join()
        assert statuses[16:] == [200] * 4


class TestWhatOthersSee:
    def test_the_token_is_in_no_command_line_and_its_file_is_private(self, tmp_path):
        """A browser's arguments are everybody's to read."""
        trace = one_f_one_b().save(tmp_path / "run.parquet")
        seen, browser = tmp_path / "seen", tmp_path / "browser"
        browser.write_text(f'#!/bin/sh\necho "$@" > {seen}.new && mv {seen}.new {seen}\n')
        browser.chmod(0o700)
        env = {**os.environ, "BROWSER": str(browser), "DISPLAY": ":0", "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "bubblescope", "serve", str(trace), "-q"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
            try:
                url = process.stdout.readline().strip()
                within(60, seen.exists)
                told = seen.read_text().strip()
                token = urlsplit(url).path.strip("/")
                assert told.startswith("file:///")
                assert token not in told
                assert token not in Path(f"/proc/{process.pid}/cmdline").read_text()
                page = Path(unquote(urlsplit(told).path))
                assert url in page.read_text()
                assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700
                process.send_signal(signal.SIGTERM)
                assert process.wait(timeout=60) == 0
                assert not page.parent.exists()
            finally:
                process.kill()

    @pytest.mark.browser
    def test_the_file_leads_to_the_page(self, served, browser):
        from bubblescope.cli.output_files import redirect
        from viewing import context_of, until

        context = context_of(browser)
        page = context.new_page()
        with redirect(served.url) as file:
            page.goto(file)
            page.wait_for_url(f"{served.url}**")
            until(page, "!!window.bubblescope")
            assert page.url.split("#")[0] == served.url
        context.close()

    @pytest.mark.browser
    def test_no_page_can_have_it_in_a_frame(self, served, browser):
        from viewing import context_of

        context = context_of(browser)
        page = context.new_page()
        page.set_content(f"<iframe src='{served.url}'></iframe>")
        page.wait_for_load_state()
        assert page.frames[1].url.startswith("chrome-error:")
        context.close()
