"""Steps: one request token by token, and a step over all layers beside the distribution that came of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import streamlit as st

from dashboard import controls, exports, pickers, playing, state, tokens
from dashboard.charts import running_text
from dashboard.components.keys import listen
from dashboard.components.strip import strip
from dashboard.panels import Request
from dashboard.playing import Playing
from dashboard.queries import lens, rows
from dashboard.views.steps.chosen import OPEN, draw_settling, draw_step
from dashboard.views.steps.view import SPEEDS, View, go, make_view

TITLE, ICON, ORDER, URL_PATH = "Steps", ":material/view_week:", 50, "steps"


def render() -> None:
    controls.open_notices()
    picked = pickers.pick_run_and_task([3, 2, 4])
    if picked is None:
        return
    run, task, document_column = picked
    with document_column:
        doc = pickers.pick_document(run, task)
    requests = state.ask(lens.requests, run, task, doc)
    several = len(requests) > 1
    left, right = st.columns([2, 5], gap="medium", vertical_alignment="bottom") if several else [st.container()] * 2
    with left:
        choice, repeat = pickers.pick_request(requests)
    request = Request(task, doc, choice, repeat)
    row = next(row for row in rows(requests) if (row["choice"], row["repeat"]) == (choice, repeat))
    view = make_view(run, request, row)
    with right:
        _totals(view)
    if st.session_state.pop(OPEN, False):
        state.open_page("lens", **st.query_params.to_dict())
    play = playing.begin(view.place, view.options, float(view.speed))
    arrows = {"ArrowLeft": lambda: _move(view, play, -1), "ArrowRight": lambda: _move(view, play, 1)}
    listen({**pickers.turns(run, task, doc), **(arrows if view.options else {})}, "steps_keys")
    if view.step is not None:
        _controls(view, view.step, play)
    _look(view, play)


def _totals(view: View) -> None:
    found = running_text.totals(view.steps, view.layers) if view.options else {}
    if view.row["kind"] == "generate_until":
        found["Stop reason"] = (tokens.readable(view.row["stop_reason"] or "not recorded", 40), "")
    if found:
        st.html(running_text.line(found))


def _bound(view: View, play: Playing | None, name: str, value: str) -> dict[str, Any]:
    """`controls.bound`, without an end to the playing."""
    tied = controls.bound(name, value)

    def changed(*args: Any) -> None:
        tied["on_change"](*args)
        playing.ask(view.place, play.step if play else None)

    return {**tied, "on_change": changed}


def _controls(view: View, step: int, play: Playing | None) -> None:
    """What the colours show, and moving from step to step."""
    known = running_text.statistics(view.layers)
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.segmented_control(
            "Colour",
            list(known),
            format_func=lambda name: known[name].label,
            required=True,
            width="content",
            help="  \n".join(f"**{one.title}**: {one.meaning}" for one in known.values()),
            **_bound(view, play, "colour", view.statistic.name),
        )
        if len(view.options) > 1:
            with st.container(horizontal=True, vertical_alignment="bottom", gap="small", width="content"):
                _transport(view, step, play)


def _transport(view: View, step: int, play: Playing | None) -> None:
    """Buttons that choose the step, and playing."""
    first, last = view.options[0], view.options[-1]
    back, on = (lambda: _move(view, play, -1)), (lambda: _move(view, play, 1))
    _button("chevron_left", "", "The step before (arrow left)", back, not play and step == first)
    if play is None:
        start = step if step != last else max(first, 0)
        begin = functools.partial(playing.ask, view.place, start)
        _button("play_arrow", "Play", "From step to step; at the last, begin again", begin)
    else:  # keys of their own: the second click of a double click on Play is none on Pause
        _button("pause", "Pause", "Stay at this step", lambda: _move(view, play, 0))
    _button("chevron_right", "", "The next step (arrow right)", on, not play and step == last)
    st.selectbox(
        "Speed",
        SPEEDS,
        format_func=lambda speed: f"{speed} a second",
        width=130,
        help="Steps a second while playing, where the page keeps up.",
        **_bound(view, play, "speed", view.speed),
    )


def _move(view: View, play: Playing | None, by: int) -> None:
    step = play.step if play else view.step
    if step is not None:
        at = view.options.index(step) + by
        go(view, view.options[min(max(at, 0), len(view.options) - 1)])


def _button(icon: str, name: str, help: str, act: Callable[[], None], disabled: bool = False) -> None:
    st.button(name, key=f"steps:{icon}", icon=f":material/{icon}:", help=help, disabled=disabled, on_click=act)


@st.fragment
def _look(view: View, play: Playing | None) -> None:
    """All that hangs on the step: a fragment, so that playing draws only this. A click draws the whole page."""
    with controls.troubles():
        if play is not None and play.ended:
            go(view, play.step)
        if playing.asked():
            st.rerun(scope="app")
        step = play.step if play else view.step
        if step is None:
            _text(view, step)
            controls.say("This request has no steps: nothing was scored or generated, so there is nothing to choose.")
            return
        _slider(view, step, play)
        _text(view, step)
        draw_step(view, step)
        draw_settling(view, step)
        if play is not None:
            play.wait()


def _slider(view: View, step: int, play: Playing | None) -> None:
    """While playing a bar: a slider that the page moves can be taken for moved by hand."""
    low, high = view.options[0], view.options[-1]
    if low == high:
        return
    said = f"Step {step} of {low} to {high}"
    if play is not None:
        st.progress((step - low) / (high - low), text=said)
        return
    st.session_state["url:step"] = step
    st.select_slider(
        said,
        view.options,
        key="url:step",
        help="A step is one scored or generated token, counted from 0; recorded prompt tokens are negative.",
        on_change=lambda: go(view, st.session_state["url:step"]),
    )


def _text(view: View, step: int | None) -> None:
    """The tokens on their colours, and what these mean."""
    inputs = state.ask(lens.inputs, view.run, *astuple(view.request))
    at = int((inputs["step"] == step).argmax()) if step is not None else len(inputs) - 1
    first, end = running_text.window(len(inputs), at)
    shown = running_text.strip_tokens(inputs.iloc[first:end], view.steps, view.statistic, step)
    strip(shown, f"strip:{view.place}", lambda picked: go(view, picked))
    said_column, legend_column = st.columns(2)
    said_column.caption(_under(view, first, end, len(inputs)))
    with legend_column, st.container(horizontal=True, vertical_alignment="top", horizontal_alignment="right"):
        if step is not None:
            st.html(running_text.legend(view.statistic), width=260)
        exports.offer(f"steps {view.place}", [view.steps], "steps_text")
    if view.row["truncated_left"]:
        controls.say(
            f"The harness dropped the first {view.row['truncated_left']:,} prompt tokens to fit the model's context.",
            kind="warning",
        )


def _under(view: View, first: int, end: int, count: int) -> str:
    """What the strip holds, and what is not to be seen in it."""
    verb = "generated" if view.row["kind"] == "generate_until" else "scored"
    parts = [f"{view.row['n_prompt']:,} prompt tokens, then {view.row['n_steps']:,} {verb} (underlined)."]
    if end - first < count:
        parts.append(f"Shown: tokens {first + 1:,} to {end:,} of {count:,}, around the chosen step.")
    if unknown := running_text.unknown(view.steps, view.statistic):
        parts.append(f"{unknown:,} recorded tokens have no colour: {view.statistic.label.lower()} not finite.")
    if view.options:
        parts.append("Click a coloured token to choose its step.")
    return " ".join(parts)
