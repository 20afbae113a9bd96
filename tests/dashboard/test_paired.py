"""Paired statistics against closed forms, exact enumeration, and their own promise: 95 % coverage."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dashboard import paired
from dashboard.paired import Parting, Z, compare, half_width, mcnemar, partings


def pairs_of(only_a: int, only_b: int, both: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    """Right (1) and wrong (0) of A and B."""
    a = np.repeat([1.0, 0.0, 1.0, 0.0], [only_a, only_b, both, neither])
    b = np.repeat([0.0, 1.0, 1.0, 0.0], [only_a, only_b, both, neither])
    return a, b


@pytest.mark.parametrize(("only_a", "only_b"), [(1, 5), (0, 6), (3, 3), (10, 2), (40, 61), (0, 1)])
def test_mcnemar_is_twice_the_smaller_binomial_tail(only_a: int, only_b: int) -> None:
    n = only_a + only_b
    tail = sum(math.comb(n, k) for k in range(min(only_a, only_b) + 1)) / 2**n
    assert mcnemar(only_a, only_b) == pytest.approx(min(1.0, 2 * tail), rel=1e-9)
    assert mcnemar(only_b, only_a) == pytest.approx(mcnemar(only_a, only_b))


def test_runs_that_never_part_have_p_1() -> None:
    assert mcnemar(0, 0) == 1.0


def test_means_counts_and_difference() -> None:
    found = compare(*pairs_of(only_a=3, only_b=7, both=22, neither=8))
    assert (found.n, found.only_a, found.only_b) == (40, 3, 7)
    assert (found.mean_a, found.mean_b) == (25 / 40, 29 / 40)
    assert found.difference == pytest.approx(0.1)
    assert found.p == pytest.approx(mcnemar(3, 7))


def test_the_interval_of_many_pairs_is_the_normal_one() -> None:
    a, b = pairs_of(only_a=900, only_b=1200, both=5000, neither=2900)
    found = compare(a, b)
    half = Z * (b - a).std(ddof=1) / math.sqrt(len(a))
    assert found.low == pytest.approx(found.difference - half, abs=0.03 * half)
    assert found.high == pytest.approx(found.difference + half, abs=0.03 * half)
    assert found.sign == 1


@pytest.mark.parametrize("few", [False, True], ids=["by index", "by counts"])
def test_the_interval_of_few_pairs_is_that_of_all_their_resamples(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    difference = np.array([-1.0, 0.25, 0.5, 2.0, 3.5])
    monkeypatch.setattr(paired, "FEW", 64 if few else 0)
    every = np.array([np.mean(drawn) for drawn in itertools.product(difference, repeat=5)])
    found = compare(np.zeros(5), difference)
    for end, share in ((found.low, 0.025), (found.high, 0.975)):
        assert end is not None
        assert np.mean(every < end - 1e-9) <= share + 0.005
        assert np.mean(every <= end + 1e-9) >= share - 0.005


def test_both_ways_to_draw_agree() -> None:
    difference = np.random.default_rng(3).normal(0.2, 1, 60)
    by_counts = paired._by_counts(*np.unique(difference, return_counts=True))
    by_index = paired._by_index(difference)
    assert len(by_counts) == len(by_index) == paired.DRAWS
    assert by_counts.std() == pytest.approx(by_index.std(), rel=0.03)
    assert by_counts.mean() == pytest.approx(by_index.mean(), abs=0.01)


def test_many_distinct_differences_over_many_pairs_take_the_normal_interval() -> None:
    generator = np.random.default_rng(5)
    a = generator.normal(0, 1, paired.LARGE + 1)
    b = a + generator.normal(0.1, 1, len(a))
    found = compare(a, b)
    assert found.how.startswith("normal")
    means = paired._by_index(b - a)
    assert found.low == pytest.approx(np.quantile(means, 0.025), abs=0.003)
    assert found.high == pytest.approx(np.quantile(means, 0.975), abs=0.003)


@pytest.mark.parametrize("kind", ["right or wrong", "numbers"])
def test_the_interval_covers_the_truth_about_95_times_in_100(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "DRAWS", 1000)
    generator, n, hits, tries = np.random.default_rng(11), 150, 0, 600
    for _ in range(tries):
        if kind == "numbers":
            a, b, truth = generator.normal(0, 1, n), generator.normal(0.3, 1, n), 0.3
        else:
            drawn = generator.multinomial(n, [0.1, 0.25, 0.4, 0.25])
            (a, b), truth = pairs_of(*drawn), 0.15
        found = compare(a, b)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= truth <= found.high
    assert 0.92 <= hits / tries <= 0.975


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ([], [], "No pair has both values"),
        ([math.nan], [1.0], "No pair has both values"),
        ([0.0], [1.0], "One pair"),
        ([1.0, 0.0, 1.0], [1.0, 0.0, 1.0], "No pair differs"),
        ([0.0, 0.0], [1.0, 1.0], "Every pair differs alike"),
    ],
)
def test_where_there_is_no_interval_a_sentence_says_why(a: list[float], b: list[float], said: str) -> None:
    found = compare(a, b)
    assert (found.low, found.high, found.sign) == (None, None, 0)
    assert said in found.why


def test_a_value_that_is_missing_leaves_its_pair_out() -> None:
    found = compare([1.0, math.nan, 0.0, 1.0], [0.0, 1.0, math.inf, 1.0])
    assert (found.n, found.left_out, found.only_a) == (2, 2, 1)


def test_only_right_or_wrong_has_a_p_value() -> None:
    assert compare([0.5, 1.0, 0.0], [1.0, 1.0, 0.0]).p is None
    assert compare([], []).p is None


def test_the_same_pairs_give_the_same_interval() -> None:
    a, b = pairs_of(5, 9, 30, 20)
    assert compare(a, b) == compare(a, b)
    swapped = compare(b, a)
    assert swapped.low == pytest.approx(-(compare(a, b).high or 0), abs=0.02)


def test_the_interval_of_a_mean_over_few_documents_is_students() -> None:
    found = half_width(np.array([1.0, 1.0, 2.0, 1.0]), np.array([3, 10, 1_000_000, 1]))
    np.testing.assert_allclose(found[:3], [4.302653, 2.262157, 2 * Z], rtol=1e-5)  # from any table of Student's t
    assert np.isnan(found[3])


def test_curves_part_until_they_are_clearly_on_the_other_side() -> None:
    difference = np.array([0.0, 0.5, 0.1, -1.0, -0.1, -2.0, -1.5, 3.0, 0.0, 9.0])
    half = np.array([0.2, 0.2, 0.2, 0.5, 0.5, 0.5, 0.5, 0.5, 0.1, np.nan])
    assert partings(10 + np.arange(10), difference, half) == [
        Parting(first=11, last=11, apart=1, widest=11, gap=0.5),
        Parting(first=13, last=16, apart=3, widest=15, gap=-2.0),
        Parting(first=17, last=17, apart=1, widest=17, gap=3.0),
    ]


@pytest.mark.parametrize(
    ("difference", "half"), [([0.1, -0.1, 0.0], [0.2] * 3), ([1.0, np.nan], [np.nan, 0.1]), ([], []), ([0.0], [0.0])]
)
def test_curves_within_their_bands_do_not_part(difference: list[float], half: list[float]) -> None:
    assert partings(np.arange(len(half)), np.array(difference), np.array(half)) == []
