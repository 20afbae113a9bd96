"""The controls that say what a page is about: run, task, document, request. Each is bound to the URL."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from dashboard import controls, state, tokens
from dashboard.queries import lens, rows
from dashboard.queries.runs import name_of, short_model
from recorder.rundir import Run, mapping

LISTED = 400
"""Documents that a list offers; every one of its labels is sent to the browser."""
OF_REQUEST = ("step", "layer", "from")
OF_DOCUMENT = ("choice", "repeat", "pins", *OF_REQUEST)
OF_TASK = ("doc", "page", "filter", *OF_DOCUMENT)
OF_RUN = ("task", "low", "high", *OF_TASK)
"""Parameters that mean nothing once the thing they belong to has changed."""


def pick_run_and_task(widths: Sequence[int]) -> tuple[Run, str, DeltaGenerator] | None:
    """Both, and the column beside them; None, and why, where there is nothing to show. `widths` of the columns."""
    run_column, task_column, rest = st.columns(widths, vertical_alignment="bottom")
    with run_column:
        run = pick_run()
    if run is None:
        return None
    with task_column:
        task = pick_task(run)
    return None if task is None else (run, task, rest)


def pick_run() -> Run | None:
    """The run that the URL names, else the newest with rows. None, and why, where there is none to show."""
    runs = {run.run_id: run for run in state.store().runs if not run.problem}
    asked = next((run for run in state.store().runs if run.run_id == state.read("run")), None)
    if asked is not None and asked.problem:
        controls.say(f"The run {asked.run_id} cannot be shown: {asked.problem}.", kind="error")
    if not runs:
        controls.say(f"There is no readable run under {', '.join(state.roots())}: record one, or see the Runs page.")
        return None
    compared = [name for name in state.read("runs").split(",") if name in runs]
    newest = next((name for name, run in runs.items() if run.files("requests")), next(iter(runs)))
    newest = compared[0] if compared else newest
    names = list(runs)
    labels = {name: run_label(run) for name, run in runs.items()}
    chosen = newest if asked is not None and asked.problem else controls.pick("run", "run", names, newest)
    st.selectbox(
        "Run",
        names,
        format_func=labels.__getitem__,
        help="A run is one model recorded under one configuration.",
        **controls.bound("run", chosen, OF_RUN),
    )
    return runs[chosen]


def run_label(run: Run) -> str:
    """'name · model · state'; the name is left out where nobody gave one."""
    config = mapping(run.about.get("config"))
    state_shown = "" if run.state == "complete" else run.state
    parts = (name_of(run), short_model(config.get("model") or ""), run.run_id, state_shown)
    return " · ".join(tokens.readable(part, 40) for part in dict.fromkeys(parts) if part)


def pick_task(run: Run) -> str | None:
    """The task; None, and why, where the run has recorded nothing yet."""
    frame = state.ask(lens.tasks, run)
    if frame.empty:
        why = run.status.get("message") or ("Its first part is not written yet." if run.live else "")
        controls.say(f"This run ({run.state}) has recorded no requests. {why}".strip())
        return None
    counts = dict(zip(frame["task"], frame["documents"], strict=True))
    chosen = controls.pick("task", "task", list(counts), next(iter(counts)))
    st.selectbox(
        "Task",
        list(counts),
        format_func=lambda task: f"{task} · {counts[task]:,} document{'s' * (counts[task] != 1)}",
        help="Task of the harness, with the documents recorded so far.",
        **controls.bound("task", chosen, OF_TASK),
    )
    return chosen


def pick_document(run: Run, task: str) -> int:
    """The document, by list or number, or by stepping to the one before or after."""
    ids = state.ask(lens.document_ids, run, task)["doc_id"].tolist()
    chosen = controls.pick("doc", "document", ids, ids[0])
    at = ids.index(chosen)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        name = f"Document ({at + 1:,} of {len(ids):,})"
        if len(ids) <= LISTED:
            _listed(name, run, task, ids, chosen)
        else:
            _numbered(name, run, task, ids, chosen)
        before, after = neighbours(run, task, chosen)
        _step_button(":material/chevron_left:", "The document before", before)
        _step_button(":material/chevron_right:", "The next document", after)
    return chosen


def neighbours(run: Run, task: str, doc: int) -> tuple[int | None, int | None]:
    """The documents before and after it; None at an end."""
    ids = state.ask(lens.document_ids, run, task)["doc_id"].tolist()
    at = ids.index(doc)
    return ids[at - 1] if at else None, ids[at + 1] if at + 1 < len(ids) else None


def turns(run: Run, task: str, doc: int) -> dict[str, Callable[[], None]]:
    """The keys that leave for the document before and after it."""
    return {key: functools.partial(turn_to, to) for key, to in zip("[]", neighbours(run, task, doc), strict=True)}


def turn_to(doc: int | None) -> None:
    """Write another document to the URL, which forgets what hung on the one before; None changes nothing."""
    if doc is not None:
        state.write(**dict.fromkeys(OF_DOCUMENT), doc=doc)


def _listed(name: str, run: Run, task: str, ids: list[int], chosen: int) -> None:
    found = rows(state.ask(lens.documents, run, task))
    labels = {row["doc_id"]: document_label(row["doc_id"], row["correct"], row["start"]) for row in found}
    st.selectbox(
        name,
        ids,
        format_func=labels.__getitem__,
        help="Index in the task's evaluated split, whether the model was right, and how its prompt starts.",
        **controls.bound("doc", chosen, OF_DOCUMENT),
    )


def _numbered(name: str, run: Run, task: str, ids: list[int], chosen: int) -> None:
    """More documents than a list can hold: by number."""
    st.number_input(
        name,
        min_value=ids[0],
        max_value=ids[-1],
        step=1,
        help="Index in the task's evaluated split. The Documents page finds one by its text, grade or margin.",
        **controls.bound("doc", chosen, OF_DOCUMENT),
    )
    state.link("documents", "Find", icon=":material/search:", run=run.run_id, task=task)


def document_label(doc_id: int, correct: bool | None, start: str) -> str:
    """'3 · right · Which planet …'."""
    verdict = "" if correct is None else "right" if correct else "wrong"
    return " · ".join(part for part in (str(doc_id), verdict, tokens.readable(start.strip(), 90)) if part)


def _step_button(icon: str, label: str, doc: int | None) -> None:
    st.button(
        "",
        key=f"step:{label}",
        icon=icon,
        help=label,
        disabled=doc is None,
        on_click=turn_to,
        args=(doc,),
    )


def pick_request(requests: pd.DataFrame) -> tuple[int, int]:
    """(choice, repeat) among the rows of `queries.lens.requests`; a control only where there are several."""
    found = rows(requests)
    names = {row["choice"]: request_label(row) for row in found}
    gold = [row["choice"] for row in found if row["is_gold"]]
    choice = controls.pick("choice", "choice", list(names), gold[0] if gold else next(iter(names)))
    if len(names) > 1:
        st.selectbox(
            "Window" if found[0]["kind"] == "loglikelihood_rolling" else "Choice",
            list(names),
            format_func=names.__getitem__,
            help="Each answer choice was scored by a request of its own.",
            **controls.bound("choice", choice, ("repeat", *OF_REQUEST)),
        )
    return choice, _pick_repeat([row["repeat"] for row in found if row["choice"] == choice])


def _pick_repeat(repeats: list[int]) -> int:
    chosen = controls.pick("repeat", "repeat", repeats, repeats[0])
    if len(repeats) > 1:
        st.selectbox(
            "Repeat",
            repeats,
            help="The task asks for several generations of each document.",
            **controls.bound("repeat", chosen, OF_REQUEST),
        )
    return chosen


def request_label(row: dict[str, Any]) -> str:
    """'1 · Paris · gold, chosen'."""
    marks = ", ".join(name for name, on in (("gold", row["is_gold"]), ("chosen", row["is_chosen"])) if on)
    text = tokens.readable((row["continuation"] or "").strip(), 40)
    return " · ".join(part for part in (str(row["choice"]), text, marks) if part)
