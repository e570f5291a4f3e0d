"""Findings in English."""

from __future__ import annotations

import re
from typing import Final

from bubblescope.analysis import device_words
from bubblescope.analysis.device_words import LABELS
from bubblescope.analysis.idle.causes import MEANINGS, Cause
from bubblescope.analysis.losses import BETWEEN, INSIDE, OUTSIDE, WHOLE
from bubblescope.model.budget import Use

DEVICE_ADVICE: Final = {
    Use.COMMUNICATION: (
        "Overlap it with computation (prefetch, bucket sizes, another stream), or look for the rank "
        "that comes last: in a collective all others wait for it."
    ),
    Use.COPY: (
        "Copy from pinned memory on a stream of its own, one step ahead (pin_memory=True, "
        "non_blocking=True), or keep the data on the device."
    ),
    Use.HOST_AFTER_SYNC: (
        "Take the blocking calls out of the step: .item(), .cpu(), print of a tensor, "
        "torch.cuda.synchronize, copies from pageable memory."
    ),
    Use.HOST_DATA: "Give the data loader more workers, a prefetch factor and persistent workers.",
    Use.HOST_OPTIMIZER: "Use the fused or foreach form of the optimizer (fused=True).",
    Use.HOST_GC: "Collect garbage between steps only (gc.disable, gc.freeze, gc.collect).",
    Use.HOST_OPERATOR: (
        "Launch fewer, larger pieces of work: torch.compile, CUDA graphs, fused kernels, larger "
        "micro-batches; and a free CPU core for each rank. What computes on the CPU is better on the "
        "device, or ahead of the step."
    ),
    Use.HOST_PYTHON: "Keep Python off the critical path: torch.compile, CUDA graphs, less logging.",
    Use.HOST_CALL: (
        "Calls that load code or set up streams and events take long on first use only: trace later "
        "steps, or make them before the step."
    ),
    Use.HOST_SYSTEM: (
        "Look at what the call waits for: input (read, poll), a lock or another thread (futex, "
        "pthread_cond_wait, such as Python's own lock), or memory (mmap, ioctl)."
    ),
    Use.HOST_UNKNOWN: (
        "Put ranges (record_function, NVTX, ROCTX, mstx) around what the job does there, or look at it "
        "with a profiler of Python, such as py-spy."
    ),
    Use.RANK_WAIT: (
        "Send from device to device (NCCL instead of gloo or MPI through the host's memory), post "
        "receives ahead, or look for the rank that others wait for."
    ),
    Use.LAUNCH_CALL: "Fewer, larger kernels; CUDA or HIP graphs launch many with one call.",
    Use.LATENCY: (
        "A device takes some microseconds to start each kernel, launched just then or long before: "
        "fewer, larger kernels (fusion); CUDA or HIP graphs start them sooner."
    ),
    Use.EVENT_WAIT: "Look at which stream records the event, and whether the wait is needed.",
    Use.PAGES: (
        "Prefetch the memory that is used next (cudaMemPrefetchAsync), or keep it on the device."
    ),
    Use.UNTRACED: (
        "Look at what ran there: a copy, a CUDA graph, a host function, or work of another process."
    ),
    Use.SILENT: (
        "For so long nothing of the process is in the trace: its profiler may have been off (a "
        "schedule that waits, traces that were merged). Then give a trace for each time that it was "
        "on; if it was on, put ranges (record_function) around what the job does there."
    ),
    Use.UNLINKED: "Begin to trace earlier, so that the launches are in the trace too.",
}
"""What to do about what a class of time costs."""

