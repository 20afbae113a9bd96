"""From a task's matrix to a pair of layers, to one step, to the page that shows its text, and back."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import LONG, Dashboard, Tab, params

pytestmark = pytest.mark.browser

CELL = """([plot, x, y]) => {
    const drawn = document.querySelectorAll('.js-plotly-plot')[plot], layout = drawn._fullLayout;
    drawn.scrollIntoView({block: 'center'});
    const box = drawn.getBoundingClientRect(), [across, up] = [layout.xaxis, layout.yaxis];
    return [box.left + across._offset + across.d2p(x), box.top + up._offset + up.d2p(y)];
}"""
"""Where a point of a chart's first subplot is drawn, in pixels of the window."""


def click(page: Page, plot: int, x: float, y: float) -> None:
    page.mouse.move(*page.evaluate(CELL, [plot, x, y]))
    page.mouse.click(*page.evaluate(CELL, [plot, x, y]))


def pair(page: Page, text: str) -> None:
    page.get_by_text(text, exact=True).wait_for()
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]")


def test_from_a_pair_of_layers_to_a_step_and_back(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{dashboard.url}/similarity?run={LONG}")
    page.wait_for_selector(".js-plotly-plot .heatmaplayer image", state="attached")
    page.get_by_text("The first and the last layer").wait_for()
    click(page, 1, 3, 1)
    pair(page, "Layer 3 and layer 1: cosine 0.500")
    assert params(page) == {"run": LONG, "layer": "3", "other": "1"}
    page.get_by_role("radio", name="Centred").click()
    pair(page, "Layer 3 and layer 1: cosine 0.250")
    page.get_by_role("radio", name="Without outliers").click()
    page.get_by_text("Left out: 2 outlier positions.").wait_for()
    click(page, 0, 2, 0.25)
    pair(page, "Layer 2 and layer 1: cosine 0.250")
    page.reload()
    pair(page, "Layer 2 and layer 1: cosine 0.250")
    page.get_by_role("radio", name="Step").click()
    page.get_by_text("This step is an outlier position").click()
    page.locator("body").press("ArrowRight")
    page.get_by_text("One step. Left out: 0 outlier positions.").wait_for()
    assert params(page)["step"] == "1"
    page.get_by_test_id("stMain").get_by_role("link", name="Steps").last.click()
    page.get_by_text("Step 1 over all layers", exact=True).wait_for()
    page.go_back()
    pair(page, "Layer 2 and layer 1: cosine 0.250")
    assert params(page)["scope"] == "step"
