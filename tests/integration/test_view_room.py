"""Whatever the size of the window: everything on the page can be reached and read in it."""

from __future__ import annotations

import pytest

from synthetic import one_f_one_b
from viewing import until

pytestmark = pytest.mark.browser

SIZES = [
    (2560, 1440),
    (1440, 900),
    (1370, 900),
    (1366, 768),
    (1280, 720),
    (1024, 700),
    (800, 600),
    (390, 844),
]

CUT = """(selector) => [...document.querySelectorAll(selector)]
    .filter((one) => one.checkVisibility({ contentVisibilityAuto: true }))
    .map((one) => [one.className || one.textContent, one.getBoundingClientRect()])
    .filter(([, { left, right, top, bottom }]) =>
        left < -1 || top < -1 || right > innerWidth + 1 || bottom > innerHeight + 1)
    .map(([name]) => name)"""
"""What of some parts of the page is not wholly in the window."""


def open_menu(page, name: str) -> None:
    """Open a menu of the bar; where the bar has no room for it, it is in the last one."""
    more = page.locator(".more > summary")
    menu = page.locator("details.menu", has=page.locator("summary", has_text=name)).last
    if more.is_visible():
        more.click()
    menu.locator("> summary").click()
    until(page, "[...document.querySelectorAll('nav .drop')].some((one) => one.style.left !== '')")


@pytest.mark.parametrize(("width", "height"), SIZES)
class TestEverySize:
    def test_every_control_is_in_the_window_or_in_a_menu(self, opened, width, height):
        page = opened(one_f_one_b(), width, height, as_it_opens=True)
        controls = "nav :is(button, select, input, summary)"
        assert page.evaluate(CUT, controls) == []
        if page.locator(".more > summary").is_visible():
            page.locator(".more > summary").click()
        for name in ("previous step", "colour by", "causes", "summary", "show keys"):
            named = page.get_by_label(name).or_(page.get_by_text(name, exact=True))
            assert any(one.is_visible() for one in named.all()), name

    @pytest.mark.parametrize("name", ["view", "picture"])
    def test_menus_open_within_the_window(self, opened, width, height, name):
        page = opened(one_f_one_b(), width, height, as_it_opens=True)
        open_menu(page, name)
        page.wait_for_timeout(200)
        assert page.evaluate(CUT, "nav details[open] > .drop:not(.drop .drop)") == []

    def test_the_other_rates_open_within_the_window(self, opened, width, height):
        page = opened(one_f_one_b(), width, height, as_it_opens=True)
        page.locator(".others > summary").click()
        page.wait_for_timeout(200)
        assert page.evaluate(CUT, ".others .drop") == []

    def test_answers_to_what_if_are_not_cut(self, opened, width, height):
        page = opened(one_f_one_b(), width, height, as_it_opens=True)
        page.keyboard.press("y")
        until(page, "document.querySelectorAll('.ready tbody tr').length > 1")
        sides = page.evaluate("""() => {
            const { right } = document.querySelector(".ready").getBoundingClientRect();
            return [...document.querySelectorAll(".ready :is(td, th, button)")]
                .map((one) => right - one.getBoundingClientRect().right);
        }""")
        assert min(sides) >= -1

    def test_the_keys_open_at_their_top(self, opened, width, height):
        page = opened(one_f_one_b(), width, height, as_it_opens=True)
        page.keyboard.press("?")
        page.wait_for_timeout(50)
        assert page.locator("dialog.help").evaluate("(one) => one.scrollTop") == 0
        assert page.get_by_role("button", name="close", exact=True).first.is_visible()

    def test_differences_are_not_cut(self, opened, width, height):
        page = opened(one_f_one_b(), width, height, against=one_f_one_b(), as_it_opens=True)
        page.evaluate("window.bubblescope.app.pane.open('difference')")
        sides = page.evaluate("""() => {
            for (const change of document.querySelectorAll(".differences td:nth-child(4)"))
                change.textContent = "-18.29 ± 63.04 ms"; // of runs that have noise
            return [...document.querySelectorAll(".differences :is(th, td)")]
                .map((one) => innerWidth - one.getBoundingClientRect().right);
        }""")
        assert min(sides) >= 0

    def test_what_changed_stays_in_its_column(self, opened, width, height):
        slower = one_f_one_b(backward_ns=2_200_001)
        page = opened(one_f_one_b(), width, height, against=slower, as_it_opens=True)
        room = page.evaluate("""() => {
            const gain = document.querySelector(".gain");
            gain.textContent = "-22.40 ± 1.674 ms"; // of runs that have noise
            const { scrollWidth, clientWidth } = gain.closest("li");
            return clientWidth - scrollWidth;
        }""")
        assert room >= 0


@pytest.mark.parametrize("width", [1280, 1366, 1440])
def test_a_usual_window_has_room_for_the_whole_bar(opened, width):
    page = opened(one_f_one_b(), width, 720, as_it_opens=True)
    assert not page.locator(".more").is_visible()


def test_what_a_key_said_gives_way_to_what_the_search_found(opened):
    page = opened(one_f_one_b())
    said = page.locator(".found")
    page.fill("input[type=search]", "kind:forward")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.found').textContent.includes(' of ')")
    found = said.inner_text()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("9")
    assert said.inner_text() == "no step 9"
    page.keyboard.press("f")
    assert said.inner_text() == found


def test_what_the_pointer_told_of_is_gone_when_the_view_moves(opened):
    page = opened(one_f_one_b())
    left, y = page.evaluate(
        "[window.bubblescope.app.left, window.bubblescope.app.plan.places[0].top]"
    )
    box = page.locator("canvas.lanes").bounding_box()
    page.mouse.move(box["x"] + left + 15, box["y"] + y + 6)
    assert page.locator(".tip").is_visible()
    page.keyboard.press("d")
    assert not page.locator(".tip").is_visible()
