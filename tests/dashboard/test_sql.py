"""The SQL page: what is asked, answered, said and drawn, each compared with the files themselves."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dashboard import exports, state
from dashboard.charts import cells, columns, quick
from dashboard.queries import sql
from recorder import console
from tests.dashboard import synthetic
from tests.dashboard.conftest import GOOD, OTHER, ROOTS, Open, parameters, words
from tests.dashboard.synthetic import Spec


def two(root: Path) -> None:
    synthetic.write(root, Spec(GOOD, name="good"))
    synthetic.write(root, Spec(OTHER, name="other", documents=2))


def shown(test: object) -> pd.DataFrame:
    (table,) = test.dataframe  # type: ignore[attr-defined]
    return table.value


def test_the_first_example_is_asked_of_the_newest_run(root: Path, page: Open) -> None:
    two(root)
    test = page("sql")
    assert test.text_area[0].value == next(iter(sql.EXAMPLES.values())).strip()
    assert len(shown(test)) == 1
    assert "**1 row**" in words(test)


def test_the_address_alone_says_runs_query_and_chart(root: Path, page: Open) -> None:
    two(root)
    query = "SELECT run_id, layer, avg(entropy) AS h FROM signals WHERE step >= 0 GROUP BY ALL ORDER BY ALL"
    test = page("sql", runs=f"{GOOD},{OTHER}", sql=query, plot="line", x="layer", y="h", by="run_id")
    assert test.multiselect[0].value == [GOOD, OTHER]
    assert test.text_area[0].value == query
    frames = [
        pq.read_table(root / run / "tables" / "signals.parquet").to_pandas().assign(run_id=run) for run in (GOOD, OTHER)
    ]
    expected = pd.concat(frames).query("step >= 0").groupby(["run_id", "layer"])["entropy"].mean().reset_index()
    found = shown(test)
    assert found["run_id"].tolist() == expected["run_id"].tolist()
    np.testing.assert_allclose(found["h"].astype(float), expected["entropy"], rtol=1e-6)
    assert len(test.get("plotly_chart")) == 1
    assert [box.value for box in test.selectbox] == ["layer", "h", "run_id"]


def test_what_is_typed_is_asked_when_it_is_sent(root: Path, page: Open) -> None:
    two(root)
    test = page("sql", runs=GOOD, sql="SELECT 1 AS a", x="a", y="a", plot="bar")
    test.text_area[0].set_value("SELECT count(*) AS n FROM docs")
    assert parameters(test)["sql"] == "SELECT 1 AS a"
    next(button for button in test.button if button.label == "Run").click().run()
    assert parameters(test) == {"runs": GOOD, "sql": "SELECT count(*) AS n FROM docs", "plot": "bar"}
    docs = pq.read_table(root / GOOD / "tables" / "docs.parquet")
    assert shown(test)["n"].tolist() == [docs.num_rows]


def test_an_example_fills_the_editor(root: Path, page: Open) -> None:
    two(root)
    test = page("sql", runs=GOOD)
    question = "Which tokens surprised the model most?"
    next(button for button in test.button if button.label == question).click().run()
    assert test.text_area[0].value == parameters(test)["sql"] == sql.EXAMPLES[question].strip()
    assert len(shown(test)) > 0


def test_other_runs_are_asked_the_same(root: Path, page: Open) -> None:
    two(root)
    test = page("sql", run=OTHER, sql="SELECT DISTINCT run_id FROM docs ORDER BY 1")
    assert test.multiselect[0].value == [OTHER]
    test.multiselect[0].set_value([GOOD, OTHER]).run()
    assert parameters(test)["runs"] == f"{GOOD},{OTHER}"
    assert shown(test)["run_id"].tolist() == [GOOD, OTHER]
    test.multiselect[0].set_value([]).run()
    assert "Choose one run or more" in words(test)
    assert not test.dataframe


@pytest.mark.parametrize(
    ("kind", "said"), [("garbage", "cannot be read"), ("newer", "newer version"), ("good", "is not here")]
)
def test_a_run_that_cannot_be_asked_is_left_out(root: Path, page: Open, kind: str, said: str) -> None:
    ROOTS[kind](root)
    test = page("sql", runs=f"{OTHER},{GOOD}", sql="SELECT run_id FROM runs")
    assert said in words(test).replace("\\", "")
    assert shown(test)["run_id"].tolist() == [GOOD]


@pytest.mark.parametrize("kind", ["live", "lost"])
def test_an_unfinished_run_is_asked(root: Path, page: Open, kind: str) -> None:
    ROOTS[kind](root)
    tables = ("summary", "doc_summary", "similarity_summary", "signals", "docs")
    query = " UNION ALL ".join(f"SELECT '{table}' AS t, count(*) AS n FROM {table}" for table in tables)
    found = shown(page("sql", run=GOOD, sql=query))
    assert [(table, n > 0) for table, n in zip(found["t"], found["n"], strict=True)] == [
        (table, table != "docs") for table in tables
    ]


def test_a_live_run_is_asked_again_as_it_grows(root: Path, page: Open) -> None:
    query = "SELECT count(*) AS n FROM requests"
    synthetic.write(root, Spec(GOOD, documents=1, finished=False, state="running", living=True))
    before = shown(page("sql", run=GOOD, sql=query))["n"][0]
    part = next((root / GOOD / "parts").iterdir())
    more = part.parent / "000-000001"
    more.mkdir()
    for file in part.iterdir():
        (more / file.name).write_bytes(file.read_bytes())
    state.store().refresh()
    assert shown(page("sql", run=GOOD, sql=query))["n"][0] == 2 * before


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT entropie FROM signals", '"entropy"'),
        ("FROM signal", "did you mean signals"),
        ("COPY docs TO 'x.csv'", "One query that reads is allowed"),
        ("FROM '/etc/passwd'", "There is no table /etc/passwd"),
        ("SELECT 1; SELECT 2", "Several statements"),
    ],
)
def test_what_is_refused_is_said_and_stays_in_the_editor(root: Path, page: Open, query: str, said: str) -> None:
    two(root)
    test = page("sql", runs=GOOD, sql=query)
    assert said in words(test).replace("\\", "")
    assert test.text_area[0].value == query
    assert not test.exception
    assert not test.dataframe


def test_a_query_that_takes_too_long_is_said(root: Path, page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    two(root)
    monkeypatch.setenv(state.SECONDS, "1")
    test = page("sql", runs=GOOD, sql="SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b")
    assert "took over 1 s and was stopped" in words(test)
    assert "1 s and 2 GB" in words(test)


def test_more_rows_than_are_read_are_said(root: Path, page: Open) -> None:
    two(root)
    test = page("sql", runs=GOOD, sql="FROM range(123456)")
    assert "**First 10,000 rows**" in words(test)
    assert "aggregate, or add LIMIT and OFFSET" in words(test)
    assert len(shown(test)) == console.ROWS


def test_wide_rows_fit_the_page_and_are_counted(root: Path, page: Open) -> None:
    two(root)
    test = page("sql", runs=GOOD, sql="SELECT i, repeat('a', 200) || i AS a FROM range(9000) t(i)")
    rows = len(shown(test))
    assert 0 < rows < 9000
    assert f"{rows:,} of 9,000 rows fit the table" in words(test)
    assert test.dataframe[0].proto.ByteSize() < 1_000_000


def test_no_row_is_an_answer(root: Path, page: Open) -> None:
    two(root)
    assert "there is no such row" in words(page("sql", runs=GOOD, sql="SELECT * FROM docs WHERE false"))


def test_a_plan_is_shown_as_it_is_drawn(root: Path, page: Open) -> None:
    two(root)
    test = page("sql", runs=GOOD, sql="EXPLAIN SELECT count(*) FROM docs")
    assert "─" in test.code[0].value
    assert not test.dataframe


ODD = {
    "lists where names are expected": "SELECT [1] AS layer, ['a'] AS run_id, 1 AS n, {'a': 1} AS task",
    "a plan that is none": "SELECT 1 AS explain_key, NULL AS explain_value",
    "nothing but nulls": "SELECT NULL AS a, NULL::DOUBLE AS b, NULL::INT[] AS c FROM range(3)",
    "names of names": 'SELECT 1.5 AS "_index", 2.5 AS "$x$ <b>", 3 AS "%{y}", 4 AS " ", 5 AS "a\nb", 6 AS "a\nb"',
    "numbers without end": "SELECT 'nan'::DOUBLE AS a, 'inf'::DOUBLE AS b, -1e308 AS c, 9223372036854775807 AS d",
    "text of every kind": "SELECT chr(8238) || 'x' AS a, chr(0) AS b, repeat('🙂', 2000) AS c, '' AS d, 1 AS n",
    "truth": "SELECT true AS a UNION ALL SELECT NULL",
    "no row": "SELECT 1 AS a WHERE false",
    "many columns": f"SELECT {', '.join(f'{i} AS c{i}' for i in range(300))}",
    "dates": "SELECT DATE '2026-12-01' AS layer, now() AS t, INTERVAL 1 DAY AS i, 1 AS n",
}


@pytest.mark.parametrize("what", ODD)
def test_odd_answers_break_no_page(root: Path, page: Open, what: str) -> None:
    two(root)
    test = page("sql", runs=GOOD, sql=ODD[what], plot="line")
    assert not test.exception
    assert not test.error


def test_a_chart_of_a_column_that_is_not_there_is_the_nearest(root: Path, page: Open) -> None:
    two(root)
    test = page("sql", runs=GOOD, sql="SELECT layer, entropy FROM signals", plot="scatter", y="entropie")
    assert "names column entropie" in words(test)
    assert [box.value for box in test.selectbox] == ["layer", "entropy", ""]


def test_a_table_of_words_has_no_chart(root: Path, page: Open) -> None:
    two(root)
    test = page("sql", runs=GOOD, sql="SELECT run_id FROM runs", plot="line")
    assert not test.get("plotly_chart")
    assert len(shown(test)) == 1


def test_a_column_is_found_by_its_meaning(root: Path, page: Open) -> None:
    two(root)
    test = page("sql", runs=GOOD, find="kl final")
    (listed,) = [element.proto.body for element in test.get("html") if "<details" in element.proto.body]
    assert "kl_final" in listed
    assert "input_ids" not in listed
    assert "No table or column" in words(page("sql", runs=GOOD, find="no such thing"))


# Cells


def test_cells_show_what_cannot_be_seen() -> None:
    frame = arrow(
        a=["<b>$x$\n\t", "\u202eevil", "", None, "x" * 1000, "中文"], b=[[1.5, None], [], None, [2] * 99, [0], [1]]
    )
    table = cells.grid(frame)
    assert table["a"].to_pylist()[:4] == ["<b>$x$⏎⇥", "⟨RLO⟩evil", "", None]
    assert len(table["a"][4].as_py()) == cells.LETTERS
    assert table["b"].to_pylist()[:3] == ["[1.5, null]", "[]", None]
    assert table["b"][3].as_py().endswith("… 87 more]")


def test_cells_tell_nan_from_null() -> None:
    table = cells.grid(arrow(a=[math.nan, None, 1.0]))
    assert [math.isnan(value) if value is not None else None for value in table["a"].to_pylist()] == [True, None, False]


def test_cells_quote_tokens() -> None:
    (cell,) = cells.grid(arrow(a=[[" a", ",", "\n"]]))["a"].to_pylist()
    assert "".join(letter for letter in cell if letter not in "\u2068\u2069") == '["␣a", ",", "⏎"]'


def test_cells_keep_to_their_size() -> None:
    frame = arrow(a=["x" * 250] * 10_000)
    table = cells.grid(frame, 100_000)
    assert 300 < table.num_rows < 410
    assert table.nbytes <= 100_000
    assert cells.grid(arrow(a=["x" * 250]), 10).num_rows == 1


@pytest.mark.parametrize("write", [exports.csv, exports.parquet])
def test_what_was_asked_is_saved_as_it_is(root: Path, write: object) -> None:
    two(root)
    query = "SELECT 1 AS a, [1, 2] AS l, 'nan'::FLOAT AS f, NULL::INT AS n, '<b>\n' AS t"
    frame = state.ask_runs(sql.answer, [run for run in state.store().runs if run.run_id == GOOD], query)
    data = write(frame)  # type: ignore[operator]
    if write is exports.parquet:
        (row,) = pq.read_table(pa.BufferReader(data)).to_pylist()
        assert (row["a"], row["l"], row["n"], row["t"]) == (1, [1, 2], None, "<b>\n")
    else:
        assert data.decode("utf-8-sig").startswith("a,l,f,n,t\n1,")


# Charts


def arrow(**found: list[object]) -> pd.DataFrame:
    return pa.table(found).to_pandas(types_mapper=pd.ArrowDtype)


def test_a_line_is_drawn_in_order_of_x_with_its_gaps() -> None:
    frame = arrow(layer=[2, 0, 1, 1, 0], h=[3.0, 1.0, math.nan, None, 5.0], run=["a", "a", "a", "b", "b"])
    figure, notes = quick.draw(frame, "line", "layer", "h", "run")
    assert [(trace.name, list(trace.x), list(trace.y)) for trace in figure.data] == [
        ("a", [0, 1, 2], [1, None, 3]),
        ("b", [0, 1], [5, None]),
    ]
    assert notes == ["2 rows have no finite layer and h: a gap."]
    assert figure.layout.xaxis.title.text == "layer"
    assert figure.layout.yaxis.title.text == "h"


def test_words_on_an_axis_do_not_collapse() -> None:
    frame = arrow(text=["a\n", "a⏎", "<b>", "$x$", None], n=[1, 2, 3, 4, 5])
    figure, _ = quick.draw(frame, "bar", "text", "n")
    assert list(figure.data[0].x) == [0, 1, 2, 3, 4]
    assert list(figure.layout.xaxis.ticktext) == ["a⏎", "a⏎", "&lt;b&gt;", "&#36;x&#36;", "null"]


def test_many_words_and_colours_and_points_are_thinned_and_counted() -> None:
    n = quick.POINTS + 10
    frame = arrow(t=[f"w{i % 100}" for i in range(n)], n=list(range(n)), c=[str(i % 11) for i in range(n)])
    figure, notes = quick.draw(frame, "scatter", "t", "n", "c")
    assert len(figure.layout.xaxis.ticktext) <= quick.TICKS
    assert len(figure.data) == 8
    assert notes == [f"The first {quick.POINTS:,} of {n:,} rows are drawn.", "8 of 11 values of c are drawn."]


def test_rows_that_share_a_place_are_said() -> None:
    _, notes = quick.draw(arrow(layer=[0, 0, 1], h=[1, 2, 3]), "line", "layer", "h")
    assert notes == ["1 rows share their layer with another of the same colour: aggregate, or colour by more."]


@pytest.mark.parametrize(
    ("found", "suggestion"),
    [
        ({"task": ["a", "b"], "layer": [0, 1], "h": [0.5, 1]}, ("layer", "h", "task")),
        ({"layer": [0, 1], "h": [0.5, 1]}, ("layer", "h", "")),
        ({"t": ["a", "b"], "n": [1, 2]}, ("t", "n", "")),
        ({"n": [1, 2]}, ("n", "n", "")),
        ({"a": [1, 2], "b": [1, 2]}, ("a", "b", "")),
        ({"l": [[1], [2]], "n": [1, 2]}, ("n", "n", "")),
        ({"layer": [0, 1], "run_id": ["a", "b"], "task": ["a", "b"], "h": [1, 2]}, ("layer", "h", "run_id")),
        ({"run_id": ["a", "b"], "text": ["c", "d"], "n": [1, 2]}, ("text", "n", "run_id")),
        ({"doc_id": [0, 1], "choice": [0, 1], "rank": [1, 2], "p": [0.5, 1]}, ("doc_id", "p", "")),
    ],
)
def test_a_chart_begins_with_what_is_likely_meant(found: dict[str, list], suggestion: tuple[str, str, str]) -> None:
    assert quick.suggested(arrow(**found)) == suggestion


# The schema


def test_the_schema_is_escaped_and_unfolded_by_words() -> None:
    tables = [("t<b>", "a & `b`", [("c", "INT", "nat", "means"), ("d", "INT", "", "other")])]
    assert "t&lt;b&gt;" in columns.listed(tables)
    assert "<details open" not in columns.listed(tables)
    assert columns.listed(tables, "MEANS nat").count("<details open") == 1
    assert "other" not in columns.listed(tables, "means")
    assert columns.listed(tables, "nothing") == ""
