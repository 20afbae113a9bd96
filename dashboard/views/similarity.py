"""Similarity: how alike the layers' residual streams are, for a step, a document or a task."""

from __future__ import annotations

import functools
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from dashboard import controls, exports, pickers, state, tokens
from dashboard.charts import alike, matrix
from dashboard.components.keys import listen
from dashboard.panels import Request
from dashboard.queries import lens, rows
from dashboard.queries import similarity as asked
from recorder.rundir import Run

TITLE, ICON, ORDER, URL_PATH = "Similarity", ":material/grid_on:", 60, "similarity"

SCOPES = {"step": "Step", "document": "Document", "task": "Task"}
COSINES = {"raw": "As they are", "centred": "Centred"}
POSITIONS = {"all": "All", "typical": "Without outliers"}
GROUPS = {"all": "All", "correct": "Correct", "incorrect": "Incorrect"}
CENTRED = (
    "Before a cosine is taken, each layer's mean over a fixed reference passage is subtracted: a few directions that "
    "all tokens share can carry most of a residual stream, and make any two layers look alike."
)
OUTLIER = (
    "An outlier position has, at some layer, a residual stream over 5 times as long as that layer's median over a "
    "fixed reference passage: attention sinks and massive activations."
)


@dataclass(frozen=True)
class View:
    """What is looked at: `request` and `step` where the scope is a step, `doc` unless it is the task."""

    run: Run
    task: str
    scope: str
    centred: bool
    outliers: bool
    band: str
    doc: int | None = None
    request: Request | None = None
    step: int | None = None

    @property
    def name(self) -> str:
        """For files."""
        parts = (self.task, self.doc, *(astuple(self.request)[2:] if self.request else ()), self.step)
        marks = ("centred" if self.centred else "", "" if self.outliers else "without_outliers")
        return " ".join(["similarity", *(str(part) for part in (*parts, *marks) if part not in (None, ""))])


def render() -> None:
    controls.open_notices()
    picked = pickers.pick_run_and_task([3, 2, 4])
    if picked is None:
        return
    run, task, document_column = picked
    view = _controls(run, task, document_column)
    recorded = rows(state.ask(asked.recorded, run)) if _is_signal(run, "similarity") else []
    if not recorded:
        _not_recorded(run)
    elif missing := _missing(view, recorded[0]):
        controls.say(f"This run was recorded by an earlier version, without {missing}: record it again to have them.")
    else:
        _look(view)


def _is_signal(run: Run, name: str) -> bool:
    return name in (run.about.get("signals") or (run.about.get("config") or {}).get("signals") or [])


def _not_recorded(run: Run) -> None:
    if _is_signal(run, "similarity"):
        controls.say("No similarity is on disk yet: a run in progress writes it with its next commit.")
    else:
        controls.say("This run recorded no similarity. Record it again with --signals similarity to see it here.")


def _missing(view: View, recorded: dict[str, Any]) -> str:
    if view.centred and not recorded["centred"]:
        return "centred cosines"
    return "outlier positions" if not view.outliers and not recorded["outlier"] else ""


def _controls(run: Run, task: str, document_column: Any) -> View:
    scope = controls.pick("scope", "scope", list(SCOPES), "step" if state.read("step") else "task")
    with document_column:
        doc = pickers.pick_document(run, task) if scope != "task" else None
    if doc is not None:
        listen(pickers.turns(run, task, doc), "similarity_documents")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        _choice("scope", "Scope", SCOPES, scope, "One step, the mean over a document's steps, or over a task's.")
        cosine = _option("cosine", "Residual streams", COSINES, f"**Centred**: {CENTRED}")
        positions = _option("positions", "Positions", POSITIONS, OUTLIER)
        bands = {"task": ("quartiles", "error"), "document": ("quartiles",)}.get(scope, ())
        band = bands[0] if bands else ""
        if len(bands) > 1:
            band = _option("band", "Bands", alike.BANDS, " ".join(alike.MEANT.values()))
    found = View(run, task, scope, cosine == "centred", positions == "all", band, doc)
    return _pick_step(found, doc) if scope == "step" and doc is not None else found


