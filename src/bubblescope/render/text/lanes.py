"""The timeline in a terminal: coloured lanes of one step, a line for each rank.

Half a character shows what runs in that part of the time, and no kind looks longer than it is. Where
colours are off, it is a whole character, and letters stand for the kinds.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from bubblescope.analysis.overview import Overview, evenly
from bubblescope.model import language, units
from bubblescope.model.arrays import in_blocks
from bubblescope.model.kinds import SHORT, Kind, Lane
from bubblescope.render.palette import UNKNOWN_GROUND
from bubblescope.render.picture.sampling import IDLE, apportioned, moments, running
from bubblescope.render.ticks import ticks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from numpy.typing import NDArray
    from rich.console import Console, ConsoleOptions

    from bubblescope.model.timeline import Timeline

LANES: Final = 16
"""Ranks shown at most, unless all are asked for."""

LETTERS: Final[dict[Kind, str]] = {
    **{kind: short[0] for kind, short in SHORT.items()},
    Kind.FORWARD_BACKWARD: "X",
    Kind.SEND_FORWARD: "s",
    Kind.SEND_BACKWARD: "s",
    Kind.RECV_FORWARD: "r",
    Kind.RECV_BACKWARD: "r",
    Kind.OTHER: "?",
}
"""What stands for each kind where there are no colours."""

_KINDS: Final = tuple(Kind)
_LEAST: Final = 10
"""Characters of a lane that there are in any case."""
_ROOM: Final = 3
"""Least average samples per task at which a lane shows what runs in the middle of each."""
_APART: Final = 14
"""Characters between the numbers of the time axis."""
_DIM: Final = Style(dim=True)
_UNRECORDED: Final = IDLE - 1
"""What stands for time in which nothing was recorded, among the indices of kinds."""
_DIAGONAL: Final = "\N{BOX DRAWINGS LIGHT DIAGONAL UPPER RIGHT TO LOWER LEFT}"
_BARE: Final = {IDLE: "·", _UNRECORDED: _DIAGONAL}
"""What is drawn where there is no task."""
_BARE_ASCII: Final = {IDLE: ".", _UNRECORDED: "/"}


class Lanes(msgspec.Struct, frozen=True, eq=False):
    """Lanes of a step, or of a run without steps, to be printed by rich.

    Attributes:
        tasks: Compute tasks with rank, kind, start_ns and end_ns.
        unrecorded: Frame with rank, start_ns and end_ns: when nothing was recorded of a rank.
        titles: Rank -> title of its lane, from top to bottom.
        bare: What a lane is where it has no task, in words.
        start_ns, end_ns: What is shown.
        said: What it is, in a few words.
    """

    tasks: pl.DataFrame
    unrecorded: pl.DataFrame
    titles: dict[int, str]
    bare: str
    start_ns: int
    end_ns: int
    said: str

    @classmethod
    def of(
        cls,
        timeline: Timeline,
        *,
        most: int = LANES,
        overview: Overview | None = None,
        of_devices: bool = False,
        among: Collection[int] = (),
    ) -> Lanes | None:
        """Choose a step of median length, and at most so many ranks, evenly along the pipeline.

        Args:
            timeline: The run, or what of it is to be drawn.
            most: How many ranks.
            overview: How much there is of the run, if the timeline is not all of it.
            of_devices: Whether steps are those of its devices, each to the start of the next one.
            among: Those to choose from, if any of them will do.

        Returns:
            The lanes, or None if nothing on any compute lane takes time.
        """
        overview = Overview.of(timeline) if overview is None else overview
        tasks = timeline.tasks.select("rank", "step", "kind", "lane", "start_ns", "end_ns")
        chosen = overview.typical(
            common_clock=timeline.run.common_clock, of_devices=of_devices, among=among
        )
        if chosen is None:
            return None
        step, start_ns, end_ns = (chosen[name] for name in ("step", "start_ns", "end_ns"))
        said = []
        if step is not None:
            said.append(f"step {step}" + ", of median length" * (overview.steps.height > 1))
        if not timeline.run.common_clock:
            tasks = _from_zero(tasks, step)
            start_ns, end_ns = 0, chosen["longest_ns"]
        if start_ns == end_ns:
            return None
        said.append(units.duration(end_ns - start_ns))
        if not timeline.run.common_clock:
            said.append("each rank from its first task, for they share no clock")
        ranks = _titled(overview.order(timeline.ranks))
        if ranks.height > most:
            said.append(f"{most} of {ranks.height} ranks, evenly chosen")
            ranks = evenly(ranks, most)
        titles = dict(ranks.select("rank", "title").iter_rows())
        wanted = (
            pl.col("end_ns") > start_ns,
            pl.col("start_ns") < end_ns,
            pl.col("rank").is_in(list(titles)),
        )
        compute = pl.col("lane") == Lane.COMPUTE.value
        shown = pl.concat([block.filter(compute, *wanted) for block in in_blocks(tasks)])
        # Of a run in parts, it is not known between all of them.
        between = overview.unrecorded.filter("inside").select("rank", "start_ns", "end_ns")
        if not timeline.run.common_clock:
            between = between.clear()  # these times are not those of the lanes
        return cls(
            shown.drop("lane"),
            between.filter(*wanted),
            titles,
            # Devices may communicate or copy outside of tasks, which is not drawn.
            "no task" if of_devices else "idle",
            start_ns,
            end_ns,
            " · ".join(said),
        )

    def sampled(self, samples: int) -> dict[int, NDArray[np.int64]]:
        """Return for each rank what runs in each of so many equal parts of the time.

        It is what runs in the middle of a part or, where a rank has more tasks than can be seen, what
        keeps the shares of the time right along its lane.

        Returns:
            Rank -> indices of the kinds, `IDLE`, or what stands for time that was not recorded. Where
            tasks overlap, they take turns.
        """
        kinds = self.tasks.select(
            "rank",
            "start_ns",
            "end_ns",
            kind=pl.col("kind").to_physical().cast(pl.Int64),
            crowded=pl.len().over("rank") > samples // _ROOM,
        )
        lanes = {rank: np.full(samples, IDLE) for rank in self.titles}
        at_ns = moments(self.start_ns, self.end_ns, samples)
        found = running(kinds.filter(~pl.col("crowded")), at_ns, "kind")
        found = found.filter(pl.col("slot") == pl.col("sample") % pl.col("slots"))
        for (rank,), lane in found.group_by("rank"):
            lanes[int(str(rank))][lane["sample"].to_numpy()] = lane["kind"].to_numpy()
        for (rank,), lane in kinds.filter("crowded").group_by("rank"):
            lanes[int(str(rank))] = apportioned(lane, self.start_ns, self.end_ns, samples)
        for rank, start_ns, end_ns in self.unrecorded.iter_rows():
            within = slice(*np.searchsorted(at_ns, (start_ns, end_ns)))
            lanes[rank][within][lanes[rank][within] == IDLE] = _UNRECORDED
        return lanes

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        coloured = (
            console.color_system in ("256", "truecolor")
            and not console.no_color
            and not options.ascii_only
        )
        bare = _BARE_ASCII if options.ascii_only else _BARE
        room = max(_LEAST, options.max_width // 2)
        titles = {rank: _cut(title, room, options) for rank, title in self.titles.items()}
        titles = {rank: language.translated(title) for rank, title in titles.items()}
        room = max(map(cell_len, titles.values()))
        cells = max(_LEAST, options.max_width - room - 1)
        for rank, lane in self.sampled(2 * cells if coloured else cells).items():
            yield Segment(titles[rank] + " " * (room + 1 - cell_len(titles[rank])), _DIM)
            yield from _halves(lane, bare) if coloured else _letters(lane, bare)
            yield Segment.line()
        yield Segment(" " * (room + 1) + self._axis(cells, options), _DIM)
        yield Segment.line()
        yield from self._legend(options.max_width, bare, coloured=coloured)

    def _axis(self, cells: int, options: ConsoleOptions) -> str:
        """Return a line with round numbers, each right of the moment that it names."""
        length = self.end_ns - self.start_ns
        line = [" "] * cells
        for at_ns, label in ticks(length, cells / _APART):
            at = round(at_ns / max(1, length) * cells)
            written = ("|" if options.ascii_only else "╵") + label
            if at + len(written) <= cells:
                line[at : at + len(written)] = written
        text = "".join(line)
        return text.replace("µ", "u") if options.ascii_only else text

    def _legend(self, width: int, bare: Mapping[int, str], *, coloured: bool) -> Iterator[Segment]:
        present = set(self.tasks["kind"].cast(pl.String).unique())
        marks = []
        for kind in Kind:
            if kind.value not in present:
                continue
            mark, style = LETTERS[kind], Style()
            if coloured:
                mark, style = "█", Style(color=UNKNOWN_GROUND[kind])
            marks.append((mark, style, kind.value.replace("_", " ")))
        marks.append((bare[IDLE], _DIM, self.bare))
        if self.unrecorded.height:
            marks.append((bare[_UNRECORDED], _DIM, "not recorded"))
        x = 0
        for mark, style, name in marks:
            entry = f" {language.translated(name)}   "
            if x and x + cell_len(entry) - 2 > width:
                yield Segment.line()
                x = 0
            yield Segment(mark, style)
            yield Segment(entry[: max(0, width - x - 1)], _DIM)
            x += 1 + cell_len(entry)
        yield Segment.line()


def _from_zero(tasks: pl.DataFrame, step: int | None) -> pl.DataFrame:
    """Let each rank's step begin at 0."""
    tasks = tasks.filter(pl.col("lane") == Lane.COMPUTE.value)
    own = tasks.filter(pl.col("step").eq_missing(pl.lit(step, pl.Int32)))
    zero = own.group_by("rank").agg(zero=pl.col("start_ns").min())
    return tasks.join(zero, on="rank").with_columns(pl.col("start_ns", "end_ns") - pl.col("zero"))


