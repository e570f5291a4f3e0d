"""What a loop runs though no optimizer trains it, such as a teacher: time of its own, but no passes."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING

import polars as pl
import pytest
from test_record_loop import (
    IN_TURN,
    STAMPED,
    job,
    order,
    recorded,
    results,
    run,
    stamped,
    torchrun,
    train,
)

from bubblescope import sources
from full import needs

if TYPE_CHECKING:
    from pathlib import Path

needs("torch")

MODELS = """
from torch import distributed
from torch._dynamo.utils import counters
class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = made().requires_grad_(False)
        self.head = nn.Linear(4, 4)
    def forward(self, x):
        return self.head(self.backbone(x))
class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.error, self.breaks = made(), None, False
    def forward(self, x):
        if self.error is not None:
            raise self.error
        if self.breaks:
            torch._dynamo.graph_break()
        return self.inner(x)
def distil(model, teacher, name="running Teacher"):
    optimizer = optimizer_of(model)
    for _ in range(2):
        for _ in range(2):
            y = model(x)
            with torch.no_grad(), stamped(name):
                z = teacher(x)
            loss = nn.functional.mse_loss(y, z)
            loss.backward()
            print("rank", loss.item().hex())
        optimizer.step()
        optimizer.zero_grad()
    seen = {name: dict(counters[name]) for name in ("graph_break", "frames", "stats")}
    print("rank", seen, [p.tolist() for p in model.parameters()])
    counters.clear()
    torch._dynamo.reset()
