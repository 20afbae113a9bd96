"""The list of runs, while runs come, end, are chosen, renamed and moved."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from dashboard.state import LOOK_AGAIN
from recorder.curate import TRASH, label_of
from recorder.rundir import write_json
from tests.browser import conftest
from tests.browser.conftest import GOOD, LONG, Dashboard, Tab, open_tab, params, select_row
from tests.dashboard import synthetic
from tests.dashboard.synthetic import Spec

pytestmark = pytest.mark.browser
expect.set_options(timeout=20_000)


def say(run: Path, **changes: Any) -> None:
    """Write the run's status, as its process would."""
    status = json.loads((run / "status.json").read_text())
    write_json(run / "status.json", {**status, **changes})


def cells(page: Page, text: str) -> Locator:
    """Cells of the table, which is drawn on a canvas with its words beneath for those who do not see it."""
    return page.get_by_test_id("stDataFrame").locator("td", has_text=re.compile(f"^{re.escape(text)}$"))


def test_a_live_run_is_followed_to_its_end(dashboard: Dashboard, tab: Tab, request: pytest.FixtureRequest) -> None:
    theme = request.node.name.rsplit("[", 1)[1].rstrip("]")
    spec = Spec(f"20261130t214500z-{theme}", name=theme, finished=False, state="running", living=True)
    run = synthetic.write(dashboard.root, spec)
    page = tab.page
    page.wait_for_timeout(1000 * LOOK_AGAIN)  # while nothing is live, a new run is noticed by the next look
    page.goto(f"{dashboard.url}/?run={spec.run_id}&q=214500z-{theme}")
    expect(page.get_by_text("3 of 6 documents, 1.5 a second, 4 s left")).to_be_visible()
    expect(cells(page, "3 of 6")).to_have_count(1)
    page.get_by_role("textbox", name="Filter").fill("half typed")
    say(run, progress={"docs_done": 5, "docs_total": 6, "rate": 1.5, "seconds_left": 1.0})
    expect(cells(page, "5 of 6")).to_have_count(1)  # the table moves by itself,
    expect(page.locator("tr[aria-selected=true]")).to_have_count(1)  # what is ticked stays ticked,
    expect(page.get_by_role("heading", name=theme)).to_be_visible()
    expect(page.get_by_role("textbox", name="Filter")).to_have_value("half typed")  # and what is typed stays
    say(run, state="failed", message="out of memory")
    expect(page.get_by_text("The recording failed: out of memory")).to_be_visible()
    expect(cells(page, "✕ failed")).to_have_count(1)
    expect(page.get_by_role("progressbar")).to_have_count(0)


def test_the_back_button_chooses_the_run_before(dashboard: Dashboard, tab: Tab) -> None:
    page = tab.page
    page.goto(f"{dashboard.url}/?q=214500z-aaaaaa")
    select_row(page, 0)
    expect(page.get_by_role("heading", name="good")).to_be_visible()
    assert params(page)["run"] == GOOD
    page.get_by_role("textbox", name="Filter").fill("214500z-bbbbbb")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=214500z-bbbbbb**")
    select_row(page, 0)
    expect(page.get_by_role("heading", name="long")).to_be_visible()
    assert params(page)["run"] == LONG
    page.go_back()
    expect(page.get_by_role("heading", name="good")).to_be_visible()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab in one theme, for what looks the same in the other."""
    opened = open_tab(browser, "light")
    yield opened.page
    opened.page.close()
    assert opened.errors == []


def test_runs_are_ticked_compared_renamed_moved_and_brought_back(dashboard: Dashboard, page: Page) -> None:
    mine = [synthetic.write(dashboard.root, Spec(f"20261130t214500z-f0000{n}", name=f"mine {n}")) for n in range(2)]
    page.wait_for_timeout(1000 * LOOK_AGAIN)
    page.goto(f"{dashboard.url}/?q=214500z-f0000")
    select_row(page, 0)
    expect(page.get_by_role("heading", name="mine 1")).to_be_visible()
    select_row(page, 1)
    expect(page.get_by_role("heading", name="2 runs")).to_be_visible()
    assert set(params(page)["runs"].split(",")) == {run.name for run in mine}
    page.get_by_role("link", name="Query them in SQL").click()
    expect(page.get_by_role("textbox", name="Query")).to_be_visible()
    assert set(params(page)["runs"].split(",")) == {run.name for run in mine}
    page.go_back()
    expect(page.get_by_role("link", name="Compare 2 runs")).to_be_visible()
    select_row(page, 1)
    expect(page.get_by_role("heading", name="mine 1")).to_be_visible()
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Label").fill("mine <b>$1$</b>")
    page.get_by_role("textbox", name="Tags").fill("odd, , new one")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="mine <b>$1$</b>")).to_be_visible()
    expect(page.get_by_role("button", name="Save")).to_have_count(0)
    assert label_of(mine[1]) == {"name": "mine <b>$1$</b>", "tags": ["odd", "new one"]}
    expect(cells(page, "mine <b>$1$</b>")).to_have_count(1)
    page.get_by_role("button", name="Move to trash …").click()
    page.get_by_role("dialog").get_by_role("button", name="Move to trash", exact=True).click()
    expect(page.get_by_text("was moved to the trash")).to_be_visible()
    assert (dashboard.root / TRASH / mine[1].name).is_dir()
    expect(cells(page, "mine <b>$1$</b>")).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("heading", name="mine <b>$1$</b>")).to_be_visible()
    assert mine[1].is_dir()


def test_without_chromium_the_tests_fail_and_name_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest.shutil, "which", lambda name: None)
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        conftest.chromium()
