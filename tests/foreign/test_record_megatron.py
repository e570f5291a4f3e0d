"""Recording Megatron-LM, Sail's zero-bubble fork and MindSpeed.

Where `megatron-core` is installed, a real pipeline of it runs, on CPUs. Otherwise stand-ins do, which
have the functions, parameters and calls of Megatron-LM at d98e8a6 (0.20), of zero-bubble at 39f2c18 and
of MindSpeed at 028de58, one rank after the other in this process, without the tensors.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types
from collections import Counter
from enum import Enum

import pytest

from bubblescope import sources
from bubblescope.model.kinds import Kind
from bubblescope.record import hooks, session
from bubblescope.record.buffer import identity_of
from bubblescope.record.integrations import megatron
from bubblescope.record.integrations.megatron import mindspeed, sail
from bubblescope.record.settings import Settings
from evaluating import check_evaluations, said_evaluations, stamped
from full import needs
from jobs import forked

STEPS = 2
RANKS = 3
M = 5

TRAIN = """
import hashlib, sys, time, warnings
warnings.simplefilter("ignore")
warnings.filterwarnings("default", "bubblescope")
import torch
from torch import distributed, nn

chunks, microbatches, overlap = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "overlap"
zeros, tensor = torch.zeros, torch.tensor  # Megatron asks for CUDA by name
torch.zeros = lambda *a, device=None, **k: zeros(*a, **k)
torch.tensor = lambda *a, device=None, **k: tensor(*a, **k)
torch.cuda.current_device = lambda: "cpu"
from megatron.core import parallel_state
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.enums import ModelType
from megatron.core.optimizer.optimizer import FP32Optimizer
from megatron.core.optimizer.optimizer_config import OptimizerConfig
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig

torch.set_num_threads(1)
distributed.init_process_group("gloo")
ranks = distributed.get_world_size()
virtual = chunks if chunks > 1 else None
parallel_state.initialize_model_parallel(1, ranks, virtual)
config = TransformerConfig(
    num_layers=ranks * chunks, hidden_size=8, num_attention_heads=1, use_cpu_initialization=True,
    pipeline_model_parallel_size=ranks, virtual_pipeline_model_parallel_size=virtual,
    pipeline_dtype=torch.float32, batch_p2p_comm=False, overlap_p2p_comm=overlap,
)

class Chunk(nn.Module):
    model_type = ModelType.encoder_or_decoder
    config = config

    def __init__(self, stage, vp_stage):
        super().__init__()
        torch.manual_seed(stage)
        self.layer, self.vp_stage, self.given = nn.Linear(8, 8), vp_stage, None

    def set_input_tensor(self, tensors):
        self.given = tensors[0]

    def forward(self, x):
        return torch.tanh(self.layer(x if self.given is None else self.given))

rank = parallel_state.get_pipeline_model_parallel_rank()
model = [Chunk(chunk * ranks + rank, chunk) for chunk in range(chunks)]
sgd = torch.optim.SGD([p for chunk in model for p in chunk.parameters()], lr=0.1)
optimizer = FP32Optimizer(sgd, OptimizerConfig(clip_grad=0.0), None)
data = torch.randn(microbatches, 4, 2, 8, generator=torch.Generator().manual_seed(5))

def forward_step(batches, chunk):
    def loss(output):
        return output.pow(2).mean(), {"loss": output.detach().pow(2).mean()}
    return chunk(next(batches)), loss

def run(forward_only):
    return get_forward_backward_func()(
        forward_step_func=forward_step, forward_only=forward_only,
        data_iterator=[iter(data) for _ in model] if virtual else iter(data),
        model=model if virtual else model[0], num_microbatches=microbatches,
        seq_length=4, micro_batch_size=2,
    )

digest = hashlib.sha256()
for step in range(2):
    losses, began = run(False), time.time_ns()
    losses += run(True)
    print(f"evaluated {rank} {step} {began} {time.time_ns()}\\n", end="", flush=True)
    for one in losses:
        digest.update(one["loss"].numpy().tobytes())
    optimizer.step()
    optimizer.zero_grad()
for chunk in model:
    for parameter in chunk.parameters():
        digest.update(parameter.detach().numpy().tobytes())
