"""What is shown, as files: each read back by something that did not write it."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pyarrow.parquet as pq
import pytest
from streamlit.testing.v1 import AppTest

from dashboard import exports
from dashboard.charts import curves
from dashboard.charts.curves import Axes, Curve

AWKWARD = ["<b>", "a,b", 'q"uote', "line\nbreak", "中文", "=1+1", "\ufeff"]
PAGE = """
import pandas as pd
import plotly.graph_objects as go
from dashboard import exports
frame = pd.DataFrame({"token": ["a"], "n": [1]})
frame.attrs["sql"] = ["SELECT 1", "SELECT 1", "SELECT 2"]
figure = go.Figure(go.Scatter(y=[1, 2]))
exports.chart(figure, "curve")
exports.offer("a/b: c", [frame], "curve", figure)
"""


def test_csv_is_read_back() -> None:
    frame = pd.DataFrame({"token": AWKWARD, "value": np.arange(len(AWKWARD)) / 3})
    back = pd.read_csv(io.BytesIO(exports.csv(frame)), encoding="utf-8-sig")
    pd.testing.assert_frame_equal(back, frame)


def test_parquet_keeps_lists_and_gaps() -> None:
    frame = pd.DataFrame({"ids": [[1, 2], [], None], "value": [1.5, np.nan, np.inf]})
    frame.attrs["sql"] = ["SELECT 1"]
    back = pq.read_table(io.BytesIO(exports.parquet(frame)))
    assert back["ids"].to_pylist() == [[1, 2], [], None]
    assert back["value"].to_pylist()[0::2] == [1.5, np.inf]
    assert frame.attrs["sql"] == ["SELECT 1"]


@pytest.mark.parametrize(("shade", "ink"), [("light", "#2a3f5f"), ("dark", "#f2f5fa")])
def test_a_standalone_page_fetches_nothing(shade: str, ink: str) -> None:
    page = exports.standalone(go.Figure(go.Scatter(y=[1, 2, 3], name="curve of <b>")), shade).decode()
    assert "<script src=" not in page
    assert len(page) > 1_000_000  # plotly.js itself
    assert f'"font":{{"color":"{ink}"}}' in page
    assert "curve of" in page


def test_the_export_offers_every_format_and_the_sql() -> None:
    test = AppTest.from_string(PAGE).run()
    assert not test.exception
    names = {str(button.proto.label) for button in test.get("download_button")}
    assert names == {"Standalone HTML", "CSV", "Parquet"}
    assert test.code[0].value == "SELECT 1;\n\nSELECT 2"


def test_a_band_does_not_bridge_a_gap() -> None:
    y = np.array([1.0, 2.0, np.nan, 4.0, 5.0])
    figure = curves.draw([Curve("mean", np.arange(5), y, y - 1, y + 1)], Axes("Layer", "Entropy (nat)"))
    bands = [trace for trace in figure.data if trace.fill == "toself"]
    assert [sorted(set(band.x)) for band in bands] == [[0, 1], [3, 4]]
    assert list(figure.data[-1].y) == [1, 2, None, 4, 5]
    assert figure.data[-1].connectgaps is False


def test_a_curve_checks_its_shapes() -> None:
    with pytest.raises(ValueError, match="2 values over 3 places"):
        Curve("x", [0, 1, 2], [1, 2])
    with pytest.raises(ValueError, match="needs both ends"):
        Curve("x", [0], [1], low=[0])


def test_names_of_curves_are_text() -> None:
    figure = curves.draw([Curve("<b>$x$", [0], [1])], Axes("Layer", "p"))
    assert figure.data[0].name == "&lt;b&gt;&#36;x&#36;"
