"""Training jobs with a fault put into them, and what `why` has to say of it.

The jobs are those of `sleeping`: torch.distributed.pipelining with layers that sleep. The fault is real
code of the job's: a data loader that is slow, a checkpoint, a collection of garbage that takes long.
Each rank notes for how long it did that by its own clock, with which the answer is compared.
"""

from __future__ import annotations

import gc
import io
import json
import multiprocessing
import os
import random
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from sleeping import Job, _alive, _Sleep, _stage, prompt

RANKS: Final = 4
MICROBATCHES: Final = 8
STEPS: Final = 5

SAID: Final = {
    "data": "data loading",
    "gc": "garbage collection",
    "checkpoint": "checkpoint",
    "evaluation": "evaluation",
}
"""Faults that make steps longer outside of the pipeline phase, and what they are called."""
FAULTS: Final = (*SAID, "late", "retry", "slow", "heavy")


class Fault(NamedTuple):
    """What is put into a job.

    Attributes:
        kind: One of `FAULTS`.
        rank: Where.
        size: Milliseconds in every step; of a slow rank or a heavy stage, how many times as long.
        seed: Of the jitter of all work, 5 %.
    """

    kind: str
    rank: int
    size: float
    seed: int

    @classmethod
    def drawn(cls, kind: str, seed: int) -> Fault:
        """Draw a fault."""
        dice = random.Random(f"{kind} {seed}")
        rank = {"retry": 0, "data": 0, "heavy": dice.randrange(RANKS)}.get(
            kind, dice.randrange(1, RANKS)
        )
        size = {"slow": dice.uniform(1.4, 2.0), "heavy": 2.0}.get(kind, dice.uniform(80, 200))
        return cls(kind, rank, size, seed)

    @property
    def job(self) -> Job:
        """The job that it is put into."""
        layers = [1.0] * RANKS
        if self.kind == "heavy":
            layers[self.rank] = self.size
        slow = self.kind == "slow"
        return Job(
            "1F1B",
            layers=tuple(layers),
            replicas=1 + slow,
            slow={self.rank: self.size} if slow else {},
            ranks=RANKS,
            microbatches=MICROBATCHES,
            steps=STEPS,
            jitter=0.05,
            seed=self.seed,
        )