def _titled(ranks: pl.DataFrame) -> pl.DataFrame:
    """Return rank and title, in their order."""
    digits = len(str(ranks["rank"].max()))
    number = pl.col("rank").cast(pl.String).str.pad_start(digits)
    stages = [
        f" · stage {units.stages(held)}" if held else "" for held in ranks["stages"].to_list()
    ]
    return ranks.select(
        "rank", title=pl.format("rank {}", number) + pl.Series(stages, dtype=pl.String)
    )


def _cut(title: str, room: int, options: ConsoleOptions) -> str:
    if options.ascii_only:
        title = title.replace(" · ", " ")
        return title if len(title) <= room else title[: room - 1] + "~"
    return title if len(title) <= room else title[: room - 1] + "…"


def _halves(lane: NDArray[np.int64], bare: Mapping[int, str]) -> Iterator[Segment]:
    """Draw two samples in each character; where no task is, it is the terminal's own background."""
    pairs = zip(lane[::2].tolist(), lane[1::2].tolist(), strict=True)
    for (left, right), same in groupby(pairs):
        count = len(list(same))
        one, other = (None if at in bare else UNKNOWN_GROUND[_KINDS[at]] for at in (left, right))
        if one is None and other is None:
            yield Segment(bare[max(left, right)] * count, _DIM)
        elif one == other:
            yield Segment("█" * count, Style(color=one))
        elif one is None:
            yield Segment("▐" * count, Style(color=other))
        else:
            yield Segment("▌" * count, Style(color=one, bgcolor=other))


def _letters(lane: NDArray[np.int64], bare: Mapping[int, str]) -> Iterator[Segment]:
    yield Segment("".join(bare.get(at) or LETTERS[_KINDS[at]] for at in lane.tolist()))
