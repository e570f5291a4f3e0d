"""FLOPs that operators execute, worked out from the shapes that the PyTorch profiler recorded.

With `record_shapes=True` Kineto writes each operator's arguments as "Input Dims" (a list of sizes for
each tensor, [] for anything else), "Input type" and, since PyTorch 2.1, "Concrete Inputs" (numbers and
flags as text, "" for tensors). `with_flops=True` writes nothing into the trace.

Counted is what multiplies matrices: a multiplication and an addition each count one, as in
`torch.utils.flop_counter`. What else an operator does is left out, such as the bias of `aten::addmm`,
softmax or dropout. A sum is a lower bound of what ran: kernels without an operator of their own are not
in it, such as fused weight gradients of Megatron-LM or what torch.compile replays as a CUDA graph.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.model.intervals import reached_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OPERATORS: Final = {
    "thread": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "name": pl.String,
    "dims": pl.String,
    "types": pl.String,
    "concrete": pl.String,
}
"""Operators with their "Input Dims", "Input type" and "Concrete Inputs" as the JSON text of the trace,
null where the trace has none."""

COUNTED: Final = {
    "start_ns": pl.Int64,
    "name": pl.String,
    "precision": pl.String,
    "flops": pl.Int64,
}
"""When operators began whose FLOPs count, the precision of what they multiply, and how many FLOPs they
are; null where that is unknown."""

_MOST: Final = 2**58
"""FLOPs of one operator beyond which its sizes cannot be true: a device would take minutes."""


class ExecutedFlops(msgspec.Struct, frozen=True):
    """FLOPs of the operators of one process.

    Attributes:
        total: Of the operators whose arguments tell.
        by_name: The same by the operator's name, the most first.
        operators: How many operators that is, by name.
        unknown: Operators that multiply matrices, but whose arguments do not tell of what size, by
            name.
    """

    total: int
    by_name: dict[str, int]
    operators: dict[str, int]
    unknown: dict[str, int]


def operator_flops(name: str, dims: Any, types: Any = None, concrete: Any = None) -> int | None:
    """Return the FLOPs of one operator.

    Args:
        name: Such as "aten::mm".
        dims: Its parsed "Input Dims".
        types: Its parsed "Input type", if there are any. A product of complex numbers takes four of
            real ones, one of whole numbers no floating-point operation.
        concrete: Its parsed "Concrete Inputs", if there are any.

    Returns:
        None if the operator is none that is known to multiply matrices, or if its arguments do not
        tell: they are missing, cut short, contradict each other, or leave open which pairs of tokens
        attention looks at.
    """
    if name not in _FORMULAS:
        return None
    at, formula = _FORMULAS[name]
    try:
        return formula(_Arguments(dims, concrete)) * _operations(types, at)
    except _UntoldError:
        return None


_PRECISIONS: Final = {
    "double": "FP64",
    "float": "FP32",
    "c10::Half": "FP16",
    "c10::BFloat16": "BF16",
}
"""What Kineto calls types of elements, and data sheets."""


def precision(name: str, types: str | None) -> str | None:
    """Return the precision of what an operator multiplies; None where the trace does not tell.

    Args:
        name: Such as "aten::mm".
        types: Its "Input type", as JSON.
    """
    found = _parsed(types)
    if name not in _FORMULAS or not isinstance(found, list):
        return None
    at, _ = _FORMULAS[name]
    return _PRECISIONS.get(str(found[at])) if at < len(found) else None


def multiplies(name: str) -> bool:
    """Say whether an operator of this name may multiply matrices, whatever its arguments tell."""
    return name in _FORMULAS or name in _UNTOLD or name.startswith(_TEMPLATE)


def sum_flops(operators: pl.DataFrame) -> ExecutedFlops:
    """Add up the FLOPs of operators, of those inside of each other once; see `counted`.

    Args:
        operators: Frame with the columns of `OPERATORS`, of one process.
    """
    found, kinds = _counting(operators)
    by_name, number, unknown = Counter[str](), Counter[str](), Counter[str]()
    for one, count in found["kind"].value_counts().iter_rows():
        name, _, flops = kinds[one]
        if flops is None:
            unknown[name] += count
        else:
            by_name[name] += count * flops
            number[name] += count
    return ExecutedFlops(
        by_name.total(),
        *(dict(sorted(one.items(), key=_most_first)) for one in (by_name, number, unknown)),
    )


def counted(operators: pl.DataFrame) -> pl.DataFrame:
    """Return the operators whose FLOPs count, and those that multiply matrices of unknown size.

    An operator may call others that do its work: attention calls its library, a grouped product one
    product after the other. Of operators whose FLOPs are known the outermost counts; but of one that
    hands its work to one of the same name, as a DTensor's of the whole size does to that of the rank's
    shard, the inner. One that does not tell is unknown only if none inside or around it does.

    Args:
        operators: Frame with the columns of `OPERATORS`, of one process, and perhaps launched: whether
            a device did anything that was called in it.

    Returns:
        Frame with the columns of `COUNTED`.
    """
    found, kinds = _counting(operators)
    names = pl.Series([name for name, _, _ in kinds], dtype=pl.String)
    precisions = pl.Series([one for _, one, _ in kinds], dtype=pl.String)
    flops = [None if one is None or one > _MOST else one for _, _, one in kinds]
    return found.select(
        "start_ns",
        name=names.gather(found["kind"]),
        precision=precisions.gather(found["kind"]),
        flops=pl.Series(flops, dtype=pl.Int64).gather(found["kind"]),
    )


def _counting(
    operators: pl.DataFrame,
) -> tuple[pl.DataFrame, list[tuple[str, str | None, int | None]]]:
    """Return start_ns and kind of operators that count; name, precision and FLOPs of each kind."""
    told = ["name", "dims", "types", "concrete"]
    mine = operators.filter(
        pl.col("name").is_in([*_FORMULAS, *_UNTOLD]) | pl.col("name").str.starts_with(_TEMPLATE)
    ).sort("thread", "start_ns", "end_ns", descending=[False, False, True])
    # Layers and steps repeat the same shapes: each distinct one is worked out once.
    kinds = mine.select(told).unique(maintain_order=True).with_row_index("kind")
    flops = [
        operator_flops(name, *map(_parsed, arguments))
        for name, *arguments in kinds.select(told).iter_rows()
    ]
    kind = mine.join(kinds, on=told, nulls_equal=True, maintain_order="left")["kind"].to_numpy()
    known = np.array([one is not None for one in flops], bool)[kind]
    launched = pl.col("launched") if "launched" in mine.columns else pl.lit(value=True)
    times = mine.select(
        "thread", "start_ns", "end_ns", "name", launched=launched, kind=pl.Series(kind)
    )
    outer = _outermost(_at_work(times.filter(pl.Series(known))))
    untold = _outermost(_apart(times.filter(pl.Series(~known)), outer))
    found = pl.concat(part.select("start_ns", "kind") for part in (outer, untold))
    precisions = [precision(*row) for row in kinds.select("name", "types").iter_rows()]
    return found, list(zip(kinds["name"].to_list(), precisions, flops, strict=True))


def _most_first(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def _outermost(times: pl.DataFrame) -> pl.DataFrame:
    """Return the operators that no other of a frame encloses; sorted, those of a thread are nested."""
    reached = reached_ns(times["end_ns"].to_numpy(), times["thread"].rank("dense").to_numpy())
    return times.filter(pl.col("start_ns") >= pl.Series(reached))


def _at_work(times: pl.DataFrame) -> pl.DataFrame:
    """Return the operators that enclose none of their own name: others only hand on.

    One inside that launched nothing only tells what shape a result will have.
    """
    order = ["thread", "name", "start_ns", "end_ns"]
    alike = times.sort(order, descending=[False, False, False, True])
    place = alike.select(pl.struct("thread", "name").rank("dense")).to_series().to_numpy()
    enclosed = pl.col("start_ns") < pl.Series(reached_ns(alike["end_ns"].to_numpy(), place))
    alike = alike.filter(pl.col("launched") | ~enclosed)
    inner = pl.col("start_ns").shift(-1).over("thread", "name") < pl.col("end_ns")
    return alike.filter(~inner.fill_null(value=False)).sort(
        "thread", "start_ns", "end_ns", descending=[False, False, True]
    )


def _apart(times: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """Return the operators that neither enclose another one nor are enclosed by it."""
    other = others.sort("start_ns").select(
        "thread", "start_ns", at_ns="start_ns", until_ns="end_ns"
    )
    asked = times.sort("start_ns")
    for column, strategy in (("until_ns", "backward"), ("at_ns", "forward")):
        asked = asked.join_asof(
            other.select("thread", "start_ns", column),
            on="start_ns",
            by="thread",
            strategy=strategy,  # type: ignore[arg-type]  # one of its words
            check_sortedness=False,  # which Polars cannot do within groups
        )
    inside = (pl.col("until_ns") > pl.col("start_ns")).fill_null(value=False)
    around = (pl.col("at_ns") < pl.col("end_ns")).fill_null(value=False)
    return asked.filter(~inside & ~around).sort(
        "thread", "start_ns", "end_ns", descending=[False, False, True]
    )


def _parsed(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class _UntoldError(Exception):
    """An operator's arguments do not tell how much it computes."""


