"""Tokens as safe HTML: a prompt with its scored span, a cell's most likely tokens as bars, a table of choices."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from dashboard import tokens

MOST, AFTER = 1200, 40
"""Tokens of a prompt that are drawn, and of them after the picked one; the rest is counted."""

CODE = "font-family:'Source Code Pro','DejaVu Sans Mono',Menlo,Consolas,monospace"
DIGITS = "font-variant-numeric:tabular-nums"
BOX = (
    "display:flex;flex-direction:column-reverse;overflow-y:auto;padding:10px 12px;font-size:.86rem;line-height:1.75;"
    f"border:1px solid rgba(128,128,128,.3);border-radius:8px;{CODE}"
)
"""Reversed, so that it opens at its end, where the answer is."""
PLAIN = "border-radius:3px;box-shadow:inset 0 -1px 0 rgba(128,128,128,.25)"
SCORED = "border-radius:3px;background:rgba(255,170,0,.28);box-shadow:inset 0 -2px 0 rgb(230,140,0)"
PICKED = "outline:2px solid #ff4b4b;outline-offset:1px"
BADGES = {"gold": "rgba(255,170,0,.35)", "chosen": "rgba(90,130,200,.4)"}


def _div(style: str, inner: str) -> str:
    return f'<div style="{style}">{inner}</div>'


def _span(style: str, inner: str) -> str:
    return f'<span style="{style}">{inner}</span>'


def prompt(inputs: pd.DataFrame, picked: int | None, height: int = 190) -> str:
    """Rows of `queries.lens.inputs` as running text: steps from 0 on are marked, the picked one is framed and, for the
    box opens at its end, not far from it."""
    at = inputs["step"].to_numpy().searchsorted(picked) if picked is not None else len(inputs)
    until = inputs.head(int(at) + AFTER)
    shown = until.tail(MOST)
    spans = [
        _token(text, int(step), int(token_id), step == picked)
        for token_id, text, step in zip(shown["token_id"], shown["text"], shown["step"], strict=True)
    ]
    before, after = len(until) - len(shown), len(inputs) - len(until)
    head = _div("opacity:.7", f"{before:,} tokens before these are not drawn.") if before else ""
    return _box(head + "".join(spans) + (_div("opacity:.7", f"… {after:,} more tokens") if after else ""), height)


def passage(text: str, height: int = 120) -> str:
    """A stretch of text line by line, with what cannot be seen or would reorder it made visible."""
    return _box("<br>".join(html.escape(tokens.readable(line)) for line in text.split("\n")), height)


def _box(inner: str, height: int) -> str:
    return _div(f"{BOX};max-height:{height}px", _div("overflow-wrap:anywhere;white-space:pre-wrap", inner))


def _token(text: str, step: int, token_id: int, picked: bool) -> str:
    style = ";".join([SCORED if step >= 0 else PLAIN, *([PICKED] if picked else [])])
    shown = tokens.show_html(text, continues=text == "")
    after = "<br>" if text.endswith("\n") else "<wbr>"
    return f'<span title="step {step}, id {token_id}" style="{style}">{shown}</span>{after}'


def bars(top: Sequence[dict[str, Any]], target: int, final: int | None = None) -> str:
    """token_id, text, prob as one bar a token, on a scale from 0 to 1; the target and the final answer are marked."""
    return _div(
        "display:grid;row-gap:4px;font-size:.86rem",
        "".join(_bar(row["text"], row["token_id"], row["prob"], marks(row["token_id"], target, final)) for row in top),
    )


def marks(token_id: int, target: int, final: int | None) -> str:
    """'target', 'final', both or ''."""
    return ", ".join(name for name, marked in (("target", target), ("final", final)) if marked == token_id)


def _bar(text: str, token_id: int, prob: float | None, marked: str) -> str:
    share = prob if prob is not None and math.isfinite(prob) else None
    fill = "rgba(255,170,0,.45)" if "target" in marked else "rgba(90,130,200,.35)"
    bar = _div(f"position:absolute;inset:0 auto 0 0;width:{100 * (share or 0):.2f}%;background:{fill}", "")
    shown = tokens.show_html(text, columns=40) + (f" ◂ {marked}" if marked else "")
    parts = (
        _span(f"flex:1;overflow:hidden;text-overflow:ellipsis;{CODE}", shown),
        _span("opacity:.65", f"id {token_id}"),
        _span(f"{DIGITS};min-width:4em;text-align:right", html.escape(probability(share))),
    )
    line = _div("position:relative;display:flex;gap:10px;padding:0 8px;white-space:nowrap", "".join(parts))
    frame = "position:relative;height:26px;line-height:26px;border-radius:4px;overflow:hidden"
    return _div(f"{frame};background:rgba(128,128,128,.12)", bar + line)


def probability(share: float | None) -> str:
    """Four digits; what is too small to show as such says so."""
    if share is None or not math.isfinite(share):
        return "not finite"
    return "< 0.0001" if 0 < share < 5e-5 else f"{share:.4f}"


def facts(pairs: Mapping[str, tuple[str, str]], meanings: Mapping[str, str] | None = None) -> str:
    """{label: (value as HTML, what comes after it in a paler ink)} as a list in two columns; a label of `meanings`
    ({label: text}) has it on hover."""
    cells = "".join(
        _label(label, (meanings or {}).get(label, "")) + _div(DIGITS, f"{value} {_span('opacity:.65', after)}")
        for label, (value, after) in pairs.items()
    )
    grid = "display:grid;grid-template-columns:max-content 1fr;column-gap:16px;row-gap:4px;font-size:.9rem"
    return _div(grid, cells)


def _label(label: str, meaning: str) -> str:
    if not meaning:
        return _div("opacity:.7", label)
    hint = "cursor:help;text-decoration:underline dotted rgba(128,128,128,.7);text-underline-offset:3px"
    return _div("opacity:.7", f'<span style="{hint}" title="{html.escape(meaning)}">{label}</span>')


def code(text: str) -> str:
    """A name or path, in code letters."""
    return _span(f"{CODE};overflow-wrap:anywhere", html.escape(tokens.readable(text)))


def choices(requests: Sequence[dict[str, Any]], picked: int) -> str:
    """Rows of `queries.lens.requests` of one document as a table; the picked choice is pointed at."""
    what = "Choice" if len(requests) > 1 else "Scored text"
    head = "".join(_div("opacity:.7", name) for name in ("", what, "Log-probability (nat)", ""))
    lines = "".join(_choice(row, row["choice"] == picked) for row in requests)
    grid = "display:grid;grid-template-columns:max-content 1fr max-content max-content;column-gap:14px;row-gap:4px"
    return _div(f"{grid};align-items:baseline;font-size:.9rem;max-height:190px;overflow-y:auto", head + lines)


def _choice(row: dict[str, Any], picked: bool) -> str:
    weight = "font-weight:600" if picked else "font-weight:400"
    logprob = row["logprob"]
    number = f"{logprob:.3f}" if logprob is not None and math.isfinite(logprob) else "not finite"
    badges = " ".join(_badge(name) for name in BADGES if row[f"is_{name}"])
    return (
        _div(f"opacity:.65;{weight}", f"{'▸ ' if picked else ''}{row['choice']}")
        + _div(f"{weight};{CODE};overflow-wrap:anywhere", tokens.show_html(row["continuation"], columns=200))
        + _div(f"{weight};text-align:right;{DIGITS}", number)
        + _div("", badges)
    )


def _badge(name: str) -> str:
    return _span(f"background:{BADGES[name]};border-radius:999px;padding:1px 9px;font-size:.8rem", name)
