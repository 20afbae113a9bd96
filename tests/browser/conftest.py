"""A server over small runs, and a real Chromium in front of it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.dashboard import synthetic
from tests.dashboard.synthetic import Spec

REPO = Path(__file__).parents[2]
ARTIFACTS = REPO / "artifacts"
GOOD = "20261130t214500z-aaaaaa"
LONG = "20261130t214500z-bbbbbb"
STARTS_IN = 60.0
"""Seconds that the server may take."""


@dataclass
class Dashboard:
    """A running server and the runs under it."""

    url: str
    root: Path


@dataclass
class Tab:
    """A page and what its console complained of."""

    page: Page
    errors: list[str] = field(default_factory=list)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def chromium() -> str:
    """Path of the browser; its absence fails the tests, for a browser test that is skipped tests nothing."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    return found or pytest.fail("browser tests need Chromium: apt-get install chromium", pytrace=False)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2) as reply:
            return reply.status == 200
    except (urllib.error.URLError, TimeoutError):
        return False


@pytest.fixture(scope="session")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    root = tmp_path_factory.mktemp("runs")
    synthetic.write(root, Spec(GOOD, name="good", steps=3))
    synthetic.write(root, Spec(LONG, name="long", steps=60, prompt_steps=4, tasks=("write",)))
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "streamlit", "run", "dashboard/app.py", "--server.port", str(port)]
    quiet = ["--server.address", "127.0.0.1", "--server.headless", "true", "--browser.gatherUsageStats", "false"]
    quiet += ["--server.fileWatcherType", "none"]
    roots = os.pathsep.join([str(root), *(str(path) for path in [REPO / "sample_runs"] if path.is_dir())])
    with (root.parent / "server.log").open("w") as log:
        process = subprocess.Popen(
            [*command, *quiet], cwd=REPO, env={**os.environ, "LAYERSCOPE_ROOTS": roots}, stdout=log, stderr=log
        )
        try:
            ends = time.monotonic() + STARTS_IN
            while not answers(url):
                assert process.poll() is None, (root.parent / "server.log").read_text()
                assert time.monotonic() < ends, f"the dashboard did not answer within {STARTS_IN} s"
                time.sleep(0.2)
            yield Dashboard(url, root)
        finally:
            process.terminate()
            process.wait(timeout=20)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = chromium()
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


def params(page: Page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def select_row(page: Page, row: int) -> None:
    """Tick a row of the table of runs, which is drawn on a canvas."""
    table = page.get_by_test_id("stDataFrame")
    expect(table).to_have_count(1)  # while the page is drawn again, the old table is still there
    page.wait_for_timeout(700)
    table.click(position={"x": 16, "y": 36 + 35 * row + 17})


def is_streamlits_own(message: ConsoleMessage) -> bool:
    """Asked for a page by its path, Streamlit looks for its server under that path first, and is answered 404."""
    return message.location.get("url", "").endswith(("/_stcore/health", "/_stcore/host-config"))


def open_tab(browser: Browser, theme: str) -> Tab:
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=theme)  # type: ignore[arg-type]
    page.set_default_timeout(30_000)
    tab = Tab(page)
    page.on("pageerror", lambda error: tab.errors.append(str(error)))
    page.on(
        "console",
        lambda message: (
            tab.errors.append(message.text) if message.type == "error" and not is_streamlits_own(message) else None
        ),
    )
    return tab


@pytest.fixture(params=["light", "dark"])
def tab(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Tab]:
    """A fresh tab in each theme. Whatever its console complained of fails the test."""
    opened = open_tab(browser, request.param)
    yield opened
    ARTIFACTS.mkdir(exist_ok=True)
    opened.page.screenshot(path=ARTIFACTS / f"{request.node.name.replace('[', '-').rstrip(']')}.png", full_page=True)
    opened.page.close()
    assert opened.errors == []
