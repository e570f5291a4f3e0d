"""Schedules: complete, without deadlock, and with the bubbles and memory that their papers state."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bubblescope.model.errors import ScheduleError
from bubblescope.model.kinds import Kind
from bubblescope.schedules import LINEAR, SCHEDULES, generate, torch_csv
from bubblescope.schedules.classic import gpipe, looped_bfs
from bubblescope.schedules.plan import Operation, Plan, linear
from bubblescope.schedules.simulate import Costs, run
from bubblescope.schedules.zb_auto import Times
from full import module
from nsight_maker import Style, solve
from places import ROOT

F, B, BI, W = Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT
DEVICES, MICROBATCHES = st.integers(1, 8), st.integers(1, 20)
NAMES = st.sampled_from(sorted(SCHEDULES))
UNEQUAL, EQUAL = (36, 48, 24), (24, 24, 24)
"""How long F, B and W take: unlike each other, and alike as the papers draw them. All numbers are
multiples of the chunks that they are cut into."""
TIMES = st.sampled_from(
    [UNEQUAL, EQUAL, (24, 12, 12), (48, 12, 36), (12, 24, 24), (24, 12, 36), (60, 36, 24)]
)


def make(name: str, p: int, m: int, **more) -> Plan:
    """Make a plan, or give up the example where the schedule does not exist."""
    try:
        return generate(name, p, m, memory=p if name == "zb-auto" else None, **more)
    except ScheduleError:
        assume(False)
        raise


def idle(plan: Plan, times: tuple[int, int, int], over: str = "makespan") -> list[int]:
    """Return how long each device idles."""
    costs = Costs.shared(plan, Times(*times))
    start, end = run(plan, costs)
    busy = np.bincount(plan.device, end - start).astype(int)
    if over == "makespan":
        return [int(end.max() - start.min() - one) for one in busy]
    own = [plan.device == device for device in range(plan.devices)]
    return [
        int(end[mine].max() - start[mine].min() - one) for mine, one in zip(own, busy, strict=True)
    ]


def formula(text: str, plan: Plan, times: tuple[int, int, int], **more) -> object:
    """Evaluate a published formula, as `bubblescope schedules` prints it."""
    f, b, w = times
    names = {"p": plan.devices, "m": plan.microbatches, "v": plan.chunks, "f": f, "b": b, "w": w}
    return eval(text, {"min": min, "max": max}, {**names, "fb": f + b + w, **more})


@given(NAMES, DEVICES, MICROBATCHES, st.sampled_from([None, 2, 4]))
def test_every_operation_runs_once_and_after_what_it_needs(name, p, m, v):
    plan = make(name, p, m, chunks=v if SCHEDULES[name].chunks in ("v", "2w") else None)
    halves = plan.halves
    done = list(
        zip(halves.kind.tolist(), halves.stage.tolist(), halves.microbatch.tolist(), strict=False)
    )
    assert len(set(done)) == len(done)
    everywhere = set(product(range(plan.stages), range(m)))
    forwards = {(stage, i) for kind, stage, i in done if kind == 0}
    backwards = {(stage, i) for kind, stage, i in done if kind in (1, 2)}
    assert forwards == backwards == everywhere
    split = {(stage, i) for kind, stage, i in done if kind == 2}
    assert {(stage, i) for kind, stage, i in done if kind == 3} == split
    start, end = run(plan, Costs(3, 4, 2, comm_ns=1))  # raises if it deadlocks
    at = dict(zip(done, halves.operation.tolist(), strict=True))
    for kind, stage, i in done:
        if kind == 0 and stage:
            assert start[at[kind, stage, i]] >= end[at[0, stage - 1, i]]
        if kind == 3:
            assert start[at[kind, stage, i]] >= end[at[2, stage, i]]


@given(NAMES, DEVICES, MICROBATCHES)
def test_a_devices_operations_are_on_its_stages(name, p, m):
    plan = make(name, p, m)
    assert len(plan.placement) == p
    for device, stages in enumerate(plan.placement):
        order = plan.order(device)
        held = {operation.stage for operation in order}
        assert held <= set(stages)
        assert len(order) == plan.first[device + 1] - plan.first[device]
    assert Plan.of(plan.name, plan.placement, [plan.order(d) for d in range(p)]).order(0) == (
        plan.order(0)
    )


@given(st.sampled_from([n for n, s in SCHEDULES.items() if s.bubble]), DEVICES, MICROBATCHES, TIMES)
def test_the_bubble_is_what_the_formula_says_where_it_is_exact(name, p, m, times):
    schedule = SCHEDULES[name]
    plan = make(name, p, m)
    found = idle(plan, times, schedule.over)
    said = formula(schedule.bubble, plan, times)
    if schedule.exact and formula(schedule.exact, plan, times):
        assert max(found) == said
        if schedule.over == "makespan":
            assert min(found) == said


@pytest.mark.parametrize("name", [n for n, s in SCHEDULES.items() if s.exact not in ("", "True")])
def test_formulas_say_when_they_are_not_exact(name):
    """Somewhere outside their conditions they are wrong: the conditions are not there for show."""
    schedule = SCHEDULES[name]
    wrong = 0
    for p, m, times in product((2, 3, 4), (1, 2, 3, 5, 8, 12), (UNEQUAL, EQUAL, (24, 12, 36))):
        try:
            plan = generate(name, p, m)
        except ScheduleError:
            continue
        if not formula(schedule.exact, plan, times):
            wrong += max(idle(plan, times, schedule.over)) != formula(schedule.bubble, plan, times)
    assert wrong


@given(st.sampled_from([n for n, s in SCHEDULES.items() if s.memory]), DEVICES, st.data())
def test_peak_memory_is_what_the_formula_says(name, p, data):
    # With fewer micro-batches, a device never gets to hold so many.
    if name in ("chimera", "interleaved-1f1b"):
        m = p * data.draw(st.integers(2, 4), "m / p")
    else:
        m = data.draw(st.integers(2 * p, 2 * p + 12), "m")
    plan = make(name, p, m)
    for share in (0.25, 0.5, 1.0):
        said = [
            formula(SCHEDULES[name].memory, plan, EQUAL, i=device, Mw=share) for device in range(p)
        ]
        peaks = plan.peak_memory(share)
        assert (peaks <= np.array(said) + 1e-9).all()
        if "i" in SCHEDULES[name].memory.replace("min", ""):
            assert peaks == pytest.approx(said)
        elif share == 1 or not plan.splits_backward:
            assert max(peaks) == pytest.approx(max(said))


@pytest.mark.parametrize("p", [2, 3, 4, 5, 6, 8, 16])
def test_v_schedules_reach_their_published_memory_and_bubble(p):
    """README of sail-sg/zero-bubble-pipeline-parallelism: R is the bubble of 1F1B."""
    bubble_of_1f1b = (p - 1) * sum(EQUAL)
    for name, memory, share in (
        ("zb-v", p, Fraction(0)),
        ("v-half", (p + 2) // 2, Fraction(1, 2)),
        ("v-min", (p + 4) // 3, Fraction(2, 3)),
    ):
        plan = generate(name, p, 4 * p)
        assert max(plan.peak_memory(1.0)) == memory
        assert max(idle(plan, EQUAL, "span")) <= share * bubble_of_1f1b


def test_v_half_is_as_tight_as_its_authors():
    """Idle units of F = B = W = 1 per chunk that their program gets for 4 p micro-batches."""
    theirs = {2: 1, 3: 5, 4: 5, 5: 11, 6: 11, 8: 17, 16: 41}
    for p, units in theirs.items():
        assert max(idle(generate("v-half", p, 4 * p), (2, 2, 2))) == units


def test_dualpipe_idles_six_units():
    """DeepSeek's own example: N = 8, m = 20, F = 1, B = 2, W = 1, F&B = 3."""
    plan = generate("dualpipe", 8, 20)
    start, end = run(plan, Costs.shared(plan, Times(1, 1, 1), forward_backward_ns=3))
    assert end.max() - start.min() == 66
    assert set(66 - np.bincount(plan.device, end - start).astype(int)) == {6}


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize(("p", "m"), [(1, 3), (4, 2), (4, 9), (5, 16)])
def test_another_simulator_gets_the_same(name, p, m):
    """The tests have one of their own, which goes round the stages until all is done."""
    taking = dict(zip((F, BI, W), UNEQUAL, strict=True)) | {B: UNEQUAL[1] + UNEQUAL[2]}
    truth = solve(Style(schedule=name, stages=p, microbatches=m, times=taking))
    plan = generate(name, p, m)
    start, end = run(plan, Costs(*UNEQUAL))
    for stage, tasks in truth.items():
        own = plan.device == stage
        found = list(zip(start[own].tolist(), end[own].tolist(), strict=True))
        assert found == [(begin, finish) for *_, begin, finish in tasks]


