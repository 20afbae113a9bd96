"""Where in depth the runs part: one quantity over the layers of all runs, and its difference to the baseline."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from dashboard import controls, exports, state, tokens
from dashboard.charts import compared, curves
from dashboard.charts.compared import LETTERS
from dashboard.charts.curves import Axes, Curve
from dashboard.charts.measures import MEASURES, Measure, offered
from dashboard.paired import Parting, half_width, partings
from dashboard.queries import compared_layers, pairs
from dashboard.views.compare.comparison import Comparison, recorded
from dashboard.views.compare.panel import DOCUMENTS, Ground
from recorder.rundir import mapping

READ = 3_000_000
"""Rows of `signals` up to which documents are paired unasked."""
TOLD = 3
"""Stretches of layers that the headline tells of."""
HEIGHT = 330
HELP = (
    "One quantity of the logit lens, or of the residual stream, over the layers of every run. Layer 0 is the "
    "embedding, the last one the output of the last block."
)


@dataclass(frozen=True)
class Depth:
    """A measure over layers. `shared`: over the documents that all runs have, paired; else over each run's own."""

    measure: Measure
    frame: pd.DataFrame
    shared: bool
    can_share: bool
    relative: bool

    def of(self, run_id: str) -> pd.DataFrame:
        return self.frame[self.frame["run_id"] == run_id]

    def x(self, rows: pd.DataFrame) -> np.ndarray:
        """Layers, or their share of the depth."""
        layer = rows["layer"].to_numpy(float)
        return layer / max(layer.max(initial=0), 1) if self.relative else layer


def show(
    comparison: Comparison, on: Ground, places: tuple[DeltaGenerator, DeltaGenerator], other: int, cell: str
) -> None:
    """The section. `places`: where what it finds is told, and where its controls go. `cell` is of the baseline and the
    run `other`."""
    headline, beside = places
    names = offered(comparison.signals(), on.vocabulary)
    if not names:
        _say_what_is_missing(comparison)
        return
    measure = MEASURES[controls.pick("curve", "curve", names, names[0])]
    found = find(comparison, on, measure, other, cell)
    with headline:
        for sentence in _partings(comparison, found, other, cell):
            st.html(compared.sentence(sentence))
    with beside:
        st.selectbox(
            "Curve",
            names,
            format_func=lambda name: MEASURES[name].title,
            help="  \n".join(f"**{MEASURES[name].title}**: {MEASURES[name].meaning}" for name in names),
            width=260,
            **controls.bound("curve", measure.name),
        )
        _offer_pairing(comparison, found)
    _charts(comparison, on, found, other, cell)


def _say_what_is_missing(comparison: Comparison) -> None:
    without = " and ".join(LETTERS[at] for at, run in enumerate(comparison.runs) if not recorded(run))
    who = f"{without} recorded no layers" if without else "the runs recorded no signal in common"
    controls.say(f"There are no curves to overlay: {who}. Record again with --signals logit_lens.")


def find(comparison: Comparison, on: Ground, measure: Measure, other: int, cell: str) -> Depth:
    """The measure over the layers: on the documents that all runs have, where they can be paired at little cost."""
    order = [0, other, *(at for at in comparison.others if at != other)]  # a cell is of the first two
    runs = tuple((comparison.ids[at], _scale(measure, comparison.runs[at].about)) for at in order)
    lens = "logit_lens" in comparison.signals() and measure.column in compared_layers.EXPRESSIONS
    can_share = lens and comparison.filter is not None
    if can_share and (cell or _cheap(comparison, on)):
        frame = state.ask_runs(
            compared_layers.on_shared,
            comparison.runs,
            comparison.task,
            comparison.filter,
            cell,
            measure.column,
            runs,
        )
        return Depth(measure, frame, True, True, not on.depth)
    query = compared_layers.on_own if lens else compared_layers.of_similarity
    frame = state.ask_runs(query, comparison.runs, comparison.task, measure.column, runs)
    return Depth(measure, frame, False, can_share, not on.depth)


def _cheap(comparison: Comparison, on: Ground) -> bool:
    """Whether documents are paired unasked: where the runs hold other ones, and where it takes no time."""
    alike = all(row.same for row in on.found if row.label == DOCUMENTS)
    if not alike or state.read("paired"):
        return True
    return int(state.ask_runs(compared_layers.size, comparison.runs)["rows"].iloc[0]) <= READ


def _scale(measure: Measure, about: dict[str, object]) -> float:
    vocabulary = mapping(about.get("architecture")).get("vocabulary")
    return 1 / math.log(vocabulary) if measure.share and isinstance(vocabulary, int) and vocabulary > 1 else 1.0


