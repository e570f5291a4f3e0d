"""Tasks unfolded into their kernels, in a real browser: of pages that hold them and of those served."""

from __future__ import annotations

import threading

import numpy as np
import polars as pl
import pytest

import bubblescope
from bubblescope import Timeline
from bubblescope.analysis.view import View
from bubblescope.model.budget import Use
from bubblescope.render.html import page as html
from bubblescope.render.html.data import PageData
from bubblescope.render.html.kernels import inside
from bubblescope.render.html.serve import windows
from bubblescope.render.html.serve.server import Server
from bubblescope.render.palette import BUBBLE, USE_COLOURS, outline_of
from device_exports import kineto
from device_maker import Mode, make
from synthetic import one_f_one_b
from viewing import app, channels, context_of, light, screen, spent_until, state, until, where

pytestmark = pytest.mark.browser

MODE = Mode(pairs=True, streams=3, ranks=2)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = kineto(make(MODE, 11), tmp_path_factory.mktemp("kernels"))
    return bubblescope.load(folder, activities=True).timeline


@pytest.fixture
def opened_with(browser, tmp_path):
    """Open the page of a run with its kernels; fail on any error that it makes."""
    complaints: list[str] = []
    contexts = []

    def show(timeline, *, kernels: bool = True, address: str = "", url: str | None = None):
        context = context_of(browser, viewport={"width": 1280, "height": 720})
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        if url is None:
            path = html.write(View.of(timeline), tmp_path / "view.html", kernels=kernels)
            url = path.as_uri()
        page.goto(url + address)
        until(page, "!!window.bubblescope")
        return page

    yield show
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def served(run, monkeypatch):
    monkeypatch.setattr(windows, "_WHOLE", 30)  # so little at a time that parts must be loaded
    server = Server(PageData.of(View.of(run), kernels=True))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield server
    server.stop()
    thread.join()


def unfolded(page) -> list[int]:
    return page.evaluate("[...window.bubblescope.app.state.arranged.unfolded]")


def rows(page) -> list[dict]:
    return app(page, "plan.kernels")


def measured(page) -> int:
    """Return the first task of a compute lane that runs kernels for some time."""
    return page.evaluate(
        """(() => {
            const { head, data: { tasks } } = window.bubblescope.app;
            const row = head.rows.find(({ lane }) => lane === "compute");
            for (let task = row.from; task < row.to; task++) if (tasks.computing[task] > 0) return task;
            return -1;
        })()"""
    )


def kernel_point(page, kernel: int) -> tuple[float, float]:
    """The middle of a kernel on the screen."""
    return tuple(
        page.evaluate(
            """(kernel) => {
                const { app, gutter } = window.bubblescope;
                const { start, end } = app.data.kernels;
                const place = app.plan.kernels.find(({ row }) => row.from <= kernel && kernel < row.to);
                const box = app.canvas.getBoundingClientRect();
                const x = box.left + gutter + app.view.x((start[kernel] + end[kernel]) / 2);
                return [x, box.top + place.top - app.scroll.scrollTop + place.height / 2];
            }""",
            kernel,
        )
    )