"""

DISTILLED = {
    "alone": "distil(Student(), Teacher())",
    "frozen": "distil(Student(), Teacher().requires_grad_(False))",
    "an average": """
        average = torch.optim.swa_utils.AveragedModel(Teacher())
        distil(Student(), average, "running AveragedModel")
    """,
    "scripted": """
        teacher = torch.jit.script(nn.Sequential(nn.Linear(4, 4)))
        distil(Student(), teacher, "running Sequential")
    """,
    "held with its student": """
        class Both(nn.Module):
            def __init__(self):
                super().__init__()
                self.student, self.teachers = Student(), nn.ModuleList([Teacher()])
        both = Both()
        distil(both.student, both.teachers[0])
        del both
    """,
    "compiled": "distil(Student(), torch.compile(Teacher(), backend='eager'))",
    "compiled in place": """
        teacher = Teacher()
        teacher.compile(backend="eager")
        distil(Student(), teacher)
    """,
    "compiled in pieces": """
        teacher = Teacher()
        teacher.breaks = True
        distil(Student(), torch.compile(teacher, backend="eager"))
    """,
    "wrapped": "distil(Ddp(Student()), Ddp(Teacher()))",
    "sharded": "distil(Ddp(Student()), fully_shard(Teacher()))",
}
"""How a teacher is made; each is recorded for two steps."""


def beside(timeline, step: int | None = None) -> dict[str, int]:
    """Return how many tasks of each name are no passes, in one step or in all."""
    tasks = timeline.tasks.filter(kind="other")
    return dict(Counter((tasks if step is None else tasks.filter(step=step))["name"].to_list()))


def train_beside(tmp_path: Path, program: str):
    return train(tmp_path, STAMPED + MODELS + textwrap.dedent(program))


@pytest.fixture(scope="module")
def distilled(tmp_path_factory):
    """What is recorded of a job that distils with one teacher after the other, and what it said."""
    program = (
        STAMPED
        + MODELS
        + textwrap.dedent("""
        from torch.nn.parallel import DistributedDataParallel as Ddp
        from torch.distributed.fsdp import fully_shard
        distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
        """)
    )
    program += "\n".join(map(textwrap.dedent, DISTILLED.values()))
    program += "\ndistributed.destroy_process_group()\n"
    tmp_path = tmp_path_factory.mktemp("distilled")
    done = recorded(tmp_path / "out", job(tmp_path, program))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "bubblescope stopped" not in done.stderr
    # The same losses and weights, and as many graphs and breaks.
    assert results(done.stdout) == results(run(job(tmp_path, program)).stdout)
    return tmp_path / "out", done.stdout.splitlines()


class TestDistillation:
    @pytest.mark.parametrize("case", DISTILLED)
    def test_a_teacher_is_a_task_of_its_own_and_no_pass(self, distilled, case):
        timeline = sources.load(distilled[0])
        first = 2 * list(DISTILLED).index(case)
        names = {"an average": "running AveragedModel", "scripted": "running Sequential"}
        for step in (first, first + 1):
            assert order(timeline, step=step) == IN_TURN
            assert beside(timeline, step) == {names.get(case, "running Teacher"): 2}

    def test_it_lasts_as_long_as_the_job_says(self, distilled):
        for name in ("running Teacher", "running AveragedModel", "running Sequential"):
            for begin, end, *task in stamped(*distilled, name):
                assert begin <= task[0] < task[1] <= end


class TestWhatIsNotTrained:
    def test_what_is_frozen_is_known_before_the_first_step(self, tmp_path):
        timeline, _ = train_beside(
            tmp_path,
            """
            model, teacher = Student(), Teacher().requires_grad_(False)
            optimizer = optimizer_of(model)
            for _ in range(2):
                z = teacher(x)
                for _ in range(2):
                    (model(x) - z).sum().backward()
                optimizer.step()
            """,
        )
        named = timeline.tasks.filter(name="running Teacher")
        assert named["step"].to_list() == [None, 0]

    def test_an_average_may_be_evaluated_between_steps(self, tmp_path):
        timeline, said = train_beside(
            tmp_path,
            """
            model = Student()
            optimizer = optimizer_of(model)
            average = torch.optim.swa_utils.AveragedModel(model)
            for _ in range(2):
                for _ in range(2):
                    model(x).sum().backward()
                optimizer.step()
                average.update_parameters(model)
                model.eval()
                with torch.no_grad(), stamped("evaluation"):
                    average(x)
                model.train()
            """,
        )
        for step in range(2):
            assert order(timeline, step=step) == IN_TURN
        assert beside(timeline) == {"evaluation": 2}
        for begin, end, *task in stamped(tmp_path / "out", said, "evaluation"):
            assert begin <= task[0] < task[1] <= end

    def test_a_part_of_what_is_trained_is_no_task_of_its_own(self, tmp_path):
        """A frozen backbone, which the loop may call alone as well, or a teacher within the model."""
        timeline, _ = train_beside(
            tmp_path,
            """
            class Both(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.student, self.teacher = Student(), Teacher().requires_grad_(False)
                def forward(self, x):
                    return self.student(x) - self.teacher(x)
            model = Both()
            optimizer = optimizer_of(model.student)
            for _ in range(2):
                for _ in range(2):
                    model(x).sum().backward()
                optimizer.step()
            """,
        )
        for step in range(2):
            assert order(timeline, step=step) == IN_TURN
        assert beside(timeline) == {}

    def test_two_models_with_an_optimizer_each_are_both_trained(self, tmp_path):
        timeline, _ = train_beside(
            tmp_path,
            """
            makes, judges = made(), made()
            optimizer = optimizer_of(makes)
            other = optimizer_of(judges)
            for _ in range(2):
                judges(makes(x)).sum().backward()
                optimizer.step()
                with torch.no_grad():
                    found = makes(x)
                judges(found).sum().backward()
                other.step()
            """,
        )
        passes = {0: [("F", 0, 0), ("F", 0, 0), ("B", 0, 0)], 1: [("F", 1, 0), ("B", 1, 0)]}
        for step in range(4):
            assert order(timeline, step=step) == passes[step % 2]
        assert beside(timeline) == {"evaluation": 2}

    def test_what_gets_an_optimizer_later_is_trained_from_then_on(self, tmp_path):
        timeline, _ = train_beside(
            tmp_path,
            """
            model, late = Student(), Teacher()
            optimizer = optimizer_of(model)
            for step in range(4):
                if step == 2:
                    optimizer = optimizer_of(model, late)
                model(x).sum().backward()
                late(x).sum().backward()
                optimizer.step()
            """,
        )
        assert beside(timeline) == {"running Teacher": 2}
        for step in (2, 3):
            assert order(timeline, step=step) == [
                (kind, chunk, 0) for chunk in (0, 1) for kind in "FB"
            ]

    def test_parts_are_followed_where_the_job_calls_a_method_of_the_whole(self, tmp_path):
        _, said = train_beside(
            tmp_path,
            """
            class Autoencoder(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.encoder, self.decoder = Teacher(), Teacher()
                def encode(self, x):
                    return self.encoder(x)
                def forward(self, x):
                    return self.decoder(self.encode(x))
            model, autoencoder = Student(), Autoencoder().requires_grad_(False)
            optimizer = optimizer_of(model)
            for step in range(4):  # in the first, nobody knows yet
                y = model(x)
                with stamped("running Autoencoder") if step else torch.enable_grad():
                    z = autoencoder(x) if step == 3 else autoencoder.encode(x)
                (y - z).sum().backward()
                optimizer.step()
            """,
        )
        for begin, end, *task in stamped(tmp_path / "out", said, "running Autoencoder"):
            assert begin <= task[0] < task[1] <= end

    def test_its_errors_are_the_jobs(self, tmp_path):
        timeline, _ = train_beside(
            tmp_path,
            """
            model, teacher = Student(), Teacher()
            optimizer = optimizer_of(model)
            for step in range(2):
                for _ in range(2):
                    y = model(x)
                    teacher.error = KeyboardInterrupt()
                    try:
                        teacher(x)
                    except KeyboardInterrupt as caught:
                        assert caught is teacher.error and caught.__context__ is None
                    teacher.error = None
                    (y - teacher(x).detach()).sum().backward()
                optimizer.step()
            """,
        )
        for step in range(2):
            assert order(timeline, step=step) == IN_TURN

    def test_it_is_saved_copied_and_collected_as_it_is(self, tmp_path):
        _, said = train_beside(
            tmp_path,
            """
            import copy, gc, io, weakref
            gc.disable()
            def saved(model):
                file = io.BytesIO()
                torch.save(model, file)
                return file.getvalue()
            model, teacher = Student(), Teacher()
            before = saved(teacher)
            distil(model, teacher)
            assert saved(teacher) == before
            loaded = torch.load(io.BytesIO(before), weights_only=False)
            replica = teacher._replicate_for_data_parallel()
            for other in (loaded, copy.deepcopy(teacher), copy.copy(teacher), replica):
                other.forward = lambda x: 7
                assert other(x) == 7
            distil(model, teacher)
            gone = [weakref.ref(teacher)]
            del teacher, other, loaded, replica
            gc.collect(0)
            print([one() is None for one in gone])
            """,
        )
        assert "[True]" in said

    def test_modules_that_answer_with_an_error_are_left_alone(self, tmp_path):
        timeline, _ = train_beside(
            tmp_path,
            """
            class Odd(nn.Module):
                def parameters(self, recurse=True):
                    raise RuntimeError("odd")
            class Half(nn.Module):
                def __init__(self):
                    nn.Module.__init__(self)
                    del self._parameters
            odd, half = Odd(), Half()
            model, teacher = Student(), Teacher()
            optimizer = optimizer_of(model)
            for step in range(2):
                for _ in range(2):
                    (model(x) - teacher(x).detach()).sum().backward()
                optimizer.step()
            """,
        )
        for step in range(2):
            assert order(timeline, step=step) == IN_TURN
            assert beside(timeline, step) == {"running Teacher": 2}

    def test_modules_that_come_and_go_in_every_step_are_not_looked_for(self, tmp_path):
        _, said = train_beside(
            tmp_path,
            """
            from bubblescope.record.integrations.torch_loop.models import Modules
            theirs, looks = Modules.outermost, []
            Modules.outermost = lambda self: looks.append(1) or theirs(self)
            model = Student()
            optimizer = optimizer_of(model)
            kept = []
            for step in range(4):
                kept.append(nn.Dropout(0.1))
                nn.Linear(4, 4)
                model(kept[-1](x)).sum().backward()
                optimizer.step()
            print(len(looks))
            """,
        )
        assert said[0] == "2"  # as the optimizer is made, and as the first step begins


def test_a_rank_that_waits_for_others_in_a_sharded_teacher_does_not_count_as_slow(tmp_path):
    program = """
        import time, torch
        from torch import distributed, nn
        from torch.distributed.fsdp import fully_shard
        distributed.init_process_group("gloo")
        teacher = fully_shard(nn.Linear(4, 4), reshard_after_forward=True)
        model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(2, 4)
        for step in range(4):
            y = model(x)
            time.sleep(0.02 if distributed.get_rank() else 0)
            with torch.no_grad():
                z = teacher(x)
                teacher.reshard()
            (y - z).sum().backward()
            optimizer.step()
        distributed.destroy_process_group()
    """
    done = recorded(tmp_path / "out", torchrun(tmp_path, 2, textwrap.dedent(program)))
    assert done.returncode == 0, done.stderr[-3000:]
    tasks = sources.load(tmp_path / "out").tasks.filter(rank=0)
    runs = tasks.filter(name="running Linear")
    waits = tasks.filter(kind="collective").select(begin="start_ns", end="end_ns")
    inside = runs.join_where(
        waits, pl.col("begin") >= pl.col("start_ns"), pl.col("end") <= pl.col("end_ns")
    )
    assert runs.height == inside["start_ns"].n_unique() == 4
