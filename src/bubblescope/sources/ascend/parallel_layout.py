"""Where ranks stand in a parallel job, as far as its profiles say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope.model.bounds import RANKS
from bubblescope.model.groups import Group, merged, tabled
from bubblescope.model.timeline import agreed
from bubblescope.names.group_roles import role_of_group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.sources.ascend.profile import Profile

_DUALPIPEV: Final = "dualpipev"
_FEW: Final = 1 << 12
"""Micro-batches that any job may have."""


class Layout:
    """Where ranks stand in the pipeline, as far as the job says."""

    def __init__(self, profiles: Sequence[Profile], ranks: Sequence[int]) -> None:
        info = [one for one in (profile.said("pp_info") for profile in profiles) if one]
        info = [one for one in info if isinstance(one, dict)]
        self.schedule = agreed(str(one["pp_type"]).lower() for one in info if "pp_type" in one)
        # An order as long as what is declared is made of it: no longer than the profiles allow.
        most = max([_FEW, *(profile.marks for profile in profiles)])
        self.microbatches = agreed(
            number
            for number in (one.get("microbatch_num") for one in info)
            if type(number) is int and 0 < number <= most
        )
        stated = agreed(
            msgspec.json.encode(one).decode()
            for one in (profile.said("distributed_args") for profile in profiles)
            if isinstance(one, dict)
        )
        self._sizes: dict[str, Any] = msgspec.json.decode(stated) if stated else {}
        self._groups = {
            profile.path: profile.said("parallel_group_info") or {} for profile in profiles
        }
        self.world = self._size("world_size", 0)
        self.pipeline = self._size("pipeline_model_parallel_size", 1)
        self._fits = bool(
            stated and self.world > max(ranks, default=0) and (self.world % self.pipeline == 0)
        )
        self.inferred = "rank and parallel sizes, in Megatron's order" if self._fits else None

    @property
    def is_dualpipev(self) -> bool:
        """Whether the job declared this schedule."""
        return bool(self.schedule == _DUALPIPEV)

    @property
    def recognises(self) -> bool:
        """Whether enough is declared to find each range's place in the schedule."""
        return self.is_dualpipev and self._fits and bool(self.microbatches)

    def _size(self, name: str, default: int) -> int:
        value = self._sizes.get(name, default)
        return value if type(value) is int and 0 < value <= RANKS else default

    def device(self, rank: int) -> int | None:
        """Return the pipeline device of a rank: data-parallel replicas vary faster."""
        return rank // (self.world // self.pipeline) if self._fits else None

    def coordinates(self, rank: int) -> dict[str, int | None]:
        """Return the rank's place along the other axes: tensor fastest, then context, then data."""
        if not self._fits:
            return {}
        tensor = self._size("tensor_model_parallel_size", 1)
        context = self._size("context_parallel_size", 1)
        within = rank % (self.world // self.pipeline)
        return {
            "tp": within % tensor,
            "cp": within // tensor % context,
            "dp": within // (tensor * context),
        }

    def stage(self, rank: int, chunk: pl.Expr) -> pl.Expr:
        """Return the global stage of a rank's chunk: in a V for DualPipeV."""
        device = self.device(rank)
        if device is None:
            return pl.lit(None, pl.Int32)
        if self.is_dualpipev:
            return (
                pl.when(chunk == 0)
                .then(pl.lit(device, pl.Int32))
                .when(chunk == 1)
                .then(pl.lit(2 * self.pipeline - 1 - device, pl.Int32))
            )
        return pl.lit(device, pl.Int32)

    def groups(self) -> pl.DataFrame:
        """Return the communication groups that the profiles declare, in `GROUP_SCHEMA`.

        Their names are those of COMMUNICATION_OP.groupName; the role is that of the `group_name`
        which the job gave to HCCL (torch_npu's parallel_group_info).
        """
        found = []
        for groups in self._groups.values():
            for name, said in groups.items() if isinstance(groups, dict) else ():
                if not isinstance(said, dict):
                    continue
                title = said.get("group_name")
                description = title if isinstance(title, str) and title else None
                ranks = _ranks(said)
                found.append(
                    Group(
                        name=name,
                        ranks=tuple(ranks) if ranks else None,
                        size=len(ranks) if ranks else None,
                        role=role_of_group(description) if description else None,
                        how="parallel_group_info",
                        description=description,
                        backend="hccl",
                    )
                )
        return merged(tabled(found))

    def members(self, profile: Profile, group: str) -> list[int] | None:
        """Return the global ranks of a communication group, if they are known."""
        groups = self._groups[profile.path]
        said = groups.get(group) if isinstance(groups, dict) else None
        if (members := _ranks(said)) is not None:
            return members
        return list(range(self.world)) if self.world and self.world == self.pipeline else None


def _ranks(said: Any) -> list[int] | None:
    members = said.get("global_ranks") if isinstance(said, dict) else None
    possible = isinstance(members, list) and all(
        type(one) is int and 0 <= one < RANKS for one in members
    )
    return members if possible else None