class TestUnfolding:
    def test_the_key_unfolds_the_rank_of_what_is_selected_and_folds_it_again(
        self, opened_with, run
    ):
        page = opened_with(run)
        assert rows(page) == []
        page.keyboard.press("f")  # the whole run: the page opens with another step
        page.mouse.click(*where(page, measured(page)))
        page.keyboard.press("u")
        shown = rows(page)[0]["row"]["rank"]
        rank = app(page, f"head.ranks[{shown}].rank")
        streams = run.activities.filter(pl.col("rank") == rank)["stream"].n_unique()
        assert len({place["row"]["stream"] for place in rows(page)}) == streams
        compute = [p for p in state(page, "places") if p["row"]["lane"] == "compute"]
        first = [p for p in compute if p["row"]["rank"] == rows(page)[0]["row"]["rank"]][-1]
        others = [p["top"] for p in state(page, "places") if p["top"] > first["top"]]
        assert first["top"] + first["height"] <= rows(page)[0]["top"]
        assert all(rows(page)[-1]["top"] < top for top in others)
        page.keyboard.press("u")
        assert rows(page) == []

    def test_the_button_does_the_same(self, opened_with, run):
        page = opened_with(run)
        page.keyboard.press("f")  # the whole run: the page opens with another step
        page.mouse.click(*where(page, measured(page)))
        page.click(".pane button:text-is('kernels (u)')")
        assert len(unfolded(page)) == 1
        page.click(".pane button:text-is('fold kernels (u)')")
        assert unfolded(page) == []

    def test_a_rank_is_unfolded_at_its_title_without_a_selection(self, opened_with, run):
        page = opened_with(run)
        box = page.locator("canvas.lanes").bounding_box()
        band = app(page, "plan.bands[1]")
        point = (box["x"] + 30, box["y"] + band["top"] + 10)
        page.mouse.click(*point)
        assert unfolded(page) == [band["rank"]]
        assert app(page, "state.selected") is None
        page.mouse.click(*point)
        assert unfolded(page) == []

    def test_the_key_takes_the_rank_under_the_pointer(self, opened_with, run):
        page = opened_with(run)
        page.keyboard.press("u")  # nothing is selected, and there are several
        assert "point at a rank" in page.locator(".found").inner_text()
        box = page.locator("canvas.lanes").bounding_box()
        band = app(page, "plan.bands[1]")
        page.mouse.move(box["x"] + 600, box["y"] + band["top"] + 4)
        page.keyboard.press("u")
        assert unfolded(page) == [band["rank"]]

    def test_all_ranks_by_the_menu(self, opened_with, run):
        page = opened_with(run)
        page.click("summary:text-is('view')")
        page.click("label:has-text('kernels of all ranks')")
        assert unfolded(page) == [0, 1]

    def test_the_address_keeps_it(self, opened_with, run):
        page = opened_with(run, address="#kernels=1")
        assert unfolded(page) == [1]
        page.keyboard.press("f")
        page.wait_for_timeout(500)
        assert "kernels=1" in page.evaluate("location.hash")

    @pytest.mark.parametrize("size", ["overview", "tiny", "large"])
    def test_at_every_height_of_lanes(self, opened_with, run, size):
        page = opened_with(run, address=f"#kernels=0&size={size}")
        assert {place["height"] for place in rows(page)} == {15}

    def test_the_legend_says_what_the_colours_are(self, opened_with, run):
        page = opened_with(run)
        assert "kernels" not in page.locator(".legend").inner_text()
        page = opened_with(run, address="#kernels=0")
        said = page.locator(".legend").inner_text()
        assert all(name in said for name in ("kernels", "compute", "communication", "copy"))


class TestPicture:
    def test_every_pixel_is_the_mean_of_the_kernels_in_it(self, opened_with, run):
        page = opened_with(run, address="#kernels=0&causes=false")
        image = screen(page)[:, :, :3].astype(int)
        view, gutter = state(page, "view()"), state(page, "gutter")
        width = image.shape[1] - gutter
        per_pixel = (view["end"] - view["start"]) / width
        edges = (round(view["start"] / per_pixel) + np.arange(width + 1)) * per_pixel
        data = PageData.of(View.of(run), kernels=True)
        colours = [USE_COLOURS[use] for use in (Use.COMPUTE, Use.COMMUNICATION, Use.COPY)]
        idle, *fills = light([channels(colour) for colour in (BUBBLE, *colours)])
        lines = np.array([channels(outline_of(colour)) for colour in colours])
        for place in rows(page):
            row = place["row"]
            own = data.kernels[row["from"] : row["to"]].with_columns(
                pl.col("start_ns", "end_ns") - data.origin_ns
            )
            mean = np.broadcast_to(idle, (width, 3)).copy()
            for use, fill in enumerate(fills):
                spent = np.diff(spent_until(own.filter(pl.col("use") == use), edges)) / per_pixel
                mean += spent[:, None] * (fill - idle)
            # The lowest line of a row has no names.
            painted = image[int(place["top"] + place["height"]) - 1, gutter:]
            lined = (painted[:, None] == lines).all(2).any(1)
            off = np.abs(light(painted) - mean).max(1)[~lined]
            assert (off < 0.01).mean() > 0.99  # the line of a step goes through it
            assert (~lined).mean() > 0.7

    def test_a_saved_svg_has_them(self, opened_with, run):
        page = opened_with(run, address="#kernels=0")
        text = page.evaluate("window.bubblescope.app.pictures.svg()")
        assert USE_COLOURS[Use.COMPUTE] in text
        assert "Kernels: communication" in text