def _partings(comparison: Comparison, depth: Depth, beside: int, cell: str) -> Iterator[list[str]]:
    """HTML of one sentence a run: over which layers it is above or below the baseline."""
    of = f", documents {pairs.said(cell, LETTERS[0], LETTERS[beside])}" if cell else ""
    for other in [] if depth.relative else comparison.others:
        rows = depth.of(comparison.ids[other])
        if not rows["difference_se"].notna().any():
            continue
        found = partings(rows["layer"].to_numpy(float), rows["difference"].to_numpy(float), _half(rows))
        a, b, head = compared.badge(0), compared.badge(other), compared.plain(f"{depth.measure.label}{of}:")
        if not found:
            yield [head, b, compared.strong("is at no layer clearly apart"), "from", f"{a}."]
            continue
        long = [part for part in found if part.apart > 1] or found  # one layer in twenty is apart by chance
        told = sorted(sorted(long, key=lambda part: -abs(part.gap))[:TOLD], key=lambda part: part.first)
        yield [head, b, "is", ", ".join(_stretch(part, depth.measure, a) for part in told) + "."]


def _half(rows: pd.DataFrame) -> np.ndarray:
    return half_width(rows["difference_se"].to_numpy(float), rows["n_docs"].to_numpy(float))


def _stretch(part: Parting, measure: Measure, baseline: str) -> str:
    side = compared.strong("above" if part.gap > 0 else "below")
    unit = f" {measure.unit}" if measure.unit == "nat" else ""
    by = f"by {abs(part.gap):.3g}{unit}"
    if part.first == part.last:
        return f"{side} {baseline} at layer {part.first:.0f} ({by})"
    span = int(part.last - part.first) + 1
    of = "" if part.apart == span else f"{part.apart} of "
    return (
        f"{side} {baseline} in {of}layers {part.first:.0f} to {part.last:.0f} (most at layer {part.widest:.0f}, {by})"
    )


def _charts(comparison: Comparison, on: Ground, depth: Depth, other: int, cell: str) -> None:
    """The curves; beside them, where layers can be subtracted, the difference to the baseline."""
    if depth.frame.empty or not depth.frame["mean"].notna().any():
        controls.say(f"There is no {depth.measure.label.lower()} to draw: {_why_empty(comparison, other, cell)}.")
        return
    figure = _overlay(comparison, depth)
    key = f"curves:{depth.measure.name}:{cell}"
    name = f"{comparison.task}-{depth.measure.name}"
    drawn = {key: (name, figure)}
    if not depth.relative:
        drawn[f"{key}:difference"] = (f"{name}-difference", _difference(comparison, depth))
    for column, (place, (stem, each)) in zip(st.columns(len(drawn), gap="medium"), drawn.items(), strict=True):
        with column:
            exports.chart(each, place)
            with st.container(horizontal_alignment="right"):
                exports.offer(stem, [depth.frame], place, each)
    st.caption(tokens.markdown(" ".join(_caveats(comparison, on, depth, other, cell))))


def _why_empty(comparison: Comparison, other: int, cell: str) -> str:
    if cell:
        return f"no document is {pairs.said(cell, LETTERS[0], LETTERS[other])}"
    live = [LETTERS[at] for at, run in enumerate(comparison.runs) if not run.finished]
    return f"{' and '.join(live)} wrote no layers yet" if live else "no step of the documents in both was recorded"


def _overlay(comparison: Comparison, depth: Depth) -> go.Figure:
    drawn = []
    for at, run_id in enumerate(comparison.ids):
        rows = depth.of(run_id)
        mean, half = (
            rows["mean"].to_numpy(float),
            half_width(rows["se"].to_numpy(float), rows["n_docs"].to_numpy(float)),
        )
        banded = np.isfinite(half).any()
        drawn.append(
            Curve(
                comparison.label(at),
                depth.x(rows),
                mean,
                mean - half if banded else None,
                mean + half if banded else None,
                comparison.colour(at),
                comparison.dash(at),
            )
        )
    low_high, _ = _range(depth)
    axes = Axes(_axis(depth), depth.measure.title, low_high, integer_x=not depth.relative)
    return ticked(curves.draw(drawn, axes, HEIGHT), depth.frame["layer"].max(), depth.relative)


