"""Groups, operations and roles of communication kernels, from traces of every era."""

from __future__ import annotations

import csv
import struct
from collections import Counter

import polars as pl
import pytest

from bubblescope import Timeline
from bubblescope.analysis.arrivals import arrivals
from bubblescope.clocks import align
from bubblescope.model.budget import Use
from bubblescope.model.groups import GROUP_SCHEMA
from bubblescope.names.communication_kernels import communication_kernel
from bubblescope.render.text.stragglers import slowed
from bubblescope.sources import load
from kineto_maker import AUTOGRAD, MAIN, Trace
from nsight_maker import Export
from places import SHARED

REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECEIVE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
OLD_SEND_RECEIVE = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"
GRADIENT = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def group(name, ranks, description="undefined", backend="cuda:nccl"):
    """An entry of the header's pg_config."""
    return {
        "pg_name": name,
        "pg_desc": description,
        "backend_config": backend,
        "pg_size": len(ranks),
        "ranks": ranks,
    }


def collective(operation, name="0", ranks=(0, 1), description="undefined", **more):
    """What kernels say since 2024."""
    return {
        "Collective name": operation,
        "In msg nelems": 1024,
        "Out msg nelems": 1024,
        "Group size": len(ranks),
        "dtype": "BFloat16",
        "Process Group Name": name,
        "Process Group Description": description,
        "Process Group Ranks": str(list(ranks)),
    } | more


class Job:
    """One rank's trace, with work launched one after the other."""

    def __init__(self, groups=(), rank=0, world=4):
        info = {"backend": "nccl", "rank": rank, "world_size": world, "pg_config": list(groups)}
        self.trace = Trace(rank=rank, header={"distributedInfo": info})
        self.at = 1000

    def launch(self, name, *around, call=None, tid=MAIN, **args):
        """Launch a kernel within ranges, outermost first, and a call's operator, or none at all."""
        begin = self.at
        self.at += 1000
        for depth, outer in enumerate(around):
            category = "user_annotation" if self.is_annotation(outer) else "cpu_op"
            self.trace.event(category, outer, begin + depth, begin + 900 - depth, tid)
        if call is not None:
            self.trace.event("cpu_op", "record_param_comms", begin + 100, begin + 800, tid, **call)
        launched = {"at": begin + 500, "tid": tid}
        self.trace.kernel(begin + 100_000, begin + 100_700, name=name, **launched, **args)

    @staticmethod
    def is_annotation(name):
        return name.startswith(("nccl:", "FSDP", "Fully", "DistributedData", "## "))

    def call(self, parent=None, **args):
        """Call NCCL without launching anything."""
        begin = self.at
        self.at += 1000
        if parent:
            self.trace.event("cpu_op", parent, begin, begin + 900)
        self.trace.event("cpu_op", "record_param_comms", begin + 100, begin + 800, **args)

    def load(self, folder, **how):
        return load(self.trace.write(folder / "t.json", **how))


def told(timeline, *columns):
    columns = columns or ("operation", "group", "role", "peer")
    return timeline.operations.sort("start_ns").select(*columns).rows()


def roles(timeline):
    return {row["name"]: (row["role"], row["how"]) for row in timeline.groups.to_dicts()}


