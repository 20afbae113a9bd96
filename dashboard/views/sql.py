"""SQL: any question of the chosen runs, asked in DuckDB's SQL, read-only; the answer as table, chart and files."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from dashboard import controls, exports, state, tokens
from dashboard.charts import cells, columns, quick
from dashboard.queries import sql
from dashboard.queries.runs import name_of, short_model
from recorder import console
from recorder.rundir import Run, mapping

TITLE, ICON, ORDER, URL_PATH = "SQL", ":material/database:", 80, "sql"

RUNS = 40
"""Runs that an address has room for."""
TEXT = "sql:text"
SEEN = "sql:seen"
"""The address's query when the editor was last filled: what is being typed stays until the address has another."""
LOOK = """<style>
.st-key-sql_editor textarea {font-family: 'Source Code Pro', 'DejaVu Sans Mono', Menlo, Consolas, monospace;
  font-size: .85rem; line-height: 1.5; tab-size: 2}
</style>"""
VIEWS = {"table": "Table", "line": "Line", "bar": "Bar", "scatter": "Scatter"}
PLANS = ["explain_key", "explain_value"]


def render() -> None:
    controls.open_notices()
    st.html(LOOK)
    st.caption(
        f"DuckDB's SQL over the runs below, read-only: no other file, no network, no setting is in reach. A query may "
        f"take {state.seconds_allowed():g} s and {console.MEMORY >> 30} GB; its first {console.ROWS:,} rows are read."
    )
    readable = [run for run in state.store().runs if not run.problem]
    if not readable:
        controls.say(f"There is no readable run under {', '.join(state.roots())}: record one, or see the Runs page.")
        return
    left, right = st.columns([7, 3], gap="medium")
    with left:
        with st.container(horizontal=True, vertical_alignment="bottom"):
            chosen = _runs(readable)
            _examples()
        text = _editor()
    with right:
        _schema()
    if chosen:
        _result(chosen, text)
    else:
        controls.say("Choose one run or more: the query is asked of those.")


def _runs(readable: list[Run]) -> list[Run]:
    """The runs that the address names, else the newest with rows."""
    found = {run.run_id: run for run in readable}
    asked = [name for name in (state.read("runs") or state.read("run")).split(",") if name]
    with st.session_state["notices"]:
        for name in asked:
            if name not in found:
                broken = state.store().run(name)
                why = f"cannot be read: {broken.problem}" if broken else "is not here"
                controls.say(f"The run {name} {why}. It is left out.", kind="warning")
    chosen = [name for name in asked if name in found][:RUNS]
    if not chosen and not state.read("runs"):
        chosen = [next((run for run in readable if run.files("requests")), readable[0]).run_id]
    key = "url:runs"
    st.session_state[key] = chosen
    labels = {name: _label(run) for name, run in found.items()}
    st.multiselect(
        "Runs",
        list(found),
        key=key,
        format_func=labels.__getitem__,
        max_selections=RUNS,
        placeholder="Choose the runs to ask",
        help="The views hold the rows of these runs; each has a column run_id.",
        on_change=lambda: state.write(runs=",".join(st.session_state[key]) or ","),
    )
    return [found[name] for name in chosen]


def _label(run: Run) -> str:
    """Shorter than the pickers' label: several stand in a row."""
    name = name_of(run) or short_model(str(mapping(run.about.get("config")).get("model") or ""))
    return " · ".join(tokens.readable(part, 30) for part in dict.fromkeys((name, run.run_id)) if part)


def _editor() -> str:
    """The query that the address names, in an editor; what is typed there is asked when it is sent."""
    text = state.read("sql") or next(iter(sql.EXAMPLES.values())).strip()
    if st.session_state.get(SEEN) != text or TEXT not in st.session_state:
        st.session_state[TEXT] = st.session_state[SEEN] = text
    with st.container(key="sql_editor"), st.form("sql", border=False, enter_to_submit=True):
        st.text_area(
            "Query",
            key=TEXT,
            height=216,
            help="One statement that reads: SELECT, WITH, FROM, DESCRIBE, SUMMARIZE, EXPLAIN. Ctrl+Enter runs it. The "
            "address of this page holds the query: whoever opens it sees the same.",
        )
        with st.container(horizontal=True, vertical_alignment="center"):
            st.form_submit_button("Run", icon=":material/play_arrow:", type="primary", on_click=_send)
            st.caption("Ctrl+Enter")
    return text


def _send() -> None:
    _ask(st.session_state[TEXT].strip())


def _ask(text: str) -> None:
    """Put a query into the address; what its chart showed goes with the columns of the one before."""
    forget = {} if text == state.read("sql") else dict.fromkeys(("x", "y", "by"))
    state.write(sql=text, **forget)