print(f"rank {rank} {digest.hexdigest()}\\n", end="", flush=True)
distributed.destroy_process_group()
"""


class Tensor:
    """Something that is sent and received."""


def counted(folder, kinds):
    """Return how often each (step, stage, micro-batch) was recorded."""
    tasks = sources.load(folder).tasks.to_dicts()
    return Counter(
        (task["step"], task["stage"], task["microbatch"])
        for task in tasks
        if task["kind"] in kinds.split()
    )


def pairs(folder):
    """Return how often each backward was recorded that is part of an overlapped forward."""
    tasks = sources.load(folder).tasks.to_dicts()
    return Counter(
        (task["step"], task["pair_stage"], task["pair_microbatch"])
        for task in tasks
        if task["kind"] == "forward_backward"
    )


def once(stages, microbatches):
    """Return what `counted` says if everything was recorded once."""
    return Counter(
        (step, stage, microbatch)
        for step in range(STEPS)
        for stage in range(stages)
        for microbatch in range(microbatches)
    )


def transfers_match(folder):
    """Say whether what one rank sends is what the other receives, of all micro-batches."""
    tasks = sources.load(folder).tasks.to_dicts()
    for what, way in (("forward", 1), ("backward", -1)):
        sent = Counter(
            (t["step"], t["stage"] + way, t["microbatch"], t["rank"], t["peer"])
            for t in tasks
            if t["kind"] == f"send_{what}"
        )
        received = Counter(
            (t["step"], t["stage"], t["microbatch"], t["peer"], t["rank"])
            for t in tasks
            if t["kind"] == f"recv_{what}"
        )
        if not sent or sent != received or set(sent.values()) != {1}:
            return False
    return True


@pytest.mark.parametrize(("chunks", "overlap"), [(1, "no"), (2, "no"), (2, "overlap")])
def test_megatron_itself(tmp_path, chunks, overlap):
    needs("megatron.core")
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    job = [*torchrun, str(script), str(chunks), "4", overlap]
    folder = tmp_path / "recording"
    record = [
        sys.executable,
        "-m",
        "bubblescope",
        "record",
        "--timer",
        "cpu",
        "--output",
        str(folder),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def run(command):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=900, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert "bubblescope stopped" not in done.stderr
        assert "bubblescope finds no" not in done.stderr
        lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
        return lines, said_evaluations(done.stdout)

    alone, _ = run(forked(2, "megatron.core", script, str(chunks), "4", overlap))
    assert len(alone) == 2
    recorded, evaluations = run([*record, "--", *job])
    assert recorded == alone

    # The evaluations, which are no steps, are not among them.
    assert counted(folder, "forward") == once(2 * chunks, 4)
    assert counted(folder, "backward") == once(2 * chunks, 4)
    assert transfers_match(folder)
    check_evaluations(sources.load(folder), evaluations)
    optimizers = sources.load(folder).tasks.to_dicts()
    assert sum(task["kind"] == "optimizer" for task in optimizers) == 2 * STEPS


PARALLEL_STATE = """
def get_pipeline_model_parallel_rank(): return RANK
def get_pipeline_model_parallel_world_size(): return RANKS
def get_pipeline_model_parallel_next_rank(): return (RANK + 1) % RANKS
def get_pipeline_model_parallel_prev_rank(): return (RANK - 1) % RANKS
def get_data_parallel_rank(): return 0
def get_tensor_model_parallel_rank(): assert False, "tensor model parallel group is not initialized"
def is_pipeline_first_stage(): return RANK == 0
def is_pipeline_last_stage(): return RANK == RANKS - 1
"""

P2P = """
class P2PCommunicator:
    def __init__(self, next_rank, prev_rank):
        self.next_rank, self.prev_rank = next_rank, prev_rank

    def _communicate(self, *, tensor_send_next, tensor_send_prev, recv_prev, recv_next, tensor_shape,
                     wait_on_reqs=True):
        return _communicate(
            tensor_send_next=tensor_send_next, tensor_send_prev=tensor_send_prev,
            recv_prev=recv_prev, recv_next=recv_next, tensor_shape=tensor_shape, config=None,
            wait_on_reqs=wait_on_reqs)

    def exchange(self, next=None, prev=None, recv_prev=False, recv_next=False):
        before, after, _ = self._communicate(
            tensor_send_next=next, tensor_send_prev=prev, recv_prev=recv_prev,
            recv_next=recv_next, tensor_shape=None)
        return before or after

def _communicate(*, tensor_send_next, tensor_send_prev, recv_prev, recv_next, tensor_shape, config,
                 wait_on_reqs=True):
    requests = {"recv_prev": Request(), "recv_next": Request(), "send_next": Request()}
    return (Tensor() if recv_prev else None, Tensor() if recv_next else None,
            None if wait_on_reqs else requests)
"""

SCHEDULES = """
def get_forward_backward_func(pp_size=None, vp_size=None):
    return forward_backward_pipelining_without_interleaving

def forward_step(forward_step_func, data_iterator, model, num_microbatches, input_tensor,
                 forward_data_store, config, cp_group_size, collect_non_loss_data=False,
                 checkpoint_activations_microbatch=None, is_first_microbatch=False,
                 current_microbatch=None, vp_stage=None, is_last_stage=True):
    return forward_step_func(data_iterator, model), 0

