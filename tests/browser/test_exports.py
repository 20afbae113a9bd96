"""The export of a chart, saved by the browser and read back; and the bar of pages, which keeps what is looked at."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import GOOD, Dashboard, Tab, params

pytestmark = pytest.mark.browser


def save(page: Page, button: str, folder: Path) -> bytes:
    """The file that a button of the export saves."""
    with page.expect_download() as saved:
        page.get_by_test_id("stPopoverBody").get_by_role("button", name=button, exact=True).click()
    saved.value.save_as(folder / saved.value.suggested_filename)
    return (folder / saved.value.suggested_filename).read_bytes()


def test_what_is_shown_is_saved(dashboard: Dashboard, tab: Tab, tmp_path: Path) -> None:
    page = tab.page
    page.goto(f"{dashboard.url}/lens?run={GOOD}&task=facts&doc=1")
    page.wait_for_selector(".js-plotly-plot .heatmaplayer image", state="attached")
    page.get_by_role("button", name="Export").first.click()
    assert save(page, "PNG", tmp_path).startswith(b"\x89PNG")
    drawing = ElementTree.fromstring(save(page, "SVG", tmp_path))
    assert drawing.tag.endswith("svg")
    assert any("Layer" in (element.text or "") for element in drawing.iter())
    assert "plotly" in save(page, "Standalone HTML", tmp_path).decode().lower()
    rows = pq.read_table(io.BytesIO(save(page, "Parquet", tmp_path)))
    assert rows.num_rows == len(pd.read_csv(io.BytesIO(save(page, "CSV", tmp_path)))) > 0
    expect(page.get_by_test_id("stPopoverBody").get_by_text("FROM signals").first).to_be_visible()


def test_another_page_shows_the_same_run_and_document(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{dashboard.url}/lens?run={GOOD}&task=facts&doc=1&stat=kl")
    expect(page.get_by_text("Document (2 of 3)")).to_be_visible()
    page.locator(".st-key-pages").get_by_role("link", name="Runs").click()
    expect(page.get_by_role("heading", name="good")).to_be_visible()
    page.locator(".st-key-pages").get_by_role("link", name="Lens").click()
    expect(page.get_by_text("Document (2 of 3)")).to_be_visible()
    assert params(page) == {"run": GOOD, "task": "facts", "doc": "1"}