def _option(name: str, label: str, options: dict[str, str], help: str) -> str:
    value = controls.pick(name, label.lower(), list(options), next(iter(options)))
    _choice(name, label, options, value, help)
    return value


def _choice(name: str, label: str, options: dict[str, str], value: str, help: str) -> None:
    st.segmented_control(
        label,
        list(options),
        format_func=options.__getitem__,
        required=True,
        width="content",
        help=help,
        **controls.bound(name, value),
    )


def _pick_step(view: View, doc: int) -> View:
    """The view of one step, with the controls that choose it and links to the pages that show more of it."""
    requests = state.ask(lens.requests, view.run, view.task, doc)
    several = len(requests) > 1
    left, right = st.columns([2, 5], gap="medium", vertical_alignment="bottom") if several else [st.container()] * 2
    with left:
        request = Request(view.task, doc, *pickers.pick_request(requests))
    steps = state.ask(lens.steps, view.run, *astuple(request))
    options = [int(step) for step in steps["step"]]
    view = replace(view, request=request)
    if not options:
        return view
    step = controls.pick("step", "step", options, 0 if 0 in options else options[0])
    with right:
        _step_controls(view, request, rows(steps)[options.index(step)], options)
    return replace(view, step=step)


def _step_controls(view: View, request: Request, token: dict[str, Any], options: list[int]) -> None:
    step, at = token["step"], options.index(token["step"])
    moves = {"ArrowLeft": options[max(at - 1, 0)], "ArrowRight": options[min(at + 1, len(options) - 1)]}
    listen({key: functools.partial(state.write, step=to) for key, to in moves.items()}, "similarity_steps")
    said = f"Step {step} of {options[0]} to {options[-1]}: “{tokens.show(token['text'], columns=40)}”"
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        if len(options) > 1:
            help = "Step shown; arrow keys move it. Recorded prompt tokens have negative steps."
            label = tokens.markdown(said)
            st.select_slider(label, options, help=help, **controls.bound("step", step))
        else:
            st.markdown(tokens.markdown(said))
        there = {**asdict(request), "run": view.run.run_id, "step": step, "layer": state.read("layer")}
        state.link("lens", "Lens", icon=":material/layers:", help="This step, layer by layer", **there)
        state.link("steps", "Steps", icon=":material/view_week:", help="This step in its text", **there)


def _look(view: View) -> None:
    frame = _ask(view)
    if frame is None or frame.empty or not frame["n_steps"].max():
        controls.say(_why_empty(view, frame))
        return
    st.caption(tokens.markdown(_of_what(view, frame)))
    _curves(view, frame)
    _matrix(view, frame)


def _ask(view: View) -> pd.DataFrame | None:
    options = (view.centred, view.outliers)
    if view.scope == "task":
        return state.ask(asked.task, view.run, view.task, *options)
    if view.scope == "document":
        return state.ask(asked.document, view.run, view.task, view.doc, *options)
    if view.request is None or view.step is None:
        return None
    return state.ask(asked.step, view.run, *astuple(view.request), view.step, *options)


def _why_empty(view: View, frame: pd.DataFrame | None) -> str:
    left_out = frame is not None and (view.scope == "task" or (len(frame) and frame["n_left_out"].max() > 0))
    if left_out and not view.outliers:
        which = (
            "This step is an outlier position" if view.scope == "step" else f"Every step of this {view.scope} is one"
        )
        return f"{which}, so that nothing is left without the outliers. {OUTLIER}"
    if view.scope == "step" and view.step is not None:
        return "The similarity of this step is not on disk: a run in progress writes it with its next commit."
    what = {"step": "request", "document": "document", "task": "task"}[view.scope]
    return f"This {what} has no steps: nothing was scored or generated, so there is nothing to compare."


