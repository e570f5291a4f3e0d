"""Makes a Python process ready to record, if the environment says that its job is to be recorded.

Every Python process of such a job runs this file when it starts, by its place: to import the package
it is in would cost a tenth of a second. Two ways lead here, and one is enough:

- `bubblescope-record.pth`, which is installed beside the package, where Python looks for such files;
- `inject/sitecustomize.py`, whose folder `bubblescope record` puts on the job's PYTHONPATH.

Whatever goes wrong is one line on the standard error and nothing else: the job must run as it would
without.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

_VARIABLE = "BUBBLESCOPE_RECORD"
_HOOKS = "_bubblescope_hooks"


def _start() -> None:
    told = os.environ.get(_VARIABLE)
    if not told or _HOOKS in sys.modules:
        return
    try:
        settings = _loaded("_bubblescope_settings", "settings.py").Settings.from_text(told)
    except ValueError as error:
        # Processes that this one starts are not told again what is wrong.
        del os.environ[_VARIABLE]
        _say(f"{_VARIABLE}={told} is not understood: {error}")
        return
    # Processes that this one starts may do so in another folder.
    folder = os.path.abspath(os.path.expanduser(settings.out))
    os.environ[_VARIABLE] = settings._replace(out=folder).as_text()
    _loaded(_HOOKS, "hooks.py").install()


def _loaded(name: str, file: str) -> ModuleType:
    """Return a module that lies beside this one."""
    loader = SourceFileLoader(name, os.path.join(os.path.dirname(__file__), file))
    spec = spec_from_loader(name, loader)
    if spec is None:
        raise ImportError(file)
    module = sys.modules[name] = module_from_spec(spec)
    loader.exec_module(module)
    return module


def _say(what: str) -> None:
    said = f"bubblescope: {what}; nothing will be recorded, and the job goes on"
    with suppress(Exception):  # that the package cannot be imported may be what is wrong
        from bubblescope.record.job_log import told  # noqa: PLC0415  only now: it takes its time

        said = told(said)
    if sys.stderr is not None:  # as where a program has no terminal
        sys.stderr.write(f"{said}\n")


try:
    _start()
except Exception as error:  # noqa: BLE001
    _say(f"it cannot start ({type(error).__name__}: {error})")
