"""Which calls of a schedule are rounds of one step, by what optimizers and weights show."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from bubblescope.record.integrations.torch_weights import Weights
from bubblescope.record.rounds import Rounds


def steps(calls, rounds=None, optimizer=True):
    """Return the number of each call's step.

    `calls` is a letter for each call, by what came before it: `o` a step of an optimizer of PyTorch's,
    `c` weights that changed, `.` nothing.
    """
    rounds = rounds or Rounds()
    if optimizer:
        rounds.made_optimizer()
    number, found = -1, []
    for call in calls:
        if call == "o":
            rounds.optimized()
        number += rounds.begin(4, within=number >= 0, changed=call == "c")
        found.append(number)
    return found


@pytest.mark.parametrize(
    ("calls", "optimizer", "expected"),
    [
        ("...o..o..", True, [0, 0, 0, 1, 1, 1, 2, 2, 2]),
        ("...c..c..", True, [0, 0, 0, 1, 1, 1, 2, 2, 2]),
        ("...c..c..", False, [0, 1, 2, 3, 3, 3, 4, 4, 4]),
        ("cccc", False, [0, 1, 2, 3]),
        ("....", False, [0, 1, 2, 3]),
        (
            "...oc.o.c",
            True,
            [0, 0, 0, 1, 1, 1, 2, 2, 2],
        ),  # where an optimizer tells, weights do not
    ],
)
def test_steps(calls, optimizer, expected):
    assert steps(calls, optimizer=optimizer) == expected


def test_an_optimizer_that_is_never_used_is_not_waited_for_forever():
    found = steps("." * 40)
    assert found[:33] == [0] * 32 + [1]
    assert found[-1] == 8


def test_micro_batches_are_numbered_on_within_a_step_only():
    rounds = Rounds()
    steps(".c.", rounds)
    assert rounds.first_microbatch == 4
    steps("c", rounds)
    assert rounds.first_microbatch == 0


class Parameter:
    def __init__(self, grad="a gradient"):
        self._version, self.grad = 3, grad


class Shard(Parameter):
    pass


@pytest.fixture
def torch(monkeypatch):
    made = SimpleNamespace(nn=SimpleNamespace(Parameter=Parameter))
    monkeypatch.setitem(sys.modules, "torch", made)


def module(*parameters):
    return SimpleNamespace(parameters=lambda: iter(parameters))


@pytest.mark.usefixtures("torch")
def test_weights_that_change_and_gradients_that_go_are_seen():
    one, other, shard, frozen = Parameter(), Parameter(), Shard(), Parameter(grad=None)
    weights = Weights()
    assert not weights.changed()

    def after(change):
        weights.note([module(frozen, one), module(other, shard)])
        change()
        return weights.changed()

    assert not after(lambda: None)
    assert after(lambda: setattr(other, "_version", 4))
    assert after(lambda: setattr(one, "grad", None))
    assert not after(lambda: setattr(shard, "_version", 9))
    assert not after(lambda: setattr(frozen, "_version", 9))
    assert not weights.changed()  # once