def backward_step(input_tensor, output_tensor, output_tensor_grad, config):
    return [Tensor()]

def forward_backward_pipelining_without_interleaving(
        *, forward_step_func, data_iterator, model, num_microbatches, seq_length=1,
        micro_batch_size=1, forward_only=False):
    rank, ranks = parallel.RANK, parallel.RANKS
    p2p = P2PCommunicator((rank + 1) % ranks, (rank - 1) % ranks)
    first, last = rank == 0, rank == ranks - 1
    outputs = []

    def forward():
        received = None if first else p2p.exchange(recv_prev=True)
        output, _ = forward_step(forward_step_func, data_iterator, model, num_microbatches, received,
                                 [], None, None)
        outputs.append(output)
        return output

    def backward(gradient):
        gradient = backward_step([None], outputs.pop(0), [gradient], None)
        if not first:
            p2p.exchange(prev=gradient[0])

    for _ in range(warm := min(ranks - rank - 1, num_microbatches)):
        p2p.exchange(next=forward()[0])
    if forward_only:
        return []
    for _ in range(num_microbatches - warm):
        output = forward()
        backward(None if last else p2p.exchange(next=output[0], recv_next=True))
    for _ in range(warm):
        backward(p2p.exchange(recv_next=True))
    return ["loss"]

def forward_backward_no_pipelining(
        *, forward_step_func, data_iterator, model, num_microbatches, seq_length=1,
        micro_batch_size=1, forward_only=False):
    made = None
    for number in range(num_microbatches + 1):
        made, _, _ = combined_forward_backward_step(
            forward_step_func, data_iterator, model if number < num_microbatches else None,
            num_microbatches, None, [], model if number else None, [None], made, [None], None)
    return ["loss"]

forward_backward_pipelining_with_interleaving = forward_backward_no_pipelining
"""

COMBINED = """
def combined_forward_backward_step(
        forward_step_func, data_iterator, f_model, num_microbatches, input_tensor,
        forward_data_store, b_model, b_input_tensor, b_output_tensor, b_output_tensor_grad, config,
        f_model_chunk_id=None, pre_forward=None, pre_backward=None, post_forward=None,
        post_backward=None, collect_non_loss_data=False, checkpoint_activations_microbatch=None,
        is_first_microbatch=False, current_microbatch=None, encoder_decoder_xattn=False):
    output = None if f_model is None else forward_step_func(data_iterator, f_model)
    return output, 0, None if b_model is None else [Tensor()]
"""

OPTIMIZERS = """
class MegatronOptimizer:
    pass

class FP32Optimizer(MegatronOptimizer):
    def step(self):
        return inner()

class ChainedOptimizer(MegatronOptimizer):
    def __init__(self, chained_optimizers):
        self.chained_optimizers = chained_optimizers

    def step(self):
        return [optimizer.step() for optimizer in self.chained_optimizers]
"""

RUNTIME = """
class WeightGradStore:
    queue = []

    @classmethod
    def pop(cls, chunk=0, seq_split_idx=0):
        cls.queue.remove(chunk)

    @classmethod
    def clear(cls, model, chunk=0, seq_split_idx=0):
        cls.queue[:] = [one for one in cls.queue if one != chunk]

def get_args():
    return Arguments(enable_zero_bubble=True)

class TrainingIteration:
    def run(self, conf):
        self.conf, self.states = conf, Arguments(communication_batch={"SEND_NEXT": [], "SEND_PREV": []})
        for at, node in enumerate(conf["schedule"]):
            kind = node.type.value
            if kind == "F":
                self.schedule_f_impl(node)
            elif kind in ("B", "BW"):
                self.schedule_b_impl(node)
                WeightGradStore.queue += [node.chunk] * (kind == "B")
            elif kind == "W":
                self.schedule_w(node, any(n.type.value != "W" for n in conf["schedule"][at:]))
            elif kind == "R":
                self.schedule_r(node)
            else:
                self.states.communication_batch[node.way].append((node, None))
                self.flush()
        assert not WeightGradStore.queue
        return ["loss"]

    def schedule_f_impl(self, node):
        output, _ = forward_step(self.conf["forward_step_func"], None, self.conf["model"][node.chunk],
                                 0, [None], [], None, False)

    def schedule_b_impl(self, node):
        assert backward_step([None], [Tensor()], [None], None)

    def schedule_r(self, node):
        pass

    def schedule_w(self, node, pending):
        if pending:
            WeightGradStore.pop(chunk=node.chunk, seq_split_idx=node.seq_split_idx)
        else:
            WeightGradStore.clear(None, chunk=node.chunk, seq_split_idx=node.seq_split_idx)

    def flush(self):
        for way in self.states.communication_batch.values():
            way.clear()

