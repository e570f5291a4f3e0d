"""A server for one viewer on this machine.

It listens on the loopback interface only, answers nothing without a random token in the address, and
refuses requests that name another host, so that no page of another origin can reach it by a name that
it makes point here (DNS rebinding).

HTTP itself is waitress: it reads requests and sends answers of any number of slow clients in one
thread, keeps large answers that nobody takes yet in files, and answers what is no request by itself.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
import traceback
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

import msgspec
from waitress import create_server, wasyncore
from waitress.channel import HTTPChannel

from bubblescope.model.errors import BubblescopeError, SourceError
from bubblescope.model.plain_text import cut
from bubblescope.render.html.page import policy
from bubblescope.render.html.serve.resources import BusyError, Resources
from bubblescope.render.html.serve.waiting import GoneError, go_on, waited_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bubblescope.render.html.data import PageData
    from bubblescope.render.html.serve.resources import Held

_HOST: Final = "127.0.0.1"

_LIMITS: Final = {
    "threads": 8,  # more than what-ifs may occupy, so that windows do not wait for those
    "connection_limit": 256,  # with a file each for an answer, within 1,024 open files
    "asyncore_use_poll": True,  # or only files of small numbers could be waited for
    "channel_timeout": 60,  # s that a connection may do nothing
    "cleanup_interval": 5,  # s from one look at that to the next
    "channel_request_lookahead": 1,  # or it is not seen that a client has gone
    "max_request_header_size": 65_536,  # bytes, of all lines together
    "max_request_body_size": 1,  # byte: nothing that is asked here has a body
}
"""What waitress is told of bounds."""

_ARRIVAL_S: Final = 20.0
"""How long the head of a request may take to arrive, however it drips."""

_SAID: Final = 500
"""Letters of an answer that says what is wrong: it may quote what was asked."""

_PARAMETERS: Final = 20
"""Of a request, at most."""

Reply = tuple[HTTPStatus, str, bytes]
"""Status, type and content."""

_HEADERS: Final = [
    ("Content-Security-Policy", f"{policy(connect=True)}; frame-ancestors 'none'"),
    ("X-Frame-Options", "DENY"),
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
]


class Server:
    """Serves one run.

    Args:
        run: The run, or what its page would hold.
        port: Where to listen; 0 for any free port.

    Attributes:
        url: Where the page is, with its token.
        resources: What it answers with.

    Raises:
        OSError: The port cannot be listened on.
    """

    def __init__(self, run: PageData | Held, port: int = 0) -> None:
        self.resources = Resources(run)
        self._token = secrets.token_urlsafe(24)
        # What others send is not for this terminal.
        for name in ("waitress", "waitress.queue"):
            logging.getLogger(name).addHandler(logging.NullHandler())
            logging.getLogger(name).propagate = False
        self._sockets: dict[int, Any] = {}
        self._http = create_server(
            self._answered, map=self._sockets, host=_HOST, port=port, ident=None, **_LIMITS
        )
        self._http.channel_class = _Channel
        self._port = self._http.effective_port
        self.url = f"http://{_HOST}:{self._port}/{self._token}/"

    def run(self) -> None:
        """Answer until stopped."""
        self._http.run()

    def stop(self) -> None:
        """Answer no more."""
        self._http.task_dispatcher.shutdown()
        # In the thread that runs, which ends when it has nothing to wait for, if it has not ended yet.
        with suppress(OSError):
            self._http.trigger.pull_trigger(
                lambda: wasyncore.close_all(self._sockets, ignore_all=True)
            )

    def _answered(self, request: dict[str, Any], start: Callable[..., object]) -> Iterable[bytes]:
        """Answer a request, as WSGI has it."""
        status, kind, content = self._reply(request)
        sized = [("Content-Type", kind), ("Content-Length", str(len(content)))]
        start(f"{status.value} {status.phrase}", [*sized, *_HEADERS])
        return [content]

    def _reply(self, request: dict[str, Any]) -> Reply:
        if request["REQUEST_METHOD"] != "GET":
            return _said(HTTPStatus.METHOD_NOT_ALLOWED, "only GET")
        # WSGI has the bytes of a path as characters.
        _, token, what = [*request["PATH_INFO"].split("/", 2), "", ""][:3]
        known = hmac.compare_digest(token.encode(), self._token.encode())
        if not known or request.get("HTTP_HOST") not in self._names:
            return _said(HTTPStatus.FORBIDDEN, "not yours")
        try:
            parameters = parse_qs(
                request["QUERY_STRING"], keep_blank_values=True, max_num_fields=_PARAMETERS
            )
            asked = {name: values[-1] for name, values in parameters.items()}
            with waited_for(request["waitress.client_disconnected"]):
                go_on()  # who asked may have moved on while this waited for its turn
                return HTTPStatus.OK, *self.resources.answer(what, asked)
        except GoneError:
            return _said(HTTPStatus.GONE, "gone")
        except Exception as error:  # noqa: BLE001  a mistake of ours must not end the others' answers
            return _problem(error)

    @property
    def _names(self) -> frozenset[str]:
        return frozenset(f"{name}:{self._port}" for name in (_HOST, "localhost"))


class _Channel(HTTPChannel):  # type: ignore[misc]
    """A connection that does not wait for ever for a request of which a byte comes now and then."""

    _begun_s: float | None = None

    def received(self, data: bytes) -> bool:
        """Take what has come of a request."""
        taken: bool = super().received(data)
        if self.request is None:
            self._begun_s = None
        elif self._begun_s is None:
            self._begun_s = time.monotonic()
        return taken

    def readable(self) -> bool:
        """Say whether to wait for more of a request; asked each second at the latest."""
        if self._begun_s is not None and time.monotonic() - self._begun_s > _ARRIVAL_S:
            self.will_close = True
        return bool(super().readable())


def _problem(error: Exception) -> Reply:
    match error:
        case KeyError():
            return _said(HTTPStatus.NOT_FOUND, f"no {error}")
        case SourceError():  # what is served is damaged or gone: nothing is wrong with the question
            return _said(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        case ValueError() | OverflowError() | RecursionError() | BubblescopeError():
            return _said(HTTPStatus.BAD_REQUEST, f"cannot be: {error}")
        case msgspec.MsgspecError():  # no ValueError before 0.20
            return _said(HTTPStatus.BAD_REQUEST, f"cannot be: {error}")
        case BusyError():
            return _said(HTTPStatus.SERVICE_UNAVAILABLE, "busy with other questions; ask again")
    traceback.print_exception(error)
    return _said(HTTPStatus.INTERNAL_SERVER_ERROR, f"failed: {type(error).__name__}")


def _said(status: HTTPStatus, text: str) -> Reply:
    return status, "text/plain; charset=utf-8", cut(text, _SAID).encode()
