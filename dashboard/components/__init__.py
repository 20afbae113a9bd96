"""Small browser widgets that Streamlit lacks, one file each: data in, one `clicked` value out. Text goes in as data,
through textContent, never as HTML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st


def mounted(name: str, html: str, css: str, js: str) -> Any:
    """The component, registered once a session: the first page of a process may belong to a test, not to the server."""
    key = f"component:{name}"
    if key not in st.session_state:
        st.session_state[key] = st.components.v2.component(f"layerscope_{name}", html=html, css=css, js=js)
    return st.session_state[key]


def clicked(key: str, act: Callable[[Any], None]) -> Callable[[], None]:
    """Callback that hands the value just clicked to `act`."""

    def on_change() -> None:
        value = getattr(st.session_state.get(key), "clicked", None)
        if value is not None:
            act(value)

    return on_change
