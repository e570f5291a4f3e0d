"""The words of the field: task kinds, lanes, and the names that frameworks give their tasks.

Sources hand their *unique* names to a `NameParser` and get back what each one means. Parsing
unique strings keeps it cheap however long the trace is.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bubblescope.errors import NamesError

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

__all__ = [
    "COMPUTE_KINDS",
    "KIND_WORDS",
    "LANE_OF",
    "MARK_PREFIX",
    "SHORT",
    "Kind",
    "Lane",
    "NameParser",
    "ParsedName",
    "is_communication_kernel",
    "mark_name",
]


class Kind(str, Enum):
    """What a task does."""

    FORWARD = "forward"
    BACKWARD = "backward"
    """The fused backward: input and weight gradients in one."""
    BACKWARD_INPUT = "backward_input"
    BACKWARD_WEIGHT = "backward_weight"
    FORWARD_BACKWARD = "forward_backward"
    """A forward of one micro-batch overlapped with a backward of another (DualPipe)."""
    RECOMPUTE = "recompute"
    OPTIMIZER = "optimizer"
    SEND_FORWARD = "send_forward"
    RECV_FORWARD = "recv_forward"
    SEND_BACKWARD = "send_backward"
    RECV_BACKWARD = "recv_backward"
    COLLECTIVE = "collective"
    DATA = "data"
    GC = "gc"
    OTHER = "other"


class Lane(str, Enum):
    """Where a task runs: the device's compute or communication streams, or the host."""

    COMPUTE = "compute"
    COMM = "comm"
    HOST = "host"


SHORT: Final[dict[Kind, str]] = {
    Kind.FORWARD: "F",
    Kind.BACKWARD: "B",
    Kind.BACKWARD_INPUT: "B",
    Kind.BACKWARD_WEIGHT: "W",
    Kind.FORWARD_BACKWARD: "FB",
    Kind.RECOMPUTE: "R",
    Kind.OPTIMIZER: "Opt",
    Kind.SEND_FORWARD: "SF",
    Kind.RECV_FORWARD: "RF",
    Kind.SEND_BACKWARD: "SB",
    Kind.RECV_BACKWARD: "RB",
    Kind.COLLECTIVE: "Coll",
    Kind.DATA: "Data",
    Kind.GC: "GC",
    Kind.OTHER: "Other",
}
"""The label drawn on a block of each kind."""

COMPUTE_KINDS: Final[frozenset[Kind]] = frozenset(
    {
        Kind.FORWARD,
        Kind.BACKWARD,
        Kind.BACKWARD_INPUT,
        Kind.BACKWARD_WEIGHT,
        Kind.FORWARD_BACKWARD,
        Kind.RECOMPUTE,
    },
)
"""The kinds that make up a pipeline's work; time without any of them is bubble."""

LANE_OF: Final[dict[Kind, Lane]] = {
    **dict.fromkeys(COMPUTE_KINDS, Lane.COMPUTE),
    Kind.OPTIMIZER: Lane.COMPUTE,
    **dict.fromkeys(
        (
            Kind.SEND_FORWARD,
            Kind.RECV_FORWARD,
            Kind.SEND_BACKWARD,
            Kind.RECV_BACKWARD,
            Kind.COLLECTIVE,
        ),
        Lane.COMM,
    ),
    Kind.DATA: Lane.HOST,
    Kind.GC: Lane.HOST,
    Kind.OTHER: Lane.COMPUTE,
}
"""The lane a kind runs on unless the source knows better."""

KIND_WORDS: Final[dict[str, Kind]] = {
    **{kind.value: kind for kind in Kind},
    "f": Kind.FORWARD,
    "fwd": Kind.FORWARD,
    "b": Kind.BACKWARD,
    "bwd": Kind.BACKWARD,
    "bw": Kind.BACKWARD,
    "i": Kind.BACKWARD_INPUT,
    "dgrad": Kind.BACKWARD_INPUT,
    "w": Kind.BACKWARD_WEIGHT,
    "wgrad": Kind.BACKWARD_WEIGHT,
    "fb": Kind.FORWARD_BACKWARD,
    "r": Kind.RECOMPUTE,
    "opt": Kind.OPTIMIZER,
    "step": Kind.OPTIMIZER,
}
"""Words that a user's `--names` pattern may capture as the kind, in any letter case."""


