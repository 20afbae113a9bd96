"""Token text is data: visible, isolated, and never read as markup."""

from __future__ import annotations

import html
import re

import pytest

from dashboard import tokens
from dashboard.tokens import (
    CLOSE,
    CONTINUES,
    EMPTY,
    OPEN,
    markdown,
    plotly,
    readable,
    shorten,
    show,
    show_html,
    show_plotly,
    width,
)

SHOWN = {
    " ": "␣",
    " the": "␣the",
    "\n\n": "⏎⏎",
    "\t": "⇥",
    "\r\n": "␍⏎",
    "\u00a0": "⟨NBSP⟩",
    "a\u200db": "a⟨ZWJ⟩b",
    "\ufeff": "⟨BOM⟩",
    "\u202eabc": "⟨RLO⟩abc",
    "\u2069": "⟨PDI⟩",
    "\x00": "⟨U+0000⟩",
    "\u3000": "⟨U+3000⟩",
    "\ue000": "⟨U+E000⟩",
    "<b>": "<b>",
    "<s>": "<s>",
    "$5 and $6": "$5␣and␣$6",
    "[a] [b]": "[a]␣[b]",
    ":word": ":word",
    "中文": "中文",
    "한국어": "한국어",
    "مرحبا": "مرحبا",
    "🙂": "🙂",
    "é": "é",
}


@pytest.mark.parametrize("text", SHOWN)
def test_what_cannot_be_seen_is_marked_and_the_rest_is_as_it_is(text: str) -> None:
    assert show(text) == OPEN + SHOWN[text] + CLOSE


@pytest.mark.parametrize("text", SHOWN)
def test_html_says_the_same_and_holds_no_tag(text: str) -> None:
    assert html.unescape(show_html(text)) == show(text)
    assert not re.search(r"[<>\"']", show_html(text))


@pytest.mark.parametrize("text", SHOWN)
def test_plotly_says_the_same_and_reads_neither_tag_nor_latex(text: str) -> None:
    assert html.unescape(show_plotly(text)) == show(text)
    assert not re.search(r"[<>$]", show_plotly(text))


def test_an_arabic_token_does_not_reorder_the_comma_after_it() -> None:
    line = show("مرحبا") + show(",")
    assert line == f"{OPEN}مرحبا{CLOSE}{OPEN},{CLOSE}"
    assert line.count(OPEN) == line.count(CLOSE) == 2


def test_a_token_cannot_close_its_own_isolation() -> None:
    assert show("\u2069\u202e")[1:-1].count(CLOSE) == 0


def test_later_pieces_of_a_character_are_marked() -> None:
    assert show("", continues=True) == CONTINUES
    assert show("") == show(None) == EMPTY
    assert CONTINUES != EMPTY


@pytest.mark.parametrize(
    ("text", "columns", "short"),
    [
        ("abcdef", 4, "abc…"),
        ("abcd", 4, "abcd"),
        ("中文字", 4, "中…"),
        ("abc", 0, "abc"),
        ("e\u0301e\u0301", 2, "e\u0301e\u0301"),
    ],
)
def test_shorten_counts_columns(text: str, columns: int, short: str) -> None:
    assert shorten(text, columns) == short
    assert not columns or width(short) <= columns


def test_a_shortened_token_is_still_isolated() -> None:
    assert show("مرحبا", columns=3) == f"{OPEN}مر…{CLOSE}"


@pytest.mark.parametrize(
    "text", ["$5 and $6", "[a] [b]", ":smile:", "**b**", "# head", "`code`", "<b>", ":red[x]", "1. x", "a_b_c"]
)
def test_markdown_escapes_every_mark(text: str) -> None:
    escaped = markdown(text)
    assert re.sub(r"\\(.)", r"\1", escaped).replace("\u2060", "") == text
    assert not re.search(r"(?<!\\)[$\[\]`*_<>#:.]", escaped)
    assert ":smile:" not in escaped.replace("\\", "")


def test_markdown_is_one_line() -> None:
    assert markdown("a\n\n- b") == "a \\- b"


def test_readable_keeps_spaces() -> None:
    assert readable("a b\nc\u00a0", 0) == "a b⏎c⟨NBSP⟩"
    assert readable("a b c d", 4) == "a b…"


def test_plotly_escapes_any_text() -> None:
    assert plotly("a<br>$x$&") == "a&lt;br&gt;&#36;x&#36;&amp;"


def test_marks_are_told_apart() -> None:
    assert len(set(tokens.MARKS.values())) == len(tokens.MARKS)
