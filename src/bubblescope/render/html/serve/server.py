"""A server for one viewer on this machine.

It listens on the loopback interface only, answers nothing without a random token in the address, and
refuses requests that name another host, so that no page of another origin can reach it by a name that
it makes point here (DNS rebinding).
"""

from __future__ import annotations

import hmac
import secrets
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

import msgspec

from bubblescope.render.html.kernels import inside
from bubblescope.render.html.packing import packed
from bubblescope.render.html.page import page, policy
from bubblescope.render.html.schema import Found, Inside, Totals, Where
from bubblescope.render.html.serve.query import QueryError, find, totals
from bubblescope.render.html.serve.windows import Sight, Windows

if TYPE_CHECKING:
    from bubblescope.render.html.data import PageData

_HOST: Final = "127.0.0.1"
_MOST_COLUMNS: Final = 50_000
_TOP: Final = 5
"""Names of kernels that the details of a task show."""


class Server:
    """Serves one run.

    Args:
        data: What its page would hold.
        port: Where to listen; 0 for any free port.

    Attributes:
        url: Where the page is, with its token.

    Raises:
        OSError: The port cannot be listened on.
    """

    def __init__(self, data: PageData, port: int = 0) -> None:
        self._data = data
        self._windows = Windows(data)
        self._answers = {
            "totals": self._totals,
            "inside": self._inside,
            "find": self._find,
            "where": self._where,
        }
        self._token = secrets.token_urlsafe(24)
        # Polars works in parallel by itself; one request at a time keeps memory bounded.
        self._turn = threading.Lock()
        self._http = ThreadingHTTPServer((_HOST, port), self._handler())
        self._http.daemon_threads = True
        self.url = f"http://{_HOST}:{self._http.server_port}/{self._token}/"

    def run(self) -> None:
        """Answer until stopped."""
        self._http.serve_forever()

    def stop(self) -> None:
        """Answer no more."""
        self._http.shutdown()
        self._http.server_close()

    def answer(self, what: str, asked: dict[str, str]) -> tuple[str, bytes]:
        """Return the type and content of one of the server's resources.

        Raises:
            KeyError: There is none of that name, or a parameter is missing.
            ValueError: A parameter is no number, or cannot be.
        """
        if what == "":
            return "text/html; charset=utf-8", self._page().encode()
        if what == "window":
            return "application/octet-stream", self._windows.cut(_sight(asked))
        if what in self._answers:
            return _json(self._answers[what](asked))
        raise KeyError(what)

    def _page(self) -> str:
        """The page without its tasks: what does not change with what is in sight is in its head."""
        tables = self._data.tables_of_run()
        fixed = {name: packed(frame) for name, frame in tables.items()}
        columns = {name: table.columns for name, table in fixed.items()}
        head = self._data.head(columns, self._windows.places, served=True)
        if hint := head.no_kernels:
            served = hint.replace("bubblescope view", "bubblescope serve")
            head = msgspec.structs.replace(head, no_kernels=served)
        return page(head, fixed, connect=True)

    def _totals(self, asked: dict[str, str]) -> Totals:
        start, end = float(asked["start"]), float(asked["end"])
        return totals(self._data, start, end, _numbers(asked["ranks"]))

    def _find(self, asked: dict[str, str]) -> Found | dict[str, str]:
        try:
            return find(self._data, asked["query"])
        except QueryError as error:
            return {"error": str(error)}

    def _inside(self, asked: dict[str, str]) -> Inside:
        origin_ns = self._data.origin_ns
        start, end = (origin_ns + round(float(asked[name])) for name in ("start", "end"))
        return inside(self._data.kernels, int(asked["rank"]), start, end, _TOP)

    def _where(self, asked: dict[str, str]) -> Where:
        item = int(asked["id"])
        gaps = asked.get("what", "task") == "gap"
        table = self._data.gaps if gaps else self._data.tasks
        if not 0 <= item < len(table):
            raise ValueError(item)
        row = table.row(item, named=True)
        origin = self._data.origin_ns
        return Where(
            rank=row["position"],
            lane="compute" if gaps else row["lane"],
            start=row["start_ns"] - origin,
            end=row["end_ns"] - origin,
        )

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 60

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                _, token, what = [*parts.path.split("/", 2), "", ""][:3]
                if not self._here() or not hmac.compare_digest(
                    token.encode(),
                    server._token.encode(),
                ):
                    return self._reply(HTTPStatus.FORBIDDEN, *_text("not yours"))
                asked = {name: values[-1] for name, values in parse_qs(parts.query).items()}
                try:
                    with server._turn:
                        kind, content = server.answer(what, asked)
                except KeyError as error:
                    return self._reply(HTTPStatus.NOT_FOUND, *_text(f"no {error}"))
                except (ValueError, OverflowError) as error:
                    return self._reply(HTTPStatus.BAD_REQUEST, *_text(f"cannot be: {error}"))
                return self._reply(HTTPStatus.OK, kind, content)

            def _here(self) -> bool:
                port = server._http.server_port
                return self.headers.get("Host") in {f"{_HOST}:{port}", f"localhost:{port}"}

            def _reply(self, status: HTTPStatus, kind: str, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Content-Security-Policy", policy(connect=True))
                self.send_header("Cache-Control", "no-store")
                self.send_header("Referrer-Policy", "no-referrer")
                self.send_header("X-Content-Type-Options", "nosniff")
                self.send_header("Cross-Origin-Resource-Policy", "same-origin")
                self.end_headers()
                try:
                    self.wfile.write(content)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True  # the viewer has moved on

            def log_message(self, *_: Any) -> None:
                """Say nothing of each request."""

        return Handler


def _sight(asked: dict[str, str]) -> Sight:
    columns = int(asked["columns"])
    per_pixel = float(asked["perpixel"])
    start = float(asked["start"])
    if not (0 < columns <= _MOST_COLUMNS and 0 < per_pixel < 1e18 and abs(start) < 1e18):
        raise ValueError("that window")
    lanes = frozenset(asked["lanes"].split(","))
    ranks, unfolded = (
        frozenset(_numbers(text)) for text in (asked["ranks"], asked.get("unfolded", ""))
    )
    return Sight(start, per_pixel, columns, ranks, lanes, unfolded)


def _numbers(text: str) -> list[int]:
    """Read "0-3,7": the numbers that are meant."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, dash, last = part.partition("-")
        if int(last or first) - int(first) > 1_000_000:
            raise ValueError(part)
        found += range(int(first), int(last if dash else first) + 1)
    return found


def _json(value: Any) -> tuple[str, bytes]:
    return "application/json", msgspec.json.encode(value)


def _text(text: str) -> tuple[str, bytes]:
    return "text/plain; charset=utf-8", text.encode()
