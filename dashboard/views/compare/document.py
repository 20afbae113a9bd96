"""One document in two runs: prompts, answers, their layers side by side on one colour scale, and the difference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import controls, exports, panels, pickers, state, tokens
from dashboard.charts import compared, curves
from dashboard.charts.compared import LETTERS
from dashboard.charts.curves import Axes, Curve
from dashboard.charts.measures import MEASURES
from dashboard.panels import Request
from dashboard.queries import compared_layers, lens, pairs, rows
from dashboard.views.compare import maps
from dashboard.views.compare.comparison import Comparison
from dashboard.views.compare.depth import ticked
from dashboard.views.compare.maps import Side
from dashboard.views.compare.panel import Ground

SIMILARITY = ("cos_next", "cos_last", "norm")


def pick_group(comparison: Comparison) -> tuple[int, str]:
    """(the run beside the baseline, one of `pairs.CELLS` or '' for all documents in both): what is looked at closer."""
    if len(comparison.runs) == 2:
        return 1, _pick_cell(comparison, 1)
    chosen = controls.pick("vs", "run", comparison.ids[1:], comparison.ids[1])
    st.selectbox(
        "A beside",
        comparison.ids[1:],
        format_func=lambda run_id: comparison.label(comparison.ids.index(run_id)),
        help="The run whose documents and layers are shown beside those of the baseline.",
        width=220,
        **controls.bound("vs", chosen, ("pair", *pickers.OF_TASK)),
    )
    other = comparison.ids.index(chosen)
    return other, _pick_cell(comparison, other)


def _pick_cell(comparison: Comparison, other: int) -> str:
    """One of `pairs.CELLS`, or '' for all documents in both runs: what the curves and the list of documents are of."""
    found = comparison.matched(other)
    counts = pairs.counts(found)
    if not sum(counts.values()):
        return ""
    chosen = controls.pick("pair", "group of documents", ["all", *pairs.CELLS], "all")

    def label(cell: str) -> str:
        if cell == "all":
            return f"All in both ({len(found):,})"
        said = pairs.said(cell, LETTERS[0], LETTERS[other])
        return f"{said[0].upper()}{said[1:]} ({counts[cell]:,})"

    st.segmented_control(
        "Documents",
        ["all", *pairs.CELLS],
        format_func=label,
        required=True,
        help="The curves and the document below are of these documents: right or wrong by accuracy or exact match.",
        **controls.bound("pair", chosen, pickers.OF_TASK),
    )
    return "" if chosen == "all" else chosen


def show(comparison: Comparison, on: Ground, other: int, cell: str) -> None:
    """The section; where no document is in both runs, why."""
    found = pairs.in_cell(comparison.matched(other), cell)
    a, b = LETTERS[0], LETTERS[other]
    st.markdown(f"#### One document in {a} and {b}")
    if found.empty:
        what = f"is {pairs.said(cell, a, b)}" if cell else f"is in both {a} and {b}"
        controls.say(f"No document {what}: there is none to show side by side.")
        return
    picked, request = st.columns([3, 2], gap="medium", vertical_alignment="bottom")
    with picked:
        pair = _pick_document(comparison, other, cell, found)
    with request:
        sides = _sides(comparison, other, pair)
    if len(sides) < 2:
        controls.say(f"{b} did not record this request of document {pair['doc_b']}.")
        return
    step, alike = _step(sides), bool(pair["same_prompt"])
    _asked(sides, alike, step)
    maps.show(comparison, on, sides, alike, step)
    _similarity(comparison, on, sides)


def _pick_document(comparison: Comparison, other: int, cell: str, found: pd.DataFrame) -> dict[str, Any]:
    """A row of `pairs.matched`; at first one on which the runs disagree."""
    ids = found["doc_a"].tolist()
    apart = found.loc[(found["right_a"] != found["right_b"]).fillna(False), "doc_a"]
    chosen = controls.pick("doc", "document", ids, int(apart.iloc[0]) if len(apart) else ids[0])
    at = ids.index(chosen)
    name = f"Document {chosen} of A ({at + 1:,} of {len(ids):,})"
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        if len(ids) <= pickers.LISTED:
            _listed(comparison, other, found, name, chosen)
        else:
            _placed(ids, name, at)
            _find(comparison, other, cell)
        for icon, step in ((":material/chevron_left:", -1), (":material/chevron_right:", 1)):
            there = 0 <= at + step < len(ids)
            st.button(
                "",
                key=f"document:{step}",
                icon=icon,
                help="The next document" if step > 0 else "The document before",
                disabled=not there,
                on_click=state.write,
                kwargs={**dict.fromkeys(pickers.OF_DOCUMENT), "doc": ids[at + step] if there else None},
            )
    return rows(found.iloc[[at]])[0]


def _listed(comparison: Comparison, other: int, found: pd.DataFrame, name: str, chosen: int) -> None:
    labels = _labels(comparison, other, found)
    st.selectbox(
        name,
        list(labels),
        format_func=labels.__getitem__,
        help="Its number in A, whether each run is right, and how its prompt starts.",
        **controls.bound("doc", chosen, pickers.OF_DOCUMENT),
    )


def _placed(ids: list[int], name: str, at: int) -> None:
    """More documents than a list can hold: by place among them, for their numbers have gaps."""
    key = "compare:place"
    st.session_state[key] = at + 1
    st.number_input(
        name,
        min_value=1,
        max_value=len(ids),
        step=1,
        key=key,
        on_change=lambda: state.write(
            **dict.fromkeys(pickers.OF_DOCUMENT), doc=ids[min(max(st.session_state[key], 1), len(ids)) - 1]
        ),
        help="Place among these documents. The Documents page finds one by its text or grade.",
    )


def _find(comparison: Comparison, other: int, cell: str) -> None:
    a, b = comparison.ids[0], comparison.ids[other]
    place = {"run": a, "vs": b, "pair": cell or None, "task": comparison.task, "filter": comparison.filter}
    state.link("documents", "Find", icon=":material/search:", **place)


def _labels(comparison: Comparison, other: int, found: pd.DataFrame) -> dict[int, str]:
    starts = state.ask(lens.documents, comparison.runs[0], comparison.task).set_index("doc_id")["start"]
    words = {True: "right", False: "wrong", None: "not graded"}
    labels = {}
    for row in rows(found[["doc_a", "right_a", "right_b"]]):
        grades = f"A {words[row['right_a']]}, {LETTERS[other]} {words[row['right_b']]}"
        start = tokens.readable(str(starts.get(row["doc_a"], "")).strip(), 90)
        labels[row["doc_a"]] = f"{row['doc_a']} · {grades} · {start}"
    return labels


def _sides(comparison: Comparison, other: int, pair: dict[str, Any]) -> list[Side]:
    """A's request, by the URL's choice and repeat, and the same of the other run where it has it."""
    found, key = [], (0, 0)
    for at, doc in ((0, pair["doc_a"]), (other, pair["doc_b"])):
        run = comparison.runs[at]
        requests = state.ask(lens.requests, run, comparison.task, int(doc))
        key = pickers.pick_request(requests) if at == 0 else key
        row = next((row for row in rows(requests) if (row["choice"], row["repeat"]) == key), None)
        if row is not None:
            request = Request(comparison.task, int(doc), *key)
            found.append(Side(at, run, request, requests, row, state.ask(lens.steps, run, *astuple(request))))
    return found


def _step(sides: list[Side]) -> int | None:
    """The step that the URL names, of those that either run recorded."""
    options = sorted({int(step) for side in sides for step in side.steps["step"]})
    if not options:
        return None
    return controls.pick("step", "step", options, 0 if 0 in options else options[0])


def _asked(sides: list[Side], alike: bool, step: int | None) -> None:
    """Prompts and answers side by side; a prompt that both were given is shown once."""
    once = alike and sides[0].row["n_prompt"] == sides[1].row["n_prompt"]
    for column, side in zip([st.container()] if once else st.columns(2, gap="medium"), sides, strict=False):
        with column:
            st.html(" ".join(compared.badge(side.at) for side in sides) if once else compared.badge(side.at))
            panels.prompt(side.run, side.request, side.row, step)
    for column, side in zip(st.columns(2, gap="medium"), sides, strict=True):
        with column:
            st.html(compared.badge(side.at))
            panels.answer(side.run, side.request, side.requests, side.row)


def _similarity(comparison: Comparison, on: Ground, sides: list[Side]) -> None:
    """How the residual streams of this document move through the layers of both runs."""
    if "similarity" not in comparison.signals():
        st.caption("Similarity curves of a document need --signals similarity in both runs.")
        return
    a, b = sides
    docs = (a.run.run_id, a.request.doc, b.run.run_id, b.request.doc)
    frame = state.ask_runs(
        compared_layers.of_document, (a.run, b.run), comparison.task, *docs, a.request.choice, a.request.repeat
    )
    st.markdown("**This document's residual stream**", help="Means over the scored or generated steps of the request.")
    for column, name in zip(st.columns(len(SIMILARITY), gap="medium"), SIMILARITY, strict=True):
        with column:
            figure = curves.draw(list(_lines(comparison, on, sides, frame, name)), _axes(on, name), 260)
            figure = ticked(figure, frame["layer"].max(), not on.depth, most=7)
            exports.chart(figure, f"document:{name}")
    exports.offer(f"{comparison.task}-document-similarity", [frame], "document:similarity")


def _axes(on: Ground, name: str) -> Axes:
    return Axes("Layer" if on.depth else "Share of the depth", MEASURES[name].title, integer_x=on.depth)


def _lines(comparison: Comparison, on: Ground, sides: list[Side], frame: pd.DataFrame, name: str) -> Iterator[Curve]:
    for side in sides:
        own = frame[frame["run_id"] == side.run.run_id]
        layer = own["layer"].to_numpy(float)
        x = layer if on.depth else layer / max(layer.max(initial=0), 1)
        y = own[name].to_numpy(float)
        yield Curve(side.letter, x, y, colour=comparison.colour(side.at), dash=comparison.dash(side.at))
