"""What-ifs in the page: the answers that it holds, and what a server answers."""

from __future__ import annotations

import re
import shlex
import threading
from urllib.parse import parse_qs, urlsplit

import pytest

from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.question_text import read
from bubblescope.analysis.view import View
from bubblescope.facade import Trace
from bubblescope.render.html import page as html
from bubblescope.render.html.data import PageData
from bubblescope.render.html.serve.server import Server
from bubblescope.schedules import generate
from device_exports import kineto
from device_maker import Mode, make
from injected import Fault, Job
from viewing import app, browser, context_of, until  # noqa: F401  a fixture

pytestmark = pytest.mark.browser

TRACES = ["the traces/of a run", "--steps", "0:3"]
GHOSTS = """() => {
    const { head, data } = window.bubblescope.app;
    const found = [];
    for (const { rank, lane, from, to } of head.rows)
        if (lane === "whatif")
            for (let task = from; task < to; task++)
                found.push([head.ranks[rank].rank, data.tasks.start[task], data.tasks.end[task]]);
    return found;
}"""
MINUS = "\N{MINUS SIGN}"
SHOWN = "() => window.bubblescope.places.filter(({ row }) => row.lane === 'whatif').length"


@pytest.fixture(scope="module")
def timeline():
    """Two replicas of four stages; rank 2 is slow."""
    made = Job(generate("1f1b", 4, 8), replicas=2, steps=3)
    return made.play(Fault(Cause.SLOW_RANK, slow={(0, 2): 1.4}))


@pytest.fixture(scope="module")
def held(timeline, tmp_path_factory):
    """The address of a page that holds everything."""
    path = tmp_path_factory.mktemp("page") / "view.html"
    view = View.of(timeline, layers=[8, 8, 8, 8], read_again=TRACES)
    path.write_text(html.render(view), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def served(timeline):
    """The address of a server of the same run."""
    server = Server(PageData.of(View.of(timeline, read_again=TRACES)))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield server.url
    server.stop()
    thread.join()


@pytest.fixture
def opened(browser):  # noqa: F811
    """Open a page's what-if tab; fail on any error."""
    complaints: list[str] = []
    contexts = []

    def show(url: str, address: str = "", **how):
        context = context_of(browser, viewport={"width": 1400, "height": 1000}, **how)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url + address)
        until(page, "!!window.bubblescope")
        if not address:
            page.keyboard.press("y")
        return page

    yield show
    for context in contexts:
        context.close()
    assert complaints == []


def said(page) -> str:
    return page.locator(".whatif .said").inner_text()


def command(page) -> str:
    return page.locator(".whatif .command code").inner_text()


def waited(page, *words: str) -> str:
    """Wait until the answer has some words."""
    for _ in range(300):
        if all(word in said(page) for word in words):
            return said(page)
        page.wait_for_timeout(20)
    return pytest.fail(f"never {words}, but: {said(page)}")


def asked(timeline, text: str):
    """The analysis' own answer to a question."""
    return Trace(timeline).whatif(lambda run: run.together(*read(text))).predictions[0]


def ghosts(timeline, text: str) -> list[tuple[int, int, int]]:
    """Return what the analysis would draw: rank, and start and end since the run's first."""
    tasks = asked(timeline, text).timeline(timeline).tasks
    first = timeline.start_ns
    rows = tasks.select("rank", "start_ns", "end_ns").rows()
    return sorted((rank, start - first, end - first) for rank, start, end in rows)


def shown(page) -> list[tuple[int, int, int]]:
    return sorted(tuple(map(round, one)) for one in page.evaluate(GHOSTS))


def everything(page) -> list[tuple[int, int, int]]:
    """The same of all the run, of which a server sends what is in sight."""
    page.evaluate(
        "() => { const { view, journey } = bubblescope.app; view.fit(); journey.moved(); }"
    )
    until(page, f"({SHOWN})() >= 8")
    count = -1
    while count != (count := len(shown(page))):
        page.wait_for_timeout(400)
    return shown(page)


def pulled(page, handle, by: float) -> None:
    """Drag something to the right."""
    handle.scroll_into_view_if_needed()
    box = handle.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + by / 2, y, steps=4)
    page.mouse.move(x + by, y, steps=4)
    page.mouse.up()


