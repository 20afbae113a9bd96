"""Cells, pins, keys and settings of the lens; link, reload and the back button show the same."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from recorder.looking import find_runs, open_run
from tests.browser.conftest import GOOD, LONG, REPO, Dashboard, Tab, params

pytestmark = pytest.mark.browser
ONCE = pytest.mark.parametrize("tab", ["dark"], indirect=True)
"""What no theme changes."""

SAMPLES = REPO / "sample_runs"
CELL = """([column, layer]) => {
    const plot = document.querySelector('[class*="st-key-chart_map"] .js-plotly-plot'), layout = plot._fullLayout;
    plot.scrollIntoView({block: 'center'});
    const box = plot.getBoundingClientRect();
    return [box.left + layout._size.l + layout.xaxis.d2p(column), box.top + layout._size.t + layout.yaxis.d2p(layer)];
}"""
"""Where a cell is drawn, in pixels of the window."""


MAP = '[class*="st-key-chart_map"]'
PINS = '[class*="st-key-chart_pins"]'

POINT = """([line, point]) => {
    const plot = document.querySelector('[class*="st-key-chart_pins"] .js-plotly-plot'), layout = plot._fullLayout;
    plot.scrollIntoView({block: 'center'});
    const box = plot.getBoundingClientRect(), drawn = plot._fullData[line];
    return [box.left + layout._size.l + layout.xaxis.d2p(drawn.x[point]),
            box.top + layout._size.t + layout.yaxis.d2p(drawn.y[point])];
}"""
"""Where a point of a line is drawn."""


def wait_for_map(page: Page) -> None:
    page.wait_for_selector(f"{MAP} .heatmaplayer image", state="attached")
    expect(page.get_by_test_id("stStatusWidget")).to_have_count(0)


def click_cell(page: Page, column: int, layer: int, off: tuple[int, int] = (0, 0)) -> None:
    """Click a cell, `off` pixels from its middle."""
    x, y = page.evaluate(CELL, [column, layer])
    page.mouse.move(x + off[0], y + off[1])
    page.mouse.click(x + off[0], y + off[1])


def panel(page: Page, layer: int, step: int, last: int = 4) -> None:
    expect(page.get_by_text(f"Layer {layer} of {last}, step {step}", exact=True)).to_be_visible()


def lines(page: Page) -> list[str]:
    """Names of the tokens that are followed."""
    return [name.strip("\u2068\u2069") for name in page.locator(f"{PINS} .legendtext").all_text_contents()]


def test_cells_are_picked_and_tokens_pinned(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{dashboard.url}/lens?run={GOOD}")
    wait_for_map(page)
    panel(page, 4, 0)
    click_cell(page, 1, 2, off=(30, 6))
    panel(page, 2, 1)
    assert params(page) == {"run": GOOD, "step": "1", "layer": "2"}
    page.wait_for_timeout(800)
    click_cell(page, 1, 2)  # again: its panel stays
    page.wait_for_timeout(800)
    panel(page, 2, 1)
    click_cell(page, 0, 0)
    panel(page, 0, 0)
    expect(page.get_by_text("this is no prediction")).to_be_visible()
    page.go_back()
    panel(page, 2, 1)
    _pin(page)


def _pin(page: Page) -> None:
    """Pin a token of the cell (step 1, layer 2), follow it, and go back to the default pins."""
    bar = page.get_by_role("button", name="id 33", exact=False)
    expect(page.locator(f"{PINS} .legendtext").first).to_be_visible()
    expect(page.get_by_test_id("stStatusWidget")).to_have_count(0)
    page.wait_for_timeout(1500)  # the chart of the cell before is still drawn
    before = lines(page)
    expect(bar).to_have_attribute("aria-pressed", "false")
    bar.click()
    page.wait_for_url("**pins=**")
    expect(bar).to_have_attribute("aria-pressed", "true")
    expect(page.locator(f"{PINS} .legendtext")).to_have_count(len(before) + 1)
    assert params(page)["pins"].split(",")[-1] == "33"
    page.get_by_role("radio", name="Rank", exact=True).click()
    expect(page.locator(PINS).get_by_text("Rank (0 = top)")).to_be_visible()
    page.reload()
    wait_for_map(page)
    expect(page.locator(PINS).get_by_text("Rank (0 = top)")).to_be_visible()
    expect(bar).to_have_attribute("aria-pressed", "true")
    x, y = page.evaluate(POINT, [0, 3])  # the target's line, at layer 3
    page.mouse.click(x, y)
    panel(page, 3, 1)
    page.get_by_role("button", name="Pins (").click()
    page.get_by_role("button", name="Default pins").click()
    expect(page.locator(f"{PINS} .legendtext")).to_have_count(len(before))
    assert "pins" not in params(page)


@ONCE
def test_keys_and_the_strip_move_about(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{dashboard.url}/lens?run={LONG}&task=write&step=15&layer=2&stat=entropy")
    wait_for_map(page)
    panel(page, 2, 15)
    expect(page.get_by_role("radio", name="Entropy")).to_have_attribute("aria-checked", "true")
    expect(page.locator(MAP).get_by_text("Entropy (nat)")).to_be_visible()
    for key, layer, step in [("ArrowRight", 2, 16), ("ArrowUp", 3, 16), ("ArrowDown", 2, 16), ("ArrowLeft", 2, 15)]:
        page.keyboard.press(key)
        panel(page, layer, step)
    expect(page.get_by_text("Steps 0 to 15 of -4 to 59.", exact=False)).to_be_visible()
    strip = page.locator('[class*="st-key-minimap"] .js-plotly-plot').bounding_box()
    assert strip is not None
    page.mouse.click(strip["x"] + strip["width"] * 0.75, strip["y"] + 15)
    page.wait_for_url("**from=**")
    picked = int(params(page)["step"])
    assert abs(picked - (-4 + 0.75 * 64)) <= 1
    panel(page, 2, picked)
    page.keyboard.press("]")
    expect(page.get_by_text("Document (2 of 3)")).to_be_visible()
    panel(page, 4, 0)
    page.get_by_role("combobox", name="Document").click()
    page.keyboard.press("[")  # typed into a field: it moves nothing
    page.keyboard.press("Escape")
    page.wait_for_timeout(500)
    assert params(page) == {"run": LONG, "task": "write", "doc": "1", "stat": "entropy"}
    page.get_by_role("button", name="chevron_right").first.click()
    expect(page.get_by_text("Document (3 of 3)")).to_be_visible()
    for _ in range(2):
        page.go_back()
    panel(page, 2, picked)


@ONCE
def test_settings_behind_the_button_are_restored(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{dashboard.url}/lens?run={GOOD}")
    wait_for_map(page)
    page.get_by_role("button", name="View").click()
    page.get_by_role("radio", name="2nd").click()
    page.wait_for_url("**stride=2**")
    page.get_by_role("radio", name="This view").click()
    page.wait_for_url("**scale=view**")
    page.get_by_text("Clip to percentiles").click()
    page.wait_for_url("**clip=on**")
    page.reload()
    wait_for_map(page)
    expect(page.get_by_text("3 of 5 layers", exact=False)).to_be_visible()
    expect(page.get_by_text("clipped to the 2nd to 98th percentile", exact=False)).to_be_visible()
    click_cell(page, 0, 1)  # the middle one of the layers shown
    panel(page, 2, 0)


@ONCE
def test_the_text_of_tokens_is_not_read_as_markup(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{dashboard.url}/lens?run={LONG}&task=write&from=0")
    wait_for_map(page)
    drawn = [text.strip("\u2068\u2069") for text in page.locator(f"{MAP} .textpoint text").all_text_contents()]
    assert {"<b>", "<s>", "⏎", "⇥", "中文", "한국"} <= set(drawn)
    assert page.locator("katex, .katex").count() == 0
    strip = page.get_by_test_id("stHtml").first.inner_text()
    assert "$5␣and␣$6" in strip
    assert "[a]␣[b]" in strip
    assert ":smile:" in strip


@ONCE
def test_every_sample_run_opens(dashboard: Dashboard, tab: Tab) -> None:
    """Nothing to open is no failure: the sample runs are checked by tests of their own."""
    runs = [open_run(path) for path in find_runs(SAMPLES)] if SAMPLES.is_dir() else []
    for run in runs:
        tab.page.goto(f"{dashboard.url}/lens?run={run.run_id}")
        wait_for_map(tab.page)
        expect(tab.page.get_by_text("step 0", exact=False).first).to_be_visible()
