"""The URL is the view state; the store is opened once, and what it answers is cached by (run, revision)."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from recorder.rundir import Run
from recorder.store import Store, StoreError
from recorder.store import open as open_store

ROOTS = "LAYERSCOPE_ROOTS"
LOOK_AGAIN = 2.0
"""Seconds for which what the directories held is taken to be what they hold."""


def roots() -> tuple[str, ...]:
    """Directories of runs, from the environment. Default: runs."""
    return tuple(root for root in os.environ.get(ROOTS, "").split(os.pathsep) if root) or ("runs",)


def store() -> Store:
    """The store over the roots that exist, its list of runs at most LOOK_AGAIN seconds old."""
    there = tuple(root for root in roots() if Path(root).is_dir())
    opened = _open(there)
    _look_again(there, opened)
    return opened


@st.cache_resource(max_entries=4, show_spinner=False)
def _open(there: tuple[str, ...]) -> Store:
    return open_store(there)


@st.cache_data(max_entries=4, ttl=LOOK_AGAIN, show_spinner=False)
def _look_again(there: tuple[str, ...], _store: Store) -> None:
    _store.refresh()


def ask(query: Callable[..., pd.DataFrame], run: Run, *filters: Hashable) -> pd.DataFrame:
    """query(store, run_id, *filters), computed once for each revision of the run. Raises StoreError where the run
    cannot be read."""
    name = f"{query.__module__}.{query.__qualname__}"
    try:
        return _ask(name, str(run.path), run.revision, filters, store(), run.run_id, query)
    except StoreError as error:
        raise StoreError(f"The run {run.run_id} cannot be read: {error}") from error


@st.cache_data(max_entries=512, show_spinner=False)
def _ask(
    name: str, path: str, revision: str, filters: tuple[Hashable, ...], _store: Store, _run_id: str, _query: Any
) -> pd.DataFrame:
    rows = _query(_store, _run_id, *filters)
    asked = _store.run(_run_id)
    if asked is not None and asked.problem:  # found rotten while it was read: the store has set it aside
        raise StoreError(asked.problem.removeprefix("cannot be read: "))
    return rows


def read(name: str, default: str = "") -> str:
    """A parameter of the URL."""
    return st.query_params.get(name, default)


def write(**values: object) -> None:
    """Change parameters of the URL; None or '' removes one. Several changes are one step of the browser's history."""
    wanted = {**st.query_params.to_dict(), **{name: str(value) for name, value in values.items() if value is not None}}
    gone = {name for name, value in values.items() if value is None or value == ""}
    st.query_params.from_dict({name: value for name, value in wanted.items() if name not in gone})


def remember_pages(pages: Mapping[str, Any]) -> None:
    """Page objects by URL path, so that one view can open another without importing it."""
    st.session_state["pages"] = dict(pages)


def open_page(url_path: str, **params: object) -> None:
    """Leave for another page of the app."""
    st.switch_page(st.session_state["pages"][url_path], query_params={k: str(v) for k, v in params.items()})
