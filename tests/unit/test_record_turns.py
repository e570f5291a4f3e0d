"""Which forward or backward of Megatron-LM is next, and which of them made a tensor."""

from __future__ import annotations

import pytest

from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import kind_of, place_of
from bubblescope.record.integrations.megatron.placement import Layout, Work
from bubblescope.record.integrations.megatron.turns import Origins, Progress


class Tensor:
    """Something that can be referred to weakly."""


@pytest.fixture
def models():
    return [object(), object()]


@pytest.fixture
def layout(models):
    return Layout(models, [1, 5], 1, 4, 8)


@pytest.fixture
def origins():
    return Origins()


@pytest.fixture
def progress(origins, layout):
    progress = Progress(origins)
    progress.begin(layout.chunks, layout.passes, layout.backwards)
    return progress


@pytest.fixture
def forwards(progress, layout):
    """What tells where a call is, of a function with its model in the second place."""
    return progress.forwards(1, lambda _, said: said["model"], layout.place)


@pytest.fixture
def backwards(progress, layout):
    return progress.backwards(0, lambda _, said: said["output"], layout.place)


def told(place):
    found = place_of(place)
    return kind_of(place), found["stage"], found["chunk"], found["microbatch"]


def test_forwards_of_each_chunk_are_counted_however_the_model_is_given(forwards, models):
    first, second = models
    assert told(forwards((None, first), {})) == (Kind.FORWARD, 1, 0, 0)
    assert told(forwards((None, second), {})) == (Kind.FORWARD, 5, 1, 0)
    assert told(forwards((), {"model": first})) == (Kind.FORWARD, 1, 0, 1)


def test_more_forwards_than_the_schedule_said_are_counted_on(forwards, models):
    found = [told(forwards((None, models[1]), {}))[3] for _ in range(11)]
    assert found == list(range(11))


def test_one_chunk_need_not_be_known(layout, models):
    progress = Progress(Origins())
    only = Layout(models[:1], [3], 3, 4, 2)
    progress.begin(only.chunks, only.passes, only.backwards)
    assert progress.next_forward(object()) == (Kind.FORWARD, Work(0, 0))


def test_a_backward_is_of_the_forward_whose_output_it_is_given(
    progress, forwards, backwards, models
):
    made = [[Tensor()] for _ in range(4)]
    for one in made:
        forwards((None, models[0]), {})
        progress.note_forward((one, 0))
    assert told(backwards((made[0],), {})) == (Kind.BACKWARD, 1, 0, 0)
    assert told(backwards((made[2][0],), {})) == (Kind.BACKWARD, 1, 0, 2)
    assert told(backwards((), {"output": made[1]})) == (Kind.BACKWARD, 1, 0, 1)
    assert progress.last(forward=False) == Work(0, 1)


@pytest.mark.parametrize("output", [None, [None], [], 7], ids=str)
def test_what_no_output_tells_the_expected_order_does(
    progress, forwards, backwards, models, output
):
    for model in models:
        forwards((None, model), {})
        progress.note_forward(output)
    # Of the backwards, those of the last chunk come first.
    assert told(backwards((None,), {})) == (Kind.BACKWARD, 5, 1, 0)


def test_an_output_that_is_gone_is_nobodys(progress, forwards, backwards, models):
    for model in models:
        forwards((None, model), {})
        progress.note_forward(Tensor())  # nobody keeps it
    assert told(backwards((None,), {})) == (Kind.BACKWARD, 5, 1, 0)


def test_backwards_that_leave_their_weights_are_noted(progress, forwards, backwards, models):
    progress.splits.append(lambda: True)
    made = Tensor()
    forwards((None, models[0]), {})
    progress.note_forward(made)
    assert told(backwards((made,), {})) == (Kind.BACKWARD_INPUT, 1, 0, 0)
    assert list(progress.weights) == [Work(0, 0)]


def test_a_schedule_that_says_what_is_next_is_believed(progress, forwards, backwards, models):
    progress.given = Kind.FORWARD, Work(1, 6)
    assert told(forwards((None, models[0]), {})) == (Kind.FORWARD, 5, 1, 6)
    progress.note_forward(Tensor())
    progress.given = Kind.BACKWARD, Work(1, 3)
    assert told(backwards((Tensor(),), {})) == (Kind.BACKWARD, 5, 1, 3)
    progress.given = None
    with pytest.raises(LookupError):  # what was given is not open
        backwards((Tensor(),), {})


def test_a_tensor_is_known_however_many_were_made_after_it(progress, origins, forwards, models):
    made = [Tensor() for _ in range(5)]
    for one in made:
        forwards((None, models[0]), {})
        progress.note_forward(one)
    for _ in range(2):
        assert [origins.of(one) for one in made] == [(True, Work(0, i)) for i in range(5)]
    progress.next_backward(made[0])
    gradient = Tensor()
    progress.note_backward([gradient])
    assert origins.of(gradient) == (False, Work(0, 0))
    assert origins.of(made[3]) == (True, Work(0, 3))
    assert origins.of(Tensor()) is None
    origins.clear()
    assert origins.of(made[3]) is None


def test_a_tensor_in_the_place_of_one_that_is_gone_is_another(origins, progress, forwards, models):
    gone = [Tensor() for _ in range(100)]
    ids = set(map(id, gone))
    for one in gone:
        forwards((None, models[0]), {})
        progress.note_forward(one)
        origins.of(None)  # so that they are looked up by their identity
    del gone, one
    others = [Tensor() for _ in range(1000)]
    assert ids & set(map(id, others))
    assert [origins.of(one) for one in others] == [None] * len(others)
