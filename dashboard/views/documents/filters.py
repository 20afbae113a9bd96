"""Which documents: what the URL asks for, and the controls that change it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

import streamlit as st

from dashboard import controls, pickers, state, tokens
from dashboard.queries import overview
from dashboard.queries.documents import Pair, Wanted
from recorder.rundir import Run, mapping

T = TypeVar("T", int, float)
ALL, YES = "all", "yes"
GRADES = {ALL: "All", "right": "Right", "wrong": "Wrong", "ungraded": "Ungraded"}
CELLS = {
    ALL: "in both",
    "rr": "right in both",
    "rw": "right here and wrong there",
    "wr": "wrong here and right there",
    "ww": "wrong in both",
}
FILTERS = ("correct", "margin", "q", "settle", "truncated", "vs", "pair")
LIST = ("page",)
"""What means nothing once the list is another."""
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
MARGIN = "Log-likelihood of the gold choice minus that of the likeliest wrong choice, in nat: over 0 is right."


def pick_filter(run: Run, task: str) -> str:
    """The harness's answer filter; '' while nothing is graded."""
    filters = state.ask(overview.filters, run, task)["filter"].tolist()
    if not filters:
        return ""
    chosen = controls.pick("filter", "answer filter", filters, filters[0])
    if len(filters) > 1:
        st.selectbox(
            "Answer filter",
            filters,
            format_func=lambda name: tokens.readable(name, 40),
            help="The harness cuts the answer out of a generation in several ways, and grades each.",
            **controls.bound("filter", chosen, LIST),
        )
    return chosen


def read(run: Run, task: str, filter: str) -> tuple[Wanted, tuple[Run, ...]]:
    """What the URL asks for, and the runs that it takes; what cannot be read is said and left out."""
    low, high = _between("margin", NUMBER, "..", float)
    settle = _settle_asked(run)
    grade = controls.pick("correct", "grade", list(GRADES), ALL)
    wanted = Wanted(
        run.run_id,
        task,
        filter,
        correct="" if grade == ALL else grade,
        low=low,
        high=high,
        words=state.read("q"),
        settle=settle,
        truncated=controls.pick("truncated", "choice", [ALL, YES], ALL) == YES,
    )
    other = _other(filter)
    if other is None:
        return wanted, (run,)
    cell = controls.pick("pair", "pair", list(CELLS), ALL)
    return wanted._replace(pair=Pair(other.run_id, "" if cell == ALL else cell)), (run, other)


def _between(name: str, number: str, to: str, read: Callable[[str], T]) -> tuple[T | None, T | None]:
    """Both ends of a range that the URL gives as `low..high`; None for an end that is left out."""
    given = state.read(name)
    found = re.fullmatch(rf"\s*({number})?\s*{re.escape(to)}\s*({number})?\s*", given, re.IGNORECASE | re.ASCII)
    low, high = (read(end) if end else None for end in found.groups()) if found else (None, None)
    if given and (not found or not all(math.isfinite(end) for end in (low, high) if end is not None)):
        controls.say(f"This link asks for {name} {given}, which is no range like 1{to}2: left out.", kind="warning")
        return None, None
    if low is not None and high is not None and low > high:
        controls.say(f"This link asks for {name} {given}, from high to low: read the other way round.", kind="warning")
        return high, low
    return low, high


def _layers(run: Run) -> int | None:
    layers = mapping(run.about.get("architecture")).get("layers")
    return layers if isinstance(layers, int) and layers > 0 else None


def _settle_asked(run: Run) -> tuple[int, int] | None:
    """The range of settle layers, within those there are."""
    first, last = _between("settle", r"\d{1,4}", "-", int)
    if first is None or last is None:
        return None
    layers = _layers(run)
    if layers is not None and last > layers:
        text = f"This link asks for settle layers up to {last}, but layer {layers} is the last: showing up to that."
        controls.say(text, kind="warning")
        return min(first, layers), layers
    return first, last


