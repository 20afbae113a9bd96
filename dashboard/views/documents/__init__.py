"""Documents: a task's documents under filters, sorted and paged; a row is looked at below and opens Lens."""

from __future__ import annotations

import functools
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import controls, exports, pickers, state, tokens
from dashboard.queries import documents as asked
from dashboard.queries import rows
from dashboard.queries.documents import PAGE, Wanted
from dashboard.views.documents import filters, preview
from dashboard.views.documents.filters import LIST, MARGIN
from dashboard.views.documents.preview import GRADES
from recorder.rundir import Run

TITLE, ICON, ORDER, URL_PATH = "Documents", ":material/list:", 30, "documents"

SORTS = {
    "doc": "Document",
    "correct": "Grade",
    "margin": "Margin",
    "settle": "Settle layer, mean",
    "steps": "Steps",
    "prediction": "Prediction",
    "target": "Target",
}
ORDERS = {"asc": "Ascending", "desc": "Descending"}
STEPS = "Scored or generated tokens: of the gold choice, where there are choices"
COLUMNS = {
    "doc_id": st.column_config.NumberColumn("Document", help="Index in the task's evaluated split", width=80),
    "grade": st.column_config.TextColumn("Grade", help="By the harness, under the answer filter", width=70),
    "prompt": st.column_config.TextColumn("Prompt", help="Its last paragraph, where the question is", width=290),
    "prediction": st.column_config.TextColumn("Prediction", help="Likeliest choice, or filtered generation", width=150),
    "target": st.column_config.TextColumn("Target", help="Gold choice, or gold answer", width=150),
    "margin": st.column_config.NumberColumn("Margin", help=MARGIN, format="%.3f", width=75),
    "settle_mean": st.column_config.NumberColumn(
        "Settle", help="Mean settle layer of its steps", format="%.1f", width=60
    ),
    "settled": st.column_config.TextColumn("by step", help="Settle layer of each step, in order", width=100),
    "n_steps": st.column_config.NumberColumn("Steps", help=STEPS, width=55),
    "open": st.column_config.LinkColumn(
        "Lens", help="Opens it in Lens, in a tab of its own", display_text=":material/layers:", width=45
    ),
}


def render() -> None:
    controls.open_notices()
    picked = pickers.pick_run_and_task([4, 3, 2])
    if picked is None:
        return
    run, task, filter_column = picked
    with filter_column:
        filter = filters.pick_filter(run, task)
    wanted, runs = filters.read(run, task, filter)
    counts = rows(state.ask_runs(asked.count, runs, wanted))[0]
    filters.show(run, wanted, counts)
    shown: tuple[int, ...] = ()
    if counts["matching"]:
        shown = _list(runs, wanted, counts)
    else:
        controls.say(f"None of the {counts['documents']:,} documents of {task} matches all of these filters.")
    preview.show(run, task, filter, shown)


