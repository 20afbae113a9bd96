"""The tokens of a request as a strip: each recorded one on the colour of a statistic, with its legend and its means."""

from __future__ import annotations

import html
from dataclasses import replace

import numpy as np
import pandas as pd

from dashboard import tokens
from dashboard.charts.statistics import STATISTICS, Statistic, cell_colours, ink
from dashboard.components.strip import Token

MOST = 800
"""Tokens of a strip: every one is sent to the browser, again for each step while playing."""


def statistics(layers: int) -> dict[str, Statistic]:
    """Columns of `steps` that a token can be coloured by; `layers` is L, 0 where no layer was recorded."""
    found = [
        Statistic(
            "logprob",
            "logprob",
            "Log-probability",
            "nat",
            -10,
            0,
            "Log-probability that the model gives to the token, given all before it. 0 nat is certainty.",
            below=True,
        ),
        replace(
            STATISTICS["rank"],
            column="rank",
            label="Rank",
            meaning="Tokens that the model ranks above this one: 0 is its own top-1. Coloured by its logarithm.",
        ),
        replace(
            STATISTICS["entropy"],
            label="Entropy",
            meaning="How spread out the model's distribution is before this token: 0 nat is certainty.",
        ),
    ]
    if layers:
        settle = Statistic(
            "settle",
            "settle_layer",
            "Settle layer",
            "",
            0,
            layers,
            "First layer from which the top-1 token stays the model's final one, which need not be this token.",
            scale="Viridis",
            below=False,
            above=False,
            digits=0,
        )
        found.append(settle)
    return {statistic.name: statistic for statistic in found}


def window(count: int, at: int, most: int = MOST) -> tuple[int, int]:
    """(first, end) of at most `most` places among `count` around `at`, moving in jumps."""
    if count <= most:
        return 0, count
    half = most // 2
    first = min(max((at // half) * half - half // 2, 0), count - most)
    return first, first + most


def strip_tokens(inputs: pd.DataFrame, steps: pd.DataFrame, statistic: Statistic, picked: int | None) -> list[Token]:
    """Rows of `queries.lens.inputs` in order; those among `steps` are coloured and can be clicked."""
    recorded = _recorded(steps[steps["step"].isin(inputs["step"])], statistic)
    shown = []
    for token_id, text, step in inputs[["token_id", "text", "step"]].itertuples(index=False, name=None):
        colour, title = recorded.get(step, ("", ""))
        shown.append(
            Token(
                step=int(step),
                text=tokens.show(text, continues=text == ""),
                title=f"{'prompt, ' if step < 0 else ''}step {step}, id {token_id}{title}",
                colour=colour,
                ink=ink(colour) if colour else "",
                picked=step == picked,
                marked=step >= 0,
                still=step not in recorded,
                newline=text.endswith("\n"),
            )
        )
    return shown


def _recorded(steps: pd.DataFrame, statistic: Statistic) -> dict[int, tuple[str, str]]:
    """(colour, numbers) by step."""
    colours = cell_colours(statistic, statistic.place(numbers(steps, statistic.column)))
    named = statistics(1).values()
    values = zip(*(numbers(steps, one.column) for one in named), strict=True)
    titles = [
        "".join(f"\n{one.title}: {one.text(value)}" for one, value in zip(named, row, strict=True)) for row in values
    ]
    return {int(step): found for step, *found in zip(steps["step"], colours, titles, strict=True)}  # type: ignore[misc]


def unknown(steps: pd.DataFrame, statistic: Statistic) -> int:
    """Recorded tokens without a colour."""
    return int((~np.isfinite(numbers(steps, statistic.column))).sum())


def numbers(frame: pd.DataFrame, column: str) -> np.ndarray:
    """The column as floats, NaN where it is missing."""
    return frame[column].to_numpy(float, na_value=np.nan)


def legend(statistic: Statistic) -> str:
    """The colours of a statistic with its unit and what its ends stand for."""
    stops = ", ".join(f"{colour} {100 * float(str(at)):.1f}%" for at, colour in statistic.colours)
    places, labels = statistic.ticks()
    ticks = "".join(_tick(place, label) for place, label in zip(places, labels, strict=True))
    bar = f'<div style="height:10px;border-radius:3px;background:linear-gradient(to right, {stops})"></div>'
    scale = f'<div style="position:relative;height:1.2em;font-size:.72rem">{ticks}</div>'
    return (
        f'<div style="font-size:.8rem"><div style="opacity:.75;margin-bottom:3px">{html.escape(statistic.title)}</div>'
        f"{bar}{scale}</div>"
    )


def _tick(place: float, label: str) -> str:
    side = "left:0" if place <= 0 else "right:0" if place >= 1 else f"left:{100 * place:.1f}%;translate:-50%"
    return f'<span style="position:absolute;{side};opacity:.75;white-space:nowrap">{html.escape(label)}</span>'


def totals(steps: pd.DataFrame, layers: int) -> dict[str, tuple[str, str]]:
    """{label: (value, what it is of)} over the scored or generated steps, those not finite left out and counted."""
    answer = steps[steps["step"] >= 0]
    logprob, rank, settle = (numbers(answer, name) for name in ("logprob", "rank", "settle_layer"))
    finite = logprob[np.isfinite(logprob)]
    mean = float(finite.mean()) if len(finite) else np.nan
    left_out = len(logprob) - len(finite)
    found = {
        "Mean log-probability": (_number(mean, "nat"), f"{left_out:,} not finite, left out" if left_out else ""),
        "Perplexity": (_perplexity(mean), "exp of minus that mean"),
        "Top-1 at the output": (f"{int((rank == 0).sum()):,} of {len(rank):,}", "tokens"),
    }
    if layers and np.isfinite(settle).any():
        found["Mean settle layer"] = (f"{np.nanmean(settle):.1f}", f"of {layers}")
    return found


def _perplexity(mean: float) -> str:
    return f"exp({-mean:,.0f})" if mean < -700 else _number(float(np.exp(-mean)))  # beyond it floats end


def _number(value: float, unit: str = "") -> str:
    if not np.isfinite(value):
        return "not finite"
    return f"{value:,.3f} {unit}".strip() if abs(value) < 1e6 else f"{value:.3g} {unit}".strip()


def line(pairs: dict[str, tuple[str, str]]) -> str:
    """{label: (value, what comes after it)} side by side; all of it is data."""
    cells = "".join(_cell(label, value, after) for label, (value, after) in pairs.items())
    return f'<div style="display:flex;flex-wrap:wrap;gap:4px 30px;font-size:.9rem">{cells}</div>'


def _cell(label: str, value: str, after: str) -> str:
    safe = [html.escape(text) for text in (label, value, after)]
    return (
        f'<div><div style="opacity:.7;font-size:.78rem">{safe[0]}</div>'
        f'<div style="font-variant-numeric:tabular-nums"><b>{safe[1]}</b>'
        f' <span style="opacity:.7">{safe[2]}</span></div></div>'
    )
