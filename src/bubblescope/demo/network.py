"""The model that the demo trains: a multi-layer perceptron, cut into stages.

Its backward is split as zero-bubble schedules need it: the input gradient, which the stage before
waits for, and the weight gradient, which nobody does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

_MOMENTUM = 0.9


class Stage:
    """Consecutive layers y = tanh(x W + b), with plain gradient accumulation and momentum SGD.

    Args:
        width: Features in and out of every layer.
        layers: Number of layers.
        first: Index of the first of them in the whole model, which seeds the weights.
        seed: Seed of the model.
    """

    def __init__(self, width: int, layers: int, first: int, seed: int) -> None:
        self.weights: list[Array] = []
        self.biases: list[Array] = []
        for layer in range(first, first + layers):
            random = np.random.default_rng([seed, layer])
            scale = 1 / np.sqrt(width)
            self.weights.append((random.standard_normal((width, width)) * scale).astype(np.float32))
            self.biases.append(np.zeros(width, np.float32))
        self._gradients = [np.zeros_like(array) for array in self.parameters()]
        self._velocity = [np.zeros_like(array) for array in self.parameters()]
        self._activations: dict[int, list[Array]] = {}
        self._deltas: dict[int, list[Array]] = {}

    def parameters(self) -> list[Array]:
        """Return weights and biases, layer by layer."""
        return [array for pair in zip(self.weights, self.biases, strict=True) for array in pair]

    def forward(self, microbatch: int, x: Array) -> Array:
        """Run the layers, keeping what the backward needs."""
        kept = [x]
        for weight, bias in zip(self.weights, self.biases, strict=True):
            kept.append(np.tanh(kept[-1] @ weight + bias))
        self._activations[microbatch] = kept
        return kept[-1]

    def backward_input(self, microbatch: int, gradient: Array) -> Array:
        """Return the gradient of the input, keeping what the weight gradient needs."""
        kept = self._activations[microbatch]
        deltas: list[Array] = []
        for layer in reversed(range(len(self.weights))):
            delta = gradient * (1 - kept[layer + 1] ** 2)
            deltas.append(delta)
            gradient = np.matmul(delta, self.weights[layer].T)
        self._deltas[microbatch] = deltas[::-1]
        return gradient

    def backward_weight(self, microbatch: int) -> None:
        """Add the micro-batch's weight gradients to the step's, and let its activations go."""
        kept, deltas = self._activations.pop(microbatch), self._deltas.pop(microbatch)
        for layer, delta in enumerate(deltas):
            self._gradients[2 * layer] += kept[layer].T @ delta
            self._gradients[2 * layer + 1] += delta.sum(0)

    def optimize(self, rate: float, samples: int) -> None:
        """Take a step of momentum SGD along the mean gradient, and clear it."""
        for value, gradient, velocity in zip(
            self.parameters(), self._gradients, self._velocity, strict=True
        ):
            velocity[:] = _MOMENTUM * velocity - np.float32(rate / samples) * gradient
            value[:] += velocity
            gradient[:] = 0


class Data:
    """Inputs and targets, the same in every step: a fixed random function of random inputs."""

    def __init__(self, seed: int, samples: int, width: int) -> None:
        self._seed = seed
        self._shape = (samples, width)
        teacher = np.random.default_rng([seed, 1 << 30]).standard_normal((width, width))
        self._teacher = (teacher / np.sqrt(width)).astype(np.float32)

    def inputs(self, microbatch: int) -> Array:
        """Return a micro-batch's inputs, samples by width."""
        random = np.random.default_rng([self._seed, microbatch, 1])
        return random.standard_normal(self._shape, dtype=np.float32)

    def targets(self, microbatch: int) -> Array:
        """Return what the model should make of them."""
        targets: Array = np.float32(0.5) * np.tanh(self.inputs(microbatch) @ self._teacher)
        return targets


def loss_and_gradient(output: Array, target: Array) -> tuple[float, Array]:
    """Return half the squared error per feature, summed over samples, and its gradient."""
    error = output - target
    return float((error**2).sum()) / (2 * error.shape[1]), error / np.float32(error.shape[1])
