"""What a request was given, what it answered, and one cell of its lens: drawn alike on every page."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import controls, state, tokens
from dashboard.charts import strips
from dashboard.charts.statistics import STATISTICS
from dashboard.queries import lens, rows
from recorder.rundir import Run

GRADES = {
    "filter": st.column_config.TextColumn("Filter", help="The harness's answer filter"),
    "correct": st.column_config.CheckboxColumn("Right"),
    "prediction": st.column_config.TextColumn("Filtered answer"),
    "target": st.column_config.TextColumn("Gold answer"),
}


@dataclass(frozen=True)
class Request:
    """Key of a request within its run."""

    task: str
    doc: int
    choice: int
    repeat: int


def prompt(run: Run, request: Request, row: dict[str, Any], picked: int | None) -> None:
    """The tokens of a row of `lens.requests`, its scored span marked and the picked step framed."""
    generated = row["kind"] == "generate_until"
    inputs = state.ask(lens.inputs, run, *astuple(request))
    st.markdown("**Prompt**", help="Every token the model was given. Marked: the span that was scored or generated.")
    st.html(strips.prompt(inputs, picked, height=300 if generated else 190))
    verb = "generated" if generated else "scored"
    st.caption(f"{row['n_prompt']:,} prompt tokens, then {row['n_steps']:,} {verb} (marked)")
    if row["truncated_left"]:
        controls.say(
            f"The harness dropped the first {row['truncated_left']:,} prompt tokens to fit the model's context.",
            kind="warning",
        )


def answer(run: Run, request: Request, requests: pd.DataFrame, row: dict[str, Any]) -> None:
    """All choices with their log-probabilities, or the generated text and how it was graded."""
    generated = row["kind"] == "generate_until"
    if generated:
        st.markdown("**Generated text**", help="As the harness received it, before its filters.")
        st.html(strips.passage(row["continuation"] or ""))
        st.caption(f"Stop reason: {tokens.markdown(tokens.readable(row['stop_reason'] or 'not recorded'))}")
    else:
        st.html(strips.choices(rows(requests), request.choice))
    grades = state.ask(lens.grades, run, request.task, request.doc)
    if grades.empty:
        st.caption("Not graded: the harness grades when a run ends.")
    elif generated:
        st.dataframe(grades, hide_index=True, column_config=GRADES, placeholder="")


def cell(run: Run, request: Request, step: dict[str, Any], layer: int) -> None:
    """The layer's most likely tokens at one step (a row of `lens.steps`), and where the target stands."""
    found = rows(state.ask(lens.layers, run, *astuple(request), step["step"], step["step"]))
    numbers = next((row for row in found if row["layer"] == layer), None)
    if numbers is None:
        controls.say(f"Layer {layer} of step {step['step']} was not recorded.")
        return
    top = state.ask(lens.cell, run, *astuple(request), step["step"], layer)
    with st.container(border=True):
        st.markdown(f"**Layer {layer} of {found[-1]['layer']}, step {step['step']}**")
        st.html(strips.bars(rows(top), step["token_id"]))
        st.html(strips.facts(_facts(step, numbers)))
        if layer == 0:
            _embedding(run, request, step, numbers["top_id"])


def _facts(step: dict[str, Any], numbers: dict[str, Any]) -> dict[str, tuple[str, str]]:
    shown = tokens.show_html(step["text"], continues=bool(step["continues"]), columns=60)
    pairs = {"Target token": (f"<b>{shown}</b>", f"id {step['token_id']}")}
    for statistic in STATISTICS.values():
        pairs[statistic.label] = (statistic.text(numbers[statistic.column]), statistic.unit_after)
    settle = step["settle_layer"]
    pairs["Settle layer"] = ("not recorded" if settle is None else str(settle), "from here the top-1 stays")
    return pairs


def _embedding(run: Run, request: Request, step: dict[str, Any], top_id: int) -> None:
    """What layer 0 is: the embedding of the input token, which tied weights decode to that very token."""
    given = rows(state.ask(lens.inputs, run, *astuple(request)))[step["position"]]
    shown = tokens.show(given["text"], columns=40)
    note = (
        f"Layer 0 decodes to the input token “{shown}”: the embeddings are tied to the head, so this is no prediction."
        if given["token_id"] == top_id
        else f"Layer 0 is the embedding of the input token “{shown}”, before any block."
    )
    st.caption(f":material/info: {tokens.markdown(note)}")
