"""The statistics a lens cell can be coloured by: name, column, unit, range, colours and definition, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from plotly.colors import get_colorscale, sample_colorscale, unlabel_rgb


@dataclass(frozen=True)
class Statistic:
    """One column of `signals` and how it is coloured. `low` and `high` are the ends of the colours, in `unit`; `below`
    and `above`: whether they also stand for what lies beyond them (None: unless the end is 0 or 1)."""

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
    below: bool | None = None
    above: bool | None = None
    digits: int = 3
    except_last: bool = False
    own_range: bool = False
    """Models differ by so much that the range of what is shown is the better default."""

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"statistic {self.name}: low {self.low} is not below high {self.high}")

    @property
    def unit_after(self) -> str:
        """The unit, or '' where the label says it already."""
        return "" if self.unit.lower() in self.label.lower() else self.unit

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

    def fitted(self, values: np.ndarray, kept: np.ndarray, clip: float = 0) -> Statistic:
        """Coloured over the range of the `kept` ones of `values`, less `clip` per cent of them at each end; as it is
        where none of them is finite."""
        finite = np.isfinite(values)
        known = values[finite & kept]
        if not len(known):
            return self
        low, high = (float(end) for end in np.percentile(known, [clip, 100 - clip]))
        if not low < high:
            room = max(abs(low) * 0.01, 10.0**-self.digits)
            low, high = max(low - room, 0) if self.log else low - room, high + room
        below, above = bool((values[finite] < low).any()), bool((values[finite] > high).any())
        return replace(self, low=low, high=high, below=below, above=above)

    def ticks(self) -> tuple[list[float], list[str]]:
        """(places from 0 to 1, labels) of the colour bar; an end that also stands for what lies beyond says so."""
        values = self._decades() if self.log else np.linspace(self.low, self.high, 5).tolist()
        labels = [self._tick(value) for value in values]
        if self.low not in (0, 1) if self.below is None else self.below:
            labels[0] = f"≤ {labels[0]}"
        if self.high not in (0, 1) if self.above is None else self.above:
            labels[-1] = f"≥ {labels[-1]}"
        return [float(place) for place in self.place(np.array(values))], labels

    def _decades(self) -> list[float]:
        """The ends, and the powers of ten between them that are not too near an end."""
        powers = 10.0 ** np.arange(0, 12)
        places = self.place(powers)
        return [self.low, *powers[(places > 0.1) & (places < 0.9)].tolist(), self.high]

    def _tick(self, value: float) -> str:
        return _thousands(value) if abs(value) >= 1000 else f"{value:.0f}" if not self.digits else f"{value:.3g}"

    def text(self, value: float | None) -> str:
        """A value for people, without its unit."""
        return "not finite" if value is None or not np.isfinite(value) else f"{value:,.{self.digits}f}"

    def of(self, value: float | None, *, last: bool) -> tuple[str, str]:
        """(value, unit) for people, of a cell of the `last` layer or of another."""
        known = value is not None and bool(np.isfinite(value))
        if not known and last and self.except_last:
            return "none", "at the last layer"
        return self.text(value), self.unit_after if known else ""

    def brief(self, value: float | None) -> str:
        """A value in about five letters, to be written into a cell; a dash where there is none."""
        if value is None or not np.isfinite(value):
            return "–"
        if abs(value) >= 1000:
            return _thousands(value)
        if not self.digits:
            return f"{value:.0f}"
        return f"{value:.{max(0, 2 - len(f'{abs(value):.0f}') + 1)}f}"


def _thousands(value: float) -> str:
    """'12k', '1.5k', '2.3M'."""
    unit, name = (1e6, "M") if abs(value) >= 999_500 else (1e3, "k")
    return f"{value / unit:.3g}{name}"


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
            digits=4,
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
            digits=0,
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
        Statistic(
            "norm",
            "norm",
            "Residual norm",
            "",
            1,
            10_000,
            "L2 norm of the residual stream, which grows with depth in most models. Coloured by its logarithm.",
            log=True,
            below=True,
            own_range=True,
        ),
        Statistic(
            "cos",
            "cos_next",
            "Cosine to next layer",
            "cosine",
            0,
            1,
            "Cosine between the residual streams of this layer and the next: 1 where the block in between changes no "
            "direction. The last layer has no next.",
            scale="Viridis",
            below=True,
            except_last=True,
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