class SchedNodeRuntime:
    done = 0

    def __call__(self, *args, **kwargs):
        nodes, cls = kwargs["schedule"], SchedNodeRuntime
        if kwargs.pop("optimizer", None) is not None:  # what can run before the step is validated
            cls.done = 2
            return TrainingIteration().run({**kwargs, "schedule": nodes[:2]})
        done, cls.done = cls.done, 0
        return TrainingIteration().run({**kwargs, "schedule": nodes[done:]})

def get_zero_bubble_forward_backward_func():
    def wrap_schedule(**kwargs):
        return SchedNodeRuntime()(schedule=nodes(), **kwargs)
    return wrap_schedule
"""

DUALPIPEV = """
def _transfer(output_tensor, model_chunk_id, forward, receives):
    down = (model_chunk_id == 0) == forward
    return _communicate(
        tensor_send_next=output_tensor if down else None,
        tensor_send_prev=None if down else output_tensor,
        recv_prev=receives == "prev", recv_next=receives == "next", tensor_shape=None, config=None)

def recv_forward(tensor_shape, config, model_chunk_id, async_op=False):
    ends = is_pipeline_first_stage() if model_chunk_id == 0 else is_pipeline_last_stage()
    return None if ends else _transfer(None, model_chunk_id, True, ("prev", "next")[model_chunk_id])

def recv_backward(tensor_shape, config, model_chunk_id, async_op=False):
    ends = is_pipeline_last_stage() if model_chunk_id == 0 else is_pipeline_first_stage()
    return None if ends else _transfer(None, model_chunk_id, False, ("next", "prev")[model_chunk_id])

def send_forward(output_tensor, tensor_shape, config, model_chunk_id, async_op=False):
    ends = is_pipeline_last_stage() if model_chunk_id == 0 else is_pipeline_first_stage()
    return None if ends else _transfer(output_tensor, model_chunk_id, True, None)

def send_backward(input_tensor_grad, tensor_shape, config, model_chunk_id, async_op=False):
    ends = is_pipeline_first_stage() if model_chunk_id == 0 else is_pipeline_last_stage()
    return None if ends else _transfer(input_tensor_grad, model_chunk_id, False, None)

def send_forward_recv_forward(output_tensor, tensor_shape, config, model_chunk_id, async_op=False):
    send_forward(output_tensor, tensor_shape, config, model_chunk_id)
    return recv_forward(tensor_shape, config, model_chunk_id)

def send_forward_recv_slave_forward(output_tensor, tensor_shape, config, model_chunk_id,
                                    async_op=False):
    if is_pipeline_last_stage() if model_chunk_id == 0 else is_pipeline_first_stage():
        return None
    return _transfer(output_tensor, model_chunk_id, True, ("next", "prev")[model_chunk_id])

def forward_step_no_model_graph(forward_step_func, model_chunk_id, data_iterator, model,
                                num_microbatches, input_tensor, forward_data_store, config,
                                current_microbatch=None):
    return forward_step_func(data_iterator, model), 0

def forward_step_with_model_graph(forward_step_func, model_chunk_id, data_iterator, model,
                                  num_microbatches, input_tensor, forward_data_store, config,
                                  current_microbatch=None, extra_block_kwargs=None):
    output = forward_step_func(data_iterator, model)[0]
    if extra_block_kwargs is None:
        return (output, "graph"), 0
    for params in ("pp_comm_params", "bwd_pp_comm_params"):
        for request in p2p_comm_helper(extra_block_kwargs[params], Tensor())[1].values():
            request.wait()
    WeightGradStore.pop()
    return (output, "graph", "received"), 0

def backward_step_with_model_graph(input_tensor, output_tensor, output_tensor_grad, model_type,
                                   config, model_graph=None):
    WeightGradStore.cache += [1] * WeightGradStore.is_decoupleBlock
    return Tensor()

