"""The list of runs, while runs come, end and are chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import expect

from dashboard.state import LOOK_AGAIN
from recorder.rundir import write_json
from tests.browser import conftest
from tests.browser.conftest import GOOD, LONG, Dashboard, Tab, params, select_row
from tests.dashboard import synthetic
from tests.dashboard.synthetic import Spec

pytestmark = pytest.mark.browser


def end(run: Path) -> None:
    """Say that the recording failed, as its process would."""
    status = json.loads((run / "status.json").read_text())
    write_json(run / "status.json", {**status, "state": "failed", "message": "out of memory"})


def test_a_live_run_is_followed_to_its_end(dashboard: Dashboard, tab: Tab, request: pytest.FixtureRequest) -> None:
    theme = request.node.name.rsplit("[", 1)[1].rstrip("]")
    spec = Spec(f"20261130t214500z-{theme}", name=theme, finished=False, state="running", living=True)
    run = synthetic.write(dashboard.root, spec)
    page = tab.page
    page.wait_for_timeout(1000 * LOOK_AGAIN)  # while nothing is live, a new run is noticed by the next look
    page.goto(f"{dashboard.url}/?run={spec.run_id}")
    expect(page.get_by_text("3 of 6 documents, 1.5 a second, 4 s left")).to_be_visible()
    end(run)
    expect(page.get_by_text("The recording failed: out of memory")).to_be_visible()
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


def test_without_chromium_the_tests_fail_and_name_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest.shutil, "which", lambda name: None)
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        conftest.chromium()
