"""From a run's curves to the documents behind one bar, and back."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from recorder.looking import find_runs, open_run
from tests.browser.conftest import REPO, Dashboard, Tab, params

pytestmark = pytest.mark.browser

SOON = 30_000
"""Milliseconds that a page may take on a busy machine."""

TINY = next(
    run for run in map(open_run, find_runs(REPO / "sample_runs")) if run.about["config"]["tasks"] == ["ls_all_tiny"]
)


def bar(page: Page, trace: int, layer: int) -> None:
    """Click the middle of a bar: trace 1 and 3 are the clear bars, as high as the chart, over the groups' own."""
    found = page.locator(".st-key-chart_overview_settled .bars").nth(trace).locator(".point").nth(layer)
    found.scroll_into_view_if_needed()
    box = found.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 4)
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 4)


def test_from_a_curve_to_its_documents(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{dashboard.url}/overview?run={TINY.run_id}&task=ls_tiny_choice")
    expect(page.get_by_text("Score check: recorded steps sum to")).to_be_visible(timeout=SOON)
    expect(page.locator(".st-key-chart_overview_curves .scatterlayer .trace")).to_have_count(15 + 12, timeout=SOON)
    page.get_by_role("radio", name="95 % CI of the mean").click()
    expect(page.get_by_text("clustered by document, with one degree of freedom less")).to_be_visible(timeout=SOON)
    expect(page.locator(".st-key-chart_overview_curves .scatterlayer .trace")).to_have_count(15 + 15, timeout=SOON)
    assert params(page)["band"] == "ci"
    page.wait_for_timeout(500)
    bar(page, 3, 1)  # incorrect, layer 1: 6 % of its steps
    expect(page.get_by_text("1–3 of 3 documents that match, of 42.")).to_be_visible(timeout=SOON)
    place = {"run": TINY.run_id, "task": "ls_tiny_choice", "band": "ci"}
    assert params(page) == {**place, "correct": "wrong", "settle": "1-1"}
    page.go_back()
    expect(page.get_by_text("clustered by document, with one degree of freedom less")).to_be_visible(timeout=SOON)
    page.get_by_role("link", name="Incorrect: 6 documents, 50 steps").click()
    expect(page.get_by_text("1–6 of 6 documents that match, of 42.")).to_be_visible(timeout=SOON)
