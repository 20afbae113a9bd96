"""The SQL page as a person uses it: an example, a query of one's own, a mistake, a chart, files, a link."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import GOOD, Dashboard, Tab, params
from tests.browser.test_exports import save

pytestmark = pytest.mark.browser
expect.set_options(timeout=20_000)

QUERY = "SELECT layer, avg(entropy) AS h, '<b>$x$</b>' AS odd FROM signals GROUP BY layer ORDER BY layer"


def editor(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Query")


def ask(page: Page, text: str) -> None:
    editor(page).fill(text)
    page.keyboard.press("Control+Enter")


def test_a_question_is_asked_drawn_saved_and_linked(dashboard: Dashboard, tab: Tab, tmp_path: Path) -> None:
    page = tab.page
    page.goto(f"{dashboard.url}/sql?run={GOOD}")
    page.get_by_role("button", name="Examples").click()
    page.get_by_role("button", name="Are wrong answers less certain, layer by layer?").click()
    expect(editor(page)).to_have_value(re.compile("<> 'all'"))
    ask(page, "SELECT entropie FROM signals")
    expect(page.get_by_text('Candidate bindings: "entropy"')).to_be_visible()
    expect(editor(page)).to_have_value("SELECT entropie FROM signals")
    ask(page, QUERY)
    expect(page.get_by_text("5 rows", exact=True)).to_be_visible()
    assert params(page)["sql"] == QUERY
    editor(page).fill(f"{QUERY} -- not yet sent")
    page.get_by_role("radio", name="Line").click()
    page.wait_for_selector(".js-plotly-plot .scatterlayer path", state="attached")
    expect(editor(page)).to_have_value(f"{QUERY} -- not yet sent")
    expect(page.locator(".js-plotly-plot .ytitle")).to_have_text("h")
    page.get_by_role("button", name="Export").click()
    assert save(page, "PNG", tmp_path).startswith(b"\x89PNG")
    rows = pq.read_table(io.BytesIO(save(page, "Parquet", tmp_path))).to_pydict()
    assert rows["layer"] == [0, 1, 2, 3, 4]
    assert rows["odd"] == ["<b>$x$</b>"] * 5
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector(".js-plotly-plot .scatterlayer path", state="attached")
    expect(editor(page)).to_have_value(QUERY)
