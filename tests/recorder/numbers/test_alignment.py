"""Which requests a forward row answers: token ids in, places out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from recorder.alignment import Alignment, Asked, Key, Served


def asked(tokens: Sequence[int], n_prompt: int, doc: int = 0, choice: int = 0) -> Asked:
    return Asked(Key("task", doc, choice, 0), "loglikelihood", "hash", list(tokens), n_prompt, 0, "text")


def served(found: Served | None) -> Served:
    assert found is not None
    return found


def test_a_row_answers_the_request_whose_input_it_is() -> None:
    alignment = Alignment([asked([5, 6, 7, 8], 2)], every_position=False)
    found = served(alignment.match([5, 6, 7]))
    assert (found.length, found.requests) == (3, [0])
    assert {p: [(w.step, w.target) for w in wants] for p, wants in found.wants.items()} == {1: [(0, 7)], 2: [(1, 8)]}
    assert found.fresh == found.wants
    assert alignment.unmatched == []


def test_right_padding_is_taken_off() -> None:
    alignment = Alignment([asked([5, 6, 7], 1)], every_position=False)
    assert served(alignment.match([5, 6, 0, 0, 0])).length == 2


def test_a_real_trailing_zero_is_a_token() -> None:
    """[5, 0] and [5] look alike once padded: each row answers one of them, the longer first, and none is lost."""
    alignment = Alignment([asked([5, 9], 1), asked([5, 0, 9], 1, doc=1)], every_position=False)
    assert served(alignment.match([5, 0])).requests == [1]
    assert served(alignment.match([5, 0])).requests == [0]
    assert alignment.unmatched == []


def test_a_prompt_of_zeros_is_one_of_them() -> None:
    alignment = Alignment([asked([0, 0, 0, 4], 1), asked([0, 4], 1, doc=1)], every_position=False)
    assert served(alignment.match([0, 0, 0])).requests == [0]
    assert served(alignment.match([0, 0, 0])).requests == [1]


@pytest.mark.parametrize("row", [[5, 6, 9], [5], [6, 5], [5, 6, 7, 1], [1] * 8, [0, 0, 0], []])
def test_other_rows_belong_to_nobody(row: list[int]) -> None:
    alignment = Alignment([asked([5, 6, 7, 8], 2)], every_position=False)
    assert alignment.match(row) is None
    assert len(alignment.unmatched) == 1


def test_a_row_is_matched_once() -> None:
    alignment = Alignment([asked([5, 6, 7], 1)], every_position=False)
    assert alignment.match([5, 6]) is not None
    assert alignment.match([5, 6]) is None


def test_requests_with_the_same_input_share_a_row() -> None:
    """One-token choices, and the same text cut at another place."""
    requests = [asked([1, 2, 3, 7], 3), asked([1, 2, 3, 8], 3, choice=1), asked([1, 2, 3, 7], 2, doc=1)]
    found = served(Alignment(requests, every_position=False).match([1, 2, 3]))
    assert sorted(found.requests) == [0, 1, 2]
    assert [(w.request, w.step, w.target) for w in found.wants[2]] == [(0, 0, 7), (1, 0, 8), (2, 1, 7)]
    assert [(w.request, w.step, w.target) for w in found.wants[1]] == [(2, 0, 3)]


def test_a_shared_prefix_is_fresh_once_and_for_all_who_share_it() -> None:
    requests = [asked([1, 2, 3, 4], 2), asked([1, 2, 3, 5], 2, choice=1), asked([1, 2, 9, 5], 2, choice=2)]
    alignment = Alignment(requests, every_position=False)
    first = served(alignment.match([1, 2, 3]))
    assert {p: [(w.request, w.target) for w in wants] for p, wants in first.fresh.items()} == {
        1: [(0, 3), (1, 3), (2, 9)],  # the last prompt token, of all three choices
        2: [(0, 4), (1, 5)],
    }
    second = served(alignment.match([1, 2, 9]))
    assert list(second.fresh) == [2]
    assert [w.request for w in second.wants[1]] == [2]


def test_equal_positions_after_other_tokens_are_not_shared() -> None:
    alignment = Alignment([asked([1, 2, 3], 2), asked([4, 2, 3], 2, doc=1)], every_position=False)
    assert list(served(alignment.match([1, 2])).fresh) == [1]
    assert list(served(alignment.match([4, 2])).fresh) == [1]


@pytest.mark.parametrize("n_prompt", [1, 3])
def test_every_position_has_negative_steps(n_prompt: int) -> None:
    alignment = Alignment([asked([1, 2, 3, 4, 5], n_prompt)], every_position=True)
    found = served(alignment.match([1, 2, 3, 4]))
    assert sorted(found.wants) == [0, 1, 2, 3]
    assert [found.wants[p][0].step for p in range(4)] == list(range(1 - n_prompt, 5 - n_prompt))
    assert [found.wants[p][0].target for p in range(4)] == [2, 3, 4, 5]


def test_prefixes_are_shared_between_requests_that_score_and_that_only_read_them() -> None:
    requests = [asked([1, 2, 3, 4], 1), asked([1, 2, 3, 4], 3, doc=1)]
    found = served(Alignment(requests, every_position=False).match([1, 2, 3]))
    assert [(w.request, w.step) for w in found.fresh[2]] == [(0, 2), (1, 0)]
    assert [w.request for w in found.fresh[0]] == [0]


def test_what_no_row_served_is_named() -> None:
    requests = [asked([1, 2, 3], 1, doc=d, choice=d) for d in range(2)] + [asked([7, 8], 1, doc=2)]
    alignment = Alignment(requests, every_position=False)
    alignment.match([1, 2])
    assert [request.key for request in alignment.unmatched] == [Key("task", 2, 0, 0)]


@pytest.mark.parametrize("every", [False, True])
def test_random_requests_are_each_served_once_with_their_own_tokens(every: bool) -> None:
    """Small alphabets share much: every want is fresh once, and says what its request asks at that place."""
    generator = np.random.default_rng(0)
    requests = []
    for doc in range(300):
        tokens = generator.integers(0, 3, generator.integers(2, 7)).tolist()
        requests.append(asked(tokens, int(generator.integers(1, len(tokens))), doc=doc))
    alignment = Alignment(requests, every)
    width = max(len(request.input) for request in requests)
    rows = sorted({request.input for request in requests}, key=len, reverse=True)
    fresh: list[tuple[int, int]] = []
    prefixes: set[tuple[int, ...]] = set()
    for row in rows:
        found = served(alignment.match([*row, *[0] * (width - len(row))]))
        assert {requests[i].input for i in found.requests} == {row[: found.length]}
        for position, wants in found.fresh.items():
            prefix = row[: position + 1]
            assert prefix not in prefixes
            prefixes.add(prefix)
            for want in wants:
                request = requests[want.request]
                assert request.n_prompt - 1 + want.step == position
                assert request.input[: position + 1] == prefix
                assert request.tokens[position + 1] == want.target
                fresh.append((want.request, want.step))
    assert alignment.unmatched == []
    expected = [(i, s) for i, r in enumerate(requests) for s in range(1 - r.n_prompt if every else 0, r.n_targets)]
    assert sorted(fresh) == sorted(expected)