def test_kernels_with_arguments_are_of_the_groups_of_the_header(tmp_path):
    """The header may stand after the events: what it says is known at the end only."""
    job = Job([group("0", [0, 1, 2, 3], "default_pg"), group("2", [0, 2], "mesh_tp")])
    job.launch(REDUCE, **collective("allreduce", "2", (0, 2)))
    job.launch(GATHER, **collective("_allgather_base", "0", range(4), "default_pg"))
    job.launch(SEND_RECEIVE, **collective("all_to_all", "1", (0, 1), "EXPERT_MODEL_PARALLEL_GROUP"))
    job.launch(SEND_RECEIVE, **collective("send", "3", (0, 3), "mesh_pp", **{"Dst Rank": 3}))
    expected = [
        ("allreduce", "2", "tp", None),
        ("allgather", "0", "world", None),
        ("alltoall", "1", "ep", None),
        ("send", "3", "pp", 3),
    ]
    for how in ({}, {"sort_keys": True}):
        timeline = job.load(tmp_path, **how)
        assert told(timeline) == expected
        assert timeline.groups.sort("name").rows() == [
            ("0", [0, 1, 2, 3], 4, "world", "description", "default_pg", "cuda:nccl"),
            ("1", [0, 1], 2, "ep", "description", "EXPERT_MODEL_PARALLEL_GROUP", None),
            ("2", [0, 2], 2, "tp", "description", "mesh_tp", "cuda:nccl"),
            ("3", [0, 3], 2, "pp", "description", "mesh_pp", None),
        ]
    spent = timeline.budget.filter(use=Use.COMMUNICATION.value)
    assert Counter(spent["role"]) == Counter(["tp", "world", "ep", "pp"])
    assert dict(zip(spent["role"], spent["detail"], strict=True))["ep"] == "alltoall"


def test_ranks_agree_on_their_common_groups(tmp_path):
    paths = []
    for rank in range(4):
        mine = [rank % 2, rank % 2 + 2]
        job = Job([group("7", mine, "mesh_dp")], rank)
        job.launch(REDUCE, **collective("allreduce", "7", mine))
        paths.append(job.trace.write(tmp_path / f"{rank}.json"))
    timeline = load(*paths)
    assert timeline.groups["ranks"].to_list() == [[0, 2], [1, 3]]
    assert told(timeline, "role") == [("dp",)] * 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"Collective name": 7},
        {"Collective name": ["allreduce"]},
        {"Process Group Name": {"a": [1]}},
        {"Process Group Name": 3},
        {"Process Group Description": None},
        {"Process Group Ranks": [0, "x", None]},
        {"Process Group Ranks": "[0, 1"},
        {"Process Group Ranks": {"0": 1}},
        {"Group size": "many"},
        {"Group size": -4.5},
        {"Group size": True},
        {"Src Rank": "3", "Dst Rank": [1]},
        {"Src Rank": 1 << 70},
        {"Concrete Inputs": "none"},
        {"Concrete Inputs": [1, None, [], "x", {}, 2, 3, 4]},
        {"Rank": "x", "Global rank start": [], "Global rank stride": "x"},
    ],
)
def test_arguments_that_make_no_sense_cost_no_kernel(tmp_path, wrong):
    job = Job([group("0", [0, 1], "mesh_tp")])
    arguments = collective("allreduce") | wrong
    job.launch(REDUCE, call=arguments, **arguments)
    job.launch(REDUCE, **collective("allreduce"))
    timeline = job.load(tmp_path)
    assert not [one for one in timeline.run.warnings if one.code == "unreadable-events"]
    first, second = told(timeline)
    assert first[0] == "allreduce"  # by its name, if by nothing else
    assert second == ("allreduce", "0", "tp", None)
    assert first[2] in {"tp", None}


def test_lists_may_be_lists_and_numbers_texts(tmp_path):
    job = Job()
    values = {"Process Group Ranks": [2, 3], "Group size": "2", "Process Group Name": 5}
    job.launch(REDUCE, **collective("allreduce", description="mesh_cp") | values)
    timeline = job.load(tmp_path)
    assert timeline.groups.select("name", "ranks", "role").rows() == [("5", [2, 3], "cp")]


def test_a_description_that_kineto_left_out_is_mended(tmp_path):
    job = Job([group("0", [0, 1], "mesh_tp")])
    job.launch(REDUCE, **collective("allreduce", description="GONE"))
    job.launch(REDUCE, **collective("allreduce"))
    path = job.trace.write(tmp_path / "t.json")
    path.write_text(path.read_text().replace(' "GONE"', " "))
    timeline = load(path)
    assert told(timeline) == [("allreduce", "0", "tp", None)] * 2
    assert [one.code for one in timeline.run.warnings if one.code == "repaired-events"]


