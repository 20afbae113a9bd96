"""The Lens page: what it shows of a run, and that the URL is all it remembers."""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from streamlit.testing.v1 import AppTest

import recorder
from dashboard import pickers, tokens
from dashboard.charts.pins import FLOOR
from dashboard.queries import lens
from dashboard.state import LOOK_AGAIN
from recorder.store import transcript
from tests.dashboard import synthetic
from tests.dashboard.conftest import GOOD, OTHER, ROOTS, Open, parameters, words
from tests.dashboard.synthetic import LAYERS, Spec


def figure(test: AppTest, kind: str = "map") -> dict:
    """The heatmap (map), the pinned tokens' lines (pins), or the strip over all steps (strip)."""
    for element in test.get("plotly_chart"):
        made = json.loads(element.proto.spec)
        first = made["data"][0]
        found = "pins" if first["type"] == "scatter" else "strip" if first.get("showscale") is False else "map"
        if found == kind:
            return made
    raise AssertionError(f"no {kind} among {len(test.get('plotly_chart'))} charts")


def numbers(values: list | dict) -> list[float]:
    """A trace's values; Plotly packs arrays."""
    if isinstance(values, dict):
        packed = np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"])
        return packed.reshape([int(n) for n in str(values.get("shape", len(packed))).split(",")]).tolist()
    return values


def signals(root: Path, **where: object) -> pd.DataFrame:
    """Rows of signals.parquet, read by pandas."""
    frame = pd.read_parquet(root / GOOD / "tables" / "signals.parquet")
    for name, value in {"task": "facts", "doc_id": 0, "choice": 1, "repeat": 0, **where}.items():
        frame = frame[frame[name] == value]
    return frame.sort_values(["step", "layer"]).reset_index(drop=True)


def rewrite(root: Path, change: Callable[[pd.DataFrame], pd.DataFrame], table: str = "signals") -> None:
    """Change a table of the run on disk, its schema kept."""
    path = root / GOOD / "tables" / f"{table}.parquet"
    before = pq.read_table(path)
    after = change(before.to_pandas())
    pq.write_table(pa.Table.from_pandas(after, schema=before.schema, preserve_index=False), path)


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
        ({"label": "x", "scale": "y", "clip": "z", "sinks": "?", "follow": "w"}, "showing label token"),
        ({"low": 9, "high": -1, "stride": 3}, "showing lowest layer 4"),
        ({"low": 3, "high": 1}, "showing highest layer 3"),
        ({"from": 77}, "showing first step 0"),
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
    assert "Steps 32 to 47 of -4 to 59" in said(test)
    test.button(key="page:1").click().run()
    assert parameters(test) == {"step": "52", "from": "44"}
    assert test.button(key="page:1").disabled
    test = page("lens", step=1, **{"from": -4})
    assert figure(test)["layout"]["xaxis"]["ticktext"][0].startswith("-4<br>")
    assert test.button(key="page:-1").disabled


def test_the_strip_holds_every_step_and_frames_the_window(root: Path, page: Open) -> None:
    synthetic.write(root, Spec(GOOD, steps=600, prompt_steps=4, tasks=("write",)))
    strip = figure(page("lens", step=300), "strip")
    assert len(strip["data"][1]["customdata"]) == 302
    frame = next(shape for shape in strip["layout"]["shapes"] if shape["type"] == "rect")
    assert (frame["x0"], frame["x1"]) == (287.5, 303.5)


def test_few_steps_have_no_strip(root: Path, page: Open) -> None:
    synthetic.write(root, Spec(GOOD, steps=12, prompt_steps=4, tasks=("write",)))
    with pytest.raises(AssertionError, match="no strip"):
        figure(page("lens"), "strip")