def forward_backward_pipelining_with_cutinhalf(
        *, forward_step_func, data_iterator, model, num_microbatches, seq_length=1,
        micro_batch_size=1, forward_only=False):
    outputs = [[], []]

    def forward(chunk, overlapped=None):
        made, _ = forward_step_with_model_graph(
            forward_step_func, chunk, None, model[chunk], num_microbatches, None, [], None,
            extra_block_kwargs=overlapped)
        outputs[chunk].append(made[0])
        if overlapped is not None:
            outputs[1 - chunk].pop(0)
        return made[0]

    def head(chunk):
        if is_pipeline_first_stage() and chunk == 1:
            backward_step_with_model_graph(None, outputs[1][0], None, None, None, None)

    for chunk in range(2):  # the first micro-batch, all the way
        recv_forward(None, None, chunk)
        send_forward(forward(chunk), None, None, chunk)
    gradient = recv_backward(None, None, 1)
    for number in range(1, num_microbatches):
        if number == 1:
            recv_forward(None, None, 0)
        for chunk in range(2):  # from now on, each with a backward of the other chunk
            head(1 - chunk)
            more = chunk == 0 or number < num_microbatches - 1
            ends = is_pipeline_last_stage() if chunk == 0 else is_pipeline_first_stage()
            way = {} if ends else {"next" if chunk == 0 else "prev": True}
            overlapped = {
                "pp_comm_params": Arguments(sends=way, receives=way if more else {}),
                "bwd_pp_comm_params": Arguments(sends=way, receives=way),
            }
            forward(chunk, overlapped)
    for chunk in (1, 0):  # the last micro-batch, back
        head(chunk)
        WeightGradStore.start_decouple()
        gradient = backward_step_with_model_graph(
            None, outputs[chunk].pop(0), gradient, None, None, "graph")
        WeightGradStore.end_decouple()
        if chunk == 1 and not is_pipeline_last_stage():
            gradient = send_forward_recv_slave_forward(gradient, None, None, 0)
        elif chunk == 0:
            send_backward(gradient, None, None, 0)
        WeightGradStore.pop()
    WeightGradStore.pop()
    return ["loss"]
"""

HELPER = """
def p2p_comm_helper(comm_params, tensor_tosend):
    if comm_params.sends or comm_params.receives:
        before, after, requests = p2p_communication._communicate(
            tensor_send_next=tensor_tosend if "next" in comm_params.sends else None,
            tensor_send_prev=tensor_tosend if "prev" in comm_params.sends else None,
            recv_prev="prev" in comm_params.receives, recv_next="next" in comm_params.receives,
            tensor_shape=None, wait_on_reqs=False, config=None)
        return before or after, requests
    return None, {}
"""

STORE = """
class WeightGradStore:
    cache = []
    is_decoupleBlock = False

    @classmethod
    def start_decouple(cls):
        cls.is_decoupleBlock = True

    @classmethod
    def end_decouple(cls):
        cls.is_decoupleBlock = False

    @classmethod
    def pop(cls, experts_only=False):
        cls.cache.clear()
