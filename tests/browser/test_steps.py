"""From a token of the strip to its layers, into Lens and back; and playing, which writes one step when it stops."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.conftest import LONG, Dashboard, Tab, open_tab, params

pytestmark = pytest.mark.browser

POINT = """([plot, axis, x, y]) => {
    const drawn = document.querySelectorAll('.js-plotly-plot')[plot], layout = drawn._fullLayout;
    drawn.scrollIntoView({block: 'center'});
    const box = drawn.getBoundingClientRect(), [across, up] = [layout['xaxis' + axis], layout['yaxis' + axis]];
    return [box.left + across._offset + across.d2p(x), box.top + up._offset + up.d2p(y)];
}"""
"""Where a point of a subplot is drawn, in pixels of the window."""
START = f"steps?run={LONG}&doc=1&repeat=1"


def wait_for_step(page: Page, step: int) -> None:
    page.get_by_text(f"Step {step} over all layers", exact=True).wait_for()
    page.wait_for_selector(f".strip .token.picked[data-step='{step}']")
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]")


def click_point(page: Page, plot: int, axis: str, x: float, y: float) -> None:
    page.mouse.move(*page.evaluate(POINT, [plot, axis, x, y]))
    page.mouse.click(*page.evaluate(POINT, [plot, axis, x, y]))


def shown_step(page: Page) -> int:
    text = page.get_by_text(re.compile(r"^Step -?\d+ over all layers$")).inner_text()
    return int(text.split()[1])


def test_from_a_token_to_its_layers_and_into_lens(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{dashboard.url}/{START}&step=3")
    wait_for_step(page, 3)
    drawn = {text.strip("\u2068\u2069") for text in page.locator(".strip .token").all_text_contents()}
    assert {"<b>", "<s>", "⏎", "⇥", "中文", "한국", "$5␣and␣$6"} <= drawn
    assert page.locator("katex, .katex").count() == 0
    page.locator(".strip .token[data-step='5']").click()
    wait_for_step(page, 5)
    page.locator("body").press("ArrowRight")
    wait_for_step(page, 6)
    page.get_by_role("radio", name="Settle layer").click()
    page.wait_for_url("**colour=settle**")
    click_point(page, 1, "", 20, 3)
    wait_for_step(page, 20)
    assert params(page) == {"run": LONG, "doc": "1", "repeat": "1", "step": "20", "colour": "settle"}
    page.reload()
    wait_for_step(page, 20)
    click_point(page, 0, "2", 0.2, 1)
    page.get_by_text("Layer 1 of 4, step 20", exact=True).wait_for()
    page.go_back()
    wait_for_step(page, 20)


def test_playing_writes_one_step_when_it_stops(dashboard: Dashboard, browser: Browser) -> None:
    tab = open_tab(browser, "light")
    page = tab.page
    page.goto(f"{dashboard.url}/{START}&step=3&speed=4")
    wait_for_step(page, 3)
    before = page.evaluate("history.length")
    page.get_by_role("button", name="Play").dblclick()
    page.get_by_text("Step 6 over all layers", exact=True).wait_for()
    assert params(page)["step"] == "3"
    assert page.evaluate("history.length") == before
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Play").wait_for()
    page.wait_for_url(re.compile(r"step=([6-9]|1\d)"))
    assert page.evaluate("history.length") == before + 1
    stopped = int(params(page)["step"])
    page.wait_for_timeout(1000)  # longer than three steps would take
    assert shown_step(page) == stopped
    page.get_by_role("button", name="Play").click()
    page.get_by_text(f"Step {stopped + 2} over all layers", exact=True).wait_for()
    page.get_by_role("button", name="chevron_right").first.click()  # the next document
    wait_for_step(page, 0)
    assert params(page) == {"run": LONG, "doc": "2", "speed": "4"}
    page.go_back()
    wait_for_step(page, stopped)
    page.close()
    assert tab.errors == []
