"""One document: the end of its prompt, its answers, how it was graded, and the way into it."""

from __future__ import annotations

import html
import re
from typing import Any

import streamlit as st

from dashboard import controls, state
from dashboard.charts import strips
from dashboard.queries import documents as asked
from dashboard.queries import lens, rows
from recorder.rundir import Run

GRADES = {"True": "right", "False": "wrong", "None": "ungraded"}
READ, REPEATS, NAMED = 3000, 8, 40
"""What is shown of one document at most: letters of its prompt, repeated generations, settle layers."""


def show(run: Run, task: str, filter: str, shown: tuple[int, ...]) -> None:
    """The document that the URL names: prompt, answers, and the way into it."""
    given = state.read("doc")
    if not given:
        st.caption("Click a row to read the document, and to open it in Lens.")
        return
    found = rows(state.ask(asked.document, run, task, int(given))) if re.fullmatch(r"\d{1,9}", given, re.ASCII) else []
    if not found:
        controls.say(f"This link names document {given}, which {task} does not hold.", kind="warning")
        return
    doc, about = int(given), found[0]
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
            st.markdown(f"**Document {doc}**{'' if doc in shown else ' (not in this list)'}", width="content")
            state.link("lens", "Open in Lens", icon=":material/layers:", run=run.run_id, task=task, doc=doc)
        prompt_column, answer_column = st.columns([1, 1], gap="medium")
        with prompt_column:
            _prompt(about)
        with answer_column:
            _answers(run, task, doc, filter, about)


def _prompt(about: dict[str, Any]) -> None:
    prompt = about["prompt"] or ""
    end = prompt[-READ:]
    st.markdown("Prompt" if end == prompt else f"Prompt: the last {READ:,} of {len(prompt):,} letters")
    st.html(strips.passage(end, height=260))
    if about["truncated_left"]:
        text = f"The harness dropped the first {about['truncated_left']:,} prompt tokens to fit the model's context."
        controls.say(text, kind="warning")


def _answers(run: Run, task: str, doc: int, filter: str, about: dict[str, Any]) -> None:
    """All choices, else what was generated; then what the harness made of it and how it graded that."""
    requests = rows(state.ask(lens.requests, run, task, doc))
    if requests[0]["kind"] == "generate_until":
        for row in requests[:REPEATS]:
            number = f" {row['repeat'] + 1} of {len(requests)}" if len(requests) > 1 else ""
            _passage(f"Generated text{number}", row["continuation"])
    else:
        st.markdown("Choices" if about["n_choices"] else "Scored text")
        st.html(strips.choices(requests, -1))
    graded = [row for row in rows(state.ask(lens.grades, run, task, doc)) if row["filter"] == filter]
    for row in graded:
        if not about["n_choices"]:
            _passage("Prediction", row["prediction"])
            _passage("Target", row["target"])
    verdict = GRADES[str(graded[0]["correct"]) if graded else "None"]
    settled = about["settle_layers"]
    facts = {"Grade": verdict, "Margin": _nats(about["margin"]), "Steps": f"{about['n_steps']:,}"}
    facts["Settle layers"] = ", ".join(map(str, settled[:NAMED])) if settled is not None else ""
    st.html(strips.facts({name: (html.escape(text), "") for name, text in facts.items() if text}))


def _passage(title: str, text: str | None) -> None:
    st.markdown(title)
    st.html(strips.passage(text or "", height=90))


def _nats(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} nat"
