"""Pipelines whose results go through the memory of hosts: devices wait for ranks, not for launches."""

from __future__ import annotations

from itertools import cycle

import pytest

import bubblescope
from bubblescope.analysis.device_words import bound
from bubblescope.analysis.idle.causes import Cause
from bubblescope.model.budget import Use
from kineto_maker import BASE, MAIN, Trace

FORWARD, BACKWARD, COPY, WAY, CALL = 100_000, 200_000, 60_000, 300_000, 5_000
STEPS, MICROBATCHES = 3, 4
HtoD, DtoH = "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)"


class Rank:
    """One of two ranks: its host does one thing after the other, and waits for copies and results."""

    def __init__(self, number, *, waits):
        self.trace = Trace(rank=number)
        self.number, self.waits = number, waits
        self.host, self.device = 1_000_000, 0
        self.waited = 0

    def receive(self, arrives):
        """Wait until a result has come through the network, and copy it to the device."""
        begin, self.host = self.host, max(self.host, arrives) + 2_000
        if self.waits:
            self.trace.event("cpu_op", "c10d::recv_", begin, begin + 500)
            self.trace.range(self.waits, begin + 600, self.host)
        late, waiting = self.host + 1_000 - self.device, self.host - max(begin + 600, self.device)
        if self.device and 2 * waiting > late > 0:  # before it runs anything, no device is known
            self.waited += late
        self.copy(HtoD)

    def copy(self, name):
        """Copy something; the call returns when it is done."""
        begin = self.host + 1_000
        start = max(self.device, begin + CALL)
        self.device = start + COPY
        self.host = self.device + 1_000
        self.trace.next_correlation += 1
        launch = {"correlation": self.trace.next_correlation}
        self.trace.event("cuda_runtime", "cudaMemcpyAsync", begin, self.host, MAIN, **launch)
        self.trace.event("gpu_memcpy", name, start, self.device, 7, device=0, stream=7, **launch)

    def run(self, action, microbatch, length):
        """Launch a pass."""
        begin, at = self.host, self.host + 1_000
        start = max(self.device, at + CALL + 1_000)
        self.trace.kernel(start, start + length, at=at)
        self.device, self.host = start + length, at + CALL + 500
        self.trace.range(f"PP:{self.number}{action}{microbatch}", begin, self.host)

    def send(self, way):
        """Copy a result to the host, and return when the other rank has it."""
        self.copy(DtoH)
        return self.host + way


def job(waits):
    """Return the two ranks of a 1F1B pipeline. What they wait for results in is called `waits`."""
    first, last = ranks = [Rank(number, waits=waits) for number in range(2)]
    ways = cycle([WAY, 3 * WAY, 2 * WAY])
    for step in range(STEPS):
        begun = [(len(rank.trace.events), rank.host) for rank in ranks]
        outputs, gradients = {}, {}
        first.run("F", 0, FORWARD)
        outputs[0] = first.send(next(ways))
        for microbatch in range(MICROBATCHES):
            if microbatch + 1 < MICROBATCHES:
                first.run("F", microbatch + 1, FORWARD)
                outputs[microbatch + 1] = first.send(next(ways))
            last.receive(outputs[microbatch])
            last.run("F", microbatch, FORWARD)
            last.run("B", microbatch, BACKWARD)
            gradients[microbatch] = last.send(next(ways))
            first.receive(gradients[microbatch])
            first.run("B", microbatch, BACKWARD)
        for rank, (row, begin) in zip(ranks, begun, strict=True):
            rank.host = max(rank.host, rank.device) + 20_000
            rank.trace.range(f"ProfilerStep#{step}", begin, rank.host)
            rank.trace.events.insert(row, rank.trace.events.pop())
    return ranks


def loaded(ranks, folder):
    for rank in ranks:
        rank.trace.write(folder / f"rank{rank.number}.json")
    return bubblescope.load(folder)


def test_a_device_whose_host_waits_for_a_result_waits_for_the_other_rank(tmp_path):
    ranks = job("gloo:recv")
    run = loaded(ranks, tmp_path)
    budget = run.report().budget.overall
    assert budget.idle[Use.RANK_WAIT] == sum(rank.waited for rank in ranks)
    assert bound(budget) == "communication"
    assert "hosts waited for other ranks" in str(run.report())


def test_and_what_it_waits_for_is_no_launch_but_a_transfer(tmp_path):
    why = loaded(job("gloo:recv"), tmp_path).why().to_dict()
    causes = {one["cause"]: one["idle_ns"] for one in why["causes"]}
    launches = 2 * 2 * STEPS * MICROBATCHES
    assert causes.get(Cause.LAUNCH.value, 0) < 20_000 * launches
    assert causes[Cause.TRANSFER.value] > 0.5 * sum(causes.values())


def test_where_no_wait_is_recorded_the_host_is_only_late(tmp_path):
    run = loaded(job(None), tmp_path)
    assert Use.RANK_WAIT not in run.report().budget.overall.idle


@pytest.mark.parametrize("waits", ["gloo:send", "nccl:recv"])
def test_what_goes_on_in_the_background_keeps_no_host(waits, tmp_path):
    run = loaded(job(waits), tmp_path)
    assert Use.RANK_WAIT not in run.report().budget.overall.idle
    assert run.timeline.start_ns > BASE