class _Arguments:
    """What a trace says of an operator's arguments, by their positions."""

    def __init__(self, dims: Any, concrete: Any) -> None:
        self._dims = dims if isinstance(dims, list) else []
        self._concrete = concrete if isinstance(concrete, list) else []

    def shape(self, at: int, rank: int | None = None) -> list[int]:
        """Return the sizes of a tensor, of so many dimensions."""
        found = self._dims[at] if at < len(self._dims) else None
        if not isinstance(found, list) or not found or rank not in {None, len(found)}:
            raise _UntoldError
        if not all(type(one) is int and one >= 0 for one in found):
            raise _UntoldError
        return found

    def flag(self, at: int) -> bool:
        """Return a truth value."""
        found = self._text(at)
        if found not in {"True", "False"}:
            raise _UntoldError
        return found == "True"

    def flags(self, at: int) -> list[bool]:
        """Return a list of truth values, such as "[True, True, False]"."""
        words = [word.strip() for word in self._text(at).strip("[]").split(",")]
        if not set(words) <= {"True", "False"}:
            raise _UntoldError
        return [word == "True" for word in words]

    def number(self, at: int) -> int:
        """Return a whole number."""
        try:
            return int(self._text(at))
        except ValueError:
            raise _UntoldError from None

    def numbers(self, at: int, count: int) -> list[int]:
        """Return so many whole numbers, such as "[2, 2]"; one stands for all."""
        try:
            found = [int(word) for word in self._text(at).strip("[]").split(",")]
        except ValueError:
            raise _UntoldError from None
        if len(found) not in {1, count}:
            raise _UntoldError
        return found * count if len(found) == 1 else found

    def _text(self, at: int) -> str:
        return str(self._concrete[at]) if at < len(self._concrete) else ""


