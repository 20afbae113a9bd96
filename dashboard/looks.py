"""How the heatmap of layers is looked at: statistic, label, range of the colours, layers. All of it is in the URL."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import streamlit as st

from dashboard import controls, state
from dashboard.charts import heatmap
from dashboard.charts.heatmap import LABELS
from dashboard.charts.statistics import DEFAULT, STATISTICS, Statistic

SCALES = {"fixed": "Fixed", "view": "This view"}
STRIDES = (1, 2, 4, 8)
CLIP = 2
"""Per cent of the values left out at each end of the colours."""
SINKS = (
    "Steps whose residual stream is that of the first position, or is flagged as an outlier where similarity was "
    "recorded, do not widen the range: their norms and certainty would swamp it. Their cells are still drawn."
)
CLIPPED = f"The range spans the {CLIP}nd to the {100 - CLIP}th percentile of the values; the rest has the end colours."


@dataclass(frozen=True)
class Look:
    """What the controls say. `layers` are those shown, of `of` recorded ones."""

    statistic: Statistic
    label: str
    scale: str
    no_sinks: bool
    clip: bool
    layers: tuple[int, ...]
    of: int

    @property
    def without_sinks(self) -> bool:
        """The range of the colours is to be had without the sinks."""
        return self.no_sinks and self.scale == "view"

    def nearest(self, layer: int) -> int:
        """The shown layer nearest to `layer`."""
        return min(self.layers, key=lambda shown: abs(shown - layer))

    def scaled(self, shown: pd.DataFrame, sinks: set[int]) -> Statistic:
        """The statistic, with the range that its colours have over these rows of `lens.layers`."""
        if self.scale == "fixed":
            return self.statistic
        values = shown[self.statistic.column].to_numpy(float, na_value=np.nan)
        return self.statistic.fitted(values, ~shown["step"].isin(sinks).to_numpy(), CLIP if self.clip else 0)

    def said(self, scaled: Statistic, sinks: int) -> list[str]:
        """What is to be known of layers left out, and of colours that are this view's own."""
        said = []
        if len(self.layers) < self.of:
            said.append(f"{len(self.layers)} of {self.of} layers, counted from layer {self.layers[-1]} down.")
        if self.scale == "view":
            less = [f"{sinks} sink step{'s' * (sinks > 1)} left out"] if sinks else []
            less += [f"clipped to the {CLIP}nd to {100 - CLIP}th percentile"] if self.clip else []
            span = f"{scaled.brief(scaled.low)} to {scaled.brief(scaled.high)} {scaled.unit}".rstrip()
            said.append(
                f"Colours span {', '.join(['this view', *less])}: {span}. In another view they mean other values."
            )
        return said


def choose(layers: list[int]) -> Look:
    """The controls, in one line; what is seldom changed is behind a button. `layers` are those recorded."""
    statistic = STATISTICS[controls.pick("stat", "statistic", list(STATISTICS), DEFAULT)]
    label = controls.pick("label", "label", list(LABELS), next(iter(LABELS)))
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.segmented_control(
            "Colour",
            list(STATISTICS),
            format_func=lambda name: STATISTICS[name].label,
            required=True,
            help="  \n".join(f"**{s.title}**: {s.meaning}" for s in STATISTICS.values()),
            **controls.bound("stat", statistic.name),
        )
        st.selectbox(
            "Label",
            list(LABELS),
            format_func=LABELS.__getitem__,
            help="What is written in each cell.",
            width=150,
            **controls.bound("label", label),
        )
        with st.popover("View", icon=":material/tune:", help="Range of the colours, and which layers are shown"):
            scale, no_sinks, clip = _range(statistic)
            shown = _layers(layers)
    return Look(statistic, label, scale, no_sinks, clip, tuple(shown), len(layers))


def _range(statistic: Statistic) -> tuple[str, bool, bool]:
    """(one of SCALES, leave out sinks, clip)."""
    scale = controls.pick("scale", "colour range", list(SCALES), "view" if statistic.own_range else "fixed")
    st.segmented_control(
        "Range of the colours",
        list(SCALES),
        format_func=SCALES.__getitem__,
        required=True,
        help="Fixed: the same for every document and run, so that they can be compared. "
        "This view: from the least to the largest value of the cells shown.",
        **controls.bound("scale", scale),
    )
    fixed = scale == "fixed"
    no_sinks = _switch("sinks", ("out", "in"), True, "Leave out sinks", SINKS, disabled=fixed)
    return scale, no_sinks, _switch("clip", ("on", "off"), False, "Clip to percentiles", CLIPPED, disabled=fixed)


def _switch(name: str, values: tuple[str, str], default: bool, text: str, help: str, *, disabled: bool) -> bool:
    """A switch in the URL; `values` are those of on and off."""
    on = controls.pick(name, name, values, values[0] if default else values[1]) == values[0]
    key = f"url:{name}"

    def changed() -> None:
        state.write(**{name: values[0] if st.session_state[key] else values[1]})

    st.session_state[key] = on
    st.toggle(text, key=key, help=help, disabled=disabled, on_change=changed)
    return on


def _layers(layers: list[int]) -> list[int]:
    """The layers to show."""
    low = controls.pick("low", "lowest layer", layers, layers[0])
    high = controls.pick("high", "highest layer", [layer for layer in layers if layer >= low], layers[-1])
    stride = controls.pick("stride", "layer stride", STRIDES, 1)
    if len(layers) > 1:
        _range_slider(layers, low, high)
        st.segmented_control(
            "Show every",
            STRIDES,
            format_func=lambda every: "layer" if every == 1 else f"{every}th" if every > 2 else "2nd",
            required=True,
            help="Counted from the last layer of the range, which therefore always shows.",
            **controls.bound("stride", stride, ["layer"]),
        )
    return heatmap.strided(layers, low, high, stride)


def _range_slider(layers: list[int], low: int, high: int) -> None:
    def changed() -> None:
        chosen = st.session_state["url:layers"]
        state.write(low=chosen[0], high=chosen[1], layer=None)

    st.session_state["url:layers"] = (low, high)
    st.slider(
        "Layers",
        layers[0],
        layers[-1],
        key="url:layers",
        on_change=changed,
        help="First and last layer shown. The pinned tokens are followed over all of them.",
    )
