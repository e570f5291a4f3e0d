"""Which forward made a tensor, as PyTorch's graph tells it."""

from __future__ import annotations

import threading

import pytest

from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import kind_of, place_of
from bubblescope.record.integrations.torch_loop.graph_origins import Origins, Work, apart
from full import module

torch = module("torch")

WORKS = [[Work(chunk, microbatch, chunk) for microbatch in range(3)] for chunk in range(2)]


@pytest.fixture
def origins():
    apart(torch)  # as the loop's thread does
    return Origins(torch.Tensor)


@pytest.fixture
def run(origins):
    """Runs a model on ones, and notes what made its output."""
    models = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()) for _ in WORKS]
    number = torch.autograd._get_sequence_nr

    def run(chunk, microbatch):
        before = number()
        output = models[chunk](torch.ones(2, 4))
        origins.note(WORKS[chunk][microbatch], before, number())
        return output

    return run


def told(work):
    return None if work is None else (work.chunk, work.microbatch)


def test_each_loss_is_of_its_own_forward_in_whatever_order(origins, run):
    losses = [torch.nn.functional.mse_loss(run(0, i), torch.ones(2, 4)) / 3 for i in range(3)]
    for i in (2, 0, 1):
        assert told(origins.of(losses[i])) == (0, i)
        losses[i].backward()


def test_what_no_model_made_is_of_none(origins, run):
    weight = torch.ones(3, requires_grad=True)
    before = (weight * 2).sum()
    run(0, 0)
    assert origins.of(before) is None
    assert origins.of((weight * 2).sum()) is None
    assert origins.of(torch.ones(3)) is None
    assert origins.of(None) is None


def test_several_micro_batches_are_none_and_several_chunks_of_one_are_one(origins, run):
    assert origins.of((run(0, 0) + run(0, 1)).sum()) is None
    both = origins.of((run(0, 2) * run(1, 2)).sum())
    assert told(both) == (None, 2)
    assert kind_of(both.backward) is Kind.BACKWARD
    assert place_of(both.backward).keys() == {"microbatch", "kind", "lane"}
    assert told(origins.of([run(1, 1), {"of": run(1, 1)}])) == (1, 1)


def test_a_branch_that_no_model_made_changes_nothing(origins, run):
    weight = torch.ones(2, 4, requires_grad=True)
    assert told(origins.of((run(1, 0) * weight.exp()).sum())) == (1, 0)


def test_what_an_earlier_step_made_is_of_none(origins, run):
    first = run(0, 2)
    origins.begin_step()
    assert origins.of(first.sum()) is None
    second = run(0, 2)
    assert told(origins.of(second.sum())) == (0, 2)
    assert origins.of((first + second).sum()) is None
    for _ in range(3):  # no more is kept than the last two steps
        origins.begin_step()
        run(0, 0)
    assert (len(origins.bounds), len(origins.works)) == (4, 2)
    assert origins.of(first.sum()) is origins.of(second.sum()) is None


def test_what_a_loss_is_made_of_before_and_after_its_forward_changes_nothing(origins, run):
    """All forwards first, then all losses: the last forward is not the one that they are of."""
    weight = torch.ones(2, 4, requires_grad=True)
    early = weight.exp()
    outputs = [run(0, i) for i in range(3)]
    losses = [(output * early).sum() for output in outputs]
    assert [told(origins.of(loss)) for loss in losses] == [(0, 0), (0, 1), (0, 2)]


def test_nodes_of_other_threads_have_numbers_of_their_own(origins, run):
    """They are of no forward that this thread has made, however a loss comes by them."""
    assert torch.autograd._get_sequence_nr() >= 1 << 15
    origins.begin_step()
    output = run(0, 0)
    made = []

    def elsewhere():  # which counts from the beginning
        made.append(torch.ones(2, 4, requires_grad=True).exp())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert made[0].grad_fn._sequence_nr() < output.grad_fn._sequence_nr()
    assert origins.of(made[0].sum()) is None
    assert told(origins.of((made[0] * output).sum())) == (0, 0)


def test_it_looks_no_further_than_it_is_told(origins, run):
    output = run(0, 0)
    assert told(origins.of(output, 1)) == (0, 0)
    assert origins.of(output.exp(), 1) is None
    assert told(origins.of(output.exp(), 2)) == (0, 0)
    weight = torch.ones(2, 4, requires_grad=True)
    assert origins.of(output.exp() * weight, 2) is None