def test_prompt_positions_that_were_not_recorded_are_said_to_be_missing(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    assert "--positions all" in said(page("lens"))
    shutil.rmtree(root / GOOD)
    synthetic.write(root, Spec(GOOD, prompt_steps=4))
    time.sleep(LOOK_AGAIN)
    assert "--positions all" not in said(page("lens"))


def test_default_pins_are_the_winners_of_the_file_and_the_target(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    test = page("lens", step=1, layer=2)
    rows = signals(root, step=1)
    target = int(
        pd.read_parquet(root / GOOD / "tables" / "steps.parquet")
        .query("task == 'facts' and doc_id == 0 and choice == 1 and step == 1")["token_id"]
        .iloc[0]
    )
    winners = {int(ids[0]) for ids in rows["top_ids"]}
    assert winners - set(rows["top_ids"].iloc[-1])  # some win in the middle only
    assert set(test.multiselect(key="url:pins").value) == winners | {target}
    assert "pins" not in parameters(test)


@pytest.mark.parametrize("way", ["prob", "rank"])
def test_pinned_tokens_are_drawn_as_the_file_has_them(root: Path, page: Open, way: str) -> None:
    ROOTS["good"](root)
    rows = signals(root, step=1)
    other = int(rows["top_ids"][2][1])
    target = int(rows["top_ids"].iloc[-1][0])
    lines = figure(page("lens", step=1, pins=f"{other},{target},{other}", follow=way), "pins")["data"]
    assert len(lines) == 2
    exact = np.exp(rows["target_logprob"]).clip(lower=FLOOR) if way == "prob" else rows["target_rank"] + 1
    assert numbers(lines[0]["y"]) == pytest.approx(exact.tolist())
    held = [list(ids).index(other) if other in ids else None for ids in rows["top_ids"]]
    stored = [
        None if at is None else float(probs[at]) if way == "prob" else at + 1
        for at, probs in zip(held, rows["top_probs"], strict=True)
    ]
    assert None in stored
    assert [y if y is None else pytest.approx(y) for y in numbers(lines[1]["y"])] == stored


def test_pins_are_chosen_and_reset(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    test = page("lens", step=1, layer=2)
    pinned = test.multiselect(key="url:pins")
    default = list(pinned.value)
    pinned.set_value(default[:2]).run()
    assert parameters(test)["pins"] == ",".join(map(str, default[:2]))
    test.multiselect(key="url:pins").set_value([]).run()
    assert parameters(test)["pins"] == "none"
    assert "No token is pinned" in said(test)
    test.button(key="pins:default").click().run()
    assert "pins" not in parameters(test)
    assert set(test.multiselect(key="url:pins").value) == set(default)
    test.multiselect(key="url:pins").set_value(default[1:]).run()
    test.multiselect(key="url:pins").set_value(default[::-1]).run()
    assert "pins" not in parameters(test)  # the default ones, in any order


def test_another_document_has_its_own_pins_and_another_step_keeps_them(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    test = page("lens", doc=0, pins="100,999", layer=2)
    test.selectbox(key="url:choice").set_value(2).run()
    assert parameters(test)["pins"] == "100,999"
    test.button(key="step:The next document").click().run()
    assert parameters(test) == {"doc": "1"}


@pytest.mark.parametrize(
    ("pins", "shown"),
    [
        ("999999", "At no layer of this step: id 999999"),
        ("x,-3", "This link pins x, -3"),
        ("1e9,12345678901", "This link pins 1e9, 12345678901"),
        (",,", "No token is pinned"),
        ("none", "No token is pinned"),
        (",".join(map(str, range(500, 560))), "24 of 60 pins are drawn"),
        (",".join(map(str, range(3000))), "This link pins 3,000 tokens: only 100 are kept"),
    ],
)
def test_pins_that_cannot_be_drawn_are_named(root: Path, page: Open, pins: str, shown: str) -> None:
    ROOTS["good"](root)
    test = page("lens", pins=pins)
    assert not test.exception
    assert shown in said(test)
    assert figure(test)


def test_a_pin_from_elsewhere_has_its_text(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    steps = pd.read_parquet(root / GOOD / "tables" / "steps.parquet").query(
        "task == 'facts' and doc_id == 0 and choice == 1"
    )
    token, text = steps.iloc[-1][["token_id", "text"]]
    test = page("lens", step=0, pins=int(token))
    assert tokens.show_plotly(text) in figure(test, "pins")["data"][0]["name"]


@pytest.mark.parametrize(("clip", "ends"), [("off", [0, 100]), ("on", [2, 98])])
@pytest.mark.parametrize("sinks", ["out", "in"])
def test_the_range_of_this_view_is_numpys(root: Path, page: Open, clip: str, ends: list[int], sinks: str) -> None:
    synthetic.write(root, Spec(GOOD, steps=6))
    rng = np.random.default_rng(3)

    def swamp(frame: pd.DataFrame) -> pd.DataFrame:
        norm = rng.lognormal(2, 1, len(frame)).astype(np.float32)
        return frame.assign(norm=np.where(frame["step"] == 0, 1000 * norm, norm))

    rewrite(root, swamp)  # step 0 of document 0 is flagged as an outlier
    test = page("lens", stat="norm", scale="view", clip=clip, sinks=sinks)
    rows = signals(root)
    kept = rows if sinks == "in" else rows[rows["step"] != 0]
    low, high = np.percentile(kept["norm"].astype(float), ends)
    place = (np.log10(rows["norm"].astype(float) + 1) - np.log10(low + 1)) / (np.log10(high + 1) - np.log10(low + 1))
    drawn = np.array(numbers(figure(test)["data"][0]["z"]))
    assert drawn.T.ravel() == pytest.approx(np.clip(place, 0, 1).to_numpy(), abs=1e-6)
    assert ("1 sink step left out" in said(test)) == (sinks == "out")
    assert ("2nd to 98th percentile" in said(test)) == (clip == "on")


def test_the_first_position_is_a_sink_without_similarity(root: Path, page: Open) -> None:
    synthetic.write(root, Spec(GOOD, prompt_steps=4, signals=("logit_lens",)))
    assert "1 sink step left out" in said(page("lens", scale="view"))
    assert "sink" not in said(page("lens", scale="fixed"))


def test_a_stride_and_a_range_keep_the_last_layer_and_the_picked_cell(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    test = page("lens", layer=3, stride=2, high=3)
    assert figure(test)["layout"]["yaxis"]["ticktext"] == ["1", "3"]
    assert "2 of 5 layers" in said(test)
    test.slider(key="url:layers").set_value((1, 4)).run()
    assert parameters(test) == {"stride": "2", "low": "1", "high": "4"}
    assert figure(test)["layout"]["yaxis"]["ticktext"] == ["2", "4"]
    assert "Layer 4 of 4, step 0" in said(test)
    assert "showing layer" in said(page("lens", layer=3, stride=2))
    assert len(figure(page("lens", stride=8, low=4, high=2), "pins")["data"][0]["x"]) == LAYERS


@pytest.mark.parametrize(("label", "shown"), [("rank", "1.23k"), ("value", "0.17"), ("token", "⁨⏎⁩")])
def test_the_label_is_chosen_apart_from_the_colour(root: Path, page: Open, label: str, shown: str) -> None:
    ROOTS["good"](root)
    traces = figure(page("lens", label=label))["data"]
    assert any(shown in trace.get("text", []) for trace in traces if trace.get("mode") == "text")


def test_the_page_sends_no_top_k_of_cells_that_nobody_asked_for(root: Path, page: Open) -> None:
    synthetic.write(root, Spec(GOOD, steps=600, tasks=("write",)))
    test = page("lens", step=300)
    assert sum(len(element.proto.spec) for element in test.get("plotly_chart")) < 150_000


def thin(frame: pd.DataFrame) -> pd.DataFrame:
    """k = 1, two layers."""
    frame = frame[frame["layer"].isin([0, 1])]
    lists = ("top_ids", "top_tokens", "top_probs")
    return frame.assign(**{name: [values[:1] for values in frame[name]] for name in lists})


def nothing_finite(frame: pd.DataFrame) -> pd.DataFrame:
    columns = ["entropy", "kl_final", "target_logprob", "norm", "cos_next"]
    probs = [np.full(len(values), np.nan, np.float32) for values in frame["top_probs"]]
    return frame.assign(**dict.fromkeys(columns, np.float32(np.nan)), top_probs=probs, target_rank=None)


def one_layer(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["layer"] == 0]


@pytest.mark.parametrize("change", [thin, nothing_finite, one_layer])
@pytest.mark.parametrize(("stat", "scale", "label"), [("rank", "fixed", "token"), ("cos", "view", "value")])
def test_thin_and_broken_layers_are_drawn(
    root: Path, page: Open, change: Callable[[pd.DataFrame], pd.DataFrame], stat: str, scale: str, label: str
) -> None:
    synthetic.write(root, Spec(GOOD, steps=1))
    rewrite(root, change)
    test = page("lens", stat=stat, scale=scale, clip="on", follow="rank", label=label)
    assert not test.exception
    assert not test.error
    drawn = figure(test)["data"]
    if change is nothing_finite:
        assert f"{LAYERS - (stat == 'cos')} cells are gaps" in said(test)
        assert f"{LAYERS} of {LAYERS} layers are not finite" in said(test)
        assert "no most likely token" in said(test)
        assert next(trace for trace in drawn if trace.get("mode") == "text")["text"] == ["–"] * LAYERS


def test_the_list_of_documents_reads_no_prompt_of_a_request(root: Path) -> None:
    ROOTS["good"](root)
    store = recorder.open(root)
    with transcript() as asked:
        listed = lens.documents(store.select(GOOD), "facts")
    assert not any("input_tokens" in query or "requests" in query for query in asked)
    assert [pickers.document_label(*row) for row in listed.itertuples(index=False)] == [
        "0 · right · w10",
        "1 · wrong · w11",
        "2 · right · w12",
    ]


def test_awkward_names_of_runs_do_not_become_markup(root: Path, page: Open) -> None:
    synthetic.write(root, Spec(GOOD, name="$5 and $6 [a] [b] :smile: <b>", model="m" * 300))
    assert not page("lens").exception
    assert any(r"\$5 and \$6 \[a\] \[b\] \:" in item.value for item in page("runs", run=GOOD).markdown)