def _of_what(view: View, frame: pd.DataFrame) -> str:
    """What the numbers are means of, and what is not in them."""
    everything = rows(frame[frame["group"] == "all"])
    counts = {name: max(row[name] for row in everything) for name in ("n_docs", "n_steps", "n_left_out")}
    said = ["One step."]
    if view.scope != "step":
        of = f" of {_count(counts['n_docs'], 'document')}" if view.scope == "task" else ""
        said = [f"Mean over {_count(counts['n_steps'], 'step')}{of} (of the gold choice, where there is one)."]
    if view.scope == "task" and set(frame["group"]) == {"all"}:
        said.append("Not graded, so not split by correct.")
    if not view.outliers:
        said.append(f"Left out: {_count(counts['n_left_out'], 'outlier position')}.")
    if lost := max(row["n_nonfinite"] or 0 for row in everything):
        said.append(f"Up to {lost:,} steps a layer have a cosine that is not finite: left out, a gap where all are.")
    if view.centred:
        said.append(f"{CENTRED} Norms are those of the streams as they are.")
    return " ".join(said)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _curves(view: View, frame: pd.DataFrame) -> None:
    layers = sorted({int(layer) for layer in frame["layer"]})
    picked = controls.pick("layer", "layer", layers, layers[-1]) if state.read("layer") else None
    band = view.band if frame["n_steps"].max() > 1 else ""
    figure = alike.draw(frame, band, picked)
    exports.chart(figure, "similarity_curves", on_click=lambda cell: state.write(layer=int(cell[0])))
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        notes = [alike.MEANT.get(band, ""), "Click a point to choose its layer."]
        if not np.isfinite(alike.numbers(frame, "norm_mean")).any():
            notes.append("Norms are recorded with --signals logit_lens.")
        st.caption(tokens.markdown(" ".join(notes)))
        exports.offer(view.name, [_with_sql(frame.drop(columns="cos"), frame)], "similarity_curves", figure)


def _with_sql(made: pd.DataFrame, of: pd.DataFrame) -> pd.DataFrame:
    made.attrs["sql"] = of.attrs.get("sql", [])
    return made


def _matrix(view: View, frame: pd.DataFrame) -> None:
    """Layers by layers, and beside it the chosen pair and what the ends of the curves are."""
    matrix_column, words_column = st.columns([6, 5], gap="medium")
    groups = {name: label for name, label in GROUPS.items() if name in set(frame["group"])}
    group = controls.pick("group", "group", list(groups), "all")
    mine = frame[frame["group"] == group].sort_values("layer")
    values = np.array([np.ma.filled(np.ma.asarray(row, float), np.nan) for row in mine["cos"]])
    pair, scale = _pair(len(values)), matrix.CENTRED if view.centred else matrix.RAW
    figure = matrix.draw(values, scale, pair)
    with matrix_column:
        with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
            st.markdown("**Every pair of layers**", width="content")
            exports.offer(f"{view.name} matrix", [_with_sql(matrix.table(values), frame)], "similarity_matrix", figure)
        exports.chart(figure, "similarity_matrix", on_click=_pick_pair, width="content")
    with words_column:
        if len(groups) > 1:
            _choice("group", "Documents of the matrix", groups, group, "Means over all documents, or by their grade.")
        st.markdown(f"**{matrix.said(values, pair)}**" if pair else "Click a cell for its two layers.")
        st.caption(matrix.ends(values, scale))
        st.markdown("**The first and the last layer**")
        for note in alike.at_the_ends(mine):
            st.caption(tokens.markdown(note))


def _pair(layers: int) -> tuple[int, int] | None:
    """(layer, other layer) that the URL names."""
    if not state.read("layer") or not state.read("other"):
        return None
    options = range(layers)
    one, other = (controls.pick(name, "layer", options, options[-1]) for name in ("layer", "other"))
    return one, other


def _pick_pair(cell: list[Any]) -> None:
    state.write(layer=int(cell[0]), other=int(cell[1]))