def _examples() -> None:
    key = f"examples:{hash(state.read('sql'))}"  # once one is chosen this is another popover: it closes
    popover = st.popover(
        "Examples", icon=":material/lightbulb:", help="Queries to start from", key=key, width="content"
    )
    with popover, st.container(gap=None):
        for question, text in sql.EXAMPLES.items():
            st.button(question, key=f"example:{question}", type="tertiary", on_click=_ask, args=(text.strip(),))


def _schema() -> None:
    words = state.read("find")
    st.text_input(
        "Tables and columns",
        icon=":material/search:",
        placeholder="Find a column",
        help="Shows the columns in whose name, type, unit or meaning every word occurs.",
        **controls.bound("find", words),
    )
    with st.container(height=280, border=False):
        st.html(columns.listed(console.schema(), words) or "<i>No table or column says so.</i>")


def _result(chosen: list[Run], text: str) -> None:
    frame = state.ask_runs(sql.answer, chosen, text)
    if frame.attrs["trouble"]:
        controls.say(frame.attrs["trouble"], kind="error")
        return
    frame.attrs["sql"] = [text]
    if list(frame.columns) == PLANS:
        for plan in map(str, frame["explain_value"]):
            st.code(plan, language=None, height=min(22 * plan.count("\n") + 60, 460))
        return
    grid = cells.grid(frame)
    figure = None
    with st.container(horizontal=True, vertical_alignment="center"):
        view = _view(frame)
        st.markdown(_counted(frame), width="stretch")
        place = st.container(width="content")
    if view != "table":
        figure = _chart(frame, view)
    with place:
        exports.offer("query", [frame], key="query", figure=figure)
    if left := _left(frame, grid.num_rows):
        st.caption(left)
    if frame.empty:
        controls.say("The query was answered: there is no such row.")
        return
    st.dataframe(grid, hide_index=True, column_config=_formats(frame), placeholder="null", height=_height(len(frame)))


def _height(rows: int) -> int:
    return min(38 + 35 * max(rows, 1), 460)


def _counted(frame: pd.DataFrame) -> str:
    rows = f"{len(frame):,} {'row' if len(frame) == 1 else 'rows'}"
    return f"**{'First ' if frame.attrs['more'] else ''}{rows}** · {frame.attrs['seconds']:.2f} s"


def _left(frame: pd.DataFrame, shown: int) -> str:
    """What the table leaves out, and what to do about it; '' where it holds everything."""
    said = []
    if frame.attrs["cut"]:
        said.append(f"The query gives more; {console.BYTES >> 20} MB are read: choose fewer columns.")
    elif frame.attrs["more"]:
        said.append(f"The query gives more; {console.ROWS:,} rows are read: aggregate, or add LIMIT and OFFSET.")
    if shown < len(frame):
        said.append(f"{shown:,} of {len(frame):,} rows fit the table below; the files under Export hold them all.")
    return " ".join(said)


def _formats(frame: pd.DataFrame) -> dict[str, Any]:
    """Small numbers are numbers, not 0.0000."""
    heights = [name for name in frame.columns if pd.api.types.is_float_dtype(frame[name].dtype)]
    return {name: st.column_config.NumberColumn(format="%.6g") for name in heights}


def _view(frame: pd.DataFrame) -> str:
    drawn = bool(quick.numbers(frame)) and not frame.empty
    offered = list(VIEWS) if drawn else ["table"]
    chosen = controls.pick("plot", "chart", list(VIEWS), "table")
    key = "url:plot"
    st.session_state[key] = chosen if chosen in offered else "table"
    st.segmented_control(
        "Show as",
        offered,
        key=key,
        format_func=VIEWS.__getitem__,
        label_visibility="collapsed",
        help="A chart needs a column of numbers.",
        width="content",
        on_change=lambda: state.write(plot=st.session_state[key]),
    )
    return chosen if chosen in offered else "table"


def _chart(frame: pd.DataFrame, kind: str) -> go.Figure:
    x, y, by = quick.suggested(frame)
    with st.container(horizontal=True):
        x = _column("x", "Horizontal axis", quick.labels(frame), x, "Column along the horizontal axis.")
        y = _column("y", "Vertical axis", quick.numbers(frame), y, "Column of numbers along the vertical axis.")
        shades = ["", *(name for name in quick.labels(frame) if name not in (x, y))]
        by = _column("by", "Colour", shades, by if by in shades else "", "One colour for each value of this column.")
    figure, notes = quick.draw(frame, kind, x, y, by)
    exports.chart(figure, "query")
    if notes:
        st.caption(tokens.markdown(" ".join(notes)))
    return figure


def _column(name: str, label: str, options: list[str], default: str, help: str) -> str:
    asked = state.read(name)
    chosen = "" if name == "by" and asked == "none" else controls.pick(name, "column", options, default)
    key = f"url:{name}"
    st.session_state[key] = chosen
    st.selectbox(
        label,
        options,
        key=key,
        format_func=lambda option: tokens.readable(option, 40) or "one colour",
        help=help,
        on_change=lambda: state.write(**{name: st.session_state[key] or "none"}),
    )
    return chosen
