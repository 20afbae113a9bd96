"""What a request was given, what it answered, and one cell of its lens: drawn alike on every page."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import controls, state, tokens
from dashboard.charts import strips
from dashboard.charts.pins import stored
from dashboard.charts.statistics import STATISTICS
from dashboard.components.bars import Bar, bars
from dashboard.pinning import Pins
from dashboard.queries import lens, rows
from recorder.rundir import Run

GRADES = {
    "filter": st.column_config.TextColumn("Filter", help="The harness's answer filter"),
    "correct": st.column_config.CheckboxColumn("Right"),
    "prediction": st.column_config.TextColumn("Filtered answer"),
    "target": st.column_config.TextColumn("Gold answer"),
}

CELL_HELP = (
    "The layer's most likely tokens, from its stored top-k, with the target at the end where it is not among them. "
    "Click a token to pin it: pinned tokens are framed here, and followed over the layers."
)
MEANINGS = {
    "Target token": "The token that the step scores, or that was emitted.",
    "Settle layer": "First layer from which the lens's top-1 token stays the final one.",
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


def cell(
    run: Run,
    request: Request,
    step: dict[str, Any],
    layer: int,
    cells: pd.DataFrame | None = None,
    pins: Pins | None = None,
) -> None:
    """The layer's most likely tokens at one step (a row of `lens.steps`), and where the target stands. `cells` are the
    step's rows of `lens.layers`, where the page has them already; with `pins`, a click on a token pins it."""
    if cells is None:
        cells = state.ask(lens.layers, run, *astuple(request), step["step"], step["step"])
    found = rows(cells.drop(columns=["top_ids", "top_tokens", "top_probs"]))
    numbers = next((row for row in found if row["layer"] == layer), None)
    if numbers is None:
        controls.say(f"Layer {layer} of step {step['step']} was not recorded.")
        return
    last = found[-1]
    final = None if last["top1_prob"] is None else last["top_id"]
    with st.container(border=True):
        st.markdown(f"**Layer {layer} of {last['layer']}, step {step['step']}**", help=CELL_HELP if pins else None)
        top = _top(stored(cells[cells["layer"] == layer]), numbers, step)
        if numbers["top1_prob"] is None:
            st.caption("The layer's distribution is not finite: it has no most likely token.")
        if pins is None:
            st.html(strips.bars(top, step["token_id"], final))
        else:
            bars([_bar(row, step, final, pins) for row in top], f"top:{run.run_id}", pins.toggle)
        meanings = {statistic.label: statistic.meaning for statistic in STATISTICS.values()} | MEANINGS
        st.html(strips.facts(_facts(step, numbers, last=layer == last["layer"]), meanings))
        if layer == 0:
            _embedding(run, request, step, numbers["top_id"])


def _top(found: pd.DataFrame, numbers: dict[str, Any], step: dict[str, Any]) -> list[dict[str, Any]]:
    """token_id, text, prob, rank of a layer's stored top-k, and of the target where it is not among them."""
    top = rows(found)
    if step["token_id"] not in [row["token_id"] for row in top]:
        logprob = numbers["target_logprob"]
        prob = None if logprob is None else math.exp(logprob)
        target = {"token_id": step["token_id"], "text": step["text"], "prob": prob, "rank": numbers["target_rank"]}
        top.append(target)
    return top


def _bar(row: dict[str, Any], step: dict[str, Any], final: int | None, pins: Pins) -> Bar:
    marked = strips.marks(row["token_id"], step["token_id"], final)
    known = row["prob"] is not None and math.isfinite(row["prob"])
    place = "" if row["rank"] is None else f", rank {row['rank']:,}"
    on = row["token_id"] in pins.shown
    text = tokens.show(row["text"], columns=40)
    return Bar(
        row["token_id"],
        text,
        row["prob"] if known else 0,
        strips.probability(row["prob"]),
        note=f"◂ {marked} · id {row['token_id']}" if marked else f"id {row['token_id']}",
        title=f"{text}  id {row['token_id']}{place}. Click to {'take out its pin' if on else 'pin it'}.",
        marked="target" in marked,
        frame=pins.colour(row["token_id"]),
    )


def _facts(step: dict[str, Any], numbers: dict[str, Any], *, last: bool) -> dict[str, tuple[str, str]]:
    shown = tokens.show_html(step["text"], continues=bool(step["continues"]), columns=60)
    pairs = {"Target token": (f"<b>{shown}</b>", f"id {step['token_id']}")}
    for statistic in STATISTICS.values():
        pairs[statistic.label] = statistic.of(numbers[statistic.column], last=last)
    settle = step["settle_layer"]
    pairs["Settle layer"] = ("not recorded" if settle is None else str(settle), "")
    return pairs


def _embedding(run: Run, request: Request, step: dict[str, Any], top_id: int) -> None:
    """What layer 0 is: the embedding of the input token, which tied weights decode to that very token."""
    given = state.ask(lens.inputs, run, *astuple(request)).iloc[step["position"]]
    shown = tokens.show(given["text"], columns=40)
    note = (
        f"Layer 0 decodes to the input token “{shown}”: the embeddings are tied to the head, so this is no prediction."
        if given["token_id"] == top_id
        else f"Layer 0 is the embedding of the input token “{shown}”, before any block."
    )
    st.caption(f":material/info: {tokens.markdown(note)}")