_WHOLE: Final = frozenset(
    ("bool", "char", "int", "long", "long int", "short", "signed char", "unsigned char")
)


def _operations(types: Any, at: int) -> int:
    """Return how many products of real numbers one of an operand's type takes."""
    found = str(types[at]) if isinstance(types, list) and at < len(types) else ""
    if found.endswith("_x2"):  # two numbers in one element: sizes are of the elements
        raise _UntoldError
    if found in _WHOLE:
        return 0
    return 4 if "complex" in found else 1


def _product(arguments: _Arguments, at: int) -> int:
    """Multiply (m, k) by (k, n): 2 m n k."""
    (m, k), (other, n) = arguments.shape(at, 2), arguments.shape(at + 1, 2)
    if other != k:
        raise _UntoldError
    return 2 * m * n * k


def _batched(arguments: _Arguments, at: int) -> int:
    """Multiply (b, m, k) by (b, k, n): 2 b m n k."""
    (b, m, k), (batch, other, n) = arguments.shape(at, 3), arguments.shape(at + 1, 3)
    if (batch, other) != (b, k):
        raise _UntoldError
    return 2 * b * m * n * k


def _grouped(arguments: _Arguments, at: int) -> int:
    """Multiply groups of matrices, such as those of experts; each row or column is in one group.

    One operand may have its groups stacked along a dimension of two, the other or both then have three.
    """
    one, two = arguments.shape(at), arguments.shape(at + 1)
    if len(one) == 3 and len(two) == 3:
        return _batched(arguments, at)
    if not {len(one), len(two)} <= {2, 3} or one[-1] != two[-2]:
        raise _UntoldError
    return 2 * one[-2] * one[-1] * two[-1]


