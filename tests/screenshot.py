"""The README's picture: the Lens page over sample_runs, served by `layerscope dashboard`, in real Chromium.

python -m tests.screenshot [FILE]          default: sample_runs/lens.png
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Page, expect, sync_playwright

from recorder.store import open as open_store
from tests.browser.conftest import REPO, answers, chromium, free_port

SAMPLES = REPO / "sample_runs"
SIZE = {"width": 1280, "height": 860}


def address(url: str) -> str:
    """A generation whose layers tell a story, as a link."""
    store = open_store(SAMPLES)
    run = next(run for run in store.runs if "all positions" in str(run.about["config"].get("name")))
    view = {"run": run.run_id, "task": "prompts_generate", "doc": 0, "stat": "top1", "step": 0, "layer": 3}
    return f"{url}/lens?{urlencode(view)}"


def take(page: Page, url: str, target: Path) -> None:
    page.goto(address(url))
    expect(page.get_by_test_id("stPlotlyChart")).to_be_visible(timeout=60_000)
    page.wait_for_timeout(2500)
    page.screenshot(path=str(target))


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else SAMPLES / "lens.png"
    port = free_port()
    command = [sys.executable, "-m", "recorder.cli", "dashboard", str(SAMPLES), "--port", str(port), "--no-browser"]
    server = subprocess.Popen(command)
    try:
        url = f"http://127.0.0.1:{port}"
        while not answers(url):
            time.sleep(0.3)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
            take(browser.new_page(viewport=SIZE, color_scheme="light"), url, target)  # type: ignore[arg-type]
            browser.close()
    finally:
        server.terminate()
        server.wait(timeout=20)


if __name__ == "__main__":
    main()
