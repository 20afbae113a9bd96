"""Runs: what there is to look at, and how far what is being recorded has come. Opens JSON files only."""

from __future__ import annotations

import contextlib
import functools
import html
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import controls, curating, state, tokens
from dashboard.charts import strips
from dashboard.queries import rows, runs
from recorder.store import Store

TITLE, ICON, ORDER, URL_PATH = "Runs", ":material/table_rows:", 10, "runs"

POLL = 2.0
"""Seconds between looks at a run in progress."""
MOST = 500
"""Rows of the table; the filter finds the others."""
COMPARED = 4
"""Runs that the Compare page shows beside each other."""
FIRST_RUN = "layerscope record --model HuggingFaceTB/SmolLM2-135M --tasks arc_easy --limit 20"
STATES = {
    "complete": "✓ complete",
    "running": "● running",
    "starting": "● starting",
    "loading": "● loading",
    "finishing": "● finishing",
    "failed": "✕ failed",
    "broken": "✕ broken",
    "lost": "✕ lost",
    "newer": "? newer format",
}
COLUMNS = {
    "name": st.column_config.TextColumn("Run", help="Its label, or its id where nobody gave one", width=165),
    "state_shown": st.column_config.TextColumn("State", width=100),
    "model_name": st.column_config.TextColumn("Model", help="Last part of hub id or path; in full below", width=115),
    "task_list": st.column_config.TextColumn("Tasks", width=110),
    "tag_list": st.column_config.TextColumn("Tags", help="Given on this page", width=90),
    "score": st.column_config.TextColumn("Score", help="Main metric of each task, by the harness", width=125),
    "done": st.column_config.TextColumn("Documents", help="Documents answered, of those asked for", width=85),
    "signal_list": st.column_config.TextColumn("Signals", help="Recorded of every forward pass", width=95),
    "bytes": st.column_config.NumberColumn("Size", format="bytes", help="On disk", width=65),
    "when": st.column_config.DatetimeColumn("Started (UTC)", format="YYYY-MM-DD HH:mm", timezone="UTC", width=122),
}
PAGES = {
    "overview": ("Overview", ":material/monitoring:", "Scores, and means over the layers"),
    "documents": ("Documents", ":material/list:", "Every document: what was asked, answered, and how it was graded"),
    "lens": ("Lens", ":material/layers:", "One document, layer by layer"),
    "similarity": ("Similarity", ":material/grid_on:", "How alike the layers' residual streams are"),
    "sql": ("SQL", ":material/database:", "Any question of it"),
    "compare": ("Compare with …", ":material/compare_arrows:", "Beside another run"),
}
"""Ways into one run."""
CHOSEN = "runs:chosen"
"""Set by a click in the table, whose part of the page does not draw what was clicked."""


def render() -> None:
    store = state.store()
    curating.said()
    if not store.runs:
        _empty()
        _chosen(store)
        return
    st.markdown("#### Runs")
    st.caption(f"Recorded under {tokens.markdown(', '.join(state.roots()))}")
    _filters(_listing(store))
    live = tuple(run.run_id for run in store.runs if run.live)
    st.fragment(_board, run_every=POLL if live else None)(live)
    _chosen(store)


def _listing(store: Store) -> pd.DataFrame:
    return _listed(id(store), store.looks, store)


@st.cache_data(max_entries=4, show_spinner=False)
def _listed(store: int, looks: int, _store: Store) -> pd.DataFrame:
    return runs.listing(_store)


def _empty() -> None:
    st.subheader("No runs yet")
    st.write("Nothing has been recorded in:")
    for root in state.roots():
        st.code(root, language=None)
    st.write("Record a model on a task, and its run appears here while it is being made:")
    st.code(FIRST_RUN, language="bash")


def _filters(frame: pd.DataFrame) -> None:
    st.text_input(
        "Filter",
        placeholder="name, model, task, tag or state",
        icon=":material/search:",
        help="Shows the runs in which every word occurs: in their name, id, model, task, tag or state.",
        **controls.bound("q", state.read("q")),
    )
    known = runs.tags_of(frame)
    if not known:
        return
    key = "url:tags"
    st.session_state[key] = [tag for tag in _tags() if tag in known]
    st.pills(
        "Tags",
        known,
        selection_mode="multi",
        key=key,
        format_func=tokens.markdown,
        label_visibility="collapsed",
        help="Shows the runs that have every chosen tag.",
        on_change=lambda: state.write(tags=",".join(st.session_state[key])),
    )


def _tags() -> list[str]:
    return [tag for tag in state.read("tags").split(",") if tag]


def _asked() -> list[str]:
    """The runs that the address names."""
    return list(dict.fromkeys(name for name in (state.read("runs") or state.read("run")).split(",") if name))


