"""Copies to a device that a job makes itself: recorded, in methods that stay PyTorch's own.

The device is a stand-in whose copies take a while, made of Python: no machine needs another.
"""

from __future__ import annotations

import textwrap
from statistics import median

import polars as pl
from test_record_loop import STAMPED, job, results, run, stamped, train

from bubblescope.render.text.report import Report
from full import needs

needs("torch")

COPY = "copy to device"

DEVICE = """
import threading, time
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
def far_device(seconds):
    _setup_privateuseone_for_python_backend("far")
    def implements(name):
        return torch.library.impl("aten::" + name, "privateuseone")
    @implements("empty_strided")
    def empty(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
        return torch._C._acc.create_empty_tensor(size, dtype)
    @implements("copy_")
    def copy(there, here, non_blocking=False):
        time.sleep(seconds)
        return there
def stepped(model, *does, steps=3):
    optimizer = optimizer_of(model)
    for _ in range(steps):
        model(x).sum().backward()
        for one in does:
            one()
        optimizer.step()
        optimizer.zero_grad()
    print("rank", [p.tolist() for p in model.parameters()])
def ours():
    found = [name for name in ("to", "cuda", "copy_", "pin_memory") if name in vars(torch.Tensor)]
    return [name for name in found if "bubblescope" in type(vars(torch.Tensor)[name]).__module__]
"""


def program(text, seconds=0.002):
    return STAMPED + DEVICE + f"far_device({seconds})\n" + textwrap.dedent(text)


def copies(timeline):
    return timeline.tasks.filter(pl.col("name") == COPY)


COPYING = """
there = x.to("far")
big = torch.ones(500, 500)
def copied(copy):
    def call():
        with stamped("copy to device"):
            copy()
    return call
def elsewhere():
    thread = threading.Thread(target=lambda: x.to("far"))
    thread.start()
    thread.join()
def fails():
    try:
        x.to("nowhere")
    except RuntimeError as error:
        print("rank", error)
class Moves(nn.Sequential):
    def forward(self, x):
        x.to("far")  # part of the forward
        return super().forward(x)
"""

DOES = {
    "to": "copied(lambda: x.to('far'))",
    "to, by name and at once": "copied(lambda: x.to(device='far', non_blocking=True))",
    "copy_": "copied(lambda: there.copy_(x))",
    "copy_, by name": "copied(lambda: there.copy_(non_blocking=True, other=x))",
    "the device's own method": "copied(lambda: x.far())",
    "with another type": "copied(lambda: x.to('far', torch.float64))",
    "a parameter": "copied(lambda: nn.Parameter(x).to('far'))",
    "by a module": "copied(lambda: nn.Linear(4, 4, bias=False).to('far'))",
}