def handle_of(page, stage: int):
    return page.get_by_role("slider", name=f"stage {stage}: times as long")


def boundary_of(page, left: int):
    return page.get_by_role("separator", name=f"boundary between stage {left} and stage {left + 1}")


def duration(ns: int) -> str:
    return f"{ns / 1e6:.{4 - len(str(int(ns / 1e6)))}f} ms"


def test_answers_are_listed_by_what_they_save(opened, held, timeline):
    page = opened(held)
    rows = page.locator(".whatif .ready tbody tr")
    lines = [rows.nth(index).inner_text().split("\t") for index in range(rows.count())]
    assert len(lines) > 8
    shares = [float(line[1].split()[0].replace(MINUS, "").replace("+", "-")) for line in lines]
    assert shares == sorted(shares, reverse=True)
    truth = {one.change: one for one in Trace(timeline).whatif().predictions}
    known = [line for line in lines if line[2] in truth]
    assert len(known) > 4
    for line in known:
        said = truth[line[2]]
        ends = [said.saved_ns]
        if said.best_ns is not None:  # of a range both
            ends.insert(0, said.saved_ns + said.predicted_ns - said.best_ns)
        shown = [end.removeprefix(MINUS).removeprefix("+") for end in line[0].split(" to ")]
        assert shown == [duration(abs(end)) for end in ends]
        assert line[3] == said.needs


@pytest.mark.parametrize("change", ["rank 2 healthy", "zb-v", "without slow rank"])
def test_show_puts_what_would_have_run_under_what_ran(opened, held, timeline, change):
    page = opened(held)
    row = page.locator(".whatif .ready tr", has_text=change).first
    before = page.evaluate("window.bubblescope.app.data.tasks.kind.length")
    row.get_by_role("button", name="show").click()
    until(page, f"({SHOWN})() >= 8")
    text = app(page, "whatifs.text")
    assert shown(page) == ghosts(timeline, text)
    assert change in waited(page, "instead of", "a step")
    assert row.get_by_role("button", name="show").get_attribute("aria-pressed") == "true"
    assert any(change in line for line in page.locator(".legend .entry").all_inner_texts())
    row.get_by_role("button", name="show").click()
    until(page, f"({SHOWN})() === 0")
    assert page.evaluate("window.bubblescope.app.data.tasks.kind.length") == before
    assert page.locator(".whatif .command").is_hidden()


def test_one_answer_takes_the_place_of_another(opened, held, timeline):
    page = opened(held)
    for change in ("rank 2 healthy", "without slow rank", "zb-v"):
        page.locator(".whatif .ready tr", has_text=change).first.get_by_role(
            "button", name="show"
        ).click()
        waited(page, change)
        assert shown(page) == ghosts(timeline, app(page, "whatifs.text"))


def test_a_command_is_copied_as_a_shell_reads_it(opened, held):
    page = opened(held, permissions=["clipboard-read", "clipboard-write"])
    row = page.locator(".whatif .ready tr", has_text="without slow rank")
    row.get_by_role("button", name="copy as command").click()
    until(page, "document.querySelector('.whatif .ready').textContent.includes('copied')")
    text = page.evaluate("navigator.clipboard.readText()")
    assert shlex.split(text) == ["bubblescope", "whatif", *TRACES, "--without", "slow rank"]
    row.get_by_role("button", name="show").click()
    waited(page, "without slow rank")
    page.locator(".whatif .command").get_by_role("button", name="copy as command").click()
    until(page, "document.querySelector('.whatif .command').textContent.includes('copied')")
    assert page.evaluate("navigator.clipboard.readText()") == text == command(page)


def test_where_nothing_can_be_copied_the_command_is_selected(opened, held):
    page = opened(held)
    page.evaluate("void (navigator.clipboard.writeText = () => Promise.reject(new Error('no')))")
    row = page.locator(".whatif .ready tr", has_text="rank 2 healthy")
    row.get_by_role("button", name="copy as command").click()
    until(page, "getSelection().toString().includes('--healthy 2')")
    assert "ctrl" in row.inner_text()


