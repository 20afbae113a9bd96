"""Two runs compared as a person does it: chosen from what is offered, read, narrowed, looked into, swapped."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Dashboard, Tab, open_tab, params
from tests.dashboard import comparable
from tests.dashboard.comparable import Doc, Made

pytestmark = pytest.mark.browser

A, B = "20261130t214500z-c0a000", "20261130t214500z-c0b000"
BOTH = f"{A},{B}"
CELL = """([key, column, row]) => {
    const plot = document.querySelector(`.st-key-chart_map-${key} .js-plotly-plot`), layout = plot._fullLayout;
    plot.scrollIntoView({block: 'center'});
    const box = plot.getBoundingClientRect();
    return [box.left + layout._size.l + layout.xaxis.d2p(column), box.top + layout._size.t + layout.yaxis.d2p(row)];
}"""
"""Where a cell of a heatmap is drawn, in pixels of the window."""


@pytest.fixture(scope="module")
def runs(dashboard: Dashboard) -> str:
    """Two runs of 30 documents: A right on 10 of them, B on 25."""
    for run_id, name, right in ((A, "compared, early", 10), (B, "compared, late", 25)):
        docs = [Doc(f"q{at}", at < right) for at in range(30)]
        comparable.write(dashboard.root, run_id, docs, Made(name, shift=-0.6 if run_id == A else 0))
    return BOTH


def wait_for_maps(page: Page, count: int = 3) -> None:
    expect(page.locator(".js-plotly-plot .heatmaplayer image")).to_have_count(count, timeout=30_000)
    expect(page.get_by_test_id("stStatusWidget")).to_have_count(0)


def test_it_reads_in_both_themes(dashboard: Dashboard, runs: str, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{dashboard.url}/compare?runs={runs}&pair=wr&doc=12&stat=target")
    wait_for_maps(page)
    expect(page.get_by_text("on the 30 documents in both")).to_be_visible()
    expect(page.get_by_text("Right in B alone (15)")).to_be_visible()
    expect(page.get_by_text("B − A, target log-probability")).to_be_visible()
    width = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width[0] <= width[1]


def test_from_an_offer_into_a_cell_and_back(dashboard: Dashboard, runs: str, browser: Browser) -> None:
    tab = open_tab(browser, "light")
    page = tab.page
    page.goto(f"{dashboard.url}/compare?run={A}")
    page.get_by_role("button", name="compared, late, on facts").click()
    expect(page.get_by_text("is higher")).to_be_visible(timeout=30_000)
    assert params(page) == {"runs": runs}
    page.locator(".st-key-crosses_1").get_by_role("link", name="15").click()
    page.wait_for_url("**/documents?**")
    assert params(page) == {"run": A, "vs": B, "pair": "wr", "task": "facts", "filter": "none"}
    page.go_back()
    wait_for_maps(page)
    page.get_by_role("radio", name="Right in B alone (15)").click()
    expect(page.get_by_text("of the 15 documents in all runs that are right in B alone")).to_be_visible()
    wait_for_maps(page)
    page.mouse.click(*page.evaluate(CELL, ["difference", 1, 2]))
    expect(page.get_by_text("Layer 2 of 4, step 1", exact=True)).to_have_count(2)
    assert params(page) == {"runs": runs, "pair": "wr", "step": "1", "layer": "2"}
    page.get_by_role("button", name="Swap A and B").click()
    expect(page.get_by_text("Right in A alone (15)")).to_be_visible()
    assert params(page)["runs"] == f"{B},{A}"
    page.go_back()
    expect(page.get_by_text("Layer 2 of 4, step 1", exact=True)).to_have_count(2)
    page.close()
    assert tab.errors == []
