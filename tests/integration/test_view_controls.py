"""The controls above and beside the lanes say what is shown, and are there where they do something."""

from __future__ import annotations

import pytest

from synthetic import one_f_one_b
from viewing import WRITTEN, app, browser, opened

__all__ = ["browser", "opened"]


def button(page, name: str):
    return page.get_by_role("button", name=name, exact=True)


class TestOverlays:
    def test_a_what_if_alone_does_not_press_what_shows_the_ideal(self, opened):
        page = opened(one_f_one_b(comm=False), whatif=lambda run: run.schedule("zb-h1"))
        ideal = button(page, "ideal")
        assert ideal.get_attribute("aria-pressed") == "true"  # both are shown
        page.evaluate("window.bubblescope.app.arranging.showExtra('ideal', false)")
        assert ideal.get_attribute("aria-pressed") == "false"
        ideal.click()
        assert {"ideal", "whatif"} <= set(page.evaluate(EXTRAS))
        ideal.click()
        assert not {"ideal", "whatif"} & set(page.evaluate(EXTRAS))

    def test_the_look_of_papers_has_neither_causes_nor_the_ideal_to_press(self, opened):
        page = opened(one_f_one_b(comm=False))
        page.keyboard.press("v")
        for name in ("causes", "ideal"):
            assert button(page, name).is_disabled()
            assert button(page, name).get_attribute("aria-pressed") == "false"
        page.keyboard.press("v")
        assert button(page, "causes").get_attribute("aria-pressed") == "true"


EXTRAS = "[...window.bubblescope.app.state.arranged.extras]"


def test_ranks_of_different_stages_have_nothing_to_fold(opened):
    page = opened(one_f_one_b())
    assert button(page, "fold").count() == 0
    page.keyboard.press("m")
    assert app(page, "state.arranged.grouping") != "standing"
    assert "no two ranks hold the same" in page.locator(".found").inner_text()


@pytest.mark.parametrize("steps", [1, 2])
def test_one_step_has_none_before_or_after(opened, steps):
    page = opened(one_f_one_b(steps=steps))
    assert len(app(page, "head.steps")) == steps
    assert button(page, "next step").count() == (steps > 1)


def test_hidden_ranks_leave_word_and_come_back(opened):
    page = opened(one_f_one_b())
    show = button(page, "1 rank hidden \N{MIDDLE DOT} show")
    assert show.count() == 0
    page.evaluate("window.bubblescope.app.arranging.showRanks([1], false)")
    show.click()
    assert page.evaluate("window.bubblescope.app.state.arranged.hidden.size") == 0
    assert show.count() == 0


def test_where_one_step_is_in_sight_shares_beside_the_ranks_are_said_to_be_of_all(opened):
    page = opened(one_f_one_b(steps=2))
    page.keyboard.press("f")
    assert "idle" in page.evaluate(WRITTEN)
    page.keyboard.press("1")
    written = page.evaluate(WRITTEN)
    assert "idle, all steps" in written
    assert "idle" not in written
