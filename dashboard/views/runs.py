"""Runs: what there is to look at, and how far what is being recorded has come. Opens JSON files only."""

from __future__ import annotations

import functools
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import controls, state, tokens
from dashboard.charts import strips
from dashboard.queries import rows, runs
from recorder.rundir import Run

TITLE, ICON, ORDER, URL_PATH = "Runs", ":material/table_rows:", 10, "runs"

POLL = 2.0
"""Seconds between looks at a run in progress."""
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
    "name": st.column_config.TextColumn("Run", help="Its label, or its id where nobody gave one", width=175),
    "state_shown": st.column_config.TextColumn("State", width=115),
    "model_name": st.column_config.TextColumn("Model", help="Last part of hub id or path; in full below", width=125),
    "task_list": st.column_config.TextColumn("Tasks", width=125),
    "score": st.column_config.TextColumn("Score", help="Main metric of each task, by the harness", width=130),
    "done": st.column_config.TextColumn("Documents", help="Documents answered, of those asked for", width=90),
    "signal_list": st.column_config.TextColumn("Signals", help="Recorded of every forward pass", width=110),
    "bytes": st.column_config.NumberColumn("Size", format="bytes", help="On disk", width=70),
    "when": st.column_config.DatetimeColumn("Started (UTC)", format="YYYY-MM-DD HH:mm", timezone="UTC", width=125),
}


def render() -> None:
    store = state.store()
    if not store.runs:
        _empty()
        return
    st.markdown("#### Runs")
    st.caption(f"Recorded under {tokens.markdown(', '.join(state.roots()))}")
    live = tuple(run.run_id for run in store.runs if run.live)
    if live:
        _progress(live)
    frame = runs.listing(store)
    words = state.read("q")
    st.text_input(
        "Filter",
        placeholder="name, model, task or state",
        icon=":material/search:",
        help="Shows the runs in which every word occurs: in their name, id, model, task or state.",
        **controls.bound("q", words),
    )
    shown = runs.matching(frame, words)
    st.caption(f"{len(shown):,} of {len(frame):,} runs" if words else f"{len(frame):,} runs")
    if shown.empty:
        controls.say(f"No run matches {words}. Words are looked for in name, id, model, task and state.")
    else:
        _table(shown)
    _chosen(frame)


def _empty() -> None:
    st.subheader("No runs yet")
    st.write("Nothing has been recorded in:")
    for root in state.roots():
        st.code(root, language=None)
    st.write("Record a model on a task, and its run appears here while it is being made:")
    st.code(FIRST_RUN, language="bash")


def _table(shown: pd.DataFrame) -> None:
    ids = tuple(shown["run_id"])
    chosen = state.read("run")
    shown = shown.assign(state_shown=[STATES.get(name, name) for name in shown["state"]])
    key = f"runs:{hash(ids)}"  # another list of runs is another table: a selection never moves to another run
    rows_shown = [ids.index(chosen)] if chosen in ids else []
    st.session_state[key] = {"selection": {"rows": rows_shown, "columns": [], "cells": []}}
    st.dataframe(
        shown,
        key=key,
        column_order=list(COLUMNS),
        column_config=COLUMNS,
        hide_index=True,
        on_select=functools.partial(_selected, key, ids),
        selection_mode="single-row",
        placeholder="",
    )


def _selected(key: str, ids: tuple[str, ...]) -> None:
    picked = st.session_state[key]["selection"]["rows"]
    state.write(run=ids[picked[0]] if picked else None)


def _chosen(frame: pd.DataFrame) -> None:
    """The run that the URL names: what it is, what is wrong with it, and the way into it."""
    asked = state.read("run")
    if not asked:
        st.caption("Select a run to see more of it and open it.")
        return
    row = next((row for row in rows(frame) if row["run_id"] == asked), None)
    if row is None:
        controls.say(f"The run {asked} is not here: it was deleted, or lies under another root.", kind="warning")
        return
    with st.container(border=True):
        _details(row)
        _trouble(row)
        if not row["problem"]:
            _open(asked)


def _open(run_id: str) -> None:
    if st.button("Open in Lens", icon=":material/layers:", type="primary", help="Look at it layer by layer"):
        state.open_page("lens", run=run_id)


def _details(row: dict[str, Any]) -> None:
    st.markdown(f"#### {tokens.markdown(row['name'])}")
    found = {"Model": row["model"], "Run id": row["run_id"], "Directory": row["path"]}
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


@st.fragment(run_every=POLL)
def _progress(live: tuple[str, ...]) -> None:
    """Bars of the runs in progress. Ends by drawing the whole page again once one of them has ended or begun."""
    store = state.store()
    found = [run for run in store.runs if run.live]
    if tuple(run.run_id for run in found) != live:
        st.rerun(scope="app")
    for run in found:
        share, text = progress_text(run)
        st.progress(share, text=tokens.markdown(text))


def progress_text(run: Run) -> tuple[float, str]:
    """(share done from 0 to 1, 'smollm2 on arc_easy: 12 of 40 documents, 3.1 a second, 9 s left')."""
    progress = run.status.get("progress") or {}
    config = run.about.get("config") or {}
    done, total = progress.get("docs_done") or 0, progress.get("docs_total")
    tasks = ", ".join(run.about.get("tasks") or config.get("tasks") or [])
    parts = [f"{done:,} of {total:,} documents" if total else run.status.get("message") or run.state]
    if progress.get("rate"):
        parts.append(f"{progress['rate']:.1f} a second")
    if progress.get("seconds_left"):
        parts.append(f"{progress['seconds_left']:,.0f} s left")
    head = " on ".join(part for part in (runs.short_model(config.get("model") or run.run_id), tasks) if part)
    return (min(1.0, done / total) if total else 0.0), f"{head} ({run.state}): {', '.join(parts)}"