def test_a_page_alone_answers_what_it_holds_and_gives_the_command_for_the_rest(
    opened, held, timeline
):
    page = opened(held)
    handle = handle_of(page, 1)
    handle.focus()
    page.keyboard.press("ArrowLeft")
    waited(page, "stage 1 takes 0.9 times as long")
    assert shown(page) == ghosts(timeline, "--stage 1=0.9")
    page.keyboard.press("ArrowLeft")
    waited(page, "no answer to that ready")
    assert shlex.split(command(page))[-2:] == ["--stage", "1=0.8"]
    assert page.evaluate(SHOWN) == 0
    page.keyboard.press("Home")
    waited(page, "Now the pipeline phase")
    assert handle.get_attribute("aria-valuenow") == "1"


def test_a_stage_is_dragged(opened, held, timeline):
    page = opened(held)
    handle = handle_of(page, 2)
    handle.scroll_into_view_if_needed()
    bar = page.locator(".whatif .stage-line").nth(2).locator(".bar").bounding_box()
    pulled(page, handle, -bar["width"] * 0.1)
    waited(
        page, "stage 2 takes 0.9 times as long", duration(asked(timeline, "--stage 2=0.9").saved_ns)
    )
    narrower = page.locator(".whatif .stage-line").nth(2).locator(".bar").bounding_box()["width"]
    assert narrower == pytest.approx(0.9 * bar["width"], abs=1.5)
    assert page.get_by_label("stage 2: times as long, as a number").input_value() == "0.9"
    assert shown(page) == ghosts(timeline, "--stage 2=0.9")


def test_under_a_server_any_length_of_a_stage_is_answered(opened, served, timeline):
    page = opened(served)
    requests = []
    page.on(
        "request",
        lambda request: requests.append(request.url) if "whatif?" in request.url else None,
    )
    handle = handle_of(page, 2)
    handle.scroll_into_view_if_needed()
    bar = page.locator(".whatif .stage-line").nth(2).locator(".bar").bounding_box()
    pulled(page, handle, -bar["width"] * 0.3)
    waited(
        page, "stage 2 takes 0.7 times as long", duration(asked(timeline, "--stage 2=0.7").saved_ns)
    )
    assert everything(page) == ghosts(timeline, "--stage 2=0.7")
    # Of the eight places that the pointer came by, where it stayed is asked about.
    wanted = [parse_qs(urlsplit(url).query)["ask"][0] for url in requests]
    assert wanted[-1] == "--stage 2=0.7"
    assert len(wanted) <= 3
    field = page.get_by_label("stage 2: times as long, as a number")
    field.fill("0.33")
    field.press("Enter")
    waited(page, "stage 2 takes 0.33 times as long")
    assert command(page).endswith("--stage 2=0.33")


def test_layers_move_over_a_boundary(opened, served, timeline):
    page = opened(served)
    field = page.get_by_label("layers of each stage as they are")
    field.fill("8,8,8")
    assert "4 numbers" in page.locator(".whatif .controls").inner_text()
    field.fill("8,8,8,8")
    boundary = boundary_of(page, 1)
    boundary.focus()
    page.keyboard.press("ArrowRight")
    waited(page, "1 layer from stage 2 to stage 1")
    text = "--move 1@2:1 --layers 8,8,8,8"
    assert command(page).endswith(text)
    truth = asked(timeline, text)
    assert duration(truth.predicted_ns) in said(page)
    assert boundary.get_attribute("aria-valuetext") == "stage 1 has 9, stage 2 has 7 layers"
    strip = page.locator(".whatif .layers").bounding_box()
    pulled(page, boundary_of(page, 2), strip["width"] * 3 / 32)
    waited(page, "layers at the stages")
    assert command(page).endswith("--partition 8,9,10,5 --layers 8,8,8,8") or re.search(
        r"--partition 8,9,\d+,\d+ --layers 8,8,8,8$", command(page)
    )


def test_a_page_that_knows_the_layers_holds_moves_of_one(opened, held, timeline):
    page = opened(held)
    assert page.get_by_label("layers of each stage as they are").input_value() == "8,8,8,8"
    boundary_of(page, 1).focus()
    page.keyboard.press("ArrowRight")
    waited(page, "1 layer from stage 2 to stage 1")
    assert shown(page) == ghosts(timeline, "--move 1@2:1 --layers 8,8,8,8")