class ParsedName(msgspec.Struct, frozen=True):
    """What one range name says.

    Attributes:
        kind: The task kind, or None for a step marker.
        microbatch: Micro-batch index within the step, if the name has one.
        chunk: Model chunk on the rank, if the name has one.
        stage: Global virtual stage, if the name has one.
        step: Training step, if the name has one.
        rank: Global rank, if the name has one.
        peer: Other rank of a send or receive, if the name has one.
        pair_stage, pair_microbatch: Of the backward half of an overlapped forward and backward.
        splits: The name is a plain "B", which means the input gradient alone wherever the same
            rank also has weight-gradient tasks, and the fused backward everywhere else.
    """

    kind: Kind | None
    microbatch: int | None = None
    chunk: int | None = None
    stage: int | None = None
    step: int | None = None
    rank: int | None = None
    peer: int | None = None
    pair_stage: int | None = None
    pair_microbatch: int | None = None
    splits: bool = False


_ZERO_BUBBLE_OPS = {
    "F": Kind.FORWARD,
    "B": Kind.BACKWARD,
    "BW": Kind.BACKWARD,
    "W": Kind.BACKWARD_WEIGHT,
    "R": Kind.RECOMPUTE,
}
_DIRECTIONS = {
    ("SEND", "FORWARD"): Kind.SEND_FORWARD,
    ("RECV", "FORWARD"): Kind.RECV_FORWARD,
    ("SEND", "BACKWARD"): Kind.SEND_BACKWARD,
    ("RECV", "BACKWARD"): Kind.RECV_BACKWARD,
}
_COMM_OP = r"(SEND|RECV)_(FORWARD|BACKWARD|POST_VALIDATION)\.(\d+)\.(\d+)\.(\d+)"
_ZB_OP = re.compile(r"(F|BW|B|W|R)(\d+)\.(\d+)\.(\d+)")
_ZB_FLUSH = re.compile(r"W_clear\.(\d+)\.(\d+)")
_ZB_COMM = re.compile(rf"{_COMM_OP}(?:_{_COMM_OP})*")
_ZB_COMM_PART = re.compile(_COMM_OP)
_ZB_STEP = re.compile(r"iter_(\d+)_(\d+)")
_BARE = re.compile(r"(F|BW|B|W|R)(\d+)?")
_OPTIMIZER = re.compile(r"optimizer(?:[_.# ]?step)?|Optimizer\.step#\w+\.step", re.IGNORECASE)
_MEGATRON_PATH = re.compile(
    r"megatron\.core\.pipeline_parallel\.(?:schedules|combined_1f1b|p2p_communication)\.(\w+)",
)
_MEGATRON_FUNCTIONS = {
    "forward_step": (Kind.FORWARD,),
    "backward_step": (Kind.BACKWARD,),
    "recv_forward": (Kind.RECV_FORWARD,),
    "recv_backward": (Kind.RECV_BACKWARD,),
    "send_forward": (Kind.SEND_FORWARD,),
    "send_backward": (Kind.SEND_BACKWARD,),
    "send_forward_recv_backward": (Kind.SEND_FORWARD, Kind.RECV_BACKWARD),
    "send_backward_recv_forward": (Kind.SEND_BACKWARD, Kind.RECV_FORWARD),
    "send_forward_recv_forward": (Kind.SEND_FORWARD, Kind.RECV_FORWARD),
    "send_backward_recv_backward": (Kind.SEND_BACKWARD, Kind.RECV_BACKWARD),
    "send_forward_backward_recv_forward_backward": (
        Kind.SEND_FORWARD,
        Kind.SEND_BACKWARD,
        Kind.RECV_FORWARD,
        Kind.RECV_BACKWARD,
    ),
}
_MEGATRON_TIMERS = {
    "forward-compute": "forward_step",
    "backward-compute": "backward_step",
    "forward-recv": "recv_forward",
    "backward-recv": "recv_backward",
    "forward-send": "send_forward",
    "backward-send": "send_backward",
    "forward-send-backward-recv": "send_forward_recv_backward",
    "backward-send-forward-recv": "send_backward_recv_forward",
    "forward-send-forward-recv": "send_forward_recv_forward",
    "backward-send-backward-recv": "send_backward_recv_backward",
    "forward-backward-send-forward-backward-recv": "send_forward_backward_recv_forward_backward",
}
_TORCH_ACTION = re.compile(r"PP:(\d+)([A-Z_]+?)(\d*)")
_TORCH_OVERLAP = re.compile(r"PP:\((\d+)F(\d+);(\d+)[BI](\d+)\)OVERLAP_F_B")
_TORCH_ACTIONS = {
    "F": Kind.FORWARD,
    "B": Kind.BACKWARD,
    "I": Kind.BACKWARD_INPUT,
    "W": Kind.BACKWARD_WEIGHT,
    "SEND_F": Kind.SEND_FORWARD,
    "RECV_F": Kind.RECV_FORWARD,
    "SEND_B": Kind.SEND_BACKWARD,
    "RECV_B": Kind.RECV_BACKWARD,
    "UNSHARD": Kind.COLLECTIVE,
    "RESHARD": Kind.COLLECTIVE,
    "REDUCE_GRAD": Kind.COLLECTIVE,
}
_TORCH_WORD = re.compile(r"(Forward|Backward) (\d+)")
_TORCH_STEP = re.compile(r"ProfilerStep#(\d+)")
_BANNER = re.compile(r"## (forward|backward|optimizer) ##")
MARK_PREFIX: Final = "bubblescope:"
"""What the names of our recorder's marks begin with."""

