"""A server of a run, and asking it."""

from __future__ import annotations

import http.client
import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from bubblescope.render.html.serve.server import Server
from page_tables import columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bubblescope.render.html.data import PageData

ALL = frozenset({"compute", "ideal", "whatif", "comm", "host"})


@contextmanager
def serving(data: PageData) -> Iterator[Server]:
    server = Server(data)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


def get(server: Server, what: str = "", host: str | None = None, token: str | None = None, **asked):
    """The status, headers and content of an answer."""
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=120)
    path = address.path if token is None else f"/{token}/"
    headers = {"Host": host} if host else {}
    connection.request("GET", f"{path}{what}?{urlencode(asked)}", headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), content


def window(**changes):
    asked = {
        "start": 0,
        "perpixel": 1e5,
        "columns": 1000,
        "ranks": "0-3",
        "lanes": ",".join(sorted(ALL)),
    }
    return {**asked, **changes}


def unpacked(content: bytes):
    """The head and the tables of what is in sight."""
    size = int.from_bytes(content[:4], "little")
    head = json.loads(content[4 : 4 + size])
    at = 4 + size
    tables = {}
    for name, described in head["columns"].items():
        size = head["sizes"][name]
        tables[name] = columns(content[at : at + size], described)
        at += size
    assert at == len(content)
    return head, tables