"""


class Request:
    known = 1

    def wait(self):
        return True


class Frameworks:
    """The stand-ins of one rank, recorded; what is imported from one to the other is so after that."""

    def __init__(self, monkeypatch, folder, rank, ranks=RANKS):
        settings = Settings(out=str(folder), timer="cpu")
        monkeypatch.setenv("RANK", str(rank))
        self.monkeypatch = monkeypatch
        self.session = session.begin(settings)
        self.parallel = self.module("parallel_state", PARALLEL_STATE, RANK=rank, RANKS=ranks)
        monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", self.parallel)
        self.p2p = self.module("p2p_communication", P2P)
        megatron.p2p(self.p2p, self.session)
        self.combined = self.module("combined_1f1b", COMBINED)
        megatron.combined(self.combined, self.session)
        self.schedules = self.module(
            "schedules", SCHEDULES, self.p2p, self.combined, parallel=self.parallel
        )

    def module(self, name, source, *imported, **names):
        made = types.ModuleType(name)
        known = {"Tensor": Tensor, "Request": Request, "Arguments": types.SimpleNamespace}
        for other in imported:
            known |= {key: one for key, one in vars(other).items() if not key.startswith("__")}
        vars(made).update(known | names)
        exec(compile(source, name, "exec"), vars(made))
        return made

    def train(self, run, chunks=1, forward=lambda *_: [Tensor()], **said):
        model = [Model() for _ in range(chunks)]
        done = run(
            forward_step_func=forward,
            data_iterator=None,
            model=model,
            num_microbatches=M,
            **said,
        )
        if not said.get("forward_only"):
            assert done == ["loss"]


class Model:
    def parameters(self):
        return iter(())


@pytest.fixture(autouse=True)
def _close():
    yield
    session.begin(Settings(out="")).close()


@pytest.mark.parametrize("old", [False, True])
def test_a_pipeline_of_the_stand_in(monkeypatch, tmp_path, old):
    for rank in range(RANKS):
        frameworks = Frameworks(monkeypatch, tmp_path, rank)
        if old:  # before 0.14: functions instead of a class
            plain = frameworks.module("p2p_communication", P2P)
            classless = plain.P2PCommunicator
            del plain.P2PCommunicator
            megatron.p2p(plain, frameworks.session)
            frameworks.schedules.P2PCommunicator = classless
        megatron.schedules(frameworks.schedules, frameworks.session)
        for _ in range(STEPS):
            frameworks.train(frameworks.schedules.get_forward_backward_func())
            frameworks.train(frameworks.schedules.get_forward_backward_func(), forward_only=True)
        frameworks.session.close()
    assert counted(tmp_path, "forward") == once(RANKS, M)
    assert counted(tmp_path, "backward") == once(RANKS, M)
    assert transfers_match(tmp_path)
    run = sources.load(tmp_path).run
    assert (run.schedule, run.microbatches) == ("1f1b", M)


def test_an_evaluation_is_a_task_of_the_step_that_it_follows(monkeypatch, tmp_path):
    stamps = []
    for rank in range(RANKS):
        frameworks = Frameworks(monkeypatch, tmp_path, rank)
        megatron.schedules(frameworks.schedules, frameworks.session)

        def evaluate(after, forward, rank=rank, frameworks=frameworks):
            def run():
                schedule = frameworks.schedules.get_forward_backward_func()
                frameworks.train(schedule, forward=forward, forward_only=True)

            stamps.append(stamped(run, rank, after))

        evaluate(None, lambda *_: [time.sleep(0.01), Tensor()][1:])
        for step in range(STEPS):
            frameworks.train(frameworks.schedules.get_forward_backward_func())
            evaluate(step, lambda *_: [time.sleep(0.01), Tensor()][1:])
            evaluate(step, lambda *_: time.sleep(0.01) or 1 / 0)
        frameworks.session.close()
    timeline = sources.load(tmp_path)
    check_evaluations(timeline, stamps)
    assert timeline.steps == list(range(STEPS))
    assert counted(tmp_path, "forward") == once(RANKS, M)
    assert transfers_match(tmp_path)


def test_a_forward_and_a_backward_at_once(monkeypatch, tmp_path):
    frameworks = Frameworks(monkeypatch, tmp_path, 0, ranks=1)
    megatron.schedules(frameworks.schedules, frameworks.session)
    for _ in range(STEPS):
        frameworks.train(frameworks.schedules.forward_backward_no_pipelining)
    frameworks.session.close()
    assert counted(tmp_path, "forward forward_backward") == once(1, M)
    assert pairs(tmp_path) + counted(tmp_path, "backward") == once(1, M)
    assert set(pairs(tmp_path)) == {(step, 0, m) for step in range(STEPS) for m in range(M - 1)}


def test_gradients_and_optimizers(monkeypatch, tmp_path):
    frameworks = Frameworks(monkeypatch, tmp_path, 0, ranks=1)
    record = frameworks.session
    megatron.schedules(frameworks.schedules, record)
    reduction = frameworks.module("finalize_model_grads", "def finalize_model_grads(model): pass")
    megatron.gradients(reduction, record)
    # As PyTorch's own, which is inside.
    inner = record.timed(lambda: True, lambda: identity_of(Kind.OPTIMIZER))
    optimizers = frameworks.module("optimizer", OPTIMIZERS, inner=inner)
    megatron.optimizer(optimizers, record)
    chained = optimizers.ChainedOptimizer([optimizers.FP32Optimizer(), optimizers.FP32Optimizer()])
    for _ in range(STEPS):
        frameworks.train(frameworks.schedules.get_forward_backward_func())
        reduction.finalize_model_grads(None)
        assert chained.step() == [True, True]
    record.close()
    once_each = Counter({(step, None, None): 1 for step in range(STEPS)})
    for kind in ("collective", "optimizer"):
        tasks = sources.load(tmp_path).tasks.to_dicts()
        found = Counter((t["step"], None, None) for t in tasks if t["kind"] == kind)
        assert found == once_each


@pytest.mark.parametrize("named", [False, True])
def test_what_is_waited_for_later_is_received_then(monkeypatch, tmp_path, named):
    frameworks = Frameworks(monkeypatch, tmp_path, 1)
    requests = {"send_next": Request(), "recv_prev": Request()}
    source = (
        SCHEDULES
        + """
def forward_backward_no_pipelining(*, model, num_microbatches, **said):
    for _ in range(num_microbatches):
        output, _ = forward_step(lambda *_: Tensor(), None, model[0], 1, None, [], None, None)
        _, _, requests = communicate(tensor_send_next=output, tensor_send_prev=None, recv_prev=True,
                                     recv_next=False, tensor_shape=None, wait_on_reqs=False)
        for request in requests.values() if isinstance(requests, dict) else requests:
            assert request.wait()
            assert request.known == 1
    return ["loss"]