_MARK = re.compile(r"bubblescope:(\w+)((?: \w+=-?\d+)*)")
_MARK_FIELD = re.compile(r"(\w+)=(-?\d+)")

_CANDIDATE = (
    r"^(?:bubblescope:|(?:F|BW|B|W|R)(?:\d|$)|W_clear\.|(?:SEND|RECV)_|iter_|(?i:optimizer)"
    r"|PP:|Forward |Backward |ProfilerStep#|## (?:forward|backward|optimizer) ##"
    r"|megatron\.core\.pipeline_parallel\.|forward-|backward-)"
)
"""What every known name begins with: one pass in Rust spares Python most of a trace's names."""

_COMM_KERNEL = re.compile(r"nccl|rccl|hccl|nvshmem|msccl|deep_?ep", re.IGNORECASE)


def is_communication_kernel(name: str) -> bool:
    """Say whether a kernel moves data between devices, judged by its library's name."""
    return _COMM_KERNEL.search(name) is not None


def mark_name(
    kind: Kind,
    *,
    step: int | None = None,
    stage: int | None = None,
    chunk: int | None = None,
    microbatch: int | None = None,
    peer: int | None = None,
    pair_stage: int | None = None,
    pair_microbatch: int | None = None,
) -> str:
    """Return the name under which our recorder shows a task to vendor profilers (NVTX, mstx).

    >>> mark_name(Kind.FORWARD, step=2, microbatch=5)
    'bubblescope:forward step=2 microbatch=5'
    """
    fields = {
        "step": step,
        "stage": stage,
        "chunk": chunk,
        "microbatch": microbatch,
        "peer": peer,
        "pair_stage": pair_stage,
        "pair_microbatch": pair_microbatch,
    }
    said = "".join(f" {key}={value}" for key, value in fields.items() if value is not None)
    return f"{MARK_PREFIX}{kind.value}{said}"


def _parse_own(name: str) -> list[ParsedName]:
    found = _MARK.fullmatch(name)
    if found is None:
        return []
    fields = {key: int(value) for key, value in _MARK_FIELD.findall(found[2])}
    if found[1] == "step":
        return [ParsedName(None, step=fields.get("step"), rank=fields.get("rank"))]
    try:
        kind = Kind(found[1])
    except ValueError:
        return []
    known = ParsedName.__struct_fields__[1:]
    said: dict[str, Any] = {key: value for key, value in fields.items() if key in known}
    return [ParsedName(kind, **said)]


def _parse_zero_bubble(name: str) -> list[ParsedName]:
    """Names of sail-sg/zero-bubble-pipeline-parallelism, `zerobubble/runtime.py`."""
    if found := _ZB_OP.fullmatch(name):
        kind = _ZERO_BUBBLE_OPS[found[1]]
        return [ParsedName(kind, int(found[2]), int(found[3]), splits=found[1] == "B")]
    if found := _ZB_FLUSH.fullmatch(name):  # all pending weight gradients at once: no micro-batch
        return [ParsedName(Kind.BACKWARD_WEIGHT, None, int(found[1]))]
    if _ZB_COMM.fullmatch(name):
        return [
            ParsedName(_DIRECTIONS[way, what], int(microbatch), int(chunk))
            if (way, what) in _DIRECTIONS
            else ParsedName(Kind.COLLECTIVE)  # POST_VALIDATION carries optimizer state, not tensors
            for way, what, microbatch, chunk, _ in _ZB_COMM_PART.findall(name)
        ]
    if found := _ZB_STEP.fullmatch(name):
        return [ParsedName(None, step=int(found[2]), rank=int(found[1]))]
    return []


def _parse_bare(name: str) -> list[ParsedName]:
    if found := _BARE.fullmatch(name):
        microbatch = None if found[2] is None else int(found[2])
        return [ParsedName(_ZERO_BUBBLE_OPS[found[1]], microbatch, splits=found[1] == "B")]
    if _OPTIMIZER.fullmatch(name):
        return [ParsedName(Kind.OPTIMIZER)]
    return []


