"""The URL is the view state; the store is opened once, and what it answers is cached by (run, revision)."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import streamlit as st

import recorder
from dashboard import tokens
from recorder.rundir import Run
from recorder.store import Store

ROOTS = "LAYERSCOPE_ROOTS"
LOOK_AGAIN = 2.0
"""Seconds for which what the directories held is taken to be what they hold."""

T = TypeVar("T", bound=Hashable)


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
    return recorder.open(there)


@st.cache_data(max_entries=4, ttl=LOOK_AGAIN, show_spinner=False)
def _look_again(there: tuple[str, ...], _store: Store) -> None:
    _store.refresh()


def ask(query: Callable[..., pd.DataFrame], run: Run, *filters: Hashable) -> pd.DataFrame:
    """query(store, run_id, *filters), computed once for each revision of the run."""
    name = f"{query.__module__}.{query.__qualname__}"
    return _ask(name, str(run.path), run.revision, filters, store(), run.run_id, query)


@st.cache_data(max_entries=512, show_spinner=False)
def _ask(
    name: str, path: str, revision: str, filters: tuple[Hashable, ...], _store: Store, _run_id: str, _query: Any
) -> pd.DataFrame:
    return _query(_store, _run_id, *filters)


def read(name: str, default: str = "") -> str:
    """A parameter of the URL."""
    return st.query_params.get(name, default)


def write(**values: object) -> None:
    """Change parameters of the URL; None or '' removes one. Several changes are one step of the browser's history."""
    wanted = {**st.query_params.to_dict(), **{name: str(value) for name, value in values.items() if value is not None}}
    gone = {name for name, value in values.items() if value is None or value == ""}
    st.query_params.from_dict({name: value for name, value in wanted.items() if name not in gone})


def pick(name: str, what: str, options: Sequence[T], default: T) -> T:
    """The option that the URL names; where it names none of them, says so and gives the nearest."""
    asked = read(name)
    if not asked:
        return default
    found = {str(option): option for option in options}
    if asked in found:
        return found[asked]
    nearest = _nearest(asked, options, default)
    with st.session_state.get("notices") or st.container():
        say(f"This link names {what} {asked}, which is not here: showing {what} {nearest} instead.", kind="warning")
    return nearest


def _nearest(asked: str, options: Sequence[T], default: T) -> T:
    numbers = [option for option in options if isinstance(option, int)]
    if not numbers or not asked.lstrip("-").isdecimal():
        return default
    return min(numbers, key=lambda option: abs(option - int(asked)))


def open_notices() -> None:
    """Room at the top of the page, for what `pick` has to say."""
    st.session_state["notices"] = st.container()


def bound(name: str, value: object, forget: Iterable[str] = ()) -> dict[str, Any]:
    """Arguments that tie a widget to a URL parameter: it shows `value`, and a change is written to the URL, which
    then forgets the parameters that hung on the old one."""
    key = f"url:{name}"
    st.session_state[key] = value
    return {"key": key, "on_change": _changed, "args": (key, name, tuple(forget))}


def _changed(key: str, name: str, forget: tuple[str, ...]) -> None:
    write(**dict.fromkeys(forget), **{name: st.session_state[key]})


def remember_pages(pages: Mapping[str, Any]) -> None:
    """Page objects by URL path, so that one view can open another without importing it."""
    st.session_state["pages"] = dict(pages)


def open_page(url_path: str, **params: object) -> None:
    """Leave for another page of the app."""
    st.switch_page(st.session_state["pages"][url_path], query_params={k: str(v) for k, v in params.items()})


def say(text: str, *, kind: str = "info") -> None:
    """A message whose text is data: nothing in it is read as Markdown. `kind`: info, warning or error."""
    icons = {"info": ":material/info:", "warning": ":material/warning:", "error": ":material/error:"}
    {"info": st.info, "warning": st.warning, "error": st.error}[kind](tokens.markdown(text), icon=icons[kind])


def dark() -> bool:
    """The browser shows the dark theme."""
    return st.context.theme.type == "dark"
