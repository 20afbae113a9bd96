"""The Overview page: its numbers are those of the files, and each aggregate leads to the documents behind it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from streamlit.testing.v1 import AppTest

import recorder
from dashboard import state
from dashboard.charts import overview as charts
from dashboard.queries import documents
from dashboard.queries import overview as asked
from recorder.command import command
from recorder.config import make_config
from recorder.looking import find_runs, open_run
from recorder.rundir import Run
from tests.conftest import REPO
from tests.dashboard import synthetic
from tests.dashboard.conftest import GOOD, ROOTS, Open, words
from tests.dashboard.synthetic import Spec

SAMPLES = {path.name: open_run(path) for path in find_runs(REPO / "sample_runs")}
TASKS = [(name, task) for name, run in SAMPLES.items() for task in run.about["tasks"]]
KEY = ["task", "doc_id", "choice", "repeat"]
GROUPS = {"all": None, "correct": True, "incorrect": False}


@pytest.fixture
def samples(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages look at the sample runs."""
    monkeypatch.setenv(state.ROOTS, str(REPO / "sample_runs"))


def said(test: AppTest) -> str:
    return words(test).replace("\\\\", "")


def figure(test: AppTest, at: int = 0) -> dict[str, Any]:
    return json.loads(test.get("plotly_chart")[at].proto.spec)


def links(test: AppTest) -> dict[str, dict[str, str]]:
    """{label: parameters} of the links to Documents, as a page without the app around it draws them."""
    found = re.findall(r"\[([^\]]*)\]\(documents\?([^)]*)\)", "\n".join(each.value for each in test.markdown))
    return {label: dict(parse_qsl(query)) for label, query in found}


def steps_of(run: Run, task: str, group: str = "all") -> pd.DataFrame:
    """Steps averaged, straight from the files: the gold choice of each document, else all its requests."""
    tables = run.path / "tables"
    requests, docs, steps = (pd.read_parquet(tables / f"{name}.parquet") for name in ("requests", "docs", "steps"))
    requests = requests[requests["task"] == task]
    gold = requests[requests["is_gold"].fillna(False).astype(bool)]
    wanted = pd.concat([gold, requests[~requests["doc_id"].isin(gold["doc_id"])]])[KEY]
    grades = docs[docs["task"] == task].sort_values("filter").groupby("doc_id")["correct"].first()
    found = steps[steps["step"] >= 0].merge(wanted, on=KEY)
    if GROUPS[group] is not None:
        found = found[found["doc_id"].map(grades).isin([GROUPS[group]])]
    return found


def signals_of(run: Run, task: str, group: str) -> pd.DataFrame:
    signals = pd.read_parquet(run.path / "tables" / "signals.parquet")
    found = signals.merge(steps_of(run, task, group)[[*KEY, "step", "settle_layer"]], on=[*KEY, "step"])
    last = found[found["layer"] == found["layer"].max()].set_index([*KEY, "step"])["top_ids"].str[0].rename("last_top")
    found = found.join(last, on=[*KEY, "step"])
    found["top1_prob"] = found["top_probs"].str[0].astype(float)
    found["top1_is_final"] = (found["top_ids"].str[0] == found["last_top"]).astype(float)
    return found


def clustered(rows: pd.DataFrame, name: str) -> tuple[float, float]:
    """(mean, half the 95 % interval), errors clustered by document: the formula, plainly."""
    values = rows[name].to_numpy(float)
    mean, documents = values.mean(), rows["doc_id"].unique()
    if len(documents) < 2:
        return mean, np.nan
    residuals = [(values[(rows["doc_id"] == doc).to_numpy()] - mean).sum() for doc in documents]
    error = np.sqrt(len(documents) / (len(documents) - 1) * np.square(residuals).sum()) / len(values)
    return mean, error * stats.t.ppf(0.975, len(documents) - 1)