def _range(depth: Depth) -> tuple[tuple[float, float] | None, str]:
    """(ends of the axis, what lies beyond): layer 0, which predicts nothing, must not squeeze the other layers."""
    rest = depth.frame.loc[depth.frame["layer"] > 0, "mean"].dropna()
    first = depth.frame.loc[depth.frame["layer"] == 0, "mean"].dropna()
    if rest.empty or first.empty:
        return None, ""
    room = float(rest.max() - rest.min())
    low, high = float(rest.min()) - 0.15 * room, float(rest.max()) + 0.15 * room
    if room <= 0 or (low - room < first.min() and first.max() < high + room):
        return None, ""
    values = ", ".join(f"{value:.3g}" for value in sorted(set(first)))
    return (low, high), f"Layer 0, the embedding, lies outside the axis ({values})."


def ticked(figure: go.Figure, layers: float, relative: bool, most: int = 12) -> go.Figure:
    """At most so many numbers under the layers of a narrow chart, and none of them in thousands or millionths."""
    figure.update_yaxes(exponentformat="e")
    if relative:
        return figure.update_xaxes(range=[-0.02, 1.02])
    step = next((step for step in (1, 2, 5, 10, 20) if layers / step <= most), 50)
    return figure.update_xaxes(dtick=step, tick0=0, range=[-0.02 * layers - 0.3, layers * 1.02 + 0.3])


def _axis(depth: Depth) -> str:
    return "Share of the depth (0 embedding, 1 last layer)" if depth.relative else "Layer"


def _difference(comparison: Comparison, depth: Depth) -> go.Figure:
    drawn = []
    for other in comparison.others:
        rows = depth.of(comparison.ids[other])
        apart, half = rows["difference"].to_numpy(float), _half(rows)
        name = f"{LETTERS[other]} − {LETTERS[0]}"
        banded = np.isfinite(half).any()
        low, high = (apart - half, apart + half) if banded else (None, None)
        drawn.append(Curve(name, depth.x(rows), apart, low, high, comparison.colour(other), comparison.dash(other)))
    axes = Axes("Layer", f"Difference: {depth.measure.title}")
    figure = ticked(curves.draw(drawn, axes, HEIGHT), depth.frame["layer"].max(), False)
    return figure.add_hline(y=0, line={"color": comparison.colour(0), "width": 1.5})


def _caveats(comparison: Comparison, on: Ground, depth: Depth, other: int, cell: str) -> Iterator[str]:
    """Over which steps of which documents, what the bands are, and what is hidden."""
    docs = depth.frame.groupby("run_id")["n_docs"].max()
    if depth.shared:
        of = f" that are {pairs.said(cell, LETTERS[0], LETTERS[other])}" if cell else ""
        yield f"Means over the scored or generated steps of the {int(docs.max()):,} documents in all runs{of}"
    else:
        held = ", ".join(f"{LETTERS[at]} {int(docs.get(run_id, 0)):,}" for at, run_id in enumerate(comparison.ids))
        yield f"Means over the scored or generated steps of each run's own documents ({held})"
    yield "(the gold choice where there are choices)."
    if depth.frame["se"].notna().any():
        how = (
            "documents paired" if depth.shared else "the runs taken as independent, which is too wide where they agree"
        )
        differences = "" if depth.relative else f"; differences with {how}"
        yield f"Bands: 95 % intervals layer by layer, steps clustered by document{differences}."
    if beyond := _range(depth)[1]:
        yield beyond
    lost = depth.frame.loc[depth.frame["mean"].notna(), "n_left_out"].fillna(0).max()
    if lost:
        yield f"Up to {int(lost):,} values of a layer are not finite and left out."
    hidden = [measure.label for measure in MEASURES.values() if measure.of_vocabulary]
    if not on.vocabulary:
        yield f"Hidden, because the vocabularies differ: {', '.join(hidden)}."
    if depth.relative:
        layers = ", ".join(f"{LETTERS[at]} {_layers(run.about)}" for at, run in enumerate(comparison.runs))
        yield f"The runs have other depths ({layers} layers), so that layers are not subtracted."


def _layers(about: dict[str, object]) -> object:
    return mapping(about.get("architecture")).get("layers")


def _offer_pairing(comparison: Comparison, depth: Depth) -> None:
    """Where reading every layer takes seconds, the choice to do so."""
    if (depth.shared and not state.read("paired")) or not depth.can_share:
        return
    rows = int(state.ask_runs(compared_layers.size, comparison.runs)["rows"].iloc[0])
    st.session_state["url:paired"] = bool(state.read("paired"))
    st.toggle(
        "Pair the documents",
        key="url:paired",
        on_change=lambda: state.write(paired="1" if st.session_state["url:paired"] else None),
        help=f"Narrower intervals of the differences, from all {rows:,} recorded layers: takes seconds.",
    )
