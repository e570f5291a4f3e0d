"""How much of its devices' peak a run made use of: MFU of its model, HFU of what was executed.

Definitions and conventions are those of `bubblescope.analysis.mfu`. What a run's traces and its user
tell comes together here: steps, the time that devices computed, operators' FLOPs, the devices' names.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

import msgspec
import polars as pl

from bubblescope.analysis.device_budget import recorded
from bubblescope.analysis.mfu import (
    CONVENTIONS,
    ModelError,
    flops_per_token,
    mfu,
    peak_flops,
    read_model,
)
from bubblescope.analysis.step_lengths import is_one_step, step_windows, whole
from bubblescope.model import units
from bubblescope.model.budget import Use

if TYPE_CHECKING:
    from typing_extensions import Self

    from bubblescope.analysis.mfu import Model
    from bubblescope.analysis.mfu import Peak as ListedPeak
    from bubblescope.model.timeline import Timeline

_MOST: Final = 2**80
"""FLOPs of a step that no job takes: a million devices of 1 PFLOP/s would take 20 minutes for them."""


class Said(TypedDict, total=False):
    """What the user may say of a job; `Workload.of` says what each is."""

    model: str | Path | None
    tokens: int | None
    sequence_length: int | None
    convention: str
    devices: int | None
    peak: float | None


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What the user says of a job: what a step should compute, and on what. See `Workload.of`.

    Attributes:
        model: What the model calls itself; None if none is given.
        convention: How its FLOPs are counted, one of `CONVENTIONS`.
        flops_per_token: Of forward and backward.
        tokens: Of a step, over all devices.
        sequence_length: Tokens of a sequence.
        devices: Devices of the job, with those that have no trace.
        counted_in: The file that tells how many they are; None if the user did.
        peak: FLOPs per second of one device at best, dense.
    """

    model: str | None = None
    convention: str | None = None
    flops_per_token: int | None = None
    tokens: int | None = None
    sequence_length: int | None = None
    devices: int | None = None
    counted_in: str | None = None
    peak: float | None = None

    @classmethod
    def of(
        cls,
        *,
        model: str | Path | None = None,
        tokens: int | None = None,
        sequence_length: int | None = None,
        convention: str = "megatron",
        devices: int | None = None,
        peak: float | None = None,
    ) -> Self:
        """Take what the user says, and look up in the model's file what they leave out.

        Args:
            model: A Hugging Face config.json, or Megatron-LM's arguments as JSON.
            tokens: Tokens of a step over all devices; global_batch_size times seq_length of Megatron's
                arguments if left out.
            sequence_length: Tokens of a sequence; seq_length of Megatron's arguments if left out.
            convention: How model FLOPs are counted, one of `CONVENTIONS`.
            devices: Devices of the job; world_size of Megatron's arguments if left out, or else as many
                as the traces tell.
            peak: Dense FLOPs per second of one device in the precision of the job; that of the data
                sheet if left out and the device's name is known.

        Raises:
            ModelError: The file is not usable, or something is missing or makes no sense.
        """
        _check(tokens, sequence_length, devices, peak, convention)
        if model is None:
            if tokens is not None or sequence_length is not None:
                raise ModelError(
                    "tokens alone do not give FLOPs, which need a model: give its config.json, or "
                    "Megatron's arguments as JSON, as well (--model)"
                )
            return cls(devices=devices, peak=peak)
        described = read_model(Path(model))
        tokens, length = _step(described, str(model), tokens, sequence_length)
        each = flops_per_token(described, length, convention)
        if each * tokens > _MOST:
            raise ModelError(
                f"{model}: a step of {tokens:,} tokens would take {each * tokens:.1e} FLOPs, more than "
                "any job: correct the model's sizes or the number of tokens"
            )
        return cls(
            model=described.name,
            convention=convention,
            flops_per_token=each,
            tokens=tokens,
            sequence_length=length,
            devices=devices or described.devices,
            counted_in=None if devices else str(model),
            peak=peak,
        )

    @property
    def flops(self) -> int | None:
        """Model FLOPs of a step over all devices."""
        if self.flops_per_token is None or self.tokens is None:
            return None
        return self.flops_per_token * self.tokens