class TestWhatIsRecorded:
    def test_copies_take_as_long_as_the_job_says(self, tmp_path):
        does = ", ".join(DOES.values())
        text = program(f"{COPYING}stepped(Moves(*made()), {does}, elsewhere, fails)")
        timeline, said = train(tmp_path, text)
        found = stamped(tmp_path / "out", said, COPY)
        # And none that another thread makes, that is part of a forward, or that fails.
        assert len(found) == 3 * len(DOES)
        for begin, end, start, stop in found:
            assert begin <= start < stop <= end
            assert stop - start >= 2_000_000
        # What the stamps have more is printing them, and what else the machine does then.
        assert median((end - begin) - (stop - start) for begin, end, start, stop in found) < 500_000
        assert copies(timeline)["lane"].unique().to_list() == ["host"]
        per_step = copies(timeline).group_by("step").len().sort("step")
        assert per_step["len"].to_list() == [len(DOES)] * 3
        assert results("\n".join(said)) == results(run(job(tmp_path, text)).stdout)
        spent = Report.of(timeline).to_dict()["wall_clock"]["spent"]
        [a_step] = [one["per_step_ns"] for one in spent if one["what"] == COPY]
        assert a_step >= 2_000_000 * len(DOES)

    def test_what_is_quick_or_no_copy_to_a_device_is_none(self, tmp_path):
        text = """
            big, there = torch.ones(1000, 1000), x.to("far")
            stepped(
                made(),
                lambda: x.to("meta"),
                lambda: big.to(torch.float64),
                lambda: big.copy_(big + 1),
                lambda: big.copy_(non_blocking=True, other=big.double()),
                lambda: big.copy_(1),
                lambda: big.to("cpu", copy=True),
                lambda: torch.ones(100).to(big),
                lambda: there.to("far"),
            )
        """
        timeline, _ = train(tmp_path, program(text))
        assert copies(timeline).filter(pl.col("end_ns") - pl.col("start_ns") < 50_000).is_empty()
        assert copies(timeline).height < 3  # unless the machine held one up

    def test_copies_within_an_optimizers_step_are_part_of_it(self, tmp_path):
        text = """
            class Offloaded(torch.optim.SGD):
                @torch.no_grad()
                def step(self):
                    x.to("far")
                    super().step()
            def optimizer_of(model):
                return Offloaded(model.parameters(), lr=0.1)
            stepped(made())
        """
        timeline, _ = train(tmp_path, program(text))
        assert timeline.tasks.filter(kind="optimizer").height == 3
        assert copies(timeline).is_empty()

    def test_copies_within_passes_of_a_framework_are_part_of_them(self, tmp_path):
        text = """
            from bubblescope.model.kinds import Kind
            from bubblescope.record import session
            from bubblescope.record.buffer import identity_of
            ours = session.current()
            ours.use("a framework")
            forward = ours.timed(lambda: x.to("far"), identity_of(Kind.FORWARD))
            for _ in range(2):
                ours.begin_step()
                forward()
                with stamped("copy to device"):
                    x.to("far")
        """
        timeline, said = train(tmp_path, program(text))
        assert timeline.tasks.filter(kind="forward").height == 2
        assert len(stamped(tmp_path / "out", said, COPY)) == 2

    def test_pinning_memory_is_a_part_of_copying(self, tmp_path):
        """By a method that the job has put there itself, and finds again after the recording."""
        text = """
            def pin(tensor):
                if not tensor.any():
                    return tensor
                time.sleep(0.002)
                return tensor.clone()
            torch.Tensor.pin_memory = pin
            pinned = torch.zeros(4)
            def call():
                with stamped("copy to device"):
                    x.pin_memory()
                assert pinned.pin_memory() is pinned
                print("own", torch.Tensor.pin_memory is pin, vars(torch.Tensor)["pin_memory"] is pin)
            stepped(made(), call, steps=2)
            stepped(made(), lambda: print("own", vars(torch.Tensor)["pin_memory"] is pin), steps=2)
        """
        _, said = train(tmp_path, program(text), "--steps", ":2")
        assert len(stamped(tmp_path / "out", said, COPY)) == 2
        owned = [line for line in said if line.startswith("own")]
        assert owned == ["own True False"] * 2 + ["own True"] * 2

    def test_what_the_job_puts_there_meanwhile_stays(self, tmp_path):
        text = """
            theirs = torch.Tensor.to
            def own(tensor, *args, **kwargs):
                return theirs(tensor, *args, **kwargs)
            def put():
                torch.Tensor.to = own
            def compiles():
                torch.compile(lambda y: y + 1, backend="eager")(x)
                print("own", vars(torch.Tensor)["to"] is own)
            stepped(made(), put, compiles, steps=2)
            stepped(made(), compiles, steps=2)
        """
        _, said = train(tmp_path, program(text), "--steps", ":2")
        assert [line for line in said if line.startswith("own")] == ["own True"] * 4

    def test_only_in_the_steps_that_are_recorded(self, tmp_path):
        text = """
            stepped(made(), lambda: x.to("far"), lambda: print("hooked", ours()), steps=4)
            print("hooked", ours())
        """
        timeline, said = train(tmp_path, program(text), "--steps", "1:3")
        assert copies(timeline)["step"].to_list() == [1, 2]
        hooked = [line for line in said if line.startswith("hooked")]
        methods = "hooked ['to', 'cuda', 'copy_', 'pin_memory']"
        assert hooked == ["hooked []", methods, methods, "hooked []", "hooked []"]


WITHOUT_A_DEVICE = """
stepped(made(), lambda: x.to(torch.float64), lambda: print("hooked", ours()))
"""

WORKERS = """
class Ones(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, at):
        print("worker", ours(), flush=True)
        return torch.ones(2)
stepped(
    made(),
    lambda: x.to("far"),
    lambda: list(DataLoader(Ones(), num_workers=1, multiprocessing_context="fork")),
)
"""


def test_a_job_that_uses_no_device_finds_tensors_as_they_are(tmp_path):
    _, said = train(tmp_path, STAMPED + DEVICE + WITHOUT_A_DEVICE)
    assert [line for line in said if line.startswith("hooked")] == ["hooked []"] * 3