def test_ranks_are_made_healthy_and_causes_removed_together(opened, served, timeline):
    page = opened(served)
    healthy = page.get_by_label("rank to make healthy")
    healthy.fill("6")
    healthy.press("Enter")
    waited(page, "rank 6 healthy")
    page.get_by_role("button", name="rank 2", exact=True).click()
    waited(page, "rank 6 healthy and rank 2 healthy")
    assert duration(asked(timeline, "--healthy 6 --healthy 2").saved_ns) in said(page)
    page.locator(".whatif .chips").get_by_role("button", name="slow rank").click()
    waited(page, "nothing left to change")  # the two do not go together: said in words
    assert "wrong" in page.locator(".whatif .said").get_attribute("class")
    until(page, f"({SHOWN})() === 0")
    page.get_by_role("button", name="clear").click()
    waited(page, "Now the pipeline phase")
    page.locator(".whatif .chips").get_by_role("button", name="slow rank").click()
    waited(page, "without slow rank", duration(asked(timeline, "--without 'slow rank'").saved_ns))


def test_a_control_goes_on_from_what_was_put_together_but_not_from_a_chosen_answer(opened, served):
    page = opened(served)
    page.locator(".whatif .ready tr", has_text="without slow rank").get_by_role(
        "button", name="show"
    ).click()
    waited(page, "without slow rank")
    handle_of(page, 0).focus()
    page.keyboard.press("ArrowLeft")
    waited(page, "stage 0 takes 0.95 times as long")
    assert command(page).endswith("--steps 0:3 --stage 0=0.95")
    handle_of(page, 1).focus()
    page.keyboard.press("ArrowRight")
    waited(page, "stage 0 takes 0.95 times as long and stage 1 takes 1.05 times as long")


@pytest.mark.parametrize("where", ["held", "served"])
def test_the_address_keeps_what_was_asked(opened, request, timeline, where):
    url = request.getfixturevalue(where)
    page = opened(url)
    page.locator(".whatif .ready tr", has_text="rank 2 healthy").get_by_role(
        "button", name="show"
    ).click()
    waited(page, "rank 2 healthy")
    until(page, "location.hash.includes('whatif')")
    address = "#" + page.url.partition("#")[2]
    again = opened(url, address)
    assert everything(again) == ghosts(timeline, "--healthy 2")


def test_what_is_selected_stays_selected_while_answers_come_and_go(opened, held):
    page = opened(held)
    page.evaluate("window.bubblescope.app.selection.go({ what: 'task', index: 3 })")
    page.keyboard.press("y")
    page.locator(".whatif .ready tr", has_text="rank 2 healthy").get_by_role(
        "button", name="show"
    ).click()
    waited(page, "rank 2 healthy")
    assert page.evaluate("window.bubblescope.selected()") == 3
    page.evaluate(
        "window.bubblescope.app.selection.select({ what: 'task',"
        " index: window.bubblescope.app.data.tasks.kind.length - 1 })"
    )
    page.evaluate("window.bubblescope.app.pane.open('whatif')")
    page.get_by_role("button", name="clear").click()
    assert page.evaluate("window.bubblescope.selected()") == -1


def test_everything_can_be_reached_by_keyboard(opened, held):
    page = opened(held)
    page.locator(".pane .tabs button[aria-selected=true]").focus()
    reached = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "(document.activeElement.getAttribute('aria-label')"
                " ?? document.activeElement.textContent).trim()"
            )
        )
    assert reached >= {"show", "copy as command", "rank to make healthy", "slow rank"}
    assert {f"stage {stage}: times as long" for stage in range(4)} <= reached
    assert "boundary between stage 0 and stage 1" in reached


def test_a_run_without_a_pipeline_has_answers_and_no_stages(opened, tmp_path):
    import bubblescope

    run = bubblescope.load(kineto(make(Mode(ranks=1), 3), tmp_path))
    page = opened(run.view(tmp_path / "view.html").as_uri())
    assert page.locator(".whatif .ready tbody tr").count() > 0
    assert page.locator(".whatif .stages").count() == 0
    answers = page.locator(".whatif .ready")
    assert answers.get_by_role("button", name="copy").count() > 0
    assert answers.get_by_role("button", name="show").count() == 0  # there are no lanes