def _parse_megatron(name: str) -> list[ParsedName]:
    """Names of Megatron-Core's `nvtx_decorator` (module path) and of its timers."""
    found = _MEGATRON_PATH.fullmatch(name)
    function = found[1] if found else _MEGATRON_TIMERS.get(name)
    return [ParsedName(kind) for kind in _MEGATRON_FUNCTIONS.get(function or "", ())]


def _parse_torch(name: str) -> list[ParsedName]:
    """Names of torch.distributed.pipelining, of torch.profiler, and of Meta's trainers."""
    if (found := _TORCH_ACTION.fullmatch(name)) and found[2] in _TORCH_ACTIONS:
        microbatch = int(found[3]) if found[3] else None
        return [ParsedName(_TORCH_ACTIONS[found[2]], microbatch, stage=int(found[1]))]
    if found := _TORCH_OVERLAP.fullmatch(name):
        stage, microbatch, pair_stage, pair_microbatch = map(int, found.groups())
        return [
            ParsedName(
                Kind.FORWARD_BACKWARD,
                microbatch,
                stage=stage,
                pair_stage=pair_stage,
                pair_microbatch=pair_microbatch,
            )
        ]
    if found := _TORCH_WORD.fullmatch(name):
        return [ParsedName(Kind(found[1].lower()), int(found[2]))]
    if found := _TORCH_STEP.fullmatch(name):
        return [ParsedName(None, step=int(found[1]))]
    if found := _BANNER.fullmatch(name):
        return [ParsedName(Kind(found[1]))]
    return []


_GRAMMARS: Final[tuple[Callable[[str], list[ParsedName]], ...]] = (
    _parse_own,
    _parse_zero_bubble,
    _parse_bare,
    _parse_megatron,
    _parse_torch,
)
_GROUPS = {
    "kind": "kind",
    "microbatch": "microbatch",
    "mb": "microbatch",
    "chunk": "chunk",
    "stage": "stage",
    "step": "step",
    "rank": "rank",
    "peer": "peer",
}


class NameParser:
    """Turns range names into tasks, by the known grammars or by a user's pattern.

    Args:
        pattern: A regular expression with named groups `kind` (needed; its text must be one of
            `KIND_WORDS`), and any of `microbatch` (or `mb`), `chunk`, `stage`, `step`, `rank` and
            `peer` (integers). It is searched anywhere in the name and tried before the known
            grammars.

    Raises:
        NamesError: The pattern is not a regular expression, has no `kind` group, or has a group
            that means nothing here.
    """

    def __init__(self, pattern: str | None = None) -> None:
        self.pattern: re.Pattern[str] | None = None
        if pattern is None:
            return
        try:
            self.pattern = re.compile(pattern)
        except re.error as error:
            raise NamesError(f"--names {pattern!r} is not a regular expression: {error}") from None
        groups = set(self.pattern.groupindex)
        if "kind" not in groups:
            raise NamesError(
                f"--names {pattern!r} has no group (?P<kind>...); it must capture the word that "
                "says forward, backward, F, B or W",
            )
        if unknown := groups - set(_GROUPS):
            raise NamesError(
                f"--names {pattern!r} has groups that mean nothing here: "
                f"{', '.join(sorted(unknown))}; use {', '.join(_GROUPS)}",
            )

    def parse(self, name: str) -> list[ParsedName]:
        """Return the operations one name stands for: none if unknown, several if it is fused."""
        if self.pattern is not None and (found := self.pattern.search(name)):
            return [self._from_groups(found)]
        for grammar in _GRAMMARS:
            if parsed := grammar(name):
                return parsed
        return []

    def parse_all(self, names: pl.Series) -> dict[str, list[ParsedName]]:
        """Return what each distinct name stands for, leaving out those that mean nothing."""
        unique = names.drop_nulls().unique()
        if self.pattern is None:
            unique = unique.filter(unique.str.contains(_CANDIDATE))
        return {name: parsed for name in unique.sort().to_list() if (parsed := self.parse(name))}

    def _from_groups(self, found: re.Match[str]) -> ParsedName:
        word = found["kind"]
        kind = KIND_WORDS.get((word or "").lower())
        if kind is None:
            raise NamesError(
                f"--names captured {word!r} as the kind in {found.string!r}; "
                f"it must be one of {', '.join(KIND_WORDS)}",
            )
        fields: dict[str, Any] = {}
        for group, text in found.groupdict().items():
            if group == "kind" or text is None:
                continue
            if not text.isdecimal():
                raise NamesError(
                    f"--names captured {text!r} as {group} in {found.string!r}; "
                    "it must be a whole number",
                )
            fields[_GROUPS[group]] = int(text)
        return ParsedName(kind, splits=word.lower() == "b", **fields)