DEVICE_HEADLINES: Final = {
    Use.COMMUNICATION: "Overlap or shorten communication.",
    Use.COPY: "Copy ahead, on a stream of its own.",
    Use.HOST_AFTER_SYNC: "Take blocking calls out of the step.",
    Use.HOST_OPTIMIZER: "Fuse the optimizer.",
    Use.HOST_GC: "Collect garbage between steps only.",
    Use.HOST_OPERATOR: "Launch larger pieces of work.",
    Use.HOST_PYTHON: "Keep Python off the critical path.",
    Use.HOST_CALL: "Set up ahead, or trace later steps.",
    Use.HOST_SYSTEM: "Do not wait in system calls.",
    Use.HOST_UNKNOWN: "Find out what the host does.",
    Use.RANK_WAIT: "Do not wait for other ranks on the host.",
    Use.LAUNCH_CALL: "Launch fewer, larger kernels.",
    Use.LATENCY: "Fuse short kernels.",
    Use.EVENT_WAIT: "Look at what streams wait for.",
    Use.PAGES: "Prefetch unified memory.",
    Use.UNTRACED: "Find out what runs untraced.",
    Use.SILENT: "Make sure that it was recorded.",
    Use.UNLINKED: "Trace the launches too.",
}
"""The same in a few words; that of `Use.HOST_DATA` is what ranks without a device's times have."""