@given(DEVICES, st.integers(1, 16), TIMES, st.integers(0, 3))
def test_the_search_keeps_to_its_memory_and_never_idles_longer_than_zb_h1(p, m, times, comm):
    basis = Times(*times, comm)
    for limit in (p, 2 * p):
        plan = generate("zb-auto", p, m, times=basis, memory=limit)
        assert max(plan.peak_memory(0.5)) <= limit
    longest = max(idle(generate("zb-h1", p, m), times, "span"))
    if m >= p:
        planned = generate("zb-2p", p, m, times=Times(*times))
        assert max(idle(planned, times, "span")) <= longest


TABLE = """
1.5B   8  24 18.522 18.086  9.337 0.601 .2431 .1055 3 .1585 .1083 .1585 .0433
1.5B   8  32 18.513 18.086  9.331 0.626 .1985 .0818 3 .1242 .0837 .1242 .0039
1.5B   8  64 18.546 18.097  9.321 0.762 .1240 .0443 3 .0674 .0444 .0674 .0026
6.2B   8  24 29.718 29.444 19.927 0.527 .2347 .0808 4 .1323 .0698 .1323 .0029
6.2B   8  32 29.802 29.428 19.530 0.577 .1898 .0628 4 .1045 .0559 .1045 .0022
6.2B   8  64 29.935 29.621 19.388 0.535 .1091 .0320 4 .0554 .0294 .0554 .0010
14.6B 16  48 11.347 11.248  8.132 0.377 .2552 .1104 3 .1397 .0672 .1397 .0066
14.6B 16  64 11.307 11.254  8.101 0.379 .2082 .0852 3 .1088 .0516 .1088 .0054
14.6B 16 128 11.325 11.308  8.109 0.378 .1251 .0445 3 .0576 .0266 .0576 .0028
28.3B 32  96 10.419 10.207  7.715 0.408 .2646 .1493 2 .1421 .0641 .1421 .0038
28.3B 32 128 10.408 10.204  7.703 0.408 .2168 .1164 2 .1106 .0490 .1106 .0029
28.3B 32 256 10.402 10.248  7.698 0.460 .1352 .0624 2 .0594 .0257 .0594 .0018
"""
"""Qi et al., arXiv 2401.10241: times in ms (table 9) and bubble rates (table 5) of 1F1B, 1F1B-I with
its chunks, ZB-H1, ZB-H2, ZB-1p and ZB-2p."""


