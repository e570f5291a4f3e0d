"""What a trace format is to those who read traces."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict

import msgspec

from bubblescope.model.progress import SILENT, Progress
from bubblescope.names.parser import NameParser

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from os import PathLike
    from pathlib import Path

    from bubblescope.engine import Engine
    from bubblescope.model.timeline import Timeline

    Wanted = int | range | Iterable[int | range]


class ReadOptions(msgspec.Struct, frozen=True):
    """How to read, the same for every source.

    Attributes:
        names: Meaning of range names, with the user's own patterns if there are any.
        progress: Where to report progress.
        run: Which run to read from logs that several were appended to, counted from 0; the last
            if None.
        engine: Where to read files side by side; if None, in processes of this machine where that pays.
        activities: Whether to keep every kernel, copy and fill, as `Timeline.activities`.
        unlimited: Whether to read packed files however much they unpack to.
        steps: Steps that are wanted; all if None. Only a source that need not read the others for it
            leaves them out.
        ranks: Ranks that are wanted, likewise.
        enough: Number of tasks that are enough: of a dataset with more, only some steps are read, and a
            notice says which. All are read if None, or if `steps` names some.
        median: Whether that is the step of median length alone; else they are as many as have so many
            tasks, evenly from the first to the last.
    """

    names: NameParser = msgspec.field(default_factory=NameParser)
    progress: Progress = SILENT
    run: int | None = None
    engine: Engine | None = None
    activities: bool = False
    unlimited: bool = False
    steps: Sequence[range] | None = None
    ranks: Sequence[range] | None = None
    enough: int | None = None
    median: bool = False


def ranges(wanted: Wanted | None) -> list[range] | None:
    """Return steps or ranks that are asked for as ranges; None for all.

    >>> ranges([0, range(4, 6)]), ranges(3)
    ([range(0, 1), range(4, 6)], [range(3, 4)])

    Raises:
        TypeError: They are none.
    """
    if wanted is None:
        return None
    several: Any = wanted
    if isinstance(wanted, range | str) or not hasattr(wanted, "__iter__"):
        several = [wanted]
    return [_range(one) for one in several]


def _range(one: Any) -> range:
    if isinstance(one, range):
        return one
    if not hasattr(one, "__index__"):
        raise TypeError(f"steps and ranks are numbers and ranges of numbers, not {one!r}")
    return range(index(one), index(one) + 1)


class LoadOptions(TypedDict, total=False):
    """How to read the traces of a run; what is left out is found out.

    Attributes:
        names: Regular expression with named groups for range names of your own, or the path of a names
            file (.toml), or several of them; see `bubblescope.names.own_names.OwnNames`.
        kinds: What words mean that the patterns capture as the kind: word -> kind.
        source: Name of the format, to skip detection.
        progress: Where to report progress.
        run: Which run to read from logs that several were appended to, counted from 0; the last
            if None.
        attempt: Which start of a recorded job to read: its number; "all" as one run; the last if None.
        engine: Where to read files side by side, as `bubblescope.engine.engine` makes it; if None, in
            processes of this machine where that pays.
        clock: "auto", the default, corrects the clocks of several hosts, or of ranks that share none,
            if what must come before what shows them to be wrong (`bubblescope.clocks.align`);
            "solve" corrects them in any case; "raw" takes times as they are.
        activities: Whether to keep every kernel, copy and fill, as `Timeline.activities`: for
            `bubblescope kernels`. It takes much more memory.
        unlimited: Whether to read packed files that unpack to more than traces do, instead of refusing.
        steps: Steps that are wanted, by which a dataset is read in part; other traces are read whole. A
            number, a range, or several of them.
        ranks: Ranks that are wanted, likewise.
        enough: Number of tasks that are enough: of a dataset with more, only some steps are read, and a
            notice says which. All are read if None, or if `steps` names some.
        median: Whether that is the step of median length alone; else they are as many as have so many
            tasks, evenly from the first to the last.
    """

    names: str | PathLike[str] | Sequence[str] | None
    kinds: Mapping[str, str] | None
    source: str | None
    progress: Progress
    run: int | None
    attempt: int | Literal["all"] | None
    engine: Engine | None
    clock: Literal["raw", "auto", "solve"]
    activities: bool
    unlimited: bool
    steps: Wanted | None
    ranks: Wanted | None
    enough: int | None
    median: bool


class Source(Protocol):
    """One trace format."""

    name: str
    """Short name, that of its module or of its entry point."""

    summary: str
    """What it reads, in a few words, such as "Nsight Systems exports (.sqlite, .nsys-rep)"."""

    def detect(self, path: Path) -> bool:
        """Say whether a file or folder is, or means to be, of this format.

        Looks at the name and the first bytes only, and never raises for a file it cannot judge.
        """

    def read(self, paths: Sequence[Path], options: ReadOptions) -> Timeline:
        """Read all the traces of one run.

        Raises:
            SourceError: A trace is damaged beyond use; names it and says what to do.
        """


class ReadsApart(Source, Protocol):
    """A format of which some traces of a run can be read without the others.

    What is read then must be what reading all together makes of them, but for what
    `bubblescope.datasets.writing.needs_all` sees.
    """

    def together(self, paths: Sequence[Path]) -> list[list[Path]]:
        """Return the traces of a run in the smallest groups that can be read apart, in order.

        Raises:
            SourceError: A trace is damaged beyond use.
        """