def _check(
    tokens: int | None,
    sequence_length: int | None,
    devices: int | None,
    peak: float | None,
    convention: str,
) -> None:
    """Refuse what makes no sense, whatever the model."""
    counts = {"tokens": tokens, "tokens of a sequence": sequence_length, "devices": devices}
    for what, value in counts.items():
        if value is not None and (type(value) is not int or not 0 < value < 2**63):
            raise ModelError(f"the number of {what} is {value!r}: give a whole number from 1 on")
    if peak is not None and not 0 < peak < math.inf:
        raise ModelError(f"the peak is {peak!r}: give FLOPs per second, such as 989e12")
    if convention not in CONVENTIONS:
        raise ModelError(
            f"{convention!r} is not a way to count FLOPs; choose from {', '.join(CONVENTIONS)}"
        )


def _step(model: Model, path: str, tokens: int | None, length: int | None) -> tuple[int, int]:
    """Return the tokens of a step and of a sequence: as given, or as the model's file tells."""
    length = length or model.sequence_length
    if tokens is None and model.sequences and length:
        tokens = model.sequences * length
    if tokens is None:
        raise ModelError(
            f"{path}: it does not state how many tokens a step has: give them, over all devices "
            "(--tokens), or Megatron's arguments with global_batch_size and seq_length"
        )
    if length is None:
        raise ModelError(
            f"{path}: it does not state how long the sequences of the training are, on which the "
            "FLOPs of attention depend: give it (--seq-length)"
        )
    return tokens, length


class Peak(msgspec.Struct, frozen=True):
    """The peak that FLOPs are compared with.

    Attributes:
        flops: Per second of one device, dense; None if it is not known.
        device: What the devices call themselves; None if that is not known, or they differ.
        precision: What the peak holds for; None if the user gave it.
        source: Where it is from.
        unknown: Why it is not known, and what to do.
        doubt: Why it may be that of another precision than the job's, and what to do.
    """

    flops: float | None
    device: str | None
    precision: str | None = None
    source: str | None = None
    unknown: str | None = None
    doubt: str | None = None


class Efficiency(msgspec.Struct, frozen=True, kw_only=True):
    """How much of its devices' peak a run made use of, in a step: the mean over steps and ranks.

    What is not known is None.

    Attributes:
        workload: What the user said.
        peak: What it is compared with.
        devices: Devices of the job.
        traced_devices: How many of them the traces tell of.
        steps: How many steps it is the mean of; None where it is of the whole capture instead.
        open: Whether the ends of the steps were not recorded, so that they may be longer.
        step_ns: Length of a step.
        compute_ns: Time that the traced devices computed in it, summed over them.
        executed_flops: FLOPs executed in it on the traced devices: a lower bound.
        mfu, compute_share, compute_utilization: MFU, and its two factors.
        hfu: The same of executed FLOPs; a lower bound as well.
        executed_ratio: FLOPs that a device executed, by those that the model has for it.
        flops_per_second: Model FLOPs of a device and second.
        executed_per_second: Executed FLOPs of a device and second.
        operators: Frame with name, flops, operators and unknown, over the whole capture, most FLOPs
            first: how many FLOPs were executed by how many operators of each name, and how many more
            multiply matrices of unknown size.
        impossible: What cannot be true, and why it probably came out so.
        notes: Sentences on what is missing and what to do.
    """

    workload: Workload
    peak: Peak
    devices: int
    traced_devices: int
    steps: int | None
    open: bool
    step_ns: int | None
    compute_ns: int | None
    executed_flops: int | None
    mfu: float | None
    compute_share: float | None
    compute_utilization: float | None
    hfu: float | None
    executed_ratio: float | None
    flops_per_second: float | None
    executed_per_second: float | None
    operators: pl.DataFrame
    impossible: str | None
    notes: tuple[str, ...]

    @property
    def unknown_operators(self) -> int:
        """Operators that multiply matrices of unknown size, over the whole capture."""
        return int(self.operators["unknown"].sum())

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        own = ("workload", "peak", "operators", "impossible", "notes")
        said = msgspec.structs.asdict(self.workload)
        said.pop("devices"), said.pop("peak")
        return {
            **said,
            "model_flops": self.workload.flops,
            "peak": self.peak.flops,
            "device_name": self.peak.device,
            "precision": self.peak.precision,
            "peak_source": self.peak.source,
            **{name: getattr(self, name) for name in self.__struct_fields__ if name not in own},
            "operators": self.operators.to_dicts(),
            "impossible": self.impossible,
            "notes": list(self.notes),
        }


