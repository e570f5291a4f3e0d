"""Which forward made a tensor, as PyTorch's graph tells it."""

from __future__ import annotations

import threading

import pytest

from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import kind_of, place_of
from bubblescope.record.integrations.torch_loop.graph_origins import Origins, Work
from full import module

torch = module("torch")

WORKS = [[Work(chunk, microbatch, chunk) for microbatch in range(3)] for chunk in range(2)]


@pytest.fixture
def origins():
    return Origins(torch.Tensor)


@pytest.fixture
def run(origins):
    """Runs a model on ones, and notes what made its output."""
    models = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()) for _ in WORKS]

    def run(chunk, microbatch, step=7):
        output = models[chunk](torch.ones(2, 4))
        origins.note(output, (step, WORKS[chunk][microbatch]))
        return output

    return run


def told(origin):
    return None if origin is None else (origin[0], origin[1].chunk, origin[1].microbatch)


def test_each_loss_is_of_its_own_forward_in_whatever_order(origins, run):
    losses = [torch.nn.functional.mse_loss(run(0, i), torch.ones(2, 4)) / 3 for i in range(3)]
    for i in (2, 0, 1):
        assert told(origins.of(losses[i])) == (7, 0, i)
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
    assert origins.of((run(0, 2, step=1) + run(0, 2, step=2)).sum()) is None
    both = origins.of((run(0, 2) * run(1, 2)).sum())
    assert told(both) == (7, None, 2)
    assert kind_of(both[1].backward) is Kind.BACKWARD
    assert place_of(both[1].backward).keys() == {"microbatch", "kind", "lane"}
    assert told(origins.of([run(1, 1), {"of": run(1, 1)}])) == (7, 1, 1)


def test_a_branch_that_no_model_made_changes_nothing(origins, run):
    weight = torch.ones(2, 4, requires_grad=True)
    assert told(origins.of((run(1, 0) * weight.exp()).sum())) == (7, 1, 0)


def test_nodes_of_other_threads_have_numbers_of_their_own(origins, run):
    outputs = []

    def elsewhere():
        for _ in range(100):
            torch.ones(1, requires_grad=True).exp()
        outputs.append(run(0, 0))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    outputs.append(run(0, 1))
    assert outputs[0].grad_fn._sequence_nr() != outputs[1].grad_fn._sequence_nr()
    assert [told(origins.of(one.sum())) for one in outputs] == [(7, 0, 0), (7, 0, 1)]

    later = []
    thread = threading.Thread(target=lambda: later.append(run(0, 2)))  # counts from the beginning
    thread.start()
    thread.join()
    assert [told(origins.of(one.sum())) for one in [*outputs, *later]] == [
        (7, 0, 0),
        (7, 0, 1),
        (7, 0, 2),
    ]


def test_it_looks_no_further_than_it_is_told(origins, run):
    output = run(0, 0)
    assert told(origins.of(output, 1)) == (7, 0, 0)
    assert origins.of(output.exp(), 1) is None
    assert told(origins.of(output.exp(), 2)) == (7, 0, 0)
    weight = torch.ones(2, 4, requires_grad=True)
    assert origins.of(output.exp() * weight, 2) is None
