"""Small browser widgets that Streamlit lacks, one file each: data in, one `clicked` value out. Text goes in as data,
through textContent, never as HTML."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import streamlit as st


@functools.cache
def mounted(name: str, html: str, css: str, js: str) -> Any:
    """The component, registered once a process."""
    return st.components.v2.component(f"layerscope_{name}", html=html, css=css, js=js)


def clicked(key: str, act: Callable[[Any], None]) -> Callable[[], None]:
    """Callback that hands the value just clicked to `act`."""

    def on_change() -> None:
        value = getattr(st.session_state.get(key), "clicked", None)
        if value is not None:
            act(value)

    return on_change
