"""The chosen step over all layers, the distribution that came of it, and where it stands among the others."""

from __future__ import annotations

import math
from dataclasses import asdict, astuple
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import controls, exports, playing, state, tokens
from dashboard.charts import one_step, running_text, settling, strips
from dashboard.queries import lens, rows
from dashboard.queries import steps as asked
from dashboard.views.steps.view import View, go

OPEN = "steps:open"
"""Where the session holds that the last click wants its cell in Lens."""
INK = {"light": "#22252e", "dark": "#fafafa"}


def draw_step(view: View, step: int) -> None:
    """The step's column over the layers, and the distribution that came of it."""
    token = next(row for row in rows(view.steps) if row["step"] == step)
    if not view.layers:
        st.html(strips.facts(_facts(view, token)))
        controls.say("This run recorded no layers. Record it again with --signals logit_lens to see what they said.")
        return
    found = state.ask(asked.column, view.run, *astuple(view.request), step)
    if found.empty:
        st.html(strips.facts(_facts(view, token)))
        controls.say("The layers of this step are not on disk: a run in progress writes them with its next commit.")
        return
    column_column, final_column = st.columns([7, 4], gap="medium")
    with column_column:
        _column(view, token, found)
    with final_column:
        _final(view, token, found)


def _column(view: View, token: dict[str, Any], found: pd.DataFrame) -> None:
    figure = one_step.draw(found, token["token_id"], token["settle_layer"], view.layer, INK[exports.theme()])
    with _headed(
        f"Step {token['step']} over all layers",
        "Each layer decoded by the model's own final norm and head. Neighbouring layers with one top-1 token are one "
        "block. The dashed line is the settle layer: from there on the top-1 stays. Click a layer to open it in Lens.",
    ):
        exports.offer(f"column {view.place} step {token['step']}", [found], "steps_column", figure)
    st.caption(tokens.markdown(one_step.agreement(found, token["token_id"])))
    exports.chart(figure, "steps_column", on_click=lambda picked: _open(view, token["step"], int(picked[0])))
    notes = ["Click a layer to open its cell in Lens.", _embedding(view, token, found)]
    if lost := one_step.gaps(found):
        notes.append(f"Gaps, where not finite: {lost:,}.")
    st.caption(tokens.markdown(" ".join(notes)))


def _open(view: View, step: int, layer: int) -> None:
    """Have the cell opened in Lens; from there the back button leads to this page with the layer marked."""
    playing.ask(view.place)
    state.write(**asdict(view.request), run=view.run.run_id, step=step, layer=layer)
    st.session_state[OPEN] = True


def _headed(title: str, help: str) -> Any:
    """A heading; what is drawn inside `with` stands at the other end of its line."""
    line = st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute")
    line.markdown(f"**{title}**", help=help, width="content")
    return line


def _embedding(view: View, token: dict[str, Any], found: pd.DataFrame) -> str:
    """What layer 0 is: with tied weights it decodes to the token that was fed, which is no prediction."""
    given = state.ask(lens.inputs, view.run, *astuple(view.request)).iloc[token["position"]]
    shown = tokens.show(given["text"], columns=40)
    if found["top_id"].iloc[0] == given["token_id"]:
        return f"Layer 0 decodes to the input token “{shown}”: the embeddings are tied to the head, no prediction."
    return f"Layer 0 is the embedding of the input token “{shown}”."


def _final(view: View, token: dict[str, Any], found: pd.DataFrame) -> None:
    """The last layer's most likely tokens, and how much of the probability lies outside them."""
    last = rows(found)[-1]
    top = rows(state.ask(lens.cell, view.run, *astuple(view.request), token["step"], int(last["layer"])))
    st.markdown(
        "**Final distribution**",
        help=f"What layer {last['layer']}, the last, gives after the final norm and the head: the model's own output.",
    )
    held = sum(one["prob"] if one["prob"] is not None else math.nan for one in top)
    target = {"token_id": token["token_id"], "text": token["text"], "prob": last["target_prob"]}
    outside = [] if any(one["token_id"] == token["token_id"] for one in top) else [target]
    st.html(strips.bars([*top, *outside], token["token_id"]))
    beyond = " The target is not among them; its bar is the last." if outside else ""
    left = f"{max(0.0, 1 - held):.4f} of the probability" if math.isfinite(held) else "not finite"
    st.caption(f"Outside the stored top {len(top)}: {left}.{beyond}")
    st.html(strips.facts(_facts(view, token)))


def _facts(view: View, token: dict[str, Any]) -> dict[str, tuple[str, str]]:
    shown = tokens.show_html(token["text"], continues=bool(token["continues"]), columns=60)
    pairs = {"Target token": (f"<b>{shown}</b>", f"id {token['token_id']}")}
    for statistic in running_text.statistics(view.layers).values():
        pairs[statistic.label] = (statistic.text(token[statistic.column]), statistic.unit_after)
    return pairs


def draw_settling(view: View, step: int) -> None:
    """Settle layers of all steps, where there are several."""
    settled = view.steps[view.steps["settle_layer"].notna()]
    if not view.layers or len(settled) < 2:
        return
    figure, key = settling.draw(settled, view.layers, step), f"steps_settling_{view.step}"
    with _headed("Where each token settled", running_text.statistics(view.layers)["settle"].meaning):
        exports.offer(f"settling {view.place}", [settled], key, figure)
    exports.chart(figure, key, on_click=lambda picked: go(view, int(picked[0])))
    st.caption(f"{len(settled):,} of {len(view.steps):,} recorded steps. Click a point to choose its step.")