class TestDetails:
    def test_a_task_says_what_ran_in_it(self, opened_with, run):
        page = opened_with(run)
        task = measured(page)
        page.evaluate(f"window.bubblescope.app.selection.go({{ what: 'task', index: {task} }})")
        data = PageData.of(View.of(run), kernels=True)
        row = data.tasks.row(task, named=True)
        found = inside(data.kernels, row["position"], row["start_ns"], row["end_ns"], 5)
        said = page.locator(".pane").inner_text()
        length = row["end_ns"] - row["start_ns"]
        assert f"{found.count:,}, with copies" in said
        assert f"{100 * found.compute / length:.2f} %" in said
        for name, _, count in found.top:
            assert f"{count} \u00d7" in said
            assert app(page, f"head.kernels.names[{name}][0]")[:20] in said

    def test_without_kernels_it_says_the_sums_and_how_to_get_them(self, opened_with, run):
        page = opened_with(run, kernels=False)
        task = measured(page)
        page.evaluate(f"window.bubblescope.app.selection.go({{ what: 'task', index: {task} }})")
        said = page.locator(".pane").inner_text()
        assert "bubblescope view PATH --kernels" in said
        assert "computing" in said
        assert "idle inside" in said
        page.keyboard.press("u")
        assert "bubblescope view PATH --kernels" in page.locator(".found").inner_text()
        assert rows(page) == []

    def test_of_runs_without_kernels_it_says_what_is_known(self, opened_with):
        timeline = one_f_one_b()
        page = opened_with(timeline)
        page.evaluate("window.bubblescope.app.selection.go({ what: 'task', index: 0 })")
        said = page.locator(".pane").inner_text()
        assert "90.00 %" in said
        assert "idle inside" in said
        assert "--kernels" not in said  # which would find none
        page.keyboard.press("u")
        assert "no kernels" in page.locator(".found").inner_text()
        unknown = timeline.tasks.with_columns(busy_ns=pl.lit(None, pl.Int64))
        page = opened_with(Timeline(unknown, timeline.ranks, timeline.run))
        page.evaluate("window.bubblescope.app.selection.go({ what: 'task', index: 0 })")
        assert "idle inside" not in page.locator(".pane").inner_text()

    def test_a_kernel_says_what_it_is(self, opened_with, run):
        page = opened_with(run, address="#kernels=0")
        kernel = app(page, "plan.kernels[0].row.from + 3")
        page.evaluate(
            f"window.bubblescope.app.selection.zoomTo({{ what: 'kernel', index: {kernel} }})"
        )
        until(page, "window.bubblescope.app.frame === 0")
        point = kernel_point(page, kernel)
        page.mouse.move(*point)
        tip = page.locator(".tip").inner_text()
        name, full = page.evaluate(
            """(kernel) => {
                const { app } = window.bubblescope;
                return app.head.kernels.names[app.data.kernels.name[kernel]];
            }""",
            kernel,
        )
        assert name[:40] in tip
        assert "stream" in tip
        page.mouse.click(*point)
        assert app(page, "state.selected") == {"what": "kernel", "index": kernel}
        assert full[:20] in page.locator(".pane").inner_text()
        page.keyboard.press("ArrowRight")
        assert app(page, "state.selected.index") == kernel + 1
        page.keyboard.press("u")  # which leaves nothing to select
        assert app(page, "state.selected") is None
        assert unfolded(page) == []


def test_a_served_page_looks_like_the_one_that_holds_all(opened_with, run, served):
    looks = []
    for url in (None, served.url):
        page = opened_with(run, url=url)
        shots = []
        for action in ("1", "u", "w", "w", "d", "w", "w", "-", "u"):
            if action == "1":
                page.mouse.move(700, page.locator("canvas.lanes").bounding_box()["y"] + 12)
            page.keyboard.press(action)
            page.wait_for_timeout(400)
            shots.append(page.evaluate("document.querySelector('canvas.lanes').toDataURL()"))
        looks.append(shots)
    assert looks[0] == looks[1]
    assert len(set(looks[0])) > 6


def test_a_served_page_asks_what_ran_in_a_task(opened_with, run, served):
    said = []
    for url in (None, served.url):
        page = opened_with(run, url=url)
        page.evaluate(
            "window.bubblescope.app.journey.showStep(window.bubblescope.app.head.steps[0])"
        )
        page.wait_for_timeout(500)
        task = measured(page)
        page.mouse.click(*where(page, task))
        until(page, "!!document.querySelector('.pane dl.longest')")
        said.append(page.locator(".pane .inside").inner_text())
    assert said[0] == said[1]