def inputs(sequence, pointer, size, *, tensors=True):
    """What `record_param_comms` recorded in PyTorch 2.1 and 2.2."""
    values = [str(sequence), str(pointer), "0", "", "[]", "[]", str(size)]
    return {"Concrete Inputs": [""] * tensors + values}


def test_groups_of_2023_are_told_by_the_inputs_of_the_operator(tmp_path):
    job = Job()
    for sequence in range(3):
        job.launch(REDUCE, "nccl:all_reduce", call=inputs(337 + sequence, 93825114103440, 4))
        job.call(**inputs(337 + sequence, 0, 1, tensors=False))  # waiting for it
    job.launch(REDUCE, call=inputs(5, 93825114999999, 2))
    job.launch(REDUCE, call=inputs(6, 93825114555555, 2))
    job.launch(REDUCE, call=inputs(5, 93825114777777, 1))
    job.launch(REDUCE)  # by something else
    timeline = job.load(tmp_path)
    assert told(timeline, "group") == [
        *[("4 ranks",)] * 3,
        ("2 ranks",),
        ("2 ranks (2)",),
        ("1 rank",),
        (None,),
    ]
    assert timeline.groups.sort("name").select("name", "ranks", "size", "role").rows() == [
        ("1 rank", [0], 1, None),
        ("2 ranks", None, 2, None),
        ("2 ranks (2)", None, 2, None),
        ("4 ranks", [0, 1, 2, 3], 4, None),
    ]


def test_before_that_only_annotations_tell_the_operation(tmp_path):
    job = Job()
    job.launch(OLD_SEND_RECEIVE, "nccl:all_to_all", call={})
    job.launch(OLD_SEND_RECEIVE, "nccl:_all_gather_base")
    job.launch(OLD_SEND_RECEIVE, "nccl:coalesced")
    job.launch(OLD_SEND_RECEIVE)
    timeline = job.load(tmp_path)
    assert told(timeline) == [
        ("alltoall", None, None, None),
        ("allgather", None, None, None),
        ("sendrecv", None, None, None),
        ("sendrecv", None, None, None),
    ]
    assert not timeline.groups.height
    assert dict(timeline.groups.schema) == GROUP_SCHEMA


def test_a_batch_carries_out_the_sends_and_receives_just_before(tmp_path):
    """A kernel that is launched after the operators have ended has no arguments."""

    def send(**more):
        return collective("send", "4", (1, 3, 5), "mesh_pp", **more)

    job = Job([group("4", [1, 3, 5], "mesh_pp")], rank=3, world=8)
    job.launch(REDUCE, **collective("allreduce", "9", (3, 4)))
    job.call(**send(Rank=2))
    job.launch(SEND_RECEIVE, "nccl:coalesced")
    job.call(**send(Rank=2))
    job.call(**send(Rank=0) | {"Collective name": "recv"})
    job.launch(SEND_RECEIVE, "nccl:coalesced")
    job.launch(SEND_RECEIVE, "nccl:coalesced")  # nothing is left for it
    job.call(**send(Rank=2))
    job.call(**collective("send", "9", (3, 4), Rank=1))
    job.launch(SEND_RECEIVE, "nccl:coalesced")  # of two groups
    job.call(**send(Rank=1))
    job.launch(REDUCE, call=collective("allreduce", "9", (3, 4)))  # what was called before is done
    job.launch(SEND_RECEIVE, "nccl:coalesced")
    assert told(job.load(tmp_path)) == [
        ("allreduce", "9", None, None),
        ("send", "4", "pp", 5),
        ("sendrecv", "4", "pp", None),
        ("sendrecv", None, None, None),
        ("send", None, None, None),
        ("allreduce", "9", None, None),
        ("sendrecv", None, None, None),
    ]


def test_a_batch_of_2023(tmp_path):
    job = Job()
    job.call("c10d::recv_", **inputs(1, 938251, 2))
    job.launch(SEND_RECEIVE, "nccl:coalesced")
    job.call("c10d::allreduce_", **inputs(1, 938251, 2))  # carries out nothing
    job.launch(SEND_RECEIVE)
    assert told(job.load(tmp_path), "operation", "group") == [
        ("recv", "2 ranks"),
        ("sendrecv", None),
    ]


