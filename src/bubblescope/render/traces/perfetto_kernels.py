"""Kernels in Perfetto's format: what they are called is interned, and the rest are small numbers.

Fields by number, as in protos/perfetto/trace of https://github.com/google/perfetto: trace.proto,
trace_packet.proto, track_event/track_event.proto, track_event/debug_annotation.proto and
interned_data/interned_data.proto.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.render.traces.kernels import KERNEL_ARGUMENTS
from bubblescope.render.traces.protobuf import Columns, constant, encoded, joined, messages, numbers
from bubblescope.render.traces.slices import LONGEST_DETAIL, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bubblescope.model.arrays import Ints

_PACKET: Final = 1
_TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _SEQUENCE_FLAGS = 8, 10, 11, 13
_CATEGORY, _ANNOTATION, _TYPE, _NAME, _TRACK = 3, 4, 9, 10, 11
_ANNOTATION_NAME, _INT_VALUE, _TEXT_VALUE = 1, 4, 17
_EVENT_NAMES, _ANNOTATION_TEXTS = 2, 29
_ID, _TEXT = 1, 2
_BEGIN, _END = 1, 2
_NEEDS_INTERNED: Final = 2
"""`TracePacket.SEQ_NEEDS_INCREMENTAL_STATE`."""
_TEXTS: Final = ("full", "module", "kind")
_CHUNK: Final = 50_000


class KernelPackets:
    """The packets of kernels.

    Args:
        kernels: As `kernel_slices` has them.
        sequence: Number of the sequence of packets that they belong to.
        tracks: Id of each track of the kernels.
        categories: Id of the category of each use.
        arguments: Id of the name of each argument.
    """

    def __init__(
        self,
        kernels: pl.DataFrame,
        sequence: int,
        tracks: list[int],
        categories: dict[str, int],
        arguments: dict[str, int],
    ) -> None:
        self._names = _vocabulary(kernels["name"])
        self._texts = _vocabulary(*(kernels[column] for column in _TEXTS))
        self._sequence = sequence
        self._arguments = arguments
        self._numbered = kernels.select(
            "start_ns",
            "end_ns",
            pl.col("track").replace_strict(dict(enumerate(tracks)), return_dtype=pl.Int64),
            pl.col("use").replace_strict(categories, return_dtype=pl.Int64),
            _ids("name", self._names),
            *(
                _ids(column, self._texts) if column in _TEXTS else pl.col(column).cast(pl.Int64)
                for column in KERNEL_ARGUMENTS
            ),
        )

    def interned(self) -> bytes:
        """Return the names and texts as fields of `InternedData`."""
        return b"".join(
            encoded(field, encoded(_ID, number) + encoded(_TEXT, text.encode()))
            for field, texts in ((_EVENT_NAMES, self._names), (_ANNOTATION_TEXTS, self._texts))
            for number, text in enumerate(_shown(texts), start=1)
        )

    def chunks(self) -> Iterator[bytes]:
        """Yield the packets of all kernels, a bounded number at a time."""
        for chunk in self._numbered.iter_slices(_CHUNK):
            yield self._packets(chunk).to_bytes()

    def _packets(self, kernels: pl.DataFrame) -> Columns:
        """Return each kernel's beginning, which carries what is said about it, and its end.

        They follow each other, so that of two that touch the first ends before the second begins.
        """
        count = kernels.height

        def column(name: str) -> Ints:
            values: Ints = kernels[name].to_numpy()
            return values

        def argument(name: str) -> Columns:
            known = kernels[name].is_not_null().to_numpy()
            field = _TEXT_VALUE if name in _TEXTS else _INT_VALUE
            content = joined(
                constant(_ANNOTATION_NAME, self._arguments[name], count),
                numbers(field, kernels[name].fill_null(0).to_numpy()),
            )
            return messages(_ANNOTATION, content, known)

        def packet(time: str, flags: tuple[Columns, ...], sort: int, *said: Columns) -> Columns:
            event = joined(constant(_TYPE, sort, count), numbers(_TRACK, column("track")), *said)
            content = joined(
                numbers(_TIMESTAMP, column(time)),
                constant(_SEQUENCE, self._sequence, count),
                *flags,
                messages(_TRACK_EVENT, event),
            )
            return messages(_PACKET, content)

        return joined(
            packet(
                "start_ns",
                (constant(_SEQUENCE_FLAGS, _NEEDS_INTERNED, count),),
                _BEGIN,
                numbers(_NAME, column("name")),
                numbers(_CATEGORY, column("use")),
                *map(argument, KERNEL_ARGUMENTS),
            ),
            packet("end_ns", (), _END),
        )


def _vocabulary(*columns: pl.Series) -> pl.Series:
    """Return the texts of some columns, each once."""
    texts = pl.concat(
        [column.drop_nulls().unique(maintain_order=True).rename("text") for column in columns]
    )
    return texts.unique(maintain_order=True)


def _ids(column: str, vocabulary: pl.Series) -> pl.Expr:
    """Return the number of each text, from 1."""
    return pl.col(column).cast(pl.Enum(vocabulary)).to_physical().cast(pl.Int64) + 1


def _shown(texts: pl.Series) -> list[str]:
    frame = texts.to_frame("text").select(plain(pl.col("text"), LONGEST_DETAIL))
    shown: list[str] = frame.to_series().to_list()
    return shown