def test_workers_that_load_data_find_tensors_as_they_are(tmp_path):
    timeline, said = train(tmp_path, program(WORKERS))
    assert [line for line in said if line.startswith("worker")] == ["worker []"] * 12
    assert copies(timeline).height == 3


OFTEN = """
from bubblescope.record.integrations import torch_copies
torch_copies._HIDINGS = 2
def compiles():
    torch._dynamo.reset()
    torch.compile(lambda y: y + 1, backend="eager")(x)
stepped(made(), lambda: x.to("far"), compiles, lambda: print("hooked", len(ours())), steps=4)
"""


def test_a_job_that_compiles_again_and_again_finds_tensors_as_they_are(tmp_path):
    """Python looks up slowly what lies in a class that has changed very often."""
    timeline, said = train(tmp_path, program(OFTEN))
    hooked = [line for line in said if line.startswith("hooked")]
    assert hooked == ["hooked 4", "hooked 0", "hooked 0", "hooked 0"]
    assert copies(timeline)["step"].to_list() == [0, 1]


ALIKE = """
import copy, inspect, pickle
from torch.overrides import get_overridable_functions, is_tensor_method_or_property, resolve_name
from torch.distributed.tensor import DTensor, init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode
theirs = torch.Tensor.to
known = {torch.Tensor.to: "to", torch.Tensor.copy_: "copy_", torch.Tensor.pin_memory: "pin_memory"}
class Named(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in known:
            print("rank subclass", known[func], func is torch.Tensor.to, func is torch._C.TensorBase.to)
        return super().__torch_function__(func, types, args, kwargs or {})
class Own(torch.Tensor):
    def to(self, *args, **kwargs):
        print("rank own")
        return super().to(*args, **kwargs)
class Functions(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        print("rank mode", resolve_name(func), type(func).__name__)
        return func(*args, **(kwargs or {}))
class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        print("rank operator", func)
        return func(*args, **(kwargs or {}))
def moved(x):
    return x.to(torch.float64).to("cpu", torch.bfloat16)
class Moved(nn.Module):
    def forward(self, x):
        return x.to(torch.float64) + x.to(x)
def says(what):
    try:
        return what()
    except Exception as error:
        return type(error).__name__, str(error).splitlines()[0]
def alike():
    print("rank", torch.Tensor.to is theirs, torch.Tensor.to is torch._C.TensorBase.to)
    print("rank", Named.to is theirs, pickle.loads(pickle.dumps(torch.Tensor.to)) is theirs)
    print("rank", torch.Tensor.to in get_overridable_functions()[torch.Tensor])
    print("rank", is_tensor_method_or_property(torch.Tensor.to), resolve_name(torch.Tensor.to))
    print("rank", x.to.__name__, x.to.__self__ is x, x.to.__doc__ == theirs.__doc__)
    print("rank", pickle.loads(pickle.dumps(x.to))("meta").device, callable(getattr(x, "copy_")))
    print("rank", says(lambda: inspect.signature(x.to))[0], hasattr(x, "to"), "to" in dir(x))
    print("rank", says(lambda: x.to("nowhere")), says(lambda: x.to()), says(lambda: x.copy_()))
    print("rank", says(x.pin_memory), says(x.cuda))
    named = x.as_subclass(Named)
    print("rank", type(named.to("meta")), type(named.copy_(x)), copy.deepcopy(x))
    print("rank", type(x.as_subclass(Own).to("far")))
    with Functions():
        x.to("far")
        moved(x)
    with Operators():
        x.to("far")
        moved(x)
    with torch.device("meta"):
        print("rank", x.to(torch.float64).device, torch.ones(1).device)
    print("rank", torch.fx.symbolic_trace(Moved()).code)
    print("rank", torch.jit.script(Moved()).code)
    print("rank", torch.jit.trace(moved, x).code)
    print("rank", torch.func.vmap(moved)(x), torch.func.grad(lambda x: moved(x).sum())(x))
    print("rank", torch.func.functional_call(Moved(), {}, (x,)))
    print("rank", DTensor.from_local(x, mesh).to(torch.float64).to_local())
    print("rank", torch.export.export(Moved(), (x,)).graph_module.code)
    print("rank", torch.export.export(Moved(), (x,), strict=True).graph_module.code)
    print("rank", list(nn.Linear(2, 2, device="meta").to_empty(device="cpu").double().state_dict()))
from torch import distributed
distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
mesh = init_device_mesh("cpu", (1,))
stepped(made(), lambda: print("hooked", ours()), alike, steps=2)
distributed.destroy_process_group()
"""


