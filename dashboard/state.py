"""The URL is the view state; the store is opened once, and what it answers is cached by (run, revision)."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pandas as pd
import streamlit as st

from recorder.rundir import Run
from recorder.store import Selection, Store, StoreError, Watch, transcript
from recorder.store import open as open_store

ROOTS = "LAYERSCOPE_ROOTS"
SECONDS = "LAYERSCOPE_QUERY_SECONDS"
SILENT = 0.4
"""Seconds for which a page waits before it says that it is reading."""
WORKERS = ThreadPoolExecutor(max_workers=8, thread_name_prefix="layerscope-query")
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
    """query(selection of the run, *filters), computed once for each revision of the run, its SQL in attrs["sql"].

    Long work shows how far it is; leaving the page, or Streamlit's Stop, ends it. Raises StoreError where the run
    cannot be read or where it takes over `seconds_allowed()`.
    """
    return ask_runs(query, (run,), *filters)


def ask_runs(query: Callable[..., pd.DataFrame], runs: Sequence[Run], *filters: Hashable) -> pd.DataFrame:
    """`ask` over several runs at once."""
    name = f"{query.__module__}.{query.__qualname__}"
    of = tuple((str(run.path), run.revision) for run in runs)
    selection, watch = store().select(*(run.run_id for run in runs)), Watch()

    def work() -> tuple[pd.DataFrame, list[str]]:
        with watch:
            return _ask(name, of, filters, selection, query)

    ids = ", ".join(run.run_id for run in runs)
    try:
        frame, frame.attrs["sql"] = _watched(WORKERS.submit(work), watch)
    except StoreError as error:
        raise StoreError(f"The run {ids} cannot be read: {error}") from error
    except TimeoutError:
        raise StoreError(
            f"What is asked of {ids} took over {seconds_allowed():g} s and was stopped. Choose a smaller part of it "
            f"(one task, one document, fewer layers or steps), or allow more: {SECONDS}=120 layerscope dashboard."
        ) from None
    return frame


def seconds_allowed() -> float:
    """Longest time for one question, from the environment. Default: 30."""
    try:
        return float(os.environ.get(SECONDS, "30"))
    except ValueError:
        return 30.0


def _watched(work: Future[Any], watch: Watch) -> Any:
    """The result; while it is awaited the page says how far it is. Whatever ends the page ends the work."""
    ends, place = time.monotonic() + seconds_allowed(), None
    try:
        while True:
            with contextlib.suppress(TimeoutError):
                return work.result(timeout=SILENT if place is None else 0.2)
            if time.monotonic() > ends:
                raise TimeoutError
            place = place or st.empty()
            place.progress(watch.share or 0.0, text="Reading the run … Stop is in the top right corner.")
    finally:
        watch.stop()
        if place is not None:
            place.empty()


@st.cache_data(max_entries=512, show_spinner=False)
def _ask(
    name: str, of: tuple[tuple[str, str], ...], filters: tuple[Hashable, ...], _selection: Selection, _query: Any
) -> tuple[pd.DataFrame, list[str]]:
    with transcript() as said:
        frame = _query(_selection, *filters)
    bad = [run.problem for run in _selection.runs if run.problem]  # found rotten while read: the store set it aside
    if bad or len(_selection.runs) < len(of):
        raise StoreError(bad[0].removeprefix("cannot be read: ") if bad else "it was deleted meanwhile")
    return frame, said


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
    st.switch_page(st.session_state["pages"][url_path], query_params=_given(params))


def link(url_path: str, label: str, *, icon: str | None = None, help: str | None = None, **params: object) -> None:
    """A link to another page of the app, which opens in its own tab too. None and '' are left out of the URL."""
    pages = st.session_state.get("pages")
    if pages:
        st.page_link(pages[url_path], label=label, icon=icon, help=help, query_params=_given(params))
    else:  # a view drawn without the app around it
        st.markdown(f"[{label}]({address(url_path, **params)})", help=help)


def address(url_path: str, **params: object) -> str:
    """The page's address, relative to the app; the first page has none but the app's own."""
    pages = st.session_state.get("pages") or {}
    path = pages[url_path].url_path if url_path in pages else url_path
    return f"{path}?{urlencode(_given(params))}"


def _given(params: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in params.items() if value is not None and value != ""}