def rate(plan: Plan, times: Times) -> float:
    """Return the paper's bubble rate: idle share of the longest of the devices' own spans."""
    start, end = run(plan, Costs.shared(plan, times))
    own = [plan.device == device for device in range(plan.devices)]
    longest = max(int(end[mine].max() - start[mine].min()) for mine in own)
    return 1 - plan.microbatches * sum(times[:3]) / longest


def test_tables_5_and_9_of_the_zero_bubble_paper(capsys):
    """To 4 decimals, every cell. Of 1F1B-I the paper's cost is m t + (p-1) t / v + (2pv-p-2) c;
    replaying Megatron's order costs p c more: its devices wait for a transfer in every chunk."""
    printed = ["model   p   m   1F1B    1F1B-I  (replay) ZB-H1   ZB-H2   ZB-1p   ZB-2p"]
    for line in TABLE.split("\n")[1:-1]:
        model, p, m, f, b, w, c, *cells = line.split()
        p, m, v = int(p), int(m), int(cells.pop(2))
        times = Times(*(round(float(time) * 1_000_000) for time in (f, b, w, c)))
        work = m * sum(times[:3])
        cost = work + (p - 1) * sum(times[:3]) / v + (2 * p * v - p - 2) * times.comm_ns
        found = [
            rate(generate("1f1b", p, m), times),
            1 - work / cost,
            *(rate(generate(name, p, m), times) for name in ("zb-h1", "zb-h2")),
            *(rate(generate(name, p, m, times=times), times) for name in ("zb-1p", "zb-2p")),
        ]
        replayed = rate(generate("interleaved-1f1b", p, m, chunks=v), times)
        assert replayed == pytest.approx(1 - work / (cost + p * times.comm_ns), abs=1e-6)
        assert [f"{one:.4f}" for one in found] == [f"0{one}" for one in cells]
        shown = [f"{one:.4f}" for one in found]
        shown.insert(2, f"({replayed:.4f})")
        printed.append(f"{model:6} {p:2} {m:3}  " + "  ".join(shown))
    with capsys.disabled():
        print("\n" + "\n".join(printed))  # noqa: T201


