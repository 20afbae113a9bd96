"""Charts as the pages draw them, and what is shown as files: picture, standalone page, data, and the SQL behind it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal
from urllib.parse import urlencode

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from dashboard import state
from dashboard.components.picture import picture

Width = Literal["stretch", "content"]
CONFIG = {"displaylogo": False, "modeBarButtons": [["toImage"]], "responsive": True}
MOST_ROWS = 1_000_000
"""Rows that are written to a CSV file; Parquet has no limit."""


def theme() -> str:
    """'light' or 'dark', as the browser draws the page."""
    return "dark" if st.context.theme.type == "dark" else "light"


def chart(
    figure: go.Figure, key: str, on_click: Callable[[list[Any]], None] | None = None, width: Width = "stretch"
) -> None:
    """A figure that `offer` can save by its `key`. `on_click` is given the customdata of a clicked point."""
    figure.update_layout(paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)")
    with st.container(key=f"chart_{key}"):
        st.plotly_chart(
            figure,
            width=width,
            key=key,
            config=CONFIG,
            on_select=(lambda: _clicked(key, on_click)) if on_click else "ignore",
            selection_mode="points",
        )


def _clicked(key: str, on_click: Callable[[list[Any]], None] | None) -> None:
    points = st.session_state[key]["selection"]["points"]
    if points and on_click is not None:  # a second click on the same point clears the selection: nothing changes
        on_click(points[0]["customdata"])


def offer(name: str, frames: Sequence[pd.DataFrame], key: str, figure: go.Figure | None = None) -> None:
    """A button that opens the files of one view: its figure (drawn with `chart` under `key`), the first frame, and the
    SQL of all frames, as `state.ask` left it with them."""
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_.")[:120]
    with st.popover("Export", icon=":material/download:", help="Picture, data and SQL of what is shown"):
        if figure is not None:
            st.caption("Picture")
            shade = theme()
            picture(f"chart_{key}", stem, key=f"picture:{key}")
            _file("Standalone HTML", f"{stem}.html", "text/html", lambda: standalone(figure, shade), key)
        st.caption(f"Data: {len(frames[0]):,} rows, {len(frames[0].columns)} columns")
        with st.container(horizontal=True):
            _file("CSV", f"{stem}.csv", "text/csv", lambda: csv(frames[0]), key)
            _file("Parquet", f"{stem}.parquet", "application/vnd.apache.parquet", lambda: parquet(frames[0]), key)
        _sql(frames)


def _file(label: str, name: str, mime: str, make: Callable[[], bytes], key: str) -> None:
    st.download_button(
        label,
        make,
        file_name=name,
        mime=mime,
        key=f"file:{key}:{name}",
        on_click="ignore",
        help=f"Saves {name}",
    )


def standalone(figure: go.Figure, shade: str) -> bytes:
    """The figure as an HTML page that needs neither Layerscope nor the internet; `shade` as `theme` gives it."""
    copy = go.Figure(figure)
    copy.update_layout(template="plotly_dark" if shade == "dark" else "plotly_white", paper_bgcolor=None)
    return copy.to_html(include_plotlyjs=True, config={"displaylogo": False}).encode()


def csv(frame: pd.DataFrame) -> bytes:
    """UTF-8 with a byte-order mark, which spreadsheets need to read it as such."""
    return frame.head(MOST_ROWS).to_csv(index=False).encode("utf-8-sig")


def parquet(frame: pd.DataFrame) -> bytes:
    """Every column as it is, lists included."""
    held = io.BytesIO()
    bare = frame.copy(deep=False)
    bare.attrs = {}
    bare.to_parquet(held, index=False)
    return held.getvalue()


def _sql(frames: Sequence[pd.DataFrame]) -> None:
    said = list(dict.fromkeys(query for frame in frames for query in frame.attrs.get("sql", [])))
    if not said:
        return
    st.caption("SQL, over the views of this run")
    st.code(";\n\n".join(said), language="sql", height=220)
    runs = state.read("runs") or state.read("run")
    link = urlencode({"runs": runs, "sql": said[0]} if runs else {"sql": said[0]})
    if len(link) < 7000:
        st.link_button("Open in SQL", f"sql?{link}", icon=":material/database:", help="The first query, to change it")