def _convolution(arguments: _Arguments, at: int) -> int:
    """Convolve (b, c, x...) with (d, c / groups, k...): 2 products for each output and weight on it.

    A transposed convolution spreads each input over the weights, which are (c, d / groups, k...).
    """
    image = arguments.shape(at)
    weights = arguments.shape(at + 1, len(image))
    spatial = len(image) - 2
    if spatial < 1:
        raise _UntoldError
    if arguments.flag(at + 6):
        return 2 * prod(image) * prod(weights[1:])
    steps = zip(
        image[2:],
        weights[2:],
        *(arguments.numbers(at + one, spatial) for one in (3, 4, 5)),
        strict=True,
    )
    output: list[int] = []
    for size, kernel, stride, padding, dilation in steps:
        room = size + 2 * padding - dilation * (kernel - 1) - 1
        if stride < 1 or room < 0:
            raise _UntoldError
        output.append(room // stride + 1)
    filters = image[0] * prod(weights)
    return 2 * filters * prod(output)


def _convolution_backward(arguments: _Arguments, at: int) -> int:
    """Compute the gradient of the input, of the weights or both: each takes what the forward takes."""
    output, image = arguments.shape(at - 1), arguments.shape(at)
    weights = arguments.shape(at + 1, len(image))
    wanted = arguments.flags(at + 9)
    if len(output) != len(image) or len(wanted) != 3:
        raise _UntoldError
    spread = image if arguments.flag(at + 6) else output
    return 2 * prod(spread) * prod(weights[1:]) * sum(wanted[:2])


def _attention(
    arguments: _Arguments,
    at: int,
    causal: int,
    *,
    backward: bool = False,
    heads_first: bool = True,
    window: int | None = None,
) -> int:
    """Multiply queries with keys, and what comes out with values.

    For each head and each pair of tokens, a forward takes 2 (d + e) with d the size of a query and of a
    key and e that of a value. A backward takes 2 (3 d + 2 e), that is 2.5 times as much where d = e:
    for the gradients of values, weights, queries and keys, and for the weights, computed anew.

    Args:
        arguments: The operator's.
        at: Position of the queries; keys and values follow.
        causal: Position of the flag that says whether a token attends only to those before it.
        backward: Whether it is a backward.
        heads_first: Whether tensors are (batch, heads, tokens, size), not (batch, tokens, heads, size).
        window: Position of two numbers that limit how far a token attends, -1 where they do not.
    """
    shapes = [arguments.shape(at + one, 4) for one in range(3)]
    if not heads_first:
        shapes = [[batch, heads, tokens, size] for batch, tokens, heads, size in shapes]
    return _attended(
        shapes,
        _pairs(arguments, causal, window, shapes, aligned_at_end=not heads_first),
        backward=backward,
    )


def _attention_of_packed(
    arguments: _Arguments, at: int, lengths: int, causal: int, *, backward: bool = False
) -> int:
    """Do the same for sequences that stand one after the other: (tokens, heads, size).

    How long each is stands in a tensor, of which a trace has the size only. If as many sequences as
    there are, each as long as the longest, make up all tokens, then all are of that length; otherwise
    it is not told.
    """
    packed = [arguments.shape(at + one, 3) for one in range(3)]
    shapes = []
    for one, (tokens, heads, size) in enumerate(packed):
        other = min(one, 1)
        [edges] = arguments.shape(lengths + other, 1)
        longest = arguments.number(lengths + 2 + other)
        if (edges - 1) * longest != tokens:
            raise _UntoldError
        shapes.append([edges - 1, heads, longest, size])
    pairs = _pairs(arguments, causal, causal + 1, shapes, aligned_at_end=True)
    return _attended(shapes, pairs, backward=backward)


def _pairs(
    arguments: _Arguments,
    causal: int,
    window: int | None,
    shapes: list[list[int]],
    *,
    aligned_at_end: bool,
) -> int:
    """Return twice the pairs of a query and a key that count; of the diagonal each counts half.

    With a causal mask and unlike numbers of queries and keys, the first of both stand at the same place
    in PyTorch (`scaled_dot_product_attention`), the last of both in flash-attn (since 2.1).
    """
    queries, keys = shapes[0][2], shapes[1][2]
    masked = arguments.flag(causal)
    if window is not None:
        before, after = arguments.number(window), arguments.number(window + 1)
        if before >= 0 or after > 0 or (after == 0 and not masked):
            raise _UntoldError
    if not masked:
        return 2 * queries * keys
    if aligned_at_end:
        return 2 * queries * keys - queries**2 if queries <= keys else keys**2
    return queries**2 if queries <= keys else 2 * queries * keys - keys**2


def _attended(shapes: list[list[int]], pairs: int, *, backward: bool) -> int:
    """Return the FLOPs of attention over so many half pairs, if its shapes fit each other."""
    (batch, heads, _, size), key, value = shapes
    groups = key[1]
    if key != [batch, groups, key[2], size] or value[:3] != key[:3] or not groups or heads % groups:
        raise _UntoldError
    each = 3 * size + 2 * value[3] if backward else size + value[3]
    return batch * heads * pairs * each


def _named(
    names: Sequence[str], at: int, formula: Callable[..., int], **given: Any
) -> dict[str, tuple[int, Callable[[_Arguments], int]]]:
    """Return for each operator the position of its first factor, and how it is counted."""
    return dict.fromkeys(names, (at, partial(formula, at=at, **given)))


def _library(what: str) -> list[str]:
    """Return the names of an operator of flash-attn, which the first releases spelt without a bar."""
    return [f"flash_attn::_flash_attn_{what}", f"flashattn::_flash_attn_{what}"]


_SDPA: Final = "aten::_scaled_dot_product_"
_CPU: Final = _SDPA + "flash_attention_for_cpu"
_OTHER: Final = _SDPA + "fused_attention_overrideable"

_FORMULAS: Final[dict[str, tuple[int, Callable[[_Arguments], int]]]] = {
    **_named(["aten::mm", "aten::_scaled_mm", "aten::_scaled_mm_v2"], 0, _product),
    **_named(["aten::addmm", "aten::addmm_", "aten::_addmm_activation"], 1, _product),
    **_named(["aten::bmm"], 0, _batched),
    **_named(["aten::baddbmm", "aten::baddbmm_"], 1, _batched),
    **_named(["aten::_grouped_mm", "aten::_scaled_grouped_mm"], 0, _grouped),
    **_named(["aten::convolution", "aten::_convolution"], 0, _convolution),
    **_named(["aten::convolution_backward"], 1, _convolution_backward),
    # Positions of the flag is_causal as in PyTorch's native_functions.yaml.
    **_named([_SDPA + "flash_attention"], 0, _attention, causal=4),
    **_named([_SDPA + "flash_attention_backward"], 1, _attention, causal=11, backward=True),
    **_named([_SDPA + "efficient_attention"], 0, _attention, causal=6),
    **_named([_SDPA + "efficient_attention_backward"], 1, _attention, causal=11, backward=True),
    **_named([_SDPA + "cudnn_attention"], 0, _attention, causal=6),
    **_named([_SDPA + "cudnn_attention_backward"], 1, _attention, causal=14, backward=True),
    **_named([_CPU], 0, _attention, causal=4),
    **_named([_CPU + "_backward"], 1, _attention, causal=7, backward=True),
    **_named([_OTHER], 0, _attention, causal=5),
    **_named([_OTHER + "_backward"], 1, _attention, causal=13, backward=True),
    # As in flash_attn/flash_attn_interface.py of Dao-AILab/flash-attention, since 2.6.
    **_named(_library("forward"), 0, _attention, causal=5, window=6, heads_first=False),
    **_named(
        _library("backward"), 1, _attention, causal=11, window=12, heads_first=False, backward=True
    ),
    **_named(_library("varlen_forward"), 0, _attention_of_packed, lengths=3, causal=9),
    **_named(
        _library("varlen_backward"), 1, _attention_of_packed, lengths=9, causal=15, backward=True
    ),
}
"""Operator -> position of its first factor, and its formula."""

_FUNCTIONS: Final = (
    "FlashAttnFunc",
    "FlashAttnKVPackedFunc",
    "FlashAttnQKVPackedFunc",
    "FlashAttnVarlenFunc",
    "FlashAttnVarlenKVPackedFunc",
    "FlashAttnVarlenQKVPackedFunc",
    # Transformer Engine
    "FusedAttnFunc",
    "_GroupedLinear",
    "_LayerNormLinear",
    "_LayerNormMLP",
    "_Linear",
    # grouped_gemm, as used by Megatron-LM
    "GroupedGemm",
)
"""Functions of autograd; "Backward" after the name is their backward."""

_UNTOLD: Final = frozenset(
    (
        *_FUNCTIONS,
        *(name + "Backward" for name in _FUNCTIONS),
        *(
            f"aten::_{library}_attention_{way}"
            for library in ("flash", "efficient", "cudnn")
            for way in ("forward", "backward")
        ),
        "aten::_cudnn_rnn",
        "aten::_cudnn_rnn_backward",
        "flash_attn_3::bwd",
        "flash_attn_3::fwd",
        "vllm::unified_attention",
        "vllm::unified_attention_with_output",
    )
)
"""Operators that multiply matrices but do not say of what size. Most call one that does, and are then
nothing more; what they compute with kernels of their own is unknown."""

_TEMPLATE: Final = "triton_tem_"
"""How names of matrix products and attention begin that torch.compile generated."""