def _board(live: tuple[str, ...]) -> None:
    """Progress and the table. While a run is live this part of the page is drawn again and again; it draws the whole
    page once another run is chosen, or once one has ended or begun."""
    store = state.store()
    found = [run for run in store.runs if run.live]
    if st.session_state.pop(CHOSEN, False) or tuple(run.run_id for run in found) != live:
        st.rerun(scope="app")
    for run in found:
        share, text = runs.progress_text(run)
        st.progress(share, text=tokens.markdown(text))
    frame = _listing(store)
    words, tags = state.read("q"), _tags()
    shown = runs.matching(frame, words, tags)
    asked = " ".join([words, *(f"#{tag}" for tag in tags)]).strip()
    st.caption(f"{len(shown):,} of {len(frame):,} runs" if asked else f"{len(frame):,} runs")
    if shown.empty:
        controls.say(f"No run matches {asked}. Words are looked for in name, id, model, task, tag and state.")
        return
    if len(shown) > MOST:
        st.caption(f"The newest {MOST:,} of {len(shown):,} are listed. The filter finds the others.")
    _table(shown.head(MOST))


def _table(shown: pd.DataFrame) -> None:
    ids = tuple(shown["run_id"])
    shown = shown.assign(state_shown=[STATES.get(name, name) for name in shown["state"]])
    names = [name for name in COLUMNS if name != "tag_list" or shown["tag_list"].any()]
    key = f"runs:{hash(ids)}"  # another list of runs is another table: a selection never moves to another run
    ticked = [ids.index(name) for name in _asked() if name in ids]
    st.session_state[key] = {"selection": {"rows": ticked, "columns": [], "cells": []}}
    st.dataframe(
        shown[names],
        key=key,
        column_config=COLUMNS,
        hide_index=True,
        on_select=functools.partial(_selected, key, ids),
        selection_mode="multi-row",
        placeholder="",
    )


def _selected(key: str, ids: tuple[str, ...]) -> None:
    picked = [ids[row] for row in st.session_state[key]["selection"]["rows"]]
    state.write(run=picked[0] if len(picked) == 1 else None, runs=",".join(picked) if len(picked) > 1 else None)
    st.session_state[CHOSEN] = True


def _chosen(store: Store) -> None:
    """What the address names: one run with what is wrong with it and the ways into it, or several."""
    asked = _asked()
    if not asked:
        if store.runs:
            st.caption("Tick a run to see more of it and open it; tick several to compare them.")
        return
    here = [name for name in asked if store.run(name) is not None]
    for name in asked:
        if name not in here:
            curating.gone(name)
    if len(here) == 1:
        _one(store, here[0])
    elif here:
        _several(store, here)


def _several(store: Store, names: list[str]) -> None:
    frame = runs.listing(store.select(*names))
    with st.container(border=True):
        st.markdown(f"#### {len(names)} runs")
        found = {row["run_id"]: row for row in rows(frame)}
        st.html(strips.facts({name: _named(found[name]) for name in names}))
        with st.container(horizontal=True, vertical_alignment="center"):
            compared = [name for name in names if not found[name]["problem"]]
            if 2 <= len(compared) <= COMPARED:
                help = "Scores, documents and layers beside each other"
                _link("compare", f"Compare {len(compared)} runs", PAGES["compare"][1], help, runs=",".join(compared))
            elif len(compared) > COMPARED:
                st.caption(f"At most {COMPARED} runs are compared; {len(compared)} are ticked.")
            if compared:
                _link("sql", "Query them in SQL", PAGES["sql"][1], "Any question of them", runs=",".join(compared))


def _named(row: dict[str, Any]) -> tuple[str, str]:
    """A run of several, as HTML: its name, and its score or state."""
    return html.escape(tokens.readable(row["name"], 80)), html.escape(row["score"] or row["state"])


def _one(store: Store, name: str) -> None:
    row = rows(runs.listing(store.select(name)))[0]
    with st.container(border=True):
        _details(row)
        _trouble(row)
        with st.container(horizontal=True, vertical_alignment="center"):
            if not row["problem"]:
                for page, (label, icon, help) in PAGES.items():
                    _link(page, label, icon, help, **{"runs" if page in ("compare", "sql") else "run": name})
            curating.edit(row, runs.tags_of(_listing(store)))
            curating.trash(row, live=(run := store.run(name)) is not None and run.live)


def _link(page: str, label: str, icon: str, help: str, **params: str) -> None:
    with contextlib.suppress(KeyError):  # a page that is not there has no link
        state.link(page, label, icon=icon, help=help, **params)


def _details(row: dict[str, Any]) -> None:
    st.markdown(f"#### {tokens.markdown(row['name'])}")
    found = {"Model": row["model"], "Tasks": row["task_list"], "Tags": row["tag_list"]}
    found = {label: value for label, value in found.items() if value or label == "Model"}
    found |= {"Run id": row["run_id"], "Directory": row["path"]}
    st.html(strips.facts({label: (strips.code(value or "unknown"), "") for label, value in found.items()}))


def _trouble(row: dict[str, Any]) -> None:
    run = state.store().run(row["run_id"])
    if row["problem"]:
        kind = "warning" if row["state"] == "newer" else "error"
        controls.say(f"This run cannot be read: {row['problem']}.", kind=kind)
    elif row["state"] == "failed" and run is not None:
        controls.say(f"The recording failed: {run.status.get('message') or 'it did not say why'}", kind="error")
    elif row["state"] == "lost":
        controls.say(
            "The recording ended without saying so: its process is gone. What it wrote can be looked at, and the same "
            "layerscope record command resumes it.",
            kind="warning",
        )