def test_annotations_tell_roles(tmp_path):
    job = Job([group("0", [0, 1, 2, 3], "default_pg"), group("1", [0, 1]), group("2", [0, 2])])
    gather = collective("_allgather_base", "1", (0, 1))
    scatter = collective("_reduce_scatter_base", "1", (0, 1))
    reduce = collective("allreduce", "2", (0, 2))
    job.launch(GATHER, "FSDP::pre_forward (layers.0)", "FSDP::all_gather (layers.0)", **gather)
    job.launch(SCATTER, "FSDP::post_backward_reduce (layers.0)", tid=AUTOGRAD, **scatter)
    job.launch(REDUCE, "FSDP::post_backward_reduce (layers.0)", tid=AUTOGRAD, **reduce)
    # Of the same group, though nothing says so: gradients are clipped.
    job.launch(REDUCE, **collective("allreduce", "1", (0, 1)))
    # The default group is for anything.
    default = collective("allreduce", "0", range(4), "default_pg")
    job.launch(REDUCE, "_ReduceFromModelParallelRegion", **default)
    job.launch(REDUCE, **default)
    timeline = job.load(tmp_path)
    assert told(timeline, "group", "role") == [
        ("1", "fsdp"),
        ("1", "fsdp"),
        ("2", "dp"),
        ("1", "fsdp"),
        ("0", "tp"),
        ("0", "world"),
    ]
    assert roles(timeline) == {
        "0": ("world", "description"),
        "1": ("fsdp", "annotation"),
        "2": ("dp", "annotation"),
    }


def test_a_description_is_surer_than_an_annotation(tmp_path):
    job = Job([group("1", [0, 1], "mesh_dp_shard")])
    job.launch(REDUCE, "_ReduceFromModelParallelRegion", **collective("allreduce", "1"))
    timeline = job.load(tmp_path)
    assert told(timeline, "role") == [("fsdp",)]
    assert roles(timeline) == {"1": ("fsdp", "description")}


def test_annotations_that_contradict_each_other_give_a_group_no_role(tmp_path):
    job = Job([group("1", [0, 1])])
    job.launch(REDUCE, "_ReduceFromModelParallelRegion", **collective("allreduce", "1"))
    job.launch(GATHER, "FSDP::all_gather (a)", **collective("_allgather_base", "1"))
    job.launch(REDUCE, **collective("allreduce", "1"))
    timeline = job.load(tmp_path)
    assert told(timeline, "role") == [("tp",), ("fsdp",), (None,)]
    assert roles(timeline) == {"1": (None, None)}


@pytest.mark.parametrize("replicated", [True, False])
def test_gradients_are_reduced_among_replicas_if_the_job_has_them(tmp_path, replicated):
    job = Job()
    if replicated:
        job.trace.range("DistributedDataParallel.forward", 10, 500)
    job.launch(REDUCE, GRADIENT, "c10d::allreduce_", call={}, tid=AUTOGRAD)
    job.launch(GATHER, GRADIENT, call={}, tid=AUTOGRAD)
    job.launch(REDUCE, call={})
    assert told(job.load(tmp_path), "operation", "role") == [
        ("allreduce", "dp" if replicated else None),
        ("allgather", None),
        ("allreduce", None),
    ]


def test_kernels_without_a_launch_keep_what_they_say(tmp_path):
    job = Job([group("0", [0, 1], "mesh_tp")])
    job.trace.kernel(500_000, 500_100, at=None, name=REDUCE, **collective("allreduce"))
    job.trace.kernel(600_000, 600_100, at=None, name=REDUCE)
    job.call(**collective("allreduce"))
    assert told(job.load(tmp_path)) == [
        ("allreduce", "0", "tp", None),
        ("allreduce", None, None, None),
    ]


@pytest.mark.parametrize("info", [{"pg_config": 3}, {"pg_config": [None, 7, {}]}, {}])
def test_a_header_may_say_nothing_of_use(tmp_path, info):
    job = Job()
    job.trace.header = {"distributedInfo": {"rank": 0, **info}}
    job.launch(REDUCE, **collective("allreduce", description="mesh_tp"))
    assert told(job.load(tmp_path)) == [("allreduce", "0", "tp", None)]


