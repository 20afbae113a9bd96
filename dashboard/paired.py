"""Two runs on the same documents: the difference of a metric's means, its interval, and where their layers part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest, norm
from scipy.stats import t as student

DRAWS = 10_000
"""Resamples of a bootstrap."""
SEED = 0
FEW = 64
"""Distinct differences up to which resamples are drawn as counts of each."""
LARGE = 2_000
"""Pairs over which, with more than FEW distinct differences, the interval is the normal one: it is the same there."""
LEVEL = 0.95
Z = float(norm.ppf(0.5 + LEVEL / 2))
NOISE = 1e-9
"""Differences between means that the order of adding may make."""


@dataclass(frozen=True)
class Paired:
    """B against A over `n` pairs, `left_out` more lacking a value; `difference` is B minus A. `low` and `high` are None
    where there is no interval, and `why` says why. In `only_a` pairs A's value is the larger."""

    n: int
    left_out: int
    mean_a: float
    mean_b: float
    difference: float
    low: float | None
    high: float | None
    how: str
    why: str
    only_a: int
    only_b: int
    binary: bool

    @property
    def p(self) -> float | None:
        """Of McNemar's exact test; None where the metric is not right or wrong, or there is no pair."""
        return mcnemar(self.only_a, self.only_b) if self.binary and self.n else None

    @property
    def sign(self) -> int:
        """1 where the whole interval is over 0, -1 where it is under, 0 where it holds 0 or there is none."""
        if self.low is None or self.high is None:
            return 0
        return int(self.low > 0) - int(self.high < 0)


def compare(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> Paired:
    """The values of the same documents under A and under B."""
    first, second = np.asarray(a, float), np.asarray(b, float)
    known = np.isfinite(first) & np.isfinite(second)
    first, second = first[known], second[known]
    difference = second - first
    low, high, how, why = _interval(difference)
    return Paired(
        n=len(difference),
        left_out=int((~known).sum()),
        mean_a=float(first.mean()) if len(first) else math.nan,
        mean_b=float(second.mean()) if len(second) else math.nan,
        difference=float(difference.mean()) if len(difference) else math.nan,
        low=low,
        high=high,
        how=how,
        why=why,
        only_a=int((difference < 0).sum()),
        only_b=int((difference > 0).sum()),
        binary=bool(np.isin(np.concatenate([first, second]), (0.0, 1.0)).all()),
    )


def mcnemar(only_a: int, only_b: int) -> float:
    """Exact two-sided p-value that documents which only one run gets right fall to either alike."""
    discordant = only_a + only_b
    return float(binomtest(min(only_a, only_b), discordant, 0.5).pvalue) if discordant else 1.0


def _interval(difference: np.ndarray) -> tuple[float | None, float | None, str, str]:
    """(low, high, how it was found, why there is none)."""
    n = len(difference)
    if n == 0:
        return None, None, "", "No pair has both values."
    if n == 1:
        return None, None, "", "One pair gives no interval."
    if (difference == difference[0]).all():
        same = "No pair differs" if difference[0] == 0 else "Every pair differs alike"
        return None, None, "", f"{same}: resampling gives no interval."
    values, counts = np.unique(difference, return_counts=True)
    if len(values) > FEW and n > LARGE:
        half = Z * float(difference.std(ddof=1)) / math.sqrt(n)
        middle = float(difference.mean())
        return middle - half, middle + half, f"normal, {n:,} pairs", ""
    means = _by_counts(values, counts) if len(values) <= FEW else _by_index(difference)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high), f"bootstrap, {DRAWS:,} resamples of the pairs, seed {SEED}", ""


def _by_counts(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Means of the resamples: how often each distinct difference is drawn is multinomial."""
    n = int(counts.sum())
    return np.random.default_rng(SEED).multinomial(n, counts / n, DRAWS) @ values / n


def _by_index(difference: np.ndarray) -> np.ndarray:
    """Means of the resamples, a tenth of them at a time."""
    generator, n = np.random.default_rng(SEED), len(difference)
    drawn = [difference[generator.integers(0, n, (DRAWS // 10, n))].mean(axis=1) for _ in range(10)]
    return np.concatenate(drawn)


def half_width(error: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Half of the interval of means with these standard errors over so many documents: Student's t, for groups of
    documents are small. NaN for one document."""
    return student.ppf(0.5 + LEVEL / 2, np.where(documents > 1, documents - 1, np.nan)) * error


@dataclass(frozen=True)
class Parting:
    """Layers from `first` to `last` in `apart` of which two curves are apart, always on one side: most at `widest`, by
    `gap` (B - A)."""

    first: float
    last: float
    apart: int
    widest: float
    gap: float


def partings(x: np.ndarray, difference: np.ndarray, half: np.ndarray) -> list[Parting]:
    """Where |difference| is over `half`, the half width of its interval, in order: a stretch ends where the difference
    is next clearly on the other side. `x` of shape (n,) are the layers."""
    known = np.isfinite(half) & np.isfinite(difference)
    apart = np.flatnonzero(known & (np.abs(np.where(known, difference, 0)) > np.where(known, half, 0) + NOISE))
    if not len(apart):
        return []
    turns = np.flatnonzero(np.diff(np.sign(difference[apart]))) + 1
    found = []
    for stretch in np.split(apart, turns):
        widest = stretch[np.argmax(np.abs(difference[stretch]))]
        first, last, most = (float(x[at]) for at in (stretch[0], stretch[-1], widest))
        found.append(Parting(first, last, len(stretch), most, float(difference[widest])))
    return found
