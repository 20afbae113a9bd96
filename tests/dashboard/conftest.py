"""Roots of runs, and pages over them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from dashboard import state
from tests.dashboard import synthetic
from tests.dashboard.synthetic import Spec

GOOD = "20261130t214500z-aaaaaa"
OTHER = "20261130t214500z-bbbbbb"

SCRIPT = """
from dashboard import controls
from dashboard.views import {view}
with controls.troubles():
    {view}.render()
"""
Open = Callable[..., AppTest]


def good(root: Path) -> None:
    synthetic.write(root, Spec(GOOD, name="good", steps=3))


def empty(root: Path) -> None:
    """No run at all."""


def no_about(root: Path) -> None:
    good(root)
    (root / OTHER / "parts").mkdir(parents=True)


def garbage(root: Path) -> None:
    good(root)
    (root / OTHER).mkdir()
    (root / OTHER / "run.json").write_text("{garb", encoding="utf-8")


def truncated(root: Path) -> None:
    good(root)
    table = synthetic.write(root, Spec(OTHER)) / "tables" / "signals.parquet"
    table.write_bytes(table.read_bytes()[:100])


def rotten(root: Path) -> None:
    """A Parquet file whole to look at, whose pages are not."""
    good(root)
    table = synthetic.write(root, Spec(OTHER)) / "tables" / "requests.parquet"
    data = bytearray(table.read_bytes())
    data[4:200] = b"\xff" * 196
    table.write_bytes(bytes(data))


def newer(root: Path) -> None:
    good(root)
    synthetic.write(root, Spec(OTHER, about={"format": 99}))


def live(root: Path) -> None:
    synthetic.write(root, Spec(GOOD, name="good", finished=False, state="running", living=True))


def begun(root: Path) -> None:
    """A live run that has written nothing yet."""
    synthetic.write(root, Spec(GOOD, documents=0, finished=False, state="loading", living=True))


def lost(root: Path) -> None:
    synthetic.write(root, Spec(GOOD, finished=False, state="running"))


def no_signals(root: Path) -> None:
    synthetic.write(root, Spec(GOOD, signals=()))


ROOTS = {
    make.__name__: make
    for make in (good, empty, no_about, garbage, truncated, rotten, newer, live, begun, lost, no_signals)
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty root of runs that the pages look at."""
    monkeypatch.setenv(state.ROOTS, str(tmp_path))
    st.cache_data.clear()
    st.cache_resource.clear()
    return tmp_path


@pytest.fixture
def page(root: Path) -> Open:
    """page("lens", run=..., doc=...): that view, drawn over `root`."""

    def open_page(view: str, **params: object) -> AppTest:
        test = AppTest.from_string(SCRIPT.format(view=view), default_timeout=30)
        for name, value in params.items():
            test.query_params[name] = str(value)
        return test.run()

    return open_page


def words(test: AppTest) -> str:
    """All that a page says, as one text."""
    kinds = ("markdown", "caption", "info", "warning", "error", "subheader", "html", "code")
    return "\n".join(str(element.proto) for kind in kinds for element in test.get(kind))


def parameters(test: AppTest) -> dict[str, str]:
    """The URL's parameters; older Streamlit gives each as a list."""
    return {k: v[0] if isinstance(v, list) else v for k, v in dict(test.query_params).items()}
