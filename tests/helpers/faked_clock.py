"""A node whose clocks are wrong, on a machine whose clock is right: by libfaketime."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

_SECOND = 10**9


def library():
    """Return the path of libfaketime, as PyPI's package of that name has it, or None."""
    found = find_spec("libfaketime")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
    return path if path.exists() else None


@contextmanager
def wrong_clock(path, *, ahead_ns, ppm):
    """Give the environment of processes whose clocks are ahead by so much, and drift from now on.

    They share one clock, as the processes of a host do: what libfaketime counts from is in shared
    memory. UTC is ahead; the monotonic clock, which counts from anywhere anyhow, begins right, so that
    deadlines, which the kernel keeps by its own, mean the same to both.
    """
    rate = 1 + ppm * 1e-6
    name = f"bubblescope{os.getpid()}"
    real_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
    # libfaketime shows every clock as `real_ns` + `ahead_ns` + `rate` x (the clock - its beginning).
    begin_ns = monotonic_ns + round((real_ns + ahead_ns - monotonic_ns) / rate)
    beginnings = (real_ns, begin_ns, begin_ns, begin_ns)  # UTC, monotonic, raw, since boot
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sem_open.restype = ctypes.c_void_p
    if not libc.sem_open(f"/{name}".encode(), os.O_CREAT, 0o600, 1):
        raise OSError(ctypes.get_errno(), "no semaphore for libfaketime")
    shared = SharedMemory(name, create=True, size=struct.calcsize("2Q8q"))
    try:
        times = [part for one in beginnings for part in divmod(one, _SECOND)]
        struct.pack_into("2Q8q", shared.buf, 0, 0, 0, *times)
        yield {
            "LD_PRELOAD": str(path),
            "FAKETIME": f"{ahead_ns / _SECOND:+.9f} x{rate:.9f}",
            "FAKETIME_SHARED": f"/{name} /{name}",
        }
    finally:
        shared.close()
        shared.unlink()
        libc.sem_unlink(f"/{name}".encode())
