"""What a training job notes of itself: when each of its passes ran, by its own clock.

Nothing here knows bubblescope, its hooks, or how it counts. Which micro-batch of which step is
computed is carried by the data: each sample begins with a number that says it (`tag`), and a model
reads that number from what it is given. So the stamps cannot repeat a mistake of whoever counts calls.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import distributed, nn

if TYPE_CHECKING:
    from collections.abc import Iterator

VOCABULARY, WIDTH, LENGTH, SAMPLES = 64, 128, 64, 8
"""Of the models here: how many tokens there are, a hidden state's size, a sample's and a batch's."""

START = int(os.environ.get("START") or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
"""How often the job was started before, by torchrun or by whoever says so."""

DEPTH = int(os.environ.get("DEPTH", "1"))
"""How many times as many layers: what a framework does around a pass then matters less."""

_PASSES = ("forward", "backward", "backward_input", "backward_weight", "call")
_MICROBATCHES = 1 << 8
_EVALUATION = 1 << 22
"""All tags are below 2**24, so that a float has them exactly."""


def tag(step: int, microbatch: int, *, evaluation: bool = False) -> int:
    """Return the number that says what a sample is of; micro-batches are counted within the step."""
    return (step * _MICROBATCHES + microbatch) | (_EVALUATION if evaluation else 0)


def tokens(number: int, seed: int = 0) -> torch.Tensor:
    """Return a micro-batch: (samples, 1 + tokens), the first of each sample the tag."""
    made = torch.Generator().manual_seed(1000 * number + seed)
    drawn = torch.randint(VOCABULARY, (SAMPLES, LENGTH), generator=made)
    return torch.cat([torch.full((SAMPLES, 1), number), drawn], 1)


def join() -> None:
    """Make the process group that torchrun's variables tell of.

    In a store of this start's own: the addresses of processes that failed are still in torchrun's.
    """
    store, rank, ranks = next(iter(distributed.rendezvous("env://")))
    own = distributed.PrefixStore(f"start {START}", store)
    distributed.init_process_group("gloo", store=own, rank=rank, world_size=ranks)


class Stamps:
    """Notes tasks, a line of JSON each, in a file of this process.

    Args:
        rank: This process's.

    Attributes:
        last: Tag that the model read last in a forward.
        last_backward: Tag of the backward that began last.
    """

    def __init__(self, rank: int) -> None:
        folder = Path(os.environ["STAMPS"])
        self.last = self.last_backward = -1
        self._file = folder / f"stamps.{START}.{rank}.jsonl"
        self._file.write_text("")
        self._rank = rank
        self._lines: list[dict[str, Any]] = []
        self._digest = hashlib.sha256()

    def add(self, kind: str, start_ns: int, end_ns: int, number: int = -1, **place: Any) -> None:
        """Note a task that has ended; its tag says micro-batch and step, if that is not negative."""
        line = {"kind": kind, "rank": self._rank, "start_ns": start_ns, "end_ns": end_ns, **place}
        if number >= 0:
            line["evaluation"] = bool(number & _EVALUATION)
            line["step"], line["microbatch"] = divmod(number & ~_EVALUATION, _MICROBATCHES)
        self._lines.append(line)
        if kind not in _PASSES:
            self.flush()

    def flush(self) -> None:
        """Write what was noted. It takes its time, so not beside every pass."""
        with self._file.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in self._lines)
        self._lines.clear()

    @contextmanager
    def around(self, kind: str, **place: Any) -> Iterator[None]:
        """Note what runs inside, unless it fails."""
        start = now()
        yield
        self.add(kind, start, now(), **place)

    def loss(self, value: Any) -> None:
        """Note a loss, to the bit."""
        self._digest.update(torch.as_tensor(value).detach().double().cpu().numpy().tobytes())

    def results(self, *models: nn.Module) -> None:
        """Write a digest of what this rank computed: all losses, and the weights in the end."""
        self.flush()
        for model in models:
            for one in model.parameters():
                local = one.to_local() if hasattr(one, "to_local") else one
                self._digest.update(local.detach().float().cpu().numpy().tobytes())
        self._file.with_suffix(".digest").write_text(self._digest.hexdigest())

    def fail(self) -> NoReturn:
        """Leave the job with code 13 if this is the first rank, and wait for the end if it is not."""
        self.results()
        if self._rank:
            time.sleep(300)
        raise SystemExit(13)

    def passed(self, x: torch.Tensor, number: int, stage: int | None = None) -> torch.Tensor:
        """Return a pass's output as it is, so that its backward shows.

        Args:
            x: The output.
            number: Its tag.
            stage: Of which stage; then its backward is noted, until all of that is done.
        """
        return _Passing.apply(x, self, number, stage)

    def backward_begins(self, number: int, stage: int | None) -> None:
        """Note which micro-batch's backward has begun."""
        self.last_backward = number
        if stage is not None:
            start = now()
            torch.autograd.Variable._execution_engine.queue_callback(
                lambda: self.add("backward", start, now(), number, stage=stage)
            )


