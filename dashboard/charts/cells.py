"""Any table as a grid of cells can show it: what cannot be seen is marked, what is long is cut, a list is a text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dashboard import tokens

LETTERS = 300
"""Columns of text that a cell shows."""
ITEMS = 12
"""Items of a list that a cell shows."""
BYTES = 900_000
"""Bytes that a grid is sent."""


def grid(frame: pd.DataFrame, size: int = BYTES) -> pa.Table:
    """The first rows, of at most `size` bytes. Arrow, for pandas would make one of null and NaN."""
    table = pa.table({name: _column(frame[name]) for name in frame.columns})
    while table.nbytes > size and table.num_rows > 1:
        table = table.slice(0, max(1, min(table.num_rows - 1, int(table.num_rows * 0.95 * size / table.nbytes))))
    return table


def _column(column: pd.Series) -> pa.ChunkedArray:
    found = pa.chunked_array(pa.array(column))
    kind = found.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _mapped(found.combine_chunks(), _text)
    if pa.types.is_list(kind):
        return pa.chunked_array([pa.array([_list(value) for value in found.to_pylist()], pa.string())])
    return found


def _mapped(found: pa.Array, say: Any) -> pa.ChunkedArray:
    """`say` of each text, worked out once for each that differs."""
    coded = found.dictionary_encode()
    said = pa.array([say(text) for text in coded.dictionary.to_pylist()], pa.string())
    return pa.chunked_array([pa.DictionaryArray.from_arrays(coded.indices, said).cast(pa.string())])


def _text(text: str) -> str:
    if text.isascii() and text.isprintable() and len(text) <= LETTERS:
        return text
    return tokens.readable(text[: 4 * LETTERS], LETTERS) if text else text


def _list(items: list[Any] | None) -> str | None:
    if items is None:
        return None
    shown = [_item(item) for item in items[:ITEMS]]
    left = len(items) - len(shown)
    return f"[{', '.join(shown)}{f', … {left:,} more' if left else ''}]"


def _item(item: Any) -> str:
    if isinstance(item, str):
        return f'"{tokens.show(item, columns=40)}"'
    if isinstance(item, float):
        return "NaN" if np.isnan(item) else f"{item:.4g}"
    return "null" if item is None else str(item)
