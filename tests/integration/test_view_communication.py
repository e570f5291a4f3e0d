"""What communicated in a task, in its details: of a page that holds the run, and of a served one."""

from __future__ import annotations

import pytest

from bubblescope.analysis.view import View
from bubblescope.render.html import page as html
from bubblescope.render.html.data import PageData
from communicating import communicating
from serving import serving
from synthetic import one_f_one_b
from viewing import context_of, task_at, until, where

pytestmark = pytest.mark.browser


@pytest.fixture(params=["embedded", "served"])
def page(request, browser, tmp_path):
    view = View.of(communicating(one_f_one_b()))
    context = context_of(browser, viewport={"width": 1280, "height": 800})
    shown = context.new_page()
    if request.param == "embedded":
        shown.goto(html.write(view, tmp_path / "view.html").as_uri())
        yield shown
    else:
        with serving(PageData.of(view)) as server:
            shown.goto(server.url)
            yield shown
    context.close()


def test_details_of_a_task_say_what_communicated_in_which_group(page):
    """A forward takes 1 ms, of which `communicating.PARTS` says what goes where."""
    until(page, "!!window.bubblescope")
    page.wait_for_timeout(300)
    page.mouse.click(*where(page, task_at(page, rank=1, step=1, kind="forward")))
    until(page, "!!document.querySelector('.pane .groups')")
    rows = page.locator(".pane .groups tr").all()[1:]
    said = [
        [" ".join(cell.inner_text().split()) for cell in row.locator("th, td").all()]
        for row in rows
    ]
    assert said == [
        [
            "tensor parallel (tp) 2 ranks: 0-1",
            "120.0 µs · 12.00 %",
            "50.00 µs · 5.00 %",
            "allgather, allreduce",
        ],
        ["group not told by the trace", "10.00 µs · 1.00 %", "none", "alltoall"],
        ["context parallel (cp) 2 ranks: 1,3", "none", "200.0 µs · 20.00 %", "sendrecv"],
    ]
    page.keyboard.press("Escape")
    page.mouse.click(*where(page, task_at(page, rank=1, step=1, kind="optimizer")))
    until(page, "document.querySelector('.pane h2').textContent.includes('optimizer')")
    assert page.locator(".pane .groups").count() == 0
