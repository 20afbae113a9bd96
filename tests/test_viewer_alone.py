"""A viewer installed without the `record` extra works: every page over sample_runs, with torch out of reach."""

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
import pkgutil
from dashboard import views
from streamlit.testing.v1 import AppTest
for view in sorted(module.name for module in pkgutil.iter_modules(views.__path__)):
    page = AppTest.from_string(f"from dashboard.views import {{view}}\\n{{view}}.render()", default_timeout=60).run()
    assert not page.exception, page.exception
    print(view, len(page.get("plotly_chart")), len(page.dataframe))
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LAYERSCOPE_ROOTS": str(REPO / "sample_runs")}
    return subprocess.run(
        [sys.executable, *command], cwd=REPO, env=environment, capture_output=True, text=True, check=False
    )


def test_every_page_draws_without_torch() -> None:
    found = run("-c", SCRIPT)
    assert found.returncode == 0, found.stderr
    drawn = {view: (int(charts), int(tables)) for view, charts, tables in map(str.split, found.stdout.splitlines())}
    assert drawn["runs"] == (0, 1)
    assert {"compare", "documents", "lens", "overview", "similarity", "sql", "steps"} < set(drawn)
    assert all(drawn[view][0] > 0 for view in ("lens", "overview", "similarity", "steps"))


def test_the_bar_would_notice_torch() -> None:
    assert run("-c", SCRIPT.replace("from streamlit", "import torch\nfrom streamlit")).returncode != 0