def utilization(timeline: Timeline, workload: Workload | None = None) -> Efficiency | None:
    """Work out MFU and HFU of a run.

    Steps whose end was recorded count, others only if there are none such. Without steps it is the HFU
    of all that was recorded.

    Returns:
        None if nothing tells FLOPs: no model is given, and no trace has the shapes of operators and
        the time of devices.

    Raises:
        ModelError: The traces are of more devices than the job is stated to have.
    """
    said = workload or Workload()
    operators = _operators(timeline)
    known = int(operators["operators"].sum()) > 0
    if said.flops is None and not known:
        return None
    of_rank = _devices(timeline)
    traced = sum(of_rank.values())
    devices = said.devices or max(timeline.run.world or 0, traced)
    if devices < traced:
        where = f"{said.counted_in}: " if said.counted_in else ""
        raise ModelError(
            f"{where}the job is stated to have {units.count(devices, 'device')}, but the traces are of "
            f"{traced}: give the number of all (--devices)"
        )
    peak = _peak(timeline, said)
    windows, steps, still_open = _windows(timeline, of_rank)
    if said.flops is None and not (windows["device_ns"] > 0).any():
        return None
    return _efficiency(
        windows.join(_executed(timeline, steps), on=_ON, how="left", nulls_equal=True),
        workload=said,
        peak=peak,
        devices=devices,
        steps=steps,
        open=still_open,
        operators=operators,
        shapes="record_shapes" in timeline.run.options,
    )


_ON: Final = ["rank", "step"]


def _efficiency(windows: pl.DataFrame, *, shapes: bool, **known: Any) -> Efficiency:
    """Put together what is known of steps.

    Args:
        windows: Frame with rank, step, devices, device_ns (time of a step on all of a rank's devices),
            compute_ns, flops (executed) and shaped (whether the rank's trace tells of FLOPs).
        shapes: Whether traces show that the shapes of operators were recorded.
        known: What `Efficiency` holds that is not worked out here.
    """
    said, peak, devices = known["workload"], known["peak"], known["devices"]
    stepped = known["steps"] is not None
    windows = windows.filter(pl.col("device_ns") > 0)
    ranks, whole = windows["rank"].n_unique(), _sums(windows)
    traced = int(windows.unique("rank")["devices"].sum())
    shaped = windows.filter(pl.col("shaped") & (pl.col("flops") > 0))
    ran, doers = _sums(shaped), shaped["rank"].n_unique()
    wanted = said.flops if stepped and whole["device_ns"] else None
    # Both as if all of a run's steps were one step of one device: ratios are those of sums.
    of_model = mfu(
        step_ns=whole["device_ns"] or 1,
        devices=1,
        model_flops=None if wanted is None else wanted * whole["devices"] / devices,
        peak=peak.flops,
        compute_ns=whole["compute_ns"] or None,
    )
    executed = mfu(
        step_ns=ran["device_ns"] or 1,
        devices=1,
        executed_flops=ran["flops"] or None,
        peak=peak.flops,
    )
    share = of_model.compute_share if whole["device_ns"] else None
    speed = ran["flops"] / (ran["device_ns"] / 1e9) if ran["flops"] else None
    ratio = None
    if speed and of_model.flops_per_second:
        ratio = speed / of_model.flops_per_second
    found = Efficiency(
        **known,
        traced_devices=traced,
        step_ns=round(whole["device_ns"] / whole["devices"]) if whole["devices"] else None,
        compute_ns=_mean(whole["compute_ns"], ranks, windows.height),
        executed_flops=_mean(ran["flops"], doers, shaped.height),
        mfu=of_model.mfu,
        compute_share=share,
        compute_utilization=of_model.compute_utilization,
        hfu=executed.hfu,
        executed_ratio=ratio,
        flops_per_second=of_model.flops_per_second,
        executed_per_second=speed,
        impossible=None,
        notes=(),
    )
    found = msgspec.structs.replace(found, impossible=_impossible(found))
    return msgspec.structs.replace(found, notes=tuple(_notes(found, shapes=shapes)))


def _sums(windows: pl.DataFrame) -> dict[str, int]:
    return windows.select(pl.col("device_ns", "devices", "compute_ns", "flops").sum()).row(
        0, named=True
    )


def _mean(total: int, ranks: int, windows: int) -> int | None:
    """Return what falls to all ranks together in a step, of a sum over ranks and steps."""
    return round(total * ranks / windows) if total else None