now = time.time_ns
"""One clock for all processes of a machine, and that of a recording that is read."""


class _Passing(torch.autograd.Function):
    """Does nothing, and in the backward tells whose that is."""

    @staticmethod
    def forward(ctx: Any, x: Any, stamps: Stamps, number: int, stage: int | None) -> Any:
        ctx.stamps, ctx.place = stamps, (number, stage)
        return x.clone()  # a view could not be detached in place, as some schedules do

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        ctx.stamps.backward_begins(*ctx.place)
        return gradient, None, None, None


class Block(nn.Module):
    """A layer of a Transformer."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.width = width
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        heads = [
            made(y).unflatten(-1, (-1, 32)).transpose(1, 2)
            for made in (self.query, self.key, self.value)
        ]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Stage(nn.Module):
    """Some layers of a Transformer; with its embedding if they are the first, its head if the last.

    What goes from stage to stage is (samples, 1 + tokens, width), of which the first place is the tag.
    """

    def __init__(
        self, stamps: Stamps, blocks: int, *, first: bool = True, last: bool = True
    ) -> None:
        super().__init__()
        self.stamps, self.blocks_run = stamps, None
        self.embedding = nn.Embedding(VOCABULARY, WIDTH) if first else None
        self.blocks = nn.ModuleList([Block() for _ in range(blocks * DEPTH)])
        self.head = nn.Linear(WIDTH, VOCABULARY) if last else None

    def through(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Not while shapes are inferred, nor while all of it is compiled.
        known = type(x) is torch.Tensor and not x.is_meta and not torch.compiler.is_compiling()
        said = float(x.flatten()[0].detach()) if known else -1.0
        known = 0 <= said < 2 * _EVALUATION  # where shapes are inferred it may be anything
        number = int(said) if known else -1
        self.stamps.last = number
        if self.embedding is not None:
            marks, x = x[:, :1].float()[..., None].expand(-1, -1, WIDTH), self.embedding(x[:, 1:])
        else:
            marks, x = x[:, :1], x[:, 1:]
        x = (self.blocks_run or self.through)(x)
        x = self.head(x) if self.head is not None else torch.cat([marks, x], 1)
        return self.stamps.passed(x, number) if known else x


class StampedAdamW(torch.optim.AdamW):
    """An optimizer that notes its steps; those begin when a closure, if there is one, is done.

    Args:
        parameters: What to train.
        stamps: Notes them.
        first: Number of the first step.
    """

    def __init__(self, parameters: Any, stamps: Stamps, first: int = 0) -> None:
        super().__init__(parameters, lr=1e-3)
        self.stamps, self.done = stamps, first

    def step(self, closure: Any = None) -> Any:
        start = now()

        def evaluated() -> Any:
            nonlocal start
            result = closure()
            start = now()
            return result

        result = super().step(evaluated if closure is not None else None)
        self.stamps.add("optimizer", start, now(), step=self.done)
        self.done += 1
        return result


def loss_of(logits: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    """Return the loss of predicting a micro-batch's own tokens."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
