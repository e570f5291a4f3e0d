"""Runs a script as each of some ranks, as torchrun would, in a third of the time.

    python forked.py RANKS MODULE SCRIPT ARGUMENT...

What takes long to import is imported once: ranks are forks of the process that did. That is for jobs
whose results are compared with; how a recorded job is started is part of what is tested.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import socket
import sys


def start(rank, script, arguments):
    """Return the process id of a rank; the rank itself never returns."""
    if pid := os.fork():
        return pid
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
    sys.exit()


def main(ranks, module, script, *arguments):
    importlib.import_module(module)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    os.environ.update(WORLD_SIZE=ranks, LOCAL_WORLD_SIZE=ranks)
    left = {start(rank, script, arguments) for rank in range(int(ranks))}
    failed = False
    while left:
        pid, status = os.wait()
        left.discard(pid)
        if status and not failed:
            failed = True
            for other in left:
                os.kill(other, signal.SIGKILL)
    sys.exit(failed)


if __name__ == "__main__":
    main(*sys.argv[1:])
