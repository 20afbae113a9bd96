"""How token text is shown: invisible characters made visible, each token bidi-isolated, never read as markup."""

from __future__ import annotations

import html
import re
import unicodedata

OPEN, CLOSE = "\u2068", "\u2069"
"""First-strong isolate and its end: an Arabic token must not reorder the comma after it."""

CONTINUES = "⋯"
EMPTY = "∅"
MARKS = {
    " ": "␣",
    "\n": "⏎",
    "\r": "␍",
    "\t": "⇥",
    "\u00a0": "⟨NBSP⟩",
    "\u00ad": "⟨SHY⟩",
    "\u061c": "⟨ALM⟩",
    "\u200b": "⟨ZWSP⟩",
    "\u200c": "⟨ZWNJ⟩",
    "\u200d": "⟨ZWJ⟩",
    "\u200e": "⟨LRM⟩",
    "\u200f": "⟨RLM⟩",
    "\u202a": "⟨LRE⟩",
    "\u202b": "⟨RLE⟩",
    "\u202c": "⟨PDF⟩",
    "\u202d": "⟨LRO⟩",
    "\u202e": "⟨RLO⟩",
    "\u2060": "⟨WJ⟩",
    "\u2066": "⟨LRI⟩",
    "\u2067": "⟨RLI⟩",
    "\u2068": "⟨FSI⟩",
    "\u2069": "⟨PDI⟩",
    "\ufeff": "⟨BOM⟩",
}
NAMELESS = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"})
"""Unicode categories that draw nothing, or nothing that can be told apart."""


def show(text: str | None, *, continues: bool = False, columns: int = 0) -> str:
    """Plain text of one token, isolated; at most `columns` columns wide where given (CJK letters take two)."""
    if continues:
        return CONTINUES
    if not text:
        return EMPTY
    return OPEN + shorten("".join(map(_visible, text)), columns) + CLOSE


def show_html(text: str | None, *, continues: bool = False, columns: int = 0) -> str:
    """`show`, escaped for HTML."""
    return html.escape(show(text, continues=continues, columns=columns))


def show_plotly(text: str | None, *, continues: bool = False, columns: int = 0) -> str:
    """`show`, escaped for Plotly, which reads a few HTML tags, and LaTeX between dollars."""
    return plotly(show(text, continues=continues, columns=columns))


def plotly(text: str) -> str:
    """Any text, escaped for Plotly's labels."""
    return html.escape(text, quote=False).replace("$", "&#36;")


def markdown(text: str) -> str:
    """Any text, escaped for Streamlit's Markdown: no emphasis, link, LaTeX, directive or emoji name is read in it."""
    escaped = re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", " ".join(text.split()))
    return re.sub(r"\\:(?=\w)", "\\:\u2060", escaped)


def readable(text: str, limit: int = 0) -> str:
    """A stretch of text on one line: newlines and tabs marked, spaces left as they are."""
    shown = "".join(letter if letter == " " else _visible(letter) for letter in text)
    return shorten(shown, limit)


def shorten(text: str, columns: int) -> str:
    """At most `columns` columns of `text`, the last an ellipsis where something was cut; 0 for all of it."""
    if columns <= 0 or width(text) <= columns:
        return text
    kept, used = [], 0
    for letter in text:
        used += width(letter)
        if used > columns - 1:
            break
        kept.append(letter)
    return "".join(kept) + "…"


def width(text: str) -> int:
    """Columns that `text` takes: two for a wide East Asian letter or emoji, none for a combining mark."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def _visible(letter: str) -> str:
    if letter in MARKS:
        return MARKS[letter]
    if unicodedata.category(letter) in NAMELESS:
        return f"⟨U+{ord(letter):04X}⟩"
    return letter