def _other(filter: str) -> Run | None:
    """The run with which the URL pairs the documents; None, and why, where there is none to pair with."""
    name = state.read("vs")
    if not name:
        return None
    other = state.store().run(name)
    why = "it is not here" if other is None else f"it cannot be read, {other.problem}" if other.problem else ""
    why = why or ("" if filter else "the documents of this task are not graded")
    if why:
        controls.say(f"This link pairs the documents with those of the run {name}: left out, {why}.", kind="warning")
        return None
    return other


def show(run: Run, wanted: Wanted, counts: dict[str, Any]) -> None:
    widths = [3.6, 3.9, 1.5, 1.5, 2.6, 1.1]
    words, grade, low, high, settle, clear = st.columns(widths, vertical_alignment="bottom")
    words.text_input(
        "Text",
        placeholder="in prompt, prediction or target",
        icon=":material/search:",
        help="Shows the documents in whose prompt, prediction or target these letters stand, in either case.",
        **controls.bound("q", wanted.words, LIST),
    )
    grade.segmented_control(
        "Grade",
        list(GRADES),
        format_func=GRADES.__getitem__,
        required=True,
        help="As the harness grades them, under the answer filter.",
        **_filter("correct", wanted.correct or ALL, {ALL: None}),
    )
    if counts["has_choices"]:
        _margin(low, "Margin from", "low", wanted.low)
        _margin(high, "to", "high", wanted.high)
    elif (wanted.low, wanted.high) != (None, None):
        controls.say("This task has no choices, so its documents have no margin to be filtered by.")
    with settle:
        _settle(run, wanted, counts["has_layers"])
    clear.button(
        "Clear",
        help="Back to all documents of the task",
        disabled=not any(state.read(name) for name in FILTERS),
        on_click=state.write,
        kwargs=dict.fromkeys((*FILTERS, *LIST)),
    )
    _rarer(wanted, counts)


def _filter(name: str, value: object, written: dict[Any, str | None]) -> dict[str, Any]:
    """`controls.bound`, for values that the URL has another word for, or none."""
    key = f"url:{name}"
    st.session_state[key] = value

    def changed() -> None:
        chosen = st.session_state[key]
        state.write(**{name: written.get(chosen, chosen)}, page=None)

    return {"key": key, "on_change": changed}


def _margin(column: Any, label: str, end: str, value: float | None) -> None:
    key = f"url:margin_{end}"
    st.session_state[key] = value
    column.number_input(
        label, value=None, step=0.5, format="%g", placeholder="any", help=MARGIN, key=key, on_change=_margin_changed
    )


def _margin_changed() -> None:
    found = [st.session_state.get(f"url:margin_{end}") for end in ("low", "high")]
    ends = ["" if value is None else f"{value:.12g}" for value in found]
    state.write(margin="..".join(ends) if any(ends) else None, page=None)


def _settle(run: Run, wanted: Wanted, recorded: bool) -> None:
    """A slider over the layers; the whole of it is no filter."""
    layers = _layers(run)
    if not recorded or layers is None:
        if wanted.settle is not None:
            controls.say("This run recorded no layers (--signals logit_lens), so no step has a settle layer.")
        return
    key = "url:settle"
    st.session_state[key] = wanted.settle or (0, layers)
    st.slider(
        "Settle layer",
        0,
        layers,
        help="Documents with a step whose settle layer is in this range: the first layer from which its top-1 stays.",
        key=key,
        on_change=lambda: _settle_changed(key, layers),
    )


def _settle_changed(key: str, layers: int) -> None:
    first, last = st.session_state[key]
    state.write(settle=None if (first, last) == (0, layers) else f"{first}-{last}", page=None)


def _rarer(wanted: Wanted, counts: dict[str, Any]) -> None:
    """Filters that few tasks have a use for, or that only a link sets."""
    if counts["truncated"] or wanted.truncated:
        st.checkbox(
            f"Truncated only ({counts['truncated']:,})",
            help="Documents whose prompt lost its start, to fit the model's context.",
            **_filter("truncated", wanted.truncated, {True: YES, False: None}),
        )
    if wanted.pair is not None:
        other = state.store().run(wanted.pair.other)
        name = pickers.run_label(other) if other is not None else wanted.pair.other
        st.caption(tokens.markdown(f"Only documents {CELLS[wanted.pair.cell or ALL]}; there: {name}."))
