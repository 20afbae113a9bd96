"""A viewer installed without the `record` extra works: both pages over sample_runs, with torch out of reach."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
BARRED = ("torch", "transformers", "lm_eval", "numba", "datasets", "safetensors")
SCRIPT = f"""
import sys
from importlib.abc import MetaPathFinder

class Bar(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BARRED!r}:
            raise ImportError(f"{{name}} is not installed")

sys.meta_path.insert(0, Bar())
from streamlit.testing.v1 import AppTest
for view in ("runs", "lens"):
    page = AppTest.from_string(f"from dashboard.views import {{view}}\\n{{view}}.render()", default_timeout=60).run()
    assert not page.exception, page.exception
    print(view, len(page.get("plotly_chart")), len(page.dataframe))
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LAYERSCOPE_ROOTS": str(REPO / "sample_runs")}
    return subprocess.run(
        [sys.executable, *command], cwd=REPO, env=environment, capture_output=True, text=True, check=False
    )


def test_both_pages_draw_without_torch() -> None:
    found = run("-c", SCRIPT)
    assert found.returncode == 0, found.stderr
    assert "runs 0 1" in found.stdout
    assert "lens 1 " in found.stdout


def test_the_bar_would_notice_torch() -> None:
    assert run("-c", SCRIPT.replace("from streamlit", "import torch\nfrom streamlit")).returncode != 0
