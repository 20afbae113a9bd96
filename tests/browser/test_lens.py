"""From the list of runs into a cell of the lens, and back by link, reload and the back button."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from recorder.rundir import find_runs, open_run
from tests.browser.conftest import GOOD, LONG, REPO, Dashboard, Tab, params, select_row

pytestmark = pytest.mark.browser

SAMPLES = REPO / "sample_runs"
CELL = """([column, layer]) => {
    const plot = document.querySelector('.js-plotly-plot'), layout = plot._fullLayout;
    plot.scrollIntoView({block: 'center'});
    const box = plot.getBoundingClientRect();
    return [box.left + layout._size.l + layout.xaxis.d2p(column), box.top + layout._size.t + layout.yaxis.d2p(layer)];
}"""
"""Where a cell is drawn, in pixels of the window."""


def wait_for_map(page: Page) -> None:
    page.wait_for_selector(".js-plotly-plot .heatmaplayer image", state="attached")
    expect(page.get_by_test_id("stStatusWidget")).to_have_count(0)


def click_cell(page: Page, column: int, layer: int, off: tuple[int, int] = (0, 0)) -> None:
    """Click a cell, `off` pixels from its middle."""
    x, y = page.evaluate(CELL, [column, layer])
    page.mouse.move(x + off[0], y + off[1])
    page.mouse.click(x + off[0], y + off[1])


def panel(page: Page, layer: int, step: int, last: int = 4) -> None:
    expect(page.get_by_text(f"Layer {layer} of {last}, step {step}", exact=True)).to_be_visible()


def test_from_runs_into_a_cell_and_back(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{dashboard.url}/?q=synthetic-none")
    expect(page.get_by_text("No run matches")).to_be_visible()
    page.get_by_role("textbox", name="Filter").fill("good")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=good**")
    select_row(page, 0)
    page.get_by_role("button", name="Open in Lens").click()
    wait_for_map(page)
    assert params(page) == {"run": GOOD}
    panel(page, 4, 0)
    click_cell(page, 1, 2, off=(30, 6))
    panel(page, 2, 1)
    assert params(page) == {"run": GOOD, "step": "1", "layer": "2"}
    expect(page.get_by_text("id 102")).to_have_count(1)
    page.reload()
    wait_for_map(page)
    panel(page, 2, 1)
    click_cell(page, 0, 0)
    panel(page, 0, 0)
    expect(page.get_by_text("this is no prediction")).to_be_visible()
    page.go_back()
    panel(page, 2, 1)


def test_clicking_a_cell_again_keeps_its_panel(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{dashboard.url}/lens?run={GOOD}")
    wait_for_map(page)
    for _ in range(2):
        click_cell(page, 2, 1)
        panel(page, 1, 2)
        page.wait_for_timeout(800)
    click_cell(page, 0, 3)
    panel(page, 3, 0)


def test_a_pasted_link_shows_the_same(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{dashboard.url}/lens?run={LONG}&task=write&doc=1&repeat=1&stat=entropy&from=30&step=33&layer=1")
    wait_for_map(page)
    panel(page, 1, 33)
    expect(page.get_by_text("Steps 30 to 45 of -4 to 60")).to_be_visible()
    expect(page.get_by_role("radio", name="Entropy")).to_have_attribute("aria-checked", "true")
    expect(page.get_by_text("Entropy (nat)")).to_be_visible()


def test_the_text_of_tokens_is_not_read_as_markup(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{dashboard.url}/lens?run={LONG}&task=write&from=0")
    wait_for_map(page)
    drawn = [text.strip("\u2068\u2069") for text in page.locator(".js-plotly-plot .textpoint text").all_text_contents()]
    assert {"<b>", "<s>", "⏎", "⇥", "中文", "한국"} <= set(drawn)
    assert page.locator("katex, .katex").count() == 0
    strip = page.get_by_test_id("stHtml").first.inner_text()
    assert "$5␣and␣$6" in strip
    assert "[a]␣[b]" in strip
    assert ":smile:" in strip


def test_previous_and_next_walk_the_documents(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{dashboard.url}/lens?run={GOOD}&step=1&layer=2&stat=kl")
    wait_for_map(page)
    page.get_by_role("button", name="chevron_right").click()
    expect(page.get_by_text("Document (2 of 3)")).to_be_visible()
    assert params(page) == {"run": GOOD, "doc": "1", "stat": "kl"}
    page.go_back()
    expect(page.get_by_text("Document (1 of 3)")).to_be_visible()
    panel(page, 2, 1)


def test_every_sample_run_opens(dashboard: Dashboard, tab: Tab) -> None:
    """Nothing to open is no failure: the sample runs are checked by tests of their own."""
    runs = [open_run(path) for path in find_runs(SAMPLES)] if SAMPLES.is_dir() else []
    for run in runs:
        tab.page.goto(f"{dashboard.url}/lens?run={run.run_id}")
        wait_for_map(tab.page)
        expect(tab.page.get_by_text("step 0", exact=False).first).to_be_visible()