# Nsight Systems

COMM, BYTES, PEER = "NCCL communicator ID", "Message size [bytes]", "Peer rank"
INIT, PLAIN, BETWEEN = (1 << 24) + 11, (1 << 24) + 5, (1 << 24) + 9
TP, PP = 0xFEDCBA9876543210, 0xABC


def payload(schema, layout, *values):
    data = struct.pack(layout, *values)
    return struct.pack("<QQQQ", 1, schema, len(data), 32 + len(data)) + data


def export(ranks=2):
    """An export with calls of two communicators, of which one is made while it runs."""
    made = Export()
    made.payload_schema(
        INIT, {COMM: (18, None), "No. of ranks": (5, 8), "Rank": (5, 12), "CUDA device": (5, 16)}
    )
    made.payload_schema(PLAIN, {COMM: (18, None), BYTES: (22, 8)})
    made.payload_schema(BETWEEN, {COMM: (18, None), BYTES: (22, 8), PEER: (5, 16)})
    for rank in range(ranks):
        process = made.process(100 + rank, rank)

        def called(name, start, end, blob=None, process=process):
            process.range(name, start, end, registered=True, payload=blob)

        called("ncclCommInitRankConfig", 0, 90, payload(INIT, "<Qiiii", TP, ranks, rank, rank, 0))
        process.range("FSDP::all_gather (layers.0), op_id = 7", 100, 200)
        called("ncclAllGather", 110, 190, payload(PLAIN, "<QQ", TP, 64))
        process.kernel(1000, 1100, at=150, name="ncclDevKernel_AllGather_RING_LL")
        called("ncclGroupStart", 300, 310)
        called("ncclSend", 320, 330, payload(BETWEEN, "<QQii", PP, 64, 1, 0))
        called("ncclGroupStart", 332, 334)
        called("ncclRecv", 340, 350, payload(BETWEEN, "<QQii", PP, 64, 1, 0))
        called("ncclGroupEnd", 352, 354)  # an inner one launches nothing
        called("ncclGroupEnd", 360, 400)
        process.kernel(2000, 2100, at=380, name="ncclDevKernel_SendRecv")
        called("ncclGroupStart", 500, 510)
        called("ncclSend", 520, 530, payload(BETWEEN, "<QQii", PP, 64, 1, 0))
        called("ncclSend", 540, 550, payload(BETWEEN, "<QQii", TP, 64, 1, 0))
        called("ncclGroupEnd", 560, 600)
        process.kernel(3000, 3100, at=580, name="ncclDevKernel_SendRecv")
        process.range("nccl:all_to_all, op_id = 9", 700, 800)
        process.kernel(4000, 4100, at=750, name="ncclDevKernel_SendRecv")
        process.kernel(5000, 5100, at=900, name="ncclDevKernel_AllReduce_Sum_f16_RING_LL")
    return made


def test_kernels_are_of_the_communicators_of_the_calls_that_launch_them(tmp_path):
    timeline = load(export().write(tmp_path / "a.sqlite"))
    for rank in range(2):
        mine = timeline.operations.filter(rank=rank).sort("start_ns")
        assert mine.select("operation", "group", "role").rows() == [
            ("allgather", hex(TP), "fsdp"),
            ("sendrecv", hex(PP), None),
            ("send", None, None),
            ("alltoall", None, None),
            ("allreduce", None, None),
        ]
    assert timeline.groups.sort("name").rows() == [
        (hex(PP), None, None, None, "communicator", None, "nccl"),
        (hex(TP), [0, 1], 2, "fsdp", "annotation", None, "nccl"),
    ]


def test_one_process_of_a_communicator_does_not_tell_its_ranks(tmp_path):
    made = export(1)
    for row in made.rows["NVTX_EVENTS"]:
        if row["binaryData"] and row["start"] == 0:
            row["binaryData"] = payload(INIT, "<Qiiii", TP, 8, 3, 0, 0)
    timeline = load(made.write(tmp_path / "a.sqlite"))
    assert timeline.groups.filter(name=hex(TP)).select("ranks", "size").rows() == [(None, 8)]