def _devices(timeline: Timeline) -> dict[int, int]:
    """Return how many devices each rank used: one where the traces do not tell."""
    used = dict(timeline.budget.group_by("rank").agg(pl.col("device").n_unique()).iter_rows())
    return {rank: used.get(rank, 1) for rank in timeline.ranks["rank"].to_list()}


def _operators(timeline: Timeline) -> pl.DataFrame:
    """Return what operators of each name executed, most first."""
    return (
        timeline.flops.group_by("name")
        .agg(
            flops=pl.when(pl.col("flops").is_not_null().any()).then(pl.col("flops").sum()),
            operators=pl.col("operators").filter(pl.col("flops").is_not_null()).sum(),
            unknown=pl.col("unknown").sum()
            + pl.col("operators").filter(pl.col("flops").is_null()).sum(),
        )
        .sort("flops", "name", descending=[True, False], nulls_last=True)
    )


def _executed(timeline: Timeline, steps: int | None) -> pl.DataFrame:
    """Return rank, step and flops: what each rank executed in each step; in all if there are none."""
    table = timeline.flops if steps is not None else timeline.flops.with_columns(step=None)
    return (
        table.with_columns(pl.col("step").cast(pl.Int32)).group_by(_ON).agg(pl.col("flops").sum())
    )


def _windows(timeline: Timeline, of_rank: dict[int, int]) -> tuple[pl.DataFrame, int | None, bool]:
    """Return the steps that count, how many there are, and whether they are open."""
    shaped = timeline.flops["rank"].unique().implode()
    told = pl.DataFrame(
        list(of_rank.items()), schema={"rank": pl.Int32, "devices": pl.Int64}, orient="row"
    ).with_columns(shaped=pl.col("rank").is_in(shaped))
    computing = timeline.budget.filter(use=Use.COMPUTE.value)
    steps = timeline.step_times if timeline.step_times.height else step_windows(timeline)
    if is_one_step(timeline.run):
        steps = steps.clear()  # it may as well be several, or a part of one
    chosen = whole(steps)
    if chosen.height:
        spent = computing.group_by(_ON).agg(compute_ns=pl.col("spent_ns").sum())
        windows = (
            recorded(chosen, timeline.budget, *_ON)
            .join(told, on="rank")
            .join(spent, on=_ON, how="left")
            .with_columns(device_ns=pl.col("recorded_ns") * pl.col("devices"))
        )
        return windows.select(*_WINDOW), windows["step"].n_unique(), bool(chosen["open"].any())
    place = ("rank", "device")
    extent = timeline.budget.group_by(place).agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    lengths = recorded(extent, timeline.budget, *place).select(*place, device_ns="recorded_ns")
    windows = (
        lengths.group_by("rank")
        .agg(pl.col("device_ns").sum())
        .join(told, on="rank")
        .join(
            computing.group_by("rank").agg(compute_ns=pl.col("spent_ns").sum()),
            on="rank",
            how="left",
        )
        .with_columns(step=pl.lit(None, pl.Int32))
    )
    return windows.select(*_WINDOW), None, False


_WINDOW: Final = ("rank", "step", "devices", "shaped", "device_ns", "compute_ns")


def _peak(timeline: Timeline, said: Workload) -> Peak:
    """Return the peak: as given, or of the data sheet of a device whose name is known."""
    names = timeline.ranks["device_name"].unique().to_list()
    name = names[0] if len(names) == 1 else None
    if said.peak is not None:
        return Peak(said.peak, name, source="given")
    if name is None:
        some = sorted(one for one in names if one is not None)
        why = (
            f"ranks ran on different devices ({', '.join(some)}"
            + (", and some that are not named)" if None in names else ")")
            if some
            else "the traces do not name the devices"
        )
        return Peak(None, None, unknown=f"{why}, so their peak is not known: {_GIVE_PEAK}")
    usual = peak_flops(name)
    if usual is None:
        return Peak(None, name, unknown=f"the peak of {name!r} is not known: {_GIVE_PEAK}")
    precision = _precision(timeline)
    found = peak_flops(name, precision)
    peak = found or usual
    doubt = _other_precision(precision, peak) if found is None else _perhaps_exact(peak)
    return Peak(peak.flops, name, peak.precision, peak.source, doubt=doubt)