def close(found: Any, expected: Any) -> bool:
    numbers = [np.array([np.nan if value is None else value for value in each], float) for each in (found, expected)]
    return np.allclose(*numbers, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize(("name", "task"), TASKS)
def test_curves_and_settle_layers_are_those_of_the_files(name: str, task: str, samples: None, page: Open) -> None:
    test = page("overview", run=name, task=task)
    _settle_layers(SAMPLES[name], task, figure(test, 1)["data"][::2])
    assert not test.exception
    groups = [label.split(":")[0].lower() for label in links(test) if label.split(":")[0].lower() in GROUPS]
    drawn = figure(test)["data"]
    lines = [trace for trace in drawn if trace.get("mode") == "lines+markers"]
    bands = [trace for trace in drawn if trace.get("fill") == "toself"]
    assert len(lines) == len(groups) * len(charts.PANELS)
    assert len(bands) == len(groups) * (len(charts.PANELS) - 1)  # a rate has no quartiles
    for group in groups:
        by_layer = signals_of(SAMPLES[name], task, group).groupby("layer")
        for panel in charts.PANELS:
            at = charts.PANELS.index(panel) * len(groups) + groups.index(group)
            assert lines[at]["name"].lower().startswith(group)
            assert close(lines[at]["y"], by_layer[panel.name].mean())
            if not panel.rate:
                low, high = (by_layer[panel.name].quantile(part) for part in (0.25, 0.75))
                assert close(bands[at]["y"], [*high, *reversed(low.tolist())])


def _settle_layers(run: Run, task: str, bars: list[dict[str, Any]]) -> None:
    for trace in bars:
        settled = steps_of(run, task, trace["customdata"][0][0])["settle_layer"]
        counts = settled.value_counts().reindex(trace["x"], fill_value=0)
        assert close(trace["y"], counts / len(settled))
        for count, text in zip(counts, trace["hovertext"], strict=True):
            assert f"{count:,} of {len(settled):,} steps" in text


@pytest.mark.parametrize(("name", "task"), [each for each in TASKS if each[1] in ("ls_tiny_choice", "prompts_choices")])
def test_the_interval_is_clustered_by_document(name: str, task: str, samples: None, page: Open) -> None:
    test = page("overview", run=name, task=task, band="ci")
    bands = iter([trace for trace in figure(test)["data"] if trace.get("fill") == "toself"])
    groups = [label.split(":")[0].lower() for label in links(test) if label.split(":")[0].lower() in GROUPS]
    for panel in charts.PANELS:
        for group in groups:
            layers = [rows for _, rows in signals_of(SAMPLES[name], task, group).groupby("layer")]
            ends = np.array([clustered(rows, panel.name) for rows in layers])
            if np.isnan(ends).any():
                continue  # one document: nothing is drawn
            low, high = ends[:, 0] - ends[:, 1], ends[:, 0] + ends[:, 1]
            assert close(next(bands)["y"], [*high, *low[::-1]])
    assert next(bands, None) is None
    assert "95 % CI of the mean" in charts.BANDS["ci"].label
    assert "clustered by document" in said(test)


@pytest.mark.parametrize(
    ("name", "task"), [each for each in TASKS if each[1] in ("ls_tiny_choice", "prompts_generate")]
)
def test_each_group_leads_to_its_documents(name: str, task: str, samples: None, page: Open) -> None:
    found = {label: to for label, to in links(page("overview", run=name, task=task)).items() if to["task"] == task}
    assert found
    for label, parameters in found.items():
        group, documents, steps = re.fullmatch(r"(\w+): ([\d,]+) documents?, ([\d,]+) steps?", label).groups()
        assert int(steps.replace(",", "")) == len(steps_of(SAMPLES[name], task, group.lower()))
        assert f"of **{documents}** document" in said(page("documents", **parameters))


@pytest.mark.parametrize(("name", "task"), TASKS)
def test_each_bar_leads_to_its_documents(name: str, task: str) -> None:
    """What a click on a bar asks for: documents with such a step, as the steps table has them."""
    store = recorder.open(SAMPLES[name].path).select(name)
    filter = asked.filters(store, task)["filter"][0]
    for group, correct in {"all": "", "correct": "right", "incorrect": "wrong"}.items():
        steps = steps_of(SAMPLES[name], task, group)
        for layer in range(SAMPLES[name].about["architecture"]["layers"] + 1):
            wanted = documents.Wanted(name, task, filter, correct=correct, settle=(layer, layer))
            expected = steps.loc[steps["settle_layer"] == layer, "doc_id"].nunique()
            assert documents.count(store, wanted)["matching"].tolist() == [expected]


@pytest.mark.parametrize("name", SAMPLES)
def test_scores_are_the_harness_s_and_the_command_makes_them_again(name: str, samples: None, page: Open) -> None:
    results = json.loads((SAMPLES[name].path / "results.json").read_text())
    test = page("overview", run=name)
    said_again = [code.value for code in test.code if code.language == "bash"]
    assert said_again == [command(make_config(**SAMPLES[name].about["config"]))]
    shown = test.dataframe[0].value
    assert len(shown)
    for row in shown.to_dict("records"):
        metrics = results["results"][row["task"]]
        assert row["value"] == metrics[f"{row['metric']},{row['filter']}"]
        error = metrics[f"{row['metric']}_stderr,{row['filter']}"]
        assert row["stderr"] == error if error != "N/A" else np.isnan(row["stderr"])
        assert row["n"] == results["n-samples"][row["task"]]["effective"]
        assert row["open"] == f"documents?run={name}&task={row['task']}&filter={row['filter']}"
        assert row["arrow"] == "↑"


def test_the_checks_are_told_with_their_figures(samples: None, page: Open) -> None:
    run = next(run for run in SAMPLES.values() if run.about["config"]["tasks"] == ["ls_all_tiny"])
    check = run.about["proof"]["score_check"]
    text = said(page("overview", run=run.run_id))
    assert f"largest difference {check['largest_difference']:.1e}".replace("e-0", "e-") in text
    assert f"nat over {check['requests']} requests, allowed 1e-4 nat" in text
    assert "allowed 1e-4)" in text
    assert "192 requests have no BOS token (id 1); this tokenizer adds none." in text
    assert "No prompt was truncated." in text


def about(**warned: int) -> dict[str, Any]:
    return {"warnings": {"truncated": 0, "without_bos": 0, "several_bos": 0, "nonfinite_steps": 0} | warned}


@pytest.mark.parametrize(
    ("found", "kind", "text"),
    [
        ({**about(truncated=1), "max_length": 2048}, "warning", "1 request lost the start of their prompt"),
        (
            {**about(several_bos=3), "tokenizer": {"bos": 7}},
            "warning",
            "3 requests hold the BOS token (id 7) more than",
        ),
        (
            {**about(without_bos=3), "tokenizer": {"bos": 7, "adds_bos": True}},
            "warning",
            "3 requests have no BOS token",
        ),
        ({**about(without_bos=3), "tokenizer": {"bos": 7, "adds_bos": False}}, "info", "this tokenizer adds none"),
        ({**about(without_bos=3), "tokenizer": {"bos": None}}, "info", "The tokenizer has no BOS token."),
        ({**about(), "tokenizer": {"bos": 0}}, "good", "Every request has one BOS token."),
        (about(nonfinite_steps=1234), "warning", "1,234 recorded steps have a log-probability that is not finite"),
        ({"proof": {"score_check": {"requests": 0}}}, "info", "generations have no log-likelihood"),
        ({"proof": [], "warnings": "odd"}, "info", "Lens check: made when the model is loaded."),
        ({"proof": {"lens_check": {"last_layer": None, "tolerance": "x"}}}, "info", "Lens check: made when"),
    ],
)
def test_what_there_is_to_know(found: dict[str, Any], kind: str, text: str) -> None:
    told = asked.findings(Run(Path("x"), found))
    assert [finding.kind for finding in told if text in finding.text] == [kind]


def test_truncated_documents_are_counted_and_led_to(root: Path, page: Open) -> None:
    synthetic.write(root, Spec(GOOD, about={**about(truncated=5), "max_length": 512}))
    test = page("overview")
    assert "5 requests lost the start of their prompt" in said(test)
    parameters = links(test)["1 such document of facts"]
    assert "of **1** document that matches, of 3." in said(page("documents", **parameters))


def test_scores_of_groups_and_odd_results() -> None:
    results = {
        "results": {
            "top": {"alias": "top", "acc,none": 0.5, "acc_stderr,none": 0.1},
            "a": {"acc,none": 0.25, "acc_stderr,none": "N/A", "sample_len": 3, "bypass,none": 999},
            "b": {"word_perplexity,none": 12, "flag,none": True, "odd,none": "x"},
            "c": ["not", "a", "mapping"],
        },
        "group_subtasks": {"top": ["inner", "b"], "inner": ["a", "inner"], "empty": []},
        "n-samples": {"a": {"original": 9, "effective": 3}, "b": {"effective": 4}, "c": None},
        "higher_is_better": {"a": {"acc": True}, "b": {"word_perplexity": False}, "top": {"acc": None}},
    }
    found = asked.scores(results)
    assert found["task"].tolist() == ["top", "a", "b"]
    assert found["value"].tolist() == [0.5, 0.25, 12.0]
    assert found["n"].tolist() == [7, 3, 4]
    assert found["better"].tolist() == ["", "higher", "lower"]
    assert found["stderr"].isna().tolist() == [False, True, True]
    assert list(asked.scores({"results": "nonsense"}).columns) == list(asked.SCORES)


def test_layer_0_leaves_the_others_room() -> None:
    rows = pd.DataFrame({"layer": [0, 1, 2], "entropy_mean": [900.0, 2.0, 1.0], "n_docs": 2})
    group = charts.Group("all", "All", rows)
    low, high, off = charts.fitted([group], charts.PANELS[2], charts.BANDS["none"])
    assert (off, high < 3, low > 0) == ("all 900", True, True)
    near = charts.Group("all", "All", rows.assign(entropy_mean=[2.5, 2.0, 1.0]))
    low, high, off = charts.fitted([near], charts.PANELS[2], charts.BANDS["none"])
    assert (off, low < 1, high > 2.5) == ("", True, True)
    nothing = charts.Group("all", "All", rows.assign(entropy_mean=np.nan))
    assert charts.fitted([nothing], charts.PANELS[2], charts.BANDS["none"])[2] == ""


@pytest.mark.parametrize("last", [1, 4, 12, 24, 30, 32, 36, 80, 126])
def test_the_last_layer_is_always_named(last: int) -> None:
    shown = charts.layer_axis(last)["tickvals"]
    assert shown[0] == last
    assert len(shown) <= 13


def test_a_live_run_has_curves_and_no_scores(root: Path, page: Open) -> None:
    ROOTS["live"](root)
    test = page("overview")
    assert "This run is in progress (running). 3 of 6 documents are recorded." in said(test)
    assert "Not graded yet" in said(test)
    assert len(test.get("plotly_chart")) == 2
    assert [trace["name"] for trace in figure(test)["data"] if trace.get("name")] == ["All: 3 documents"] * 5
    assert close(figure(test)["data"][-1]["y"], [0, 0, 1 / 6, 1 / 3, 1])


def test_a_lost_run_is_told_how_to_go_on(root: Path, page: Open) -> None:
    ROOTS["lost"](root)
    test = page("overview")
    assert "ended before it was finished (lost)" in said(test)
    again, goes_on = (code.value for code in test.code if code.language == "bash")
    assert "--run" not in again
    assert goes_on == f"{again} \\\n  --run {GOOD}"


def test_a_run_that_wrote_nothing_still_says_what_it_is(root: Path, page: Open) -> None:
    ROOTS["begun"](root)
    text = said(page("overview"))
    assert "has recorded no requests" in text
    assert "/models/tiny" in text


def test_without_layers_the_flag_is_named(root: Path, page: Open) -> None:
    ROOTS["no_signals"](root)
    test = page("overview")
    assert "Record it again with --signals logit_lens" in said(test)
    assert not test.get("plotly_chart")
    assert "All: 3 documents, 6 steps" in links(test)


def test_values_that_are_not_finite_are_gaps_and_counted(root: Path, page: Open) -> None:
    synthetic.write(root, Spec(GOOD, nan_layer=2))
    test = page("overview")
    entropy = [trace for trace in figure(test)["data"] if trace.get("mode") == "lines+markers"][6]
    assert entropy["y"][2] is None
    assert "6 entropies of a step and layer are not finite" in said(test)


def test_a_stale_band_is_said(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    assert "This link names band x" in said(page("overview", band="x"))


def test_documents_without_steps_are_in_no_curve(root: Path, page: Open) -> None:
    """Two of three generations are empty: their documents are listed, and the legend counts the one that is drawn."""
    run = synthetic.write(root, Spec(GOOD, tasks=("write",), finished=False))
    for part in (run / "parts").iterdir():
        for table in ("steps", "signals", "similarity"):
            rows = pd.read_parquet(part / f"{table}.parquet")
            rows[rows["doc_id"] == 0].to_parquet(part / f"{table}.parquet", index=False)
    test = page("overview")
    assert "Without a step, and so in no curve: 2 documents." in said(test)
    assert figure(test)["data"][-1]["name"] == "All: 1 document"
    assert "All: 3 documents, 5 steps" in links(test)


def test_a_configuration_that_is_none_is_said(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    path = root / GOOD / "run.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "config": {"model": "m", "tasks": ["t"], "odd": "<b>$5 [a](b)"}}))
    text = said(page("overview"))
    assert "The command cannot be given" in text
    assert "&lt;b&gt;$5 [a](b)" in text


@pytest.mark.parametrize("odd", ["text", 7, {"a": [1]}])
def test_odd_json_breaks_nothing(odd: Any, root: Path, page: Open) -> None:
    ROOTS["good"](root)
    path = root / GOOD / "run.json"
    data = json.loads(path.read_text())
    names = ("proof", "warnings", "model", "tokenizer", "architecture", "environment", "attempts", "tasks", "signals")
    path.write_text(json.dumps({**data, **dict.fromkeys(names, odd)}))
    (root / GOOD / "results.json").write_text(json.dumps({"results": odd, "n-samples": odd, "group_subtasks": odd}))
    assert not page("overview").exception
    assert not page("documents", settle="1-2").exception


def test_several_filters_the_first_makes_the_groups(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    path = root / GOOD / "tables" / "docs.parquet"
    docs = pd.read_parquet(path)
    docs["filter"] = docs["filter"].astype(str)
    more = docs.assign(filter="strict", correct=~docs["correct"].astype(bool))
    pd.concat([docs, more]).to_parquet(path, index=False)
    parameters = links(page("overview"))["Correct: 2 documents, 6 steps"]
    assert parameters["filter"] == "none"
    assert "of **2** documents that match" in said(page("documents", **parameters))
    assert "of **1** document that matches" in said(page("documents", **{**parameters, "filter": "strict"}))


def test_a_run_deleted_meanwhile_is_a_sentence(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    assert not page("overview").exception
    shutil.rmtree(root / GOOD)
    test = page("overview", run=GOOD)
    assert not test.exception
