"""The Compare page: what it says of two to four runs, and what it says it cannot."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dashboard import pickers, state
from dashboard.charts.measures import MEASURES
from dashboard.paired import half_width
from dashboard.queries import pairs
from dashboard.views.compare import depth
from tests.dashboard import comparable
from tests.dashboard.comparable import (
    DOCS,
    TASK,
    A,
    B,
    C,
    Doc,
    Made,
    by_hand,
    docs,
    figures,
    links,
    said,
    two,
)
from tests.dashboard.conftest import ROOTS, Open, parameters, words


def test_with_fewer_than_two_runs_the_page_offers_those_that_share_a_task(root: Path, page: Open) -> None:
    two(root)
    comparable.write(root, C, DOCS, Made("third", tasks=("write",)))
    assert [button.key for button in page("compare").button] == [f"offer:{A},{B}"]
    for name in ("runs", "run"):
        test = page("compare", **{name: B})
        assert [button.key for button in test.button] == [f"offer:{B},{A}"]
        test.button[0].click().run()
        assert parameters(test) == {"runs": f"{B},{A}"}
        assert test.get("plotly_chart")
    assert "No other run here" in said(page("compare", runs=C))


def test_one_run_alone_says_that_two_are_needed(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    assert "To compare takes two runs; there is one" in said(page("compare"))


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        (f"{A},{A}", "names a run twice"),
        (f"{A},{B},{A}", "names a run twice"),
        (f"{A},gone,{B}", "the run gone, not to be found here"),
        (f"{A},{','.join(f'x{at}' * 30 for at in range(50))},{B}", "… and 47 more, not to be found here"),
        ("gone", "the run gone, not to be found here"),
    ],
)
def test_a_link_that_cannot_be_followed_says_so(runs: str, told: str, root: Path, page: Open) -> None:
    two(root)
    test = page("compare", runs=runs)
    assert told in said(test)
    assert bool(test.get("plotly_chart")) == (A in runs and B in runs)


def test_a_broken_run_in_the_list_is_named_and_left_out(root: Path, page: Open) -> None:
    two(root)
    broken = comparable.write(root, C, DOCS) / "tables" / "signals.parquet"
    broken.write_bytes(broken.read_bytes()[:100])
    test = page("compare", runs=f"{A},{C},{B}")
    assert f"The run {C} cannot be compared" in said(test)
    assert test.get("plotly_chart")


def test_of_more_than_four_runs_the_first_four_are_compared(root: Path, page: Open) -> None:
    ids = [f"20261130t214500z-{at * 6}" for at in "12345"]
    for run_id in ids:
        comparable.write(root, run_id, DOCS)
    test = page("compare", runs=",".join(ids))
    assert "names 5 runs: the first 4" in said(test)
    assert test.multiselect[0].value == ids[:4]


def test_runs_of_different_tasks_say_which_each_has(root: Path, page: Open) -> None:
    comparable.write(root, A, DOCS, Made("first"))
    comparable.write(root, B, DOCS, Made("second", tasks=("write",)))
    text = said(page("compare", runs=f"{A},{B}"))
    assert "share no task" in text
    assert "A first : facts" in text
    assert "B second : write" in text


def test_the_verdict_and_the_table_are_those_of_the_files(root: Path, page: Open) -> None:
    two(root)
    both = docs(root, A).merge(docs(root, B), on="doc_hash", suffixes=("_a", "_b"))
    a, b = (100 * both[f"correct_{run}"].mean() for run in "ab")
    gap = f"{b - a:+.1f}".replace("-", "−")
    test = page("compare", runs=f"{A},{B}")
    text = said(test)
    assert f"No clear winner at acc: A {a:.1f} %, B {b:.1f} % on the 8 documents in both; B − A {gap} points" in text
    assert "8 in A and B, 4 only in A, 3 only in B." in text
    assert "4 of 8 identical to A's" in text
    counts = pd.crosstab(both["correct_a"], both["correct_b"])
    cells = {link["pair"]: link for link in links(test, "documents") if "pair" in link}
    assert set(cells) == set(pairs.CELLS)
    assert cells["rw"] == {"run": A, "vs": B, "pair": "rw", "task": TASK, "filter": "none"}
    numbers = re.findall(r"\[(\d+)\]\(documents", "\n".join(item.value for item in test.markdown))
    assert [int(number) for number in numbers] == [
        counts.loc[True, True],
        counts.loc[True, False],
        counts.loc[False, True],
        counts.loc[False, False],
    ]


def test_a_clear_difference_names_the_better_run(root: Path, page: Open) -> None:
    a = [Doc(f"q{at}", at < 5) for at in range(40)]
    b = [Doc(f"q{at}", at < 30) for at in range(40)]
    two(root, a, b)
    text = said(page("compare", runs=f"{A},{B}"))
    assert "B is higher than A at acc: B 75.0 %, A 12.5 % on the 40 documents in both; B − A +62.5 points" in text
    results = json.loads((root / A / "results.json").read_text())
    (root / A / "results.json").write_text(json.dumps({**results, "higher_is_better": {TASK: {"acc": True}}}))
    state.store().refresh()
    assert "B is better than A at acc: B 75.0 %, A 12.5 %" in said(page("compare", runs=f"{A},{B}"))
    (root / A / "results.json").write_text(json.dumps({**results, "higher_is_better": {TASK: {"acc": False}}}))
    state.store().refresh()
    assert "A is better than B at acc: A 12.5 %, B 75.0 %" in said(page("compare", runs=f"{A},{B}"))


def test_swapping_makes_the_other_run_the_baseline_and_forgets_the_document(root: Path, page: Open) -> None:
    two(root)
    test = page("compare", runs=f"{A},{B}", task=TASK, doc=5, stat="kl", curve="entropy")
    test.button(key="baseline:1").click().run()
    assert parameters(test) == {"runs": f"{B},{A}", "task": TASK, "stat": "kl", "curve": "entropy"}
    assert "A second" in said(test)


def test_choosing_runs_is_in_the_url(root: Path, page: Open) -> None:
    two(root)
    comparable.write(root, C, DOCS, Made("third"))
    test = page("compare", runs=f"{A},{B}", doc=5)
    test.multiselect[0].set_value([A, B, C]).run()
    assert parameters(test) == {"runs": f"{A},{B},{C}", "doc": "5"}
    assert "12 in A and C" in said(test)


STALE = {
    "task": ("gone", "showing task facts"),
    "filter": ("gone", "showing filter none"),
    "metric": ("gone", "showing metric acc"),
    "curve": ("gone", "showing curve target"),
    "pair": ("xx", "showing group of documents all"),
    "doc": (1, "showing document 4"),
    "choice": (9, "showing choice 2"),
    "step": (70, "showing step 1"),
    "layer": (70, "showing layer 4"),
    "stat": ("gone", "showing statistic target"),
}


def test_a_stale_link_shows_the_nearest_view(root: Path, page: Open) -> None:
    two(root)
    test = page("compare", runs=f"{A},{B}", **{name: value for name, (value, _) in STALE.items()})
    text = said(test)
    for _, told in STALE.values():
        assert told in text
    assert len(test.warning) == len(STALE)
    assert test.get("plotly_chart")


def test_runs_that_differ_on_every_document_are_clearly_apart(root: Path, page: Open) -> None:
    two(root, [Doc(f"q{at}", True) for at in range(9)], [Doc(f"q{at}", False) for at in range(9)])
    text = said(page("compare", runs=f"{A},{B}"))
    assert "A is higher than B at acc: A 100.0 %, B 0.0 % on the 9 documents in both; B − A −100.0 points" in text
    assert "every pair differs alike: resampling gives no interval; McNemar p = 0.004" in text


def test_a_cell_narrows_curves_and_documents(root: Path, page: Open) -> None:
    two(root)
    test = page("compare", runs=f"{A},{B}", pair="wr")
    assert "of the 2 documents in all runs that are right in B alone" in said(test)
    assert test.selectbox(key="url:doc").options == ["6 · A wrong, B right · w16", "9 · A wrong, B right · w19"]


def test_a_cell_without_documents_says_so(root: Path, page: Open) -> None:
    two(root, b=[Doc(f"q{at}", at % 3 != 0) for at in range(12)])
    text = said(page("compare", runs=f"{A},{B}", pair="rw"))
    assert "no document is right in A alone" in text
    assert "No document is right in A alone" in text


def test_more_documents_than_a_list_holds_are_chosen_by_place(
    root: Path, page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    two(root)
    monkeypatch.setattr(pickers, "LISTED", 1)
    test = page("compare", runs=f"{A},{B}", pair="wr", choice=2)
    assert "Document 6 of A (1 of 2)" in test.number_input[0].label
    test.number_input[0].set_value(2).run()
    assert parameters(test) == {"runs": f"{A},{B}", "pair": "wr", "doc": "9"}
    assert {"run": A, "vs": B, "pair": "wr", "task": TASK, "filter": "none"} in links(test, "documents")


def test_at_first_the_document_is_one_on_which_the_runs_disagree(root: Path, page: Open) -> None:
    two(root)
    assert page("compare", runs=f"{A},{B}").selectbox(key="url:doc").value == 4


def test_runs_that_share_no_document_say_so(root: Path, page: Open) -> None:
    two(root, b=[Doc(f"other {at}") for at in range(3)])
    text = said(page("compare", runs=f"{A},{B}"))
    assert "0 in A and B, 12 only in A, 3 only in B" in text
    assert "No document is in both A and B" in text


def test_the_heatmaps_have_one_scale_and_a_difference(root: Path, page: Open) -> None:
    two(root, b=DOCS, shift=-0.6)
    test = page("compare", runs=f"{A},{B}", doc=4, stat="target")
    maps = [figure["data"][0] for figure in figures(test) if figure["data"][0]["type"] == "heatmap"]
    assert len(maps) == 3
    assert maps[0]["colorscale"] == maps[1]["colorscale"] != maps[2]["colorscale"]
    assert maps[0]["colorbar"]["ticktext"] == maps[1]["colorbar"]["ticktext"]
    ticks = maps[2]["colorbar"]["ticktext"]
    assert (float(ticks[0]), float(ticks[len(ticks) // 2]), float(ticks[-1])) == (-1.2, 0, 1.2)
    assert "Those of B − A show the difference" in said(test)


def test_a_norm_is_coloured_over_both_runs(root: Path, page: Open) -> None:
    two(root, b=DOCS)

    def scaled(table: pa.Table) -> pa.Table:
        column = table.schema.get_field_index("norm")
        return table.set_column(column, table.schema.field(column), pa.array(np.full(len(table), 70.0), pa.float32()))

    comparable.change(root / B, "signals", scaled)
    test = page("compare", runs=f"{A},{B}", doc=4, stat="norm")
    maps = [figure["data"][0] for figure in figures(test) if figure["data"][0]["type"] == "heatmap"]
    assert maps[0]["colorbar"]["ticktext"] == maps[1]["colorbar"]["ticktext"]
    assert (maps[0]["colorbar"]["ticktext"][0], maps[0]["colorbar"]["ticktext"][-1]) == ("10", "70")


def test_answers_whose_tokens_differ_are_not_subtracted(root: Path, page: Open) -> None:
    two(root)  # the second run's document has another number, and so other synthetic answers
    test = page("compare", runs=f"{A},{B}", doc=4)
    assert "No difference is drawn: left out are steps from 0 on, whose tokens differ" in said(test)


def test_only_the_common_start_of_two_generations_is_subtracted(root: Path, page: Open) -> None:
    for run_id in (A, B):
        comparable.write(root, run_id, DOCS, Made(tasks=("write",), steps=6))

    def later(table: pa.Table) -> pa.Table:
        frame = table.to_pandas()
        frame.loc[frame["step"] >= 4, "token_id"] += 1
        return pa.Table.from_pandas(frame, schema=table.schema, preserve_index=False)

    comparable.change(root / B, "steps", later)
    test = page("compare", runs=f"{A},{B}", doc=4)
    assert "Left out of the difference: steps from 4 on, whose tokens differ" in said(test)
    maps = [figure for figure in figures(test) if figure["data"][0]["type"] == "heatmap"]
    assert [len(figure["layout"]["xaxis"]["ticktext"]) for figure in maps] == [6, 6, 4]


def test_other_prompts_still_pair_and_it_is_said(root: Path, page: Open) -> None:
    two(root, b=[Doc(f"q{at}", True, prompt="few shots") for at in range(12)])
    text = said(page("compare", runs=f"{A},{B}", doc=4))
    assert "0 of 12 identical to A's" in text
    assert "the same answer tokens after other contexts" in text


def test_another_vocabulary_hides_what_depends_on_it(root: Path, page: Open) -> None:
    two(root, b=DOCS, vocabulary=2000, token_shift=500)
    test = page("compare", runs=f"{A},{B}", doc=4, curve="share")
    text = said(test)
    assert (
        "Hidden, because the vocabularies differ: Target log-probability, Top-1 probability, Entropy, KL to final"
        in text
    )
    assert re.search(r" 0 of \d\d shared texts have A's token id", text)
    assert "No difference is drawn: the vocabularies differ" in text
    assert set(test.selectbox(key="url:curve").options) == {
        MEASURES[name].title for name in ("agree", "settled", "share", "norm", "cos_next", "cos_last")
    }
    lines = [trace for trace in figures(test)[0]["data"] if trace["mode"] == "lines+markers"]
    entropy = np.array([5.0, 4.0, 3.0, 2.0, 1.0])
    np.testing.assert_allclose(lines[0]["y"], entropy / math.log(1000), rtol=1e-6)
    np.testing.assert_allclose(lines[1]["y"], entropy / math.log(2000), rtol=1e-6)


def test_equal_sizes_of_vocabulary_are_not_taken_for_the_same_tokens(root: Path, page: Open) -> None:
    two(root, b=DOCS, token_shift=500)
    assert "Hidden, because the vocabularies differ" in said(page("compare", runs=f"{A},{B}"))


def test_another_depth_is_drawn_over_its_share_and_not_subtracted(root: Path, page: Open) -> None:
    two(root, b=DOCS, depth=3)
    test = page("compare", runs=f"{A},{B}", doc=4)
    text = said(test)
    assert "The runs have other depths (A 4, B 3 layers)" in text
    assert "No difference is drawn: A and B have other numbers of layers" in text
    lines = [trace for trace in figures(test)[0]["data"] if trace["mode"] == "lines+markers"]
    np.testing.assert_allclose(lines[0]["x"], np.arange(5) / 4)
    np.testing.assert_allclose(lines[1]["x"], np.arange(4) / 3)


def test_where_the_curves_part_is_told_first(root: Path, page: Open) -> None:
    two(root, b=DOCS, shift=-0.6)
    expected = by_hand(root, "target_logprob", [(at, at) for at in range(12)])
    apart = expected.index[
        np.abs(expected["difference"]) > half_width(expected["difference_se"].to_numpy(), np.full(5, 12)) + 1e-9
    ].tolist()
    assert apart == [3, 4]
    gap = abs(expected["difference"]).max()
    told = f"B is below A in layers 3 to 4 (most at layer 3, by {gap:.3g} nat)"
    assert told in said(page("compare", runs=f"{A},{B}"))


def test_equal_runs_are_at_no_layer_apart(root: Path, page: Open) -> None:
    two(root, b=DOCS)
    text = said(page("compare", runs=f"{A},{B}"))
    assert "No difference at acc: A 66.7 %, B 66.7 % on the 12 documents in both" in text
    assert "No pair differs" in text
    assert "is at no layer clearly apart" in text


def test_large_runs_of_the_same_documents_take_the_summary_until_asked(
    root: Path, page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    two(root, b=DOCS, shift=-0.6)
    monkeypatch.setattr(depth, "READ", 10)
    test = page("compare", runs=f"{A},{B}")
    assert "of each run's own documents (A 12, B 12)" in said(test)
    test.toggle(key="url:paired").set_value(True).run()
    assert parameters(test)["paired"] == "1"
    assert "of the 12 documents in all runs" in said(test)


def test_an_unfinished_run_has_no_scores_but_curves(root: Path, page: Open) -> None:
    two(root, finished=False)
    test = page("compare", runs=f"{A},{B}")
    assert "No scores yet: B is not finished" in said(test)
    assert test.get("plotly_chart")
    assert "of each run's own documents (A 12, B 11)" in said(test)


def test_runs_graded_under_no_filter_in_common_say_so(root: Path, page: Open) -> None:
    two(root, filters=("strict",))
    assert "No scores yet: the runs were graded under no filter in common" in said(page("compare", runs=f"{A},{B}"))


@pytest.mark.parametrize(
    ("signals", "told", "curves"),
    [
        ((), "There are no curves to overlay: B recorded no layers", None),
        (("similarity",), "B recorded no layers", {"Residual norm", "Cosine to next layer", "Cosine to last layer"}),
        (("logit_lens",), "need --signals similarity", None),
    ],
)
def test_a_run_without_a_signal_says_which_flag_records_it(
    signals: tuple[str, ...], told: str, curves: set[str] | None, root: Path, page: Open
) -> None:
    two(root, b=DOCS, signals=signals)
    test = page("compare", runs=f"{A},{B}")
    assert told in said(test)
    assert "--signals" in said(test)
    if curves:
        assert set(test.selectbox(key="url:curve").options) == curves


def test_similarity_curves_are_overlaid(root: Path, page: Open) -> None:
    two(root)
    for curve in ("cos_last", "cos_next", "norm"):
        test = page("compare", runs=f"{A},{B}", curve=curve)
        lines = [trace for trace in figures(test)[0]["data"] if trace["mode"] == "lines+markers"]
        assert len(lines) == 2
        assert not test.warning


def test_every_run_is_compared_with_the_first(root: Path, page: Open) -> None:
    two(root)
    comparable.write(root, C, DOCS, Made("third", shift=-1.0))
    test = page("compare", runs=f"{A},{B},{C}", vs=C)
    text = said(test)
    assert "8 in A and B, 4 only in A, 3 only in B. 12 in A and C" in text
    assert "B is at no layer clearly apart from A" in text
    assert "C is below A in layers 3 to 4" in text
    assert "One document in A and C" in text
    assert "of the 8 documents in all runs" in text
    assert {link["vs"] for link in links(test, "documents")} == {B, C}
    names = {trace["name"] for trace in figures(test)[0]["data"] if trace["mode"] == "lines+markers"}
    assert names == {"A · first", "B · second", "C · third"}


def test_several_filters_are_chosen_among_those_in_common(root: Path, page: Open) -> None:
    comparable.write(root, A, DOCS, Made(filters=("flexible", "strict", "own")))
    comparable.write(root, B, DOCS, Made(filters=("flexible", "strict")))
    test = page("compare", runs=f"{A},{B}", filter="strict")
    assert test.selectbox(key="url:filter").options == ["flexible", "strict"]
    assert "on the 12 documents in both" in said(test)


def test_ungraded_documents_have_no_table_of_right_and_wrong(root: Path, page: Open) -> None:
    a, b = ([Doc(f"q{at}", None, {"f1": at / (8 + more)}) for at in range(6)] for more in range(2))
    two(root, a, b)
    test = page("compare", runs=f"{A},{B}")
    assert "grades no document of this task as right or wrong" in said(test)
    assert "at f1:" in said(test)
    assert not test.exception


def test_names_of_runs_are_told_apart_and_are_not_markup(root: Path, page: Open) -> None:
    name = "$5 and $6 [a] <b> :smile:"
    for run_id in (A, B):
        comparable.write(root, run_id, DOCS, Made(name))
    test = page("compare", runs=f"{A},{B}")
    assert not test.exception
    assert test.multiselect[0].options == [f"{name} (bbbbbb)", f"{name} (aaaaaa)"]
    assert "&lt;b&gt;" in words(test)
