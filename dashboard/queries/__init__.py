"""(store, filters) -> DataFrame. All SQL of the dashboard lives here."""

from __future__ import annotations

from typing import Any, cast

import pandas as pd


def rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as dicts of plain values; what is missing is None."""
    plain = frame.astype(object).where(frame.notna(), None)
    return cast("list[dict[str, Any]]", plain.to_dict("records"))