SENTENCES: Final[dict[tuple[str, str], str]] = {
    ("verdict", "inherent"): (
        "Ranks are idle {rate_share} of the time, and all of it is inherent to {schedule}."
    ),
    ("advice", "inherent"): (
        "Only more micro-batches, fewer stages or another schedule would make it less "
        "(bubblescope whatif)."
    ),
    ("verdict", "causes"): (
        "Ranks are idle {rate_share} of the time: {inherent_share} of that is inherent to "
        "{schedule}, {other_share} is not."
    ),
    ("verdict", "causes_partial"): (
        "Ranks are idle {rate_share} of the time. Of {devices} devices, {missing} left no trace, so it "
        "does not show how much of that is waiting for them, and how much is inherent to {schedule}."
    ),
    ("verdict", "causes_partial_unrated"): (
        "Of {devices} devices, {missing} left no trace: how much of the idle time is waiting for them, "
        "and how much is inherent to {schedule}, is not known."
    ),
    ("verdict", "causes_unseen"): (
        "Ranks are idle {rate_share} of the time. The traces do not tell what all of them waited for, "
        "so it is not known how much of that is waiting for other ranks, and how much is inherent to "
        "{schedule}."
    ),
    ("verdict", "causes_unseen_unrated"): (
        "The traces do not tell what all ranks waited for: how much of the idle time is waiting for "
        "others, and how much is inherent to {schedule}, is not known."
    ),
    ("verdict", "first"): (
        "The first cause is {cause}: {idle_share} of the idle time ({idle_ns} over all ranks). "
        "Without it a step would be {saved_ns} ({saved_share}) shorter."
    ),
    ("verdict", "next"): (
        "Then {cause}: {idle_share} of the idle time ({idle_ns}); a step would be {saved_ns} "
        "({saved_share}) shorter."
    ),
    ("verdict", "first_hidden"): (
        "The first cause is {cause}: {idle_share} of the idle time ({idle_ns} over all ranks). To take "
        "away it alone would not make a step shorter: other causes keep ranks waiting."
    ),
    ("verdict", "next_hidden"): (
        "Then {cause}: {idle_share} of the idle time ({idle_ns}); without it alone, a step would not "
        "be shorter."
    ),
    ("verdict", "first_unknown"): (
        "The first cause is {cause}: {idle_share} of the idle time ({idle_ns} over all ranks). How "
        "long a step would be without it is not known."
    ),
    ("verdict", "next_unknown"): (
        "Then {cause}: {idle_share} of the idle time ({idle_ns}); how long a step would be without it "
        "is not known."
    ),
    ("verdict", "never_idle"): (
        "Ranks are never idle from the first forward to the last backward of a step."
    ),
    ("verdict", "not_idle"): (
        "Without {cause} a step would be {saved_ns} ({saved_share}) shorter, though no rank is idle "
        "for it."
    ),
    ("verdict", "inherent_unrated"): "All idle time of the ranks is inherent to {schedule}.",
    ("verdict", "causes_unrated"): (
        "Of the ranks' idle time, {inherent_share} is inherent to {schedule}, {other_share} is not."
    ),
    ("verdict", "no_pipeline"): (
        "Ranks are idle {rate_share} of the time from the first forward to the last backward of a "
        "step. The traces show no pipeline that another schedule would make faster."
    ),
    ("verdict", "no_pipeline_unrated"): (
        "The traces show no pipeline that another schedule would make faster."
    ),
    ("evidence", "no_wait"): (
        "What is inherent to {schedule} is {inherent_share} of the time. Replayed without waiting, the "
        "same tasks leave ranks idle {no_wait_share} of a shorter time (no wait, in the report): what "
        "is inherent, and what stages, ranks and micro-batches of unequal length add."
    ),
    ("evidence", "imbalance"): (
        "Stage {stage} takes {cost_ns} for a micro-batch, {mean_times} the mean of the stages "
        "({mean_ns})."
    ),
    ("advice", "imbalance"): (
        "Move layers away from it, or give embedding and head stages fewer of them."
    ),
    ("evidence", "slow_rank"): (
        "Rank {rank} is {slow_share} slower than a healthy rank at its stage, in {steps} of {of} "
        "steps."
    ),
    ("evidence", "slow_steps"): (
        "In {steps} of {of} steps rank {rank} took longer for the same work than in its others, "
        "{passing_share} on average."
    ),
    ("advice", "slow_steps"): (
        "Look at what is different in those steps: longer inputs, first use (loading, compiling, "
        "caches), other processes, or clocks that are lowered for a while."
    ),
    ("verdict", "waited_for"): (
        "Rank {rank} computes {slow_share} longer than a healthy rank at its stage, in {steps} of {of} "
        "steps. Others wait for it inside of their passes, so it shows as a heavy stage and as "
        "communication."
    ),
    ("advice", "slow_rank"): (
        "Look at its device: clock, temperature, power limit, other processes. If it stays slow, "
        "take it out."
    ),
    ("evidence", "slow_or_waits"): (
        "Tasks of rank {rank} take {slow_share} longer than those of a healthy rank at its stage, in "
        "{steps} of {of} steps. If collectives run inside of them, as FSDP's do, that is not told from "
        "waiting for another rank."
    ),
    ("advice", "slow_or_waits"): (
        "See which rank begins last, and how long collectives take: record them as tasks, or time the "
        "device (bubblescope record --timer cupti). Replace no device before."
    ),
    ("evidence", "slow_rank_alike"): (
        "No rank stands out: rank {rank} is the slowest, over the run {slow_share} slower than a "
        "healthy rank at its stage, in {steps} of {of} steps."
    ),
    ("advice", "slow_rank_alike"): (
        "Replace no device for this. Look at what happens in the steps in which a rank is slower: "
        "other processes, or clocks that are lowered for a while."
    ),
    ("evidence", "variation"): (
        "Tasks of one kind and stage spread by {spread_share} of their length (standard deviation); "
        "the furthest is {task}: {longest_ns} instead of {usual_ns}."
    ),
    ("evidence", "one_step"): (
        "Nothing in the trace shows where steps end: what counts as micro-batches of one step here may "
        "be steps of their own."
    ),
    ("advice", "variation"): (
        "Even out the micro-batches: pack sequences to equal cost, not equal number of tokens."
    ),
    ("advice", "variation_of_steps"): (
        "Each step is one micro-batch. Look at why the same work takes longer at times: inputs of "
        "unequal length, first use (loading, compiling), or what else runs on the machine."
    ),
    ("advice", "variation_alone"): (
        "Look at why the same work takes longer at times: inputs of unequal length, first use "
        "(loading, compiling), or what else runs on the machine."
    ),
    ("evidence", "order"): "{count} tasks ran out of order. The first: {first}.",
    ("advice", "order"): (
        "Compare the order that the job asked for with the schedule's; two streams or a late "
        "receive can swap tasks."
    ),
    ("evidence", "transfer"): (
        "Transfers take longest from rank {from} to rank {to}: {delay_ns} on average; "
        "the median of all links is {median_ns}."
    ),
    ("evidence", "transfer_alike"): (
        "All links take about as long: {median_ns} on average, and none more than {delay_ns}."
    ),
    ("advice", "transfer"): (
        "Send earlier or in the background, keep neighbouring stages on one machine, or look at a "
        "link that is slower than others."
    ),
    ("evidence", "pause"): (
        "The host paused before {count} tasks, {late_ns} in all, {pause_ns} of it for {pause}; "
        "{rank_ns} on rank {rank}, the longest before {task}: {longest_ns}."
    ),
    ("advice", "pause"): (
        "Let it run in the background, less often, or at the same time on all ranks."
    ),
    ("advice", "pause_gc"): (
        "Collect garbage at the same step on all ranks (gc.disable, gc.collect every so many steps)."
    ),
    ("advice", "unused_forward"): (
        "Look at why the job runs forwards that it does not use: it may try batches again, or leave "
        "out their backwards."
    ),
    ("evidence", "launch"): (
        "The host launched {count} tasks after they could have run, {late_ns} in all; {rank_ns} of it "
        "on rank {rank}, the longest before {task}: {longest_ns}."
    ),
    ("evidence", "host"): (
        "{host_share} of that, {host_ns}, is on {ranks} ranks of one host, {host}."
    ),
    ("advice", "launch"): (
        "The host is too slow for the device: larger micro-batches, CUDA graphs, fewer "
        "synchronisations, a free CPU core for each rank."
    ),
    ("evidence", "send"): (
        "Before {count} tasks their rank was still sending, {late_ns} in all; {rank_ns} of it on rank "
        "{rank}, the longest before {task}: {longest_ns}."
    ),
    ("advice", "send"): (
        "Look at why the receiver comes late; send in the background (isend, waited for before the "
        "buffer is used again)."
    ),
    ("evidence", "code"): (
        "{count} tasks could have begun earlier, {late_ns} in all, but their rank was in code outside "
        "of its tasks; {rank_ns} of it on rank {rank}, the longest before {task}: {longest_ns}."
    ),
    ("advice", "code"): (
        "Look at what the job does there (a profiler of Python, such as py-spy, shows it), or record "
        "it as a task; a rank without a CPU core of its own is slow in all of it."
    ),
    ("evidence", "sync"): (
        "{count} tasks started late while their rank was in a collective or the optimizer, "
        "{late_ns} in all; {rank_ns} of it on rank {rank}."
    ),
    ("advice", "sync"): (
        "Overlap collectives with forwards and backwards: gradient reduction, parameter gathering, the "
        "all-to-all of experts."
    ),
    ("advice", "sync_alone"): (
        "What the optimizer computes keeps the next forward waiting: use its fused or foreach form, or "
        "one that computes less."
    ),
    ("evidence", "unexplained"): (
        "{count} tasks started late, {late_ns} in all, for no reason that the trace shows; {rank_ns} "
        "of it on rank {rank}, the longest before {task}: {longest_ns}."
    ),
    ("evidence", "unexplained_partial"): (
        "{count} tasks started late, {late_ns} in all, and may have waited for what is in no trace "
        "here; {rank_ns} of it on rank {rank}, the longest before {task}: {longest_ns}."
    ),
    ("evidence", "unexplained_unseen"): (
        "{count} tasks started late, {late_ns} in all, and may have waited for other ranks; {rank_ns} "
        "of it on rank {rank}, the longest before {task}: {longest_ns}."
    ),
    ("advice", "unexplained"): (
        "A trace with host times (launches, garbage collection, data loading) would show it."
    ),
    ("advice", "unexplained_partial"): (
        "Give the traces of all devices: what ranks waited for on others is not in these."
    ),
    ("advice", "unexplained_unseen"): (
        "Give the traces of all ranks, with passes that tell their stages and micro-batches "
        "(`bubblescope record` marks them): then it shows what ranks waited for."
    ),
    ("evidence", "clock"): (
        "Clocks of different hosts may be off by {error_ns}; ranks used {early} results before they "
        "had arrived, by up to {early_ns}."
    ),
    ("evidence", "clock_unknown"): (
        "How far the clocks of different hosts are off is unknown; ranks used {early} results before "
        "they had arrived, by up to {early_ns}."
    ),
    ("evidence", "clock_alone"): (
        "Clocks of different hosts may be off by {error_ns}, and what looks like waiting may be that."
    ),
    ("evidence", "clock_unknown_alone"): (
        "How far the clocks of different hosts are off is unknown, and what looks like waiting may be "
        "that."
    ),
    ("advice", "clock"): (
        "Synchronise the clocks (PTP), or let bubblescope solve for them (--clock solve)."
    ),
    ("advice", "clock_solved"): (
        "Synchronise the clocks (PTP): they were corrected by what tasks wait for, which leaves that "
        "much open."
    ),
    ("verdict", "whole_step"): (
        "A step takes {step_ns} from its start to the next one's, the mean of all ranks; the "
        "pipeline phase, from first forward to last backward, is {phase_share} of that (its "
        "idle time is "
        "explained below)."
    ),
    ("evidence", "outside"): (
        "Rank {rank} spends {rank_ns} a step ({time_share}) {what}; the mean of all ranks is {mean_ns}."
    ),
    ("evidence", "outside_alone"): "Rank {rank} spends {rank_ns} a step ({time_share}) {what}.",
    ("advice", "checkpoint"): (
        "Write checkpoints in the background (torch.distributed.checkpoint.async_save), or less often."
    ),
    ("advice", "evaluation"): "Evaluate less often, on fewer batches, or in a job of its own.",
    ("advice", "no_task"): (
        "Look at what the job does there (logging, .item(), metrics; py-spy shows it), or record it as "
        "a task."
    ),
    ("advice", "receiving"): (
        "Ranks wait there for the first result of the step: look at what the first stage does before."
    ),
    ("verdict", "of_it"): "{inherent_tenth} is inherent to {schedule}, {other_tenth} is not.",
    ("verdict", "of_it_unrated"): (
        "{inherent_share} of the idle time is inherent to {schedule}, {other_share} is not."
    ),
    ("evidence", "hidden"): "Alone it gains nothing: other causes keep ranks waiting. {shown}",
    ("headline", "inherent"): "Change the schedule, or give it more micro-batches.",
    ("headline", "schedule"): "Change the schedule to {change}.",
    ("evidence", "schedule"): (
        "The same work would take {predicted_ns} of a step instead of {step_ns}, give or take "
        "{error_share}; that needs {needs}."
    ),
    ("evidence", "schedule_as_is"): (
        "The same work would take {predicted_ns} of a step instead of {step_ns}, give or take "
        "{error_share}."
    ),
    ("headline", "imbalance"): "Even out the stages.",
    ("headline", "slow_rank"): "Look at the device of rank {rank}.",
    ("headline", "slow_steps"): "Find out why some steps are slower.",
    ("headline", "slow_or_waits"): "Find out which rank the others wait for.",
    ("headline", "slow_rank_alike"): "Find out why ranks at one stage differ.",
    ("headline", "variation"): "Even out the micro-batches.",
    ("headline", "variation_alone"): "Find out why some tasks take longer.",
    ("headline", "variation_of_steps"): "Find out why some steps take longer.",
    ("headline", "order"): "Run tasks in the schedule's order.",
    ("headline", "transfer"): "Shorten or hide the transfers.",
    ("headline", "pause"): "Take pauses of the host out of the step.",
    ("headline", "launch"): "Launch work earlier.",
    ("headline", "send"): "Send in the background.",
    ("headline", "code"): "Keep other code off the critical path.",
    ("headline", "sync_alone"): "Shorten the optimizer.",
    ("headline", "sync"): "Overlap the collectives.",
    ("headline", "unexplained_partial"): "Give the traces of all devices.",
    ("headline", "unexplained_unseen"): "Give the traces of all ranks, with their stages.",
    ("headline", "unexplained"): "Record more, to know what this is.",
    ("headline", "clock"): "Synchronise the clocks.",
    ("headline", "clock_solved"): "Synchronise the clocks.",
    ("headline", "outside_alone"): "Look at what rank {rank} does beside the pipeline.",
    ("headline", "outside"): "Look at what rank {rank} does beside the pipeline.",
    ("headline", "host_data"): "Load data in the background.",
    ("headline", "checkpoint"): "Write checkpoints in the background.",
    ("headline", "evaluation"): "Evaluate less, or elsewhere.",
    ("headline", "pause_gc"): "Collect garbage at the same step on all ranks.",
    ("headline", "unused_forward"): "Take out forwards that are not used.",
    ("headline", "no_task"): "Take code that is not recorded out of the step.",
    ("headline", "receiving"): "Let the first stage begin earlier.",
    **{("headline", use.value): text for use, text in DEVICE_HEADLINES.items()},
    ("verdict", "device"): "{bound}: devices idle {idle_tenth}, of it {main_whole} {reason}.",
    ("verdict", "device_in_steps"): (
        "{bound}: in the steps, devices idle {idle_tenth}, of it {main_whole} {reason}. "
        "{outside_tenth} of the recording is in no whole step, and is left out."
    ),
    ("verdict", "busy"): "{bound}: devices are never idle.",
    ("verdict", "busy_outside"): "{bound}: devices are never idle outside of them.",
    ("verdict", "graphs"): (
        "For {graphs_tenth} of the time, devices ran CUDA graphs that were recorded in one piece: they "
        "may idle in them or wait for others, which counts as compute."
    ),
    ("verdict", "loss"): "{use}: {per_step_ns} a step and rank ({time_share}), {place}.",
    ("verdict", "loss_of_recording"): "{use}: {per_step_ns} of a rank's recording ({time_share}).",
    ("evidence", "loss"): "Of this time, {detail_share} is in {detail}.",
    ("evidence", "waiting"): (
        "In a collective all ranks end together. By {count} kernels that could be matched across "
        "ranks, at least {waiting_share} of this time is waiting for ranks that come later."
    ),
    ("evidence", "late_rank"): (
        "Rank {rank} comes {late_share} of the time later than half of the ranks, and last in {last} "
        "of its {of} collectives."
    ),
    ("evidence", "late_rank_by"): (
        "Rank {rank} comes {late_share} of the time later than half of the ranks, and last in {last} "
        "of its {of} collectives. On {loss}, it spends {longer_share} of the time more than they do."
    ),
    ("headline", "late_ranks"): "Find out why some ranks come late.",
    ("advice", "late_ranks"): (
        "Look at what those ranks do that others do not, and at their hosts: a collective ends once "
        "the last rank has come, and no overlap shortens that."
    ),
    ("evidence", "warm_up"): (
        "Step {step} takes {step_ns}, {factor_times} the median of the others, {others_ns}, as where "
        "code is loaded and memory is allocated first. It makes means over steps longer: leave it out "
        "with --steps."
    ),
    ("evidence", "loss_mostly"): (
        "Of this time, {detail_share} is in gaps that the host mostly spent in {detail}."
    ),
    ("evidence", "loss_after"): (
        "{detail} kept the host from launching for {detail_share} of this time at most, for it blocked "
        "no longer."
    ),
    ("evidence", "loss_then"): (
        "{then_share} of this time would be lost without blocking calls too: the host launched still "
        "later than they returned. {use}, for most of that."
    ),
    ("evidence", "slow_call"): (
        "Of this time, {slow_share} is in a single launch call, of {longest_ns}."
    ),
    ("evidence", "slow_calls"): (
        "Of this time, {slow_share} is in {count} launch calls of over a millisecond each, the longest "
        "of {longest_ns}."
    ),
    ("evidence", "long_calls"): (
        "Of this time, {long_share} is in launch calls of 100 us or longer, {count} in all."
    ),
    ("evidence", "slow_gap"): (
        "Of this time, {slow_share} is in a single gap, of {longest_ns}, and there are too few steps "
        "to tell whether it recurs."
    ),
    ("evidence", "slow_gaps"): (
        "Of this time, {slow_share} is in {count} gaps of over a millisecond each, the longest of "
        "{longest_ns}, and there are too few steps to tell whether they recur."
    ),
    ("evidence", "first_step"): (
        "Of this time, {first_share} is in step {step}, the first of the trace; of the others it takes "
        "{others_share} (median)."
    ),
    ("headline", "first_step"): "Leave the first step out, or warm up before it.",
    ("advice", "first_step"): (
        "Most of it is no cost of every step, but of the first, as where code is loaded or compiled, "
        "algorithms are tried or memory is allocated: leave that step out (--steps), or warm up before "
        "it."
    ),
    ("headline", "recurs"): "Trace later steps.",
    ("advice", "recurs"): (
        "An operator in which the device idles for milliseconds may be used for the first time (it "
        "loads, compiles, or tries algorithms), which is no cost of every step; or it computes on the "
        "CPU, or waits for it. See in a trace of later steps whether it does so again."
    ),
    ("headline", "compiling"): "Compile before the step.",
    ("advice", "compiling"): (
        "It compiles code, as on first use, which is no cost of every step: leave the first steps out "
        "of the trace, or warm up before them. If later steps compile again, look for inputs whose "
        "shapes change."
    ),
    **{("advice", use.value): text for use, text in DEVICE_ADVICE.items()},
    ("headline", "graphs"): "Trace what runs in CUDA graphs.",
    ("advice", "graphs"): (
        "nsys profile --cuda-graph-trace=node records the kernels of CUDA graphs; that takes more time "
        "in the job."
    ),
    ("headline", "host_unknown_option"): DEVICE_HEADLINES[Use.HOST_UNKNOWN],
    ("advice", "host_unknown_option"): "With {option}, a trace tells more of what the host does.",
    ("headline", "unlinked_option"): DEVICE_HEADLINES[Use.UNLINKED],
    ("advice", "unlinked_option"): "With {option}, a trace tells more of what launched the work.",
    ("headline", "first_use"): "Load kernels ahead, or trace later steps.",
    ("headline", "long_calls"): "See what launch calls wait for.",
    ("advice", "long_calls"): (
        "A launch takes some microseconds. Calls that take this long do something else as well: they "
        "wait for a lock that another thread holds, for room in a full queue of launches, or for the "
        "profiler; or they load a kernel on first use. Look at the host's other threads meanwhile; "
        "CUDA or HIP graphs are of help against many short launches."
    ),
    ("advice", "first_use"): (
        "A launch that takes as long as this loads or compiles its kernel, on first use, which is no "
        "cost of every step. Leave the first steps out of the trace, or load kernels ahead "
        "(CUDA_MODULE_LOADING=EAGER, or on AMD's GPUs HIP_ENABLE_DEFERRED_LOADING=0)."
    ),
    ("headline", "copies_at_once"): "Copy less, or beneath computation.",
    ("advice", "copies_at_once"): (
        "These copies run at the same time: without one of them the others would take as long. Copy "
        "less, or beneath computation, one step ahead, or keep the data on the device."
    ),
    ("headline", "copy_on_device"): "Copy less within devices.",
    ("advice", "copy_on_device"): (
        "Make fewer copies of tensors: one memory layout throughout (contiguous, channels last), "
        "views, operations in place, fused kernels."
    ),
    ("headline", "calls_of_memory"): "Keep memory, instead of freeing it.",
    ("advice", "calls_of_memory"): (
        "Allocating and freeing memory of the device waits for it, and takes long: leave PyTorch's "
        "caching allocator on (PYTORCH_NO_CUDA_MEMORY_CACHING), do not empty its cache in the step, "
        "and leave it room or expandable segments. If it is on first use only, trace later steps."
    ),
    ("headline", "compiled"): "Launch compiled code as CUDA graphs.",
    ("advice", "compiled"): (
        "The code is compiled, and launched late all the same: torch.compile's mode "
        '"reduce-overhead" launches it as CUDA graphs, and fewer graph breaks make fewer launches. If '
        "it is on first use, which compiles, trace later steps."
    ),
    ("headline", "gradients"): "Set gradients to None.",
    ("advice", "gradients"): (
        "Set gradients to None instead of filling them with zeros (zero_grad(set_to_none=True), "
        "which is the default since PyTorch 2.0)."
    ),
    ("headline", "copy_pinned"): "Copy ahead, on a stream of its own.",
    ("advice", "copy_pinned"): (
        "The memory is pinned already: copy on a stream of its own, one step ahead "
        "(non_blocking=True), or keep the data on the device."
    ),
    ("headline", "copy_between_devices"): "Copy less between devices.",
    ("advice", "copy_between_devices"): (
        "Copy ahead, on a stream of its own, or keep on one device what is used together."
    ),
}
"""By role and key of a finding; the fields are its values."""