def _precision(timeline: Timeline) -> str | None:
    """Return the precision in which most FLOPs were executed; None if that is not known."""
    sums = (
        timeline.flops.group_by("precision").agg(pl.col("flops").sum()).filter(pl.col("flops") > 0)
    )
    most = sums.sort("flops", "precision", descending=[True, False])["precision"].head(1)
    return most[0] if len(most) else None


def _other_precision(precision: str | None, peak: ListedPeak) -> str:
    return (
        f"operators multiply mostly in {precision}, whose peak is not known: FLOPs are compared with "
        f"that of {peak.precision}, and utilization is wrong by as much as they differ; {_GIVE_PEAK}"
    )


def _perhaps_exact(peak: ListedPeak) -> str | None:
    """Say that what the peak takes to be computed by TF32 may have been computed without, slower."""
    if peak.exact is None or peak.exact == peak.flops:
        return None
    return (
        "operators multiply mostly in FP32, and whether by TF32 is not in the traces: without "
        "(torch.backends.cuda.matmul.allow_tf32, off by default), the peak is "
        f"{peak.exact / 1e12:,.4g} TFLOP/s (--peak {peak.exact / 1e12:g}e12), and utilization "
        f"{peak.flops / peak.exact:.1f} times as high"
    )


_GIVE_PEAK: Final = "give the dense FLOPs per second of one, such as --peak 989e12"


def _notes(found: Efficiency, *, shapes: bool) -> list[str]:
    """Say what is missing, and what to do."""
    notes = []
    wanted = found.workload.flops is not None
    if found.peak.unknown:
        notes.append(found.peak.unknown)
    if found.peak.doubt:
        notes.append(found.peak.doubt)
    if found.steps is None:
        said = "no step is marked in the traces, so "
        said += "MFU is not known; " if wanted else ""
        notes.append(f"{said}HFU covers everything that was recorded")
    elif found.open:
        notes.append(
            "the ends of steps were not recorded: each is taken to end with its last operation, so "
            "rates may be too high"
        )
    if wanted and found.executed_flops is None:
        notes.append(
            "no operator that multiplies matrices is in the traces, though shapes were recorded: "
            "kernels have no operators (torch.compile, CUDA graphs)"
            if shapes
            else "the traces do not show which operators were executed: torch.profiler records the "
            "shapes of operators with record_shapes=True"
        )
    if found.traced_devices < found.devices:
        notes.append(
            f"{found.traced_devices} of {units.count(found.devices, 'device')} have usable "
            "traces; the others are assumed to do the same"
        )
    ratio = found.executed_ratio or 0.0
    if found.impossible is None and _falls_short(found):
        notes.append(
            f"operators executed {100 * ratio:.2g} % of the model's FLOPs: steps have no backward, "
            "kernels no operators (torch.compile, fused layers), or the tokens, the number of devices "
            "or the model is wrong"
        )
    if wanted and found.steps is not None and found.compute_ns is None:
        notes.append("the traces do not show how long devices computed, only when tasks ran")
    return notes


def _impossible(found: Efficiency) -> str | None:
    """Say what cannot be true; what was executed depends neither on the model nor on the tokens."""
    if found.hfu is not None and found.hfu > 1:
        return (
            f"HFU of {_percent(found.hfu)} is impossible, and follows from the shapes of operators and "
            "the peak alone: the peak is wrong, or that of another precision than the job's"
        )
    rate, speed, ratio = found.mfu, found.compute_utilization, found.executed_ratio
    if rate is not None and rate > 1:
        said = f"MFU of {_percent(rate)} is impossible: "
    elif speed is not None and speed > 1:
        said = f"computing at {_percent(speed)} of the peak is impossible: "
    else:
        return None
    if ratio is not None and _falls_short(found):
        return (
            f"{said}operators executed {100 * ratio:.2g} % of the model's FLOPs, so the tokens of a "
            "step (all devices'), the number of devices or the model is probably wrong"
        )
    return (
        f"{said}the peak ({found.peak.flops:.4g} FLOP/s), the tokens of a step "
        f"({found.workload.tokens:,}), the number of devices ({found.devices:,}) or the model "
        f"({found.workload.model}) is wrong"
    )


def _falls_short(found: Efficiency) -> bool:
    """Say whether operators executed less than the model has, by more than conventions differ."""
    ratio = found.executed_ratio
    return ratio is not None and ratio < _NEARLY and not found.unknown_operators


_NEARLY: Final = 0.9
"""Conventions of counting differ by less than this."""


def _percent(rate: float) -> str:
    return f"{100 * rate:,.0f} %"