def test_a_capture_may_begin_within_a_group(tmp_path):
    made = Export()
    process = made.process(100)
    process.range("ncclGroupEnd", 10, 50, registered=True)
    process.kernel(1000, 1100, at=30, name="ncclDevKernel_SendRecv")
    process.range("ncclGroupStart", 100, 110, registered=True)
    process.range("ncclSend", 120, 130, registered=True)
    process.range("ncclGroupEnd", 140, 180, registered=True)
    process.kernel(2000, 2100, at=150, name="ncclDevKernel_SendRecv")
    process.range("ncclGroupEnd", 200, None, registered=True)
    timeline = load(made.write(tmp_path / "a.sqlite"))
    assert told(timeline) == [("sendrecv", None, None, None), ("send", None, None, None)]


def test_a_namespace_tells_a_library_where_the_bare_name_does_not(tmp_path):
    """Half of the kernels are not DeepEP's, though they are called the same."""
    made = Export()
    process = made.process(100)
    names = [
        ("dispatch", "void deep_ep::intranode::dispatch<(int)4, (int)768>(int4 *, float *)"),
        ("dispatch", "void moe::dispatch<(int)4>(int4 *)"),
        (
            "get_dispatch_layout",
            "void deep_ep::layout::get_dispatch_layout<(int)256>(long const *)",
        ),
        ("ncclDevKernel_AllReduce", "ncclDevKernel_AllReduce(ncclDevKernelArgsStorage<4096>)"),
    ]
    for index, (short, demangled) in enumerate(names):
        process.kernel(1000 * index, 1000 * index + 100, at=index * 10, name=short)
        made.rows["CUPTI_ACTIVITY_KIND_KERNEL"][-1]["demangledName"] = made.string(demangled)
    timeline = load(made.write(tmp_path / "a.sqlite"))
    assert told(timeline, "library", "operation", "start_ns") == [
        ("deep_ep", "alltoall", timeline.operations["start_ns"][0]),
        ("nccl", "allreduce", timeline.operations["start_ns"][0] + 3000),
    ]


# Real traces

GOLDEN = SHARED / "communication" / "golden.csv"
FILES = {
    "megatron_tp8_8rank": "communication/megatron_tp8_8rank/*.json.gz",
    "ulysses_fsdp_2rank": "communication/ulysses_fsdp_2rank/*.sqlite",
    "dlrm_ep_dp_rank3": "communication/dlrm_ep_dp_rank3/*.json.gz",
    "tp8_symm": "communication/tp8_symm/*.json.gz",
    "shared_nccl_data": "kineto/real/nccl_parser_config_nccl_data.json.gz",
    "shared_sampled128": "kineto/real/trace_filter_sampled_rank-*.json.gz",
}
KINDS = {"sendrecv": "sendrecv/alltoall"}
real = pytest.mark.skipif(not GOLDEN.exists(), reason="needs the shared traces")


@pytest.fixture(scope="module")
def timelines():
    return {label: load(*sorted(SHARED.glob(files))) for label, files in FILES.items()}


def figures(operations):
    """Return the number of operations, their exposed time in ns, and the percentage hidden."""
    exposed, hidden = operations["exposed_ns"].sum(), operations["hidden_ns"].sum()
    return operations.height, exposed, 100 * hidden / max(1, exposed + hidden)


