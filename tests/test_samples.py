"""What is committed under sample_runs is what it says it is."""

from __future__ import annotations

import importlib.util
import json
import os
import pkgutil
import re
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from transformers import AutoModelForCausalLM, AutoTokenizer

from dashboard import views
from recorder.check import check_run
from recorder.looking import find_runs
from recorder.store import open as open_store

SAMPLES = Path(__file__).resolve().parents[1] / "sample_runs"
TINY = SAMPLES / "models" / "tiny"
RUNS = sorted(find_runs(SAMPLES))
ABSOLUTE = re.compile(r'"(/(?!/)[^"]*/[^"]*|[A-Za-z]:\\[^"]*)"')


def test_the_tiny_model_is_as_good_as_its_readme_says() -> None:
    spec = importlib.util.spec_from_file_location("tiny_train", TINY / "train.py")
    assert spec is not None
    assert spec.loader is not None
    train = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)
    found = train.evaluate(AutoModelForCausalLM.from_pretrained(TINY), AutoTokenizer.from_pretrained(TINY))
    stated = json.loads((TINY / "accuracy.json").read_text())
    readme = (TINY / "README.md").read_text(encoding="utf-8").splitlines()
    assert found.keys() == stated.keys()
    for kind, accuracy in stated.items():
        assert found[kind] == pytest.approx(accuracy, abs=0.03), kind
        assert f"| {100 * accuracy:.1f} % |" in next(line for line in readme if line.startswith(f"| `{kind}` |"))


def test_there_are_runs_of_both_models() -> None:
    models = [str(run.about["config"]["model"]) for run in open_store(SAMPLES).runs]
    assert len(models) >= 4
    assert {Path(model).name for model in models} == {"tiny", "SmolLM2-135M-Instruct"}


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_each_run_is_whole_and_true(path: Path) -> None:
    report = check_run(path)
    assert report.run.state == "complete"
    assert report.failed == []
    assert len(report.passed) >= 10


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_no_run_names_the_machine_that_made_it(path: Path) -> None:
    for file in path.glob("*.json"):
        assert ABSOLUTE.findall(file.read_text(encoding="utf-8")) == [], file.name


def test_all_of_it_is_under_15_megabytes() -> None:
    size = sum(os.path.getsize(Path(root) / name) for root, _, names in os.walk(SAMPLES) for name in names)
    assert size < 15e6


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
@pytest.mark.parametrize("view", [module.name for module in pkgutil.iter_modules(views.__path__)])
def test_each_run_opens_on_every_page(view: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERSCOPE_ROOTS", str(SAMPLES))
    page = AppTest.from_string(f"from dashboard.views import {view}\n{view}.render()", default_timeout=60)
    page.query_params["run"] = path.name
    page.run()
    assert not page.exception
    assert not page.error
    if view in ("lens", "overview", "similarity", "steps"):
        assert page.get("plotly_chart")