USES: Final = {use: label[0].upper() + label[1:] for use, label in LABELS.items()}
"""Name of each class of time, as a sentence or heading."""

LOSSES: Final = dict(LABELS)
"""The same among others, in a table."""

BOUNDS: Final = {
    "compute": "Compute-bound",
    "graph": "In CUDA graphs whose kernels the trace does not show",
    "launch": "Launch-bound",
    "data": "Waiting for the data loader",
    "gc": "Held up by Python's garbage collection",
    "runtime": "Held up in calls of the device's runtime",
    "system": "Held up in calls of the operating system",
    "communication": "Communication-bound",
    "copy": "Copy-bound",
    "waiting": "Waiting for what the trace does not show",
}
"""What a run is bound by."""

REASONS: Final = {key: said for key, (_, said) in device_words.REASONS.items()}
"""Why devices are idle."""

PLACES: Final = {place: place for place in (INSIDE, BETWEEN, OUTSIDE, WHOLE)}
"""Where time is lost."""

PAUSES: Final = {"data": "data loading", "gc": "garbage collection"}
"""What a host pauses for; other pauses have names of their own."""

SPENT: Final = {
    "forward and backward": "in forwards and backwards",
    "optimizer": "in the optimizer",
    "garbage collection": "collecting garbage",
    "data loading": "waiting for data",
    "collectives": "in collectives",
    "receiving": "waiting to receive",
    "sending": "sending",
    "checkpoint": "writing checkpoints",
    "evaluation": "evaluating",
    "gradient clipping": "clipping gradients",
    "copy to device": "copying to the device",
    "forward without backward": "in forwards without a backward",
    "waiting for send": "waiting until sends are done",
    "in no task": "in code that is not recorded",
    "in no task, or waiting": "in code that is not recorded, or waiting for other ranks",
    "other tasks": "in other tasks",
}
"""What a rank is in."""

