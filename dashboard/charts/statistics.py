"""The statistics a lens cell can be coloured by: name, column, unit, range, colours and definition, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from plotly.colors import get_colorscale, sample_colorscale, unlabel_rgb


@dataclass(frozen=True)
class Statistic:
    """One column of `signals` and how it is coloured. `low` and `high` are the ends of the colours, in `unit`."""

    name: str
    column: str
    label: str
    unit: str
    low: float
    high: float
    meaning: str
    scale: str = "Cividis"
    reverse: bool = False
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"statistic {self.name}: low {self.low} is not below high {self.high}")

    @property
    def unit_after(self) -> str:
        """The unit, or '' where the label says it already."""
        return "" if self.unit in self.label else self.unit

    @property
    def title(self) -> str:
        """Label with its unit."""
        return f"{self.label} ({self.unit_after})" if self.unit_after else self.label

    @property
    def colours(self) -> list[list[object]]:
        """Plotly colour scale: [[fraction, colour], ...], lowest value first."""
        scale = get_colorscale(self.scale)
        return [[1 - at, colour] for at, colour in reversed(scale)] if self.reverse else [list(stop) for stop in scale]

    def place(self, values: np.ndarray) -> np.ndarray:
        """Values on the colour axis, from 0 to 1; NaN where they are not finite."""
        values = np.where(np.isfinite(values), values, np.nan).astype(float)
        low, high = self.low, self.high
        if self.log:
            values, low, high = np.log10(values + 1), np.log10(low + 1), np.log10(high + 1)
        return np.clip((values - low) / (high - low), 0, 1)

    def ticks(self) -> tuple[list[float], list[str]]:
        """(places from 0 to 1, labels) of the colour bar; an end that also stands for what lies beyond says so."""
        if self.log:
            values = [0.0, *(10.0**power for power in range(1, 1 + int(np.log10(self.high))))]
        else:
            values = [float(value) for value in np.linspace(self.low, self.high, 5)]
        return [float(place) for place in self.place(np.array(values))], [self._tick(value) for value in values]

    def _tick(self, value: float) -> str:
        text = f"{value:,.0f}" if self.log or abs(self.high - self.low) >= 4 else f"{value:g}"
        if value == self.low and self.low not in (0, 1):
            return f"≤ {text}"
        return f"≥ {text}" if value == self.high and self.high not in (0, 1) else text

    def text(self, value: float | None) -> str:
        """A value for people, without its unit."""
        if value is None or not np.isfinite(value):
            return "not finite"
        if self.log:
            return f"{value:,.0f}"
        return f"{value:.4f}" if self.unit == "probability" else f"{value:.3f}"


STATISTICS = {
    statistic.name: statistic
    for statistic in (
        Statistic(
            "top1",
            "top1_prob",
            "Top-1 probability",
            "probability",
            0,
            1,
            "Probability that the layer gives to its most likely token.",
        ),
        Statistic(
            "target",
            "target_logprob",
            "Target log-probability",
            "nat",
            -20,
            0,
            "Log-probability that the layer gives to the target: the token scored, or emitted. 0 nat is certainty.",
        ),
        Statistic(
            "rank",
            "target_rank",
            "Target rank",
            "",
            0,
            100_000,
            "Tokens with a strictly larger logit than the target: 0 is the top. Coloured by its logarithm.",
            reverse=True,
            log=True,
        ),
        Statistic(
            "entropy",
            "entropy",
            "Entropy",
            "nat",
            0,
            12,
            "How spread out the layer's distribution is: 0 nat is certainty, ln(vocabulary) is a uniform guess.",
            scale="Viridis",
        ),
        Statistic(
            "kl",
            "kl_final",
            "KL to final",
            "nat",
            0,
            20,
            "KL(final || layer): how far the layer's distribution is from the model's own output. 0 at the last layer.",
            scale="Viridis",
        ),
    )
}
DEFAULT = "top1"


def cell_colours(statistic: Statistic, places: np.ndarray) -> list[str]:
    """The colour drawn at each place (0 to 1) of the flat array, as rgb(r, g, b); '' where there is none."""
    known = np.where(np.isfinite(places), places, 0.0)
    drawn = sample_colorscale(statistic.colours, known.tolist()) if len(known) else []
    return [str(colour) if finite else "" for colour, finite in zip(drawn, np.isfinite(places), strict=True)]


def ink(colour: str) -> str:
    """Black or white, whichever stands out more from `colour`."""
    return max(("#000000", "#ffffff"), key=lambda text: contrast(_channels(text), _channels(colour)))


def contrast(one: Sequence[float], other: Sequence[float]) -> float:
    """WCAG contrast ratio of two colours given as (r, g, b) from 0 to 255: 1 for equal, 21 for black on white."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Sequence[float]) -> float:
    shares = [channel / 255 for channel in colour]
    linear = [share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _channels(colour: str) -> list[float]:
    if colour.startswith("#"):
        return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return [float(channel) for channel in unlabel_rgb(colour)]
