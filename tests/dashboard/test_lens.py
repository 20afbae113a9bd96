"""The Lens page: what it shows of a run, and that the URL is all it remembers."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.state import LOOK_AGAIN
from tests.dashboard import synthetic
from tests.dashboard.conftest import GOOD, OTHER, ROOTS, Open, parameters, words
from tests.dashboard.synthetic import LAYERS, Spec


def figure(test: AppTest) -> dict:
    return json.loads(test.get("plotly_chart")[0].proto.spec)


def said(test: AppTest) -> str:
    return words(test).replace("\\", "")


def test_it_opens_on_the_gold_choice_and_the_last_layer(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    test = page("lens")
    assert test.selectbox(key="url:choice").value == 1
    assert f"Layer {LAYERS - 1} of {LAYERS - 1}, step 0" in said(test)
    assert "target" in said(test)


def test_the_url_says_it_all(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    test = page("lens", run=GOOD, task="write", doc=2, repeat=1, stat="rank", step=3, layer=2)
    assert "Layer 2 of 4, step 3" in said(test)
    assert test.selectbox(key="url:repeat").value == 1
    assert figure(test)["data"][0]["colorbar"]["title"]["text"] == "Target rank"
    assert not test.warning or "dropped" in test.warning[0].value


def test_a_widget_writes_the_url_and_forgets_what_hung_on_it(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    test = page("lens", run=GOOD, task="facts", doc=0, choice=2, step=1, layer=2, stat="kl")
    test.selectbox(key="url:doc").set_value(1).run()
    assert parameters(test) == {"run": GOOD, "task": "facts", "doc": "1", "stat": "kl"}


def test_the_next_button_goes_to_the_next_document(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    test = page("lens", run=GOOD, doc=1)
    test.button(key="step:The next document").click().run()
    assert parameters(test)["doc"] == "2"
    assert test.button(key="step:The next document").disabled


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        ({"run": "gone"}, "run gone"),
        ({"task": "nope"}, "showing task facts"),
        ({"doc": 99}, "showing document 2"),
        ({"doc": "x"}, "showing document 0"),
        ({"choice": 9}, "showing choice 2"),
        ({"step": -5}, "showing step 0"),
        ({"layer": 77}, "showing layer 4"),
        ({"stat": "<b>"}, "showing statistic top1"),
    ],
)
def test_a_stale_link_gives_a_message_and_the_nearest_view(
    root: Path, page: Open, params: dict[str, object], shown: str
) -> None:
    ROOTS["good"](root)
    test = page("lens", **params)
    assert shown in said(test)
    assert test.get("plotly_chart")


def test_a_broken_run_in_the_link_is_named_and_another_shown(root: Path, page: Open) -> None:
    ROOTS["truncated"](root)
    test = page("lens", run=OTHER)
    assert f"The run {OTHER} cannot be shown" in said(test)
    assert test.get("plotly_chart")


def test_a_run_deleted_while_open_is_named_and_another_shown(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    synthetic.write(root, Spec(OTHER))
    test = page("lens", run=OTHER)
    shutil.rmtree(root / OTHER)
    assert not test.run().exception  # the list of runs is still the one from before
    time.sleep(LOOK_AGAIN)
    test.run()
    assert f"run {OTHER}, which is not here" in said(test)
    assert test.get("plotly_chart")


def test_a_rotten_run_is_named(root: Path, page: Open) -> None:
    ROOTS["rotten"](root)
    assert f"The run {OTHER} cannot be read" in said(page("lens", run=OTHER))


def test_a_run_without_layers_says_which_flag_records_them(root: Path, page: Open) -> None:
    ROOTS["no_signals"](root)
    test = page("lens")
    assert "--signals logit_lens" in said(test)
    assert not test.get("plotly_chart")


def test_an_unfinished_run_shows_the_choice_that_leads_so_far(root: Path, page: Open) -> None:
    ROOTS["live"](root)
    test = page("lens", task="facts", doc=1)
    assert test.selectbox(key="url:choice").options[0].endswith("chosen")
    assert "Not graded" in said(test)


def test_a_run_that_wrote_nothing_yet_says_so(root: Path, page: Open) -> None:
    ROOTS["begun"](root)
    assert "has recorded no requests" in said(page("lens"))


def test_a_generation_shows_its_text_and_why_it_ended(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    test = page("lens", task="write")
    assert "Stop reason" in said(test)
    assert "length" in said(test)
    assert test.selectbox(key="url:repeat").options == ["0", "1"]


def test_layer_0_is_said_to_be_no_prediction(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    assert "this is no prediction" in said(page("lens", layer=0))


def test_nan_is_a_gap_with_a_count(root: Path, page: Open) -> None:
    synthetic.write(root, Spec(GOOD, steps=3, nan_layer=2))
    test = page("lens", stat="entropy")
    assert "3 cells are gaps" in said(test)
    assert "not finite" in said(page("lens", stat="entropy", layer=2))


def test_many_steps_are_windowed_around_the_picked_one(root: Path, page: Open) -> None:
    synthetic.write(root, Spec(GOOD, steps=60, prompt_steps=4, tasks=("write",)))
    test = page("lens", step=40)
    assert "Steps 32 to 47 of -4 to 59" in test.slider(key="url:from").label
    test.slider(key="url:from").set_value(-4).run()
    assert parameters(test)["from"] == "-4"
    assert figure(test)["layout"]["xaxis"]["ticktext"][0].startswith("-4<br>")


def test_awkward_names_of_runs_do_not_become_markup(root: Path, page: Open) -> None:
    synthetic.write(root, Spec(GOOD, name="$5 and $6 [a] [b] :smile: <b>", model="m" * 300))
    assert not page("lens").exception
    assert r"\$5 and \$6 \[a\] \[b\] \:" in page("runs", run=GOOD).markdown[-1].value