def run(fault: Fault, folder: Path) -> None:
    """Run a job to its end, recorded into a folder; ranks note beside it what they did.

    Raises:
        RuntimeError: A process failed.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    folder.mkdir(parents=True)
    fork = multiprocessing.get_context("forkserver")
    fork.set_forkserver_preload(["torch.distributed.pipelining.schedules"])
    ranks = [
        fork.Process(target=_train, args=(fault, rank, str(folder)))
        for rank in range(fault.job.replicas * RANKS)
    ]
    for process in ranks:
        process.start()
    while _alive(ranks):
        time.sleep(0.05)
    if any(ended := [process.exitcode for process in ranks]):
        raise RuntimeError(f"{fault}: ranks ended with {ended}")


def noted(folder: Path, rank: int) -> list[float]:
    """Return for how many milliseconds a rank did what was put into each of its recorded steps."""
    said: list[float] = json.loads((folder / f"noted{rank}.json").read_text())
    return said


def _train(fault: Fault, rank: int, folder: str) -> None:
    import torch
    from torch import distributed, nn
    from torch.distributed import device_mesh
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.utils.data import DataLoader

    from bubblescope.record import instrument

    prompt()
    torch.set_num_threads(1)
    job = fault.job
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=job.replicas * RANKS
    )
    instrument("torch", folder=f"{folder}/recording", start=1)
    mesh = device_mesh.init_device_mesh("cpu", (job.replicas, RANKS), mesh_dim_names=("dp", "pp"))
    stage = rank % RANKS
    sleep = _Sleep(job, rank)
    held = PipelineStage(
        _stage(sleep, job, stage), stage, RANKS, torch.device("cpu"), group=mesh["pp"].get_group()
    )
    schedule = Schedule1F1B(held, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(held.submod.parameters(), lr=0.0)
    inputs = torch.ones(MICROBATCHES, 4)
    given, target = (inputs,) * (stage == 0), inputs if stage == RANKS - 1 else None
    inject = _Injected(fault, here=rank == fault.rank)
    batches = iter(DataLoader(inject.data(inputs), batch_size=None))
    notes = []
    gc.disable()
    for step in range(STEPS + 1):
        begin = time.monotonic()
        next(batches)
        inject.before(step, schedule, held.submod, target)
        took = time.monotonic() - begin
        schedule.step(*given, target=target)
        optimizer.step()
        optimizer.zero_grad()
        if fault.kind == "evaluation" and step:
            begin = time.monotonic()
            schedule.eval(*given, target=target)
            took = time.monotonic() - begin
        if step:
            notes.append(took * 1e3)
        distributed.barrier()
        sleep.awake = inject.awake = True
    Path(folder, f"noted{rank}.json").write_text(json.dumps(notes))
    distributed.destroy_process_group()


class _Injected:
    """The code that makes a fault.

    Args:
        fault: Which.
        here: Whether this is its rank.

    Attributes:
        awake: Whether data is slow already; it is not in the step that is not recorded.
    """

    def __init__(self, fault: Fault, *, here: bool) -> None:
        self.awake = False
        self._fault = fault
        self._here = here
        self._length_s = fault.size / 1e3

    def data(self, inputs: Any) -> Any:
        """Return a data set that gives the same all the time, and takes its time for it."""
        slow = self._fault.kind == "data" and self._here

        class Data:
            def __len__(_self) -> int:  # noqa: N805
                return 100

            def __getitem__(_self, _: int) -> Any:  # noqa: N805
                if slow and self.awake:
                    time.sleep(self._length_s)
                return inputs

        return Data()

    def before(self, step: int, schedule: Any, module: Any, target: Any) -> None:
        """Do what comes before a step; nothing before the one that is not recorded."""
        if not (step and self._here):
            return
        if self._fault.kind == "late":
            time.sleep(self._length_s)
        elif self._fault.kind == "gc":
            self._collect()
        elif self._fault.kind == "checkpoint":
            import torch

            torch.save(module.state_dict(), _Slow(self._length_s))
        elif self._fault.kind == "retry" and step == _FAILING:
            _fail(schedule, target)

    def _collect(self) -> None:
        def pause(phase: str, _: dict[str, int]) -> None:
            if phase == "start":
                time.sleep(self._length_s)

        gc.callbacks.append(pause)
        gc.collect()
        gc.callbacks.remove(pause)


_FAILING: Final = 2
"""The step before which a batch fails."""


class _Slow(io.BytesIO):
    """A file whose first write takes its time."""

    def __init__(self, length_s: float) -> None:
        super().__init__()
        self._left_s = length_s

    def write(self, data: Any) -> int:
        time.sleep(self._left_s)
        self._left_s = 0.0
        return super().write(data)


def _fail(schedule: Any, target: Any) -> None:
    """Try a batch of a shape that the first stage cannot take."""
    import torch

    try:
        schedule.step(torch.ones(MICROBATCHES, 3), target=target)
    except (RuntimeError, ValueError):
        return
    raise AssertionError("a batch of a wrong shape was taken")


class Verdict(NamedTuple):
    """What was said of a fault.

    Attributes:
        named: What is named first.
        rank: Where that is said to be; the stage, of a heavy one.
        said, was: Its size, and what it was by the job's own clock: in ms, or as a factor.
        right: Whether it is the fault, on its rank, within a tenth.
    """

    named: str
    rank: int
    said: float
    was: float
    right: bool


def judged(fault: Fault, folder: Path) -> Verdict:
    """Look at what `why` says first of a recorded job."""
    import bubblescope

    why = bubblescope.load(folder / "recording").why()
    said = json.loads(why.to_json())
    evidence = [one for one in said["findings"] if one["role"] == "evidence"]
    if fault.kind in SAID:
        first = next((one for one in evidence if one["key"] == "outside"), None)
        values = first["values"] if first else {"what": "nothing", "rank": -1, "rank_ns": 0}
        notes = noted(folder, values["rank"]) if values["rank"] >= 0 else [1.0]
        was = sum(notes[:-1]) / (len(notes) - 1)  # the last step has no end
        found = Verdict(values["what"], values["rank"], values["rank_ns"] / 1e6, was, right=False)
        where = fault.kind == "evaluation" or found.rank == fault.rank
        return _judged(found, named=found.named == SAID[fault.kind] and where)
    if fault.kind == "retry":
        told = [one["message"] for one in said["warnings"] if one["code"] == "failed-steps"]
        of = told[0] if told else ""
        run = bubblescope.load(folder / "recording")
        found = Verdict(of, 0, len(run.steps), STEPS, right=False)
        alike = run.tasks.drop_nulls("step").filter(kind="forward").group_by("rank", "step").len()
        return _judged(
            found, named="rank 0 failed 1 time" in of and set(alike["len"]) == {MICROBATCHES}
        )
    verdict = next(one for one in said["findings"] if one["key"] in ("first", "first_hidden"))
    cause = verdict["values"]["cause"]
    after = said["findings"][said["findings"].index(verdict) + 1]["values"]
    if fault.kind == "late":
        size = after.get("rank_ns", 0) / STEPS / 1e6
        was = sum(noted(folder, fault.rank)) / STEPS
        # It could not have begun before the first result came, one forward of each stage before it.
        was -= fault.rank * fault.job.times_ms[0]
        found = Verdict(cause, after.get("rank", -1), size, was, right=False)
        return _judged(found, named=cause == "host code" and found.rank == fault.rank)
    if fault.kind == "slow":
        share = 1 + after.get("slow_share", 0)
        found = Verdict(cause, after.get("rank", -1), share, fault.size, right=False)
        return _judged(found, named=cause == "slow rank" and found.rank == fault.rank)
    mean = (RANKS - 1 + fault.size) / RANKS
    times = after.get("mean_times", 0)
    found = Verdict(cause, after.get("stage", -1), times, fault.size / mean, right=False)
    return _judged(found, named=cause == "stage imbalance" and found.rank == fault.rank)


def _judged(found: Verdict, *, named: bool) -> Verdict:
    return found._replace(right=named and abs(found.said - found.was) <= 0.1 * found.was)
