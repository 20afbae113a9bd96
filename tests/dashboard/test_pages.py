"""Every page, over every kind of root: none of them fails, and each says what is the matter."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from dashboard import views
from tests.dashboard.conftest import GOOD, OTHER, ROOTS, Open, words

VIEWS = [module.name for module in pkgutil.iter_modules(views.__path__)]
APP = Path(__file__).parents[2] / "dashboard" / "app.py"


@pytest.mark.parametrize("kind", ROOTS)
@pytest.mark.parametrize("view", VIEWS)
def test_no_page_fails(view: str, kind: str, root: Path, page: Open) -> None:
    ROOTS[kind](root)
    assert not page(view).exception


@pytest.mark.parametrize("kind", ["no_about", "garbage", "truncated", "rotten", "newer"])
@pytest.mark.parametrize("view", VIEWS)
def test_a_broken_run_disturbs_no_other(view: str, kind: str, root: Path, page: Open) -> None:
    ROOTS[kind](root)
    assert not page(view, run=OTHER).exception
    assert "good" in words(page("runs", run=GOOD))
    assert page("lens", run=GOOD).get("plotly_chart")


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_declares_itself(view: str) -> None:
    module = importlib.import_module(f"{views.__name__}.{view}")
    assert module.TITLE
    assert module.ICON.startswith(":material/")
    assert isinstance(module.ORDER, int)
    assert module.URL_PATH.isidentifier()
    assert callable(module.render)


def test_views_have_paths_and_places_of_their_own() -> None:
    modules = [importlib.import_module(f"{views.__name__}.{view}") for view in VIEWS]
    assert len({module.URL_PATH for module in modules}) == len({module.ORDER for module in modules}) == len(modules)


def test_the_app_opens_on_runs(root: Path) -> None:
    ROOTS["good"](root)
    test = AppTest.from_file(str(APP), default_timeout=30).run()
    assert not test.exception
    assert len(test.dataframe) == 1


def test_a_view_that_cannot_be_imported_raises(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "views"
    folder.mkdir()
    (folder / "broken.py").write_text("raise RuntimeError('broken view')", encoding="utf-8")
    monkeypatch.setattr(views, "__path__", [*views.__path__, str(folder)])
    test = AppTest.from_file(str(APP), default_timeout=30).run()
    assert [item.message for item in test.exception] == ["broken view"]


def test_roots_that_do_not_exist_are_an_empty_list(root: Path, page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERSCOPE_ROOTS", str(root / "nowhere"))
    assert "layerscope record" in words(page("runs"))
    assert "no readable run" in words(page("lens")).replace("\\", "")
