"""A page in Debian's Firefox, steered by WebDriver BiDi (https://w3c.github.io/webdriver-bidi/).

Firefox speaks it by itself: no driver is needed beside it.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import threading
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
_LISTENING = re.compile(r"WebDriver BiDi listening on (ws://\S+)")
_PATIENCE_S = 120


class Tab:
    """One tab.

    Args:
        socket: To the browser.
    """

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._numbers = count(1)
        self.errors: list[str] = []
        self._ask("session.new", capabilities={})
        self._ask("session.subscribe", events=["log.entryAdded"])
        self._context = self._ask("browsingContext.getTree")["contexts"][0]["context"]

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            said = json.loads(self._socket.recv(timeout=_PATIENCE_S))
            if said.get("method") == "log.entryAdded" and said["params"]["level"] == "error":
                self.errors.append(said["params"]["text"])
            if said.get("id") == number:
                assert said["type"] == "success", said
                return said["result"]

    def open(self, address: str, width: int, height: int, ratio: float = 1.0) -> None:
        """Open a page in a window of CSS pixels, and wait until it has drawn."""
        self._ask(
            "browsingContext.setViewport",
            context=self._context,
            viewport={"width": width, "height": height},
            devicePixelRatio=ratio,
        )
        # From elsewhere: an address that differs in nothing, or behind "#" only, is not loaded anew.
        for url in ("about:blank", address):
            self._ask("browsingContext.navigate", context=self._context, url=url, wait="complete")
        self.until("!!window.bubblescope")

    def evaluate(self, expression: str) -> Any:
        """Return what an expression comes to, through JSON."""
        found = self._ask(
            "script.evaluate",
            expression=f"(async () => JSON.stringify(await ({expression})))()",
            target={"context": self._context},
            awaitPromise=True,
        )
        assert found["type"] == "success", found
        return json.loads(found["result"].get("value", "null"))

    def until(self, expression: str) -> None:
        """Wait until something holds."""
        for _ in range(600):
            if self.evaluate(expression):
                return
            threading.Event().wait(0.05)
        pytest.fail(f"never: {expression}")

    def act(self, *sources: dict[str, Any]) -> None:
        """Move pointers, turn wheels, press keys, as `input.performActions` has them."""
        self._ask("input.performActions", context=self._context, actions=list(sources))

    def click(self, x: float, y: float) -> None:
        """Click at a point of the page."""
        at = {"type": "pointerMove", "x": round(x), "y": round(y)}
        steps = [at, {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self.act({"type": "pointer", "id": "mouse", "actions": steps})

    def drag(self, x: float, y: float, to: float) -> None:
        """Drag sideways with the main button."""
        steps = [
            {"type": "pointerMove", "x": round(x), "y": round(y)},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerMove", "x": round((x + to) / 2), "y": round(y)},
            {"type": "pointerMove", "x": round(to), "y": round(y)},
            {"type": "pointerUp", "button": 0},
        ]
        self.act({"type": "pointer", "id": "mouse", "actions": steps})

    def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        steps = [{"type": way, "value": key} for key in keys for way in ("keyDown", "keyUp")]
        self.act({"type": "key", "id": "keys", "actions": steps})

    def screenshot(self, path: Path) -> Path:
        """Write what is in sight as PNG."""
        shot = self._ask("browsingContext.captureScreenshot", context=self._context)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path


@contextmanager
def firefox(folder: Path) -> Iterator[Tab]:
    """Yield a tab of a headless Firefox with its profile in a folder; skip where there is none."""
    if FIREFOX is None:
        pytest.skip("no Firefox on the PATH")
    client = pytest.importorskip("websockets.sync.client")
    profile = folder / "profile"
    profile.mkdir()
    process = subprocess.Popen(
        [
            *(FIREFOX, "--headless", "--no-remote", "--remote-debugging-port", "0"),
            *("--profile", str(profile), "about:blank"),
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "HOME": str(folder)},
    )
    try:
        address = next(found[1] for line in process.stderr if (found := _LISTENING.search(line)))
        # What it goes on to say must be read, or it stops when the pipe is full.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        with client.connect(f"{address}/session", max_size=None) as socket:
            yield Tab(socket)
    finally:
        process.terminate()
        process.wait(30)
        process.stderr.close()