CAUSES: Final = {cause: (cause.value, MEANINGS[cause]) for cause in Cause}
"""Name and meaning of each cause."""

HEADINGS: Final = {
    "verdict": "verdict",
    "evidence": "evidence",
    "advice": "next step",
    "causes": "Why devices are idle",
    "whose_times": "note",
    "ranks": "Ranks",
    "gaps": "Longest gaps",
    "cause": "cause",
    "idle": "idle time",
    "share": "share",
    "cost": "costs a step",
    "last": "if removed",
    "meaning": "meaning",
    "rank": "rank",
    "other": "not inherent",
    "mostly": "mostly",
    "where": "where",
    "before": "before",
    "root": "waited for",
    "losses": "What makes a step long, for a rank",
    "losses_of_recording": "What makes the recording long, for a rank",
    "loss": "what",
    "time": "a step",
    "recorded": "time",
}
"""Headings of tables and columns."""

NOTES: Final = {
    "schedule": "the order that was measured",
    "times": "times",
    "task": "{label} of rank {rank} in step {step}",
    "bare_task": "{label} of rank {rank}",
    "rank": "rank {rank}",
    "more": "and {count} more; --all shows them",
    "kept": "and {count} more; `bubblescope why --steps` of some steps shows them",
    "outside": "{cause} before and after the pipeline phase: {idle_ns}",
    "step": "rank {rank}, step {step}",
    "replay": "replay: {mean} off the measured steps, {worst} at most",
    "doubt": "; times contradict the dependencies between tasks, so treat the causes with care",
    "left_out": "; it leaves out {count} results that ranks used before their task had begun",
    "part": "; costs of {steps} of {of} steps",
    "host_times": "times are the host's, not a device's: a task lasts for as long as the CPU was in "
    "it. If its work ran on a device, when that was busy or idle is not known",
    "mixed_times": "times of {ranks} are the host's, those of others a device's: tasks and idle times "
    "of the two do not compare",
    "unknown_times": "the traces do not state whether times of {ranks} are a device's or the host's",
}
"""What is printed beside the tables."""

_ONE: Final = re.compile(
    r"(?<![\d,.])1 (?:"
    r"(task|result|launch call|kernel|fill|graph|gap|call|range|operator|operation|job|transfer)s"
    r"|copies)\b"
)


def one(text: str) -> str:
    """Return a text in which what there is one of stands in the singular.

    >>> one("The host paused before 1 tasks, 5 ms in all; 21 tasks were late.")
    'The host paused before 1 task, 5 ms in all; 21 tasks were late.'
    >>> one("1 kernels, 11 fills, 1 copies")
    '1 kernel, 11 fills, 1 copy'
    """
    return _ONE.sub(lambda found: f"1 {found[1] or 'copy'}", text)
