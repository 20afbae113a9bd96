"""Finding a document by its text, reading it, and opening it in Lens."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from recorder.looking import find_runs, open_run
from tests.browser.conftest import REPO, Dashboard, Tab, params

pytestmark = pytest.mark.browser

SOON = 30_000
"""Milliseconds that a page may take on a busy machine."""

FACTS = next(
    run
    for run in map(open_run, find_runs(REPO / "sample_runs"))
    if run.about["config"]["name"] == "SmolLM2, facts, zero-shot"
)


def test_find_read_and_open_a_document(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{dashboard.url}/documents?run={FACTS.run_id}")
    expect(page.get_by_text("1–40 of 40 documents of the task.")).to_be_visible(timeout=SOON)
    page.get_by_role("textbox", name="Text").fill("PLANET")
    page.keyboard.press("Enter")
    expect(page.get_by_text("1–2 of 2 documents that match, of 40.")).to_be_visible(timeout=SOON)
    page.get_by_role("radio", name="Wrong").click()
    expect(page.get_by_text("of 1 document that matches, of 40.")).to_be_visible(timeout=SOON)
    page.wait_for_timeout(700)
    page.get_by_test_id("stDataFrame").click(position={"x": 300, "y": 36 + 17})
    expect(page.get_by_text("Document 4", exact=True)).to_be_visible(timeout=SOON)
    assert params(page) == {"run": FACTS.run_id, "q": "PLANET", "correct": "wrong", "doc": "4"}
    page.get_by_role("button", name="Clear", exact=True).click()
    expect(page.get_by_text("1–40 of 40 documents of the task.")).to_be_visible(timeout=SOON)
    opens = page.get_by_role("link", name="Open in Lens")
    expect(opens).to_have_count(1, timeout=SOON)  # while the page is drawn again, the old one is still there
    opens.click()
    expect(page.get_by_text("Document (5 of 40)")).to_be_visible(timeout=SOON)
    page.go_back()
    expect(page.get_by_text("1–40 of 40 documents of the task.")).to_be_visible(timeout=SOON)
    expect(page.get_by_text("Document 4", exact=True)).to_be_visible(timeout=SOON)
    page.reload()
    expect(page.get_by_text("Document 4", exact=True)).to_be_visible(timeout=SOON)
