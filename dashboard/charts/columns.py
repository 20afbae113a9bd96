"""Tables and their columns as a list to read: name, type, unit, meaning."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from dashboard.charts.strips import CODE

Described = tuple[str, str, Sequence[tuple[str, str, str, str]]]
"""(table, meaning, [(column, type, unit, meaning)])"""

PALE = "opacity:.65;font-size:.78rem"
LINE = "padding:5px 0 5px 10px;border-left:2px solid rgba(128,128,128,.25);line-height:1.35"


def listed(tables: Sequence[Described], words: str = "") -> str:
    """Each table to be unfolded; with `words`, what they occur in, unfolded."""
    found = [kept for table in tables if (kept := _matching(table, words.lower().split()))]
    return "".join(_table(*table, unfolded=bool(words)) for table in found)


def _matching(table: Described, words: Sequence[str]) -> Described | None:
    name, meaning, columns = table
    kept = [column for column in columns if all(word in " ".join((name, *column)).lower() for word in words)]
    return (name, meaning, kept) if kept else None


def _table(name: str, meaning: str, columns: Sequence[tuple[str, str, str, str]], *, unfolded: bool) -> str:
    head = f'<summary style="cursor:pointer;padding:3px 0"><b style="{CODE}">{html.escape(name)}</b></summary>'
    about = f'<div style="{PALE};padding:0 0 4px 12px">{_meant(meaning)}</div>'
    lines = "".join(_column(*column) for column in columns)
    return f'<details{" open" if unfolded else ""} style="font-size:.86rem">{head}{about}{lines}</details>'


def _column(name: str, kind: str, unit: str, meaning: str) -> str:
    facts = html.escape(" · ".join(part for part in (kind, unit) if part))
    return (
        f'<div style="{LINE};margin-left:12px"><span style="{CODE}">{html.escape(name)}</span> '
        f'<span style="{PALE}">{facts}</span><div style="{PALE}">{_meant(meaning)}</div></div>'
    )


def _meant(text: str) -> str:
    """A meaning as HTML, its `names` in code letters."""
    return re.sub(r"`([^`]+)`", rf'<span style="{CODE}">\1</span>', html.escape(text))
