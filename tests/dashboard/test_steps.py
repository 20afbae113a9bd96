"""The Steps page: its numbers against the Parquet files, what it says of a step, and playing."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from streamlit.testing.v1 import AppTest

from dashboard import playing
from dashboard.charts import one_step, running_text, settling
from dashboard.charts.statistics import contrast
from dashboard.playing import Playing
from dashboard.queries import steps as asked
from recorder import store as stores
from recorder.looking import find_runs, open_run
from tests.dashboard import synthetic
from tests.dashboard.conftest import GOOD, ROOTS, Open, parameters, words
from tests.dashboard.synthetic import CONTINUES, LAYERS, Spec

SAMPLES = Path(__file__).parents[2] / "sample_runs"
KEY = ["task", "doc_id", "choice", "repeat"]


def said(test: AppTest) -> str:
    return words(test).replace("\\", "")


def figures(test: AppTest) -> list[dict]:
    return [json.loads(chart.proto.spec) for chart in test.get("plotly_chart")]


def made_column(tops: list[int], probs: list[float] | None = None) -> pd.DataFrame:
    count = len(tops)
    return pd.DataFrame(
        {
            "layer": range(count),
            "top_id": tops,
            "top_token": [f" t{top}" for top in tops],
            "top1_prob": probs or [0.5] * count,
            "target_prob": [0.1] * count,
            "target_rank": [3] * count,
            "kl_final": [1.0] * count,
        }
    )


def made_steps(logprobs: list[float], ranks: list[float], first: int = 0) -> pd.DataFrame:
    steps = range(first, first + len(logprobs))
    frame = pd.DataFrame({"step": steps, "logprob": logprobs, "entropy": 1.0, "rank": ranks, "settle_layer": 2})
    return frame.assign(text="x", continues=False, token_id=7)


# --- numbers


@pytest.mark.parametrize("path", list(find_runs(SAMPLES)), ids=lambda path: path.name[-6:])
def test_the_column_is_what_lies_on_disk(path: Path) -> None:
    signals = pq.read_table(path / "tables" / "signals.parquet").to_pandas()
    steps = pq.read_table(path / "tables" / "steps.parquet").to_pandas()
    key, found = next(iter(signals.groupby([*KEY, "step"], observed=True)))
    found = found.sort_values("layer")
    shown = asked.column(stores.open(path).select(path.name), key[0], *map(int, key[1:]))
    assert shown["layer"].tolist() == list(range(len(found)))
    assert shown["top_id"].tolist() == [top[0] for top in found["top_ids"]]
    np.testing.assert_allclose(shown["target_prob"], np.exp(found["target_logprob"].astype(float)), rtol=1e-5)
    np.testing.assert_allclose(shown["kl_final"], found["kl_final"])
    one = steps[(steps[[*KEY, "step"]] == list(key)).all(axis=1)].iloc[0]
    assert one_step.said(shown)[-1].first == one["settle_layer"]


@pytest.mark.parametrize("path", list(find_runs(SAMPLES)), ids=lambda path: path.name[-6:])
def test_totals_are_those_of_the_scored_steps(path: Path) -> None:
    steps = pq.read_table(path / "tables" / "steps.parquet").to_pandas()
    for _, mine in list(steps.groupby(KEY, observed=True))[:20]:
        answer = mine[mine["step"] >= 0]
        mean = answer["logprob"].astype(float).mean()
        found = running_text.totals(mine, 30)
        assert found["Mean log-probability"][0] == f"{mean:,.3f} nat"
        assert float(found["Perplexity"][0].replace(",", "")) == pytest.approx(math.exp(-mean), rel=5e-3)
        assert found["Top-1 at the output"][0] == f"{(answer['rank'] == 0).sum()} of {len(answer)}"
        assert found["Mean settle layer"][0] == f"{answer['settle_layer'].mean():.1f}"


def test_the_sum_of_what_is_shown_is_the_harness_score() -> None:
    path = next(path for path in find_runs(SAMPLES) if "ls_facts" in str(open_run(path).about["tasks"]))
    requests = pq.read_table(path / "tables" / "requests.parquet").to_pandas()
    steps = pq.read_table(path / "tables" / "steps.parquet").to_pandas()
    scored = requests[requests["logprob"].notna()].iloc[0]
    mine = steps[(steps[KEY] == scored[KEY].tolist()).all(axis=1)]
    mean = float(running_text.totals(mine, 0)["Mean log-probability"][0].removesuffix(" nat"))
    assert mean * (mine["step"] >= 0).sum() == pytest.approx(scored["logprob"], abs=0.01)


def test_what_is_not_finite_is_left_out_of_the_mean_and_counted() -> None:
    found = running_text.totals(made_steps([-1.0, -math.inf, math.nan, -3.0], [0, np.nan, np.nan, 5], first=-1), 4)
    assert found["Mean log-probability"] == ("-3.000 nat", "2 not finite, left out")
    assert found["Top-1 at the output"][0] == "0 of 3"
    assert running_text.totals(made_steps([math.nan], [np.nan]), 4)["Perplexity"][0] == "not finite"


def test_a_perplexity_that_overflows_does_not_fail() -> None:
    assert running_text.totals(made_steps([-800.0], [9]), 0)["Perplexity"][0] == "exp(800)"


# --- what the layers said


def test_neighbours_with_one_token_are_one_block() -> None:
    found = one_step.said(made_column([5, 9, 9, 9, 5, 7, 7], [0.1, 0.2, 0.9, 0.3, 0.4, 0.5, np.nan]))
    assert [(one.first, one.last, one.token_id) for one in found] == [(0, 0, 5), (1, 3, 9), (4, 4, 5), (5, 6, 7)]
    assert found[1].layers == "layers 1–3"
    assert found[0].layers == "layer 0"


def test_two_ids_with_one_text_are_two_blocks() -> None:
    assert len(one_step.said(made_column([5, 6]).assign(top_token=" a"))) == 2


def test_a_missing_layer_ends_a_block() -> None:
    assert len(one_step.said(made_column([5, 5, 5]).drop(index=1))) == 2


@pytest.mark.parametrize(
    ("tops", "target", "expected"),
    [
        ([7, 7], 7, "Every layer says “\u2068␣t7\u2069”, the target."),
        (
            [5, 9, 5, 7],
            7,
            "Settles at layer 3 on “\u2068␣t7\u2069”, the target. Before that, 2 tokens led; the last was ",
        ),
        (
            [5, 7],
            1,
            "Settles at layer 1 on “\u2068␣t7\u2069”. The target ends at rank 3. Before that, another token led",
        ),
    ],
)
def test_the_sentence_says_where_they_agreed(tops: list[int], target: int, expected: str) -> None:
    assert one_step.agreement(made_column(tops), target).startswith(expected)


def test_the_column_draws_blocks_gaps_and_the_settle_layer() -> None:
    frame = made_column([5, 9, 7])
    frame.loc[1, "kl_final"] = np.nan
    figure = one_step.draw(frame, 7, 2, 1, "#000000")
    assert one_step.gaps(frame) == 1
    assert [list(bar.y) for bar in figure.data if bar.type == "bar" and len(bar.y)] == [[2.0], [0.0, 1.0]]
    assert figure.layout.shapes[0].y0 == 1.5
    clicks = [trace for trace in figure.data if trace.customdata is not None]
    assert len(clicks) == 5
    assert all([list(one) for one in trace.customdata] == [[0], [1], [2]] for trace in clicks)
    assert 2 in figure.layout.yaxis.tickvals


def test_tokens_in_the_figures_are_escaped() -> None:
    frame = made_column([5, 7]).assign(top_token="<b>$5 $6")
    steps = made_steps([-1.0, -2.0], [0, 1]).assign(text="<b>$5 $6")
    for drawn in (one_step.draw(frame, 7, 1, None, "#000000"), settling.draw(steps, 4, None)):
        assert "$5" not in drawn.to_json()
        assert "<b>$" not in drawn.to_json()


# --- the strip


def test_the_strip_colours_recorded_tokens_alone() -> None:
    inputs = pd.DataFrame({"token_id": [1, 2, 3, CONTINUES], "text": ["<b>", "\n", "x", ""], "step": [-2, -1, 0, 1]})
    steps = made_steps([-0.5, math.nan, -9.0], [0, np.nan, 3], first=-1)
    shown = running_text.strip_tokens(inputs, steps, running_text.statistics(4)["logprob"], picked=1)
    assert [token.still for token in shown] == [True, False, False, False]
    assert [bool(token.colour) for token in shown] == [False, True, False, True]
    assert [token.picked for token in shown] == [False, False, False, True]
    assert [token.marked for token in shown] == [False, False, True, True]
    assert shown[1].newline
    assert shown[3].text == "⋯"
    assert "Log-probability (nat): -9.000" in shown[3].title
    assert running_text.unknown(steps, running_text.statistics(4)["logprob"]) == 1


@pytest.mark.parametrize("layers", [1, 4, 30, 126])
def test_every_colour_can_be_read_and_no_end_of_the_settle_layer_is_clipped(layers: int) -> None:
    inputs = pd.DataFrame({"token_id": 1, "text": "x", "step": range(layers + 1)})
    steps = made_steps([-1.0] * (layers + 1), [0.0] * (layers + 1)).assign(settle_layer=range(layers + 1))
    settle = running_text.statistics(layers)["settle"]
    for token in running_text.strip_tokens(inputs, steps, settle, None):
        colour = tuple(float(part) for part in token.colour.removeprefix("rgb(").removesuffix(")").split(","))
        assert contrast((0, 0, 0) if token.ink == "#000000" else (255,) * 3, colour) >= 4.5
    assert settle.ticks()[1][0] == "0"
    assert settle.ticks()[1][-1] == str(layers)


def test_without_layers_there_is_no_settle_layer_to_colour_by() -> None:
    assert list(running_text.statistics(0)) == ["logprob", "rank", "entropy"]


@pytest.mark.parametrize("at", [0, 1, 399, 400, 777, 1999])
def test_a_window_holds_its_step_and_moves_in_jumps(at: int) -> None:
    first, end = running_text.window(2000, at, most=800)
    assert first <= at < end
    assert end - first == 800
    assert 0 <= first <= end <= 2000
    assert running_text.window(30, 12) == (0, 30)


# --- the page


def test_the_url_says_it_all(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    test = page("steps", run=GOOD, task="write", doc=2, repeat=1, colour="rank", step=3, layer=2, speed=4)
    assert "Step 3 over all layers" in said(test)
    assert test.select_slider(key="url:step").value == 3
    assert test.button_group(key="url:colour").value in ("rank", ["rank"])
    assert test.selectbox(key="url:speed").value == "4"
    assert "Stop reason" in said(test)
    assert len(figures(test)) == 2


def test_it_opens_on_step_0_of_the_gold_choice(root: Path, page: Open) -> None:
    synthetic.write(root, Spec(GOOD, steps=3, prompt_steps=2))
    test = page("steps")
    assert "Step 0 over all layers" in said(test)
    assert "Step 0 of -2 to 2" in test.select_slider(key="url:step").label
    assert parameters(test) == {}


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        ({"step": 99, "layer": 77, "colour": "kl", "speed": 9}, ("step 2", "layer 4", "colour logprob", "speed 2")),
        ({"step": "x", "layer": "x", "doc": 99}, ("step 0", "layer 4", "document 2")),
    ],
)
def test_a_stale_link_gives_messages_and_the_nearest_view(
    root: Path, page: Open, params: dict[str, object], shown: tuple[str, ...]
) -> None:
    ROOTS["good"](root)
    test = page("steps", **params)
    assert all(f"showing {what} instead" in said(test) for what in shown)
    assert "over all layers" in said(test)


def test_the_final_distribution_says_what_it_leaves_out(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    text = said(page("steps"))
    prob = LAYERS / (LAYERS + 1)
    assert f"{1 - prob - (1 - prob) / 2 - (1 - prob) / 4:.4f} of the probability" in text
    assert "target is not among them" not in text


def test_layer_0_is_said_to_be_no_prediction(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    assert "embeddings are tied to the head" in said(page("steps"))


def test_without_layers_the_text_is_shown_and_the_flag_named(root: Path, page: Open) -> None:
    ROOTS["no_signals"](root)
    test = page("steps")
    assert "--signals logit_lens" in said(test)
    assert "Log-probability" in said(test)
    assert "Mean settle layer" not in said(test)
    assert not figures(test)


def test_a_request_of_one_step_has_nothing_to_play(root: Path, page: Open) -> None:
    synthetic.write(root, Spec(GOOD, steps=1))
    test = page("steps")
    assert len(figures(test)) == 1
    assert not test.select_slider
    assert "Play" not in [button.label for button in test.button]


def test_an_empty_generation_says_so_and_why_it_ended(root: Path, page: Open) -> None:
    synthetic.write(root, Spec(GOOD, steps=0))
    test = page("steps", task="write", step=3)
    assert "nothing was scored or generated" in said(test)
    assert "Stop reason" in said(test)
    assert not test.exception


def test_nan_is_a_gap_with_a_count(root: Path, page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    build = synthetic.lens_table

    def broken(*args: object) -> object:
        table = build(*args)  # type: ignore[arg-type]
        kl = np.where(np.asarray(table["layer"]) == 2, np.nan, np.asarray(table["kl_final"]))
        return table.set_column(
            table.schema.get_field_index("kl_final"), table.schema.field("kl_final"), [kl.astype("f4")]
        )

    monkeypatch.setattr(synthetic, "lens_table", broken)
    synthetic.write(root, Spec(GOOD))
    assert "Gaps, where not finite: 1." in said(page("steps"))


def test_a_live_run_shows_what_it_has_written(root: Path, page: Open) -> None:
    ROOTS["live"](root)
    assert "over all layers" in said(page("steps"))


def test_another_document_forgets_the_step(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    test = page("steps", run=GOOD, doc=0, step=1, layer=2, colour="rank")
    test.button(key="step:The next document").click().run()
    assert parameters(test) == {"run": GOOD, "doc": "1", "colour": "rank"}


def test_buttons_move_the_step(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    test = page("steps", step=1)
    test.button(key="steps:chevron_right").click().run()
    assert parameters(test)["step"] == "2"
    assert test.button(key="steps:chevron_right").disabled
    test.button(key="steps:chevron_left").click().run()
    assert parameters(test)["step"] == "1"


# --- playing


def test_play_and_pause_write_one_step(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    test = page("steps", step=0)
    test.button(key="steps:play_arrow").click().run()
    assert not test.select_slider  # a bar in its place
    assert parameters(test) == {"step": "0"}
    test.button(key="steps:pause").click().run()
    assert test.select_slider(key="url:step").value == 0
    assert parameters(test) == {"step": "0"}


def test_another_colour_does_not_end_the_playing_and_another_document_does(root: Path, page: Open) -> None:
    ROOTS["good"](root)
    test = page("steps", step=0)
    test.button(key="steps:play_arrow").click().run()
    test.selectbox(key="url:speed").set_value("4").run()
    assert not test.select_slider
    test.button(key="step:The next document").click().run()
    assert test.select_slider(key="url:step").value == 0
    assert not test.exception


def test_play_from_the_last_step_begins_again(root: Path, page: Open) -> None:
    synthetic.write(root, Spec(GOOD, steps=3, prompt_steps=2))
    test = page("steps", step=2)
    test.button(key="steps:play_arrow").click().run()
    assert "Step 0 over all layers" in said(test)


def test_a_tick_moves_once_and_never_beyond_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    def tick(at: int, seconds: float, key: str, act: object) -> None:
        assert seconds == 0.5
        sent.append(at)
        for _ in range(2):  # it may come twice
            act(at)  # type: ignore[operator]

    monkeypatch.setattr(playing, "tick", tick)
    play = Playing([-1, 0, 3], -1, 0.5)
    for _ in range(4):
        play.wait()
    assert sent == [-1, 0, 3, 3]
    assert play.ended
