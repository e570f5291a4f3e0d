"""Makes every Python process of a recorded job ready to record.

`bubblescope record` puts this folder at the front of PYTHONPATH, and Python imports a module of this
name when it starts. It does nothing unless the job is to be recorded, and whatever goes wrong in it is
one line on the standard error and nothing else: the job must run as it would without.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys


def _ready() -> None:
    if not os.environ.get("BUBBLESCOPE_RECORD"):
        return
    try:
        # By its place, not by its package: importing that would cost every process a tenth of a second.
        place = os.path.join(os.path.dirname(_HERE), "hooks.py")
        loader = importlib.machinery.SourceFileLoader("_bubblescope_hooks", place)
        spec = importlib.util.spec_from_loader(loader.name, loader)
        if spec is not None:
            hooks = importlib.util.module_from_spec(spec)
            sys.modules[loader.name] = hooks
            loader.exec_module(hooks)
            hooks.install()
    except Exception as error:  # noqa: BLE001
        sys.stderr.write(f"bubblescope: nothing will be recorded ({error}); the job goes on\n")


def _next_one() -> None:
    """Run the sitecustomize that this one is in front of, if there is one."""
    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_HERE = os.path.dirname(os.path.abspath(__file__))
_ready()
_next_one()
