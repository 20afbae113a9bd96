"""Lens: one request of one document, layer by layer and step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import controls, exports, looks, panels, pickers, pinning, state, tokens
from dashboard.charts import heatmap, minimap
from dashboard.components import keys
from dashboard.looks import Look
from dashboard.panels import Request
from dashboard.queries import lens, rows
from recorder.rundir import Run

TITLE, ICON, ORDER, URL_PATH = "Lens", ":material/layers:", 40, "lens"

WINDOW = 16
"""Steps side by side: with more, their tokens could not be read at 1280 pixels."""
PAGE, WIDTH, GAP, ASIDE = 1120, 640, 16, 340
"""Pixels of the page in a window 1280 wide, of the widest heatmap, between columns, and of the least panel beside."""
KEYS = "Keys: ← → step, ↑ ↓ layer, [ ] document."

Keys = dict[str, Callable[[], None]]


@dataclass(frozen=True)
class View:
    """The picked request, and the picked step and window in it."""

    run: Run
    request: Request
    row: dict[str, Any]
    steps: pd.DataFrame
    step: int
    first: int
    last: int

    @property
    def options(self) -> list[int]:
        return [int(step) for step in self.steps["step"]]

    @property
    def place(self) -> str:
        """Names the request among all that one tab may look at."""
        return "_".join(map(str, (self.run.run_id, *astuple(self.request))))

    def go(self, step: int) -> None:
        """Pick a step; a window without it is given up for one around it."""
        state.write(step=step, **({} if self.first <= step <= self.last else {"from": None}))


def render() -> None:
    controls.open_notices()
    picked = pickers.pick_run_and_task([3, 2, 4])
    if picked is None:
        return
    run, task, document_column = picked
    with document_column:
        doc = pickers.pick_document(run, task)
    keys.listen({**pickers.turns(run, task, doc), **_document(run, task, doc)}, "keys")


def _document(run: Run, task: str, doc: int) -> Keys:
    """The document, and the keys that move within it."""
    requests = state.ask(lens.requests, run, task, doc)
    prompt_column, answer_column = st.columns([3, 2], gap="medium")
    with answer_column:
        choice, repeat = pickers.pick_request(requests)
    request = Request(task, doc, choice, repeat)
    row = next(row for row in rows(requests) if (row["choice"], row["repeat"]) == (choice, repeat))
    steps = state.ask(lens.steps, run, *astuple(request))
    view = _view(run, request, row, steps)
    with answer_column:
        panels.answer(run, request, requests, row)
    with prompt_column:
        panels.prompt(run, request, row, view.step if view else None)
    signals = run.about.get("signals") or (run.about.get("config") or {}).get("signals") or []
    if "logit_lens" not in signals:
        controls.say("This run recorded no layers. Record it again with --signals logit_lens to see them here.")
        return {}
    if view is None:
        controls.say("This request has no steps: nothing was scored or generated, so there is no layer to show.")
        return {}
    return _layers(view)


def _view(run: Run, request: Request, row: dict[str, Any], steps: pd.DataFrame) -> View | None:
    """The picked step and the window of steps; None where there is no step."""
    options = [int(step) for step in steps["step"]]
    if not options:
        return None
    step = controls.pick("step", "step", options, 0 if 0 in options else options[0])
    firsts = options[: max(len(options) - WINDOW, 0) + 1]
    around = max((first for first in firsts if first <= step - step % WINDOW), default=firsts[0])
    first = controls.pick("from", "first step", firsts, around)
    last = options[min(options.index(first) + WINDOW, len(options)) - 1]
    return View(run, request, row, steps, step, first, last)


def _layers(view: View) -> Keys:
    """The heatmap, the panel of its picked cell, and the pinned tokens; where there is none, why."""
    cells = state.ask(lens.layers, view.run, *astuple(view.request), view.first, view.last)
    if cells.empty:
        controls.say("The layers of these steps are not on disk: a run in progress writes them with its next commit.")
        return {}
    look = looks.choose(sorted({int(layer) for layer in cells["layer"]}))
    layer = controls.pick("layer", "layer", look.layers, look.layers[-1])
    if len(view.steps) > WINDOW:
        _minimap(view, look)
    of_step = cells[cells["step"] == view.step].reset_index(drop=True)
    if not view.first <= view.step <= view.last:
        of_step = state.ask(lens.layers, view.run, *astuple(view.request), view.step, view.step)
    width = heatmap.full_width(cells["step"].nunique(), WIDTH)
    rest = PAGE - width - GAP
    aside = [(rest - GAP) // 2] * 2 if rest >= 2 * ASIDE + GAP else [rest]
    columns = st.columns([width, *aside], gap="small")
    with columns[0]:
        _heatmap(view, cells, look, layer)
    if not of_step.empty:
        _aside(view, cells, of_step, look, layer, columns[1:], aside[0])
    return _moves(view, look, layer)


def _aside(
    view: View, cells: pd.DataFrame, of_step: pd.DataFrame, look: Look, layer: int, columns: list[Any], width: int
) -> None:
    """The picked cell and the pinned tokens, in one column or two of `width` pixels."""
    step = rows(view.steps[view.steps["step"] == view.step])[0]
    pins = pinning.find(of_step, step, lambda token_id: _text(token_id, view.steps, cells))
    with columns[0]:
        panels.cell(view.run, view.request, step, layer, of_step, pins)
    with columns[-1]:
        key = f"pins_{view.place}_{view.step}"
        pinning.followed(of_step, pins, layer, lambda there: state.write(layer=look.nearest(there)), key, width)


def _text(token_id: int, steps: pd.DataFrame, cells: pd.DataFrame) -> str | None:
    """Text of a token that the step's own lists do not hold, from those around it; None where they do not either."""
    found = steps.loc[steps["token_id"] == token_id, "text"]
    if len(found):
        return str(found.iloc[0])
    lists = zip(cells["top_ids"], cells["top_tokens"], strict=True)
    return next((texts[list(ids).index(token_id)] for ids, texts in lists if token_id in ids), None)