def _list(runs: tuple[Run, ...], wanted: Wanted, counts: dict[str, Any]) -> tuple[int, ...]:
    """The table and what moves through it; the documents that it shows."""
    sort = controls.pick("sort", "order", list(SORTS), "doc")
    order = controls.pick("order", "direction", list(ORDERS), "asc")
    pages = -(-counts["matching"] // PAGE)
    number = controls.pick("page", "page", range(1, pages + 1), 1)
    found = state.ask_runs(asked.page, runs, wanted, sort, order == "desc", number)
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        _sorting(sort, order)
        st.caption(_which(counts, number, len(found)))
        _pager(number, pages)
        exports.offer(f"documents {wanted.run} {wanted.task} page {number}", [found], "documents")
    return _table(wanted, found, counts)


def _sorting(sort: str, order: str) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom", width="content", gap="small"):
        st.selectbox(
            "Sorted by",
            list(SORTS),
            format_func=SORTS.__getitem__,
            width=180,
            help="Sorts all documents that match. A click on a column's head sorts only those on this page.",
            **controls.bound("sort", sort, LIST),
        )
        st.segmented_control(
            "Direction",
            list(ORDERS),
            format_func=ORDERS.__getitem__,
            required=True,
            label_visibility="collapsed",
            help="What is missing comes last in both.",
            **controls.bound("order", order, LIST),
        )


def _which(counts: dict[str, Any], number: int, shown: int) -> str:
    """'51–100 of 1,234 documents that match, of 25,000.'"""
    first = (number - 1) * PAGE + 1
    matching, documents = counts["matching"], counts["documents"]
    text = f"**{first:,}–{first + shown - 1:,}** of **{matching:,}** document{'s' if matching != 1 else ''}"
    match = "matches" if matching == 1 else "match"
    text += f" that {match}, of {documents:,}." if matching < documents else " of the task."
    if counts["has_choices"] and counts["no_margin"]:
        text += f" {counts['no_margin']:,} without a margin: no gold choice, or a log-likelihood that is not finite."
    return text


def _pager(number: int, pages: int) -> None:
    if pages == 1:
        return
    with st.container(horizontal=True, vertical_alignment="bottom", width="content", gap="small"):
        _turn(":material/chevron_left:", "The page before", number - 1 if number > 1 else None)
        st.number_input(
            f"Page of {pages:,}",
            min_value=1,
            max_value=pages,
            step=1,
            width=120,
            help=f"{PAGE} documents a page.",
            **controls.bound("page", number),
        )
        _turn(":material/chevron_right:", "The next page", number + 1 if number < pages else None)


def _turn(icon: str, label: str, page: int | None) -> None:
    st.button(
        "",
        key=f"page:{label}",
        icon=icon,
        help=label,
        disabled=page is None,
        on_click=state.write,
        kwargs={"page": page},
    )


def _table(wanted: Wanted, found: pd.DataFrame, counts: dict[str, Any]) -> tuple[int, ...]:
    ids = tuple(int(doc) for doc in found["doc_id"])
    key = f"documents:{hash((wanted.run, wanted.task, ids))}"  # another list is another table
    at = [index for index, doc in enumerate(ids) if str(doc) == state.read("doc")]
    st.session_state[key] = {"selection": {"rows": at, "columns": [], "cells": []}}
    hidden = {"margin"} if not counts["has_choices"] else set()
    hidden |= {"settle_mean", "settled"} if not counts["has_layers"] else set()
    st.dataframe(
        _shown(wanted, found),
        key=key,
        height=min(38 + 35 * len(ids), 38 + 35 * 12),
        column_order=[name for name in COLUMNS if name not in hidden],
        column_config=COLUMNS,
        hide_index=True,
        on_select=functools.partial(_selected, key, ids),
        selection_mode=["single-row", "single-cell"],
        placeholder="",
    )
    return ids


def _shown(wanted: Wanted, found: pd.DataFrame) -> pd.DataFrame:
    """COLUMNS, as people read them."""
    texts = {name: [_text(text) for text in found[name]] for name in ("prediction", "target")}
    layers = [", ".join(map(str, each)) if each is not None else "" for each in found["settle_layers"]]
    shown = found.assign(
        **texts,
        prompt=[_text(question(text)) for text in found["prompt"]],
        open=[state.address("lens", run=wanted.run, task=wanted.task, doc=doc) for doc in found["doc_id"]],
        grade=[GRADES[str(row["correct"])] for row in rows(found[["correct"]])],
        settled=[tokens.shorten(each, 80) for each in layers],
    )
    return shown[list(COLUMNS)]


def _text(text: object) -> str:
    return tokens.readable(text, 200) if isinstance(text, str) else ""


def question(end: str) -> str:
    """The last paragraph of a prompt's end, or all of it where that is but a word; '…' where its start was cut off."""
    whole = end.strip()
    last = whole.rpartition("\n\n")[2]
    kept = last if len(last) >= 24 else whole
    return f"…{kept}" if kept == whole and len(end) >= asked.END else kept


def _selected(key: str, ids: tuple[int, ...]) -> None:
    picked = st.session_state[key]["selection"]
    cells = picked.get("cells") or []
    row = cells[0][0] if cells else next(iter(picked["rows"]), None)
    state.write(doc=None if row is None else ids[row])