@real
@pytest.mark.parametrize("label", FILES)
def test_exposed_and_hidden_time_are_those_of_the_golden_figures(timelines, label):
    timeline = timelines[label]
    named = {
        name: KINDS.get(found, found)
        for name in timeline.operations["name"].unique()
        if (found := communication_kernel(name).operation)
    }
    operations = timeline.operations.with_columns(
        kind=pl.col("name").replace_strict(named, default=None)
    )
    with GOLDEN.open() as file:
        rows = [row for row in csv.DictReader(file) if row["label"] == label]
    compared = 0
    for row in rows:
        if row["row"] == "matched":
            continue
        rank = int(row["rank"].removeprefix("dev"))
        chosen = operations.filter(rank=rank)
        if row["row"] != "total":
            chosen = chosen.filter(kind=row["row"].removeprefix("kind:"))
        count, exposed, hidden = figures(chosen)
        assert count == int(row["n"])
        assert exposed == pytest.approx(1000 * float(row["exposed_us"]), abs=count)
        assert hidden == pytest.approx(float(row["hidden_pct"]), abs=0.001)
        compared += 1
        if row["row"] == "total":
            budget = timeline.budget.filter(rank=rank)
            sums = dict(budget.group_by("use").agg(pl.col("spent_ns").sum()).iter_rows())
            assert sums[Use.COMMUNICATION.value] == exposed
            assert sums.get(Use.COMMUNICATION_HIDDEN.value, 0) == chosen["hidden_ns"].sum()
    assert compared >= 2


@real
def test_who_waits_for_whom_is_as_in_the_golden_figures(timelines):
    found = arrivals(timelines["megatron_tp8_8rank"])
    with GOLDEN.open() as file:
        rows = [row for row in csv.DictReader(file) if row["row"] == "matched"]
    rows = [row for row in rows if row["label"] == "megatron_tp8_8rank" and row["rank"] != "all"]
    assert found.height == len(rows) == 8
    for row, own in zip(rows, found.to_dicts(), strict=True):
        said = dict(pair.split("=") for pair in row["extra"].split())
        assert (own["rank"], own["collectives"]) == (int(row["rank"]), int(row["n"]))
        assert own["waits_ns"] == round(1000 * float(said["wait_us"]))
        # Who is last by less than kernels' ends are apart may as well be another.
        assert own["last"] <= int(said["last_to_start"])


@real
def test_late_ranks_are_those_that_wait_least_in_the_golden_figures(timelines):
    found = slowed(timelines["megatron_tp8_8rank"]).to_dict()
    with GOLDEN.open() as file:
        rows = [row for row in csv.DictReader(file) if row["row"] == "matched"]
    extra = {
        int(row["rank"]): dict(pair.split("=") for pair in row["extra"].split())
        for row in rows
        if row["label"] == "megatron_tp8_8rank" and row["rank"] != "all"
    }
    by_wait = sorted(extra, key=lambda rank: float(extra[rank]["wait_us"]))
    late = found["late_ranks"]
    assert [row["rank"] for row in late[:3]] == by_wait[:3] == [0, 6, 2]
    # Their devices idle longest: that golden figure is of a program apart.
    assert {row["class"] for row in late[:3]} == {"host_operator"}
    waits = {row["rank"]: row["waits_ns"] for row in found["collectives"]}
    assert waits == {rank: round(1000 * float(of["wait_us"])) for rank, of in extra.items()}


@real
def test_a_clock_that_is_seconds_off_changes_next_to_nothing(timelines):
    run = timelines["megatron_tp8_8rank"]
    ahead = pl.when(pl.col("rank") == 5).then(5_000_000_000).otherwise(0)
    moved = run.operations.with_columns(pl.col("start_ns", "end_ns") + ahead)
    off = arrivals(Timeline(run.tasks, run.ranks, run.run, **{**run.tables, "operations": moved}))
    true = arrivals(run)
    assert off["clock_ns"].to_list()[5] == pytest.approx(5_000_000_000, abs=50_000)
    for name in ("collectives", "last"):
        assert off[name].to_list() == true[name].to_list()
    for name in ("waits_ns", "late_ns"):
        # Ends are up to 49 us apart in each of 84 collectives.
        assert off[name].to_list() == pytest.approx(true[name].to_list(), abs=84 * 49_000)


