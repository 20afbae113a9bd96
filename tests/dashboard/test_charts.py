"""Statistics, colours, the heatmap and the strips."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from plotly.colors import unlabel_rgb

from dashboard.charts import heatmap, strips
from dashboard.charts.statistics import DEFAULT, STATISTICS, Statistic, cell_colours, contrast, ink
from recorder.signals import registry

PROB = STATISTICS["top1"]
RANK = STATISTICS["rank"]


def cells(tokens: list[str], steps: int = 2, layers: int = 3) -> pd.DataFrame:
    count = steps * layers
    return pd.DataFrame(
        {
            "step": np.repeat(np.arange(steps), layers),
            "layer": np.tile(np.arange(layers), steps),
            "top_id": np.arange(count),
            "top_token": [tokens[i % len(tokens)] for i in range(count)],
            "top1_prob": np.linspace(0, 1, count),
            "entropy": np.full(count, 1.0),
            "kl_final": np.full(count, 1.0),
            "target_logprob": np.full(count, -1.0),
            "target_rank": np.arange(count),
        }
    )


def test_black_on_white_is_21() -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((90, 20, 200), (90, 20, 200)) == pytest.approx(1)


def test_grey_767676_on_white_is_4_54() -> None:
    assert contrast((0x76,) * 3, (255, 255, 255)) == pytest.approx(4.54, abs=0.005)


@pytest.mark.parametrize("statistic", STATISTICS.values(), ids=STATISTICS)
def test_every_cell_can_be_read(statistic: Statistic) -> None:
    for colour in cell_colours(statistic, np.linspace(0, 1, 201)):
        text = (0, 0, 0) if ink(colour) == "#000000" else (255, 255, 255)
        assert contrast(text, unlabel_rgb(colour)) >= 4.5


@pytest.mark.parametrize("statistic", STATISTICS.values(), ids=STATISTICS)
def test_a_statistic_is_a_recorded_column_or_the_first_probability(statistic: Statistic) -> None:
    assert statistic.column in {*registry()["logit_lens"].TABLE.names, "top1_prob"}
    assert statistic.meaning.endswith(".")
    assert DEFAULT in STATISTICS


def test_place_runs_from_low_to_high_and_is_clipped() -> None:
    target = STATISTICS["target"]
    assert target.place(np.array([-140.0, -20.0, -10.0, 0.0])).tolist() == [0, 0, 0.5, 1]


def test_place_of_a_rank_is_logarithmic() -> None:
    places = RANK.place(np.array([0.0, 9.0, 99.0, 1e9]))
    assert places[0] == 0
    assert places[2] == pytest.approx(2 * places[1])
    assert places[3] == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_has_no_place_and_no_colour(value: float) -> None:
    places = PROB.place(np.array([value]))
    assert np.isnan(places).all()
    assert cell_colours(PROB, places) == [""]
    assert PROB.text(value) == "not finite"


def test_a_range_must_not_be_empty() -> None:
    with pytest.raises(ValueError, match="low 1 is not below high 1"):
        Statistic("x", "x", "X", "", 1, 1, "X.")


@pytest.mark.parametrize(
    ("name", "ends"),
    [("top1", ("0", "1")), ("target", ("≤ -20", "0")), ("rank", ("0", "≥ 100,000")), ("kl", ("0", "≥ 20"))],
)
def test_ticks_say_where_the_colours_are_clipped(name: str, ends: tuple[str, str]) -> None:
    places, labels = STATISTICS[name].ticks()
    assert (labels[0], labels[-1]) == ends
    assert (places[0], places[-1]) == (0, 1)


def test_rank_0_has_the_bright_end() -> None:
    first, last = (unlabel_rgb(cell_colours(RANK, np.array([place]))[0]) for place in (0.0, 1.0))
    assert sum(first) > sum(last)


def test_repeated_tokens_keep_their_columns() -> None:
    grid = heatmap.make_grid(cells(["the"], steps=4), PROB, 5)
    figure = heatmap.draw(grid, PROB, ["the"] * 4, None, 700)
    assert grid.place.shape == (3, 4)
    assert list(figure.layout.xaxis.tickvals) == [0, 1, 2, 3]


def test_a_click_on_a_cell_names_its_step_and_layer() -> None:
    frame = cells(["a"], steps=3)
    frame["step"] += 5
    figure = heatmap.draw(heatmap.make_grid(frame, PROB, 5), PROB, ["a"] * 3, (6, 1), 700)
    points = figure.data[-1]
    assert points.marker.opacity == 0
    assert [list(item) for item in points.customdata] == [[step, layer] for layer in range(3) for step in (5, 6, 7)]
    assert (figure.layout.shapes[0].x0, figure.layout.shapes[0].y0) == (0.5, 0.5)


def test_the_last_layer_is_on_top() -> None:
    figure = heatmap.draw(heatmap.make_grid(cells(["a"]), PROB, 5), PROB, ["a"] * 2, None, 700)
    assert figure.layout.yaxis.range[0] < figure.layout.yaxis.range[1]


def test_a_gap_is_counted_and_not_zero() -> None:
    frame = cells(["a"])
    frame.loc[0, "top1_prob"] = np.nan
    grid = heatmap.make_grid(frame.drop(index=5), PROB, 5)
    assert grid.gaps == 2
    assert np.isnan(grid.place[0, 0])


def test_tokens_in_a_figure_are_escaped() -> None:
    grid = heatmap.make_grid(cells(["<b>$5 $6"]), PROB, 20)
    for text in (*grid.text.ravel(), *grid.hover.ravel()):
        assert "$" not in text
        assert "<b>$" not in text
    assert "&lt;b&gt;" in grid.text[0, 0]


def test_the_prompt_marks_its_scored_span() -> None:
    inputs = pd.DataFrame({"token_id": [1, 2, 3], "text": ["<b>", "\n", "x"], "step": [-2, -1, 0]})
    drawn = strips.prompt(inputs, picked=0)
    assert drawn.count(strips.SCORED) == 1
    assert drawn.count(strips.PICKED) == 1
    assert "<b>" not in drawn


def test_a_long_prompt_says_how_much_of_it_is_drawn() -> None:
    count = strips.MOST + 10
    inputs = pd.DataFrame({"token_id": range(count), "text": ["x"] * count, "step": range(-count, 0)})
    assert f"The last {strips.MOST:,} of {count:,} tokens" in strips.prompt(inputs, None)


def test_bars_tell_two_ids_with_one_text_apart() -> None:
    top = [{"token_id": 7, "text": " a", "prob": 0.5}, {"token_id": 8, "text": " a", "prob": 0.25}]
    drawn = strips.bars(top, target=8)
    assert drawn.count("◂ target") == 1
    assert drawn.index("id 7") < drawn.index("◂ target") < drawn.index("id 8")
    assert "width:50.00%" in drawn


@pytest.mark.parametrize(("prob", "shown"), [(None, "not finite"), (math.nan, "not finite"), (1e-9, "&lt; 0.0001")])
def test_a_bar_says_what_it_cannot_draw(prob: float | None, shown: str) -> None:
    assert shown in strips.bars([{"token_id": 7, "text": "a", "prob": prob}], target=0)