def test_methods_of_tensors_are_pytorchs_own_to_everybody_else(tmp_path):
    """Subclasses, modes, tracers, pickles and errors: the same as without recording."""
    text = program(ALIKE)
    _, said = train(tmp_path, text)
    assert "hooked ['to', 'cuda', 'copy_', 'pin_memory']" in said
    alone = run(job(tmp_path, text))
    assert alone.returncode == 0, alone.stderr[-3000:]
    assert results("\n".join(said)) == results(alone.stdout)
    assert "rank subclass to True True" in said


COMPILED = """
import re
from torch._dynamo.utils import counters
from torch._dynamo.testing import CompileCounterWithBackend
class Sub(torch.Tensor):
    pass
class Named(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.to:
            func, args = torch.Tensor.double, args[:1]
        return super().__torch_function__(func, types, args, kwargs or {})
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = made()
        self.register_buffer("scale", torch.ones(4))
    def forward(self, x):
        return self.inner(x).to(self.scale.dtype) + self.scale.to(torch.float64).to(x)
def changes(x):
    return (x.sin().to(torch.float64) + 1).to("cpu", torch.bfloat16)
def unbound(x):
    return torch.Tensor.to(x.sin(), torch.float64).copy_(x)
def mapped(x):
    return list(map(torch.Tensor.to, [x], [torch.float64]))[0]
def kept(x):
    to = x.to
    return to(torch.float64)
def beyond(x):
    return torch.ones(3).to(x.device) + x.to("meta").to("meta").shape[0]
def broken(x):
    y = x.sin()
    torch._dynamo.graph_break()
    z = y.to(torch.float64)
    torch._dynamo.graph_break()
    return z.copy_(z) + 1
@torch._dynamo.disable
def helper(x):
    return x.to("far") is not None and x.to(torch.float64)
def helped(x):
    return helper(x.sin()) + 1
def looped(x):  # Dynamo leaves it to Python, and looks at what that calls
    for kind in (torch.float64, torch.float16):
        print(end="")
        x = x.to(kind).copy_(x) + 1
        x.to("far")
    return x
def followed(function, x, backend="aot_eager", whole=True):
    torch._dynamo.reset()
    counters.clear()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(function, backend=counter, fullgraph=whole)
    results = [compiled(x) for _ in range(3)]
    codes = [graph.code for graph in counter.graphs]
    seen = {name: dict(counters[name]) for name in ("graph_break", "frames", "stats", "recompiles")}
    guards = sorted(
        (re.sub(r"\\d{6,}", "id", one.name), one.create_fn_name())
        for one in torch._dynamo.explain(function)(x).out_guards
    )
    name = getattr(function, "__name__", "model")
    print("rank", name, results, codes, re.sub("0x[0-9a-f]+", "id", str(seen)), guards)
def compiles():
    y = torch.ones(3)
    for function in (changes, unbound, mapped, kept, beyond):
        followed(function, y)
    for kind in (Sub, Named):
        followed(changes, y.as_subclass(kind), "eager")
    followed(model, x)
    followed(broken, y, whole=False)
    followed(helped, y, whole=False)
    followed(looped, y, whole=False)
compiled_before = torch.compile(changes, backend="eager")
model = Model()
print("rank", compiled_before(torch.ones(3)))
frames = dict(counters["frames"])
def again():
    torch._dynamo.config.error_on_recompile = True
    print("rank", compiled_before(torch.ones(3)), dict(counters["frames"]) == frames)
    torch._dynamo.config.error_on_recompile = False
stepped(model, again, lambda: x.to("far"), lambda: print("hooked", ours()), steps=2)
stepped(model, lambda: x.to("far"), compiles, lambda: print("hooked", ours()), steps=2)
"""


def test_compiled_code_is_the_same(tmp_path):
    """Graphs, guards, breaks and compilations are, for whatever calls these methods, and how."""
    text = program(COMPILED)
    timeline, said = train(tmp_path, text)
    alone = run(job(tmp_path, text))
    assert alone.returncode == 0, alone.stderr[-3000:]
    assert results("\n".join(said)) == results(alone.stdout)
    assert len(results(alone.stdout)) == 2 + 3 + 2 * 11
    assert [line for line in said if line.startswith("hooked")] == [
        "hooked ['to', 'cuda', 'copy_', 'pin_memory']"
    ] * 4
    assert copies(timeline).height >= 4