@given(DEVICES, st.data())
def test_with_no_more_micro_batches_than_devices_zero_bubble_is_all_ramp(p, data):
    """Zero-bubble paper, appendix: 1F1B takes (m+p-1)(F+B+W), ZB-H1 (m+p-1)(F+B) + W."""
    m = data.draw(st.integers(1, p), "m")
    f, b = data.draw(st.integers(1, 50), "f"), data.draw(st.integers(1, 50), "b")
    w = data.draw(st.integers(1, min(f, b)), "w")
    plan = generate("1f1b", p, m)
    start, end = run(plan, Costs(f, b, w))
    assert end.max() - start.min() == (m + p - 1) * (f + b + w)
    plan = generate("zb-2p", p, m, times=Times(f, b, w))
    start, end = run(plan, Costs(f, b, w))
    assert end.max() - start.min() >= (m + p - 1) * (f + b) + w


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("nonsense", {}, "not a schedule; the schedules are gpipe, 1f1b"),
        ("1f1b", {"devices": 0}, "at least one device and one micro-batch"),
        ("1f1b", {"chunks": 2}, "has 1 chunks on a device, not 2"),
        ("1f1b", {"memory": 4}, "takes no memory limit; zb-auto does"),
        ("interleaved-1f1b", {"chunks": 1}, "needs two or more chunks"),
        ("interleaved-1f1b", {"microbatches": 11, "devices": 4}, "take a multiple of 4"),
        ("dualpipe", {"devices": 3}, "an even number of devices"),
        ("dualpipe", {"microbatches": 6}, "at least twice as many"),
        ("dualpipev", {"microbatches": 6}, "needs at least 8 micro-batches, not 6"),
        ("chimera", {"devices": 3}, "an even number of devices"),
        ("hanayo", {"chunks": 3}, "an even number of chunks"),
        ("zb-auto", {}, "needs a memory limit"),
        ("zb-auto", {"memory": 0.5}, "memory for at least one micro-batch"),
        ("zb-1p", {"memory": 7}, "has a memory limit of its own"),
    ],
)
def test_what_cannot_be_made_is_refused_with_the_reason(name, arguments, why):
    asked = {"devices": 4, "microbatches": 8, **arguments}
    with pytest.raises(ScheduleError, match=why):
        generate(name, asked.pop("devices"), asked.pop("microbatches"), **asked)


@pytest.mark.parametrize(
    ("orders", "why"),
    [
        ([[(F, 0, 0)]], "no backward of micro-batch 0 at stage 0"),
        ([[(F, 0, 0), (F, 0, 0), (B, 0, 0)]], "1 forwards run twice"),
        ([[(B, 0, 0), (F, 0, 0)]], "the backward comes before its forward"),
        ([[(F, 0, 0), (BI, 0, 0)]], "every input gradient needs one weight gradient"),
        ([[(F, 0, 0), (B, 0, 0), (W, 0, 0)]], "every input gradient needs one weight gradient"),
        ([[(F, 0, 0), (W, 0, 0), (BI, 0, 0)]], "weight gradient comes before its backward"),
        ([[(F, 1, 0), (B, 1, 0)]], "does not hold that stage"),
        ([[]], "needs operations for every device"),
    ],
)
def test_orders_that_are_no_pipeline_are_refused(orders, why):
    made = [[Operation(*one) for one in order] for order in orders]
    with pytest.raises(ScheduleError, match=why):
        Plan.of("mine", linear(len(orders)), made)


@given(NAMES, st.integers(1, 4), st.integers(1, 8))
def test_plans_survive_pytorchs_csv(tmp_path_factory, name, p, m):
    plan = make(name, p, m)
    path = torch_csv.write(plan, tmp_path_factory.mktemp("csv") / "plan.csv")
    again = torch_csv.read(path)
    assert [again.order(d) for d in range(p)] == [plan.order(d) for d in range(p)]
    assert again.name == "plan"


def test_a_csv_with_transfers_and_gaps_is_the_computation_in_it(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text(
        "0UNSHARD,0F0,0SEND_F0,,0RECV_B0,0B0\n,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD\n\n"
    )
    plan = torch_csv.read(path)
    assert [str(operation) for operation in plan.order(1)] == ["F0.1", "B0.1"]
    assert plan.name == "own"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0F0,0Q0\n", "own.csv: row 1, cell 2: '0Q0' is not an action"),
        ("0F\n", "row 1, cell 1: '0F' names no micro-batch"),
        ("0F0\n", "own.csv: no backward of micro-batch 0 at stage 0"),
        ("", "needs operations for every device"),
    ],
)
def test_a_csv_that_is_no_plan_is_refused(tmp_path, text, why):
    path = tmp_path / "own.csv"
    path.write_text(text)
    with pytest.raises(ScheduleError, match=why):
        torch_csv.read(path)
    with pytest.raises(ScheduleError, match=r"no\.csv: cannot be read as a schedule"):
        torch_csv.read(tmp_path / "no.csv")


