"""Runs beside each other as safe HTML: their letters, what they share, and each metric with its interval."""

from __future__ import annotations

import html
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from dashboard import tokens
from dashboard.charts.curves import PALETTE
from dashboard.charts.statistics import ink

LETTERS = "ABCD"
COLOURS = PALETTE[: len(LETTERS)]
"""Of the runs, in order; their dashes are those of `curves.DASHES`."""
LINE = "1px solid rgba(128,128,128,.22)"
CELL = f"padding:4px 10px 4px 0;border:0;border-top:{LINE};text-align:left;vertical-align:top;overflow-wrap:break-word"
NUMBER = f"{CELL};font-variant-numeric:tabular-nums;white-space:nowrap"
HEAD = "padding:2px 10px 4px 0;border:0;text-align:left;font-weight:400;white-space:nowrap"
BAR = 110
"""Width of an interval, pixels."""


def badge(at: int) -> str:
    """The letter of the run at that place, in its colour."""
    style = (
        f"display:inline-block;min-width:1.35em;padding:0 .25em;border-radius:4px;text-align:center;font-weight:700;"
        f"background:{COLOURS[at]};color:{ink(COLOURS[at])}"
    )
    return f'<span style="{style}">{LETTERS[at]}</span>'


def name(at: int, text: str, columns: int = 60) -> str:
    """Letter and name of a run; the whole name on hover."""
    whole = html.escape(tokens.readable(text))
    return f'{badge(at)} <span title="{whole}">{html.escape(tokens.readable(text, columns))}</span>'


def sentence(parts: Iterable[str], size: str = "1rem") -> str:
    """Pieces of HTML as one line of text."""
    return f'<div style="font-size:{size};line-height:1.6">{" ".join(parts)}</div>'


def strong(text: str) -> str:
    return f"<b>{html.escape(text)}</b>"


def plain(text: str) -> str:
    return html.escape(text)


def soft(text: str) -> str:
    """Text in a paler ink."""
    return f'<span style="opacity:.7">{html.escape(text)}</span>'


def table(head: Sequence[str], lines: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    """Cells of HTML; the columns at `numbers` do not wrap."""
    kept = set(numbers)
    first = "".join(f'<th style="{HEAD}">{cell}</th>' for cell in head)
    body = "".join(
        "<tr>"
        + "".join(f'<td style="{NUMBER if at in kept else CELL}">{cell}</td>' for at, cell in enumerate(line))
        + "</tr>"
        for line in lines
    )
    return (
        '<div style="overflow-x:auto"><table style="border-collapse:collapse;font-size:.88rem;width:100%">'
        f'<thead><tr style="border:0">{first}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def properties(found: Sequence[Mapping[str, Any]], runs: int, *, always: Container[str] = ()) -> str:
    """label, values, same, kind, effect of each property as a table; what a difference forbids is in bold. The effect
    of a property that is the same is said only for the labels of `always`."""
    lines = []
    for row in found:
        tag = "b" if row["kind"] == "forbids" and not row["same"] else "span"
        label, effect = (f"<{tag}>{html.escape(row[key])}</{tag}>" for key in ("label", "effect"))
        mark = "= same" if row["same"] else "≠ differs"
        values = (html.escape(tokens.readable(value, 90)) for value in row["values"])
        lines.append([label, mark, *values, effect if not row["same"] or row["label"] in always else ""])
    return table(["", "", *(badge(at) for at in range(runs)), soft("What that means")], lines, numbers=(0, 1))


def interval(low: float | None, high: float | None, middle: float, most: float, colour: str) -> str:
    """An interval and its middle as a bar on an axis from -most to most; '' where there is none."""
    if low is None or high is None or not most > 0:
        return ""

    def at(value: float) -> float:
        return 50 + 50 * max(-1.0, min(1.0, value / most))

    pieces = [
        "left:50%;top:0;bottom:0;width:1px;background:currentColor;opacity:.45",
        f"left:{at(low):.1f}%;width:{max(at(high) - at(low), 0.5):.1f}%;top:6px;height:6px;border-radius:3px;"
        f"background:{colour};opacity:.45",
        f"left:calc({at(middle):.1f}% - 5px);top:4px;width:10px;height:10px;border-radius:5px;background:{colour}",
    ]
    inner = "".join(f'<div style="position:absolute;{piece}"></div>' for piece in pieces)
    return f'<div style="position:relative;width:{BAR}px;height:18px">{inner}</div>'


def amount(value: float | None, binary: bool, *, signed: bool = False) -> str:
    """A metric for people: right or wrong as per cent, its differences in points; other numbers with 4 digits."""
    if value is None or not math.isfinite(value):
        return "none"
    shown = 100 * value if binary else value
    text = f"{shown:.1f}" if binary else f"{shown:.4g}"
    plus = "+" if signed and float(text) > 0 else ""
    return plus + text.replace("-", "−" if float(text) else "")
