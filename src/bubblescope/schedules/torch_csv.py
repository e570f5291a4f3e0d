"""Plans as the CSV files of torch.distributed.pipelining.

One row for each rank, one cell for each time step: an action such as `0F3` (stage, kind,
micro-batch), `(1F6;6B2)OVERLAP_F_B`, or nothing. Of the actions only computation is kept:
transfers and gathers follow from it. The format is that of PyTorch's `_dump_csv` and `_load_csv`
(torch/distributed/pipelining/schedules.py).
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bubblescope.model.errors import ScheduleError
from bubblescope.model.files import replacing
from bubblescope.model.kinds import COMPUTE_KINDS, Kind
from bubblescope.names.parser import NameParser
from bubblescope.schedules.plan import Operation, Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

_LETTER: Final = {
    Kind.FORWARD: "F",
    Kind.BACKWARD: "B",
    Kind.BACKWARD_INPUT: "I",
    Kind.BACKWARD_WEIGHT: "W",
}


def read(path: str | Path) -> Plan:
    """Return the plan in a file; its name is the file's.

    Raises:
        ScheduleError: The file cannot be read, has a cell that is no action, or is no pipeline;
            the message names the file, row and cell.
    """
    path = Path(path)
    try:
        rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        what = getattr(error, "strerror", None) or error
        raise ScheduleError(f"{path}: cannot be read as a schedule ({what})") from None
    while rows and not any(cell.strip() for cell in rows[-1]):
        rows.pop()
    orders = [
        [
            operation
            for column, cell in enumerate(row, 1)
            for operation in _parse(cell.strip(), f"{path}: row {number}, cell {column}")
        ]
        for number, row in enumerate(rows, 1)
    ]
    name = path.name.removesuffix(".csv")
    try:
        return of_orders(name, orders)
    except ScheduleError as error:
        raise ScheduleError(f"{path}: {str(error).removeprefix(f'{name}: ')}") from None


def write(plan: Plan, path: str | Path) -> Path:
    """Write a plan; PyTorch's `_load_csv(path, format="compute_only")` reads it.

    Raises:
        OSError: The file cannot be written; one that was there is as it was.
    """
    path = Path(path)
    with replacing(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for device in range(plan.devices):
            writer.writerow([_action(operation) for operation in plan.order(device)])
    return path


def of_orders(name: str, orders: Sequence[Sequence[Operation]]) -> Plan:
    """Return the plan of some orders, each device holding the stages that it works on, ascending."""
    placement = []
    for order in orders:
        held = {operation.stage for operation in order}
        held |= {o.pair_stage for o in order if o.pair_stage is not None}
        placement.append(sorted(held))
    return Plan.of(name, placement, orders)


def _parse(cell: str, where: str) -> list[Operation]:
    if not cell:
        return []
    found = _PARSER.parse(f"PP:{cell}")
    if not found or found[0].stage is None:
        raise ScheduleError(
            f"{where}: {cell!r:.60} is not an action of torch.distributed.pipelining"
        )
    said = found[0]
    numbers = (said.stage, said.microbatch, said.pair_stage, said.pair_microbatch)
    if max(number for number in numbers if number is not None) > _LARGEST:
        raise ScheduleError(f"{where}: {cell!r:.60} has a number that no plan has")
    if said.kind not in COMPUTE_KINDS:
        return []
    if said.microbatch is None or said.stage is None:
        raise ScheduleError(f"{where}: {cell!r:.60} names no micro-batch")
    return [
        Operation(said.kind, said.stage, said.microbatch, said.pair_stage, said.pair_microbatch)
    ]


_PARSER: Final = NameParser()
_LARGEST: Final = 2**31 - 1
"""What tasks of a run may have as their stage or micro-batch."""


def _action(operation: Operation) -> str:
    kind, stage, microbatch, pair_stage, pair_microbatch = operation
    if kind is Kind.FORWARD_BACKWARD:
        return f"({stage}F{microbatch};{pair_stage}B{pair_microbatch})OVERLAP_F_B"
    return f"{stage}{_LETTER[kind]}{microbatch}"