def _moves(view: View, look: Look, layer: int) -> Keys:
    """The arrow keys: to the step or layer next to the picked one; at an end they do nothing."""

    def to(places: list[int], place: int, by: int) -> int:
        return places[min(max(places.index(place) + by, 0), len(places) - 1)]

    shown = list(look.layers)
    return {
        "ArrowLeft": lambda: view.go(to(view.options, view.step, -1)),
        "ArrowRight": lambda: view.go(to(view.options, view.step, 1)),
        "ArrowUp": lambda: state.write(layer=to(shown, layer, 1)),
        "ArrowDown": lambda: state.write(layer=to(shown, layer, -1)),
    }


def _minimap(view: View, look: Look) -> None:
    """All steps of a long request in one strip; a click moves the window there."""
    options, statistic = view.options, minimap.at_output(look.statistic.name)
    found = minimap.bins(view.steps, statistic.column)
    key = f"minimap_{view.place}"

    def move(step: int) -> None:
        at = min(max(options.index(step) - WINDOW // 2, 0), len(options) - WINDOW)
        state.write(step=step, **{"from": options[at]})

    def clicked() -> None:
        event: Any = st.session_state[key]
        if event["selection"]["points"]:
            move(int(event["selection"]["points"][0]["customdata"][0]))

    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        _page_button("chevron_left", f"The {WINDOW} steps before", view, -1)
        st.plotly_chart(
            minimap.draw(found, statistic, (view.first, view.last), view.step),
            key=key,
            on_select=clicked,
            selection_mode="points",
            config={"displayModeBar": False},
        )
        _page_button("chevron_right", f"The {WINDOW} steps after", view, 1)
    ends = statistic.ticks()[1]
    each = f", in {len(found)} bins of means" if len(found) < len(options) else ""
    colours = f"{statistic.label.lower()} at the model's output, {ends[0]} to {ends[-1]} {statistic.unit}".rstrip()
    said = f"Steps {view.first} to {view.last} of {options[0]} to {options[-1]}."
    st.caption(tokens.markdown(f"{said} The strip is all of them{each}, coloured by {colours}. Click it to move."))


def _page_button(icon: str, label: str, view: View, by: int) -> None:
    options = view.options
    at = options.index(view.first)
    to = min(max(at + by * WINDOW, 0), len(options) - WINDOW)
    moved = options[min(max(options.index(view.step) + to - at, 0), len(options) - 1)]
    st.button(
        "",
        icon=f":material/{icon}:",
        key=f"page:{by}",
        help=label,
        disabled=to == at,
        on_click=state.write,
        kwargs={"step": moved, "from": options[to]},
    )


def _heatmap(view: View, cells: pd.DataFrame, look: Look, layer: int) -> None:
    shown = cells[cells["layer"].isin(look.layers)].reset_index(drop=True)
    sinks = _sinks(view) & set(shown["step"]) if look.without_sinks else set()
    statistic = look.scaled(shown, sinks)
    count = shown["step"].nunique()
    columns = heatmap.letters(count, WIDTH)
    grid = heatmap.make_grid(shown, statistic, columns, look.label)
    steps = rows(view.steps[view.steps["step"].isin(grid.steps)])
    targets = [
        f"{row['step']}<br>{tokens.show_plotly(row['text'], continues=row['continues'], columns=columns)}"
        for row in steps
    ]
    settled = [row["settle_layer"] for row in steps]
    figure = heatmap.draw(grid, statistic, targets, (view.step, layer), WIDTH, settled)
    key = f"map_{view.place}_{view.first}"
    exports.chart(
        figure,
        key,
        on_click=lambda point: state.write(step=int(point[0]), layer=int(point[1])),
        width="stretch" if count > 3 else "content",
    )
    gaps = grid.gaps - (count if statistic.except_last and look.layers[-1] == look.of - 1 else 0)
    said = [*_said(view, gaps), *look.said(statistic, len(sinks))]
    st.caption("  \n".join(tokens.markdown(line) for line in said))
    data = shown.drop(columns=["top_ids", "top_tokens", "top_probs"])
    data.attrs["sql"] = cells.attrs.get("sql", [])
    exports.offer(f"lens_{view.place}", [data], key, figure)


def _sinks(view: View) -> set[int]:
    """Steps that take a residual stream unlike the others': the first position's, or an outlier's."""
    flagged = state.ask(lens.outliers, view.run, *astuple(view.request))["step"]
    return {*view.steps.loc[view.steps["position"] == 0, "step"].tolist(), *flagged.tolist()}


def _said(view: View, gaps: int) -> list[str]:
    said = ["Click a cell for its details. The line in a column marks its settle layer.", KEYS]
    if gaps:
        said.append(f"{gaps:,} cells are gaps: not finite, or not recorded.")
    if view.options[0] >= 0 and view.row["n_prompt"] > 1:
        said.append("The prompt's own layers were not recorded: --positions all records them.")
    return said