@real
@pytest.mark.parametrize("ahead_ns", [5_000_000_000, 3_000_000])
@pytest.mark.parametrize("ppm", [0, 20])
def test_a_clock_that_is_off_is_put_back(timelines, ahead_ns, ppm):
    run = timelines["megatron_tp8_8rank"]
    begun = run.operations["start_ns"].min()

    def shown(frame):
        """Return a frame as it would be were the clock of rank 5 off."""
        off = ahead_ns + ((pl.all() - begun) * ppm / 1e6).round().cast(pl.Int64)
        times = [name for name in frame.columns if name in {"start_ns", "end_ns"}]
        moved = frame.select(times).select(pl.all() + off)
        return frame.with_columns(
            pl.when(pl.col("rank") == 5).then(moved[name]).otherwise(name).alias(name)
            for name in times
        )

    tables = {name: shown(frame) for name, frame in run.tables.items() if "rank" in frame.columns}
    found = align(
        Timeline(shown(run.tasks), run.ranks, run.run, **{**run.tables, **tables}), "auto"
    )
    most = found.ranks["clock_error_ns"].to_list()
    for name in ("tasks", "operations"):
        both = getattr(found, name), getattr(run, name)
        for column in ("start_ns", "end_ns"):
            off = (both[0][column] - both[1][column]).abs()
            assert (off <= both[0]["rank"].replace_strict(range(8), most)).all()
    assert off.max() < 60_000
    assert arrivals(found)["collectives"].to_list() == [84] * 8
    if not ppm:
        assert found.budget["spent_ns"].equals(run.budget["spent_ns"])
    assert align(run, "auto").ranks.equals(run.ranks)


@real
def test_two_of_many_ranks_do_not_tell_who_comes_last(timelines):
    assert not arrivals(timelines["shared_sampled128"]).height


@real
def test_megatron_of_2024_reduces_in_the_group_of_all_eight(timelines):
    timeline = timelines["megatron_tp8_8rank"]
    assert timeline.groups.rows() == [
        ("8 ranks", list(range(8)), 8, "tp", "annotation", None, None)
    ]
    every = timeline.operations.group_by("rank", "operation", "group", "role").len()
    assert sorted(every.rows()) == [(rank, "allreduce", "8 ranks", "tp", 84) for rank in range(8)]


@real
def test_symmetric_memory_has_no_group_but_a_purpose(timelines):
    timeline = timelines["tp8_symm"]
    every = timeline.operations.group_by("library", "operation", "group", "role").len()
    assert sorted(every.rows()) == [
        ("nccl", "allgather", "3", "tp", 1),
        ("torch symmetric memory", "allreduce", None, "tp", 73),
    ]
    assert timeline.groups.height == 15
    assert timeline.groups.filter(size=8).height == 7
    assert roles(timeline)["3"] == ("tp", "annotation")
    assert roles(timeline)["0"] == ("world", "description")


@real
def test_replicas_reduce_in_the_default_group(timelines):
    timeline = timelines["shared_nccl_data"]
    every = timeline.operations.group_by("operation", "group", "role").len()
    assert sorted(every.rows()) == [("allreduce", "0", "dp", 15), ("broadcast", "0", "world", 6)]
    assert timeline.groups.select("name", "ranks", "role").rows() == [("0", [0, 1], "world")]


@real
def test_without_any_metadata_annotations_tell_what_there_is(timelines):
    every = timelines["dlrm_ep_dp_rank3"].operations.group_by("operation", "role").len()
    assert sorted(every.rows(), key=str) == [("allreduce", "dp", 18), ("alltoall", None, 42)]
    every = timelines["shared_sampled128"].operations.group_by("rank", "operation", "role").len()
    assert sorted(every.rows(), key=str) == [
        (rank, operation, role, count)
        for rank in range(2)
        for operation, role, count in (
            ("allgather", None, 2),
            ("allreduce", "dp", 4),
            ("alltoall", None, 4),
        )
    ]


@real
def test_what_stands_around_calls_of_ulysses(timelines):
    """Two kernels have no known launch; the payloads of the calls were not exported."""
    every = timelines["ulysses_fsdp_2rank"].operations.group_by("rank", "operation", "group").len()
    assert sorted(every.rows(), key=str) == [
        (rank, operation, None, count)
        for rank in range(2)
        for operation, count in (("alltoall", 32), ("sendrecv", 1))
    ]
