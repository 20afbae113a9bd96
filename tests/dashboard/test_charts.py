"""Statistics, colours, the heatmap, the strip over all steps, pinned tokens and the strips of text."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from plotly.colors import unlabel_rgb

from dashboard.charts import heatmap, minimap, pins, strips
from dashboard.charts.pins import Token
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
            "norm": np.linspace(1, 1e4, count),
            "cos_next": [math.nan if i % layers == layers - 1 else 0.5 for i in range(count)],
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
    [
        ("top1", ("0", "1")),
        ("target", ("≤ -20", "0")),
        ("rank", ("0", "≥ 100k")),
        ("kl", ("0", "≥ 20")),
        ("cos", ("≤ 0", "1")),
    ],
)
def test_ticks_say_where_the_colours_are_clipped(name: str, ends: tuple[str, str]) -> None:
    places, labels = STATISTICS[name].ticks()
    assert (labels[0], labels[-1]) == ends
    assert (places[0], places[-1]) == (0, 1)


@pytest.mark.parametrize("clip", [0, 2, 10])
@pytest.mark.parametrize("name", ["target", "rank", "norm", "cos"])
def test_a_fitted_range_is_numpys_percentiles_of_what_is_kept(name: str, clip: float) -> None:
    values = np.random.default_rng(7).lognormal(3, 2, 500)
    values[:3] = np.nan, np.inf, 1e7
    kept = np.arange(500) > 2
    fitted = STATISTICS[name].fitted(values, kept, clip)
    assert [fitted.low, fitted.high] == pytest.approx(np.percentile(values[3:], [clip, 100 - clip]).tolist())
    labels = fitted.ticks()[1]
    assert labels[0].startswith("≤ ") == (clip > 0)
    assert labels[-1].startswith("≥ ")  # the one left out is larger than all
    assert STATISTICS[name].fitted(values[3:], kept[3:], 0).ticks()[1][-1][0] not in "≤≥"


@pytest.mark.parametrize("value", [0.0, 1.0, -20.0, 1e-30, 5000.0])
@pytest.mark.parametrize("statistic", STATISTICS.values(), ids=STATISTICS)
def test_a_fitted_range_of_equal_values_has_a_width(statistic: Statistic, value: float) -> None:
    value = abs(value) if statistic.log else value
    fitted = statistic.fitted(np.full(3, value), np.ones(3, bool))
    assert fitted.low < fitted.high
    assert 0 <= float(fitted.place(np.array([value]))[0]) <= 1
    assert fitted.ticks()[0] == sorted(fitted.ticks()[0])


def test_nothing_finite_keeps_the_fixed_range() -> None:
    assert PROB.fitted(np.full(3, np.nan), np.ones(3, bool)) is PROB
    assert PROB.fitted(np.arange(3.0), np.zeros(3, bool)) is PROB


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("target", -12.345, "-12.3"),
        ("top1", 0.12345, "0.12"),
        ("top1", 9.999, "10.0"),
        ("rank", 7.0, "7"),
        ("rank", 12345.0, "12.3k"),
        ("rank", 999_600.0, "1M"),
        ("norm", 857.2, "857"),
        ("norm", math.nan, "–"),
    ],
)
def test_a_value_in_a_cell_is_short(name: str, value: float, shown: str) -> None:
    assert STATISTICS[name].brief(value) == shown


def test_the_last_layer_has_no_next_one() -> None:
    assert STATISTICS["cos"].of(math.nan, last=True) == ("none", "at the last layer")
    assert STATISTICS["cos"].of(math.nan, last=False) == ("not finite", "")
    assert STATISTICS["norm"].of(None, last=True) == ("not finite", "")


@pytest.mark.parametrize("blocks", [1, 24, 28, 32, 36, 80])
@pytest.mark.parametrize("stride", [1, 2, 4, 8])
def test_a_stride_never_drops_the_last_layer(blocks: int, stride: int) -> None:
    layers = list(range(blocks + 1))
    for low, high in [(0, blocks), (0, blocks - 1), (blocks // 2, blocks)]:
        shown = heatmap.strided(layers, low, high, stride)
        assert shown[-1] == high
        assert shown == [layer for layer in layers if low <= layer <= high and (high - layer) % stride == 0]


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
    points = next(trace for trace in figure.data[1:] if trace.mode == "markers")
    assert points.marker.opacity == 0
    assert [list(item) for item in points.customdata] == [[step, layer] for layer in range(3) for step in (5, 6, 7)]
    assert (figure.layout.shapes[0].x0, figure.layout.shapes[0].y0) == (0.5, 0.5)


def test_the_last_layer_is_on_top() -> None:
    figure = heatmap.draw(heatmap.make_grid(cells(["a"]), PROB, 5), PROB, ["a"] * 2, None, 700)
    assert figure.layout.yaxis.range[0] < figure.layout.yaxis.range[1]


@pytest.mark.parametrize(("label", "written"), [("token", "⁨a⁩"), ("rank", "0"), ("value", "-1.00"), ("none", "")])
def test_what_is_written_is_chosen_apart_from_the_colour(label: str, written: str) -> None:
    grid = heatmap.make_grid(cells(["a"]), STATISTICS["target"], 9, label)
    assert grid.text[0, 0] == written
    figure = heatmap.draw(grid, STATISTICS["target"], ["a"] * 2, None, 700)
    assert any(trace.mode == "text" for trace in figure.data[1:]) == (label != "none")


def test_left_out_layers_leave_no_hole() -> None:
    frame = cells(["a"], layers=9)
    shown = frame[frame["layer"].isin(heatmap.strided(range(9), 0, 8, 4))]
    grid = heatmap.make_grid(shown, PROB, 5)
    figure = heatmap.draw(grid, PROB, ["a"] * 2, (1, 4), 700, settled=[3, None])
    assert list(figure.data[0].y) == [0, 1, 2]
    assert list(figure.layout.yaxis.ticktext) == ["0", "4", "8"]
    assert (figure.layout.shapes[0].y0, figure.layout.shapes[0].y1) == (0.5, 1.5)
    assert set(figure.data[-1].y) == {0.5, None}  # settled at 3: the first shown layer from there on is 4


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
    assert "10 tokens before these" in strips.prompt(inputs, None)
    assert "more tokens" not in strips.prompt(inputs, None)
    drawn = strips.prompt(inputs, -count + 5)
    assert "tokens before" not in drawn
    assert drawn.count("<span") == strips.AFTER + 5
    assert f"… {count - strips.AFTER - 5:,} more tokens" in drawn
    assert drawn.count(strips.PICKED) == 1


def test_bars_tell_two_ids_with_one_text_apart() -> None:
    top = [{"token_id": 7, "text": " a", "prob": 0.5}, {"token_id": 8, "text": " a", "prob": 0.25}]
    drawn = strips.bars(top, target=8)
    assert drawn.count("◂ target") == 1
    assert drawn.index("id 7") < drawn.index("◂ target") < drawn.index("id 8")
    assert "width:50.00%" in drawn


@pytest.mark.parametrize(("prob", "shown"), [(None, "not finite"), (math.nan, "not finite"), (1e-9, "&lt; 0.0001")])
def test_a_bar_says_what_it_cannot_draw(prob: float | None, shown: str) -> None:
    assert shown in strips.bars([{"token_id": 7, "text": "a", "prob": prob}], target=0)


def test_the_strip_over_all_steps_averages_what_shares_a_bin() -> None:
    logprob = np.linspace(-3, 0, 1203)
    logprob[5] = np.nan
    steps = pd.DataFrame({"step": np.arange(-3, 1200), "logprob": logprob})
    found = minimap.bins(steps, "logprob")
    assert len(found) == 401
    assert (found["first"].iloc[0], found["last"].iloc[-1]) == (-3, 1199)
    assert found["value"].tolist() == pytest.approx([np.nanmean(logprob[at : at + 3]) for at in range(0, 1203, 3)])
    figure = minimap.draw(found, minimap.at_output("entropy"), (0, 15), 3)
    assert figure.data[1].customdata[100][0] in range(found["first"][100], found["last"][100] + 1)


@pytest.mark.parametrize(("name", "column"), [("target", "logprob"), ("rank", "rank"), ("entropy", "entropy")])
def test_the_strip_shows_the_models_output(name: str, column: str) -> None:
    assert minimap.at_output(name).column == column
    assert minimap.at_output("norm").column == "logprob"


TARGET = 9
LISTS = {0: ([1, 2], [0.9, 0.1]), 1: ([5, 1], [0.6, 0.3]), 2: ([7, 8], [0.5, 0.4]), 3: ([8, 7], [0.7, 0.2])}
"""{layer: (top ids, top probabilities)}: 5 wins a middle layer only, 7 and 8 have one text."""


def step_cells(**changes: object) -> pd.DataFrame:
    """Four layers of one step, k = 2; the target is never among the top."""
    frame = pd.DataFrame(
        {
            "step": 0,
            "layer": list(LISTS),
            "top_ids": [np.array(ids, np.int32) for ids, _ in LISTS.values()],
            "top_tokens": [["x" if token in (7, 8) else f"t{token}" for token in ids] for ids, _ in LISTS.values()],
            "top_probs": [np.array(probs, np.float32) for _, probs in LISTS.values()],
            "target_logprob": np.log([1e-9, 1e-4, 0.01, 0.05]),
            "target_rank": [40_000, 50, 3, 2],
            "top1_prob": [probs[0] for _, probs in LISTS.values()],
        }
    )
    return frame.assign(**changes)


def offered(frame: pd.DataFrame) -> list[Token]:
    return pins.candidates(pins.stored(frame), 3, Token(TARGET, "t9", target=True))


def test_default_pins_hold_the_target_and_every_winner_of_a_layer() -> None:
    found = offered(step_cells())
    assert pins.default(found) == [9, 8, 1, 5, 7]
    assert [token.token_id for token in found if token.final] == [8]
    assert 2 not in pins.default(found)


def test_a_token_outside_the_stored_top_k_is_a_gap_and_the_target_is_exact() -> None:
    frame = step_cells()
    rows = pins.follow(frame, pins.stored(frame), [1, TARGET, 77], TARGET).set_index(["token_id", "layer"])
    assert rows.loc[1, "prob"].tolist() == pytest.approx([0.9, 0.3, math.nan, math.nan], nan_ok=True)
    assert rows.loc[1, "rank"].tolist() == pytest.approx([0, 1, math.nan, math.nan], nan_ok=True)
    assert rows.loc[TARGET, "prob"].tolist() == pytest.approx([1e-9, 1e-4, 0.01, 0.05])
    assert rows.loc[TARGET, "rank"].tolist() == [40_000, 50, 3, 2]
    assert rows.loc[77].isna().all(axis=None)


@pytest.mark.parametrize("way", pins.WAYS)
def test_pinned_tokens_are_lines_that_can_be_told_apart(way: str) -> None:
    frame = step_cells()
    found = offered(frame)
    names = {token.token_id: token for token in found}
    ids = pins.default(found)
    figure = pins.draw(pins.follow(frame, pins.stored(frame), ids, TARGET), names, way, 2, 400)
    assert [trace.name for trace in figure.data][:2] == ["⁨t9⁩ (target)", "⁨x⁩ (final, id 8)"]
    assert len({(trace.line.color, trace.line.dash) for trace in figure.data}) == len(ids) == 5
    assert figure.data[0].customdata[3][0] == 3
    expected = [1e-6, 1e-4, 0.01, 0.05] if way == "prob" else [40_001, 51, 4, 3]
    assert list(figure.data[0].y) == pytest.approx(expected)
    assert "1e-09" in figure.data[0].text[0]
    assert [y is None for y in figure.data[2].y] == [False, False, True, True]
    assert not figure.data[2].connectgaps


def test_a_layer_that_is_not_finite_has_no_winner() -> None:
    frame = step_cells()
    frame.at[1, "top_probs"] = np.array([np.nan, np.nan], np.float32)
    assert pins.default(offered(frame)) == [9, 8, 1, 7]
    nothing = step_cells(top_probs=[np.full(2, np.nan, np.float32)] * 4, target_logprob=np.nan, target_rank=np.nan)
    found = offered(nothing)
    assert pins.default(found) == [TARGET]
    rows = pins.follow(nothing, pins.stored(nothing), [TARGET], TARGET)
    for way in pins.WAYS:
        assert set(pins.draw(rows, {TARGET: found[0]}, way, 0, 400).data[0].y) == {None}


def test_the_definition_of_a_fact_is_there_on_hover() -> None:
    drawn = strips.facts({"Entropy": ("1.0", "nat")}, {"Entropy": 'How "spread" <out>.'})
    assert 'title="How &quot;spread&quot; &lt;out&gt;."' in drawn


def test_the_target_and_the_final_answer_are_told_apart_by_words() -> None:
    top = [{"token_id": token, "text": "a", "prob": 0.3} for token in (1, 2, 3)]
    drawn = strips.bars(top, 2, 3)
    assert drawn.index("id 1") < drawn.index("◂ target") < drawn.index("◂ final")
    assert "◂ target, final" in strips.bars(top, 2, 2)