@pytest.mark.parametrize("make_plan", [gpipe, lambda p, m, **kw: looped_bfs(p, m, 2, **kw)])
def test_the_last_micro_batchs_backward_may_come_first(make_plan):
    plan = make_plan(2, 3, last_first=True)
    backwards = [o.microbatch for o in plan.order(0) if o.kind is B]
    assert backwards == [2, 1, 0] * plan.chunks
    assert idle(plan, EQUAL) == idle(make_plan(2, 3), EQUAL)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_documentation_has_every_schedule_with_its_formulas(name):
    schedule = SCHEDULES[name]
    documented = (ROOT / "docs" / "schedules.md").read_text()
    row = next(
        line for line in documented.splitlines() if line.startswith("| ") and f"`{name}`" in line
    )
    for text in (schedule.bubble, schedule.memory, schedule.exact.replace("True", "")):
        assert not text or f"`{text}`" in row


TORCH = {
    "ScheduleGPipe": ("gpipe", 1, {}),
    "Schedule1F1B": ("1f1b", 1, {}),
    "ScheduleInterleaved1F1B": ("interleaved-1f1b", 2, {"chunks": 2}),
    "ScheduleInterleavedZeroBubble": ("interleaved-zb", 2, {"chunks": 2}),
    "ScheduleZBVZeroBubble": ("zb-v", 2, {}),
    "ScheduleDualPipeV": ("dualpipev", 2, {}),
    "ScheduleLoopedBFS": ("looped-bfs", 2, {"chunks": 2}),
}


class _Stage:
    """As much of a pipeline stage as PyTorch's schedules look at when they plan."""

    def __init__(self, index: int, ranks: int, chunks: int, held: int) -> None:
        self.stage_index, self.group_rank = index, held
        self.num_stages, self.group_size = ranks * chunks, ranks
        self.has_backward = False
        self.is_first, self.is_last = index == 0, index == ranks * chunks - 1
        self.device = "cpu"


@given(NAMES, st.integers(1, 4), st.integers(1, 8))
def test_pytorch_reads_what_is_written(tmp_path_factory, name, p, m):
    action = module("torch.distributed.pipelining.schedules")._Action
    path = torch_csv.write(make(name, p, m), tmp_path_factory.mktemp("csv") / "plan.csv")
    for line in path.read_text().splitlines():
        for cell in line.split(","):
            assert str(action.from_str(cell)) == cell


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 16), (3, 9), (4, 12)])
def test_orders_are_those_of_pytorch(name, p, m):
    torch_schedules = module("torch.distributed.pipelining.schedules")
    ours, chunks, more = TORCH[name]
    if ours == "looped-bfs":
        plan = looped_bfs(p, m, chunks, last_first=True)
    else:
        plan = generate(ours, p, m, **more)
    for rank in range(p):
        theirs = _torch_order(getattr(torch_schedules, name), plan, rank, chunks, m)
        mine = [torch_csv._action(operation) for operation in plan.order(rank)]
        assert mine == theirs


def _torch_order(kind, plan: Plan, rank: int, chunks: int, m: int) -> list[str]:
    """Return what PyTorch plans for a rank, computation only, without making a process group."""
    p = plan.devices
    schedule = kind.__new__(kind)
    schedule._n_microbatches = m
    schedule.pp_group_size, schedule._num_stages, schedule.rank = p, p * chunks, rank
    schedule.num_stages, schedule.n_local_stages = p * chunks, chunks
    schedule._stages = [_Stage(s, p, chunks, rank) for s in plan.placement[rank]]
    schedule._stage = schedule._stages[0]
    schedule._stage_forward_output_chunks = {}
    rounds = max(1, m // p)
    schedule.number_of_rounds, schedule.microbatches_per_round = rounds, m // rounds
    if hasattr(schedule, "_calculate_single_rank_operations"):
        planned = schedule._calculate_single_rank_operations(rank)
    else:
        planned = schedule._get_pipeline_order()[rank]
    said = [str(action) for action in planned if action is not None]
    kept = [one for one in said if "_" not in one or "OVERLAP" in one]
    if kind.__name__ == "Schedule1F1B" and rank == p - 1:
        # PyTorch 2.13 counts the last rank's forwards from 1, in the plan only.
        kept = [one if "F" not in one else f"{rank}F{int(one.split('F')[1]) - 1}" for one in kept]
    return kept


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_plans_that_no_machine_could_hold_are_refused(name):
    limits = {"memory": 4.0} if name == "zb-auto" else {}
    with pytest.raises(ScheduleError, match="more than can be planned; ask for fewer"):
        generate(name, 4, 10**15, **limits)