"""
    )
    module = frameworks.module(
        "schedules",
        source,
        frameworks.combined,
        communicate=megatron.pipeline_of(frameworks.session).communicating(
            lambda **_: (None, None, requests if named else list(requests.values()))
        ),
    )
    megatron.schedules(module, frameworks.session)
    for _ in range(STEPS):
        frameworks.train(module.forward_backward_no_pipelining)
    frameworks.session.close()
    expected = Counter(one for one in once(RANKS, M) if one[1] == 1)
    for kind in ("forward", "send_forward", "recv_forward"):
        assert counted(tmp_path, kind) == expected


def test_a_version_without_a_function_is_one_warning(monkeypatch, tmp_path):
    frameworks = Frameworks(monkeypatch, tmp_path, 0, ranks=1)
    module = frameworks.schedules
    step = module.backward_step
    del module.backward_step, module.get_forward_backward_func
    with pytest.warns(
        RuntimeWarning, match="no get_forward_backward_func, backward_step"
    ) as warned:
        megatron.schedules(module, frameworks.session)
    assert len(warned) == 1
    module.backward_step = step
    for _ in range(STEPS):
        frameworks.train(module.forward_backward_pipelining_without_interleaving)
    frameworks.session.close()
    assert counted(tmp_path, "forward") == once(1, M)
    assert not counted(tmp_path, "backward")


def test_what_cannot_be_understood_stops_the_recording_only(monkeypatch, tmp_path):
    frameworks = Frameworks(monkeypatch, tmp_path, 0, ranks=1)
    megatron.schedules(frameworks.schedules, frameworks.session)
    frameworks.train(frameworks.schedules.forward_backward_pipelining_without_interleaving)
    frameworks.parallel.get_pipeline_model_parallel_rank = None
    with pytest.warns(RuntimeWarning, match="training goes on") as warned:
        for _ in range(STEPS):
            frameworks.train(frameworks.schedules.forward_backward_pipelining_without_interleaving)
    assert len(warned) == 1


class Type(Enum):
    F = "F"
    B = "B"
    BW = "BW"
    W = "W"
    R = "R"
    SEND_FORWARD = "SEND_FORWARD"
    SEND_BACKWARD = "SEND_BACKWARD"


def zero_bubble(rank, slices):
    """Return nodes of a V: all forwards, then all backwards, and the last weights at once."""
    nodes = []

    def add(kind, chunk, microbatch, piece, receives=None, sends=None):
        node = types.SimpleNamespace(
            type=Type[kind],
            stage=rank,
            chunk=chunk,
            microbatch=microbatch,
            seq_split_idx=piece,
            layer_group_idx=rank if chunk == 0 else 2 * RANKS - 1 - rank,
            recv_peer_stage=receives if receives in range(RANKS) else None,
            way="SEND_NEXT" if sends == rank + 1 else "SEND_PREV",
        )
        if not kind.startswith("SEND") or sends in range(RANKS):
            nodes.append(node)

    pieces = [(m, piece) for m in range(M) for piece in range(slices)]
    for chunk, down in ((0, 1), (1, -1)):
        for m, piece in pieces:
            add("F", chunk, m, piece, rank - down)
            add("SEND_FORWARD", chunk, m, piece, sends=rank + down)
    for chunk, up in ((1, 1), (0, -1)):
        for m, piece in pieces:
            add("R", chunk, m, piece)
            # The first is not split.
            add("BW" if m == 0 else "B", chunk, m, piece, rank - up)
            add("SEND_BACKWARD", chunk, m, piece, sends=rank + up)
            if 0 < m < M - 2:
                add("W", chunk, m, piece)
    for chunk in range(2):
        for m, piece in pieces[-2 * slices :]:
            add("W", chunk, m, piece)
    return nodes


@pytest.mark.parametrize("slices", [1, 2])
def test_the_zero_bubble_runtime(monkeypatch, tmp_path, slices):
    for rank in range(RANKS):
        frameworks = Frameworks(monkeypatch, tmp_path, rank)
        megatron.schedules(frameworks.schedules, frameworks.session)
        runtime = frameworks.module(
            "runtime",
            RUNTIME,
            frameworks.schedules,
            nodes=lambda rank=rank: zero_bubble(rank, slices),
        )
        sail.runtime(runtime, frameworks.session)
        frameworks.schedules.get_forward_backward_func = megatron.pipeline_of(
            frameworks.session
        ).choosing(runtime.get_zero_bubble_forward_backward_func)
        for _ in range(STEPS):
            run = frameworks.schedules.get_forward_backward_func()
            frameworks.train(run, chunks=2, forward_only=False)
        frameworks.session.close()
    stages, m = 2 * RANKS, M * slices
    assert counted(tmp_path, "forward") == once(stages, m)
    assert counted(tmp_path, "recompute") == once(stages, m)
    assert counted(tmp_path, "backward backward_input") == once(stages, m)
    assert counted(tmp_path, "backward") == Counter(
        one for one in once(stages, m) if one[2] < slices
    )
    # The last two of a chunk are computed at once, and belong to no micro-batch.
    alone = Counter(one for one in once(stages, m) if slices <= one[2] < m - 2 * slices)
    flushed = Counter(
        {(step, stage, None): slices for step in range(STEPS) for stage in range(stages)}
    )
    assert counted(tmp_path, "backward_weight") == alone + flushed
    assert transfers_match(tmp_path)
    assert sources.load(tmp_path).run.microbatches == m


def test_validation_after_the_step_belongs_to_the_next_one(monkeypatch, tmp_path):
    frameworks = Frameworks(monkeypatch, tmp_path, 0)
    megatron.schedules(frameworks.schedules, frameworks.session)
    runtime = frameworks.module(
        "runtime", RUNTIME, frameworks.schedules, nodes=lambda: zero_bubble(0, 1)
    )
    sail.runtime(runtime, frameworks.session)
    run = runtime.get_zero_bubble_forward_backward_func()
    frameworks.train(run, chunks=2)
    frameworks.train(run, chunks=2, optimizer="optimizer")
    frameworks.train(run, chunks=2)
    frameworks.session.close()
    assert counted(tmp_path, "forward") == Counter(
        one for one in once(2 * RANKS, M) if one[1] in (0, 2 * RANKS - 1)
    )


def test_dualpipev_of_mindspeed(monkeypatch, tmp_path):
    for rank in range(RANKS):
        frameworks = Frameworks(monkeypatch, tmp_path, rank)
        record = frameworks.session
        # MindSpeed is for versions that have functions, not a class.
        del frameworks.p2p.P2PCommunicator
        megatron.p2p(frameworks.p2p, record)
        megatron.schedules(frameworks.schedules, record)
        store = frameworks.module("weight_grad_store", STORE)
        mindspeed.weights(store, record)
        helper = frameworks.module("utils", HELPER, p2p_communication=frameworks.p2p)
        mindspeed.transfers(helper, record)
        module = frameworks.module(
            "dualpipev_schedules", DUALPIPEV, frameworks.p2p, frameworks.parallel, store, helper
        )
        mindspeed.dualpipev(module, record)
        # As its patches do.
        frameworks.schedules.forward_backward_pipelining_without_interleaving = (
            module.forward_backward_pipelining_with_cutinhalf
        )
        for _ in range(STEPS):
            frameworks.train(frameworks.schedules.get_forward_backward_func(), chunks=2)
        frameworks.session.close()
    stages = 2 * RANKS
    assert counted(tmp_path, "forward forward_backward") == once(stages, M)
    assert counted(tmp_path, "backward_input") + pairs(tmp_path) == once(stages, M)
    assert counted(tmp_path, "backward_input") == counted(tmp_path, "backward_weight")
    # The head of the last stage has a backward of its own.
    assert counted(tmp_path, "other") == Counter(
        one for one in once(stages, M) if one[1] == stages - 1
    )
    assert transfers_match(tmp_path)
    assert sources.load(tmp_path).run.schedule == "dualpipev"


def test_weight_gradients_that_are_computed_at_once(monkeypatch, tmp_path):
    frameworks = Frameworks(monkeypatch, tmp_path, 0, ranks=1)
    record = frameworks.session
    megatron.schedules(frameworks.schedules, record)
    store = frameworks.module("weight_grad_store", STORE).WeightGradStore
    mindspeed.weights_at_once(types.SimpleNamespace(WeightGradStore=store), record)
    source = SCHEDULES.replace("def forward_backward_pipelining_without_interleaving", "def _inner")
    source += """
def forward_backward_ripipe_pipelining(**said):
    WeightGradStore.start_decouple()
    done = _inner(**said)
    WeightGradStore.end_decouple()
    WeightGradStore.cache.append(1)
    WeightGradStore.pop()
    WeightGradStore.pop()
    return done
"""
    module = frameworks.module(
        "ripipe_schedules", source, frameworks.p2p, frameworks.combined, WeightGradStore=store,
        parallel=frameworks.parallel, __name__="ripipe_schedules",
    )  # fmt: skip
    mindspeed.steps(module, record)
    for _ in range(STEPS):
        frameworks.train(module.forward_backward_ripipe_pipelining)
    frameworks.session.close()
    assert counted(tmp_path, "forward") == once(1, M)
    assert counted(tmp_path, "backward_input") == once(1, M)
    assert counted(tmp_path, "backward_weight") == Counter({(0, 0, None): 1, (1, 0, None): 1})


def test_the_table_names_functions_that_there_are():
    for framework, module in (("megatron", megatron), ("sail", sail), ("mindspeed", mindspeed)):
        for target in hooks.INTEGRATIONS[framework].values():
            name, _, function = target.partition(":")
            assert name.rpartition(".")[2] == framework
            assert callable(getattr(module, function))
