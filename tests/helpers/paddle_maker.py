"""Makes the lines of PaddlePaddle's worker logs."""

from __future__ import annotations

MS = 1_697_793_307_000
NS = MS * 1_000_000


def line(kind, microbatch, start, end, *, pid=22317, job=None):
    """A job line; times are milliseconds after `MS`, or None for a timer that never ran."""
    times = ["0.000000" if ms is None else f"{MS + ms:.6f}" for ms in (start, end)]
    return (
        f"I1020 09:15:07.265326 {pid} standalone_executor.cc:217] Profiler Info: "
        f"Job ({microbatch if job is None else job}), type = {kind}, "
        f"micro_batch_id = {microbatch}, job_start_time = {times[0]}, job_end_time = {times[1]}\n"
    )


def window(first, last=99):
    return (
        f"[2023-10-20] [ INFO] - Schedule Profiler start at step {first} and end at step {last}\n"
    )


def write(folder, *lines, name="workerlog.0"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(lines)
    path.write_bytes(text if isinstance(text, bytes) else text.encode("latin-1"))
    return path


def codes(timeline):
    """Return the warnings of a run by their code."""
    return {notice.code: notice for notice in timeline.run.warnings}
